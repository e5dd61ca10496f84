//! Opens a connection: finds the server, reads what it is, loads the scripts, and compares the history of its data.

#[cfg(feature = "tls")]
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ProtocolVersion, PushInfo, PushKind,
    RedisConnectionInfo, Value,
};

use super::decode::{UnexpectedReply, array, number_text, text};
use super::errors::{CallError, read_connect_error, read_error, read_handshake_error};
use super::node::{NodeConnection, PUSH_SLOT, REPLY_TIMEOUT, RedisNode, send_command};
use super::options::{RedisOptions, show_address};
use super::scripts::{PREFIX, Script};
use super::verify::ServerReport;
use crate::clock::until;
use crate::error::Error;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long it may take until a connection can be used, and how much more for each sentinel that may be asked.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
const SENTINEL_TIMEOUT: Duration = Duration::from_secs(3);
/// Requests that may be under way on one connection before callers wait.
const PIPELINE_REQUESTS: usize = 1024;
/// A connection whose other end is gone is noticed after this long without an acknowledgement.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(10);

const NO_TLS: &str = "this build speaks no TLS to Redis: build leasehold with the features `redis` and `tls`";
/// What a certificate begins with in a PEM file.
#[cfg(feature = "tls")]
const CERTIFICATE: &[u8] = b"-----BEGIN CERTIFICATE-----";

/// Where messages of the server go.
#[derive(Clone)]
pub(in crate::engine) struct PushSink(Arc<dyn Fn(NodePush) + Send + Sync>);

/// What comes over a connection without being asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::engine) enum NodePush {
    /// A message to this process.
    Message(String),
    /// The connection for messages is gone: some may have been missed.
    Disconnected,
}

impl PushSink {
    pub fn new(sink: impl Fn(NodePush) + Send + Sync + 'static) -> Self {
        Self(Arc::new(sink))
    }

    pub fn disconnected(&self) {
        (self.0)(NodePush::Disconnected);
    }

    fn receive(&self, push: &PushInfo) {
        if push.kind == PushKind::Message
            && let Some(message) = push.data.get(1).and_then(|value| text(value).ok())
        {
            (self.0)(NodePush::Message(message));
        }
    }
}

/// See the module.
///
/// One limit for all of it, although most steps have their own: callers wait for it, and hold the slot meanwhile.
pub(super) async fn open_connection(node: &Arc<RedisNode>, slot: usize) -> Result<NodeConnection, CallError> {
    let sentinels = if node.options.sentinel_master.is_some() { node.options.hosts.len() } else { 0 };
    let limit = OPEN_TIMEOUT + SENTINEL_TIMEOUT * u32::try_from(sentinels).unwrap_or(u32::MAX);
    let opened = until(&*node.clock, node.clock.now().plus(limit), prepare_connection(node, slot)).await;
    opened.unwrap_or_else(|| Err(CallError::NoEffect(format!("no connection within {limit:?}").into())))
}

async fn prepare_connection(node: &Arc<RedisNode>, slot: usize) -> Result<NodeConnection, CallError> {
    let (host, port) = find_server(&node.options).await?;
    let at = show_address(&host, port);
    let broken = Arc::new(AtomicBool::new(false));
    let (flag, pushes) = (broken.clone(), node.pushes.clone());
    let config = config().set_push_sender(move |push: PushInfo| -> Result<(), ()> {
        if push.kind == PushKind::Disconnection {
            flag.store(true, Ordering::Release);
            if slot == PUSH_SLOT {
                pushes.disconnected();
            }
        } else {
            pushes.receive(&push);
        }
        Ok(())
    });
    let client = make_client(&node.options, host, port, ProtocolVersion::RESP3, true)?;
    let opened = client.get_multiplexed_async_connection_with_config(&config).await;
    let mut redis = opened.map_err(|error| read_handshake_error(&error, &at, node.options.tls))?;
    let report = read_server(node, &mut redis).await?;
    let shas = load_scripts(node, &mut redis, &at).await?;
    compare_history(node, &mut redis, &shas, &report.history).await?;
    if slot == PUSH_SLOT {
        let channel = format!("{PREFIX}c:{}", node.instance);
        redis.subscribe(channel).await.map_err(|error| read_connect_error(&error, &at))?;
    }
    Ok(NodeConnection { redis, shas, broken })
}

