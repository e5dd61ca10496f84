//! The health of background tasks: when each finished its last round, and why it cannot take its lease.

use std::sync::{Mutex, PoisonError};

use leasehold::Time;

/// The background tasks of a box office.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OfficeTask {
    /// Ends holds that are over, continues late money.
    Sweeper,
    /// Numbers entries.
    Sequencer,
    /// Reads new entries into the event cache.
    Follower,
    /// Asks the payment provider: captures, cancellations, refunds, statuses.
    Settler,
    /// Sends webhooks.
    Webhooks,
}

impl OfficeTask {
    /// Every task there is.
    pub const ALL: [Self; 5] = [Self::Sweeper, Self::Sequencer, Self::Follower, Self::Settler, Self::Webhooks];

    /// Its name in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sweeper => "sweeper",
            Self::Sequencer => "sequencer",
            Self::Follower => "follower",
            Self::Settler => "settler",
            Self::Webhooks => "webhooks",
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct TaskHealth {
    rounds: [Mutex<TaskRound>; OfficeTask::ALL.len()],
}

#[derive(Clone, Debug)]
struct TaskRound {
    /// When it last finished a round, or another server was seen to run it; at first, when the office was opened.
    last: Time,
    /// Why it cannot take its lease.
    blocked: Option<String>,
}

impl TaskHealth {
    pub(super) fn new(now: Time) -> Self {
        Self { rounds: std::array::from_fn(|_| Mutex::new(TaskRound { last: now, blocked: None })) }
    }

    fn with_round<T>(&self, task: OfficeTask, update: impl FnOnce(&mut TaskRound) -> T) -> T {
        update(&mut self.rounds[task as usize].lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records a finished round.
    pub(super) fn record_round(&self, task: OfficeTask, now: Time) {
        self.with_round(task, |round| *round = TaskRound { last: now, blocked: None });
    }

    /// Records why a task cannot take its lease, other than that another server has it.
    pub(super) fn record_blocked(&self, task: OfficeTask, why: String) {
        self.with_round(task, |round| round.blocked = Some(why));
    }

    /// Why a task cannot take its lease.
    pub(super) fn blocked_reason(&self, task: OfficeTask) -> Option<String> {
        self.with_round(task, |round| round.blocked.clone())
    }

    /// Seconds since the last round of each task.
    pub(super) fn idle_seconds(&self, now: Time) -> [f64; OfficeTask::ALL.len()] {
        OfficeTask::ALL.map(|task| self.with_round(task, |round| now.since(round.last).as_secs_f64()))
    }
}
