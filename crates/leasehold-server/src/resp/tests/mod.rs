//! Tests of the RESP port in this process: those that read the service's counters, set the clock, or stop the disk. The
//! others are in `tests/resp/`.

mod access;
pub mod all_commands;
pub mod client;
mod close;
mod disk;
mod limits;
mod pipeline;
pub mod words;

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::{Clock, SystemClock};
use leasehold::engine::embedded::{Embedded, Options};
use leasehold::testkit::ManualClock;

use super::{RespConfig, Server};
use crate::service::audit::Audit;
use crate::service::keys::KeyRing;
use crate::service::{ServedEngine, Service};
use client::RespClient;
use disk::{BarrierDisk, SyncBarrier};
use leasehold_core::Limits;

/// Longer than any wait here should take, even on a busy machine.
const MAX_TEST_WAIT: Duration = Duration::from_secs(30);

/// A server on a free port, with an engine of its own.
struct TestServer {
    service: Arc<Service>,
    server: Server,
    address: std::net::SocketAddr,
    _home: tempfile::TempDir,
}

impl TestServer {
    async fn open(ring: Arc<KeyRing>, config: RespConfig) -> Self {
        let home = tempfile::tempdir().unwrap();
        let engine = Embedded::open(home.path().join("data"), Options::default()).await.unwrap();
        Self::over(home, ServedEngine::Embedded(engine), SystemClock::shared(), ring, config)
    }

    /// A server over an engine that is open. Both use the same clock.
    fn over(
        home: tempfile::TempDir,
        engine: ServedEngine,
        clock: Arc<dyn Clock>,
        ring: Arc<KeyRing>,
        config: RespConfig,
    ) -> Self {
        let service = Service::new(engine, ring, Audit, clock);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = Server::start(listener, service.clone(), config, tokio::runtime::Handle::current()).unwrap();
        Self { service, server, address, _home: home }
    }

    fn connect(&self) -> RespClient {
        RespClient::to(self.address)
    }

    async fn end(self) {
        tokio::task::block_in_place(|| self.server.stop());
        self.service.close().await.unwrap();
    }
}

/// A server with a manual clock, and a disk that can be stopped.
struct ClockedServer {
    server: TestServer,
    clock: ManualClock,
    barrier: Arc<SyncBarrier>,
}

impl ClockedServer {
    /// `embedded`: whether commands run inline, or in tasks, as for any other engine.
    async fn open(sync_takes: Duration, embedded: bool) -> Self {
        let home = tempfile::tempdir().unwrap();
        let clock = ManualClock::new();
        let barrier = SyncBarrier::new(clock.clone(), sync_takes);
        let disk = BarrierDisk::new(&home.path().join("data"), barrier.clone());
        let options = Options { clock: clock.shared(), ..Options::default() };
        let engine = Embedded::open_on(disk, options).await.unwrap();
        let engine =
            if embedded { ServedEngine::Embedded(engine) } else { ServedEngine::Other(engine, Limits::default()) };
        let server = TestServer::over(home, engine, clock.shared(), KeyRing::open(), RespConfig::default());
        Self { server, clock, barrier }
    }
}

/// Waits for a condition by the machine's clock, and fails with its name after [`MAX_TEST_WAIT`].
#[track_caller]
fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let clock = SystemClock::shared();
    let end = clock.now().plus(MAX_TEST_WAIT);
    while !condition() {
        assert!(clock.now() < end, "waited in vain until {what}");
        pause(Duration::from_millis(2));
    }
}

#[expect(clippy::disallowed_methods, reason = "a real socket in real time")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}