/// A connection for one caller, on which a command may block: without scripts and messages.
pub(super) async fn open_blocking_connection(node: &Arc<RedisNode>) -> Result<MultiplexedConnection, CallError> {
    let (host, port) = find_server(&node.options).await?;
    let at = show_address(&host, port);
    let client = make_client(&node.options, host, port, ProtocolVersion::RESP3, true)?;
    let opened = client.get_multiplexed_async_connection_with_config(&config()).await;
    opened.map_err(|error| read_handshake_error(&error, &at, node.options.tls))
}

pub(super) fn config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(None)
        .set_pipeline_buffer_size(PIPELINE_REQUESTS)
}

pub(super) fn make_client(
    options: &RedisOptions,
    host: String,
    port: u16,
    protocol: ProtocolVersion,
    login: bool,
) -> Result<Client, CallError> {
    let address = if options.tls {
        ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
    } else {
        ConnectionAddr::Tcp(host, port)
    };
    let mut settings = RedisConnectionInfo::default().set_protocol(protocol).set_db(i64::from(options.database));
    if let Some(user) = options.user.as_ref().filter(|_| login) {
        settings = settings.set_username(user);
    }
    if let Some(password) = options.password.as_ref().filter(|_| login) {
        settings = settings.set_password(password);
    }
    let bad = || CallError::Decided(Error::Invalid("this build cannot connect to such an address".into()));
    let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true).set_user_timeout(TCP_USER_TIMEOUT);
    let info = redis::IntoConnectionInfo::into_connection_info(address).map_err(|_| bad())?;
    let info: ConnectionInfo = info.set_redis_settings(settings).set_tcp_settings(tcp);
    if !info.addr().is_supported() {
        return Err(CallError::Decided(Error::Invalid(NO_TLS.into())));
    }
    match &options.ca {
        None => Client::open(info).map_err(|_| bad()),
        Some(file) => trusting_client(info, file).map_err(CallError::Decided),
    }
}

/// A client that trusts who is in this file, and nobody else.
#[cfg(feature = "tls")]
fn trusting_client(info: ConnectionInfo, file: &Path) -> Result<Client, Error> {
    let unfit = |why: &dyn fmt::Display| Error::Invalid(format!("{} cannot be used for TLS: {why}", file.display()));
    let text = std::fs::read(file).map_err(|error| unfit(&error))?;
    // Without one, nobody would be trusted, and the sentence would be about the server.
    if !text.windows(CERTIFICATE.len()).any(|part| part == CERTIFICATE) {
        return Err(unfit(&"there is no certificate in it"));
    }
    let certificates = redis::TlsCertificates { client_tls: None, root_cert: Some(text) };
    Client::build_with_tls(info, certificates).map_err(|_| unfit(&"it holds something else than certificates"))
}

#[cfg(not(feature = "tls"))]
fn trusting_client(_: ConnectionInfo, _: &Path) -> Result<Client, Error> {
    Err(Error::Invalid(NO_TLS.into()))
}

/// The address of the server that decides: as configured, or as the first sentinel that answers says.
pub(super) async fn find_server(options: &RedisOptions) -> Result<(String, u16), CallError> {
    let Some(master) = &options.sentinel_master else {
        return Ok(options.hosts[0].clone());
    };
    let mut last = String::from("there is no sentinel");
    for (host, port) in &options.hosts {
        let at = show_address(host, *port);
        // Sentinels have logins of their own, and databases they have none.
        let plain = RedisOptions { database: 0, ..options.clone() };
        let client = make_client(&plain, host.clone(), *port, ProtocolVersion::RESP2, false)?;
        let mut redis = match client.get_multiplexed_async_connection_with_config(&config()).await {
            Ok(redis) => redis,
            Err(_) => {
                last = format!("the sentinel at {at} does not answer");
                continue;
            }
        };
        let mut ask = redis::cmd("SENTINEL");
        ask.arg("get-master-addr-by-name").arg(master);
        match send_command(&*options.clock, &mut redis, &ask).await {
            Some(Ok(Value::Array(parts))) if parts.len() == 2 => {
                if let (Ok(host), Ok(port)) = (text(&parts[0]), number_text(&parts[1]))
                    && let Ok(port) = u16::try_from(port)
                {
                    return Ok((host, port));
                }
                last = format!("the sentinel at {at} gave no address");
            }
            Some(Ok(_)) => last = format!("the sentinel at {at} knows no such master"),
            _ => last = format!("the sentinel at {at} does not answer"),
        }
    }
    Err(CallError::Busy(last.into()))
}

