//! Who waits, in which order, and who goes away.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use super::Subject;
use super::law_case::{LawCase, assert_is, held_by, in_time, shared};
use crate::engine::{Answer, Claim, Grant};
use crate::error::{Error, Refusal};

/// Goal: whoever waits is served as soon as the holder releases.
/// Method: bob waits for ada, ada releases. His lease has its full ttl, counted from the grant.
pub(super) async fn a_waiter_is_served_on_release(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let ada = case.granted(case.claim("ada", "seat")).await;
    let bob = case.in_line(case.patient("bob", "seat")).await;
    case.pass(case.units(3)).await;
    case.still_waits(&bob).await;
    case.end(&ada).await;
    let bob = case.answered_with_a_grant(bob).await;
    case.assert_about("the life of a lease that was waited for", bob.remaining, case.units(10));
    assert_eq!((case.holders("seat").await, case.queue("seat").await), (vec!["bob".to_owned()], 0));
}

/// Goal: a lapse serves the line too, and not early.
/// Method: bob waits while ada's lease runs out; he holds nothing a moment before.
pub(super) async fn a_waiter_is_served_on_lapse(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let ada = case.granted(case.claim("ada", "seat")).await;
    let bob = case.in_line(case.patient("bob", "seat")).await;
    if case.promises.never_early {
        case.pass_nearly(case.units(10)).await;
        case.still_waits(&bob).await;
        assert_eq!(case.holders("seat").await, ["ada"]);
        case.pass_the_rest().await;
    } else {
        case.pass(case.units(10) + subject.slack()).await;
    }
    let bob = case.answered_with_a_grant(bob).await;
    assert!(!case.promises.fencing || ada.token < bob.token, "{:?} and then {:?}", ada.token, bob.token);
    assert_eq!(case.holders("seat").await, ["bob"]);
}

/// Goal: those who wait are served in order of arrival.
/// Method: three in line; each release serves exactly the next one.
pub(super) async fn the_line_is_served_in_order(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    if !case.promises.fair {
        return;
    }
    let mut holder = case.granted(case.claim("ada", "seat")).await;
    let mut queue = Vec::new();
    for who in ["bob", "cy", "dan"] {
        queue.push((who, case.in_line(case.patient(who, "seat")).await));
    }
    while !queue.is_empty() {
        let (who, next) = queue.remove(0);
        case.still_waits(&next).await;
        case.end(&holder).await;
        holder = case.answered_with_a_grant(next).await;
        assert_eq!(case.holders("seat").await, [who]);
        assert_eq!(case.queue("seat").await, queue.len());
    }
}

/// Goal: nobody who comes later gets in before those who wait, even where there would be room.
/// Method: a reader holds, a writer waits; another reader would fit in and is refused; so is the holder who
/// releases and comes straight back.
pub(super) async fn a_newcomer_does_not_overtake(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    if !case.promises.fair {
        return;
    }
    let read = |who: &str| Claim { wants: vec![shared("page")], ..case.claim(who, "page") };
    let ada = case.granted(read("ada")).await;
    let bob = case.in_line(case.patient("bob", "page")).await;
    assert_eq!(case.held(read("cy")).await.queue_len, 1);
    case.still_waits(&bob).await;
    case.end(&ada).await;
    assert_eq!(case.held(read("ada")).await.holder.as_deref(), Some("bob"));
    case.answered_with_a_grant(bob).await;
}

/// Goal: patience that runs out is a refusal: at its time, not before, and nothing is served later.
/// Method: bob waits 3 while ada holds for 10.
pub(super) async fn patience_runs_out(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    case.granted(case.claim("ada", "seat")).await;
    let bob = case.in_line(Claim { wait: case.units(3), ..case.claim("bob", "seat") }).await;
    case.pass_nearly(case.units(3)).await;
    case.still_waits(&bob).await;
    case.pass_the_rest().await;
    let held = held_by(case.answer(bob).await.expect_err("patience runs out"));
    assert_eq!((held.resource.as_str(), held.holder.as_deref()), ("seat", Some("ada")));
    assert_eq!(case.queue("seat").await, 0);
    case.pass(case.units(7) + subject.slack()).await;
    assert_eq!(case.inspect("seat").await, None);
}

/// Goal: whoever goes away while waiting is not served, and does not count.
/// Method: bob's acquire is dropped, ada releases, nobody has the seat.
pub(super) async fn a_waiter_who_leaves_is_forgotten(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let ada = case.granted(case.claim("ada", "seat")).await;
    let bob = case.in_line(case.patient("bob", "seat")).await;
    bob.leave().await;
    case.until("nobody waits", async || case.queue("seat").await == 0).await;
    case.end(&ada).await;
    case.until("nobody has the seat", async || case.inspect("seat").await.is_none()).await;
    case.granted(case.claim("cy", "seat")).await;
}

