//! Starts and stops a gate.
//!
//! # Laws
//!
//! 1. An address that others can reach needs API keys, and TLS unless `--allow-plain` is given: whoever reaches the gate
//!    can raise a fence above everybody.
//! 2. After a signal the gate takes no new request, finishes those it has, and ends with 0. A second signal ends it at
//!    once. A memory that failed ends it with 4.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use leasehold::clock::SystemClock;
use leasehold_core::limits::Limits;
use leasehold_support::exit::{self, Failure};
use leasehold_support::signals::{self, Signals};
use rustix::process::Signal;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::fences::{FenceTimes, Fences};
use super::forward::{ExchangeTimes, Gate};
use super::machine::OnStuck;
use super::memory::{MemoryError, MemoryWriter};
use super::metrics::GateMetrics;
use super::upstream::Upstream;
use super::workers::Workers;
use crate::config::{Config, LogConfig, TlsFiles};
use crate::http::{Arrival, HttpConfig, PhaseTracker, Problem, RequestHandler, accept_connections};
use crate::serve::keys::{KeyFileWatcher, load_keys};
use crate::serve::listen::{FILES_KEPT_FOR_ENGINE, listen_on, raise_file_limit};
use crate::serve::log::{self, LogWriter};
use crate::serve::notify;
use crate::serve::tls::ServerTls;
use crate::service::Verb;
use crate::service::connection_limit::ConnectionLimiter;
use crate::service::keys::KeyRing;

/// The head of a request must come in this time.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections of clients.
const MAX_CONNECTIONS: usize = 20_000;
/// Connections to the port of the metrics.
const MAX_STATUS_CONNECTIONS: usize = 64;
/// Bytes of the head of a request.
const MAX_HEADER_BYTES: usize = 64 * 1024;
/// How often a stopping gate looks whether the last requests have left.
const STOP_CHECK_EVERY: Duration = Duration::from_millis(20);

/// The URL of the upstream as it was typed. It may hold what is no business of a log.
#[derive(Clone)]
pub struct UpstreamUrl(pub String);

impl fmt::Debug for UpstreamUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UpstreamUrl(..)")
    }
}

impl From<String> for UpstreamUrl {
    fn from(text: String) -> Self {
        Self(text)
    }
}

/// How a gate is started.
#[derive(Debug)]
pub struct GateOptions {
    /// Where clients connect.
    pub listen: SocketAddr,
    /// Where requests go.
    pub upstream: UpstreamUrl,
    /// Where the memory is, and the API keys.
    pub data: PathBuf,
    /// Methods that pass without a token.
    pub unfenced: Vec<Method>,
    /// How long a newer request waits for older ones.
    pub drain: Duration,
    /// How long it waits after these were cut.
    pub settle: Duration,
    /// What happens when older requests stay without an answer.
    pub on_stuck: OnStuck,
    /// Where `/metrics` and `/healthz` are.
    pub metrics: Option<SocketAddr>,
    /// Listen on a public address without TLS.
    pub allow_plain: bool,
    /// TLS for clients.
    pub tls: Option<TlsFiles>,
    /// What is logged.
    pub log: LogConfig,
    /// How long both ends of a request may take.
    pub times: ExchangeTimes,
}

/// Runs a gate until it is asked to stop.
///
/// # Errors
///
/// What could not be opened or listened on.
pub fn run_gate(options: GateOptions) -> anyhow::Result<u8> {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let log = log::start_logging(&Config { log: options.log.clone(), ..Config::default() })?;
    // For signals and metrics: requests have threads of their own.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the runtime")?;
    let code = runtime.block_on(async {
        let gate = RunningGate::start(options)?;
        gate.run(&log).await
    });
    // A disk or connection that hangs must not keep the process.
    runtime.shutdown_timeout(Duration::from_millis(100));
    log.flush();
    code
}

/// All parts of a running gate.
pub(super) struct RunningGate {
    gate: Arc<Gate>,
    pub(super) address: SocketAddr,
    metrics_address: Option<SocketAddr>,
    data: PathBuf,
    tls: Option<ServerTls>,
    stop: CancellationToken,
    workers: Workers,
    metrics_port: Option<JoinHandle<io::Result<()>>>,
    writer: std::thread::JoinHandle<()>,
    failure: oneshot::Receiver<io::Error>,
}

