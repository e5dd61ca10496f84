//! `leasehold run`: a command under a lease, dead before the lease could be granted again.
//!
//! ```text
//!   acquire ──▶ guard ──▶ child ──▶ supervise (renewals, signals, deadlines) ──▶ release ──▶ exit code
//! ```
//!
//! Read [`plan`] first (when), then [`supervise`] (what), then [`child`] and [`guard`] (how).
//!
//! # Not promised
//!
//! A command that leaves its process group (a daemon, `setsid`) is out of reach. A machine that is
//! paused as a whole stops everybody here; the fence at the resource refuses the old token then.

mod child;
mod group;
pub mod guard;
mod plan;
mod supervise;
mod terminal;

use std::ffi::OsString;
use std::io;
use std::ops::Deref;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use leasehold::fence::FenceSetting;
use leasehold::{Error, FencedLease, Lease, Leasehold, Refusal};

use self::group::Group;
use self::guard::Guard;
use self::plan::RunPlan;
use self::supervise::{RunOutcome, Supervisor};
use self::terminal::Terminal;
use super::target::{self, Target};
use leasehold_support::exit::{self, Failure};
use leasehold_support::signals::{self, Signals};
use leasehold_support::{duration, output};

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
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// The lease in the strongest form the engine offers.
enum RunLease {
    Fenced(FencedLease),
    Plain(Lease),
}

impl Deref for RunLease {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        match self {
            Self::Fenced(lease) => lease,
            Self::Plain(lease) => lease,
        }
    }
}

impl RunLease {
    /// What fences are shown: the token, for the resource of this lease only.
    fn fence_setting(&self) -> Option<String> {
        match self {
            Self::Fenced(lease) => FenceSetting::for_lease(lease).ok().map(|setting| setting.to_string()),
            Self::Plain(_) => None,
        }
    }

    fn token(&self) -> Option<String> {
        match self {
            Self::Fenced(lease) => Some(lease.token().to_string()),
            Self::Plain(_) => None,
        }
    }

    async fn release(self) -> Result<bool, Error> {
        match self {
            Self::Fenced(lease) => lease.release().await,
            Self::Plain(lease) => lease.release().await,
        }
    }
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
        let done = match taken {
            Ok(lease) => self.run_under_lease(lease, plan, &mut signals).await,
            Err(error) => Err(error),
        };
        // Best effort: what is still under way after the answer is known changes nothing about it.
        let _ = client.close().await;
        done
    }

    async fn acquire(&self, client: &Leasehold) -> Result<RunLease, Error> {
        let mut claim = client.acquire(&self.name).ttl(self.ttl).wait(self.wait).holder(self.holder_label());
        if let Some(max_hold) = self.max_hold {
            claim = claim.max_hold(max_hold);
        }
        if client.promises().fencing {
            Ok(RunLease::Fenced(claim.fenced().await?))
        } else {
            Ok(RunLease::Plain(claim.await?))
        }
    }

    /// Host, pid and program, for people who look at `ls`. Not the arguments: they may hold secrets.
    fn holder_label(&self) -> String {
        let program = self.command.first().map(Path::new).and_then(Path::file_name).unwrap_or_default();
        let host = rustix::system::uname();
        let host = host.nodename().to_string_lossy();
        let label = format!("{host}:{} {}", std::process::id(), program.to_string_lossy());
        // Labels are bounded and hold no control characters; a strange file name must not stop the work.
        let mut label = output::plain(&label);
        label.truncate(label.floor_char_boundary(200));
        label
    }

    /// Runs the command under the lease and says the exit code.
    async fn run_under_lease(&self, lease: RunLease, plan: RunPlan, signals: &mut Signals) -> anyhow::Result<u8> {
        let now = target::system_clock().now();
        if now >= plan.term_at(now.plus(lease.remaining())) {
            let _ = lease.release().await;
            return Err(Failure::coded(
                exit::UNAVAILABLE,
                "the lease was granted too late to start the command: the engine is slow, give a longer --ttl",
            ));
        }
        let started = self.start_and_watch(&lease, plan, signals).await;
        let (ending, guard) = match started {
            Ok(started) => started,
            Err(error) => {
                let _ = lease.release().await;
                return Err(error);
            }
        };
        if let Some(guard) = guard {
            guard.dismiss();
        }
        self.release_and_report(lease, &ending).await
    }

    /// Starts guard and command, and watches until both need no more watching.
    async fn start_and_watch(
        &self,
        lease: &RunLease,
        plan: RunPlan,
        signals: &mut Signals,
    ) -> anyhow::Result<(RunOutcome, Option<Guard>)> {
        let guard = Guard::start()?;
        let terminal = Terminal::in_foreground();
        let to_guard = guard.for_child().context("share the pipe of the guard")?;
        let environment = [
            ("LEASEHOLD_TOKEN", lease.token()),
            ("LEASEHOLD_RESOURCE", Some(self.name.clone())),
            ("LEASEHOLD_LEASE_ID", Some(lease.lease_id().expose().to_owned())),
            ("LEASEHOLD_MARK", Some(lease.lease_id().mark())),
            ("LEASEHOLD_FENCE", lease.fence_setting()),
        ];
        let child = match child::start_command(&self.command, environment, terminal.as_ref(), to_guard) {
            Ok(child) => child,
            Err(error) => {
                guard.dismiss();
                return Err(self.not_started(&error));
            }
        };
        let group = child.id().and_then(Group::led_by).context("learn the pid of the command")?;
        let has_terminal = terminal.is_some();
        let clock = target::system_clock();
        let supervisor = Supervisor { lease, plan, clock, child, group, guard: &guard, signals, has_terminal };
        let ending = supervisor.watch().await.context("watch the command")?;
        // A group that could not be killed keeps its guard, which tries again when we are gone.
        Ok(if ending.gone { (ending, Some(guard)) } else { (ending, None) })
    }

    fn not_started(&self, error: &io::Error) -> anyhow::Error {
        let program = self.command.first().map(|program| program.to_string_lossy()).unwrap_or_default();
        let program = output::plain(&program);
        match error.kind() {
            io::ErrorKind::NotFound => Failure::coded(exit::NOT_FOUND, format!("{program}: command not found")),
            _ => Failure::coded(exit::NOT_EXECUTABLE, format!("{program}: cannot be executed: {error}")),
        }
    }

    /// Gives the lease back, where that is right, and says the exit code.
    async fn release_and_report(&self, lease: RunLease, ending: &RunOutcome) -> anyhow::Result<u8> {
        let name = output::plain(&self.name);
        let mut lost = ending.lost;
        if !ending.gone {
            output::say(format!("something of the command cannot be killed: {name} is left to lapse"));
        } else if lease.is_live() {
            match lease.release().await {
                Ok(_) => {}
                Err(Error::Refused(Refusal::Stale | Refusal::NotHeld)) => lost = true,
                Err(error) => {
                    let sentence = exit::sentence(&anyhow::Error::new(error));
                    output::say(format!("the lease on {name} was not released and is left to lapse: {sentence}"));
                }
            }
        }
        let how = ending.status.map_or_else(|| "killed".to_owned(), |status| status.to_string());
        if lost {
            output::say(format!("the lease on {name} was lost before the command had ended ({how})"));
            return Ok(exit::LOST);
        }
        Ok(ending.status.map_or(exit::UNEXPECTED, passed_on))
    }
}

/// The command's own code; 128 + signal when it died by one, as shells say it.
fn passed_on(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(exit::UNEXPECTED)
}
