//! Why a fenced write did not happen. One variant per thing the writer should do next.

use std::fmt;

use leasehold_core::Token;

use super::counters::FenceKind;
use crate::error::BoxError;

/// The fence decided, and the answer is no: nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FenceRefusal {
    /// A later holder has written. Do: stop, the lease is gone.
    #[error("token {presented} is stale: {resource} has seen token {highest}")]
    Stale {
        /// What was to be written.
        resource: String,
        /// The token that was shown.
        presented: Token,
        /// The highest one the fence has seen.
        highest: Token,
    },
    /// The token belongs to another lease: two engines give out the same tokens, or one was restored without
    /// `leasehold fence floor`. Do: stop, and call an operator.
    #[error("token {presented} of {resource} belongs to another lease")]
    OtherLease {
        /// What was to be written.
        resource: String,
        /// The token that was shown, which is also the highest that the fence has seen.
        presented: Token,
    },
    /// Nothing was shown. Do: take a lease, and show its token.
    #[error("{resource} is fenced and no token was shown")]
    NoToken {
        /// What was to be written.
        resource: String,
    },
    /// What was shown is no token. Do: fix the caller.
    #[error("the fencing token is malformed: write <token>:<mark>, a decimal number and 16 hex digits")]
    Malformed,
    /// What was shown speaks for other resources only. Do: take a lease on this one.
    #[error("no lease shown covers {resource}")]
    NotCovered {
        /// What was to be written.
        resource: String,
    },
    /// A fenced table is not truncated. Do: delete its rows under a token.
    #[error("TRUNCATE of a fenced table is refused ({table})")]
    Truncate {
        /// The table.
        table: String,
    },
}

impl FenceRefusal {
    /// The code of this refusal, as PostgreSQL says it (`SQLSTATE`) and SQLite in its message.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Stale { .. } => "LH001",
            Self::NoToken { .. } => "LH002",
            Self::OtherLease { .. } => "LH003",
            Self::Malformed => "LH004",
            Self::Truncate { .. } => "LH005",
            Self::NotCovered { .. } => "LH006",
        }
    }
}

/// Why a fenced write did not happen, or may not have.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// The fence decided, and the answer is no. Do: stop writing under this lease.
    #[error("{0}")]
    Refused(FenceRefusal),
    /// Nothing was written. Do: the same again, with the same lease.
    #[error("{attempt}: the resource ({kind}) is unavailable, nothing was written")]
    Unavailable {
        /// Where the resource is.
        kind: FenceKind,
        /// What was tried.
        attempt: String,
        /// The cause.
        source: BoxError,
    },
    /// It may have been written. Do: look, or write the same again if that does no harm.
    #[error("{attempt}: the outcome is unknown, it may have been written ({kind})")]
    Indeterminate {
        /// Where the resource is.
        kind: FenceKind,
        /// What was tried.
        attempt: String,
        /// The cause.
        source: BoxError,
    },
    /// It can never succeed as written. Do: fix the caller.
    #[error("{0}")]
    Invalid(String),
    /// What the fence remembers is no token: somebody else has written it. Do: stop, and call an operator. Whether a late
    /// holder is left, no program can know.
    #[error("{at} holds no fence ({kind}): somebody else has written it; nothing was written")]
    Corrupt {
        /// Where the resource is.
        kind: FenceKind,
        /// The key, the file or the object.
        at: String,
    },
    /// The work inside the write failed, and nothing was written. Do: what its error says.
    #[error("the work failed, nothing was written")]
    Work(#[source] BoxError),
}

impl From<FenceRefusal> for FenceError {
    fn from(refusal: FenceRefusal) -> Self {
        Self::Refused(refusal)
    }
}

/// SQL text that ended the transaction it ran in, and perhaps the error that came after.
#[derive(Debug)]
pub(crate) struct SelfEnded(pub Option<BoxError>);

impl fmt::Display for SelfEnded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the SQL ended its transaction itself: what stands before that may be done")?;
        match &self.0 {
            Some(error) => write!(f, "; then: {error}"),
            None => Ok(()),
        }
    }
}

// The error that came after is no source: who looks for its code would take it for that of a transaction without effect.
impl std::error::Error for SelfEnded {}

impl SelfEnded {
    /// Work that failed in this way is work of which a part was done.
    pub(crate) fn reveal(error: FenceError, kind: FenceKind) -> FenceError {
        match error {
            FenceError::Work(source) if source.is::<Self>() => {
                FenceError::Indeterminate { kind, attempt: "run the SQL".into(), source }
            }
            other => other,
        }
    }
}
