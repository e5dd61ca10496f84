//! Why there is no grant. One variant per thing the caller should *do* next.

use std::time::Duration;

/// The cause underneath, as it came.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why there is no grant. One variant per thing the caller should *do* next.
///
/// A "no" is [`Error::Refused`]; "could not ask" is [`Error::Unavailable`]; they are never confused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The engine decided, and the answer is no. Do: wait, or give up.
    #[error("{0}")]
    Refused(Refusal),
    /// It did not take effect. Do: retry with backoff.
    #[error("{attempt}: the {engine} engine is unavailable, nothing was changed")]
    Unavailable {
        /// Which engine.
        engine: &'static str,
        /// What was tried.
        attempt: String,
        /// The cause.
        source: BoxError,
    },
    /// It may have taken effect. Do: retry with the same request id, or inspect.
    #[error("{attempt}: the outcome is unknown to the {engine} engine, it may have happened")]
    Indeterminate {
        /// Which engine.
        engine: &'static str,
        /// What was tried.
        attempt: String,
        /// The cause.
        source: BoxError,
    },
    /// It can never succeed as written. Do: fix the caller.
    #[error("{0}")]
    Invalid(String),
    /// Stored state breaks a law. Do: stop, and call a person.
    #[error(
        "the {engine} engine found stored state that breaks a law ({law}) at {at}; it will not guess: stop, keep a copy of what is there, and call a person"
    )]
    Corrupt {
        /// Which engine.
        engine: &'static str,
        /// The law that is broken.
        law: String,
        /// File and offset, or the record.
        at: String,
    },
}

/// The engine's considered no.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Somebody else holds it, or waits for it and came earlier.
    #[error("{resource} is held{}{}", by(holder.as_deref()), left(*remaining))]
    Held {
        /// The first resource of the claim that is not free.
        resource: String,
        /// Who has it; none when only a queue or a closing delay is in the way.
        holder: Option<String>,
        /// How long it can still be held without renewal.
        remaining: Option<Duration>,
        /// How many wait for it.
        queue_len: usize,
    },
    /// The lease was yours and has ended: it lapsed or was revoked.
    #[error("the lease has ended: it lapsed or was revoked")]
    Stale,
    /// No lease of this id is known: it never was, or is forgotten.
    #[error("no lease of this id is known")]
    NotHeld,
    /// Too many wait already.
    #[error("the queue for {resource} is full")]
    QueueFull {
        /// The resource whose queue is full.
        resource: String,
    },
    /// A limit on how many there may be is reached.
    #[error("quota reached: {0}")]
    Quota(String),
    /// The request id was used before, with another body.
    #[error("this request id was used before for another claim")]
    Mismatch,
}

fn by(holder: Option<&str>) -> String {
    holder.map_or_else(String::new, |holder| format!(" by {holder}"))
}

fn left(remaining: Option<Duration>) -> String {
    remaining.map_or_else(String::new, |remaining| format!(", {} ms left", remaining.as_millis()))
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}
