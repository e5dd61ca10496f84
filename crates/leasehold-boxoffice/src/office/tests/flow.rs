//! From click to sale, and what is in the way.

use super::*;

/// Goal: hold, pay, confirm: the seats are the buyer's, and the engine forgets them.
#[tokio::test]
async fn a_hold_becomes_an_order() {
    let case = TestOffice::open().await;
    let held = case.hold("ada", &["A-2", "A-1"]).await.unwrap();
    assert_eq!((held.remaining_ms, held.renewable_ms, held.total), (300_000, 900_000, 9000));
    assert_eq!(held.hold.seats.iter().map(|seat| seat.id.as_str()).collect::<Vec<_>>(), ["A-1", "A-2"]);
    assert_eq!(held.hold.seats[0].token, held.hold.seats[1].token);
    assert_eq!(case.leases().await, 2);

    let (id, access) = (held.hold.hold_id.clone(), key(&held));
    let paying = case.office.pay(LedgerCall::by("ada"), &id, access.clone(), "pi_1").await.unwrap();
    assert_eq!((paying.hold.state, paying.remaining_ms), (HoldState::Paying, 600_000));
    assert_eq!(refused(case.office.release(LedgerCall::by("ada"), &id, access.clone()).await), Refusal::Paying);
    let order = case.office.confirm(LedgerCall::by("ada"), &id, access.clone(), "pi_1").await.unwrap();
    assert_eq!((order.total, order.seats.len(), order.late), (9000, 2, false));
    assert_eq!(order.seats[0].token, held.hold.seats[0].token, "the token goes from hold to sale");
    assert_eq!(case.leases().await, 0);

    let again = case.office.confirm(LedgerCall::by("ada"), &id, access.clone(), "pi_1").await.unwrap();
    assert_eq!(again, order);
    assert_eq!(
        refused(case.office.confirm(LedgerCall::by("ada"), &id, access, "pi_2").await),
        Refusal::PaymentMismatch
    );
    assert_eq!(lost(case.hold("bob", &["A-1", "A-3"]).await), [("A-1".into(), Reason::Sold)]);
    assert_eq!(case.leases().await, 0, "a refused hold leaves no lease");
    case.check().await;
}

/// Goal: a loser is told which seat and why, is offered others, and never gets to the ledger.
#[tokio::test]
async fn a_loser_is_told_and_offered_others() {
    let case = TestOffice::open().await;
    case.hold("ada", &["A-5", "A-6"]).await.unwrap();
    let Refusal::Conflict { conflicts, alternative } = refused(case.hold("bob", &["A-6", "A-7"]).await) else {
        panic!()
    };
    assert_eq!(conflicts, [Conflict::seat("A-6", Reason::Taken)]);
    assert_eq!(alternative, Some(vec!["A-7".into(), "A-8".into()]));
    // Seats are counted, and requests: one that loses two seats is refused once.
    refused(case.hold("bob", &["A-5", "A-6"]).await);
    let metrics = case.office.metrics().await;
    assert_eq!((metrics.conflicts_total[0], metrics.refused_total), (3, 2));
    case.check().await;
}

/// Goal: expiry is a predicate. Method: nobody sweeps; at the last millisecond the seat is ada's, then bob's.
#[tokio::test]
async fn an_abandoned_hold_frees_itself_without_a_sweeper() {
    let case = TestOffice::open().await;
    let ada = case.hold("ada", &["A-1"]).await.unwrap();
    case.clock.advance(Duration::from_millis(299_999));
    assert_eq!(lost(case.hold("bob", &["A-1"]).await), [("A-1".into(), Reason::Taken)]);
    case.clock.advance(Duration::from_millis(1));
    let view = case.office.hold_view(&ada.hold.hold_id, key(&ada)).await.unwrap();
    assert_eq!((view.hold.state, view.remaining_ms), (HoldState::Lapsed, 0));
    // The lease outlives the row by five seconds, unless somebody sweeps.
    case.clock.advance(seconds(5));
    let bob = case.hold("bob", &["A-1"]).await.unwrap();
    assert!(bob.hold.seats[0].token > ada.hold.seats[0].token);
    let late = case.office.confirm(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada), "pi_1").await;
    assert_eq!(refused(late), Refusal::Ended(HoldState::Lapsed));
    assert_eq!(
        refused(case.office.renew(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada)).await),
        Refusal::Ended(HoldState::Lapsed)
    );
    case.check().await;
}

