//! The ZooKeeper engine: the conformance suite on a real server, with minded leases alone and as a fleet, with session
//! leases, and in each layout.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)] // a real server lives in real time

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use leasehold::conformance::{BoxFuture, Fleet, Real, Subject, run_in_real_time};
use leasehold::engine::Engine;
use leasehold::engine::zookeeper::{ZookeeperEngine, ZookeeperEngineOptions};
use leasehold_harness::zookeeper::ZookeeperEnsemble;

/// How far an answer may be off on a busy machine. Three times this makes units of 3 s: a ttl of ten fits in a session.
const SLACK: Duration = Duration::from_millis(250);

/// Most laws wait for time to pass.
const LAWS_AT_ONCE: usize = 32;

/// One server for all laws. It ends with this process.
fn ensemble() -> &'static ZookeeperEnsemble {
    static ENSEMBLE: OnceLock<ZookeeperEnsemble> = OnceLock::new();
    ENSEMBLE.get_or_init(|| ZookeeperEnsemble::start(1))
}

/// A chroot that nobody else uses.
fn new_chroot() -> String {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    format!("law/{}", MADE.fetch_add(1, Ordering::SeqCst))
}

/// How a subject opens its engines.
#[derive(Clone, Copy)]
struct Kind {
    query: &'static str,
    members: usize,
    reopens: bool,
}

async fn open(chroot: &str, query: &str) -> Arc<dyn Engine> {
    let url = format!("{}?{query}", ensemble().url(chroot));
    let options = ZookeeperEngineOptions::from_url(&url).expect("a url");
    ZookeeperEngine::open(options).await.expect("the engine opens")
}

/// A subject in real time that remembers which chroot it made last.
struct Zookeeper {
    real: Real,
    last: Arc<std::sync::Mutex<Option<String>>>,
    kind: Kind,
}

impl Zookeeper {
    fn new(kind: Kind, slack: Duration) -> Self {
        let last = Arc::new(std::sync::Mutex::new(None));
        let made = last.clone();
        let real = Real::new(slack, move || {
            let chroot = new_chroot();
            *made.lock().unwrap() = Some(chroot.clone());
            Box::pin(async move {
                if kind.members == 1 {
                    return open(&chroot, kind.query).await;
                }
                let mut engines = Vec::new();
                for _ in 0..kind.members {
                    engines.push(open(&chroot, kind.query).await);
                }
                Fleet::new(engines) as Arc<dyn Engine>
            })
        });
        Self { real, last, kind }
    }

    fn last(&self) -> String {
        self.last.lock().unwrap().clone().expect("a fresh engine was made")
    }

    fn is_session(&self) -> bool {
        self.kind.query.contains("lease=session")
    }
}

impl Subject for Zookeeper {
    fn fresh(&self) -> BoxFuture<'_, Arc<dyn Engine>> {
        self.real.fresh()
    }

    fn pass(&self, span: Duration) -> BoxFuture<'_, ()> {
        self.real.pass(span)
    }

    fn unit(&self) -> Duration {
        self.real.unit()
    }

    fn slack(&self) -> Duration {
        self.real.slack()
    }

    fn reopen(&self) -> BoxFuture<'_, Option<Arc<dyn Engine>>> {
        Box::pin(async { if self.kind.reopens { Some(open(&self.last(), self.kind.query).await) } else { None } })
    }

    fn beside(&self) -> BoxFuture<'_, Option<Arc<dyn Engine>>> {
        Box::pin(async { Some(open(&self.last(), self.kind.query).await) })
    }

    /// Each process remembers the endings that it saw.
    fn forgets_endings(&self) -> bool {
        self.kind.members > 1 || self.kind.reopens
    }

    fn joins_requests(&self) -> bool {
        self.kind.members == 1
    }

    /// Of a session of 40 s all but 4 s.
    fn longest_ttl(&self) -> Duration {
        Duration::from_secs(if self.is_session() { 36 } else { 24 * 3600 })
    }
}

fn keeps_the_laws(kind: Kind, asked: impl Fn(&str) -> bool) {
    // Each suite has enough to do with its own sessions.
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    run_in_real_time(LAWS_AT_ONCE, SLACK, asked, |slack| Zookeeper::new(kind, slack));
}

/// Goal: minded leases keep the laws, and outlive the engine that took them.
/// Method: the suite on a real server, a chroot for each law; reopen is another engine on the chroot.
#[test]
fn minded_leases_keep_the_laws() {
    keeps_the_laws(Kind { query: "lease=minded", members: 1, reopens: true }, |_| true);
}

/// Goal: nothing that matters is in the memory of one process.
/// Method: the suite against three engines on one chroot, each call to the next of them.
#[test]
fn a_fleet_keeps_the_laws() {
    keeps_the_laws(Kind { query: "lease=minded", members: 3, reopens: false }, |_| true);
}

/// Goal: session leases keep the laws, within the life of a session.
#[test]
fn session_leases_keep_the_laws() {
    // A thousand units are longer than a session.
    let asked = |law: &str| law != "a_dropped_acquire_leaves_no_lease";
    keeps_the_laws(Kind { query: "lease=session", members: 1, reopens: false }, asked);
}

/// Laws that tell whether names, order and modes are right.
const OF_EVERY_LAYOUT: [&str; 12] = [
    "a_crowd_is_let_in_one_at_a_time",
    "readers_share_and_a_writer_waits",
    "permits_never_exceed_the_capacity",
    "modes_exclude_each_other",
    "a_second_release_answers_false",
    "revoke_ends_every_lease_and_counts",
    "tokens_rise_over_every_ending",
    "several_are_all_or_nothing",
    "the_line_is_served_in_order",
    "a_newcomer_does_not_overtake",
    "a_repeat_gets_the_same_lease",
    "inspect_shows_holders",
];

/// Goal: the other layouts decide the same.
#[test]
fn every_layout_keeps_the_laws_of_order() {
    for query in [
        "layout=kazoo&lease=minded",
        "layout=both&lease=minded",
        "layout=kazoo&lease=session",
        "layout=both&lease=session",
    ] {
        keeps_the_laws(Kind { query, members: 1, reopens: false }, |law| OF_EVERY_LAYOUT.contains(&law));
    }
}
