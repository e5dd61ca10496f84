//! The labs: one file each, a schedule written as a story. Each shows the failure first, then the cure.

mod failover;
mod oversell;
mod partition;
mod pause;
mod redlock;
mod release;
mod setnx;
mod steps;

use clap::ValueEnum;

use crate::stage::{Stage, require_program};

/// The labs there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LabName {
    Pause,
    Partition,
    Oversell,
    Setnx,
    Release,
    Failover,
    Redlock,
}

impl LabName {
    pub const ALL: [Self; 7] =
        [Self::Pause, Self::Partition, Self::Oversell, Self::Setnx, Self::Release, Self::Failover, Self::Redlock];

    /// As it is typed.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Partition => "partition",
            Self::Oversell => "oversell",
            Self::Setnx => "setnx",
            Self::Release => "release",
            Self::Failover => "failover",
            Self::Redlock => "redlock",
        }
    }

    /// What it is about.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Pause => "a holder sleeps longer than its lease, wakes up and writes",
            Self::Partition => "a holder is cut off from the engine and works on",
            Self::Oversell => "32 buyers read that one unit is left, and all of them sell it",
            Self::Setnx => "four ways in which SET NX fails as a lock",
            Self::Release => "a late holder releases the lock of another",
            Self::Failover => "a Redis fails over to a replica that has not heard of the lock",
            Self::Redlock => "two majorities of five nodes, after a restart and after a step of a clock",
        }
    }

    /// Whether it sells a seat, which can be in SQLite or in PostgreSQL.
    pub const fn has_seats(self) -> bool {
        matches!(self, Self::Pause | Self::Partition | Self::Failover | Self::Redlock)
    }

    /// The programs it needs, beside this binary: which, and the package that has it.
    pub const fn needs(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Pause | Self::Partition | Self::Oversell => &[],
            Self::Setnx | Self::Release | Self::Failover | Self::Redlock => {
                &[("redis-server", "redis-server"), ("redis-cli", "redis-tools")]
            }
        }
    }

    /// Fails if a program is missing.
    pub fn check_needs(self) -> anyhow::Result<()> {
        self.needs().iter().try_for_each(|(program, package)| require_program(program, package))
    }

    /// Plays it. The answer is one sentence about what was seen, if all of it was.
    pub async fn play(self, stage: &mut Stage) -> anyhow::Result<String> {
        match self {
            Self::Pause => pause::play(stage).await,
            Self::Partition => partition::play(stage).await,
            Self::Oversell => oversell::play(stage).await,
            Self::Setnx => setnx::play(stage).await,
            Self::Release => release::play(stage).await,
            Self::Failover => failover::play(stage).await,
            Self::Redlock => redlock::play(stage).await,
        }
    }
}
