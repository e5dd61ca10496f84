//! HTTP as clients see it: a real listener on a free port, a real engine on a real directory, raw bytes.

mod access;
mod boxoffice;
mod client;
mod description;
mod hostile;
mod leaving;
mod recipes;
mod refusals;
mod routes;
mod schema;
mod tls;
mod waiting;
mod watch;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::SystemClock;
use leasehold::engine::embedded::{Embedded, Options};
use leasehold::recipe::Store;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::{HttpConfig, serve};
use crate::boxoffice::BoxOffice;
use crate::service::audit::Audit;
use crate::service::keys::KeyRing;
use crate::service::recipes::RecipeState;
use crate::service::{ServedEngine, Service};
use client::{Client, Reply};

/// Nothing here takes longer, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A limit short enough to wait for, and long enough for a busy machine to keep what is asked of it.
const SHORT: Duration = Duration::from_millis(1000);

/// A server under test.
struct Server {
    at: SocketAddr,
    service: Arc<Service>,
    stop: CancellationToken,
    task: JoinHandle<()>,
    home: Arc<TempDir>,
    boxoffice: Arc<BoxOffice>,
    /// Sweeper, sequencer, sender, settler.
    chores: tokio::task::JoinSet<()>,
}

impl Server {
    async fn start() -> Self {
        Self::with(HttpConfig::default(), Options::default()).await
    }

    async fn with(config: HttpConfig, options: Options) -> Self {
        let home = Arc::new(tempfile::tempdir().unwrap());
        Self::on(home, "127.0.0.1:0".parse().unwrap(), config, options, KeyRing::open()).await
    }

    async fn on(home: Arc<TempDir>, at: SocketAddr, config: HttpConfig, options: Options, keys: Arc<KeyRing>) -> Self {
        let clock = options.clock.clone();
        let engine = Embedded::open(home.path(), options).await.unwrap();
        let service = Service::new(ServedEngine::Embedded(engine), keys, Audit, clock);
        let listener = std::net::TcpListener::bind(at).unwrap();
        let at = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let (boxoffice, chores) = boxoffice::open(&home, &service).await;
        let recipes = Store::open(&format!("sqlite:{}/recipes.db", home.path().display())).await.unwrap();
        assert!(service.open_recipes(RecipeState::new(recipes, service.clock().clone())));
        let task = tokio::spawn(serve(listener, service.clone(), config, stop.clone()));
        Self { at, service, stop, task, home, boxoffice, chores }
    }

    /// Stops it; fails if that does not come to an end.
    async fn end(mut self) -> (Arc<TempDir>, SocketAddr) {
        self.stop.cancel();
        timeout(PATIENCE, self.task).await.expect("the server ends").unwrap();
        self.chores.shutdown().await;
        self.service.close().await.unwrap();
        (self.home, self.at)
    }

    async fn client(&self) -> Client {
        Client::connect(self.at).await
    }

    async fn get(&self, path: &str) -> Reply {
        self.client().await.ask("GET", path, &[], None).await
    }

    async fn post(&self, path: &str, body: &Value) -> Reply {
        self.client().await.ask("POST", path, &[], Some(body)).await
    }

    async fn take(&self, name: &str, ttl_ms: u64, holder: &str) -> Value {
        let body = json!({"resources": [name], "ttl_ms": ttl_ms, "holder": holder});
        self.post("/v1/leases", &body).await.with(201).json()
    }

    async fn queue_len(&self, name: &str) -> u64 {
        self.get(&format!("/v1/resources/{name}")).await.with(200).json()["queue_len"].as_u64().unwrap()
    }

    /// Waits until so many stand in line.
    async fn until_queued(&self, name: &str, many: u64) {
        let end = Instant::now() + PATIENCE;
        while self.queue_len(name).await != many {
            assert!(Instant::now() < end, "{many} never stood in line");
            moment().await;
        }
    }
}

/// Lets others have a turn.
async fn moment() {
    sleep_until(Instant::now() + Duration::from_millis(5)).await;
}

/// Limits short enough to wait for.
fn hasty() -> HttpConfig {
    HttpConfig {
        first_byte: SHORT,
        header: SHORT,
        body: SHORT,
        write_stall: SHORT,
        idle: SHORT,
        ..HttpConfig::default()
    }
}
