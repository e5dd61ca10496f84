//! While a lease is held: renewals, danger, loss, the cap.

use std::sync::{Arc, Mutex};

use super::*;
use crate::{Error, Lost, Refusal};

/// Goal: a held lease is renewed every third of its ttl, and stays held far beyond one ttl.
/// Method: count the renewals around each third; then let five minutes pass.
#[tokio::test]
async fn a_lease_is_renewed_every_third_of_its_ttl() {
    let world = World::new();
    let lease = world.seat().await.unwrap();
    for third in 0..5 {
        world.pass(Duration::from_millis(9_900)).await;
        assert_eq!(world.renewals(), third);
        world.pass(Duration::from_millis(100)).await;
        assert_eq!(world.renewals(), third + 1);
        assert_eq!(lease.remaining(), secs(30));
    }
    world.pass(secs(300)).await;
    assert_eq!(told(&lease).await, (false, false, false));
    assert!(lease.is_safe() && lease.is_live());
}

/// Goal: danger comes before loss, each at its moment, and the token falls with the loss.
/// Method: the engine is away from the first renewal on; note the second in which each is told.
#[tokio::test]
async fn without_the_engine_danger_comes_at_two_thirds_and_loss_at_the_end() {
    let world = World::new();
    let lease = Arc::new(world.seat().await.unwrap());
    world.spoil(EngineCall::Renew, EngineFault::Unavailable);

    let events = Arc::new(Mutex::new(Vec::new()));
    for (name, lease, events) in [("danger", lease.clone(), events.clone()), ("lost", lease.clone(), events.clone())] {
        spawn(async move {
            match name {
                "danger" => lease.danger().await,
                _ => assert_eq!(lease.lost().await, Lost::Lapsed),
            }
            events.lock().unwrap().push(name);
        })
        .await;
    }
    let seen = || events.lock().unwrap().clone();

    world.pass(Duration::from_millis(19_900)).await;
    assert_eq!(seen(), [""; 0]);
    assert!(lease.is_safe());
    world.pass(Duration::from_millis(100)).await;
    assert_eq!(seen(), ["danger"]);
    assert_eq!((lease.is_safe(), lease.is_live()), (false, true));
    world.pass(Duration::from_millis(9_900)).await;
    assert_eq!(seen(), ["danger"]);
    assert!(!lease.cancellation().is_cancelled());
    world.pass(Duration::from_millis(100)).await;
    assert_eq!(seen(), ["danger", "lost"]);
    assert!(lease.cancellation().is_cancelled());
    assert_eq!((lease.is_live(), lease.remaining()), (false, Duration::ZERO));
}

/// Goal: failed renewals are repeated, with pauses in between, and one success makes the lease safe.
/// Method: spoil the first five; the lease must be whole again before danger, after few attempts.
#[tokio::test]
async fn failed_renewals_are_repeated_until_one_succeeds() {
    for fault in [EngineFault::Unavailable, EngineFault::Indeterminate] {
        let world = World::new();
        let lease = world.seat().await.unwrap();
        world.flaky.spoil(EngineCall::Renew, fault, 5);
        world.pass(Duration::from_millis(10_100)).await;
        assert_eq!(world.renewals(), 1, "no storm of attempts");
        world.pass(Duration::from_millis(9_800)).await;
        assert_eq!(world.renewals(), 6, "{fault:?}");
        assert!(lease.remaining() > secs(20));
        assert!(lease.is_safe());
    }
}

/// Goal: danger passes when a late renewal succeeds.
/// Method: the engine is away from 10 s to 25 s.
#[tokio::test]
async fn a_renewal_in_danger_makes_the_lease_safe_again() {
    let world = World::new();
    let lease = world.seat().await.unwrap();
    world.spoil(EngineCall::Renew, EngineFault::Unavailable);
    world.pass(secs(25)).await;
    assert_eq!(told(&lease).await, (true, false, false));
    world.flaky.heal();
    world.pass(secs(6)).await;
    assert_eq!(told(&lease).await, (false, false, false));
}

