//! `leasehold once`: a command whose output and exit code are stored under a key, and repeated for everybody who asks again.
//!
//! ```text
//!   begin ──first──▶ guard ──▶ command (renewals beside it) ──▶ finish ──▶ stdout, exit code
//!     └──replay──▶ stdout, exit code
//! ```
//!
//! # Laws
//!
//! 1. Nothing is printed that is not stored, except for a command that was abandoned.
//! 2. A command that ended by a signal or with code 75 is not stored: the next call runs it. Nor is one that failed after a
//!    signal was passed on to it: it was interrupted.

use std::cell::Cell;
use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use leasehold::recipe::once::{Answer, First};
use leasehold::recipe::{RecipeError, Store};
use rustix::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;

use super::run::child::{API_KEY_VARIABLE, spawn_guarded};
use super::run::group::Group;
use super::run::guard::Guard;
use super::run::leased_command::{not_started, passed_on};
use super::store::open_store;
use super::target::system_clock;
use leasehold_support::duration;
use leasehold_support::exit::{self, Failure};
use leasehold_support::signals::{self, Signals};

/// The longest output, and the longest input, that is kept or compared.
const MAX_BYTES: usize = 1024 * 1024;
/// The code by which a command says that it may work later: EX_TEMPFAIL of sysexits.h.
const TEMPORARY_FAILURE: i32 = 75;
/// How long the output of a command that has ended is read on.
const MAX_READ_AFTER_END: Duration = Duration::from_secs(1);
/// How often to check whether the rest of the group is gone.
const GROUP_CHECK_EVERY: Duration = Duration::from_millis(5);

const EXAMPLE: &str = "\
Example:
  leasehold once order-7 -- ./charge.sh 4200 EUR
  leasehold once import-2026-11 --stdin --wait 10m -- ./import.sh < november.csv

The first call runs the command, and stores its stdout and its exit code. Every later call with the same key
prints the same, with the same code, and runs nothing. The same key with other arguments is refused (2).
A command that ends by a signal or with code 75, or fails after this process was sent INT or TERM, is not
stored: the next call runs it. While it runs, another call is told so (3), or waits for the answer with --wait. If this process dies, another call takes over after
the --ttl, and what the first one still does is not stored (7). The command may then have run twice: it finds
LEASEHOLD_ONCE_TOKEN, which rises with every try, in its environment; pass it or the key on to whatever can
compare it. Without --stdin the command's stdin is empty. Output of more than 1 MiB is not stored (1).";

/// Runs a command once for a key, and repeats its output and exit code.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct OnceArgs {
    /// The key: the same for everybody who means the same work.
    #[arg(value_name = "KEY")]
    key: String,
    /// Where the key is unique.
    #[arg(long, default_value = "default", value_name = "TEXT")]
    scope: String,
    /// How long the answer is kept: up to 30 days.
    #[arg(long, default_value = "24h", value_parser = duration::parse, allow_hyphen_values = true)]
    keep: Duration,
    /// How long to wait while another call runs the command.
    #[arg(long, default_value = "0s", value_parser = duration::parse, allow_hyphen_values = true)]
    wait: Duration,
    /// How long this process may be silent before another call takes over; renewed every third of it: up to 1h.
    #[arg(long, default_value = "30s", value_parser = duration::parse, allow_hyphen_values = true)]
    ttl: Duration,
    /// Read stdin, up to 1 MiB: it is part of what must be the same, and the command gets it.
    #[arg(long)]
    stdin: bool,
    /// Where answers are kept: postgres://…, sqlite:FILE or leasehold://HOST:PORT [env: LEASEHOLD_STORE] [default: by --url]
    // Read from the environment by hand: clap would show its value, and a URL may carry a password.
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Why the work gave no answer that is stored.
#[derive(Debug, thiserror::Error)]
enum NotStored {
    /// The command ended by a signal, with code 75, or was interrupted. Its output is printed all the same.
    #[error("the command was abandoned")]
    Abandoned(ExitStatus, Vec<u8>),
    /// It printed too much.
    #[error("the command printed more than 1 MiB, which is not stored")]
    TooLong,
    /// It could not be started or watched.
    #[error("the command did not run")]
    NotRun(anyhow::Error),
}

