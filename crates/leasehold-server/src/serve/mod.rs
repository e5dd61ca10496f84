//! `leasehold serve`: opens the engine, builds the service over it, and starts both protocols.
//!
//! ```text
//!   config ──▶ keys, TLS, ports ──▶ engine ──▶ Service ──▶ resp (own threads) and http (tokio)
//! ```
//!
//! # Laws
//!
//! 1. An address that others can reach needs keys, and TLS unless `allow_plain` is set.
//! 2. A server that cannot start says why in one sentence, before it changes anything. Exit code 2: bad usage, 4:
//!    unavailable, 8: corrupt.
//! 3. After a signal it stops with 0 once every acknowledged write is on disk and every waiting client has an answer. A
//!    second signal ends it at once. A failed disk ends it with 4.
//!
//! # Not here
//!
//! Protocols (`http`, `resp`), authorisation (`service`).

mod banner;
mod demo;
pub mod keys;
pub mod listen;
pub mod log;
pub mod notify;
#[cfg(feature = "otel")]
mod otel;
mod store;
pub mod tls;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use leasehold::Leasehold;
use leasehold::clock::{Clock, SystemClock};
use leasehold::engine::Engine;
use leasehold::engine::embedded::{Embedded, Notice, Options};
use rustix::process::Signal;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::boxoffice::{self, BoxOffice};
use crate::config::{self, Config, LogFormat, ServeFlags};
use crate::service::audit::Audit;
use crate::service::connection_limit::ConnectionLimiter;
use crate::service::keys::KeyRing;
use crate::service::{Denial, ServedEngine, Service};
use crate::{http, resp};
use leasehold_support::exit::{self, Failure};
use leasehold_support::output;
use leasehold_support::signals::{self, Signals};
use log::LogWriter;
use tls::ServerTls;

const EXAMPLE: &str = "\
Example:
  leasehold serve --data ./leasehold-data
  redis-cli -p 7401 SET seat-14 ada NX PX 30000
  curl -s localhost:7400/v1/resources/seat-14

A config file to begin with:
  leasehold serve --print-config > leasehold.toml
  leasehold serve --config leasehold.toml";

/// Timeout for connections, tasks and the engine when the server stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(20);

/// Makes an engine available to a fleet, by HTTP and RESP, with a page that shows what is held.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub struct ServeArgs {
    #[command(flatten)]
    flags: ServeFlags,
    /// Fill in example data, and keep it moving
    #[arg(long)]
    demo: bool,
    /// Print a config file with every field and its default, and end
    #[arg(long)]
    print_config: bool,
}

/// Why the server stops.
enum StopReason {
    /// A signal came.
    Asked(Signal),
    /// The engine stopped.
    Failed(String),
}

impl ServeArgs {
    /// Serves until it is asked to stop.
    ///
    /// # Errors
    ///
    /// What could not be opened or listened on.
    pub fn execute(self) -> anyhow::Result<u8> {
        if self.print_config {
            output::line(config::EXAMPLE.trim_end())?;
            return Ok(exit::DONE);
        }
        let config = Config::load(&self.flags)?;
        // Files created from here on are for their owner alone.
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
        let log = log::start_logging(&config)?;
        // The kernel clears a huge page on its first use: 4 ms on a virtual machine, while all clients of that round
        // wait. Small pages cost half as much: docs/internals/server-path.md.
        let _slower_without = rustix::thread::disable_transparent_huge_pages(true);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .context("start the runtime")?;
        let handle = runtime.handle().clone();
        let code = runtime.block_on(async {
            let server = RunningServer::open(config, handle).await?;
            server.run(self.demo, &log).await
        });
        // A disk or connection that hangs must not keep the process.
        runtime.shutdown_timeout(Duration::from_millis(100));
        #[cfg(feature = "otel")]
        otel::flush();
        log.flush();
        code
    }
}

/// All parts of a running server.
struct RunningServer {
    config: Config,
    tls: Option<Arc<ServerTls>>,
    ring: Arc<KeyRing>,
    service: Arc<Service>,
    clock: Arc<dyn Clock>,
    notices: mpsc::UnboundedReceiver<Notice>,
    signals: Signals,
    ports: listen::BoundPorts,
    resp: resp::Server,
    http_task: tokio::task::JoinHandle<()>,
    boxoffice: Option<Arc<BoxOffice>>,
    stop: CancellationToken,
    /// Background tasks. They end after the protocols.
    tasks: BackgroundTasks,
}

/// Tasks beside the protocols.
struct BackgroundTasks {
    running: tokio::task::JoinSet<()>,
    end: CancellationToken,
}