impl RunningGate {
    pub(super) fn start(options: GateOptions) -> anyhow::Result<Self> {
        let upstream = Arc::new(Upstream::parse(&options.upstream.0).map_err(Failure::usage)?);
        let keys = load_keys(&options.data)?;
        check_exposure(&options, !keys.keys.is_empty())?;
        let tls = options.tls.clone().map(ServerTls::load).transpose();
        let tls = tls.map_err(|why| Failure::usage(format!("TLS: {why}")))?;
        let listener = listen_on("listen", options.listen)?;
        let metrics_listener = options.metrics.map(|address| listen_on("metrics", address)).transpose()?;
        let (writer, machine) = MemoryWriter::open(&options.data, options.on_stuck).map_err(memory_failure)?;
        let metrics = Arc::new(GateMetrics::default());
        let times = FenceTimes { drain: options.drain, settle: options.settle };
        let fences = Fences::new(machine, times, options.on_stuck, metrics.clone());
        let (writer, failure) = start_writer(writer, fences.clone())?;
        let gate = Arc::new(Gate {
            fences,
            upstream,
            unfenced: options.unfenced.clone(),
            keys: KeyRing::from_file(&keys),
            secure: tls.is_some(),
            limits: Limits::default(),
            metrics,
            drain: options.drain,
            times: options.times,
        });
        let stop = CancellationToken::new();
        let config = Arc::new(http_config(&options, tls.as_ref(), max_connections()));
        let address = listener.local_addr().unwrap_or(options.listen);
        let metrics_address = metrics_listener.as_ref().and_then(|listener| listener.local_addr().ok());
        let workers = Workers::start(&listener, &config, &gate, &stop).context("start the threads of the gate")?;
        // With a limit of its own: an operator sees the metrics even when clients use all connections.
        let status_config = Arc::new(http_config(&options, tls.as_ref(), MAX_STATUS_CONNECTIONS));
        let metrics_port = metrics_listener.map(|listener| {
            let handler = StatusHandler(gate.clone());
            tokio::spawn(accept_connections(listener, status_config, stop.clone(), handler))
        });
        let data = options.data;
        Ok(Self { gate, address, metrics_address, data, tls, stop, workers, metrics_port, writer, failure })
    }

    async fn run(mut self, log: &LogWriter) -> anyhow::Result<u8> {
        let mut signals = Signals::listen()?;
        let keys = KeyFileWatcher::new(self.data.clone(), self.gate.keys.clone(), SystemClock::shared());
        tokio::spawn(self.stop.clone().run_until_cancelled_owned(keys.run()));
        self.print_banner(log);
        notify::ready();
        let failed = loop {
            tokio::select! {
                signal = signals.next() => match signal {
                    Signal::HUP if !rustix::termios::isatty(rustix::stdio::stdin()) => self.reload_certificates(),
                    signal => {
                        tracing::info!("{}: ending; once more ends it at once", signals::name(signal));
                        break None;
                    }
                },
                error = &mut self.failure => {
                    let error = error.map_or_else(|_| "its thread died".to_owned(), |error| error.to_string());
                    break Some(format!("the memory of the gate failed, nothing is forwarded any more: {error}"));
                }
            }
        };
        notify::stopping();
        let impatient = log.clone();
        tokio::spawn(async move {
            let signal = signals.next().await;
            impatient.flush();
            std::process::exit(128 + signal.as_raw());
        });
        let drain = self.gate.drain;
        let left = self.close(drain).await;
        if left > 0 {
            tracing::warn!("{left} requests were cut off at the end: the upstream had not answered them");
        }
        Ok(match failed {
            Some(sentence) => {
                log.write_line(&format!("leasehold: {sentence}"));
                exit::UNAVAILABLE
            }
            None => exit::DONE,
        })
    }

    /// Takes no new request, waits for those that are under way, and closes the memory. Returns how many requests were
    /// still with the upstream.
    pub(super) async fn close(mut self, patience: Duration) -> usize {
        let until = Instant::now() + patience;
        self.stop.cancel();
        self.workers.until_served().await;
        if let Some(port) = self.metrics_port {
            let _ = port.await;
        }
        while self.gate.fences.sizes().1 > 0 && Instant::now() < until {
            sleep_until(Instant::now() + STOP_CHECK_EVERY).await;
        }
        let (_, left) = self.gate.fences.sizes();
        self.workers.end_threads().await;
        self.gate.fences.close();
        let _ = tokio::task::spawn_blocking(move || self.writer.join()).await;
        left
    }

    fn print_banner(&self, log: &LogWriter) {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let (resources, _) = self.gate.fences.sizes();
        log.write_line(&format!(
            "leasehold {} gate {scheme}://{} in front of {}, {resources} resources remembered in {}",
            env!("CARGO_PKG_VERSION"),
            self.address,
            self.gate.upstream.authority(),
            self.data.display()
        ));
        if let Some(address) = self.metrics_address {
            log.write_line(&format!("  metrics {scheme}://{address}/metrics"));
        }
    }

    fn reload_certificates(&self) {
        match self.tls.as_ref().map(ServerTls::reload) {
            Some(Ok(())) => tracing::info!("the certificates were read again"),
            Some(Err(why)) => tracing::error!("the certificates stay as they were: {why}"),
            None => tracing::info!("there are no certificates to read again"),
        }
    }
}

