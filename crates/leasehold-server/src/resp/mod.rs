//! RESP on port 7401: what Redis clients speak, on threads of its own.
//!
//! ```text
//!   sockets ──▶ event_loop: read all, decide all under one lock ──▶ engine ──▶ completions ──▶ event_loop: write all
//!                 └─ what is rare ──▶ tokio: the service's methods ──▶ inbox ──┘
//! ```
//!
//! Read in this order: [`frame`] (bytes to arguments), [`ask`] (arguments to words), `event_loop` (the loop), [`fast`] and
//! [`slow`] (the two ways to an answer), [`reply`] (answers to bytes).
//!
//! # Laws
//!
//! 1. Every call passes the gate of the service, once.
//! 2. Replies leave in the order of their commands, and none before it is durable.
//! 3. A client that hangs up leaves the line at once, and no grant that nobody heard of but by request id.
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
use crate::service::seats::Seats;
use codec::frame::CommandLimits;
use event_loop::EventLoop;
use event_loop::waker::Waker;

/// How RESP is served.
#[derive(Clone, Debug)]
pub struct Config {
    /// Threads that speak with clients. One is enough for most: the disk is shared.
    pub threads: usize,
    /// Places for connections.
    pub seats: Arc<Seats>,
    /// From connect to the first byte, under TLS the first that is ours to read.
    pub first_byte: Duration,
    /// A command that was begun is there by then.
    pub command_within: Duration,
    /// A client that takes no bytes for this long is cut off.
    pub write_stall: Duration,
    /// How long a shutdown waits for what is under way.
    pub farewell: Duration,
    /// How much one command may be.
    pub sizes: CommandLimits,
    /// Bytes that may wait for one client before it is cut off, or (between commands) before no more are read.
    pub backlog: usize,
    /// TLS, if it is spoken.
    pub tls: Option<Arc<rustls::ServerConfig>>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            threads: 1,
            seats: Seats::new(20_000, 20_000),
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

/// What the event_loops of one server share.
pub(crate) struct ServerShared {
    service: Arc<Service>,
    config: Config,
    runtime: tokio::runtime::Handle,
    stopping: AtomicBool,
    next_id: AtomicU64,
}

/// The running server.
pub struct Server {
    shared: Arc<ServerShared>,
    event_loops: Vec<(Arc<Waker>, JoinHandle<()>)>,
}

impl Server {
    /// Begins to serve on threads of its own; what the engine cannot answer at once goes to the runtime.
    ///
    /// # Errors
    ///
    /// The system has no more threads or file descriptors.
    pub fn start(
        listener: TcpListener,
        service: Arc<Service>,
        config: Config,
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
                // A server that is deaf on this port and well by its health checks would be worse than none.
                if ended.is_err() || !thread_shared.stopping.load(Ordering::SeqCst) {
                    tracing::error!("a RESP thread ended unasked: the server ends");
                    std::process::exit(1);
                }
            };
            event_loops.push((waker, thread.spawn(run)?));
        }
        Ok(Self { shared, event_loops })
    }

    /// Finishes what is under way, tells those who wait, and lets go of the port.
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
