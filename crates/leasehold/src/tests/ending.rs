//! How a lease ends from the guard's side: release, drop, and the closure form.

use super::*;
use crate::{Error, Lost, Refusal, RunError};

/// Goal: release ends the lease at the engine at once, and nothing is renewed afterwards.
/// Method: release, look at the engine, let two ttls pass, count.
#[tokio::test]
async fn release_frees_the_resource_and_stops_renewing() {
    let world = World::new();
    let lease = world.seat().await.unwrap();
    let cancelled = lease.cancellation();
    assert!(lease.release().await.unwrap());
    assert!(cancelled.is_cancelled(), "nobody keeps it up any more");
    assert!(world.is_free().await);
    world.pass(secs(60)).await;
    assert_eq!(world.renewals(), 0);
    assert_eq!(world.clock.sleeping(), 0, "no sleeper is left behind");
}

/// Goal: a release that fails returns the error, and the guard renews no more all the same.
/// Method: the engine is away at release; the lease must lapse with its ttl.
#[tokio::test]
async fn a_failed_release_is_reported_and_stops_renewing() {
    let world = World::new();
    let lease = world.seat().await.unwrap();
    let id = lease.lease_id().clone();
    world.flaky.spoil(EngineCall::Release, EngineFault::Unavailable, 1);
    assert!(matches!(lease.release().await, Err(Error::Unavailable { .. })));
    world.pass(Duration::from_millis(29_900)).await;
    assert!(!world.is_free().await);
    world.pass(Duration::from_millis(100)).await;
    assert!(world.is_free().await);
    assert_eq!(world.renewals(), 0);
    assert!(matches!(world.leasehold.release(&id).await, Err(Error::Refused(Refusal::Stale))));
}

/// Goal: a release can be repeated by the bare id when its answer was lost.
/// Method: the release takes effect, its answer does not arrive; the repeat says that it had been released.
#[tokio::test]
async fn a_release_with_a_lost_answer_can_be_repeated_by_id() {
    let world = World::new();
    let lease = world.seat().await.unwrap();
    let id = lease.lease_id().clone();
    world.flaky.spoil(EngineCall::Release, EngineFault::Indeterminate, 1);
    assert!(matches!(lease.release().await, Err(Error::Indeterminate { .. })));
    assert!(!world.leasehold.release(&id).await.unwrap());
}

/// Goal: drop stops the renewals, makes no call at all, and lets the ttl finish.
/// Method: drop, then compare the calls of every verb, and watch the engine let the lease lapse.
#[tokio::test]
async fn drop_stops_renewing_and_lets_the_ttl_finish() {
    let world = World::new();
    let lease = world.seat().await.unwrap();
    world.pass(secs(10)).await;
    let cancelled = lease.cancellation();
    drop(lease);
    assert!(cancelled.is_cancelled());
    world.pass(Duration::from_millis(29_900)).await;
    assert!(!world.is_free().await);
    world.pass(Duration::from_millis(100)).await;
    assert!(world.is_free().await);
    assert_eq!((world.renewals(), world.flaky.calls(EngineCall::Release)), (1, 0));
    assert_eq!(world.clock.sleeping(), 0);
}

/// Goal: a renewal under way does not outlive the guard.
/// Method: the renewal hangs before it takes effect; drop the guard; let the renewal go on.
#[tokio::test]
async fn a_renewal_under_way_ends_with_the_guard() {
    let world = World::new();
    let lease = world.seat().await.unwrap();
    world.flaky.spoil(EngineCall::Renew, EngineFault::HangBefore, 1);
    world.pass(secs(10)).await;
    drop(lease);
    settle().await;
    world.flaky.resume();
    world.pass(secs(20)).await;
    assert!(world.is_free().await, "the hanging renewal must not have taken effect");
}

/// Goal: a child of the token is the caller's own.
/// Method: cancel what `cancellation` gave, and ask for it again.
#[tokio::test]
async fn cancelling_ones_own_token_does_not_touch_the_lease() {
    let world = World::new();
    let lease = world.seat().await.unwrap();
    lease.cancellation().cancel();
    assert!(lease.is_safe() && !lease.cancellation().is_cancelled());
}

/// Goal: the closure form hands over the lease, returns the result, and releases.
/// Method: spawned, so that its future must be `Send` although the work borrows the lease over an await.
#[tokio::test]
async fn run_returns_the_result_and_releases() {
    let world = World::new();
    let run = world.seat().fenced().run(async |lease| {
        let renewed = lease.renew().await.unwrap().remaining;
        (lease.token().get(), renewed)
    });
    assert_eq!(tokio::spawn(run).await.unwrap().unwrap(), (1, secs(30)));
    assert!(world.is_free().await);
}

/// Goal: the work is cut off when the lease is lost.
/// Method: work that would last for ever; the engine is away.
#[tokio::test]
async fn run_cuts_the_work_off_at_the_loss() {
    let world = World::new();
    world.spoil(EngineCall::Renew, EngineFault::Unavailable);
    let work = spawn(world.seat().run(async |_| std::future::pending::<()>().await)).await;
    world.pass(Duration::from_millis(29_900)).await;
    assert!(!work.is_finished());
    world.pass(Duration::from_millis(100)).await;
    assert!(matches!(work.await.unwrap(), Err(RunError::Lost(Lost::Lapsed))));
}

/// Goal: work that came to its end under a lease that had ended is not passed off as done under it.
/// Method: the seat is revoked during the work; only the release shows it.
#[tokio::test]
async fn run_reports_a_lease_that_ended_under_the_work() {
    let world = World::new();
    let leasehold = world.leasehold.clone();
    let run = world.seat().run(async move |_| leasehold.revoke("seat-14", "maintenance").await.unwrap());
    assert!(matches!(run.await, Err(RunError::Lost(Lost::Stale))));
}

/// Goal: work that blocks its thread past the end is not passed off as done under the lease.
/// Method: time passes inside the work, where no await lets anybody cut it off; the engine is away, so
/// that only the clock can tell.
#[tokio::test]
async fn run_reports_work_that_ended_after_the_lease() {
    let world = World::new();
    world.flaky.spoil(EngineCall::Release, EngineFault::Unavailable, 1);
    let clock = world.clock.clone();
    let run = world.seat().run(async move |_| clock.advance(secs(30)));
    assert!(matches!(run.await, Err(RunError::Lost(Lost::Lapsed))));
}

/// Goal: a release that cannot be asked for does not take the result away.
/// Method: the engine is away at the end of the work.
#[tokio::test]
async fn run_keeps_the_result_when_the_release_cannot_be_asked_for() {
    let world = World::new();
    world.flaky.spoil(EngineCall::Release, EngineFault::Unavailable, 1);
    assert_eq!(world.seat().run(async |_| 42).await.unwrap(), 42);
}

#[tokio::test]
async fn run_without_a_grant_does_not_run() {
    let world = World::new();
    let _held = world.seat().await.unwrap();
    let run = world.seat().run(async |_| panic!("ran without a grant"));
    assert!(matches!(run.await, Err(RunError::NotGranted(Error::Refused(Refusal::Held { .. })))));
}

/// Goal: guards can be kept anywhere.
#[test]
fn guards_can_be_moved_and_shared_between_threads() {
    fn anywhere<T: Send + Sync + 'static>() {}
    anywhere::<crate::Lease>();
    anywhere::<crate::FencedLease>();
    anywhere::<Leasehold>();
    anywhere::<Acquire>();
}
