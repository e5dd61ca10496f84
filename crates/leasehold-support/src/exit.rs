//! How a command ends: one function decides the exit code, and the codes are never reused.
//!
//! | code | says |
//! | --- | --- |
//! | 0 | done |
//! | 1 | unexpected error |
//! | 2 | bad usage (also: another body under a `once` key, another schedule under a `cron` name) |
//! | 3 | held by another, or the wait ran out, or in flight |
//! | 4 | unavailable (also: directory in use) |
//! | 5 | outcome unknown |
//! | 6 | lease lost while the command ran |
//! | 7 | stale or not held |
//! | 8 | corrupt |

use std::fmt;

use leasehold::recipe::{RecipeError, RecipeRefusal};
use leasehold::{Error, Refusal};

/// Done.
pub const DONE: u8 = 0;
/// Something nobody foresaw.
pub const UNEXPECTED: u8 = 1;
/// Bad usage: fix the command line.
pub const USAGE: u8 = 2;
/// Held by another, or the wait ran out.
pub const HELD: u8 = 3;
/// Nobody could be asked.
pub const UNAVAILABLE: u8 = 4;
/// It may have happened.
pub const UNKNOWN: u8 = 5;
/// The lease was lost while the command ran.
pub const LOST: u8 = 6;
/// Stale or not held.
pub const STALE: u8 = 7;
/// Stored state breaks a law.
pub const CORRUPT: u8 = 8;
/// `run`: the command exists but cannot be executed, as shells say it.
pub const NOT_EXECUTABLE: u8 = 126;
/// `run`: there is no such command, as shells say it.
pub const NOT_FOUND: u8 = 127;

/// An end with a code that the error below it cannot say, for example bad usage found by ourselves.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    sentence: String,
}

impl Failure {
    /// An end with this code and this sentence.
    pub fn coded(code: u8, sentence: impl Into<String>) -> anyhow::Error {
        anyhow::Error::new(Self { code, sentence: sentence.into() })
    }

    /// Bad usage.
    pub fn usage(sentence: impl Into<String>) -> anyhow::Error {
        Self::coded(USAGE, sentence)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl std::error::Error for Failure {}

/// The exit code of an error, wherever in the chain the cause stands.
pub fn code(error: &anyhow::Error) -> u8 {
    for cause in error.chain() {
        if let Some(failure) = cause.downcast_ref::<Failure>() {
            return failure.code;
        }
        if let Some(error) = cause.downcast_ref::<Error>() {
            return code_of(error);
        }
        if let Some(error) = cause.downcast_ref::<RecipeError>() {
            return recipe_code(error);
        }
    }
    UNEXPECTED
}

/// The exit code of the library's error: the one table for the command line.
fn code_of(error: &Error) -> u8 {
    match error {
        Error::Refused(Refusal::Held { .. } | Refusal::QueueFull { .. } | Refusal::Quota(_)) => HELD,
        Error::Refused(Refusal::Stale | Refusal::NotHeld) => STALE,
        Error::Refused(Refusal::Mismatch) | Error::Invalid(_) => USAGE,
        Error::Unavailable { .. } => UNAVAILABLE,
        Error::Indeterminate { .. } => UNKNOWN,
        Error::Corrupt { .. } => CORRUPT,
        _ => UNEXPECTED,
    }
}

/// The exit code of an error of a recipe.
fn recipe_code(error: &RecipeError) -> u8 {
    match error {
        RecipeError::Refused(RecipeRefusal::InFlight { .. }) => HELD,
        RecipeError::Refused(RecipeRefusal::Stale { .. }) => STALE,
        RecipeError::Refused(RecipeRefusal::Mismatch | RecipeRefusal::NoQueue { .. }) | RecipeError::Invalid(_) => {
            USAGE
        }
        RecipeError::Unavailable { .. } => UNAVAILABLE,
        RecipeError::Indeterminate { .. } => UNKNOWN,
        RecipeError::Corrupt { .. } => CORRUPT,
        _ => UNEXPECTED,
    }
}

/// One sentence: the error and its causes, joined by colons, without a cause that the one before it
/// already said.
pub fn sentence(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    let full = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|io| io.kind() == std::io::ErrorKind::StorageFull)
    };
    if error.chain().any(full) {
        text.push_str("; free some space and try again, what was acknowledged is safe");
    }
    // A sentence is one line, whatever a cause far below put into it.
    text.replace(['\n', '\r'], " ")
}

/// An error that is told while the work goes on: itself and its causes, joined by colons, harmless to a terminal.
pub fn causes(error: &dyn std::error::Error) -> String {
    let mut sentence = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        sentence = format!("{sentence}: {error}");
        cause = error.source();
    }
    crate::output::plain(&sentence)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unavailable() -> Error {
        Error::Unavailable { engine: "embedded", attempt: "open x".into(), source: "in use".into() }
    }

    /// Goal: every error of the library has the exit code of the contract.
    #[test]
    fn every_error_has_its_code() {
        let held = Refusal::Held { resource: "x".into(), holder: None, remaining: None, queue_len: 0 };
        let table = [
            (Error::Refused(held), 3),
            (Error::Refused(Refusal::QueueFull { resource: "x".into() }), 3),
            (Error::Refused(Refusal::Quota("leases".into())), 3),
            (unavailable(), 4),
            (Error::Indeterminate { engine: "e", attempt: "a".into(), source: "s".into() }, 5),
            (Error::Refused(Refusal::Stale), 7),
            (Error::Refused(Refusal::NotHeld), 7),
            (Error::Refused(Refusal::Mismatch), 2),
            (Error::Invalid("no".into()), 2),
            (Error::Corrupt { engine: "e", law: "l".into(), at: "f:1".into() }, 8),
        ];
        for (error, expected) in table {
            let text = error.to_string();
            assert_eq!(code(&anyhow::Error::new(error)), expected, "{text}");
        }
        let (attempt, source) = (String::from("a"), "s");
        let recipes = [
            (RecipeRefusal::InFlight { remaining: None }.into(), 3),
            (RecipeRefusal::Mismatch.into(), 2),
            (RecipeRefusal::NoQueue { name: "q".into() }.into(), 2),
            (RecipeRefusal::Stale { what: "try 1".into() }.into(), 7),
            (RecipeError::Invalid("no".into()), 2),
            (RecipeError::Unavailable { store: "s", attempt: attempt.clone(), source: source.into() }, 4),
            (RecipeError::Indeterminate { store: "s", attempt, source: source.into() }, 5),
            (RecipeError::Corrupt { store: "s", law: "l".into(), at: "row".into() }, 8),
            (RecipeError::Work("it failed".into()), 1),
        ];
        for (error, expected) in recipes {
            let text = error.to_string();
            assert_eq!(code(&anyhow::Error::new(error)), expected, "{text}");
        }
        assert_eq!(code(&anyhow::anyhow!("surprise")), 1);
        assert_eq!(code(&Failure::usage("typo")), 2);
    }

    /// Goal: context added above an error hides neither its code nor its causes.
    #[test]
    fn context_keeps_code_and_causes() {
        let error = anyhow::Error::new(unavailable()).context("list leases");
        assert_eq!(code(&error), 4);
        assert_eq!(
            sentence(&error),
            "list leases: open x: the embedded engine is unavailable, nothing was changed: in use"
        );
    }
}
