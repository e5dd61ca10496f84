//! The RESP port in this process: what needs to see the service's own counters. The rest is in `tests/resp_*.rs`.

mod client;
mod gate;
mod pipeline;

use std::net::TcpListener;
use std::sync::Arc;

use leasehold::clock::SystemClock;
use leasehold::engine::embedded::{Embedded, Options};

use super::{Config, Server};
use crate::service::audit::Audit;
use crate::service::keys::KeyRing;
use crate::service::{Opened, Service};
use client::Client;

/// A server on a free port over an engine of its own.
struct House {
    service: Arc<Service>,
    server: Server,
    address: std::net::SocketAddr,
    _home: tempfile::TempDir,
}

impl House {
    async fn open(ring: Arc<KeyRing>, config: Config) -> Self {
        let home = tempfile::tempdir().unwrap();
        let engine = Embedded::open(home.path().join("data"), Options::default()).await.unwrap();
        let service = Service::new(Opened::Embedded(engine), ring, Audit, SystemClock::shared());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = Server::start(listener, service.clone(), config, tokio::runtime::Handle::current()).unwrap();
        Self { service, server, address, _home: home }
    }

    fn connect(&self) -> Client {
        Client::to(self.address)
    }

    async fn end(self) {
        tokio::task::block_in_place(|| self.server.stop());
        self.service.close().await.unwrap();
    }
}