impl OnceArgs {
    /// Runs the command, or repeats its answer.
    pub async fn execute(self, engine_url: &str) -> anyhow::Result<u8> {
        let input = if self.stdin { Some(read_input().await?) } else { None };
        let mut signals = Signals::listen()?;
        let store = open_store(self.store.as_deref(), engine_url).await?;
        let done = self.run_once(&store, input, &mut signals).await;
        store.close().await;
        done
    }

    async fn run_once(&self, store: &Store, input: Option<Vec<u8>>, signals: &mut Signals) -> anyhow::Result<u8> {
        let body = self.compared_body(input.as_deref());
        let once = store.once(&self.scope, &self.key, body).ttl(self.ttl).keep(self.keep).wait(self.wait);
        // The group of the command, once there is one.
        let (group, interrupted) = (Cell::new(None), Cell::new(false));
        let work = once.run(async |first| Ok(self.run_command(first, input, &group, &interrupted).await?));
        let mut work = std::pin::pin!(work);
        let done = loop {
            tokio::select! {
                biased;
                done = &mut work => break done,
                signal = signals.next() => match group.get() {
                    Some(group) => {
                        interrupted.set(true);
                        Group::send_signal(group, signal);
                    }
                    None => return Err(signals::interrupted(signal, "nothing was run")),
                },
            }
        };
        report(done)
    }

    /// What must be the same when the key is used again: every word of the command, and stdin. Each with its length.
    fn compared_body(&self, input: Option<&[u8]>) -> Vec<u8> {
        let mut body = Vec::new();
        for word in self.command.iter().map(|word| word.as_bytes()).chain(input) {
            body.extend((word.len() as u64).to_be_bytes());
            body.extend(word);
        }
        body.push(u8::from(input.is_some()));
        body
    }

    async fn run_command(
        &self,
        first: &First,
        input: Option<Vec<u8>>,
        group: &Cell<Option<Group>>,
        interrupted: &Cell<bool>,
    ) -> Result<Answer, NotStored> {
        let started = self.start_command(first, input.is_some());
        let (mut child, mut running) = started.map_err(NotStored::NotRun)?;
        group.set(Some(running.group));
        let ended = watch_child(&mut child, input, running.group).await;
        running.end_group().await;
        let (status, output) = ended?;
        match status.code() {
            Some(code) if code != TEMPORARY_FAILURE && (code == 0 || !interrupted.get()) => {
                Ok(Answer::new(code, output))
            }
            _ => Err(NotStored::Abandoned(status, output)),
        }
    }

    fn start_command(&self, first: &First, has_input: bool) -> anyhow::Result<(Child, RunningGroup)> {
        let guard = Guard::start("once", None)?;
        let (program, arguments) = self.command.split_first().context("there is a command")?;
        let mut command = Command::new(program);
        command.args(arguments).stdout(Stdio::piped()).env_remove(API_KEY_VARIABLE);
        command.env("LEASEHOLD_ONCE_TOKEN", first.token().to_string());
        command.stdin(if has_input { Stdio::piped() } else { Stdio::null() });
        let to_guard = guard.for_child().context("share the pipe of the guard")?;
        let child = match spawn_guarded(command, None, to_guard) {
            Ok(child) => child,
            Err(error) => {
                guard.dismiss();
                return Err(not_started(&self.command, &error));
            }
        };
        let group = child.id().and_then(Group::led_by).context("learn the pid of the command")?;
        Ok((child, RunningGroup { group, guard: Some(guard) }))
    }
}

