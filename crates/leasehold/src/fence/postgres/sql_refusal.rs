//! What an error of PostgreSQL means for a fenced write: refused, to be run again, without effect, or unknown.

use leasehold_postgres::message_and_code;
use leasehold_postgres::tokio_postgres::Error as SqlError;
use leasehold_postgres::tokio_postgres::error::{DbError, Severity};

use crate::Token;
use crate::error::BoxError;
use crate::fence::counters::FenceKind;
use crate::fence::refusal::{FenceError, FenceRefusal};

/// The refusal of a fence in an error of PostgreSQL; none: it is another error. For writers with a client of their own.
#[must_use]
pub fn refusal_from_sql(error: &SqlError) -> Option<FenceRefusal> {
    error.as_db_error().and_then(refusal_from_answer)
}

fn refusal_from_answer(answer: &DbError) -> Option<FenceRefusal> {
    let detail = answer.detail().unwrap_or_default();
    let resource = || resource_of(detail).unwrap_or_else(|| "a fenced resource".to_owned());
    let token = |name: &str| number_of(detail, name).and_then(Token::new);
    Some(match answer.code().code() {
        "LH001" => {
            FenceRefusal::Stale { resource: resource(), presented: token("presented")?, highest: token("highest")? }
        }
        "LH002" => FenceRefusal::NoToken { resource: resource() },
        "LH003" => FenceRefusal::OtherLease { resource: resource(), presented: token("presented")? },
        "LH004" => FenceRefusal::Malformed,
        "LH005" => FenceRefusal::Truncate { table: resource() },
        "LH006" => FenceRefusal::NotCovered { resource: resource() },
        _ => return None,
    })
}

/// A number of the detail that `leasehold_fence.refuse` writes: `{"resource" : "…", "presented" : "41", "highest" : "42"}`.
/// Looked for from the end: the resource comes first and may hold anything.
fn number_of(detail: &str, name: &str) -> Option<u64> {
    let after = &detail[detail.rfind(&format!("\"{name}\" : \""))?..];
    let value = after.split('"').nth(3)?;
    value.parse().ok()
}

fn resource_of(detail: &str) -> Option<String> {
    let from = detail.strip_prefix("{\"resource\" : \"")?;
    let quoted = &from[..from.rfind("\", \"presented\" : ")?];
    let mut text = String::new();
    let mut letters = quoted.chars();
    while let Some(letter) = letters.next() {
        if letter != '\\' {
            text.push(letter);
            continue;
        }
        match letters.next()? {
            'u' => {
                let code: String = letters.by_ref().take(4).collect();
                text.push(u32::from_str_radix(&code, 16).ok().and_then(char::from_u32)?);
            }
            'n' => text.push('\n'),
            't' => text.push('\t'),
            'r' => text.push('\r'),
            'b' => text.push('\u{8}'),
            'f' => text.push('\u{c}'),
            other => text.push(other),
        }
    }
    Some(text)
}

/// What became of a transaction, as far as its COMMIT was not sent.
pub(super) enum WorkFailure {
    /// Run the same transaction again: it lost against another one.
    Again(SqlCause),
    /// There is nothing to run again.
    Final(FenceError),
}

/// The message and the code of the server, without details: they may repeat values.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct SqlCause(String);

impl SqlCause {
    pub fn new(error: &SqlError) -> Self {
        Self(message_and_code(error))
    }
}

