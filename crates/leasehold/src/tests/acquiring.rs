//! From the claim to the guard: validity, tightening after a wait, fencing, dropping half way.

use super::*;
use crate::fence::{FenceError, FenceRefusal, Register};
use crate::{Error, Lost, Refusal};

/// Goal: validity is counted from before the request was sent.
/// Method: an answer that takes 5 s leaves 25 s of 30.
#[tokio::test]
async fn validity_is_counted_from_before_the_request_was_sent() {
    let world = World::new();
    world.flaky.spoil(EngineCall::Acquire, EngineFault::HangAfter, 1);
    let acquire = spawn(world.seat().into_future()).await;
    world.pass(secs(5)).await;
    world.flaky.resume();
    let lease = acquire.await.unwrap().unwrap();
    assert_eq!(lease.remaining(), secs(25));
    assert_eq!(world.renewals(), 0);
    world.pass(secs(5)).await;
    assert_eq!(world.renewals(), 1, "and so is the moment of the first renewal");
}

/// Goal: a long wait in line does not eat the ttl.
/// Method: bob waits 100 s for ada, longer than his ttl; his lease must be whole, by one renewal.
#[tokio::test]
async fn a_long_wait_does_not_eat_the_validity() {
    let world = World::new();
    let ada = world.seat().renewing(false).ttl(secs(100)).await.unwrap();
    let bob = spawn(world.seat().holder("bob").wait(secs(200)).into_future()).await;
    world.pass(secs(99)).await;
    assert!(ada.release().await.unwrap());
    let bob = bob.await.unwrap().unwrap();
    assert_eq!((bob.remaining(), world.renewals()), (secs(30), 1));
    assert_eq!(told(&bob).await, (false, false, false));
}

/// Goal: a short wait asks nothing more.
/// Method: bob waits for less than a third of his ttl.
#[tokio::test]
async fn a_short_wait_is_simply_counted() {
    let world = World::new();
    let ada = world.seat().renewing(false).await.unwrap();
    let bob = spawn(world.seat().wait(secs(60)).into_future()).await;
    world.pass(secs(9)).await;
    ada.release().await.unwrap();
    let bob = bob.await.unwrap().unwrap();
    assert_eq!(bob.remaining(), secs(21));
    assert_eq!(world.renewals(), 0);
}

/// Goal: if the grant ended before its answer came, the acquire says so and gives no guard.
/// Method: the answer takes longer than the ttl; the renewal finds the lease lapsed.
#[tokio::test]
async fn a_grant_that_lapsed_on_its_way_is_refused_as_stale() {
    let world = World::new();
    world.flaky.spoil(EngineCall::Acquire, EngineFault::HangAfter, 1);
    let acquire = spawn(world.seat().into_future()).await;
    world.pass(secs(31)).await;
    world.flaky.resume();
    assert!(matches!(acquire.await.unwrap(), Err(Error::Refused(Refusal::Stale))));
}

/// Goal: if the renewal cannot be asked for, the provable rest is handed out.
/// Method: the answer takes 15 s; renewals fail, or hang. 15 s are left; a silent engine costs 10 of them.
#[tokio::test]
async fn the_provable_rest_is_handed_out_when_the_renewal_cannot_be_asked_for() {
    for fault in [EngineFault::Unavailable, EngineFault::Indeterminate, EngineFault::HangBefore] {
        let world = World::new();
        world.flaky.spoil(EngineCall::Acquire, EngineFault::HangAfter, 1);
        world.spoil(EngineCall::Renew, fault);
        let acquire = spawn(world.seat().into_future()).await;
        world.pass(secs(15)).await;
        world.flaky.resume();
        settle().await;
        if fault == EngineFault::HangBefore {
            world.pass(secs(10)).await;
        }
        let lease = acquire.await.unwrap().unwrap();
        let left = if fault == EngineFault::HangBefore { secs(5) } else { secs(15) };
        assert_eq!(lease.remaining(), left, "{fault:?}");
        world.pass(left).await;
        assert_eq!(lease.lost().await, Lost::Lapsed);
    }
}

