//! What an error of PostgreSQL means: nothing happened, it may have happened, or it never can.

use std::fmt;
use std::sync::Arc;

use leasehold_postgres::tokio_postgres::Error as SqlError;
use leasehold_postgres::tokio_postgres::error::Severity;
use leasehold_postgres::{message_and_code, with_causes};

use crate::error::Error;

/// The cause in errors of this engine. Many callers of one batch share it.
#[derive(Clone, Debug)]
pub(super) struct Cause(Arc<str>);

impl Cause {
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Cause {}

/// How a batch that failed without an effect is sent again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BatchSplit {
    /// As it is.
    Whole,
    /// In halves: it is too large, or one of its values is not taken.
    Halves,
    /// By names: one of them waited for a lock that somebody keeps.
    Singles,
}

/// Why a statement has no result.
#[derive(Clone, Debug)]
pub(super) enum SqlFailure {
    /// Nothing happened, and the same may succeed at once, perhaps with fewer callers in the batch.
    Again { split: BatchSplit, cause: Cause },
    /// Nothing happened: the server cannot be reached, or cannot serve us now.
    Away(Cause),
    /// Nothing happened, and it will not before an operator changes something.
    Refused(Cause),
    /// It may have happened: the connection was lost, or the answer did not come.
    Unknown(Cause),
    /// It can never succeed.
    Never(String),
}

impl SqlFailure {
    /// What the server, or the way to it, said about a statement that was sent.
    pub fn from_statement(error: &SqlError) -> Self {
        let Some(answer) = error.as_db_error() else {
            return Self::Unknown(Cause::new(with_causes(error)));
        };
        let cause = describe(error);
        let code = answer.code().code();
        match code {
            "40P01" | "40001" | "LH103" => Self::Again { split: BatchSplit::Whole, cause },
            "55P03" | "57014" => Self::Again { split: BatchSplit::Singles, cause },
            "53200" => {
                let cause = Cause::new(format!("{cause}: max_locks_per_transaction of PostgreSQL is too low"));
                Self::Again { split: BatchSplit::Halves, cause }
            }
            "57P01" | "57P02" => Self::Unknown(cause),
            "LH101" => Self::Refused(Cause::new("default_transaction_isolation: it must be read committed")),
            "LH102" => Self::Refused(Cause::new("synchronous_commit is off or local: set it to on for this user")),
            "25006" | "55000" | "57P03" | "53300" => Self::Away(cause),
            "42501" => Self::Never(format!("the role may not use the engine, grant it what it needs: {cause}")),
            "42P01" | "3F000" | "42883" => Self::Never(
                "the engine is not installed in this database: run `leasehold migrate`, or give the role CREATE".into(),
            ),
            "26000" | "42P05" => Self::Never(POOLER.into()),
            // A value that the server does not take must not fail those beside it.
            _ if code.starts_with("22") || code.starts_with("23") || code == "21000" => {
                Self::Again { split: BatchSplit::Halves, cause }
            }
            _ if code.starts_with("08") => Self::Unknown(cause),
            _ if answer.parsed_severity() == Some(Severity::Error) => Self::Refused(cause),
            _ => Self::Unknown(cause),
        }
    }

    /// What kept us from connecting. Nothing was asked yet.
    pub fn from_connecting(error: &SqlError) -> Self {
        match error.code().map(|code| code.code()) {
            Some("28000") if is_unlisted(error) => Self::Never(
                "pg_hba.conf of PostgreSQL does not admit this user from here, or only over TLS (sslmode=require)"
                    .into(),
            ),
            Some("28P01" | "28000") => Self::Never("PostgreSQL does not accept this user and password".into()),
            Some("3D000") => Self::Never("there is no such database".into()),
            Some("53300") => Self::Away(Cause::new("max_connections of PostgreSQL is reached")),
            // The client library says it in the cause.
            _ if with_causes(error).contains("password missing") => {
                Self::Never("PostgreSQL wants a password, and the url has none".into())
            }
            _ => Self::Away(describe(error)),
        }
    }

    /// Nothing happened: a lock was not to be had in time.
    pub fn is_kept_lock(&self) -> bool {
        matches!(self, Self::Again { split: BatchSplit::Singles, .. })
    }

    /// The connection is of no more use.
    pub fn ends_connection(&self) -> bool {
        matches!(self, Self::Unknown(_) | Self::Away(_))
    }

    pub fn cause(&self) -> Cause {
        match self {
            Self::Again { cause, .. } | Self::Away(cause) | Self::Refused(cause) | Self::Unknown(cause) => {
                cause.clone()
            }
            Self::Never(sentence) => Cause::new(sentence.as_str()),
        }
    }

    /// The error for the caller. `maybe`: an earlier try may have taken effect.
    pub fn into_error(self, maybe: bool, attempt: String) -> Error {
        match self {
            Self::Never(sentence) if !maybe => Error::Invalid(sentence),
            Self::Unknown(cause) => super::indeterminate(attempt, cause),
            other if maybe => super::indeterminate(attempt, other.cause()),
            other => super::unavailable(attempt, other.cause()),
        }
    }
}

/// Whether the rules of the server refuse the connection, whatever the password. Its text is in the language of the server.
fn is_unlisted(error: &SqlError) -> bool {
    error.as_db_error().is_some_and(|answer| answer.routine() == Some("ClientAuthentication"))
}

/// Why a pooler in transaction mode is refused where nobody said that there is one.
pub(super) const POOLER: &str = "this address is a transaction pooler: give the server's own address, or say pooler=1 \
                                 (and listen=HOST:PORT for messages)";

/// The message and the code of the server, without values.
fn describe(error: &SqlError) -> Cause {
    Cause::new(message_and_code(error))
}
