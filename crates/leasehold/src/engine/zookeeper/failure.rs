//! What an error of the client means: whether anything happened, and what to do.

use zookeeper_client as zk;

use crate::error::{BoxError, Error};

pub(super) const ENGINE: &str = "zookeeper";

/// The cause in errors of a closed engine.
pub(super) const CLOSED: &str = "the engine was closed";
/// A place in a queue depends on a session.
pub(super) const PLACE_LOST: &str = "the place in the queue was lost with its session, or was deleted: come again";

/// Whether the request may have taken effect: its reply was lost, or it may still be sent.
pub(super) const fn is_lost(error: &zk::Error) -> bool {
    use zk::Error::{
        BadArguments, BadVersion, InvalidAcl, MarshallingError, NoAuth, NoChildrenForEphemerals, NoNode, NoWatcher,
        NodeExists, NotEmpty, NotReadOnly, QuotaExceeded, ReconfigDisabled, Throttled, UnexpectedErrorCode,
        Unimplemented,
    };
    !matches!(
        error,
        BadArguments(_)
            | BadVersion
            | InvalidAcl
            | MarshallingError
            | NoAuth
            | NoChildrenForEphemerals
            | NoNode
            | NoWatcher
            | NodeExists
            | NotEmpty
            | NotReadOnly
            | QuotaExceeded
            | ReconfigDisabled
            | Throttled
            | Unimplemented
            | UnexpectedErrorCode(_)
    )
}

/// The error for a request that changed nothing, or was only to read.
pub(super) fn no_effect(attempt: impl Into<String>, error: zk::Error) -> Error {
    match error {
        zk::Error::NoAuth | zk::Error::InvalidAcl | zk::Error::AuthFailed => Error::Invalid(
            "ZooKeeper's ACLs deny this user what leases need: check the login in the url, and the ACLs below the chroot"
                .into(),
        ),
        zk::Error::NoChildrenForEphemerals => Error::Invalid(
            "a node of the path in the url is ephemeral, and such nodes have no children: use another path".into(),
        ),
        zk::Error::NotReadOnly => unavailable(attempt, "the server has lost its ensemble and only reads".into()),
        zk::Error::Throttled => unavailable(attempt, "the ensemble is too busy (Throttled)".into()),
        zk::Error::QuotaExceeded => unavailable(attempt, "a quota of ZooKeeper is reached below the chroot".into()),
        error => unavailable(attempt, lost_text(&error)),
    }
}

/// The error for a request that was to change something.
pub(super) fn failed_write(attempt: impl Into<String>, error: zk::Error) -> Error {
    if is_lost(&error) { indeterminate(attempt, lost_text(&error)) } else { no_effect(attempt, error) }
}

fn lost_text(error: &zk::Error) -> BoxError {
    match error {
        zk::Error::ConnectionLoss | zk::Error::Custom(_) => "the connection to ZooKeeper was lost".into(),
        zk::Error::NoHosts | zk::Error::Timeout => "no server of the ensemble answers".into(),
        zk::Error::SessionExpired | zk::Error::SessionMoved => "the session with ZooKeeper is over".into(),
        zk::Error::ClientClosed => CLOSED.into(),
        other => format!("ZooKeeper: {other}").into(),
    }
}

pub(super) fn unavailable(attempt: impl Into<String>, source: BoxError) -> Error {
    Error::Unavailable { engine: ENGINE, attempt: attempt.into(), source }
}

pub(super) fn indeterminate(attempt: impl Into<String>, source: BoxError) -> Error {
    Error::Indeterminate { engine: ENGINE, attempt: attempt.into(), source }
}

/// The same error for another caller.
pub(super) fn copy_error(error: &Error) -> Error {
    match error {
        Error::Refused(refusal) => Error::Refused(refusal.clone()),
        Error::Unavailable { engine, attempt, source } => {
            Error::Unavailable { engine, attempt: attempt.clone(), source: source.to_string().into() }
        }
        Error::Indeterminate { engine, attempt, source } => {
            Error::Indeterminate { engine, attempt: attempt.clone(), source: source.to_string().into() }
        }
        Error::Invalid(sentence) => Error::Invalid(sentence.clone()),
        Error::Corrupt { engine, law, at } => Error::Corrupt { engine, law: law.clone(), at: at.clone() },
    }
}