impl RunningServer {
    async fn open(mut config: Config, handle: tokio::runtime::Handle) -> anyhow::Result<Self> {
        let signals = Signals::listen()?;
        let keys = keys::load_keys(&config.data)?;
        listen::check_exposure(&config, !keys.keys.is_empty())?;
        let tls =
            config.tls.clone().map(ServerTls::load).transpose().map_err(|why| Failure::usage(format!("TLS: {why}")))?;
        let tls = tls.map(Arc::new);
        let (http_task, redis, ports) = listen::bind_ports(&config)?;
        config.limits.connections = ports.max_connections(config.limits.connections);
        let clock = SystemClock::shared();
        let (sender, notices) = mpsc::unbounded_channel();
        let options = Options {
            clock: clock.clone(),
            limits: config.limits.core_limits(),
            notices: Arc::new(move |notice| drop(sender.send(notice))),
            news_bytes: config.news_bytes.0,
            ..Options::default()
        };
        let engine = match config.engine.as_str() {
            "embedded" => ServedEngine::Embedded(Embedded::open(&config.data, options).await?),
            url => {
                let leasehold = Leasehold::open(&with_minded_leases(url)).await?;
                ServedEngine::Other(leasehold.engine().clone(), config.limits.core_limits())
            }
        };
        let ring = KeyRing::from_file(&keys);
        let service = Service::new(engine, ring.clone(), Audit, clock.clone());
        let stop = CancellationToken::new();
        let engine = service.own_engine();
        let boxoffice = boxoffice::open::open_boxoffice(&config, engine.clone(), clock.clone()).await?;
        let mut tasks = BackgroundTasks { running: tokio::task::JoinSet::new(), end: CancellationToken::new() };
        if let Some(boxoffice) = &boxoffice {
            tasks.start_boxoffice(boxoffice, engine)?;
            let _ = service.open_boxoffice(boxoffice.clone());
        }
        if let Some(recipes) = store::open_recipes(&config, clock.clone()).await? {
            tasks.running.spawn(recipes.clone().run_upkeep(tasks.end.clone()));
            let _ = service.open_recipes(recipes);
        }
        let connection_limiter =
            ConnectionLimiter::new(config.limits.connections, config.limits.connections_per_address);
        let resp = listen::resp_config(&config, tls.as_deref(), &connection_limiter);
        let resp = resp::Server::start(redis, service.clone(), resp, handle).context("start the RESP port")?;
        service.set_http_port(ports.http.port());
        let http = listen::http_config(&config, tls.as_deref(), &connection_limiter);
        let http_task = tokio::spawn(http::serve(http_task, service.clone(), http, stop.clone()));
        Ok(Self { config, tls, ring, service, clock, notices, signals, ports, resp, http_task, stop, boxoffice, tasks })
    }

    async fn run(mut self, demo: bool, log: &LogWriter) -> anyhow::Result<u8> {
        self.print_banner(log);
        self.warn_of_file_limit();
        tokio::spawn(tick_every_second(self.service.clone(), self.clock.clone(), self.stop.clone()));
        let watch = keys::KeyFileWatcher::new(self.config.data.clone(), self.ring.clone(), self.clock.clone());
        tokio::spawn(self.stop.clone().run_until_cancelled_owned(watch.run()));
        if demo {
            demo::start(&self.service, &self.clock, &self.stop);
            if let Some(boxoffice) = &self.boxoffice {
                boxoffice::demo::open_demo(boxoffice, &self.clock, self.ports.http, &self.stop)
                    .await
                    .context("open the demo")?;
            }
        }
        notify::ready();
        let ending = self.until_stopped().await;
        self.close(ending, log).await
    }

    fn print_banner(&self, log: &LogWriter) {
        match self.config.log.format {
            LogFormat::Text => banner::banner_lines(&self.config, &self.ports, self.ring.len())
                .iter()
                .for_each(|line| log.write_line(line)),
            LogFormat::Json => tracing::info!(
                version = env!("CARGO_PKG_VERSION"),
                http = %self.ports.http,
                resp = %self.ports.resp,
                data = %self.config.data.display(),
                tls = self.tls.is_some(),
                keys = self.ring.len(),
                "serving"
            ),
        }
    }

    fn warn_of_file_limit(&self) {
        if let Some(files) = self.ports.files {
            tracing::info!(
                "the system allows {files} open files, fewer than limits.connections: {} connections are let in; raise \
                 it (LimitNOFILE, ulimit -n), or lower limits.connections",
                self.config.limits.connections
            );
        }
    }

    async fn until_stopped(&mut self) -> StopReason {
        loop {
            tokio::select! {
                signal = self.signals.next() => match signal {
                    Signal::HUP if !rustix::termios::isatty(rustix::stdio::stdin()) => self.reload(),
                    // A server that was started in a terminal ends with it.
                    signal => return StopReason::Asked(signal),
                },
                Some(notice) = self.notices.recv() => match notice {
                    Notice::Failed(_) => return StopReason::Failed(notice.to_string()),
                    other => tracing::warn!("{other}"),
                },
            }
        }
    }

