//! Every script in `tests/scenarios/`, against every engine we have.

use std::path::Path;
use std::sync::Arc;

use leasehold::engine::Engine;
use leasehold::engine::embedded::{Embedded, Options};
use leasehold::testkit::scenario::Scenario;
use leasehold::testkit::{CoreEngine, ManualClock, TickTiming};
use leasehold_core::Time;

fn scripts() -> Vec<Scenario> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/scenarios");
    let dir = dir.canonicalize().expect("the scenarios are where they were");
    // Fails where there is none: a suite that runs nothing must not pass.
    Scenario::load_all(&dir).unwrap_or_else(|failure| panic!("{failure}"))
}

/// Plays every script to an engine of its own, and tells all that went wrong at once.
async fn play_all<E: Engine>(open: impl AsyncFn(&Scenario, &ManualClock) -> Arc<E>) {
    let mut failures = Vec::new();
    for script in scripts() {
        let clock = ManualClock::new();
        clock.set(Time::from_millis(1_234_567));
        let engine = open(&script, &clock).await;
        if let Err(failure) = script.run(engine.clone(), &clock).await {
            failures.push(failure.to_string());
        }
        let _ = engine.close().await;
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Goal: the book keeps the semantics when time is told to it at once.
/// Method: the bare core, which collects what is due before it hears the next command.
#[tokio::test]
async fn the_core_plays_every_scenario() {
    play_all(async |script, clock| CoreEngine::new(clock, script.limits().clone(), TickTiming::Prompt)).await;
}

/// Goal: no answer depends on when the book is told the time.
/// Method: the bare core, which hears the next command before it collects what is due.
#[tokio::test]
async fn the_core_plays_every_scenario_when_it_is_told_the_time_late() {
    play_all(async |script, clock| CoreEngine::new(clock, script.limits().clone(), TickTiming::Late)).await;
}

/// Goal: the embedded engine answers as the core does.
/// Method: a directory of its own for each script, under a clock set by hand.
#[tokio::test]
async fn the_embedded_engine_plays_every_scenario() {
    let root = tempfile::tempdir().expect("a place for the journals");
    play_all(async |script: &Scenario, clock: &ManualClock| {
        let name = Path::new(script.file()).file_stem().expect("a script has a name").to_owned();
        let options = Options { clock: clock.shared(), limits: script.limits().clone(), ..Options::default() };
        Embedded::open(root.path().join(name), options).await.expect("an empty directory opens")
    })
    .await;
}