/// The group of the command. Dropped early, because another took over, it is killed.
struct RunningGroup {
    group: Group,
    guard: Option<Guard>,
}

impl RunningGroup {
    /// Ends what the command left behind: its work must not go on when its answer is stored.
    async fn end_group(&mut self) {
        while !self.group.is_gone() {
            self.group.send_signal(Signal::KILL);
            let clock = system_clock();
            clock.sleep_until(clock.now().plus(GROUP_CHECK_EVERY)).await;
        }
        if let Some(guard) = self.guard.take() {
            guard.dismiss();
        }
    }
}

impl Drop for RunningGroup {
    fn drop(&mut self) {
        if let Some(guard) = self.guard.take() {
            self.group.send_signal(Signal::KILL);
            guard.dismiss();
        }
    }
}

/// Feeds the command and reads its output until it ends.
async fn watch_child(
    child: &mut Child,
    input: Option<Vec<u8>>,
    group: Group,
) -> Result<(ExitStatus, Vec<u8>), NotStored> {
    let not_run = |error: std::io::Error| NotStored::NotRun(anyhow::Error::new(error).context("watch the command"));
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let ended = CancellationToken::new();
    let feed = async {
        if let (Some(mut stdin), Some(input)) = (stdin, input) {
            // A command need not read all of it.
            let _ = ended.run_until_cancelled(stdin.write_all(&input)).await;
        }
    };
    let read = async {
        let mut output = Vec::new();
        if let Some(stdout) = stdout {
            let mut limited = stdout.take(MAX_BYTES as u64 + 1);
            let clock = system_clock();
            let too_long = async {
                ended.cancelled().await;
                clock.sleep_until(clock.now().plus(MAX_READ_AFTER_END)).await;
            };
            // What left the group may hold stdout open for as long as it likes: what came until then is the output.
            tokio::select! {
                biased;
                all = limited.read_to_end(&mut output) => drop(all.map_err(not_run)?),
                () = too_long => {}
            }
        }
        if output.len() > MAX_BYTES {
            group.send_signal(Signal::KILL);
            return Err(NotStored::TooLong);
        }
        Ok(output)
    };
    let wait = async {
        let status = child.wait().await;
        // What it left behind may hold its stdout open.
        group.send_signal(Signal::KILL);
        ended.cancel();
        status.map_err(not_run)
    };
    let ((), output, status) = tokio::join!(feed, read, wait);
    Ok((status?, output?))
}

/// Prints what is stored, and says the exit code.
fn report(done: Result<Answer, RecipeError>) -> anyhow::Result<u8> {
    match done {
        Ok(answer) => {
            print_output(&answer.body)?;
            let code = u8::try_from(answer.status);
            code.map_err(|_| {
                Failure::coded(exit::CORRUPT, "the stored answer has no exit code: was it stored by other means?")
            })
        }
        Err(RecipeError::Work(error)) => match error.downcast::<NotStored>().map(|error| *error) {
            Ok(NotStored::Abandoned(status, output)) => {
                print_output(&output)?;
                Ok(passed_on(status))
            }
            Ok(NotStored::NotRun(error)) => Err(error),
            Ok(error @ NotStored::TooLong) => Err(Failure::coded(exit::UNEXPECTED, error.to_string())),
            Err(error) => Err(anyhow::Error::from_boxed(error)),
        },
        Err(error) => Err(error.into()),
    }
}

fn print_output(output: &[u8]) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(output).and_then(|()| stdout.flush()).context("write the output to stdout")
}

async fn read_input() -> anyhow::Result<Vec<u8>> {
    let mut input = Vec::new();
    let mut limited = tokio::io::stdin().take(MAX_BYTES as u64 + 1);
    limited.read_to_end(&mut input).await.context("read stdin")?;
    if input.len() > MAX_BYTES {
        return Err(Failure::usage(
            "stdin has more than 1 MiB: give the command a file, and its digest as an argument",
        ));
    }
    Ok(input)
}