/// Reads what the server is and how it is set, notes it, and refuses one that cannot be used.
pub(in crate::engine) async fn read_server(
    node: &RedisNode,
    redis: &mut MultiplexedConnection,
) -> Result<ServerReport, CallError> {
    let info = ask_if_allowed(node, redis, &redis::cmd("INFO")).await?;
    let mut config = redis::cmd("CONFIG");
    config.arg("GET");
    ServerReport::setting_names().for_each(|name| {
        config.arg(name);
    });
    let settings = ask_if_allowed(node, redis, &config).await?;
    let info = match info {
        None => None,
        Some(Value::VerbatimString { text, .. }) => Some(text),
        Some(value) => Some(text(&value).map_err(|odd| CallError::NoEffect(Box::new(odd)))?),
    };
    let report = ServerReport::new(info.as_deref(), settings.as_ref());
    let report = report.map_err(|odd| CallError::NoEffect(Box::new(odd)))?;
    if let Some(sentence) = report.refusal() {
        return Err(CallError::Decided(Error::Invalid(sentence)));
    }
    if report.replica {
        return Err(CallError::Busy("the server is a replica, and does not decide".into()));
    }
    if let Some(Value::Array(parts)) = ask_if_allowed(node, redis, &redis::cmd("TIME")).await?
        && let [seconds, micros] = &parts[..]
        && let (Ok(seconds), Ok(micros)) = (number_text(seconds), number_text(micros))
    {
        node.note_clock(seconds.saturating_mul(1_000_000).saturating_add(micros));
    }
    node.note_report(report.clone());
    Ok(report)
}

/// The reply; none where the ACL denies it, or the command was renamed away.
async fn ask_if_allowed(
    node: &RedisNode,
    redis: &mut MultiplexedConnection,
    command: &Cmd,
) -> Result<Option<Value>, CallError> {
    match send_command(&*node.clock, redis, command).await {
        None => Err(CallError::NoEffect("the server does not answer".into())),
        Some(Ok(value)) => Ok(Some(value)),
        Some(Err(error)) if error.code() == Some("NOPERM") || is_unknown_command(&error) => Ok(None),
        Some(Err(error)) => Err(read_connect_error(&error, &node.options.at())),
    }
}

pub(super) fn is_unknown_command(error: &redis::RedisError) -> bool {
    error.detail().is_some_and(|detail| detail.contains("unknown command"))
}

async fn load_scripts(node: &RedisNode, redis: &mut MultiplexedConnection, at: &str) -> Result<Vec<String>, CallError> {
    let mut load = redis::pipe();
    for script in Script::ALL {
        load.cmd("SCRIPT").arg("LOAD").arg(script.text(&node.layout));
    }
    let end = node.clock.now().plus(REPLY_TIMEOUT);
    match until(&*node.clock, end, load.query_async::<Vec<String>>(redis)).await {
        None => Err(CallError::NoEffect("the server does not answer".into())),
        Some(Ok(shas)) if shas.len() == Script::ALL.len() => Ok(shas),
        Some(Ok(_)) => Err(CallError::NoEffect(Box::new(UnexpectedReply))),
        Some(Err(error)) => Err(read_connect_error(&error, at)),
    }
}

/// Runs `open`: tries every command that scripts use, and raises the counter if the history is another one. The history is
/// the one that was read on this very connection.
async fn compare_history(
    node: &RedisNode,
    redis: &mut MultiplexedConnection,
    shas: &[String],
    history: &str,
) -> Result<(), CallError> {
    let mut open = redis::cmd("EVALSHA");
    open.arg(&shas[Script::Open as usize]).arg(0).arg(history);
    let compared = match send_command(&*node.clock, redis, &open).await {
        None => Err(CallError::NoEffect("the server does not answer".into())),
        Some(Ok(value)) => array(&value).map(drop).map_err(|odd| CallError::NoEffect(Box::new(odd))),
        Some(Err(error)) => Err(match read_error(&error, Script::Open).0 {
            // Nothing of a caller was sent yet.
            CallError::Unknown(source) => CallError::NoEffect(source),
            other => other,
        }),
    };
    if compared.is_ok() {
        node.note_compared(history);
    }
    compared
}