/// Reads the error of the work inside a transaction. The error of the database may stand below errors of the caller.
pub(super) fn failure_of_work(error: BoxError, attempt: &str) -> WorkFailure {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&*error);
    while let Some(at) = cause {
        if let Some(FenceError::Refused(refusal)) = at.downcast_ref::<FenceError>() {
            return WorkFailure::Final(FenceError::Refused(refusal.clone()));
        }
        if let Some(sql) = at.downcast_ref::<SqlError>() {
            if let Some(refusal) = refusal_from_sql(sql) {
                return WorkFailure::Final(FenceError::Refused(refusal));
            }
            let code = sql.code().map(|code| code.code().to_owned());
            return match code.as_deref() {
                Some("40001" | "40P01") => WorkFailure::Again(SqlCause::new(sql)),
                Some("22P02") if is_malformed_fence(sql) => WorkFailure::Final(FenceError::Corrupt {
                    kind: FenceKind::Postgres,
                    at: "a row's leasehold_fence".into(),
                }),
                // A lock that was not to be had, a cancelled statement, a server that goes away: nothing was committed.
                Some("55P03" | "57014" | "57P01" | "57P02" | "57P03" | "25P03") => {
                    WorkFailure::Final(unavailable(sql, attempt))
                }
                None if sql.is_closed() || sql.as_db_error().is_none() && is_io(sql) => {
                    WorkFailure::Final(unavailable(sql, attempt))
                }
                _ => WorkFailure::Final(FenceError::Work(error)),
            };
        }
        cause = at.source();
    }
    WorkFailure::Final(FenceError::Work(error))
}

/// A function of the fence could not read what a row remembers.
fn is_malformed_fence(error: &SqlError) -> bool {
    let place = error.as_db_error().and_then(DbError::where_).unwrap_or_default();
    place.contains("function leasehold_fence.")
}

fn is_io(error: &SqlError) -> bool {
    std::error::Error::source(error).is_some_and(<dyn std::error::Error>::is::<std::io::Error>)
}

/// An error of a statement of ours before COMMIT was sent.
pub(super) fn failure_before_commit(error: SqlError, attempt: &str) -> FenceError {
    if let Some(refusal) = refusal_from_sql(&error) {
        return FenceError::Refused(refusal);
    }
    match error.as_db_error().map(|answer| answer.code().code().to_owned()).as_deref() {
        Some("40001" | "40P01" | "55P03" | "57014" | "57P01" | "57P02" | "57P03" | "53300") | None => {
            unavailable(&error, attempt)
        }
        Some(_) => FenceError::Invalid(format!("{attempt}: {}", SqlCause::new(&error))),
    }
}

/// An error of COMMIT itself. Only an ERROR of the server says that it did not happen.
pub(super) fn failure_of_commit(error: &SqlError, attempt: &str) -> WorkFailure {
    let Some(answer) = error.as_db_error().filter(|answer| answer.parsed_severity() == Some(Severity::Error)) else {
        return WorkFailure::Final(FenceError::Indeterminate {
            kind: FenceKind::Postgres,
            attempt: attempt.to_owned(),
            source: Box::new(SqlCause::new(error)),
        });
    };
    match (refusal_from_answer(answer), answer.code().code()) {
        (Some(refusal), _) => WorkFailure::Final(FenceError::Refused(refusal)),
        (None, "40001" | "40P01") => WorkFailure::Again(SqlCause::new(error)),
        (None, _) => WorkFailure::Final(FenceError::Work(Box::new(SqlCause::new(error)))),
    }
}

/// Nothing was written, because the database could not be asked or could not serve us now.
pub(super) fn unavailable(error: &SqlError, attempt: &str) -> FenceError {
    gave_up(SqlCause::new(error), attempt)
}

/// Nothing was written, for this reason.
pub(super) fn gave_up(cause: SqlCause, attempt: &str) -> FenceError {
    FenceError::Unavailable { kind: FenceKind::Postgres, attempt: attempt.to_owned(), source: Box::new(cause) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_detail_is_read_whatever_the_resource_is_called() {
        let detail = r#"{"resource" : "a \"presented\" : \"7\", \\ b", "presented" : "41", "highest" : "42"}"#;
        assert_eq!(resource_of(detail).as_deref(), Some(r#"a "presented" : "7", \ b"#));
        assert_eq!((number_of(detail, "presented"), number_of(detail, "highest")), (Some(41), Some(42)));
        let none = r#"{"resource" : "seat/14", "presented" : null, "highest" : null}"#;
        assert_eq!(resource_of(none).as_deref(), Some("seat/14"));
        assert_eq!((number_of(none, "presented"), resource_of("")), (None, None));
    }
}