/// Goal: an answer that will never change is not asked for again, and the clock ends the lease.
/// Method: the engine says Corrupt at the first renewal.
#[tokio::test]
async fn a_corrupt_engine_is_not_asked_again() {
    let world = World::new();
    let lease = world.seat().await.unwrap();
    world.spoil(EngineCall::Renew, EngineFault::Corrupt);
    world.pass(secs(30)).await;
    assert_eq!((lease.lost().await, world.renewals()), (Lost::Lapsed, 1));
}

/// Goal: an attempt that hangs does not use up the time for another.
/// Method: the first renewal hangs for ever; a second one must be made before the end.
#[tokio::test]
async fn a_hanging_renewal_is_given_up_in_time_for_another() {
    let world = World::new();
    let lease = world.seat().await.unwrap();
    world.flaky.spoil(EngineCall::Renew, EngineFault::HangBefore, 1);
    world.pass(secs(22)).await;
    assert_eq!(world.renewals(), 2);
    assert!(lease.is_safe());
}

/// Goal: an answer that comes after the validity was over does not revive the guard.
/// Method: a renewal by hand takes effect at the engine; its answer is stuck until the guard is lost. The
/// engine's lease is live then, and the guard stays lost all the same.
#[tokio::test]
async fn a_late_answer_does_not_revive_the_guard() {
    let world = World::new();
    let lease = Arc::new(world.seat().renewing(false).await.unwrap());
    world.pass(secs(20)).await;
    world.flaky.spoil(EngineCall::Renew, EngineFault::HangAfter, 1);
    let late = spawn({
        let lease = lease.clone();
        async move { lease.renew().await }
    })
    .await;
    world.pass(secs(10)).await;
    assert_eq!(told(&lease).await, (true, true, true));
    world.flaky.resume();
    assert!(matches!(late.await.unwrap(), Err(Error::Refused(Refusal::Stale))));
    assert!(!world.is_free().await, "the engine did renew");
    assert_eq!(told(&lease).await, (true, true, true));
    assert_eq!((lease.lost().await, lease.remaining()), (Lost::Lapsed, Duration::ZERO));
}

/// Goal: the same for a leap: the answer and the end of the validity arrive in one turn.
/// Method: the renewal task's request hangs after its effect; suspend passes the end, then the answer comes,
/// before any task could run.
#[tokio::test]
async fn an_answer_in_the_same_turn_as_the_end_is_too_late() {
    let world = World::new();
    let lease = world.seat().await.unwrap();
    world.flaky.spoil(EngineCall::Renew, EngineFault::HangAfter, 1);
    world.pass(secs(10)).await;
    assert_eq!(world.renewals(), 1);
    world.clock.advance(secs(20));
    world.flaky.resume();
    settle().await;
    assert_eq!(told(&lease).await, (true, true, true));
    assert_eq!(world.renewals(), 1, "nothing renews a lost lease");
    assert!(matches!(lease.renew().await, Err(Error::Refused(Refusal::Stale))));
    assert_eq!(world.renewals(), 1, "nor asks to");
}

/// Goal: suspend counts.
/// Method: one leap over the whole validity; no renewal was possible.
#[tokio::test]
async fn a_leap_over_the_end_loses_the_lease() {
    let world = World::new();
    let lease = world.seat().await.unwrap();
    world.leap(secs(30)).await;
    assert_eq!(lease.lost().await, Lost::Lapsed);
    assert_eq!(told(&lease).await, (true, true, true));
    assert_eq!(world.renewals(), 0);
}

/// Goal: validity after a renewal is counted from before it was sent.
/// Method: a renewal whose answer takes 3 s leaves 27 s of 30.
#[tokio::test]
async fn a_slow_renewal_counts_from_before_it_was_sent() {
    let world = World::new();
    let lease = world.seat().await.unwrap();
    world.flaky.spoil(EngineCall::Renew, EngineFault::HangAfter, 1);
    world.pass(secs(13)).await;
    assert_eq!(lease.remaining(), secs(17));
    world.flaky.resume();
    settle().await;
    assert_eq!(lease.remaining(), secs(27));
}