/// Goal: the sweeper lets the seat go at once, and its lag is visible.
#[tokio::test]
async fn the_sweeper_lets_go_of_leases() {
    let case = TestOffice::open().await;
    case.hold("ada", &["A-1"]).await.unwrap();
    case.clock.advance(seconds(302));
    case.office.sweep(2).await.unwrap();
    assert_eq!(case.leases().await, 0);
    let metrics = case.office.metrics().await;
    assert_eq!((metrics.expired_total, metrics.stands.unwrap().sweeper_lag_seconds), (1, 0.0));
    case.check().await;
}

/// Goal: renewals keep the token and stop at the cap, counted from the first grab.
#[tokio::test]
async fn renewals_stop_at_the_cap() {
    let case = TestOffice::open().await;
    let ada = case.hold("ada", &["A-1"]).await.unwrap();
    let mut left = Vec::new();
    for _ in 0..4 {
        case.clock.advance(seconds(250));
        match case.office.renew(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada)).await {
            Ok(view) => left.push(view.remaining_ms),
            Err(error) => assert_eq!(error.code(), "expired"),
        }
    }
    assert_eq!(left, [300_000, 300_000, 150_000]);
    case.check().await;
}

/// Goal: the row's end never exceeds the lease's, and paying is safe to its deadline.
#[tokio::test]
async fn paying_is_safe_until_its_deadline() {
    let case = TestOffice::open().await;
    let ada = case.hold("ada", &["A-1"]).await.unwrap();
    case.clock.advance(seconds(299));
    case.office.pay(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada), "pi_1").await.unwrap();
    case.clock.advance(seconds(599));
    case.office.sweep(2).await.unwrap();
    assert_eq!(lost(case.hold("bob", &["A-1"]).await), [("A-1".into(), Reason::Taken)]);
    let order = case.office.confirm(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada), "pi_1").await.unwrap();
    assert!(!order.late);
    case.check().await;
}

/// Goal: a decline returns to active while time is left, with the lease cut back; else the hold has lapsed.
#[tokio::test]
async fn a_decline_returns_to_active_if_time_is_left() {
    let case = TestOffice::open().await;
    let ada = case.hold("ada", &["A-1"]).await.unwrap();
    let (id, access) = (ada.hold.hold_id.clone(), key(&ada));
    case.office.pay(LedgerCall::by("ada"), &id, access.clone(), "pi_1").await.unwrap();
    case.clock.advance(seconds(100));
    let view = case
        .office
        .end_payment(LedgerCall::by("ada"), &id, access.clone(), "pi_1", PaymentEnding::Declined)
        .await
        .unwrap();
    assert_eq!((view.hold.state, view.remaining_ms), (HoldState::Active, 200_000));
    case.clock.advance(seconds(205));
    case.hold("bob", &["A-1"]).await.unwrap();
    let bob = case.hold("bob", &["A-2"]).await.unwrap();
    case.office.pay(LedgerCall::by("bob"), &bob.hold.hold_id, key(&bob), "pi_2").await.unwrap();
    case.clock.advance(seconds(301));
    let view = case
        .office
        .end_payment(LedgerCall::by("bob"), &bob.hold.hold_id, key(&bob), "pi_2", PaymentEnding::Declined)
        .await
        .unwrap();
    assert_eq!(view.hold.state, HoldState::Lapsed);
    case.hold("cyd", &["A-2"]).await.unwrap();
    case.check().await;
}

/// Goal: a wrong key and an unknown hold are the same answer, and change nothing.
#[tokio::test]
async fn only_the_key_opens_a_hold() {
    let case = TestOffice::open().await;
    let ada = case.hold("ada", &["A-1"]).await.unwrap();
    let (id, wrong) = (ada.hold.hold_id.clone(), Access::key("00000000000000000000000000000000"));
    let no = Refusal::NoHold(id.clone());
    assert_eq!(refused(case.office.hold_view(&id, wrong.clone()).await), no);
    assert_eq!(refused(case.office.renew(LedgerCall::by("bob"), &id, wrong.clone()).await), no);
    assert_eq!(refused(case.office.pay(LedgerCall::by("bob"), &id, wrong.clone(), "p").await), no);
    assert_eq!(refused(case.office.confirm(LedgerCall::by("bob"), &id, wrong.clone(), "p").await), no);
    assert_eq!(refused(case.office.release(LedgerCall::by("bob"), &id, wrong).await), no);
    case.office.release(LedgerCall::by("boxoffice"), &id, Access::Staff).await.unwrap();
    case.check().await;
}

