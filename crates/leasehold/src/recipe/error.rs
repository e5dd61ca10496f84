//! Why a recipe did not do it. One variant per thing the caller should *do* next.

use std::time::Duration;

use crate::error::BoxError;

/// Why a recipe did not do it. The same five kinds as [`crate::Error`], for stores in place of engines.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecipeError {
    /// The store decided, and the answer is no. Do: as the refusal says.
    #[error("{0}")]
    Refused(RecipeRefusal),
    /// It did not take effect. Do: retry with backoff.
    #[error("{attempt}: the {store} store is unavailable, nothing was changed")]
    Unavailable {
        /// Which store.
        store: &'static str,
        /// What was tried.
        attempt: String,
        /// The cause.
        source: BoxError,
    },
    /// It may have taken effect. Do: ask again, and compare.
    #[error("{attempt}: the outcome is unknown to the {store} store, it may have happened")]
    Indeterminate {
        /// Which store.
        store: &'static str,
        /// What was tried.
        attempt: String,
        /// The cause.
        source: BoxError,
    },
    /// The work of the caller failed. Nothing of it was stored. Do: as its error says.
    #[error("the work failed, and nothing of it was stored")]
    Work(#[source] BoxError),
    /// It can never succeed as written. Do: fix the caller.
    #[error("{0}")]
    Invalid(String),
    /// Stored state breaks a law. Do: stop, and call a person.
    #[error("the {store} store found rows that break a law ({law}) at {at}: stop, keep a copy, and call a person")]
    Corrupt {
        /// Which store.
        store: &'static str,
        /// The law that is broken.
        law: String,
        /// The table, or the row.
        at: String,
    },
}

/// The considered no of a recipe.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecipeRefusal {
    /// The token shown is not the newest one: another took over. Nothing was changed. Do: stop.
    #[error("{what} is stale: another took over")]
    Stale {
        /// Which delivery, first try or run.
        what: String,
    },
    /// There is no queue of this name. Do: make it.
    #[error("there is no queue {name}")]
    NoQueue {
        /// Its name.
        name: String,
    },
    /// The first try of this key still runs. Do: wait, and ask again.
    #[error("the first try of this key still runs{}", time_left(*remaining))]
    InFlight {
        /// How long until it can be taken over, if it does not renew; none: it is inside an open transaction.
        remaining: Option<Duration>,
    },
    /// The key was used before, with another body. Do: use another key.
    #[error("this key was used before for another request")]
    Mismatch,
}

fn time_left(remaining: Option<Duration>) -> String {
    remaining.map_or_else(String::new, |remaining| format!(", {} ms left", remaining.as_millis()))
}

impl From<RecipeRefusal> for RecipeError {
    fn from(refusal: RecipeRefusal) -> Self {
        Self::Refused(refusal)
    }
}

impl RecipeError {
    /// Nothing happened, for this reason.
    pub(crate) fn unavailable(store: &'static str, attempt: &str, source: impl Into<BoxError>) -> Self {
        Self::Unavailable { store, attempt: attempt.to_owned(), source: source.into() }
    }

    /// It may have happened.
    pub(crate) fn indeterminate(store: &'static str, attempt: &str, source: impl Into<BoxError>) -> Self {
        Self::Indeterminate { store, attempt: attempt.to_owned(), source: source.into() }
    }

    /// A row that this code cannot have written.
    pub(crate) fn corrupt(store: &'static str, law: &str, at: impl Into<String>) -> Self {
        Self::Corrupt { store, law: law.to_owned(), at: at.into() }
    }

    /// The refusal, if it is one.
    #[must_use]
    pub const fn refusal(&self) -> Option<&RecipeRefusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }
}
