//! The command of one job: started with the job on its stdin, and dead before another worker can be given the job.

use std::ffi::OsString;
use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use leasehold::Time;
use leasehold::recipe::queue::{Delivery, Nack};
use leasehold_support::output;
use rustix::process::Signal;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;

use crate::cli::run::child::{API_KEY_VARIABLE, spawn_guarded};
use crate::cli::run::group::Group;
use crate::cli::run::guard::Guard;
use crate::cli::run::leased_command::check_exists;
use crate::cli::target;

/// The exit code of a command whose job can never succeed: EX_DATAERR of sysexits.
const DEAD_LETTER_CODE: i32 = 65;
/// How often the remaining time of a delivery is looked at.
const CHECK_EVERY: Duration = Duration::from_millis(100);
/// How long a killed group may take to end before that is reported.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// The command that is run for each job.
#[derive(Debug)]
pub struct JobCommand {
    command: Vec<OsString>,
    /// Cancelled: the commands that run are killed, and their jobs are given back.
    pub abort: CancellationToken,
}

impl JobCommand {
    pub fn from_words(command: Vec<OsString>) -> Self {
        Self { command, abort: CancellationToken::new() }
    }

    /// A command that does not exist would fail every job: that is found before the first is taken.
    ///
    /// # Errors
    ///
    /// Exit code 127.
    pub fn check_exists(&self) -> anyhow::Result<()> {
        check_exists(&self.command)
    }

    /// Runs the command for one job.
    pub async fn run<T>(&self, job: &Delivery<T>) -> Result<(), Nack> {
        let cannot = |error: &dyn std::fmt::Display| Nack::later(format!("the command cannot be started: {error}"));
        let (now, left) = (target::system_clock().now(), job.remaining());
        let guard =
            Guard::start("queue work", Some(before_end(now, left, left / 16))).map_err(|error| cannot(&error))?;
        let (program, arguments) = self.command.split_first().ok_or_else(|| Nack::later("there is no command"))?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).env_remove(API_KEY_VARIABLE).env_remove("LEASEHOLD_JOB_KEY");
        command.env("LEASEHOLD_JOB_ID", job.job_id().to_string()).env("LEASEHOLD_JOB_TOKEN", job.token().to_string());
        command.env("LEASEHOLD_JOB_ATTEMPT", job.attempt().to_string());
        command.envs(job.key().map(|key| ("LEASEHOLD_JOB_KEY", key)));
        let to_guard = guard.for_child().map_err(|error| cannot(&error))?;
        let child = match spawn_guarded(command, None, to_guard) {
            Ok(child) => child,
            Err(error) => {
                guard.dismiss();
                return Err(cannot(&error));
            }
        };
        let Some(group) = child.id().and_then(Group::led_by) else { return Err(Nack::later("the command has no pid")) };
        let mut running = RunningJob { group, guard: Some(guard) };
        let watched = running.watch(child, job, &self.abort).await;
        let status = watched.map_err(|error| Nack::later(format!("watch the command: {error}")))?;
        running.end_group().await;
        if self.abort.is_cancelled() && !status.success() {
            return Err(Nack::untried("the worker was stopped"));
        }
        match status.code() {
            Some(0) => Ok(()),
            Some(DEAD_LETTER_CODE) => Err(Nack::dead("the command ended with code 65")),
            Some(code) => Err(Nack::later(format!("the command ended with code {code}"))),
            None => Err(Nack::later(format!("the command was ended by {status}"))),
        }
    }
}

/// A running command. Dropping it kills its whole process group.
struct RunningJob {
    group: Group,
    guard: Option<Guard>,
}

impl RunningJob {
    async fn watch<T>(
        &mut self,
        mut child: Child,
        job: &Delivery<T>,
        abort: &CancellationToken,
    ) -> io::Result<ExitStatus> {
        let clock = target::system_clock();
        let mut stdin = child.stdin.take();
        let mut feed = std::pin::pin!(async move {
            if let Some(stdin) = &mut stdin {
                // A command that does not read its job is no failure.
                let _ = stdin.write_all(job.json().as_bytes()).await;
            }
            drop(stdin);
            std::future::pending::<()>().await;
        });
        let whole = job.remaining();
        let mut asked_to_end = false;
        loop {
            let (now, left) = (clock.now(), job.remaining());
            if let Some(guard) = &self.guard {
                guard.kill_at(before_end(now, left, whole / 16));
            }
            if left < whole / 4 && !asked_to_end {
                asked_to_end = true;
                output::say(format!("job {} cannot be kept: ending its command", job.job_id()));
                self.group.send_signal(Signal::TERM);
                self.group.send_signal(Signal::CONT);
            }
            if left < whole / 8 || abort.is_cancelled() {
                self.group.send_signal(Signal::KILL);
            }
            let check = CHECK_EVERY.min(whole / 32).max(Duration::from_millis(5));
            tokio::select! {
                biased;
                ended = child.wait() => return ended,
                () = &mut feed => {}
                () = abort.cancelled(), if !abort.is_cancelled() => {}
                () = clock.sleep_until(now.plus(check)) => {}
            }
        }
    }

    /// Ends what the command left behind in its group.
    async fn end_group(&mut self) {
        let clock = target::system_clock();
        let give_up_at = clock.now().plus(KILL_TIMEOUT);
        while !self.group.is_gone() && clock.now() < give_up_at {
            self.group.send_signal(Signal::KILL);
            clock.sleep_until(clock.now().plus(Duration::from_millis(5))).await;
        }
    }
}

impl Drop for RunningJob {
    fn drop(&mut self) {
        if !self.group.is_gone() {
            self.group.send_signal(Signal::KILL);
        }
        if let Some(guard) = self.guard.take() {
            guard.dismiss();
        }
    }
}

/// The moment that is so long before the end of a delivery.
fn before_end(now: Time, left: Duration, margin: Duration) -> Time {
    now.plus(left.saturating_sub(margin))
}
