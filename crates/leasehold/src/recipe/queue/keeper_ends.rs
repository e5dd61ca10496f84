//! How the keeper ends deliveries: jobs that are done are acknowledged, those that failed are given back.
//!
//! A transaction of the user's may have a job locked, such as one that asks for it again. The end of that job waits for the
//! transaction, without waiting in the store, and other jobs go on.

use std::collections::BTreeMap;
use std::time::Duration;

use super::keeper::Keeper;
use super::rows::{FailedJob, Nacked};
use crate::clock::Time;
use crate::recipe::error::RecipeError;

/// When an end that met somebody's transaction is tried again.
const RETRY_LOCKED_AFTER: Duration = Duration::from_millis(200);
/// How long a transaction may be in the way before that is reported, and how often.
const REPORT_LOCKED_EVERY: Duration = Duration::from_secs(5);

/// Ends of deliveries that met somebody's transaction, until they are tried again.
#[derive(Default)]
pub(super) struct LockedEnds {
    /// Jobs that ended well, by token.
    done: BTreeMap<i64, Vec<i64>>,
    failed: Vec<FailedJob>,
    retry_at: Option<Time>,
    report_at: Option<Time>,
}

impl LockedEnds {
    fn is_empty(&self) -> bool {
        self.done.is_empty() && self.failed.is_empty()
    }

    /// When they are tried again; never, if there are none.
    pub fn retry_at(&self) -> Time {
        self.retry_at.filter(|_| !self.is_empty()).unwrap_or(Time::NEVER)
    }

    /// Whether this delivery failed, and is not given back yet.
    pub fn has_failed(&self, token: i64, key: &str) -> bool {
        self.failed.iter().any(|failed| failed.is_of(token, key))
    }
}

impl Keeper {
    /// Nothing has ended that the store does not know of.
    pub(super) fn is_settled(&self) -> bool {
        self.done.is_empty() && self.failed.is_empty() && self.locked.is_empty()
    }

    /// Tries again what met somebody's transaction, if it is time.
    pub(super) fn take_up_locked(&mut self, now: Time) {
        if self.locked.is_empty() {
            self.locked.report_at = None;
        } else if now >= self.locked.retry_at() {
            for (token, jobs) in std::mem::take(&mut self.locked.done) {
                self.done.entry(token).or_default().extend(jobs);
            }
            self.failed.append(&mut self.locked.failed);
        }
    }

    /// An end has met somebody's transaction. One that is in the way for long is reported.
    pub(super) fn note_locked(&mut self) {
        let now = self.clock.now();
        self.locked.retry_at = Some(now.plus(RETRY_LOCKED_AFTER));
        if now >= *self.locked.report_at.get_or_insert(now.plus(REPORT_LOCKED_EVERY)) {
            self.locked.report_at = Some(now.plus(REPORT_LOCKED_EVERY));
            self.report_trouble(&self.still_locked());
        }
    }

    /// What is said of ends that somebody's transaction has held up for long.
    pub(super) fn still_locked(&self) -> RecipeError {
        let mut jobs: Vec<i64> = self.locked.done.values().flatten().copied().collect();
        jobs.extend(self.locked.failed.iter().map(|failed| failed.job_id));
        // By key they are kept with their claim.
        jobs.extend(self.held.values().flat_map(|claim| &claim.done));
        let why = format!("a transaction that is open has locked jobs that ended: {jobs:?}");
        RecipeError::unavailable(self.calls.store.kind(), "end deliveries", why)
    }

    /// The token with the most jobs that ended.
    pub(super) fn largest_group(&self) -> (i64, Vec<i64>) {
        let largest = self.done.iter().max_by_key(|(_, jobs)| jobs.len());
        largest.map(|(token, jobs)| (*token, jobs.clone())).unwrap_or_default()
    }

    /// Acknowledges the jobs of one token.
    pub(super) async fn ack_largest_group(&mut self) -> Result<(), RecipeError> {
        let (token, jobs) = self.largest_group();
        let count = jobs.len();
        let answered = self.calls.ack(jobs, token).await;
        let answer = answered.map_err(|error| self.note_unanswered(token, error))?;
        self.count_acked(token, count, answer.stale.len(), answer.locked);
        Ok(())
    }

    /// Remembers an acknowledgement without an answer.
    pub(super) fn note_unanswered(&mut self, token: i64, error: RecipeError) -> RecipeError {
        if self.done.contains_key(&token) && matches!(error, RecipeError::Indeterminate { .. }) {
            self.unsure.push(token);
        }
        error
    }

    /// Counts what was acknowledged. What is locked is tried again.
    pub(super) fn count_acked(&mut self, token: i64, asked: usize, stale: usize, locked: Vec<i64>) {
        if asked == 0 {
            return;
        }
        self.done.remove(&token);
        self.report.acked += asked.saturating_sub(stale + locked.len()) as u64;
        if self.unsure.contains(&token) {
            self.report.unknown += stale as u64;
        } else {
            self.report.stale += stale as u64;
        }
        if locked.is_empty() {
            self.unsure.retain(|unsure| *unsure != token);
        } else {
            self.locked.done.entry(token).or_default().extend(locked);
            self.note_locked();
        }
    }

    /// Gives back what failed.
    pub(super) async fn give_back(&mut self) -> Result<(), RecipeError> {
        while let Some(failed) = self.failed.last().cloned() {
            // By key, giving one back frees the key: what was done before it must have ended.
            let waits = |key| self.held.values().any(|claim| claim.has_unacked(failed.token, key));
            let nacked = match failed.key.as_deref().is_some_and(waits) {
                true => Ok(Nacked::Locked),
                false => self.calls.nack(failed.clone()).await,
            };
            match nacked {
                Ok(Nacked::Retry) => self.report.retried += 1,
                Ok(Nacked::Dead) => self.report.dead += 1,
                Ok(Nacked::Stale) => self.report.stale += 1,
                Ok(Nacked::Locked) => {
                    self.locked.failed.extend(self.failed.pop());
                    self.note_locked();
                    continue;
                }
                Err(error @ (RecipeError::Unavailable { .. } | RecipeError::Indeterminate { .. })) => {
                    return Err(error);
                }
                // What the store does not take for this job must not end the work on others: the job is left to lapse.
                Err(error) => {
                    self.report_trouble(&error);
                    self.report.lost += 1;
                }
            }
            self.failed.pop();
            // It may be ready sooner than what we wait for.
            self.armed = false;
            self.claim_due = true;
        }
        Ok(())
    }
}
