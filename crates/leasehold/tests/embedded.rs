//! What only the embedded engine can get wrong: its thread and its directory.

use std::time::Duration;

use leasehold::clock::SystemClock;
use leasehold::engine::Engine;
use leasehold::engine::embedded::{Embedded, Options};

/// Goal: who gives up waiting for an engine to open does not leave it running with the directory locked.
/// Method: poll the opening once, let the thread finish it unseen, drop it, and open again.
#[tokio::test]
async fn an_opening_that_is_given_up_lets_go_of_the_directory() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let clock = SystemClock::shared();
    let mut opening = Box::pin(Embedded::open(dir.path(), Options::default()));
    tokio::select! {
        biased;
        _ = &mut opening => panic!("it opened before it was given up"),
        () = std::future::ready(()) => {}
    }
    // The ceiling is written before the engine is handed over; some more time lets the hand-over happen.
    while std::fs::metadata(dir.path().join("journal-0000000000000001")).is_err() {
        clock.sleep_until(clock.now().plus(Duration::from_millis(1))).await;
    }
    clock.sleep_until(clock.now().plus(Duration::from_millis(100))).await;
    drop(opening);
    let until = clock.now().plus(Duration::from_secs(10));
    loop {
        match Embedded::open(dir.path(), Options::default()).await {
            Ok(engine) => return engine.close().await.unwrap(),
            Err(error) => assert!(clock.now() < until, "still locked: {error:?}"),
        }
        clock.sleep_until(clock.now().plus(Duration::from_millis(5))).await;
    }
}
