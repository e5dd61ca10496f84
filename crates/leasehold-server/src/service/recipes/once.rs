//! `once` in two phases, for callers of the server.

use leasehold::recipe::RecipeError;
use leasehold::recipe::once::{Begun, First, OnceEnd, OnceRequest};

use super::RecipeAccess;
use super::counts::OnceOutcome;
use crate::service::Denial;

/// How a try ends, goes on, or is looked up. It owns the answer: the call outlives its request.
#[derive(Clone, Debug)]
pub enum TryEnd {
    /// The answer is stored.
    Finish {
        /// The caller's status.
        status: i32,
        /// The answer.
        body: Vec<u8>,
    },
    /// It goes on.
    Renew {
        /// From now.
        ttl: std::time::Duration,
    },
    /// It is given up.
    Abandon,
    /// Whether its answer is the stored one.
    Ask,
}

impl RecipeAccess {
    /// Begins a try, or finds the answer.
    ///
    /// # Errors
    ///
    /// The store refused or failed.
    pub async fn once_begin(&self, request: OnceRequest) -> Result<Begun, Denial> {
        let begun = self.ask(self.state.store.once_begin(&request)).await?;
        self.state.counts.record_once(match &begun {
            Begun::First(_) => OnceOutcome::First,
            Begun::Replay(_) => OnceOutcome::Replay,
            Begun::InFlight { .. } => OnceOutcome::InFlight,
            Begun::Mismatch => OnceOutcome::Mismatch,
        });
        Ok(begun)
    }

    /// Ends a try. False: it is not the newest, and nothing was written.
    ///
    /// # Errors
    ///
    /// The store refused or failed.
    pub async fn once_end(&self, first: First, end: TryEnd) -> Result<bool, Denial> {
        let store = &self.state.store;
        let (ours, outcome) = match &end {
            TryEnd::Ask => return self.ask(store.once_is_stored(&first)).await,
            TryEnd::Finish { status, body } => {
                let end = OnceEnd::Finish { status: *status, body };
                (self.ask(store.once_end(&first, end)).await?, Some(OnceOutcome::Finished))
            }
            TryEnd::Renew { ttl } => (self.ask(store.once_end(&first, OnceEnd::Renew { ttl: *ttl })).await?, None),
            TryEnd::Abandon => {
                (self.ask(store.once_end(&first, OnceEnd::Abandon)).await?, Some(OnceOutcome::Abandoned))
            }
        };
        match (ours, outcome) {
            (true, Some(outcome)) => self.state.counts.record_once(outcome),
            (true, None) => {}
            (false, _) => self.state.counts.record_once(OnceOutcome::Stale),
        }
        Ok(ours)
    }
}

/// The refusal of a try that is not the newest.
pub fn stale_try(token: i64) -> Denial {
    let what = format!("try {token} of this key");
    Denial::Recipe(RecipeError::Refused(leasehold::recipe::RecipeRefusal::Stale { what }))
}
