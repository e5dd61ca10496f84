//! The checkers catch what they are for: each planted bug is found within a bounded number of seeds.
//!
//! Only in the tree with planted bugs: see `scripts/planted`.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::SystemClock;
use leasehold::engine::embedded::storage::Storage;
use leasehold::engine::embedded::{CompletionQueue, Embedded, Options, Stopped};
use leasehold::engine::{Engine, Seen};
use leasehold_core::planted::{Bug, plant};
use leasehold_core::{Acquire, Reply, WaiterId, Want};
use leasehold_torture::disk::{Faults, SimDisk};
use leasehold_torture::images::{ImageCounts, at_rest};
use leasehold_torture::invariant;
use leasehold_torture::sim::{self, RunSize};

/// Which law a seed breaks, whether a checker says so or an assertion in the code under test.
fn verdict(seed: u64) -> Option<String> {
    let run = std::panic::catch_unwind(|| sim::run(seed, RunSize::default()));
    match run {
        Ok(run) => match invariant::check_all(&run.history) {
            Err((law, why)) => Some(format!("{law}: {why}")),
            Ok(()) => flipped(seed).or_else(|| if seed == 0 { pressed() } else { None }),
        },
        Err(_) => Some("an assertion in the code under test".into()),
    }
}

/// What only damage shows: a few flipped bits.
fn flipped(seed: u64) -> Option<String> {
    let rest = match at_rest(seed, 60) {
        Ok(rest) => rest,
        Err(why) => return Some(why),
    };
    let mut counts = ImageCounts::default();
    rest.bits()
        .into_iter()
        .find_map(|(name, bits)| (0..bits).step_by(997).find_map(|bit| rest.flip(&name, bit, &mut counts).err()))
}

/// What only the real engine shows: a server thread writes on a disk that works, and then on one that does not.
fn pressed() -> Option<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
    runtime.block_on(async {
        let disk = SimDisk::default();
        let storage: Arc<dyn Storage> = Arc::new(disk.clone());
        let engine = Embedded::open_on(storage, Options::default()).await.expect("opens");
        let mut watch = engine.watch(None).await.expect("a watch");
        let Ok(Seen::Reset(_)) = watch.next().await else { return Some("a watch begins with a reset".into()) };
        match take(&engine, "before").await {
            Ok(Reply::Granted(_)) => {}
            // The thread that wrote it panicked: its callers were answered, and the engine has stopped.
            Err(Stopped::Unknown(_)) if engine.counts().await.is_err() => return Some("the press panics".into()),
            other => return Some(format!("on a disk that works: {other:?}")),
        }
        let Ok(Seen::Events(_)) = watch.next().await else { return Some("no news of a grant".into()) };
        disk.set_faults(Faults { fail_sync: true, ..Faults::default() });
        match take(&engine, "lost").await {
            Err(Stopped::Unknown(_)) => {}
            other => return Some(format!("on a disk that fails: {other:?}")),
        }
        match watch.next().await {
            Ok(seen) => Some(format!("news of what may never have been: {seen:?}")),
            Err(_) => None,
        }
    })
}

/// One acquire by a server thread that writes its own batch; the answer must be there when that returns, or soon.
async fn take(engine: &Embedded, name: &str) -> Result<Reply, Stopped> {
    let completions = CompletionQueue::new(|| {});
    let mut locked = engine.lock_for_batch();
    let wants = [Want::exclusive(name)];
    let claim = Acquire::new(WaiterId(0), &wants, 60_000, "locked", locked.secret());
    if let Some(reply) = locked.acquire(claim, &completions, 1)?.0 {
        return Ok(reply);
    }
    locked.write();
    let clock = SystemClock::shared();
    let until = clock.now().plus(Duration::from_secs(20));
    let mut answers = Vec::new();
    while answers.is_empty() {
        assert!(clock.now() < until, "no answer comes");
        completions.take(&mut answers);
        tokio::task::yield_now().await;
    }
    answers.remove(0).1
}

/// Goal: no checker is asleep. Method: plant one bug at a time and look for a seed that gives it away.
#[test]
fn every_planted_bug_is_caught() {
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    for bug in Bug::ALL {
        plant(bug);
        match (0..200).find_map(|seed| verdict(seed).map(|why| (seed, why))) {
            Some((seed, why)) => println!("{bug:?}: seed {seed}: {why}"),
            None => missed.push(bug),
        }
    }
    plant(Bug::None);
    assert!(missed.is_empty(), "not caught: {missed:?}");
    // And without a bug the same seeds are clean: it is the bug that was found.
    for seed in 0..100 {
        assert_eq!(verdict(seed), None, "seed {seed} without any bug");
    }
}
