//! Who waits for an acquire: its caller, and callers that repeat the same request in this process.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use leasehold_core::Time;
use tokio::sync::{Notify, oneshot};

use crate::engine::Grant;
use crate::error::Error;

pub(super) type AcquireResult = Result<Grant, Error>;

/// Those who wait for one acquire.
#[derive(Default)]
pub(super) struct AttemptCallers {
    /// Of the claim: a repeat has the same.
    pub fingerprint: u64,
    waiting: Mutex<WaitingCallers>,
    /// Somebody joined: the patience may be longer.
    pub changed: Notify,
}

#[derive(Default)]
struct WaitingCallers {
    callers: Vec<oneshot::Sender<AcquireResult>>,
    patience: Time,
    is_done: bool,
}

impl AttemptCallers {
    pub fn new(fingerprint: u64) -> Self {
        Self { fingerprint, ..Self::default() }
    }

    fn lock(&self) -> MutexGuard<'_, WaitingCallers> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins: all have the longest patience and the same answer. None: it has its answer already.
    pub fn join(&self, patience: Time) -> Option<oneshot::Receiver<AcquireResult>> {
        let mut waiting = self.lock();
        if waiting.is_done {
            return None;
        }
        let (to, from) = oneshot::channel();
        waiting.callers.push(to);
        waiting.patience = waiting.patience.max(patience);
        drop(waiting);
        self.changed.notify_one();
        Some(from)
    }

    pub fn patience(&self) -> Time {
        self.lock().patience
    }

    pub fn are_gone(&self) -> bool {
        self.lock().callers.iter().all(oneshot::Sender::is_closed)
    }

    /// Completes when nobody waits any more.
    pub async fn wait_until_gone(&self) {
        poll_fn(|context| {
            let mut waiting = self.lock();
            waiting.callers.retain_mut(|caller| caller.poll_closed(context).is_pending());
            if waiting.callers.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Nobody joins from now on.
    fn finish(&self) -> Vec<oneshot::Sender<AcquireResult>> {
        let mut waiting = self.lock();
        waiting.is_done = true;
        std::mem::take(&mut waiting.callers)
    }

    /// Answers everybody. `false`: nobody was there to hear it.
    pub fn answer(&self, result: AcquireResult) -> bool {
        let mut heard = false;
        let callers = self.finish();
        let last = callers.len().saturating_sub(1);
        let mut original = Some(result);
        for (at, caller) in callers.into_iter().enumerate() {
            let copy = match (&original, at == last) {
                (Some(result), false) => copy_result(result),
                _ => match original.take() {
                    Some(result) => result,
                    None => break,
                },
            };
            heard |= caller.send(copy).is_ok();
        }
        heard
    }
}

/// Acquires with a request id that are under way in this process, by the key of the request.
#[derive(Default)]
pub(super) struct RequestTable {
    under_way: Mutex<HashMap<Vec<u8>, Arc<AttemptCallers>>>,
}

impl RequestTable {
    fn lock(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Arc<AttemptCallers>>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The acquire that is under way with this request, or this one from now on.
    pub fn find_or_insert(&self, key: &[u8], callers: &Arc<AttemptCallers>) -> Option<Arc<AttemptCallers>> {
        let mut table = self.lock();
        if let Some(found) = table.get(key) {
            return Some(found.clone());
        }
        table.insert(key.to_vec(), callers.clone());
        None
    }

    pub fn remove(&self, key: &[u8], callers: &Arc<AttemptCallers>) {
        let mut table = self.lock();
        if table.get(key).is_some_and(|found| Arc::ptr_eq(found, callers)) {
            table.remove(key);
        }
    }
}

/// The same answer for another caller. The cause of an error is copied as text.
fn copy_result(result: &AcquireResult) -> AcquireResult {
    match result {
        Ok(grant) => Ok(grant.clone()),
        Err(error) => Err(copy_error(error)),
    }
}

fn copy_error(error: &Error) -> Error {
    match error {
        Error::Refused(refusal) => Error::Refused(refusal.clone()),
        Error::Unavailable { engine, attempt, source } => {
            Error::Unavailable { engine, attempt: attempt.clone(), source: source.to_string().into() }
        }
        Error::Indeterminate { engine, attempt, source } => {
            Error::Indeterminate { engine, attempt: attempt.clone(), source: source.to_string().into() }
        }
        Error::Invalid(sentence) => Error::Invalid(sentence.clone()),
        Error::Corrupt { engine, law, at } => Error::Corrupt { engine, law: law.clone(), at: at.clone() },
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::engine::LeaseId;
    use crate::error::Refusal;

    fn grant() -> Grant {
        Grant { lease_id: LeaseId::new("l1"), token: None, remaining: Duration::from_secs(1), renewable: None }
    }

    /// Goal: all who joined have the longest patience and the same answer; whoever comes later does not join.
    #[tokio::test]
    async fn joined_callers_have_one_answer() {
        let callers = AttemptCallers::new(7);
        let first = callers.join(Time::from_millis(5)).unwrap();
        let second = callers.join(Time::from_millis(3)).unwrap();
        assert_eq!(callers.patience(), Time::from_millis(5));
        drop(first);
        assert!(!callers.are_gone());
        assert!(callers.answer(Ok(grant())), "one of them hears it");
        assert_eq!(second.await.unwrap().unwrap(), grant());
        assert!(callers.join(Time::NEVER).is_none());
    }

    #[tokio::test]
    async fn an_answer_that_nobody_hears_is_noticed() {
        let callers = AttemptCallers::new(7);
        drop(callers.join(Time::ZERO).unwrap());
        callers.wait_until_gone().await;
        assert!(callers.are_gone() && !callers.answer(Err(Refusal::NotHeld.into())));
    }

    #[test]
    fn a_copy_of_an_error_says_the_same() {
        let source = "h1 is away".into();
        let error = Error::Unavailable { engine: "etcd", attempt: "acquire a".into(), source };
        assert_eq!(format!("{:?}", copy_error(&error)), format!("{error:?}"));
    }
}
