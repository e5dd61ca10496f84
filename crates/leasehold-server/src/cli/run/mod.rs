//! `leasehold run`: a command under a lease, dead before the lease could be granted again.
//!
//! ```text
//!   acquire ──▶ guard ──▶ child ──▶ supervise (renewals, signals, deadlines) ──▶ release ──▶ exit code
//! ```
//!
//! Read [`plan`] first (when), then [`leased_command`] and [`supervise`] (what), then [`child`] and [`guard`] (how).
//! `elect` and `cron` run their commands by the same means.
//!
//! # Not promised
//!
//! A command that leaves its process group (a daemon, `setsid`) is out of reach. A machine that is
//! paused as a whole stops everybody here; the fence at the resource refuses the old token then.

pub mod child;
pub mod group;
pub mod guard;
pub mod leased_command;
pub mod output_tail;
pub mod plan;
mod supervise;
mod terminal;

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use leasehold::recipe::LeaseKind as _;
use leasehold::{Error, Leasehold};

use self::leased_command::{CommandEnd, LeasedCommand, RunLease};
use self::plan::RunPlan;
use super::target::Target;
use leasehold_support::duration;
use leasehold_support::exit::Failure;
use leasehold_support::signals::{self, Signals};

const EXAMPLE: &str = "\
Example:
  leasehold run nightly-report -- ./report.sh
  leasehold run db-migration --ttl 1m --wait 10m -- sh -c 'migrate --token \"$LEASEHOLD_TOKEN\"'

The command finds LEASEHOLD_TOKEN, LEASEHOLD_RESOURCE, LEASEHOLD_LEASE_ID, LEASEHOLD_MARK and LEASEHOLD_FENCE (what
a fenced table wants to see) in its environment. The lease is renewed every third of the ttl. When it can no
longer be proven, the command's whole process group gets TERM, then KILL before the lease could be granted
again, and the exit code is 6.

When the command ends, what it left behind in its process group is ended too (TERM, then KILL after
the grace) before the lease is released: the lease is not free while part of the work runs. A process
that leaves the group is out of reach. TERM, INT and HUP are passed on to the group; Ctrl-Z is undone.";

/// Runs a command under a lease, and ends it before the lease could be granted to another.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct RunArgs {
    /// The resource.
    #[arg(value_name = "NAME")]
    name: String,
    /// Asked life of the lease, renewed every third of it: up to 24h.
    #[arg(long, default_value = "30s", value_parser = duration::parse, allow_hyphen_values = true)]
    ttl: Duration,
    /// How long to stand in line while it is held by another: up to 1h.
    #[arg(long, default_value = "0s", value_parser = duration::parse, allow_hyphen_values = true)]
    wait: Duration,
    /// End the command after this long, however well the renewals go.
    #[arg(long, value_name = "D", value_parser = duration::parse, allow_hyphen_values = true)]
    max_hold: Option<Duration>,
    /// How long the command may take between TERM and KILL.
    #[arg(long, default_value = "5s", value_parser = duration::parse, allow_hyphen_values = true)]
    grace: Duration,
    /// Give the command LEASEHOLD_API_KEY too; otherwise it is removed from its environment.
    #[arg(long)]
    pass_key: bool,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl RunArgs {
    /// Takes the lease, runs the command, gives the lease back.
    pub async fn execute(self, target: &Target) -> anyhow::Result<u8> {
        let plan = RunPlan::new(self.ttl, self.grace, self.max_hold).map_err(Failure::usage)?;
        // From here on a signal is ours to handle: a lease must not be left behind by Ctrl-C.
        let mut signals = Signals::listen()?;
        let client = target.open().await?;
        let taken = tokio::select! {
            biased;
            taken = self.acquire(&client) => taken.map_err(anyhow::Error::from),
            signal = signals.next() => Err(signals::interrupted(signal, signals::NOTHING_HELD)),
        };
        let leased = LeasedCommand::new(&self.name, &self.command, plan).pass_key(self.pass_key);
        let done = match taken {
            Ok(lease) => leased.run(lease, &mut signals).await.map(CommandEnd::exit_code),
            Err(error) => Err(error),
        };
        // Best effort: what is still under way after the answer is known changes nothing about it.
        let _ = client.close().await;
        done
    }

    async fn acquire(&self, client: &Leasehold) -> Result<RunLease, Error> {
        let holder = leased_command::holder_label(&self.command);
        let mut claim = client.acquire(&self.name).ttl(self.ttl).wait(self.wait).holder(holder);
        if let Some(max_hold) = self.max_hold {
            claim = claim.max_hold(max_hold);
        }
        RunLease::ask_for(claim).await
    }
}
