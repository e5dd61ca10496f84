//! A connection without scripts and messages of ours, for a fence: what the server is and how it is set is read on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, ProtocolVersion, PushInfo, PushKind, Value};

use super::connect::{config, find_server, is_unknown_command, make_client};
use super::decode::text;
use super::errors::{CallError, read_connect_error, unavailable};
use super::node::send_command;
use super::options::{RedisOptions, show_address};
use super::verify::ServerReport;
use crate::clock::until;
use crate::engine::{FindingKind, Promise};
use crate::error::{BoxError, Error};

/// How long a reply may take.
pub(crate) const REPLY_TIMEOUT: Duration = super::node::REPLY_TIMEOUT;
/// How long it may take until a connection can be used.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection, and what was read on it.
pub(crate) struct BareConnection {
    pub redis: MultiplexedConnection,
    /// The server closed it, or it was lost.
    pub broken: Arc<AtomicBool>,
    /// What keeps acknowledged writes from surviving a crash or a failover.
    pub weaknesses: Vec<ServerWeakness>,
    /// `maxmemory-policy`; none where it cannot be read.
    pub eviction: Option<String>,
}

/// A setting that is not as it must be.
pub(crate) struct ServerWeakness {
    pub setting: String,
    pub value: String,
    pub wanted: String,
}

/// Connects and reads. Nothing was written if it fails: the error is Unavailable or Invalid.
pub(crate) async fn open_bare_connection(options: &RedisOptions) -> Result<BareConnection, Error> {
    let attempt = || format!("connect to {}", options.at());
    let end = options.clock.now().plus(OPEN_TIMEOUT);
    match until(&*options.clock, end, connect_and_read(options)).await {
        None => Err(unavailable(attempt(), format!("no connection within {OPEN_TIMEOUT:?}").into())),
        Some(Ok(connection)) => Ok(connection),
        Some(Err(CallError::Decided(error))) => Err(error),
        Some(Err(CallError::Busy(source) | CallError::NoEffect(source) | CallError::Unknown(source))) => {
            Err(unavailable(attempt(), source))
        }
    }
}

async fn connect_and_read(options: &RedisOptions) -> Result<BareConnection, CallError> {
    let (host, port) = find_server(options).await?;
    let at = show_address(&host, port);
    let broken = Arc::new(AtomicBool::new(false));
    let flag = broken.clone();
    let config = config().set_push_sender(move |push: PushInfo| -> Result<(), ()> {
        if push.kind == PushKind::Disconnection {
            flag.store(true, Ordering::Release);
        }
        Ok(())
    });
    let client = make_client(options, host, port, ProtocolVersion::RESP3, true)?;
    let opened = client.get_multiplexed_async_connection_with_config(&config).await;
    let mut redis = opened.map_err(|error| read_connect_error(&error, &at))?;
    let info = match ask_if_allowed(options, &mut redis, &redis::cmd("INFO")).await? {
        None => None,
        Some(Value::VerbatimString { text, .. }) => Some(text),
        Some(value) => Some(text(&value).map_err(unexpected)?),
    };
    let mut ask = redis::cmd("CONFIG");
    ask.arg("GET");
    ServerReport::setting_names().for_each(|name| {
        ask.arg(name);
    });
    let settings = ask_if_allowed(options, &mut redis, &ask).await?;
    let report = ServerReport::new(info.as_deref(), settings.as_ref()).map_err(unexpected)?;
    if let Some(sentence) = report.refusal() {
        return Err(CallError::Decided(Error::Invalid(sentence)));
    }
    if report.replica {
        return Err(CallError::Busy("the server is a replica, and takes no writes".into()));
    }
    let eviction = report.setting("maxmemory-policy").or_else(|| info_field(info.as_deref()?, "maxmemory_policy"));
    Ok(BareConnection { redis, broken, weaknesses: weaknesses(&report, options), eviction })
}

fn weaknesses(report: &ServerReport, options: &RedisOptions) -> Vec<ServerWeakness> {
    let findings = report.findings(options.sentinel_master.is_some());
    let denies = |kind: &FindingKind| matches!(kind, FindingKind::Denies(all) if all.contains(&Promise::Fencing));
    findings
        .into_iter()
        .filter(|finding| denies(&finding.kind))
        .map(|finding| ServerWeakness { setting: finding.setting, value: finding.found, wanted: finding.wanted })
        .collect()
}

fn info_field(info: &str, name: &str) -> Option<String> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(|value| value.trim().to_owned())
}

/// The reply; none where the ACL denies it, or the command was renamed away.
async fn ask_if_allowed(
    options: &RedisOptions,
    redis: &mut MultiplexedConnection,
    command: &Cmd,
) -> Result<Option<Value>, CallError> {
    match send_command(&*options.clock, redis, command).await {
        None => Err(CallError::NoEffect("the server does not answer".into())),
        Some(Ok(value)) => Ok(Some(value)),
        Some(Err(error)) if error.code() == Some("NOPERM") || is_unknown_command(&error) => Ok(None),
        Some(Err(error)) => Err(read_connect_error(&error, &options.at())),
    }
}

fn unexpected(odd: super::decode::UnexpectedReply) -> CallError {
    let source: BoxError = Box::new(odd);
    CallError::NoEffect(source)
}