/// Goal: if nothing is provable, there is no guard: the lease is released, and the caller learns that
/// the outcome is unknown.
/// Method: bob waits longer than his ttl, and his renewal is away.
#[tokio::test]
async fn an_unprovable_grant_is_released_and_indeterminate() {
    let world = World::new();
    let ada = world.seat().renewing(false).ttl(secs(100)).await.unwrap();
    let bob = spawn(world.seat().wait(secs(200)).into_future()).await;
    world.pass(secs(50)).await;
    world.spoil(EngineCall::Renew, EngineFault::Unavailable);
    ada.release().await.unwrap();
    assert!(matches!(bob.await.unwrap(), Err(Error::Indeterminate { .. })));
    assert!(world.is_free().await);
}

/// Goal: patience with a silent engine is bounded, at the release too.
/// Method: as above, and both calls hang for ever: 30 s for a proof, 10 s for the release.
#[tokio::test]
async fn a_silent_engine_cannot_hold_the_acquire_for_ever() {
    let world = World::new();
    let ada = world.seat().renewing(false).ttl(secs(100)).await.unwrap();
    let bob = spawn(world.seat().wait(secs(200)).into_future()).await;
    world.pass(secs(50)).await;
    ada.release().await.unwrap();
    world.spoil(EngineCall::Renew, EngineFault::HangBefore);
    world.spoil(EngineCall::Release, EngineFault::HangBefore);
    settle().await;
    world.pass(Duration::from_millis(39_900)).await;
    assert!(!bob.is_finished());
    world.pass(Duration::from_millis(100)).await;
    assert!(matches!(bob.await.unwrap(), Err(Error::Indeterminate { .. })));
}

/// Goal: with nothing provable in hand, a slow proof is waited for.
/// Method: bob waits longer than his ttl; the renewal's answer takes 12 s of the 30 it proves.
#[tokio::test]
async fn a_slow_proof_is_better_than_none() {
    let world = World::new();
    let ada = world.seat().renewing(false).ttl(secs(100)).await.unwrap();
    let bob = spawn(world.seat().renewing(false).wait(secs(200)).into_future()).await;
    world.pass(secs(50)).await;
    world.flaky.spoil(EngineCall::Renew, EngineFault::HangAfter, 1);
    ada.release().await.unwrap();
    settle().await;
    world.pass(secs(12)).await;
    world.flaky.resume();
    assert_eq!(bob.await.unwrap().unwrap().remaining(), secs(18));
}

/// Goal: a proof that comes when it proves nothing any more gives no guard.
/// Method: as above, and the machine sleeps through the 30 s before the answer can be read.
#[tokio::test]
async fn a_proof_that_comes_too_late_is_none() {
    let world = World::new();
    let ada = world.seat().renewing(false).ttl(secs(100)).await.unwrap();
    let bob = spawn(world.seat().wait(secs(200)).into_future()).await;
    world.pass(secs(50)).await;
    world.flaky.spoil(EngineCall::Renew, EngineFault::HangAfter, 1);
    ada.release().await.unwrap();
    settle().await;
    world.clock.advance(secs(30));
    world.flaky.resume();
    assert!(matches!(bob.await.unwrap(), Err(Error::Indeterminate { .. })));
}

/// Goal: a dropped acquire leaves the line.
/// Method: bob waits, gives up; ada releases; the seat stays free.
#[tokio::test]
async fn a_dropped_acquire_leaves_the_line() {
    let world = World::new();
    let ada = world.seat().await.unwrap();
    let bob = spawn(world.seat().wait(secs(60)).into_future()).await;
    bob.abort();
    settle().await;
    ada.release().await.unwrap();
    settle().await;
    assert!(world.is_free().await);
}

/// Goal: a repeated request gets the same lease with the time it has left; an ended one is stale.
/// Method: the first answer is lost; repeat after 12 s, and again after the end.
#[tokio::test]
async fn a_repeated_request_gets_the_time_that_is_left() {
    let world = World::new();
    let claim = || world.seat().request_id("order-7").renewing(false);
    world.flaky.spoil(EngineCall::Acquire, EngineFault::Indeterminate, 1);
    assert!(matches!(claim().await, Err(Error::Indeterminate { .. })));
    world.pass(secs(12)).await;
    let lease = claim().await.unwrap();
    assert_eq!((lease.remaining(), world.renewals()), (secs(18), 0));
    world.pass(secs(18)).await;
    assert!(matches!(claim().await, Err(Error::Refused(Refusal::Stale))));
}

