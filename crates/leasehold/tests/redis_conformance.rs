//! The conformance suite against the Redis engine, on real servers: each law has a server of its own.
#![cfg(feature = "redis")]
#![allow(clippy::disallowed_methods, reason = "a real server lives in real time")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::conformance::{BoxFuture, Fleet, Subject, run_in_real_time};
use leasehold::engine::Engine;
use leasehold::engine::redis::{RedisEngine, RedisOptions};
use leasehold_harness::redis::{DURABLE, RedisServer};

/// How far an answer may be off on a busy machine, where a server is killed and an engine is opened again.
const SLACK: Duration = Duration::from_millis(150);
/// The same with three engines to open, each with four connections.
const FLEET_SLACK: Duration = Duration::from_millis(300);
/// Nothing is taken off remaining times: a law compares the longest ttl, of which the slew is 43 s.
const EXACT: &str = "?slew=0";
/// Laws mostly sleep, so many of them run at once.
const LAWS_AT_ONCE: usize = 12;

/// Redis as the suite sees it.
struct RedisSubject {
    settings: &'static [&'static str],
    members: usize,
    query: &'static str,
    slack: Duration,
    server: Mutex<Option<Arc<RedisServer>>>,
}

impl RedisSubject {
    const fn new(settings: &'static [&'static str], members: usize, query: &'static str, slack: Duration) -> Self {
        Self { settings, members, query, slack, server: Mutex::new(None) }
    }

    fn server(&self) -> Arc<RedisServer> {
        self.server.lock().expect("nobody panics with it").clone().expect("a fresh engine was made")
    }

    async fn open(&self) -> Arc<dyn Engine> {
        let url = format!("{}{}", self.server().url(), self.query);
        // All at once: a law counts how long it takes to open them again.
        let opening: Vec<_> = (0..self.members)
            .map(|_| tokio::spawn(RedisEngine::open(RedisOptions::from_url(&url).expect("a url"))))
            .collect();
        let mut members: Vec<Arc<dyn Engine>> = Vec::new();
        for opened in opening {
            members.push(opened.await.expect("no panic").expect("it opens"));
        }
        if members.len() == 1 { members.remove(0) } else { Fleet::new(members) }
    }
}

impl Subject for RedisSubject {
    fn fresh(&self) -> BoxFuture<'_, Arc<dyn Engine>> {
        Box::pin(async {
            let server = Arc::new(RedisServer::start(self.settings));
            *self.server.lock().expect("nobody panics with it") = Some(server);
            self.open().await
        })
    }

    fn pass(&self, span: Duration) -> BoxFuture<'_, ()> {
        Box::pin(tokio::time::sleep(span))
    }

    fn unit(&self) -> Duration {
        self.slack * 4
    }

    fn slack(&self) -> Duration {
        self.slack
    }

    /// A server that keeps its leases is killed and started again; of one that does not, nothing is left.
    fn reopen(&self) -> BoxFuture<'_, Option<Arc<dyn Engine>>> {
        Box::pin(async {
            if self.settings.is_empty() {
                return None;
            }
            self.server().kill_and_restart();
            Some(self.open().await)
        })
    }

    fn beside(&self) -> BoxFuture<'_, Option<Arc<dyn Engine>>> {
        Box::pin(async { Some(self.open().await) })
    }
}

fn keeps_the_laws(settings: &'static [&'static str], members: usize, query: &'static str) {
    let slack = if members > 1 { FLEET_SLACK } else { SLACK };
    run_in_real_time(LAWS_AT_ONCE, slack, |_| true, |slack| RedisSubject::new(settings, members, query, slack));
}

/// Goal: a Redis that only remembers keeps every law that is asked of an engine without fencing.
#[test]
fn redis_in_memory_keeps_the_laws() {
    keeps_the_laws(&[], 1, EXACT);
}

/// Goal: a Redis that syncs every write is durable and fenced, and a kill -9 loses nothing.
#[test]
fn durable_redis_keeps_the_laws() {
    keeps_the_laws(DURABLE, 1, EXACT);
}

/// Goal: three processes on one Redis are one engine.
#[test]
fn a_fleet_on_redis_keeps_the_laws() {
    keeps_the_laws(DURABLE, 3, EXACT);
}

/// Goal: names with a prefix, and waiters of another client that are woken, change nothing.
#[test]
fn a_preset_keeps_the_laws() {
    keeps_the_laws(&[], 1, "?preset=python-redis-lock&slew=0");
}
