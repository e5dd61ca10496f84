//! The suite has teeth: every bug that can be planted in the book breaks a law or a scenario.
//!
//! Only in the tree with planted bugs: see `scripts/planted`.

use std::path::Path;
use std::sync::Arc;

use leasehold::conformance::{LAWS, Manual, attempt};
use leasehold::engine::Engine;
use leasehold::testkit::scenario::Scenario;
use leasehold::testkit::{CoreEngine, ManualClock, TickTiming};
use leasehold_core::Limits;
use leasehold_core::planted::{Bug, plant};

/// What lives in the book and the fence; bugs of the journal are the torture crate's.
const BUGS: &[Bug] = &[
    Bug::LapseEarly,
    Bug::ReviveDue,
    Bug::ReleaseSuccessor,
    Bug::AnySecret,
    Bug::Overtake,
    Bug::LoseBaton,
    Bug::GhostGrant,
    Bug::DoubleEnqueue,
    Bug::ForgetRequest,
    Bug::IgnoreCap,
    Bug::MixReaders,
    Bug::ExtraPermit,
    Bug::HalfClaim,
];

async fn broken_law() -> Option<&'static str> {
    let core = Manual::new(|clock| {
        let engine = CoreEngine::new(clock, Limits::default(), TickTiming::Late);
        Box::pin(async move { engine as Arc<dyn Engine> })
    });
    for law in LAWS {
        if attempt(law, &core).await.is_err() {
            return Some(law.name);
        }
    }
    None
}

async fn broken_scenario() -> Option<String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/scenarios");
    for script in Scenario::load_all(&dir).expect("the scenarios parse") {
        let clock = ManualClock::new();
        let engine = CoreEngine::new(&clock, script.limits().clone(), TickTiming::Late);
        let played = tokio::spawn(async move { script.run(engine, &clock).await });
        match played.await {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => return Some(failure.to_string()),
            Err(panic) => return Some(panic.to_string()),
        }
    }
    None
}

/// Goal: neither the laws nor the scenarios let a planted bug pass.
/// Method: one bug at a time; the switch is global, so this is one test.
#[tokio::test]
async fn every_bug_planted_in_the_book_is_caught() {
    let mut missed = Vec::new();
    for bug in std::iter::once(&Bug::None).chain(BUGS) {
        plant(*bug);
        let (law, scenario) = (broken_law().await, broken_scenario().await);
        println!("{bug:?}: {law:?}, {scenario:?}");
        if (law.is_some(), scenario.is_some()) != (*bug != Bug::None, *bug != Bug::None) {
            missed.push(format!("{bug:?}: law {law:?}, scenario {scenario:?}"));
        }
    }
    plant(Bug::FenceAcceptsStale);
    if broken_scenario().await.is_none() {
        missed.push("FenceAcceptsStale".into());
    }
    plant(Bug::None);
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}
