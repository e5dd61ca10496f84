//! A command under a lease that is held already: started, watched, and its lease given back.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};

use leasehold::fence::FenceSetting;
use leasehold::recipe::LeaseKind as _;
pub use leasehold::recipe::StrongestLease as RunLease;
use leasehold::{Error, Refusal};

use super::super::target;
use super::child;
use super::group::Group;
use super::guard::Guard;
use super::output_tail::OutputTail;
use super::plan::RunPlan;
pub use super::supervise::RunOutcome;
use super::supervise::Supervisor;
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

/// What fences are shown: the token, for the resource of this lease only.
fn fence_setting(lease: &RunLease) -> Option<String> {
    match lease {
        RunLease::Fenced(lease) => FenceSetting::for_lease(lease).ok().map(|setting| setting.to_string()),
        RunLease::Plain(_) => None,
    }
}

/// A command, and the resource whose lease it runs under.
pub struct LeasedCommand<'a> {
    resource: &'a str,
    command: &'a [OsString],
    plan: RunPlan,
    /// More of the environment; none removes a variable.
    environment: Vec<(&'static str, Option<String>)>,
    /// Where its output is kept too. Then it has no stdin, and not the terminal.
    output: Option<&'a OutputTail>,
    /// The command of ours that runs it, for people.
    ours: &'static str,
}

impl<'a> LeasedCommand<'a> {
    pub fn new(resource: &'a str, command: &'a [OsString], plan: RunPlan) -> Self {
        let environment = vec![(child::API_KEY_VARIABLE, None)];
        Self { resource, command, plan, environment, output: None, ours: "run" }
    }

    /// Which command of ours runs it. Default: `run`.
    pub fn run_by(mut self, ours: &'static str) -> Self {
        self.ours = ours;
        self
    }

    /// Whether the command gets the API key of this process. Otherwise it does not.
    pub fn pass_key(mut self, passed: bool) -> Self {
        if passed {
            self.environment.retain(|(name, _)| *name != child::API_KEY_VARIABLE);
        }
        self
    }

    /// Gives the command one more variable; none removes it.
    pub fn variable(mut self, name: &'static str, value: Option<String>) -> Self {
        self.environment.push((name, value));
        self
    }

    /// Keeps the end of its output here, beside passing it on.
    pub fn keep_output(mut self, output: &'a OutputTail) -> Self {
        self.output = Some(output);
        self
    }

    /// Runs the command under the lease, gives the lease back, and says how it ended.
    pub async fn run(&self, lease: RunLease, signals: &mut Signals) -> anyhow::Result<CommandEnd> {
        match self.watch(&lease, signals).await {
            Ok(ending) => self.release_and_report(lease, &ending).await,
            Err(error) => {
                let _ = lease.end().await;
                Err(error)
            }
        }
    }

    /// Runs the command under the lease, until nothing of it is left. The lease stays.
    pub async fn watch(&self, lease: &RunLease, signals: &mut Signals) -> anyhow::Result<RunOutcome> {
        let now = target::system_clock().now();
        if now >= self.plan.term_at(now.plus(lease.remaining())) {
            return Err(Failure::coded(
                exit::UNAVAILABLE,
                "the lease was granted too late to start the command: the engine is slow, give a longer --ttl",
            ));
        }
        let (ending, guard) = self.start_and_watch(lease, signals).await?;
        if let Some(guard) = guard {
            guard.dismiss();
        }
        Ok(ending)
    }

    /// Starts guard and command, and watches until both need no more watching.
    async fn start_and_watch(
        &self,
        lease: &RunLease,
        signals: &mut Signals,
    ) -> anyhow::Result<(RunOutcome, Option<Guard>)> {
        let clock = target::system_clock();
        let valid_until = clock.now().plus(lease.remaining());
        let guard = Guard::start(self.ours, Some(self.plan.guard_at(valid_until)))?;
        let children = signal(SignalKind::child()).context("listen to the command")?;
        let terminal = if self.output.is_some() { None } else { Terminal::in_foreground() };
        let to_guard = guard.for_child().context("share the pipe of the guard")?;
        let mut environment = vec![
            ("LEASEHOLD_TOKEN", lease.token().map(|token| token.to_string())),
            ("LEASEHOLD_RESOURCE", Some(self.resource.to_owned())),
            ("LEASEHOLD_LEASE_ID", Some(lease.lease_id().expose().to_owned())),
            ("LEASEHOLD_MARK", Some(lease.lease_id().mark())),
            ("LEASEHOLD_FENCE", fence_setting(lease)),
        ];
        environment.extend(self.environment.iter().cloned());
        let started = child::start_command(self.command, &environment, self.output, terminal.as_ref(), to_guard);
        let child = match started {
            Ok(child) => child,
            Err(error) => {
                guard.dismiss();
                return Err(not_started(self.command, &error));
            }
        };
        let group = child.id().and_then(Group::led_by).context("learn the pid of the command")?;
        let has_terminal = terminal.is_some();
        let supervisor =
            Supervisor { lease, plan: self.plan, clock, child, group, guard: &guard, signals, children, has_terminal };
        let ending = supervisor.watch().await;
        // A group that could not be killed keeps its guard, which tries again when we are gone.
        Ok(if ending.gone { (ending, Some(guard)) } else { (ending, None) })
    }

    /// Gives the lease back, where that is right, and says how it ended.
    pub async fn release_and_report(&self, lease: RunLease, ending: &RunOutcome) -> anyhow::Result<CommandEnd> {
        let name = output::plain(self.resource);
        let mut lost = ending.lost;
        if !ending.gone {
            output::say(format!("something of the command cannot be killed: {name} is left to lapse"));
        } else if lease.is_live() {
            match lease.end().await {
                Ok(_) => {}
                Err(Error::Refused(Refusal::Stale | Refusal::NotHeld)) => lost = true,
                Err(error) => {
                    let sentence = exit::sentence(&anyhow::Error::new(error));
                    output::say(format!("the lease on {name} was not released and is left to lapse: {sentence}"));
                }
            }
        }
        Ok(self.report(ending, lost))
    }

    /// Says how it ended.
    pub fn report(&self, ending: &RunOutcome, lost: bool) -> CommandEnd {
        let how = ending.status.map_or_else(|| "killed".to_owned(), |status| status.to_string());
        if lost {
            let name = output::plain(self.resource);
            output::say(format!("the lease on {name} was lost before the command had ended ({how})"));
            return CommandEnd::Lost { asked_to_end: ending.asked_to_end };
        }
        CommandEnd::Ended(ending.status.map_or(exit::UNEXPECTED, passed_on))
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

/// A command that does not exist would fail again and again: those who run it many times look before the first.
///
/// # Errors
///
/// Exit code 127.
pub fn check_exists(command: &[OsString]) -> anyhow::Result<()> {
    let program = command.first().cloned().unwrap_or_default();
    let named = Path::new(&program);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = if named.components().count() > 1 {
        named.exists()
    } else {
        std::env::split_paths(&path).any(|folder| folder.join(named).is_file())
    };
    if found { Ok(()) } else { Err(not_started(command, &io::ErrorKind::NotFound.into())) }
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
