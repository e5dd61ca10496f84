//! Errors between this process and the PostgreSQL server, and what they mean for the caller.

use leasehold_postgres::with_causes;
use tokio_postgres::error::{Severity, SqlState};

use super::LEDGER_NAME;
use crate::error::Error;

/// Raised by our own function `exactly` when a statement touches another number of rows than was decided.
pub(super) const NOT_AS_DECIDED: &str = "LH201";

/// Why a request to PostgreSQL failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum PostgresError {
    /// The server reported an error, or the connection broke.
    #[error("{}", with_causes(.0))]
    Sql(tokio_postgres::Error),
    /// No connection could be opened.
    #[error("{0}")]
    NoConnection(String),
    /// No answer within the timeout.
    #[error("PostgreSQL did not answer in time")]
    TimedOut,
    /// A row that this code cannot have written.
    #[error("{law} at {at}")]
    Corrupt { law: String, at: String },
    /// Conflicts with others on every attempt.
    #[error("others were in the way {0} times")]
    TooManyRetries(usize),
}

pub(super) type PostgresResult<T> = Result<T, PostgresError>;

impl From<tokio_postgres::Error> for PostgresError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<std::convert::Infallible> for PostgresError {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

impl PostgresError {
    pub(super) fn corrupt(law: &str, at: impl Into<String>) -> Self {
        Self::Corrupt { law: law.into(), at: at.into() }
    }

    fn state(&self) -> Option<&SqlState> {
        match self {
            Self::Sql(error) => error.code(),
            _ => None,
        }
    }

    /// The server reported an error and the session goes on: the transaction is rolled back for certain.
    pub(super) fn is_server_error(&self) -> bool {
        let Self::Sql(error) = self else { return false };
        let severity = error.as_db_error().and_then(|answer| answer.parsed_severity());
        severity == Some(Severity::Error)
    }

    /// The server reported that it ends the session, in the middle of a statement.
    pub(super) fn is_session_end(&self) -> bool {
        matches!(self, Self::Sql(error) if error.as_db_error().is_some()) && !self.is_server_error()
    }

    /// A conflict with another transaction: a deadlock, a serialization failure, or a row that another transaction
    /// inserted meanwhile (an idempotency key, a message, money, an event). A retry may succeed.
    pub(super) fn is_retryable(&self) -> bool {
        let again =
            [&SqlState::T_R_SERIALIZATION_FAILURE, &SqlState::T_R_DEADLOCK_DETECTED, &SqlState::UNIQUE_VIOLATION];
        self.state().is_some_and(|state| again.contains(&state))
    }

    /// The law that stored rows break, or that the writes would have broken.
    fn law(&self) -> Option<&'static str> {
        let state = self.state()?.code();
        match state {
            NOT_AS_DECIDED => Some("what is decided is what is stored"),
            "XX001" | "XX002" => Some("the database is sound"),
            _ if state.starts_with("23") => Some("no decision goes against a constraint"),
            _ => None,
        }
    }

    /// The error for the caller if nothing took effect.
    pub(super) fn not_applied(&self, attempt: &str) -> Error {
        if let Self::Corrupt { law, at } = self {
            return Error::Corrupt { part: LEDGER_NAME, law: law.clone(), at: at.clone() };
        }
        if let Some(law) = self.law() {
            return Error::Corrupt { part: LEDGER_NAME, law: law.into(), at: format!("{attempt}: {self}") };
        }
        unavailable(attempt, self.to_string())
    }

    /// The error for the caller if it may have taken effect.
    pub(super) fn indeterminate(&self, attempt: &str) -> Error {
        Error::Indeterminate { part: LEDGER_NAME, attempt: attempt.into(), source: self.to_string().into() }
    }
}

pub(super) fn unavailable(attempt: &str, why: String) -> Error {
    Error::Unavailable { part: LEDGER_NAME, attempt: attempt.into(), source: why.into() }
}