/// Without its writer nothing may be forwarded, even if the writer panicked.
struct FailGuard(Option<Arc<Fences>>);

impl Drop for FailGuard {
    fn drop(&mut self) {
        if let Some(fences) = &self.0 {
            fences.fail();
        }
    }
}

/// The writer thread, and why it failed.
type StartedWriter = (std::thread::JoinHandle<()>, oneshot::Receiver<io::Error>);

pub(super) fn start_writer(writer: MemoryWriter, fences: Arc<Fences>) -> anyhow::Result<StartedWriter> {
    let (failed, failure) = oneshot::channel();
    let thread = std::thread::Builder::new()
        .name("leasehold-gate-writer".into())
        .spawn(move || {
            let mut guard = FailGuard(Some(fences.clone()));
            match writer.run(&fences) {
                Ok(()) => guard.0 = None,
                Err(error) => {
                    drop(guard);
                    let _ = failed.send(error);
                }
            }
        })
        .context("start the writer")?;
    Ok((thread, failure))
}

/// Each connection of a client may need one to the upstream.
fn max_connections() -> usize {
    let files = raise_file_limit(2 * MAX_CONNECTIONS);
    // The journal, the listeners and the metrics need some, too.
    let left = files.map(|files| files.saturating_sub(FILES_KEPT_FOR_ENGINE) / 2);
    left.map_or(MAX_CONNECTIONS, |left| usize::try_from(left).unwrap_or(MAX_CONNECTIONS).max(1))
}

fn http_config(options: &GateOptions, tls: Option<&ServerTls>, connections: usize) -> HttpConfig {
    HttpConfig {
        tls: tls.map(|tls| tls.http.clone()),
        header: HEADER_TIMEOUT,
        drain: options.drain,
        write_stall: options.times.write_stall,
        connection_limiter: ConnectionLimiter::new(connections, connections),
        header_bytes: MAX_HEADER_BYTES,
        ..HttpConfig::default()
    }
}

/// Refuses an address that others can reach without keys, or without TLS unless that was asked for.
fn check_exposure(options: &GateOptions, has_keys: bool) -> anyhow::Result<()> {
    for (option, address) in [("--listen", Some(options.listen)), ("--metrics", options.metrics)] {
        let Some(address) = address.filter(|address| !address.ip().to_canonical().is_loopback()) else { continue };
        if !has_keys {
            let data = options.data.display();
            return Err(Failure::usage(format!(
                "others can reach {option} {address} and there is no API key: make one with `leasehold key create \
                 --role lease --data {data}`, or listen on 127.0.0.1"
            )));
        }
        if options.tls.is_none() && !options.allow_plain {
            return Err(Failure::usage(format!(
                "others can reach {option} {address} and there is no TLS: give --tls-cert and --tls-key, or \
                 --allow-plain if you trust that network with your keys"
            )));
        }
    }
    Ok(())
}

fn memory_failure(error: MemoryError) -> anyhow::Error {
    let code = match error {
        MemoryError::Locked(_) | MemoryError::Disk { .. } => exit::UNAVAILABLE,
        MemoryError::Damaged(_) => exit::CORRUPT,
    };
    let cause = match &error {
        MemoryError::Disk { source, .. } => format!(": {source}"),
        MemoryError::Locked(_) | MemoryError::Damaged(_) => String::new(),
    };
    Failure::coded(code, format!("the memory of the gate cannot be opened: {error}{cause}"))
}

/// Answers the port of the metrics.
#[derive(Clone)]
struct StatusHandler(Arc<Gate>);

impl RequestHandler for StatusHandler {
    async fn handle_request(&self, _: Arrival, _: &Arc<PhaseTracker>, request: Request<Incoming>) -> Response<Body> {
        let text = |status: StatusCode, text: String| {
            let mut response = Response::new(Body::from(text));
            *response.status_mut() = status;
            let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
            response
        };
        match (request.method(), request.uri().path()) {
            (&Method::GET, "/metrics") => {
                if let Err(problem) = self.0.check_key(request.headers().get(header::AUTHORIZATION), Verb::Metrics, &[])
                {
                    return problem.response();
                }
                let (resources, flying) = self.0.fences.sizes();
                text(StatusCode::OK, self.0.metrics.render_page(resources, flying))
            }
            (&Method::GET, "/healthz") if !self.0.fences.has_failed() => text(StatusCode::OK, "ok\n".into()),
            (&Method::GET, "/healthz") => text(StatusCode::SERVICE_UNAVAILABLE, "the memory failed\n".into()),
            _ => Problem::with_code(StatusCode::NOT_FOUND, "not_found", "here are /metrics and /healthz").response(),
        }
    }
}
