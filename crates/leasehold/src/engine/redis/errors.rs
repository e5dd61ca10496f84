//! What an error of the server or of a connection means: whether anything happened, and what to do.

use redis::{ErrorKind, RedisError};

use super::scripts::Script;
#[cfg(feature = "tls")]
use crate::engine::remote::TlsFailure;
use crate::error::{BoxError, Error};

#[cfg(feature = "tls")]
type SharedCause = std::sync::Arc<dyn std::error::Error + Send + Sync>;

pub(super) const ENGINE: &str = "redis";

/// The cause in errors of a closed engine.
pub(super) const CLOSED: &str = "the engine was closed";

/// Why a call has no reply that a script gave.
#[derive(Debug)]
pub(in crate::engine) enum CallError {
    /// The answer is final.
    Decided(Error),
    /// Nothing happened, and it may work in a moment.
    Busy(BoxError),
    /// Nothing happened.
    NoEffect(BoxError),
    /// It may have happened.
    Unknown(BoxError),
}

/// Whether the connection can be used on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum ConnectionState {
    Good,
    Broken,
}

/// What the server's error to a script means. Every refusal but the last two comes before the script runs.
pub(in crate::engine) fn read_error(error: &RedisError, script: Script) -> (CallError, ConnectionState) {
    use ConnectionState::{Broken, Good};
    let detail = error.detail().unwrap_or_default();
    let sentence = |text: &str| -> BoxError { format!("{text} ({detail})").into() };
    let Some(code) = error.code() else {
        return match error.kind() {
            ErrorKind::AuthenticationFailed => (CallError::Decided(login_refused()), Broken),
            // Lost after it was handed to the socket.
            _ => (CallError::Unknown(lost_connection(error)), Broken),
        };
    };
    match code {
        "READONLY" | "MASTERDOWN" => (CallError::Busy("the server is a replica, and does not decide".into()), Broken),
        "LOADING" => (CallError::Busy("the server is loading its data".into()), Good),
        "BUSY" => (CallError::Busy("the server runs somebody's slow script".into()), Good),
        "TRYAGAIN" | "CLUSTERDOWN" => (CallError::Busy(sentence("the cluster is not ready")), Good),
        "NOSCRIPT" => (CallError::Busy("the server forgot our scripts".into()), Broken),
        "OOM" => (CallError::NoEffect("maxmemory is reached: the server takes no new leases".into()), Good),
        "MISCONF" | "NOREPLICAS" => (CallError::NoEffect(sentence("the server takes no writes")), Good),
        "MOVED" | "ASK" | "CROSSSLOT" => (CallError::Decided(Error::Invalid("this Redis is a cluster".into())), Good),
        "NOAUTH" | "WRONGPASS" => (CallError::Decided(login_refused()), Broken),
        "NOPERM" => (CallError::Decided(permission_denied(detail)), Good),
        "CORRUPT" => {
            let at = detail.split(' ').next().unwrap_or_default().to_owned();
            (CallError::Decided(Error::Corrupt { engine: ENGINE, law: "a record parses".into(), at }), Good)
        }
        "WRONGTYPE" => {
            let law = "a side key has the type we gave it".into();
            (CallError::Decided(Error::Corrupt { engine: ENGINE, law, at: script.name().into() }), Good)
        }
        _ if detail.contains("user_script") && is_denied(detail) && script == Script::Open => {
            (CallError::Decided(permission_denied(detail)), Good)
        }
        // The script ended half-way: what it did before stays.
        _ if detail.contains("user_script") => {
            let source = format!("the script {} failed: {detail}", script.name()).into();
            let attempt = format!("run the script {}", script.name());
            (CallError::Decided(Error::Indeterminate { engine: ENGINE, attempt, source }), Good)
        }
        _ => (CallError::NoEffect(sentence("the server refused")), Good),
    }
}

/// What an error while connecting means: nothing can have happened.
pub(super) fn read_connect_error(error: &RedisError, at: &str) -> CallError {
    let detail = error.detail().unwrap_or_default();
    match (error.kind(), error.code()) {
        (ErrorKind::AuthenticationFailed, _) | (_, Some("NOAUTH" | "WRONGPASS")) => CallError::Decided(login_refused()),
        (_, Some("NOPERM")) => CallError::Decided(permission_denied(detail)),
        (ErrorKind::RESP3NotSupported, _) => CallError::Decided(Error::Invalid(
            "this server does not speak RESP3: leases need Redis 7.0 or later".into(),
        )),
        (ErrorKind::InvalidClientConfig, _) => CallError::Decided(Error::Invalid(
            "this build speaks no TLS: build leasehold with the feature `tls`".into(),
        )),
        (_, Some("LOADING")) => CallError::Busy(format!("{at} is loading its data").into()),
        (_, Some(code)) => CallError::Busy(format!("{at} is not ready ({code} {detail})").into()),
        _ => CallError::NoEffect(format!("{at} does not answer: {}", plain_cause(error)).into()),
    }
}

/// The same, before anything was said: with TLS the two sides may not have agreed on it.
pub(super) fn read_handshake_error(error: &RedisError, at: &str, tls: bool) -> CallError {
    #[cfg(feature = "tls")]
    if tls && let Some(failure) = tls_failure(error) {
        let cause = plain_cause(error);
        return CallError::NoEffect(match failure {
            TlsFailure::Certificate => format!("the certificate of {at} is not trusted: {cause}").into(),
            TlsFailure::NoTls => format!("{at} does not speak TLS: use redis:// in the url").into(),
            TlsFailure::Other => format!("the TLS handshake with {at} failed: {cause}").into(),
        });
    }
    // A server without TLS may wait for the end of what it takes for a command.
    if tls && error.is_timeout() {
        return CallError::NoEffect(format!("{at} does not answer over TLS: perhaps it speaks none").into());
    }
    read_connect_error(error, at)
}

#[cfg(feature = "tls")]
fn tls_failure(error: &RedisError) -> Option<TlsFailure> {
    // redis-rs shows its cause in an Arc.
    let shared = std::error::Error::source(error)?.downcast_ref::<SharedCause>()?;
    TlsFailure::from_io(shared.downcast_ref::<std::io::Error>()?)
}

pub(super) fn unavailable(attempt: String, source: BoxError) -> Error {
    Error::Unavailable { engine: ENGINE, attempt, source }
}

pub(super) fn indeterminate(attempt: String, source: BoxError) -> Error {
    Error::Indeterminate { engine: ENGINE, attempt, source }
}

fn lost_connection(error: &RedisError) -> BoxError {
    format!("the connection was lost: {}", plain_cause(error)).into()
}

/// The words of the system or the library. They hold no part of a URL but the host.
fn plain_cause(error: &RedisError) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

fn is_denied(detail: &str) -> bool {
    ["can't run this command", "can't access", "can't publish", "No permissions"]
        .iter()
        .any(|text| detail.contains(text))
}

fn login_refused() -> Error {
    Error::Invalid("the server refuses this user or password".into())
}

fn permission_denied(detail: &str) -> Error {
    Error::Invalid(format!("the server's ACL denies this user what leases need: {detail}"))
}
