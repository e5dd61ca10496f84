//! The conformance suite against every engine we have, each law a test of its own.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use leasehold::conformance::{LAWS, Manual, Soon, attempt};
use leasehold::engine::Engine;
use leasehold::engine::embedded::{Embedded, Options, Visitor};
use leasehold::testkit::{CoreEngine, ManualClock, Pace};
use leasehold_core::Limits;
use tempfile::TempDir;

mod core_told_at_once {
    leasehold::conformance_tests!(super::core(super::Pace::Prompt));
}

mod core_told_late {
    leasehold::conformance_tests!(super::core(super::Pace::Late));
}

mod embedded {
    leasehold::conformance_tests!(super::embedded());
}

/// The bare book. It must not matter when it is told that time has passed.
fn core(pace: Pace) -> Manual {
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
    fn new() -> Self {
        Self { root: Arc::new(tempfile::tempdir().expect("a place for the journals")), made: Arc::default() }
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

fn open(dir: PathBuf, clock: &ManualClock) -> Soon<'static, Arc<dyn Engine>> {
    let options = options(clock);
    Box::pin(async move { Embedded::open(dir, options).await.expect("the directory opens") as Arc<dyn Engine> })
}

fn embedded() -> Manual {
    let dirs = Dirs::new();
    let again = dirs.clone();
    Manual::new(move |clock| open(dirs.next(), clock)).reopened_by(move |clock| open(again.last(), clock))
}

/// The embedded engine, opened anew for every single operation.
fn visitor() -> Manual {
    let dirs = Dirs::new();
    Manual::new(move |clock| {
        let engine = Visitor::new(dirs.next(), options(clock));
        Box::pin(async move { engine as Arc<dyn Engine> })
    })
}

/// Goal: everything the engine knows survives a restart after every operation.
/// Method: the laws against a visitor, except those that are not about visits.
#[tokio::test]
async fn a_visitor_keeps_the_laws() {
    /// A visitor has nothing open between operations, and so nothing to close.
    const NOT_ABOUT_VISITS: &[&str] = &["a_closed_engine_is_unavailable"];
    let mut broken = Vec::new();
    for law in LAWS.iter().filter(|law| !NOT_ABOUT_VISITS.contains(&law.name)) {
        let t = std::time::Instant::now();
        let r = attempt(law, &visitor()).await;
        eprintln!("{} {:?} {:?}", law.name, t.elapsed(), r);
        if let Err(why) = r {
            broken.push(format!("{}: {why}", law.name));
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}
