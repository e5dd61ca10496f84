//! The threads that serve clients. Each has a runtime and connections to the upstream of its own, so that a request stays
//! on one thread: the two ends of a request wake each other without waking another core.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::forward::{Gate, GateHandler};
use crate::http::{HttpConfig, accept_connections};

/// More cores than this do not help: the upstream has the work.
const MAX_WORKERS: usize = 8;

/// The running threads.
pub struct Workers {
    threads: Vec<JoinHandle<()>>,
    /// Ends when no thread has an open connection any more.
    serving: mpsc::Receiver<()>,
    /// Requests whose clients are gone live on these threads until then.
    end: CancellationToken,
}

impl Workers {
    /// Starts a thread for each core. They accept until `stop`.
    ///
    /// # Errors
    ///
    /// A thread cannot be started.
    pub fn start(
        listener: &TcpListener,
        config: &Arc<HttpConfig>,
        gate: &Gate,
        stop: &CancellationToken,
    ) -> io::Result<Self> {
        let count = thread::available_parallelism().map_or(1, |cores| cores.get().min(MAX_WORKERS));
        let (sender, serving) = mpsc::channel(1);
        let mut workers = Self { threads: Vec::new(), serving, end: CancellationToken::new() };
        for number in 0..count {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let (listener, handler) = (listener.try_clone()?, GateHandler(Arc::new(gate.for_worker())));
            let (config, stop, end, sender) = (config.clone(), stop.clone(), workers.end.clone(), sender.clone());
            let work = async move {
                if let Err(error) = accept_connections(listener, config, stop, handler).await {
                    tracing::error!(target: "leasehold::gate", %error, "cannot accept connections");
                }
                drop(sender);
                end.cancelled().await;
            };
            let thread = thread::Builder::new().name(format!("leasehold-gate-{number}")).spawn(move || {
                runtime.block_on(work);
                runtime.shutdown_background();
            })?;
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    /// Waits until every connection of a client is closed.
    pub async fn until_served(&mut self) {
        // Nothing is ever sent: it ends when the last sender is dropped.
        let _ = self.serving.recv().await;
    }

    /// Ends the threads, and with them what still runs on them.
    pub async fn end_threads(self) {
        self.end.cancel();
        let join = move || self.threads.into_iter().for_each(|thread| drop(thread.join()));
        let _ = tokio::task::spawn_blocking(join).await;
    }
}
