//! Why the service refuses a call, and how each protocol says it. One table; codes are never reused.

use leasehold::recipe::{RecipeError, RecipeRefusal};
use leasehold::{Error, Refusal};

/// Why a call failed or was refused.
#[derive(Debug)]
pub enum Denial {
    /// The caller is not known. Do: show a key.
    Unauthorized,
    /// The caller may not do this. Do: ask somebody who may.
    Forbidden(String),
    /// Too many calls. Do: come again later.
    Slow(String),
    /// The engine refused or failed.
    Engine(Error),
    /// A buyer's ticket is not one, or not any more. Do: get a new one.
    Ticket(leasehold_boxoffice::ticket::Invalid),
    /// The box office refused or failed.
    Office(leasehold_boxoffice::Error),
    /// The store of recipes refused or failed.
    Recipe(RecipeError),
}

/// The code of a denial in each protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenialCode {
    /// The `code` in JSON.
    pub code: &'static str,
    /// The HTTP status.
    pub status: u16,
    /// The first word of a RESP error.
    pub word: &'static str,
}

const fn code(code: &'static str, status: u16, word: &'static str) -> DenialCode {
    DenialCode { code, status, word }
}

impl Denial {
    /// The row of the table for this denial.
    pub const fn code(&self) -> DenialCode {
        match self {
            Self::Unauthorized => code("unauthorized", 401, "NOAUTH"),
            Self::Forbidden(_) => code("forbidden", 403, "FORBIDDEN"),
            Self::Slow(_) => code("quota", 429, "QUOTA"),
            Self::Ticket(_) => code("unauthorized", 401, "NOAUTH"),
            // RESP has no box office.
            Self::Office(error) => code(error.code(), error.status(), "INVALID"),
            // RESP has no recipes.
            Self::Recipe(error) => match error {
                RecipeError::Refused(RecipeRefusal::Stale { .. }) => code("stale", 409, "INVALID"),
                RecipeError::Refused(RecipeRefusal::NoQueue { .. }) => code("not_found", 404, "INVALID"),
                RecipeError::Refused(RecipeRefusal::InFlight { .. }) => code("in_flight", 409, "INVALID"),
                RecipeError::Refused(RecipeRefusal::Mismatch) => code("idempotency_mismatch", 422, "INVALID"),
                RecipeError::Invalid(_) => code("invalid", 400, "INVALID"),
                RecipeError::Indeterminate { .. } => code("unknown_outcome", 504, "INVALID"),
                RecipeError::Corrupt { .. } => code("corrupt", 500, "INVALID"),
                _ => code("unavailable", 503, "INVALID"),
            },
            Self::Engine(error) => match error {
                Error::Refused(Refusal::Held { .. }) => code("held", 409, "HELD"),
                Error::Refused(Refusal::Stale) => code("stale", 409, "STALE"),
                Error::Refused(Refusal::NotHeld) => code("not_held", 404, "NOTHELD"),
                Error::Refused(Refusal::QueueFull { .. }) => code("queue_full", 429, "QUEUEFULL"),
                Error::Refused(Refusal::Quota(_)) => code("quota", 429, "QUOTA"),
                Error::Refused(Refusal::Mismatch) => code("idempotency_mismatch", 422, "MISMATCH"),
                Error::Invalid(_) => code("invalid", 400, "INVALID"),
                Error::Indeterminate { .. } => code("unknown_outcome", 504, "UNKNOWN"),
                Error::Corrupt { .. } => code("corrupt", 500, "CORRUPT"),
                // Unavailable, and variants of later versions of the library: no effect is known.
                _ => code("unavailable", 503, "UNAVAILABLE"),
            },
        }
    }

    /// One sentence for people, with its causes.
    pub fn sentence(&self) -> String {
        match self {
            Self::Unauthorized => "an API key is needed, and this one is not known".into(),
            Self::Forbidden(sentence) | Self::Slow(sentence) => sentence.clone(),
            Self::Engine(error) => with_causes(error),
            Self::Ticket(invalid) => invalid.to_string(),
            Self::Office(error) => with_causes(error),
            Self::Recipe(error) => with_causes(error),
        }
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(": ");
        text.push_str(&next.to_string());
        cause = next.source();
    }
    text
}

impl From<Error> for Denial {
    fn from(error: Error) -> Self {
        Self::Engine(error)
    }
}
