//! One request in a batch: the facts it needs, its decision, and the caller who waits for it.

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;

use super::error::PostgresError;
use crate::error::Error;
use crate::model::decide::Decision;
use crate::model::facts::{Facts, Need};
use crate::model::write::LedgerWrite;
use crate::model::{Done, Idem, LedgerCall, Moment, Refusal};

/// A request of any result type. It may be decided several times: the last decision counts.
pub(super) trait BatchJob: Send {
    fn need(&self) -> &Need;
    fn idem(&self) -> Option<&Idem>;
    /// Whether it locks its event exclusively, to change rules or layout.
    fn is_exclusive(&self) -> bool;
    /// Takes the stored answer of an earlier call as its result.
    fn replay(&mut self, asked: &[u8], answer: &str, now: Moment);
    /// Decides. `None`: there is nothing to store.
    fn decide(&mut self, facts: &Facts, now: Moment) -> Option<DecidedWrites>;
    /// Sends the result to the caller.
    fn complete(self: Box<Self>, outcome: &TransactionOutcome);
}

/// What a decision stores.
pub(super) struct DecidedWrites {
    pub(super) writes: Vec<LedgerWrite>,
    /// The answer for retries: JSON.
    pub(super) answer: Option<Result<String, serde_json::Error>>,
}

/// How the transaction of a request ended.
pub(super) enum TransactionOutcome {
    /// Committed, durable.
    Durable,
    /// Rolled back: nothing took effect.
    RolledBack(PostgresError),
    /// COMMIT was sent, and its answer is lost.
    Unknown(PostgresError),
}

/// The function that decides.
pub(super) type DecideFn<T> = Box<dyn Fn(&Facts, &str, Moment) -> Decision<T> + Send>;

/// A request for a `T`.
pub(super) struct PendingTransaction<T> {
    pub(super) attempt: &'static str,
    pub(super) call: LedgerCall,
    pub(super) need: Need,
    pub(super) exclusive: bool,
    pub(super) decide: DecideFn<T>,
    pub(super) outcome: Option<Result<Done<T>, Error>>,
    /// Whether its last decision stores anything.
    pub(super) effect: bool,
    pub(super) reply: oneshot::Sender<Result<Done<T>, Error>>,
}

impl<T: Serialize + DeserializeOwned + Send> BatchJob for PendingTransaction<T> {
    fn need(&self) -> &Need {
        &self.need
    }

    fn idem(&self) -> Option<&Idem> {
        self.call.idem.as_ref()
    }

    fn is_exclusive(&self) -> bool {
        self.exclusive
    }

    fn replay(&mut self, asked: &[u8], answer: &str, now: Moment) {
        self.effect = false;
        let same = self.call.idem.as_ref().is_some_and(|idem| asked == idem.body);
        self.outcome = Some(if same {
            let stored = serde_json::from_str(answer).map(|value| Done { value, now, replayed: true });
            stored.map_err(|error| unreadable("answers", &error).not_applied(self.attempt))
        } else {
            Err(Refusal::Mismatch.into())
        });
    }

    fn decide(&mut self, facts: &Facts, now: Moment) -> Option<DecidedWrites> {
        let decided = (self.decide)(facts, &self.call.actor, now);
        let (writes, value) = match decided {
            Ok(decided) => decided,
            Err(refusal) => {
                (self.outcome, self.effect) = (Some(Err(refusal.into())), false);
                return None;
            }
        };
        let answer = self.call.idem.as_ref().map(|_| serde_json::to_string(&value));
        self.outcome = Some(Ok(Done { value, now, replayed: false }));
        self.effect = !writes.is_empty() || answer.is_some();
        self.effect.then_some(DecidedWrites { writes, answer })
    }

    fn complete(self: Box<Self>, outcome: &TransactionOutcome) {
        let reply = match (outcome, self.outcome) {
            (TransactionOutcome::Durable, Some(outcome)) => outcome,
            (TransactionOutcome::Durable, None) => Err(super::unavailable(self.attempt, "it was not run".into())),
            (TransactionOutcome::RolledBack(error), _) => Err(error.not_applied(self.attempt)),
            (TransactionOutcome::Unknown(error), _) if self.effect => Err(error.indeterminate(self.attempt)),
            // It stores nothing, but it may depend on writes of the same batch.
            (TransactionOutcome::Unknown(error), _) => Err(error.not_applied(self.attempt)),
        };
        // The caller may be gone: the transaction stands all the same.
        let _ = self.reply.send(reply);
    }
}

pub(super) fn unreadable(table: &str, error: &serde_json::Error) -> PostgresError {
    PostgresError::corrupt("stored rows can be read", format!("{table}: {error}"))
}