/// Goal: of two renewals whose answers cross, the one sent last counts.
/// Method: one renewal by hand hangs after its effect; a later one is answered at once; then the first.
#[tokio::test]
async fn an_overtaken_answer_does_not_shorten_the_validity() {
    let world = World::new();
    let lease = Arc::new(world.seat().renewing(false).await.unwrap());
    world.flaky.spoil(EngineCall::Renew, EngineFault::HangAfter, 1);
    let slow = spawn({
        let lease = lease.clone();
        async move { lease.renew().await }
    })
    .await;
    world.pass(secs(5)).await;
    lease.renew().await.unwrap();
    world.flaky.resume();
    slow.await.unwrap().unwrap();
    assert_eq!(lease.remaining(), secs(30));
}

/// Goal: at the cap renewing stops, and the lease ends there: danger, then lost, for that reason.
/// Method: ttl 30 s, 50 s at most. Renewals at 10 and 20; the second reaches the cap.
#[tokio::test]
async fn at_the_cap_renewing_stops_and_the_lease_ends() {
    let world = World::new();
    let lease = world.seat().max_hold(secs(50)).await.unwrap();
    world.pass(secs(21)).await;
    assert_eq!(world.renewals(), 2);
    assert_eq!(lease.remaining(), secs(29));
    world.pass(Duration::from_millis(18_900)).await;
    assert_eq!(told(&lease).await, (false, false, false));
    world.pass(Duration::from_millis(100)).await;
    assert_eq!(told(&lease).await, (true, false, false));
    world.pass(secs(10)).await;
    assert_eq!(told(&lease).await, (true, true, true));
    assert_eq!(lease.lost().await, Lost::Capped);
    assert_eq!(world.renewals(), 2);
}

/// Goal: a cap below the ttl needs no renewal at all.
/// Method: 10 s at most, ttl 30 s.
#[tokio::test]
async fn a_cap_below_the_ttl_ends_the_lease_unrenewed() {
    let world = World::new();
    let lease = world.seat().max_hold(secs(10)).await.unwrap();
    world.pass(secs(10)).await;
    assert_eq!((lease.lost().await, world.renewals()), (Lost::Capped, 0));
}

/// Goal: the engine's word that the lease ended is believed at once, long before the validity is over.
/// Method: an operator revokes; the next renewal hears of it.
#[tokio::test]
async fn a_revoked_lease_is_lost_at_the_next_renewal() {
    let world = World::new();
    let lease = world.seat().await.unwrap();
    assert_eq!(world.leasehold.revoke("seat-14", "maintenance").await.unwrap(), 1);
    world.pass(secs(10)).await;
    assert_eq!(told(&lease).await, (true, true, true));
    assert_eq!((lease.lost().await, lease.remaining()), (Lost::Stale, Duration::ZERO));
    world.pass(secs(60)).await;
    assert_eq!(world.renewals(), 1);
}

/// Goal: without renewals danger and loss are told all the same, by the clock alone.
/// Method: renewing off; no call to the engine may be made.
#[tokio::test]
async fn without_renewing_the_clock_alone_tells_danger_and_loss() {
    let world = World::new();
    let lease = world.seat().renewing(false).await.unwrap();
    world.pass(Duration::from_millis(19_900)).await;
    assert_eq!(told(&lease).await, (false, false, false));
    world.pass(Duration::from_millis(100)).await;
    assert_eq!(told(&lease).await, (true, false, false));
    world.pass(secs(10)).await;
    assert_eq!(told(&lease).await, (true, true, true));
    assert_eq!((lease.lost().await, world.renewals()), (Lost::Lapsed, 0));
}

/// Goal: a renewal by hand moves all three moments.
/// Method: renewing off; renew at 15 s; the old danger and the old end must pass unnoticed.
#[tokio::test]
async fn a_renewal_by_hand_moves_danger_and_loss() {
    let world = World::new();
    let lease = world.seat().renewing(false).await.unwrap();
    world.pass(secs(15)).await;
    assert_eq!(lease.renew().await.unwrap().remaining, secs(30));
    world.pass(Duration::from_millis(19_900)).await;
    assert_eq!(told(&lease).await, (false, false, false));
    world.pass(Duration::from_millis(100)).await;
    assert_eq!(told(&lease).await, (true, false, false));
    world.pass(secs(10)).await;
    assert_eq!(told(&lease).await, (true, true, true));
}
