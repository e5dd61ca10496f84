//! The conformance suite against Redlock over five real Redis servers.
#![cfg(feature = "redis")]
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test, with real servers in real time")]

use std::sync::Arc;
use std::time::Duration;

use leasehold::conformance::{BoxFuture, Fleet, Subject, run_in_real_time};
use leasehold::engine::Engine;
use leasehold::engine::redlock::{Redlock, RedlockOptions};
use leasehold_harness::redis::DURABLE;
use leasehold_harness::redlock::RedisNodes;

/// How far an answer may be off on a busy machine with dozens of servers. It covers the drift of the leases that laws take.
const SLACK: Duration = Duration::from_millis(150);
/// Laws mostly sleep, so several run at once, each with five servers of its own.
const LAWS_AT_ONCE: usize = 12;

/// Laws that cannot hold here, and why. Those that need shared leases or permits leave themselves out.
const NOT_FOR_REDLOCK: [&str; 1] = [
    // It takes a lease of a millisecond, which is all drift: Invalid here.
    "spans_round_up_to_a_millisecond",
];

/// Five servers, and one engine or a fleet of three on them.
struct RedlockSubject {
    nodes: Arc<RedisNodes>,
    members: usize,
    slack: Duration,
}

impl RedlockSubject {
    async fn open(&self) -> Arc<dyn Engine> {
        let options = RedlockOptions::from_url(&self.nodes.url("")).unwrap();
        let mut members: Vec<Arc<dyn Engine>> = Vec::new();
        for _ in 0..self.members {
            members.push(Redlock::open(options.clone()).await.expect("it opens"));
        }
        if members.len() == 1 { members.remove(0) } else { Fleet::new(members) }
    }
}

impl Subject for RedlockSubject {
    fn fresh(&self) -> BoxFuture<'_, Arc<dyn Engine>> {
        Box::pin(async {
            self.nodes.flush_all();
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

    fn reopen(&self) -> BoxFuture<'_, Option<Arc<dyn Engine>>> {
        Box::pin(async { None })
    }

    fn beside(&self) -> BoxFuture<'_, Option<Arc<dyn Engine>>> {
        Box::pin(async { Some(self.open().await) })
    }
}

fn keeps_the_laws(members: usize) {
    let asked = |name: &str| !NOT_FOR_REDLOCK.contains(&name);
    // A lease of a law may be longer than any quarantine: the nodes keep what they are told.
    run_in_real_time(LAWS_AT_ONCE, SLACK, asked, |slack| RedlockSubject {
        nodes: Arc::new(RedisNodes::start(5, DURABLE)),
        members,
        slack,
    });
}

/// Goal: a majority of five servers is an engine like the others.
#[test]
fn redlock_keeps_the_laws() {
    keeps_the_laws(1);
}

/// Goal: three processes on the same five servers are one engine.
#[test]
fn a_fleet_on_redlock_keeps_the_laws() {
    keeps_the_laws(3);
}