    fn reload(&self) {
        match self.tls.as_ref().map(|tls| tls.reload()) {
            Some(Ok(())) => tracing::info!("the certificates were read again"),
            Some(Err(why)) => tracing::error!("the certificates stay as they were: {why}"),
            None => tracing::info!("there are no certificates to read again"),
        }
    }

    /// Stops accepting, answers waiting clients, commits the last batch and closes the engine.
    async fn close(self, ending: StopReason, log: &LogWriter) -> anyhow::Result<u8> {
        let Self { service, clock, mut signals, resp, http_task, stop, tasks, .. } = self;
        notify::stopping();
        let failure = match ending {
            StopReason::Asked(signal) => {
                tracing::info!("{}: ending; once more ends it at once", signals::name(signal));
                None
            }
            StopReason::Failed(why) => Some(why),
        };
        let impatient = log.clone();
        tokio::spawn(async move {
            let signal = signals.next().await;
            impatient.flush();
            std::process::exit(128 + signal.as_raw());
        });
        let work = async {
            stop.cancel();
            let resp = tokio::task::spawn_blocking(move || resp.stop());
            let _ = tokio::join!(resp, http_task);
            tasks.end().await;
            service.close().await
        };
        let closed = tokio::select! {
            closed = work => closed.map_err(close_failure),
            () = clock.sleep_until(clock.now().plus(SHUTDOWN_TIMEOUT)) => {
                let sentence = format!("something did not end within {} seconds, and was left", SHUTDOWN_TIMEOUT.as_secs());
                Err(Failure::coded(exit::UNAVAILABLE, sentence))
            }
        };
        match (failure, closed) {
            (Some(why), _) => Ok(report_failure(log, exit::UNAVAILABLE, &why)),
            (None, Err(error)) => Ok(report_failure(log, exit::code(&error), &exit::sentence(&error))),
            (None, Ok(())) => Ok(exit::DONE),
        }
    }
}

/// On ZooKeeper a lease of a session ends with its process. A server's leases outlive it, unless the URL says otherwise.
fn with_minded_leases(url: &str) -> Cow<'_, str> {
    let (place, query) = url.split_once('?').unwrap_or((url, ""));
    if !place.starts_with("zk://") || query.split('&').any(|option| option.starts_with("lease=")) {
        return Cow::Borrowed(url);
    }
    let separator = if query.is_empty() { "" } else { "&" };
    Cow::Owned(format!("{place}?{query}{separator}lease=minded"))
}

impl BackgroundTasks {
    /// Starts the background tasks of the box office on a thread of their own. On the shared runtime each step would
    /// wait behind thousands of requests, and the seat map in memory would become stale.
    fn start_boxoffice(&mut self, boxoffice: &Arc<BoxOffice>, engine: Arc<dyn Engine>) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("start the runtime of the box office")?;
        let (end, work) = (self.end.clone(), boxoffice.clone().run(engine));
        self.running.spawn_blocking(move || {
            let _ = runtime.block_on(end.run_until_cancelled_owned(work));
            runtime.shutdown_background();
        });
        Ok(())
    }

    async fn end(mut self) {
        self.end.cancel();
        while self.running.join_next().await.is_some() {}
    }
}

fn close_failure(denial: Denial) -> anyhow::Error {
    match denial {
        Denial::Engine(error) => anyhow::Error::new(error),
        other => Failure::coded(exit::UNAVAILABLE, other.sentence()),
    }
}

/// Logs why the server stops, without waiting for a blocked stderr.
fn report_failure(log: &LogWriter, code: u8, sentence: &str) -> u8 {
    log.write_line(&format!("leasehold: {sentence}"));
    code
}

/// Counts what happens per second.
async fn tick_every_second(service: Arc<Service>, clock: Arc<dyn Clock>, stop: CancellationToken) {
    let mut at = clock.now();
    loop {
        at = at.plus(Duration::from_secs(1));
        if stop.run_until_cancelled(clock.sleep_until(at)).await.is_none() {
            return;
        }
        service.tick();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a server's leases on ZooKeeper outlive it, unless somebody said otherwise; no other URL is touched.
    #[test]
    fn leases_on_zookeeper_are_minded_unless_the_url_says_otherwise() {
        for (url, opened) in [
            ("zk://h/locks", "zk://h/locks?lease=minded"),
            ("zk://h/locks?layout=both", "zk://h/locks?layout=both&lease=minded"),
            ("zk://h/locks?lease=session&layout=both", "zk://h/locks?lease=session&layout=both"),
            ("etcd://h?prefix=a", "etcd://h?prefix=a"),
            ("redis://h", "redis://h"),
        ] {
            assert_eq!(with_minded_leases(url), opened);
        }
    }
}
