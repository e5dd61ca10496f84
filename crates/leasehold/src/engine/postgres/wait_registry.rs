//! The claims of this process that wait in queues of the server: by whom, until when, and when to check them.
//!
//! ```text
//!   acquire task ── subscribe ──▶ WaitingClaim ◀── message "G …" or "L …" (listener)
//!                                    │  ◀────── check or leave when due (wait task)
//!                                    └─ answer ─▶ every subscriber
//! ```
//!
//! An entry is made before its claim is sent: a message about it may come before the reply.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold_core::Time;
use tokio::sync::{Notify, oneshot};

use super::batch::Verdict;
use super::ids::Bits;
use super::sql_error::SqlFailure;

/// What becomes of a waiting claim.
#[derive(Clone, Debug)]
pub(super) enum WaitAnswer {
    /// It was granted.
    Granted { token: i64, remaining: i64, renewable: Option<i64> },
    /// Its patience is over; the verdict says who is in the way.
    Held(Verdict),
    /// The server does not know it any more: acquire again.
    Forgotten,
    /// Its patience is over, and the server could not be asked what became of it.
    Failed(SqlFailure),
}

/// One waiting claim, perhaps of several callers.
struct WaitingClaim {
    first: String,
    fingerprint: Option<i64>,
    /// None until the server said that the claim waits.
    waits: Option<WaitState>,
    /// A message that came before that.
    early_answer: Option<WaitAnswer>,
    early_due: bool,
    subscribers: Vec<(u64, oneshot::Sender<WaitAnswer>)>,
}

#[derive(Clone, Copy)]
struct WaitState {
    patience: Time,
    /// When a name of it next changes by time, if this claim is the head of its queue.
    due: Option<Time>,
    /// Its patience is over, and it is on its way out of its queues.
    leaving: bool,
}

/// A claim whose patience is over.
pub(super) struct OverdueClaim {
    pub handle: Bits,
    pub first: String,
    pub fingerprint: Option<i64>,
}

/// A claim that nobody in this process waits for any more.
pub(super) struct AbandonedClaim {
    pub first: String,
    pub fingerprint: Option<i64>,
}

/// A caller's part in a waiting claim.
pub(super) struct Subscription {
    id: u64,
    handle: Bits,
    pub answer: oneshot::Receiver<WaitAnswer>,
}

/// See the module.
#[derive(Default)]
pub(super) struct WaitingClaims {
    state: Mutex<RegistryState>,
    /// An entry, its patience or its due moment changed.
    pub changed: Notify,
    /// A claim waits that did not before, or messages do not come any more.
    pub pulse_changed: Notify,
}

#[derive(Default)]
struct RegistryState {
    entries: HashMap<Bits, WaitingClaim>,
    subscriptions: u64,
}

impl WaitingClaims {
    fn lock(&self) -> MutexGuard<'_, RegistryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes part in a claim that is about to be sent, or waits already.
    pub fn subscribe(&self, handle: Bits, first: &str, fingerprint: Option<i64>) -> Subscription {
        let (to, answer) = oneshot::channel();
        let mut state = self.lock();
        state.subscriptions += 1;
        let id = state.subscriptions;
        let entry = state.entries.entry(handle).or_insert_with(|| WaitingClaim {
            first: first.to_owned(),
            fingerprint,
            waits: None,
            early_answer: None,
            early_due: false,
            subscribers: Vec::new(),
        });
        entry.subscribers.push((id, to));
        Subscription { id, handle, answer }
    }

    /// The server said that the claim waits.
    pub fn set_waiting(&self, handle: Bits, patience: Time, due: Option<Time>, now: Time) {
        let mut state = self.lock();
        let Some(entry) = state.entries.get_mut(&handle) else { return };
        if let Some(answer) = entry.early_answer.take() {
            state.answer(handle, &answer);
            return;
        }
        let due = if entry.early_due { Some(now) } else { due };
        entry.early_due = false;
        entry.waits = Some(WaitState { patience, due, leaving: false });
        drop(state);
        self.changed.notify_one();
        self.pulse_changed.notify_one();
    }

    /// Gives a part up. If it was the last, and the claim waits, the claim must leave its queues.
    pub fn unsubscribe(&self, subscription: &Subscription) -> Option<AbandonedClaim> {
        let mut state = self.lock();
        let entry = state.entries.get_mut(&subscription.handle)?;
        entry.subscribers.retain(|(id, _)| *id != subscription.id);
        if !entry.subscribers.is_empty() {
            return None;
        }
        let entry = state.entries.remove(&subscription.handle)?;
        entry.waits.map(|_| AbandonedClaim { first: entry.first, fingerprint: entry.fingerprint })
    }

