//! Plays every script in real time: all at once, each to an engine of its own.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leasehold::engine::Engine;
use leasehold::testkit::scenario::{RealTimePace, Scenario};
use leasehold_core::Limits;

/// Four fifths of a script's time; a busy machine may be a quarter of a second late with all that one moment sets off.
const PACE: RealTimePace = RealTimePace {
    second: Duration::from_millis(800),
    tolerance: Duration::from_millis(320),
    any_order_together: true,
    // A session of ZooKeeper lives at most 40 s.
    longest: Duration::from_secs(30),
};

/// Opens an engine for each script by its name and limits, and tells all that went wrong at once.
pub async fn play_all<F>(open: impl Fn(String, Limits) -> F)
where
    F: Future<Output = Arc<dyn Engine>>,
{
    play_chosen(|_| true, open).await;
}

/// The same with those scripts that are chosen by their text.
pub async fn play_chosen<F>(is_chosen: impl Fn(&str) -> bool, open: impl Fn(String, Limits) -> F)
where
    F: Future<Output = Arc<dyn Engine>>,
{
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/scenarios");
    let mut scripts = Scenario::load_all(&dir).unwrap_or_else(|failure| panic!("{failure}"));
    scripts.retain(|script| is_chosen(&std::fs::read_to_string(script.file()).expect("it was read before")));
    let count = scripts.len();
    let mut playing = tokio::task::JoinSet::new();
    for script in scripts {
        let name = Path::new(script.file()).file_stem().expect("a script has a name").to_string_lossy().into_owned();
        let engine = open(name, script.limits().clone()).await;
        playing.spawn(async move {
            let played = script.run_in_real_time(engine.clone(), PACE).await.map_err(|failure| failure.to_string());
            let _ = engine.close().await;
            played
        });
    }
    let failures: Vec<String> = playing.join_all().await.into_iter().filter_map(Result::err).collect();
    assert!(failures.is_empty(), "{} of {count}:\n{}", failures.len(), failures.join("\n"));
    eprintln!("{count} scenarios played");
}
