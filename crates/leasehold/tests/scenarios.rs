//! Every script in `tests/scenarios/`, against every engine we have.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leasehold::engine::Engine;
use leasehold::engine::embedded::{Embedded, Options};
use leasehold::testkit::scenario::{RealTimePace, Scenario};
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

/// Plays one script in real time to an embedded engine of its own.
async fn play_in_real_time(script: Scenario, root: &Path) -> Result<(), String> {
    let name = Path::new(script.file()).file_stem().expect("a script has a name").to_owned();
    let options = Options { limits: script.limits().clone(), ..Options::default() };
    let engine = Embedded::open(root.join(name), options).await.expect("an empty directory opens");
    let pace = RealTimePace {
        second: Duration::from_millis(500),
        tolerance: Duration::from_millis(200),
        any_order_together: false,
        longest: Duration::from_secs(3600),
    };
    let played = script.run_in_real_time(engine.clone(), pace).await.map_err(|failure| failure.to_string());
    let _ = engine.close().await;
    played
}

/// Goal: the player in real time is right about an engine that is right.
/// Method: the embedded engine under the machine's clock, all scripts at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_embedded_engine_plays_every_scenario_in_real_time() {
    let root = tempfile::tempdir().expect("a place for the journals");
    let mut playing = tokio::task::JoinSet::new();
    for script in scripts() {
        let root = root.path().to_owned();
        playing.spawn(async move { play_in_real_time(script, &root).await });
    }
    let failures: Vec<String> = playing.join_all().await.into_iter().filter_map(Result::err).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Goal: the player in real time notices a lease that ends too soon, or too late, and a line that is not kept.
/// Method: scripts that are wrong by half a second of the script.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_player_in_real_time_notices_what_is_wrong() {
    let wrong = [
        ("too_soon", "at 0s ada acquire a ttl=3s -> granted\nat 2400ms bob acquire a ttl=1s -> granted\n"),
        ("too_late", "at 0s ada acquire a ttl=3s -> granted\nat 3600ms bob acquire a ttl=1s -> held\n"),
        ("remaining", "at 0s ada acquire a ttl=5s -> granted\nat 1s bob acquire a ttl=1s -> held remaining=5500ms\n"),
        (
            "order",
            "at 0s ada acquire a ttl=5s -> granted\nat 1s bob acquire a ttl=5s wait=4s -> waiting\n\
             at 1s cy acquire a ttl=5s wait=4s -> waiting\nat 2s ada release a -> released\nat 2s cy -> granted\n\
             at 2s bob cancel -> cancelled\n",
        ),
    ];
    let root = tempfile::tempdir().expect("a place for the journals");
    for (name, text) in wrong {
        let script = Scenario::parse(&format!("{name}.txt"), text).expect("a script");
        let failure = play_in_real_time(script, root.path()).await.expect_err(name);
        assert!(failure.contains("expected"), "{name}: {failure}");
    }
}