/// Goal: with an idempotency key a retry gets the same hold and the same key; another body is refused; a refusal is
/// not stored.
#[tokio::test]
async fn a_retried_hold_is_the_same_hold() {
    let case = TestOffice::open().await;
    let want = |seat: &str| HoldRequest::These { seats: vec![seat.into()], areas: vec![] };
    let call = |body: &[u8]| LedgerCall { actor: "ada".into(), idem: Some(Idem::derive("ada", "k-1", body)) };
    let first = case.office.hold(call(b"A-1"), &case.event, "ada".into(), want("A-1")).await.unwrap();
    case.clock.advance(seconds(10));
    let other = case.another();
    let again = other.hold(call(b"A-1"), &case.event, "ada".into(), want("A-1")).await.unwrap();
    assert_eq!((again.hold.hold_id.clone(), again.key.clone()), (first.hold.hold_id.clone(), first.key.clone()));
    assert_eq!((again.replayed, again.remaining_ms), (true, 290_000));
    let mismatch = case.office.hold(call(b"A-2"), &case.event, "ada".into(), want("A-2")).await;
    assert_eq!(refused(mismatch), Refusal::Mismatch);

    let call = || LedgerCall { actor: "bob".into(), idem: Some(Idem::derive("bob", "k-1", b"A-1")) };
    let refused_first = case.office.hold(call(), &case.event, "bob".into(), want("A-1")).await;
    assert_eq!(lost(refused_first), [("A-1".into(), Reason::Taken)]);
    case.office.release(LedgerCall::by("ada"), &first.hold.hold_id, key(&first)).await.unwrap();
    let bob = case.office.hold(call(), &case.event, "bob".into(), want("A-1")).await.unwrap();
    assert!(!bob.replayed);
    case.check().await;
}

/// Goal: the limit of a buyer counts what is held and what is sold, over all requests.
#[tokio::test]
async fn the_limit_counts_held_and_sold() {
    let case = TestOffice::open_with(|settings| settings.per_buyer = 3).await;
    let first = case.hold("ada", &["A-1", "A-2"]).await.unwrap();
    case.office.confirm(LedgerCall::by("ada"), &first.hold.hold_id, key(&first), "free").await.unwrap();
    case.hold("ada", &["A-3"]).await.unwrap();
    assert_eq!(lost(case.hold("ada", &["A-4"]).await), [("A-4".into(), Reason::BuyerLimit)]);
    // What lapsed no longer counts, although nobody has swept.
    case.clock.advance(seconds(300));
    case.hold("ada", &["A-4"]).await.unwrap();
    case.check().await;
}

/// Goal: an area is never oversold, and what lapsed is for sale again without a sweeper.
#[tokio::test]
async fn an_area_is_never_oversold() {
    let case = TestOffice::open().await;
    let floor = |qty| HoldRequest::These { seats: vec!["B-1".into()], areas: vec![("floor".into(), qty)] };
    let places = |qty| HoldRequest::These { seats: vec![], areas: vec![("floor".into(), qty)] };
    let ada = case.office.hold(LedgerCall::by("ada"), &case.event, "ada".into(), floor(3)).await.unwrap();
    assert_eq!(ada.total, 3000 + 3 * 2000);
    let bob = case.office.hold(LedgerCall::by("bob"), &case.event, "bob".into(), places(3)).await;
    assert_eq!(lost(bob), [("floor".into(), Reason::Taken)]);
    case.office.confirm(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada), "pi").await.unwrap();
    let bob = case.office.hold(LedgerCall::by("bob"), &case.event, "bob".into(), places(3)).await;
    assert_eq!(lost(bob), [("floor".into(), Reason::Sold)]);
    case.office.hold(LedgerCall::by("bob"), &case.event, "bob".into(), places(2)).await.unwrap();
    case.clock.advance(seconds(305));
    case.office.hold(LedgerCall::by("cyd"), &case.event, "cyd".into(), places(2)).await.unwrap();
    case.check().await;
}

/// Goal: who lets holds lapse again and again gets less time; who buys is forgiven.
#[tokio::test]
async fn repeated_lapses_shorten_the_ttl() {
    let case = TestOffice::open().await;
    let mut given = Vec::new();
    for _ in 0..7 {
        let held = case.hold("ada", &["A-1"]).await.unwrap();
        given.push(held.remaining_ms / 1000);
        case.clock.advance(seconds(305));
    }
    assert_eq!(given, [300, 300, 300, 150, 75, 37, 30]);
    let held = case.hold("ada", &["A-1"]).await.unwrap();
    case.office.confirm(LedgerCall::by("ada"), &held.hold.hold_id, key(&held), "pi").await.unwrap();
    assert_eq!(case.hold("ada", &["A-2"]).await.unwrap().remaining_ms, 300_000);
    case.check().await;
}

