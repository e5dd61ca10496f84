//! The conformance suite against every engine we have, each law a test of its own.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::clock::SystemClock;
use leasehold::conformance::{BoxFuture, LAWS, Manual, Real, Subject, attempt};
use leasehold::engine::Engine;
use leasehold::engine::embedded::journal::JournalSizes;
use leasehold::engine::embedded::{Embedded, Options, Visitor};
use leasehold::testkit::{CoreEngine, ManualClock, TickTiming};
use leasehold_core::Limits;
use tempfile::TempDir;

mod core_told_at_once {
    leasehold::conformance_tests!(super::core(super::TickTiming::Prompt));
}

mod core_told_late {
    leasehold::conformance_tests!(super::core(super::TickTiming::Late));
}

mod embedded {
    leasehold::conformance_tests!(super::embedded(super::options));
}

mod embedded_with_a_small_journal {
    leasehold::conformance_tests!(super::embedded(super::small));
}

/// The bare book. It must not matter when it is told that time has passed.
fn core(pace: TickTiming) -> Manual {
    Manual::new(move |clock| {
        let engine = CoreEngine::new(clock, Limits::default(), pace);
        Box::pin(async move { engine as Arc<dyn Engine> })
    })
}

/// Directories for engines, one for each; they go away with the subject.
#[derive(Clone)]
struct Dirs {
    root: Arc<TempDir>,
    made: Arc<AtomicUsize>,
}

impl Dirs {
    /// In memory where there is such a place: these laws are not about the disk.
    fn new() -> Self {
        let root = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        Self { root: Arc::new(root.expect("a place for the journals")), made: Arc::default() }
    }

    fn next(&self) -> PathBuf {
        self.made.fetch_add(1, Ordering::SeqCst);
        self.last()
    }

    fn last(&self) -> PathBuf {
        self.root.path().join(self.made.load(Ordering::SeqCst).to_string())
    }
}

fn options(clock: &ManualClock) -> Options {
    Options { clock: clock.shared(), ..Options::default() }
}

/// Everything small: a few leases fill a segment, bring about a snapshot and use up the reserved tokens.
fn small(clock: &ManualClock) -> Options {
    let sizes = JournalSizes { segment: 128 << 10, snapshot_after: 1 << 10, tokens: 4 };
    Options { sizes, ..options(clock) }
}

fn open(dir: PathBuf, options: Options) -> BoxFuture<'static, Arc<dyn Engine>> {
    Box::pin(async move { Embedded::open(dir, options).await.expect("the directory opens") as Arc<dyn Engine> })
}

fn embedded(options: fn(&ManualClock) -> Options) -> Manual {
    let dirs = Dirs::new();
    let again = dirs.clone();
    Manual::new(move |clock| open(dirs.next(), options(clock)))
        .reopened_by(move |clock| open(again.last(), options(clock)))
}

/// The embedded engine, opened anew for every single operation.
fn visitor() -> Manual {
    let dirs = Dirs::new();
    Manual::new(move |clock| {
        let engine = Visitor::new(dirs.next(), small(clock));
        Box::pin(async move { engine as Arc<dyn Engine> })
    })
}

const NOT_FOR_VISITORS: &[&str] = &[
    // It has nothing open between two operations, and so nothing to close.
    "a_closed_engine_is_unavailable",
    // Two calls at once (see below), and too exact for a busy machine in real time.
    "a_waiter_is_served_on_lapse",
    "patience_runs_out",
];

/// Laws with two calls at once: a visitor waits for another's moment on the clock, so the clock must go by itself.
const VISITORS_MEET: &[&str] = &[
    "a_crowd_gets_one_holder",
    "revoke_serves_the_line",
    "tokens_rise_over_every_ending",
    "a_waiting_claim_holds_nothing",
    "opposite_orders_do_not_deadlock",
    "a_waiter_is_served_on_release",
    "a_waiter_who_leaves_is_forgotten",
    "a_new_label_changes_nothing_else",
    "a_dropped_acquire_leaves_no_lease",
    "a_refusal_is_not_stored",
    "a_repeat_beside_a_refusal_is_no_grant",
    "a_repeat_while_waiting_joins",
    "no_secret_is_ever_shown",
];

/// Goal: everything the engine knows survives a restart after every single operation.
/// Method: the laws against a visitor, which opens and closes the directory for each.
#[tokio::test]
async fn a_visitor_keeps_the_laws() {
    let alone = |name: &str| !NOT_FOR_VISITORS.contains(&name) && !VISITORS_MEET.contains(&name);
    keeps_the_laws(&visitor(), alone).await;
}

/// Goal: visitors that meet wait for each other, and strand nothing.
/// Method: the laws with two calls at once, in real time.
#[tokio::test]
async fn visitors_that_meet_keep_the_laws() {
    let dirs = Dirs::new();
    let real = Real::new(Duration::from_millis(150), move || {
        let options = Options { clock: SystemClock::shared(), ..small(&ManualClock::new()) };
        let engine = Visitor::new(dirs.next(), options);
        Box::pin(async move { engine as Arc<dyn Engine> })
    });
    keeps_the_laws(&real, |name| VISITORS_MEET.contains(&name)).await;
}

async fn keeps_the_laws(subject: &dyn Subject, asked: impl Fn(&str) -> bool) {
    let mut broken = Vec::new();
    for law in LAWS.iter().filter(|law| asked(law.name)) {
        if let Err(why) = attempt(law, subject).await {
            broken.push(format!("{}: {why}", law.name));
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}
