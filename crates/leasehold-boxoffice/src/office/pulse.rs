//! Whether the office's own tasks are alive: when each finished its last round, and why it cannot.

use std::sync::{Mutex, PoisonError};

use leasehold::Time;

/// What runs beside the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    /// Ends holds that are over, goes on with late money.
    Sweeper,
    /// Numbers entries.
    Sequencer,
    /// Reads what happened elsewhere.
    Follower,
    /// Asks the payment provider.
    Settler,
    /// Sends webhooks.
    Webhooks,
}

impl Task {
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
pub(super) struct Pulse {
    rounds: [Mutex<Round>; Task::ALL.len()],
}

#[derive(Clone, Debug)]
struct Round {
    /// When it finished its last one, or another server was seen to do the work; or the office was opened.
    last: Time,
    /// Why it cannot take its lease.
    barred: Option<String>,
}

impl Pulse {
    pub(super) fn new(now: Time) -> Self {
        Self { rounds: std::array::from_fn(|_| Mutex::new(Round { last: now, barred: None })) }
    }

    fn with<T>(&self, task: Task, look: impl FnOnce(&mut Round) -> T) -> T {
        look(&mut self.rounds[task as usize].lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A round is done.
    pub(super) fn beat(&self, task: Task, now: Time) {
        self.with(task, |round| *round = Round { last: now, barred: None });
    }

    /// It cannot take its lease, and it is not because somebody else has it.
    pub(super) fn barred(&self, task: Task, why: String) {
        self.with(task, |round| round.barred = Some(why));
    }

    /// Why a task cannot take its lease.
    pub(super) fn why(&self, task: Task) -> Option<String> {
        self.with(task, |round| round.barred.clone())
    }

    /// Seconds since the last round of each task.
    pub(super) fn idle(&self, now: Time) -> [f64; Task::ALL.len()] {
        Task::ALL.map(|task| self.with(task, |round| now.since(round.last).as_secs_f64()))
    }
}
