//! Why it was not done. One variant per thing the caller should *do* next.

use leasehold::error::BoxError;

use crate::model::Refusal;

/// Why it was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It was decided, and the answer is no. Do: choose otherwise, or give up. Nothing was changed.
    #[error("{0}")]
    Refused(Refusal),
    /// It did not take effect. Do: retry with backoff.
    #[error("{attempt}: {part} is unavailable, nothing was changed")]
    Unavailable {
        /// The ledger or the engine, by its name.
        part: &'static str,
        /// What was tried.
        attempt: String,
        /// The cause.
        source: BoxError,
    },
    /// It may have taken effect. Do: retry with the same idempotency key, or look.
    #[error("{attempt}: the outcome is unknown to {part}, it may have happened")]
    Indeterminate {
        /// The ledger or the engine, by its name.
        part: &'static str,
        /// What was tried.
        attempt: String,
        /// The cause.
        source: BoxError,
    },
    /// It can never succeed as written. Do: fix the caller.
    #[error("{0}")]
    Invalid(String),
    /// Stored state breaks a law. Do: stop, and call a person.
    #[error("{part} found stored state that breaks a law ({law}) at {at}: stop, keep a copy, and call a person")]
    Corrupt {
        /// The ledger or the engine, by its name.
        part: &'static str,
        /// The law.
        law: String,
        /// Where.
        at: String,
    },
}

impl Error {
    /// The code that stays, as in problems over HTTP.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Refused(refusal) => refusal.code(),
            Self::Unavailable { .. } => "unavailable",
            Self::Indeterminate { .. } => "unknown_outcome",
            Self::Invalid(_) => "invalid",
            Self::Corrupt { .. } => "corrupt",
        }
    }

    /// The status of HTTP that says it best.
    #[must_use]
    pub const fn status(&self) -> u16 {
        match self {
            Self::Refused(refusal) => refusal.status(),
            Self::Unavailable { .. } => 503,
            Self::Indeterminate { .. } => 504,
            Self::Invalid(_) => 400,
            Self::Corrupt { .. } => 500,
        }
    }

    /// The refusal, if it is one.
    #[must_use]
    pub const fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    /// What an engine says, in the words of the box office. Refusals of engines have no general meaning here, and are
    /// looked at before this is called.
    #[must_use]
    pub fn engine(error: leasehold::Error) -> Self {
        match error {
            leasehold::Error::Unavailable { engine, attempt, source } => {
                Self::Unavailable { part: engine, attempt, source }
            }
            leasehold::Error::Indeterminate { engine, attempt, source } => {
                Self::Indeterminate { part: engine, attempt, source }
            }
            leasehold::Error::Invalid(why) => Self::Invalid(why),
            leasehold::Error::Corrupt { engine, law, at } => Self::Corrupt { part: engine, law, at },
            other => Self::Unavailable { part: "engine", attempt: "asking for a lease".into(), source: other.into() },
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}
