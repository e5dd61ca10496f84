//! RESP, the protocol of Redis clients, on port 7401. It has threads of its own.
//!
//! ```text
//!   sockets ──▶ event loop ─┬─ inline commands ──▶ engine ──▶ completion queue ──┬─▶ event loop ──▶ sockets
//!                           └─ spawned commands ──▶ tokio tasks ──▶ inbox ───────┘
//! ```
//!
//! Read in this order: [`codec`] (bytes to arguments, replies to bytes), [`command`] (what each command does),
//! [`event_loop`] (when it is done), [`connection`] (what is kept between), [`watch`] (pushes).
//!
//! # Laws
//!
//! 1. Every call passes the access check of the service, once.
//! 2. Replies leave in the order of their commands, and none before it is durable.
//! 3. A client that leaves is removed from wait queues at once. A lease that it was granted and cannot learn of is
//!    released, unless its command had a request id.
//!
//! # Not here
//!
//! Who may do what (`service`), decisions about leases (the engine).

mod codec;
mod command;
mod connection;
mod event_loop;
#[cfg(test)]
mod tests;
mod transport;
mod watch;

use std::io;
use std::net::TcpListener;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::service::Service;
use crate::service::connection_limit::ConnectionLimiter;
use codec::frame::CommandLimits;
use event_loop::EventLoop;
use event_loop::waker::Waker;

/// How RESP is served.
#[derive(Clone, Debug)]
pub struct RespConfig {
    /// Event loops, one thread each. One is enough for most machines: they share the disk.
    pub threads: usize,
    /// The limit of connections, shared with HTTP.
    pub connection_limiter: Arc<ConnectionLimiter>,
    /// From the connection to its first byte; with TLS the first one after the handshake.
    pub first_byte: Duration,
    /// From the first byte of a command to its last.
    pub command_within: Duration,
    /// A client that takes no bytes for this long is disconnected.
    pub write_stall: Duration,
    /// How long a shutdown waits for pending replies.
    pub farewell: Duration,
    /// How large one command may be.
    pub sizes: CommandLimits,
    /// Bytes that may wait for one client before no further command runs, or a watcher is disconnected.
    pub backlog: usize,
    /// None: without TLS.
    pub tls: Option<Arc<rustls::ServerConfig>>,
}

impl Default for RespConfig {
    fn default() -> Self {
        Self {
            threads: 1,
            connection_limiter: ConnectionLimiter::new(20_000, 20_000),
            first_byte: Duration::from_secs(5),
            command_within: Duration::from_secs(10),
            write_stall: Duration::from_secs(10),
            farewell: Duration::from_secs(2),
            sizes: CommandLimits::default(),
            backlog: 4 << 20,
            tls: None,
        }
    }
}

/// What the event loops of one server share.
pub(crate) struct ServerShared {
    service: Arc<Service>,
    config: RespConfig,
    runtime: tokio::runtime::Handle,
    stopping: AtomicBool,
    /// The id of the next connection.
    next_id: AtomicU64,
}

/// The running server.
pub struct Server {
    shared: Arc<ServerShared>,
    event_loops: Vec<(Arc<Waker>, JoinHandle<()>)>,
}

impl Server {
    /// Starts the event loops. Spawned commands run on `runtime`.
    ///
    /// # Errors
    ///
    /// The system has no more threads or file descriptors.
    pub fn start(
        listener: TcpListener,
        service: Arc<Service>,
        config: RespConfig,
        runtime: tokio::runtime::Handle,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let threads = config.threads.max(1);
        let shared = Arc::new(ServerShared {
            service,
            config,
            runtime,
            stopping: AtomicBool::new(false),
            next_id: AtomicU64::new(1),
        });
        let mut event_loops = Vec::new();
        for number in 0..threads {
            let event_loop = EventLoop::new(shared.clone(), listener.try_clone()?)?;
            let waker = event_loop.waker();
            let thread = std::thread::Builder::new().name(format!("leasehold-resp-{number}"));
            let thread_shared = shared.clone();
            let run = move || {
                let ended = std::panic::catch_unwind(AssertUnwindSafe(|| event_loop.run()));
                // A server without this port would still pass its health checks, and not be restarted.
                if ended.is_err() || !thread_shared.stopping.load(Ordering::SeqCst) {
                    tracing::error!("a RESP thread ended unasked: the server ends");
                    std::process::exit(1);
                }
            };
            event_loops.push((waker, thread.spawn(run)?));
        }
        Ok(Self { shared, event_loops })
    }

    /// Sends pending replies, refuses commands that wait, and closes the port.
    pub fn stop(self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        for (waker, _) in &self.event_loops {
            waker.wake();
        }
        for (_, event_loop) in self.event_loops {
            let _ = event_loop.join();
        }
    }
}