/// Goal: whoever leaves the line lets those behind through at once.
/// Method: a reader holds, a writer waits, two readers wait behind; the writer's acquire is dropped.
pub(super) async fn a_waiter_who_leaves_passes_the_baton(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    if !case.promises.fair {
        return;
    }
    let read = |who: &str| Claim { wants: vec![shared("page")], ..case.patient(who, "page") };
    case.granted(read("ada")).await;
    let bob = case.in_line(case.patient("bob", "page")).await;
    let cy = case.in_line(read("cy")).await;
    let dan = case.in_line(read("dan")).await;
    bob.leave().await;
    case.answered_with_a_grant(cy).await;
    case.answered_with_a_grant(dan).await;
    assert_eq!((case.holders("page").await.len(), case.queue("page").await), (3, 0));
}

/// Goal: so does whoever runs out of patience.
/// Method: the same, with a writer who waits for 3.
pub(super) async fn a_waiter_who_gave_up_passes_the_baton(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    if !case.promises.fair {
        return;
    }
    let read = |who: &str| Claim { wants: vec![shared("page")], ..case.patient(who, "page") };
    case.granted(read("ada")).await;
    let bob = case.in_line(Claim { wait: case.units(3), ..case.claim("bob", "page") }).await;
    let cy = case.in_line(read("cy")).await;
    case.pass_nearly(case.units(3)).await;
    case.still_waits(&cy).await;
    case.pass_the_rest().await;
    held_by(case.answer(bob).await.expect_err("patience runs out"));
    case.answered_with_a_grant(cy).await;
}

/// Goal: an acquire that is dropped leaves no lease behind that nobody knows of.
/// Method: drop it after every number of steps it takes by itself, and while the engine is in the middle of one.
pub(super) async fn a_dropped_acquire_leaves_no_lease(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    // Longer than anybody looks: a lease that is left over must not lapse meanwhile.
    let claim = Claim { ttl: case.units(1000), ..case.claim("ada", "seat") };
    for steps in 0..8 {
        let mut acquire = case.engine.acquire(claim.clone());
        let answer = in_time(poll_times(&mut acquire, steps)).await;
        drop(acquire);
        free_again(&case, answer, &format!("{steps} steps")).await;
    }
    for pause in (0..8).map(|n| Duration::from_micros(n * 250)) {
        let mut acquire = case.engine.acquire(claim.clone());
        let mut answer = poll_times(&mut acquire, 1).await;
        if answer.is_none() {
            tokio::time::sleep(pause).await;
            answer = poll_times(&mut acquire, 1).await;
        }
        drop(acquire);
        free_again(&case, answer, &format!("a look and {pause:?}")).await;
    }
    // What was on its way when it was dropped has arrived by now, and was ended.
    case.pass(case.units(1)).await;
    case.until("nothing is left of those who went away", async || case.inspect("seat").await.is_none()).await;
}

async fn free_again(case: &LawCase<'_>, answer: Option<Result<Grant, Error>>, after: &str) {
    match answer {
        None => {}
        Some(Ok(grant)) => case.end(&grant).await,
        // Over a network the acquire that was dropped before may arrive only now; it is ended like any other.
        Some(Err(Error::Refused(Refusal::Held { .. }))) if !case.subject.slack().is_zero() => {}
        Some(Err(error)) => panic!("a free seat is granted: {error:?}"),
    }
    let what = format!("the seat is free when the acquire was dropped after {after}");
    case.until(&what, async || case.inspect("seat").await.is_none()).await;
}

/// Goal: a grant that was decided while its caller went away is ended, and the next in line is served.
/// Method: bob's acquire is looked at only once; ada releases, so it is granted; then it is dropped.
pub(super) async fn a_grant_nobody_saw_is_ended(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    if !case.promises.fair {
        return; // nothing is decided for those who are not looking
    }
    let ada = case.granted(case.claim("ada", "seat")).await;
    let mut bob = case.engine.acquire(case.patient("bob", "seat"));
    assert!(poll_times(&mut bob, 1).await.is_none(), "bob has to wait");
    case.until("bob stands in line", async || case.queue("seat").await == 1).await;
    let cy = case.in_line(case.patient("cy", "seat")).await;
    assert_is("a release that ends the lease", case.release(&ada).await, |first| *first);
    assert_eq!(case.holders("seat").await, ["bob"]);
    case.still_waits(&cy).await;
    drop(bob);
    case.answered_with_a_grant(cy).await;
    assert_eq!(case.holders("seat").await, ["cy"]);
}

/// Lets the acquire take this many steps, each when it is woken for it. Its answer, if it came to that.
async fn poll_times(answer: &mut Answer<'_, Grant>, steps: u32) -> Option<Result<Grant, Error>> {
    let mut taken = 0;
    poll_fn(|context| {
        if taken == steps {
            return Poll::Ready(None);
        }
        taken += 1;
        match answer.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if taken == steps => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