/// Goal: the best available is what is sold; somebody quicker is picked around; none together is said so.
#[tokio::test]
async fn best_available_picks_around_the_quicker() {
    let case = TestOffice::open().await;
    let best = |qty, adjacent| HoldRequest::Best { qty, section: None, adjacent };
    let ada = case.office.hold(LedgerCall::by("ada"), &case.event, "ada".into(), best(4, true)).await.unwrap();
    assert_eq!(ada.hold.seats.len(), 4);
    // Another office has seen nothing of it, and its seat map is from before.
    let bob = case.another().hold(LedgerCall::by("bob"), &case.event, "bob".into(), best(4, true)).await.unwrap();
    assert_eq!(bob.hold.seats.len(), 4);
    for buyer in ["cyd", "dan"] {
        case.office.hold(LedgerCall::by(buyer), &case.event, buyer.into(), best(3, true)).await.unwrap();
    }
    let eve = case.office.hold(LedgerCall::by("eve"), &case.event, "eve".into(), best(8, true)).await;
    assert_eq!(lost(eve), [(String::new(), Reason::NoBlock)]);
    case.check().await;
}

/// Goal: with the orphan rule a choice that leaves one seat alone is refused with a better one, and never costs a sale.
#[tokio::test]
async fn the_orphan_rule_offers_a_better_choice() {
    let case = TestOffice::open_with(|settings| settings.orphan_rule = true).await;
    let Refusal::Conflict { conflicts, alternative } = refused(case.hold("ada", &["A-2"]).await) else { panic!() };
    assert_eq!(conflicts, [Conflict::seat("A-2", Reason::Orphan)]);
    let offered = alternative.unwrap();
    let offered: Vec<&str> = offered.iter().map(String::as_str).collect();
    case.hold("ada", &offered).await.unwrap();
    case.check().await;
}

/// Goal: the orphan rule is not to be had around: neither by adding seats to a hold nor by giving some back.
#[tokio::test]
async fn the_orphan_rule_holds_for_changes() {
    let case = TestOffice::open_with(|settings| settings.orphan_rule = true).await;
    let ada = case.hold("ada", &["A-1"]).await.unwrap();
    let change = async |add: &[&str], remove: &[&str]| {
        let all = |seats: &[&str]| seats.iter().map(|seat| (*seat).to_owned()).collect();
        let change = HoldChange { add: all(add), remove: all(remove), ..HoldChange::default() };
        case.office.change(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada), change).await
    };
    assert_eq!(lost(change(&["A-3"], &[]).await), [("A-3".into(), Reason::Orphan)]);
    change(&["A-2", "A-3"], &[]).await.unwrap();
    assert_eq!(lost(change(&[], &["A-2"]).await), [("A-2".into(), Reason::Orphan)]);
    let left = change(&[], &["A-3"]).await.unwrap();
    assert_eq!(left.hold.seats.len(), 2);
    case.check().await;
}

/// Goal: a refusal names each seat that is lost, and seats as good, also when a hold is changed.
#[tokio::test]
async fn a_refusal_names_all_that_is_lost() {
    let case = TestOffice::open().await;
    let (event_id, reason) = (case.event.clone(), "camera".into());
    let blocks = SetBlocks { event_id, block: vec!["B-1".into()], unblock: vec![], areas: vec![], reason };
    case.office.set_blocks(LedgerCall::by("eve"), blocks).await.unwrap();
    let bob = case.hold("bob", &["A-1", "A-2"]).await.unwrap();
    let cyd = case.hold("cyd", &["A-3"]).await.unwrap();
    case.office.confirm(LedgerCall::by("cyd"), &cyd.hold.hold_id, key(&cyd), "pi").await.unwrap();
    case.office.sequence().await.unwrap();
    let all = [
        ("A-1".to_owned(), Reason::Taken),
        ("A-2".to_owned(), Reason::Taken),
        ("A-3".to_owned(), Reason::Sold),
        ("B-1".to_owned(), Reason::Blocked),
    ];
    assert_eq!(lost(case.hold("ada", &["A-1", "A-2", "A-3", "A-4", "B-1"]).await), all);
    let ada = case.hold("ada", &["B-5"]).await.unwrap();
    let add =
        |seats: &[&str]| HoldChange { add: seats.iter().map(|seat| (*seat).into()).collect(), ..HoldChange::default() };
    let change = async |seats: &[&str]| {
        let refusal =
            refused(case.office.change(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada), add(seats)).await);
        let Refusal::Conflict { conflicts, alternative } = refusal else { panic!("{refusal:?}") };
        let named = conflicts.into_iter().map(|lost| (lost.seat.unwrap_or_default(), lost.reason));
        (named.collect::<Vec<_>>(), alternative.map(|seats| seats.len()))
    };
    assert_eq!(change(&["A-1", "A-2", "A-3", "A-4", "B-1"]).await, (all.to_vec(), Some(5)));
    assert_eq!(change(&["A-2", "A-1"]).await, (all[..2].to_vec(), Some(2)));
    case.office.release(LedgerCall::by("bob"), &bob.hold.hold_id, key(&bob)).await.unwrap();
    case.check().await;
}

