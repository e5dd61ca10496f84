//! Watches the command and its lease, until nothing of the command is left.
//!
//! # Laws
//!
//! 1. No process of the group runs when the lease could be granted to another, whether or not the engine answers.
//! 2. Once the group got TERM because of the lease, the result is *lost*, even if a late renewal succeeds: the command
//!    was disturbed.
//! 3. The lease is not released while part of the command runs: the rest of its group is ended first.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::{Lease, Time};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};
use tokio::process::Child;

use super::group::Group;
use super::guard::Guard;
use super::plan::RunPlan;
use leasehold_support::signals::Signals;
use leasehold_support::{duration, output};

/// How often to check whether the rest of the group is gone.
const GROUP_CHECK_EVERY: Duration = Duration::from_millis(10);

/// How long a killed group may take to end before that is reported.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// The result of a supervised command.
#[derive(Debug)]
pub struct RunOutcome {
    /// The exit status of the command; none if it could not be killed.
    pub status: Option<ExitStatus>,
    /// The lease could no longer be proven while part of the command ran.
    pub lost: bool,
    /// No process of the group runs any more.
    pub gone: bool,
    /// A signal asked this process to end, and was passed on.
    pub asked_to_end: bool,
}

/// The command, its lease and what ends them.
pub struct Supervisor<'a> {
    pub lease: &'a Lease,
    pub plan: RunPlan,
    pub clock: Arc<dyn Clock>,
    pub child: Child,
    pub group: Group,
    pub guard: &'a Guard,
    pub signals: &'a mut Signals,
    /// SIGCHLD: the command may have been suspended.
    pub children: tokio::signal::unix::Signal,
    /// Whether the command owns the terminal, and so can get Ctrl-Z.
    pub has_terminal: bool,
}

/// The group got TERM.
struct Stopping {
    /// When it is killed.
    kill_at: Time,
    /// When it was killed.
    killed_at: Option<Time>,
}

impl Supervisor<'_> {
    /// Watches until no process is left, or the rest cannot be killed.
    pub async fn watch(mut self) -> RunOutcome {
        let mut valid_until = self.clock.now().plus(self.lease.remaining());
        let mut status = None;
        let mut lost = false;
        let mut asked_to_end = false;
        let mut stopping: Option<Stopping> = None;
        loop {
            // Not only when SIGCHLD comes: the command may have been suspended before this process listened for it.
            if self.has_terminal && status.is_none() {
                self.continue_if_suspended();
            }
            let now = self.clock.now();
            if self.lease.is_live() {
                valid_until = now.plus(self.lease.remaining());
                self.guard.kill_at(self.plan.guard_at(valid_until));
            }
            if status.is_some() && self.group.is_gone() {
                // After this moment the guard may have killed it, while this process was stopped.
                let in_time = self.lease.is_live() && now < self.plan.guard_at(valid_until);
                return RunOutcome { status, lost: lost || !in_time, gone: true, asked_to_end };
            }
            if !lost && (now >= self.plan.term_at(valid_until) || !self.lease.is_live()) {
                lost = true;
                stopping = Some(self.send_term(stopping, now, valid_until));
                self.say_lost().await;
            }
            if status.is_some() && stopping.is_none() {
                stopping = Some(self.send_term(stopping, now, valid_until));
                output::say("the command ended and left processes behind in its group: ending them too");
            }
            if let Some(stopping) = &mut stopping {
                if now >= stopping.kill_at && stopping.killed_at.is_none() {
                    self.group.send_signal(Signal::KILL);
                    stopping.killed_at = Some(now);
                }
                if stopping.killed_at.is_some_and(|at| now >= at.plus(KILL_TIMEOUT)) {
                    return RunOutcome { status, lost, gone: false, asked_to_end };
                }
            }
            let wake = self.next_check(now, valid_until, status.is_some(), stopping.as_ref());
            tokio::select! {
                biased;
                ended = self.child.wait(), if status.is_none() => status = Some(self.ended_or_killed(ended)),
                _ = self.lease.lost(), if !lost => {}
                signal = self.signals.next() => {
                    asked_to_end = true;
                    self.group.send_signal(signal);
                }
                _ = self.children.recv(), if self.has_terminal => {}
                () = self.clock.sleep_until(wake) => {}
            }
        }
    }

    /// How the command ended. If the system does not tell, it is killed: the lease must not go before the command.
    fn ended_or_killed(&self, ended: std::io::Result<ExitStatus>) -> ExitStatus {
        ended.unwrap_or_else(|error| {
            output::say(format!("the command cannot be watched, and is killed: {error}"));
            self.group.send_signal(Signal::KILL);
            ExitStatus::from_raw(Signal::KILL.as_raw())
        })
    }

    /// Sends TERM to the group. A group that got it before keeps its deadline.
    fn send_term(&self, before: Option<Stopping>, now: Time, valid_until: Time) -> Stopping {
        if before.is_none() {
            self.group.send_signal(Signal::TERM);
            // A stopped process would not handle TERM.
            self.group.send_signal(Signal::CONT);
        }
        let by_lease = self.plan.kill_at(valid_until);
        let by_grace = now.plus(self.plan.grace());
        let kill_at = before.as_ref().map_or(by_grace, |before| before.kill_at).min(by_lease);
        Stopping { kill_at, killed_at: before.and_then(|before| before.killed_at) }
    }

    /// The next moment to check something.
    fn next_check(&self, now: Time, valid_until: Time, ended: bool, stopping: Option<&Stopping>) -> Time {
        let wake = match stopping {
            None => self.plan.term_at(valid_until),
            Some(Stopping { kill_at, killed_at: None }) => *kill_at,
            Some(_) => now.plus(GROUP_CHECK_EVERY),
        };
        // No signal says that the last process of the group is gone: poll.
        let look = if ended { GROUP_CHECK_EVERY } else { self.plan.check_interval() };
        wake.min(now.plus(look))
    }

    async fn say_lost(&self) {
        let name = self.lease.resources().join(", ");
        if self.lease.is_live() {
            let left = duration::brief(self.lease.remaining());
            output::say(format!("the lease on {name} ends in {left} and no renewal came: ending the command"));
        } else {
            output::say(format!("{} ({name}): ending the command", self.lease.lost().await));
        }
    }

    /// Undoes Ctrl-Z: a suspended command would keep the lease and the terminal.
    fn continue_if_suspended(&self) {
        let child = self.child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        let Some(child) = child else { return };
        let stopped = waitid(WaitId::Pid(child), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
        let by = stopped.ok().flatten().and_then(|status| status.stopping_signal());
        // Only for Ctrl-Z: SIGSTOP is left alone.
        if by == Some(Signal::TSTP.as_raw()) {
            output::say("a command that holds a lease is not suspended: continuing it");
            self.group.send_signal(Signal::CONT);
        }
    }
}
