//! Every script in `tests/scenarios/` against the Redis engine: a real server whose wall clock is the script's.
#![cfg(feature = "redis")]
#![allow(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a real server lives in real time, and how much was tried is worth a line"
)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leasehold::Refusal;
use leasehold::clock::Clock;
use leasehold::engine::redis::{RedisEngine, RedisOptions};
use leasehold::engine::{
    Answer, Claim, Engine, EventId, Finding, Grant, Keys, LeaseId, Promises, Query, Renewal, Resource, Token, Watch,
};
use leasehold::testkit::ManualClock;
use leasehold::testkit::scenario::Scenario;
use leasehold_core::Time;
use leasehold_harness::frozen_clock::FrozenClock;
use leasehold_harness::redis::{DURABLE, RedisServer};
use redis::aio::MultiplexedConnection;
use tokio::sync::Mutex;

/// 2026-11-17, in microseconds: where the server's clock is when the script's is at zero.
const BASE_MICROS: u64 = 1_794_900_000_000_000;
/// The resource by which the scenario runner finds out that an engine has done what is due.
const PROBE: &str = "~probe";
/// No command for this long, some times over: the engine has done what is due.
const QUIET: Duration = Duration::from_millis(4);

/// The engine, which answers only when it has done everything that is due. The runner's probe relies on one order of all
/// that an engine does; four connections have none.
struct Settling {
    engine: Arc<RedisEngine>,
    clock: ManualClock,
    redis: Mutex<MultiplexedConnection>,
}

impl Settling {
    /// Waits until the server is asked nothing more.
    async fn settle(&self) {
        let mut redis = self.redis.lock().await;
        let (mut last, mut quiet) = (0, 0);
        while quiet < 3 {
            tokio::time::sleep(QUIET).await;
            let info: String = redis::cmd("INFO").arg("stats").query_async(&mut *redis).await.expect("stats");
            let line = info.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
            let count: u64 = line.and_then(|count| count.trim().parse().ok()).expect("a count");
            quiet = if count == last + 1 { quiet + 1 } else { 0 };
            last = count;
        }
    }
}

struct Wrapped(Arc<Settling>);

impl Engine for Wrapped {
    fn promises(&self) -> Promises {
        self.0.engine.promises()
    }

    fn acquire(&self, claim: Claim) -> Answer<'_, Grant> {
        let inner = self.0.clone();
        Box::pin(async move {
            if claim.wants[0].name == PROBE && !claim.wait.is_zero() {
                inner.clock.sleep_until(inner.clock.now().plus(claim.wait)).await;
                inner.settle().await;
                let held = Refusal::Held { resource: PROBE.into(), holder: None, remaining: None, queue_len: 0 };
                return Err(held.into());
            }
            inner.engine.acquire(claim).await
        })
    }

    fn renew<'a>(&'a self, lease: &'a LeaseId, ttl: Option<Duration>) -> Answer<'a, Renewal> {
        Box::pin(async move {
            self.0.settle().await;
            self.0.engine.renew(lease, ttl).await
        })
    }

    fn relabel<'a>(&'a self, lease: &'a LeaseId, holder: &'a str) -> Answer<'a, ()> {
        self.0.engine.relabel(lease, holder)
    }

    fn release<'a>(&'a self, lease: &'a LeaseId) -> Answer<'a, bool> {
        Box::pin(async move { self.0.engine.release(lease).await })
    }

    fn revoke<'a>(&'a self, name: &'a str, reason: &'a str) -> Answer<'a, usize> {
        Box::pin(async move { self.0.engine.revoke(name, reason).await })
    }

    fn inspect<'a>(&'a self, name: &'a str) -> Answer<'a, Option<Resource>> {
        Box::pin(async move {
            self.0.settle().await;
            self.0.engine.inspect(name).await
        })
    }

    fn list(&self, query: Query) -> Answer<'_, Vec<Resource>> {
        self.0.engine.list(query)
    }

    fn raise_floor(&self, floor: Option<Token>) -> Answer<'_, Token> {
        self.0.engine.raise_floor(floor)
    }

    fn identity(&self) -> Answer<'_, Option<String>> {
        self.0.engine.identity()
    }

    fn examine(&self) -> Answer<'_, Vec<Finding>> {
        self.0.engine.examine()
    }

    fn watch(&self, since: Option<EventId>) -> Answer<'_, Watch> {
        self.0.engine.watch(since)
    }

    fn keys(&self) -> Option<&dyn Keys> {
        None
    }

    fn close(&self) -> Answer<'_, ()> {
        self.0.engine.close()
    }
}

async fn play(script: &Scenario, watched: bool) -> Result<(), String> {
    let clock = ManualClock::new();
    let frozen = FrozenClock::new(BASE_MICROS);
    let (shown, hand) = (frozen.clone(), clock.clone());
    clock.on_step(Box::new(move || shown.set_micros(BASE_MICROS + hand.now().as_nanos() / 1000)));
    clock.set(Time::from_millis(1_234_567));
    let server = RedisServer::start_frozen(DURABLE, frozen);
    let options = RedisOptions {
        clock: clock.shared(),
        limits: script.limits().clone(),
        slew_ppm: 0,
        timer_margin: Duration::ZERO,
        // The clock jumps further than a heartbeat.
        waiter_ttl: Duration::from_secs(24 * 3600),
        ..RedisOptions::from_url(&server.url()).expect("a url")
    };
    let engine = RedisEngine::open(options).await.expect("it opens");
    let client = redis::Client::open(server.url()).expect("a url");
    let redis = Mutex::new(client.get_multiplexed_async_connection().await.expect("a connection"));
    let watcher = if watched {
        let mut watch = engine.watch(None).await.expect("it can be watched");
        Some(tokio::spawn(async move { while watch.next().await.is_ok() {} }))
    } else {
        None
    };
    let settling = Arc::new(Settling { engine: engine.clone(), clock: clock.clone(), redis });
    let played = script.run(Arc::new(Wrapped(settling)), &clock).await.map_err(|failure| failure.to_string());
    if let Some(watcher) = watcher {
        watcher.abort();
    }
    let _ = engine.close().await;
    played
}

async fn play_all(watched: bool) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/scenarios");
    let scripts = Scenario::load_all(&dir).unwrap_or_else(|failure| panic!("{failure}"));
    let mut failures = Vec::new();
    for script in &scripts {
        if let Err(failure) = play(script, watched).await {
            failures.push(failure);
        }
    }
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), scripts.len(), failures.join("\n"));
    eprintln!("{} scenarios played", scripts.len());
}

/// Goal: Redis answers as the book does, to the millisecond.
/// Method: the server's clock stands still and is moved by the script.
#[tokio::test]
async fn redis_plays_every_scenario() {
    play_all(false).await;
}

/// Goal: watching changes no answer.
/// Method: the same, while somebody watches: every script takes its slow way and writes events.
#[tokio::test]
async fn redis_plays_every_scenario_while_watched() {
    play_all(true).await;
}