/// Goal: an engine without fencing gives no fenced lease, and is not even asked.
/// Method: the same claim with and without `fenced`.
#[tokio::test]
async fn an_engine_without_fencing_refuses_a_fenced_lease() {
    let world = World::with(Mini::unfenced);
    let Err(Error::Invalid(sentence)) = world.seat().fenced().await else { panic!("it was granted") };
    assert!(sentence.starts_with("the mini engine, as configured, promises no fencing"), "{sentence}");
    assert_eq!(world.flaky.calls(EngineCall::Acquire), 0);
    assert!(world.seat().await.is_ok());
}

#[tokio::test]
async fn an_engine_that_breaks_its_promise_of_a_token_is_corrupt() {
    let world = World::with(Mini::liar);
    assert!(matches!(world.seat().fenced().await, Err(Error::Corrupt { engine: "liar", .. })));
}

/// Goal: the fence stops a holder that paused, and never the newest one.
/// Method: ada pauses until bob has the seat; both write, in every order that matters.
#[tokio::test]
async fn a_paused_holder_is_stopped_at_the_fence() {
    let world = World::new();
    let seat = Register::new("free");
    let ada = world.seat().renewing(false).fenced().await.unwrap();
    seat.write(&ada, "ada pays").unwrap();
    seat.write(&ada, "ada pays again").unwrap();
    world.leap(secs(30)).await;
    let bob = world.seat().holder("bob").fenced().await.unwrap();
    seat.write(&ada, "bob has not written yet: harmless").unwrap();
    seat.write(&bob, "sold to bob").unwrap();
    let Err(FenceError::Refused(FenceRefusal::Stale { presented, highest, .. })) = seat.write(&ada, "sold to ada")
    else {
        panic!("a stale holder is refused");
    };
    assert_eq!((presented, highest), (ada.token(), bob.token()));
    seat.write(&bob, "paid").unwrap();
    assert_eq!(seat.read(), (Some(bob.token()), "paid"));
}

/// Goal: a lease that shares its resource opens no fenced write: its sharer with the lower token would be refused.
/// Method: a shared lease, a lease by permits, and one that shares only its second resource.
#[tokio::test]
async fn only_an_exclusive_lease_opens_a_fenced_write() {
    let world = World::new();
    let seat = Register::new("free");
    let claims = [
        world.leasehold.acquire("a").shared(),
        world.leasehold.acquire("b").permits(1, 3),
        world.leasehold.acquire("c").and("d", crate::Mode::Shared),
    ];
    for claim in claims {
        let lease = claim.fenced().await.unwrap();
        assert!(!lease.is_exclusive());
        assert!(matches!(seat.write(&lease, "sold"), Err(FenceError::Invalid(_))));
    }
    assert_eq!(seat.read(), (None, "free"));
}

/// Goal: the holder, if none is given, says host and process.
#[tokio::test]
async fn the_default_holder_names_host_and_process() {
    let world = World::new();
    let lease = world.leasehold.acquire("seat-14").await.unwrap();
    let (host, process) = lease.holder().rsplit_once(':').unwrap();
    assert!(!host.is_empty());
    assert_eq!(process, std::process::id().to_string());
}

#[test]
fn outside_a_runtime_the_acquire_is_invalid_and_asks_nothing() {
    let world = World::new();
    let mut acquire = world.seat().into_future();
    let polled = acquire.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    assert!(matches!(polled, std::task::Poll::Ready(Err(Error::Invalid(_)))));
    assert_eq!(world.flaky.calls(EngineCall::Acquire), 0);
}

#[tokio::test]
async fn debug_shows_no_secret() {
    let world = World::new();
    let lease = world.leasehold.acquire("seat").holder("ada").fenced().await.unwrap();
    let shown = format!("{lease:?}");
    assert!(shown.contains("ada") && !shown.contains("lease_id"), "{shown}");
}
