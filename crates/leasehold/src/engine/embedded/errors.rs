//! The errors that callers of this engine get. Each says what was tried, and whether it may have had an effect.

use leasehold_core::Reply;

use crate::engine::from_book::refused;
use crate::error::Error;

/// The name of the engine in errors and promises.
pub(super) const ENGINE: &str = "embedded";

/// The cause that is given when the engine stopped because of a panic.
pub(super) const BUG_IN_ENGINE: &str = "a bug in the engine";

/// It did not take effect.
pub(super) fn no_effect(attempt: String, sentence: &str) -> Error {
    Error::Unavailable { engine: ENGINE, attempt, source: sentence.into() }
}

/// It may have taken effect.
pub(super) fn unknown_outcome(attempt: String, sentence: &str) -> Error {
    Error::Indeterminate { engine: ENGINE, attempt, source: sentence.into() }
}

/// The error for a reply of the book that is not the one the caller asked for.
pub fn refusal(reply: Reply, attempt: &str) -> Error {
    refused(reply, ENGINE, || attempt.to_owned())
}
