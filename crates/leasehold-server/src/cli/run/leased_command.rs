//! A command under a lease that is held already: started, watched, and its lease given back.

use std::ffi::OsString;
use std::io;
use std::ops::Deref;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;

use anyhow::Context;
use leasehold::fence::FenceSetting;
use leasehold::{Error, FencedLease, Lease, Refusal};

use super::super::target;
use super::child;
use super::group::Group;
use super::guard::Guard;
use super::plan::RunPlan;
use super::supervise::{RunOutcome, Supervisor};
use super::terminal::Terminal;
use leasehold_support::exit::{self, Failure};
use leasehold_support::output;
use leasehold_support::signals::Signals;

/// How a command under a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandEnd {
    /// By itself, with this code.
    Ended(u8),
    /// The lease was lost before the command had ended.
    Lost {
        /// A signal had asked this process to end.
        asked_to_end: bool,
    },
}

impl CommandEnd {
    /// The exit code that says so.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Ended(code) => code,
            Self::Lost { .. } => exit::LOST,
        }
    }
}

/// The lease in the strongest form the engine offers.
pub enum RunLease {
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

/// A command, and the resource whose lease it runs under.
pub struct LeasedCommand<'a> {
    pub resource: &'a str,
    pub command: &'a [OsString],
    pub plan: RunPlan,
    /// The command gets the API key of this process.
    pub pass_key: bool,
}

impl LeasedCommand<'_> {
    /// Runs the command under the lease, gives the lease back, and says how it ended.
    pub async fn run(&self, lease: RunLease, signals: &mut Signals) -> anyhow::Result<CommandEnd> {
        let plan = self.plan;
        let now = target::system_clock().now();
        if now >= plan.term_at(now.plus(lease.remaining())) {
            let _ = lease.release().await;
            return Err(Failure::coded(
                exit::UNAVAILABLE,
                "the lease was granted too late to start the command: the engine is slow, give a longer --ttl",
            ));
        }
        let started = self.start_and_watch(&lease, signals).await;
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
        signals: &mut Signals,
    ) -> anyhow::Result<(RunOutcome, Option<Guard>)> {
        let guard = Guard::start()?;
        let terminal = Terminal::in_foreground();
        let to_guard = guard.for_child().context("share the pipe of the guard")?;
        let environment = [
            ("LEASEHOLD_TOKEN", lease.token()),
            ("LEASEHOLD_RESOURCE", Some(self.resource.to_owned())),
            ("LEASEHOLD_LEASE_ID", Some(lease.lease_id().expose().to_owned())),
            ("LEASEHOLD_MARK", Some(lease.lease_id().mark())),
            ("LEASEHOLD_FENCE", lease.fence_setting()),
        ];
        let child = match child::start_command(self.command, environment, terminal.as_ref(), to_guard, self.pass_key) {
            Ok(child) => child,
            Err(error) => {
                guard.dismiss();
                return Err(not_started(self.command, &error));
            }
        };
        let group = child.id().and_then(Group::led_by).context("learn the pid of the command")?;
        let has_terminal = terminal.is_some();
        let clock = target::system_clock();
        let supervisor =
            Supervisor { lease, plan: self.plan, clock, child, group, guard: &guard, signals, has_terminal };
        let ending = supervisor.watch().await.context("watch the command")?;
        // A group that could not be killed keeps its guard, which tries again when we are gone.
        Ok(if ending.gone { (ending, Some(guard)) } else { (ending, None) })
    }

    /// Gives the lease back, where that is right, and says how it ended.
    async fn release_and_report(&self, lease: RunLease, ending: &RunOutcome) -> anyhow::Result<CommandEnd> {
        let name = output::plain(self.resource);
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
            return Ok(CommandEnd::Lost { asked_to_end: ending.asked_to_end });
        }
        Ok(CommandEnd::Ended(ending.status.map_or(exit::UNEXPECTED, passed_on)))
    }
}

/// Host, pid and program, for people who look at `ls`. Not the arguments: they may hold secrets.
pub fn holder_label(command: &[OsString]) -> String {
    let program = command.first().map(Path::new).and_then(Path::file_name).unwrap_or_default();
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    let label = format!("{host}:{} {}", std::process::id(), program.to_string_lossy());
    // Labels are bounded and hold no control characters; a strange file name must not stop the work.
    let mut label = output::plain(&label);
    label.truncate(label.floor_char_boundary(200));
    label
}

/// The end of a command that could not be started, as shells say it.
pub fn not_started(command: &[OsString], error: &io::Error) -> anyhow::Error {
    let program = command.first().map(|program| program.to_string_lossy()).unwrap_or_default();
    let program = output::plain(&program);
    match error.kind() {
        io::ErrorKind::NotFound => Failure::coded(exit::NOT_FOUND, format!("{program}: command not found")),
        _ => Failure::coded(exit::NOT_EXECUTABLE, format!("{program}: cannot be executed: {error}")),
    }
}

/// The command's own code; 128 + signal when it died by one, as shells say it.
pub fn passed_on(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(exit::UNEXPECTED)
}
