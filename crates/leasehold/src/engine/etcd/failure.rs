//! What it means that a call of etcd failed: whether it may have taken effect, and what the caller should do.

use tonic::{Code, ConnectError, Status};

use super::ENGINE;
use crate::error::{BoxError, Error};

/// The cause in errors of a closed engine.
pub(super) const CLOSED: &str = "the engine was closed";
const NO_SPACE: &str = "etcd is out of space: compact it, defragment it, and disarm the alarm";

/// Why there is no reply that decides. Texts hold no secret and nothing of the URL but hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EtcdFailure {
    /// It took no effect: it was not sent, or a member turned it away.
    NoEffect(String),
    /// It may have taken effect, or may still.
    Unknown(String),
    /// It names an etcd lease that is gone. It took no effect.
    LeaseGone,
    /// etcd takes no more puts. It took no effect.
    NoSpace,
    /// The revision that was asked for is compacted.
    Compacted,
    /// It can never succeed as it is.
    Never(String),
    /// What is stored breaks a law.
    Corrupt { law: &'static str, at: String },
}

/// What a member said, before it is known whether another one may be asked.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum StatusVerdict {
    /// The token of the login is old. It took no effect.
    Login,
    /// This member has no leader. It took no effect.
    NoLeader,
    /// As it is.
    Is(EtcdFailure),
}

/// Reads the status of a failed call.
pub(super) fn read_status(status: &Status, member: &str) -> StatusVerdict {
    let text = status.message();
    let said = || format!("{member}: {text}");
    if has_connect_error(status) {
        return StatusVerdict::Is(EtcdFailure::NoEffect(format!("{member} cannot be reached")));
    }
    match status.code() {
        Code::Unauthenticated => StatusVerdict::Login,
        Code::InvalidArgument if text.contains("auth store is old") => StatusVerdict::Login,
        Code::InvalidArgument if text.contains("authentication failed") => {
            never("etcd refuses the user or the password of the url")
        }
        Code::InvalidArgument if text.contains("user name is empty") => {
            never("this etcd wants a login: etcd://USER:PASSWORD@HOST")
        }
        Code::PermissionDenied => {
            never("etcd denies permission: the role of the user needs readwrite on every key under the prefix")
        }
        Code::FailedPrecondition if text.contains("authentication is not enabled") => {
            never("this etcd has no users: take USER:PASSWORD out of the url")
        }
        Code::InvalidArgument | Code::Unimplemented => never(&format!("etcd refuses the request: {text}")),
        Code::NotFound if text.contains("lease not found") => StatusVerdict::Is(EtcdFailure::LeaseGone),
        Code::ResourceExhausted if text.contains("space exceeded") => StatusVerdict::Is(EtcdFailure::NoSpace),
        Code::ResourceExhausted => StatusVerdict::Is(EtcdFailure::NoEffect(said())),
        Code::OutOfRange => StatusVerdict::Is(EtcdFailure::Compacted),
        Code::Unavailable if text.contains("etcdserver: no leader") => StatusVerdict::NoLeader,
        _ => StatusVerdict::Is(EtcdFailure::Unknown(said())),
    }
}

fn never(sentence: &str) -> StatusVerdict {
    StatusVerdict::Is(EtcdFailure::Never(sentence.into()))
}

fn has_connect_error(status: &Status) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(status);
    while let Some(error) = cause {
        if error.is::<ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

impl EtcdFailure {
    /// The error of a call. `maybe`: an earlier try of the same call may have taken effect.
    pub fn into_error(self, maybe: bool, attempt: String) -> Error {
        let source: BoxError = match self {
            Self::Never(sentence) if !maybe => return Error::Invalid(sentence),
            Self::Corrupt { law, at } => return Error::Corrupt { engine: ENGINE, law: law.into(), at },
            Self::Unknown(cause) => return Error::Indeterminate { engine: ENGINE, attempt, source: cause.into() },
            Self::NoEffect(cause) | Self::Never(cause) => cause.into(),
            Self::LeaseGone => "an etcd lease of this engine is gone".into(),
            Self::NoSpace => NO_SPACE.into(),
            Self::Compacted => "the history of etcd was compacted".into(),
        };
        match maybe {
            true => Error::Indeterminate { engine: ENGINE, attempt, source },
            false => Error::Unavailable { engine: ENGINE, attempt, source },
        }
    }

    /// The error of a call that changes nothing.
    pub fn into_read_error(self, attempt: String) -> Error {
        match self {
            Self::Unknown(cause) => Self::NoEffect(cause).into_error(false, attempt),
            other => other.into_error(false, attempt),
        }
    }
}

pub(super) fn unavailable(attempt: impl Into<String>, source: impl Into<BoxError>) -> Error {
    Error::Unavailable { engine: ENGINE, attempt: attempt.into(), source: source.into() }
}

pub(super) fn indeterminate(attempt: impl Into<String>, source: impl Into<BoxError>) -> Error {
    Error::Indeterminate { engine: ENGINE, attempt: attempt.into(), source: source.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: "no" is never confused with "could not ask", and what may have happened is never called without effect.
    #[test]
    fn each_status_has_its_verdict() {
        let read = |code, text: &str| read_status(&Status::new(code, text), "h1:2379");
        let is_never = |verdict| matches!(verdict, StatusVerdict::Is(EtcdFailure::Never(_)));
        let is_unknown = |verdict| matches!(verdict, StatusVerdict::Is(EtcdFailure::Unknown(_)));
        assert_eq!(read(Code::Unavailable, "etcdserver: no leader"), StatusVerdict::NoLeader);
        assert!(is_unknown(read(Code::Unavailable, "etcdserver: leader changed")));
        assert!(is_unknown(read(Code::Unavailable, "etcdserver: request timed out")));
        assert!(is_unknown(read(Code::Unknown, "transport error")));
        assert!(is_unknown(read(Code::Cancelled, "")));
        assert_eq!(read(Code::Unauthenticated, "etcdserver: invalid auth token"), StatusVerdict::Login);
        assert_eq!(read(Code::InvalidArgument, "etcdserver: revision of auth store is old"), StatusVerdict::Login);
        assert!(is_never(read(Code::PermissionDenied, "etcdserver: permission denied")));
        assert!(is_never(read(Code::InvalidArgument, "etcdserver: too many operations in txn request")));
        let gone = read(Code::NotFound, "etcdserver: requested lease not found");
        assert_eq!(gone, StatusVerdict::Is(EtcdFailure::LeaseGone));
        let full = read(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");
        assert_eq!(full, StatusVerdict::Is(EtcdFailure::NoSpace));
        let busy = read(Code::ResourceExhausted, "etcdserver: too many requests");
        assert!(matches!(busy, StatusVerdict::Is(EtcdFailure::NoEffect(_))));
    }

    #[test]
    fn an_earlier_try_that_may_have_happened_stays_unknown() {
        let no_effect = EtcdFailure::NoEffect("h1 cannot be reached".into());
        assert!(matches!(no_effect.clone().into_error(false, "acquire".into()), Error::Unavailable { .. }));
        assert!(matches!(no_effect.into_error(true, "acquire".into()), Error::Indeterminate { .. }));
        let never = EtcdFailure::Never("no".into());
        assert!(matches!(never.clone().into_error(false, "acquire".into()), Error::Invalid(_)));
        assert!(matches!(never.into_error(true, "acquire".into()), Error::Indeterminate { .. }));
        let unknown = EtcdFailure::Unknown("lost".into());
        assert!(matches!(unknown.into_read_error("inspect".into()), Error::Unavailable { .. }));
    }
}