/// Goal: a hold is paid under the rules that it was opened with, also when they change meanwhile.
#[tokio::test]
async fn an_open_hold_keeps_its_time_to_pay() {
    let spans = |pay_ms| EventSettings { ttl_ms: 10_000, max_hold_ms: 10_000, pay_ms, ..EventSettings::named("Gala") };
    let case = TestOffice::open_with(|settings| *settings = spans(5_000)).await;
    let [ada, bob] = [case.hold("ada", &["A-1"]).await.unwrap(), case.hold("bob", &["A-2"]).await.unwrap()];
    for (hold, pay_ms) in [(&ada, 600_000), (&bob, 1_000)] {
        case.office.configure(LedgerCall::by("eve"), &case.event, spans(pay_ms), None).await.unwrap();
        let paying = case.office.pay(LedgerCall::by("x"), &hold.hold.hold_id, key(hold), &format!("pi_{pay_ms}")).await;
        assert_eq!(paying.unwrap().remaining_ms, 5_000, "{pay_ms}");
    }
    case.check().await;
}

/// Goal: a renewal under a key gives its stored answer, also when the hold is over; the same key with another body is
/// refused.
#[tokio::test]
async fn a_renewal_is_answered_again_after_the_end() {
    let case = TestOffice::open().await;
    let ada = case.hold("ada", &["A-1"]).await.unwrap();
    let call = |body: &[u8]| LedgerCall { actor: "ada".into(), idem: Some(Idem::derive("ada", "k", body)) };
    let renew = async |body: &[u8]| case.office.renew(call(body), &ada.hold.hold_id, key(&ada)).await;
    assert!(!renew(b"renew").await.unwrap().replayed);
    case.office.release(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada)).await.unwrap();
    assert!(renew(b"renew").await.unwrap().replayed);
    assert_eq!(refused(renew(b"other").await), Refusal::Mismatch);
    case.check().await;
}

/// Goal: bad input gets a clear answer, and nothing is taken.
#[tokio::test]
async fn bad_input_is_named() {
    let case = TestOffice::open().await;
    assert_eq!(refused(case.hold("ada", &["Z-9"]).await), Refusal::NoSeat("Z-9".into()));
    assert!(matches!(case.hold("ada", &["A-1", "A-1"]).await, Err(Error::Invalid(_))));
    assert!(matches!(case.hold("ada", &[]).await, Err(Error::Invalid(_))));
    assert!(matches!(case.hold("", &["A-1"]).await, Err(Error::Invalid(_))));
    let (nowhere, want) = (EventId::from("ev_none"), HoldRequest::These { seats: vec!["A-1".into()], areas: vec![] });
    let nowhere = case.office.hold(LedgerCall::by("ada"), &nowhere, "ada".into(), want).await;
    assert_eq!(refused(nowhere), Refusal::NoEvent("ev_none".into()));
    assert_eq!(case.leases().await, 0);
    case.check().await;
}

/// Goal: who asks under an idempotency key and loses to a stranger is told at once: only the lease of one's own first try
/// is worth waiting for. Method: the clock stands still, so whoever waits never comes back.
#[tokio::test]
async fn a_loser_with_a_key_does_not_wait() {
    let case = TestOffice::open().await;
    case.hold("bob", &["A-1"]).await.unwrap();
    let call = LedgerCall { actor: "ada".into(), idem: Some(Idem::derive("ada", "k", b"hold")) };
    let want = HoldRequest::These { seats: vec!["A-1".into()], areas: vec![] };
    let asked = case.office.hold(call, &case.event, "ada".into(), want);
    let answer = tokio::time::timeout(seconds(30), asked).await.expect("nobody waits");
    assert_eq!(lost(answer), [("A-1".into(), Reason::Taken)]);
    case.check().await;
}