    /// Answers every subscriber, and forgets the claim.
    pub fn answer(&self, handle: Bits, answer: &WaitAnswer) {
        self.lock().answer(handle, answer);
    }

    /// A message says that the claim was granted.
    pub fn message_granted(&self, handle: Bits, answer: WaitAnswer) {
        let mut state = self.lock();
        match state.entries.get_mut(&handle) {
            Some(entry) if entry.waits.is_none() => entry.early_answer = Some(answer),
            Some(_) => state.answer(handle, &answer),
            None => {}
        }
    }

    /// A message says when the claim must be checked; none: a message will come.
    pub fn message_due(&self, handle: Bits, due: Option<Time>) {
        let mut state = self.lock();
        let Some(entry) = state.entries.get_mut(&handle) else { return };
        match (&mut entry.waits, due) {
            (None, _) => entry.early_due = true,
            (Some(waits), Some(due)) => waits.due = Some(waits.due.map_or(due, |earlier| earlier.min(due))),
            (Some(waits), None) => waits.due = None,
        }
        drop(state);
        self.changed.notify_one();
    }

    /// The claim still waits, as a check found.
    pub fn set_checked(&self, handle: Bits, patience: Time, due: Option<Time>, now: Time) {
        let mut state = self.lock();
        if let Some(waits) = state.entries.get_mut(&handle).and_then(|entry| entry.waits.as_mut()) {
            waits.patience = patience;
            waits.leaving &= patience <= now;
            // A message may have come while the check was on its way.
            waits.due = match (waits.due, due) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
        }
    }

    /// The claim need not leave yet: another caller has more patience.
    pub fn set_patience(&self, handle: Bits, patience: Time) {
        if let Some(waits) = self.lock().entries.get_mut(&handle).and_then(|entry| entry.waits.as_mut()) {
            (waits.patience, waits.leaving) = (patience, false);
        }
        self.changed.notify_one();
    }

    /// Everything is checked at once: messages may have been lost.
    pub fn make_all_due(&self, now: Time) {
        let mut state = self.lock();
        for entry in state.entries.values_mut() {
            match &mut entry.waits {
                Some(waits) => waits.due = Some(now),
                None => entry.early_due = true,
            }
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Claims to be checked by now, each with its first name, at most so many. Their due moments are cleared.
    pub fn take_due(&self, now: Time, most: usize) -> Vec<(Bits, String)> {
        let mut state = self.lock();
        let due = |waits: &WaitState| !waits.leaving && waits.due.is_some_and(|due| due <= now);
        let found: Vec<(Bits, String)> = state
            .entries
            .iter()
            .filter(|(_, entry)| entry.waits.as_ref().is_some_and(due))
            .map(|(handle, entry)| (*handle, entry.first.clone()))
            .take(most)
            .collect();
        for (handle, _) in &found {
            if let Some(waits) = state.entries.get_mut(handle).and_then(|entry| entry.waits.as_mut()) {
                waits.due = None;
            }
        }
        found
    }

    /// Claims whose patience is over, in the order in which it ended. They are not taken again while they leave.
    pub fn take_overdue(&self, now: Time) -> Vec<OverdueClaim> {
        let mut state = self.lock();
        let mut found = Vec::new();
        for (handle, entry) in &mut state.entries {
            let Some(waits) = entry.waits.as_mut().filter(|waits| !waits.leaving && waits.patience <= now) else {
                continue;
            };
            waits.leaving = true;
            let claim = OverdueClaim { handle: *handle, first: entry.first.clone(), fingerprint: entry.fingerprint };
            found.push((waits.patience, claim));
        }
        found.sort_by_key(|(patience, _)| *patience);
        found.into_iter().map(|(_, claim)| claim).collect()
    }

    /// When the next claim is due or runs out of patience.
    pub fn next_moment(&self) -> Option<Time> {
        let state = self.lock();
        let waits = state.entries.values().filter_map(|entry| entry.waits);
        let waits = waits.filter(|waits| !waits.leaving);
        waits.map(|waits| waits.due.map_or(waits.patience, |due| due.min(waits.patience))).min()
    }

    pub fn is_empty(&self) -> bool {
        self.lock().entries.is_empty()
    }
}

impl RegistryState {
    fn answer(&mut self, handle: Bits, answer: &WaitAnswer) {
        if let Some(entry) = self.entries.remove(&handle) {
            for (_, subscriber) in entry.subscribers {
                let _ = subscriber.send(answer.clone());
            }
        }
    }
}
