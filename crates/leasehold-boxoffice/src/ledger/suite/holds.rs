//! Opened, displaced, renewed, changed, released.

use super::LedgerSubject;
use super::case::{LawCase, lost, own, refused};
use crate::model::*;

pub(super) async fn a_hold_is_all_or_nothing(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    case.hold("ada", &["A-2"]).await;
    let bob = case.try_hold(case.opening("bob", &["A-1", "A-2", "A-3"], 1)).await;
    assert_eq!(lost(bob), [("A-2".into(), Reason::Taken)]);
    assert_eq!((case.state("A-1").await, case.state("A-3").await), (SeatState::Free, SeatState::Free));
    let snapshot = case.ledger.snapshot(&case.event).await.unwrap().unwrap();
    assert_eq!((snapshot.areas[0].free(), snapshot.holds.len()), (5, 1));
    case.done().await;
}

pub(super) async fn a_live_hold_is_not_displaced(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let ada = case.hold("ada", &["A-1"]).await;
    case.advance_time(5).await;
    let bob = case.try_hold(case.opening_with("bob", &["A-1"], 0, 1000)).await;
    assert_eq!(lost(bob), [("A-1".into(), Reason::Taken)]);
    case.sell(&ada, "pi").await;
    case.done().await;
}

pub(super) async fn a_newer_token_displaces_what_lapsed(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let ada = case.hold("ada", &["A-1"]).await;
    case.advance_time(10).await;
    let bob = case.hold("bob", &["A-1"]).await;
    assert_eq!(case.ledger.hold(&ada.hold_id).await.unwrap().0.unwrap().state, HoldState::Lapsed);
    assert_eq!(refused(case.confirm(&ada, "pi").await), Refusal::Ended(HoldState::Lapsed));
    case.sell(&bob, "pi").await;
    case.done().await;
}

pub(super) async fn an_older_token_displaces_nothing(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    case.try_hold(case.opening_with("ada", &["A-1"], 0, 50)).await.unwrap();
    case.advance_time(10).await;
    let stale = case.try_hold(case.opening_with("bob", &["A-1"], 0, 49)).await;
    assert_eq!(lost(stale), [("A-1".into(), Reason::Taken)]);
    case.try_hold(case.opening_with("cyd", &["A-1"], 0, 51)).await.unwrap();
    case.done().await;
}

pub(super) async fn a_displaced_hold_loses_all_its_seats(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    case.try_hold(case.opening("ada", &["A-1", "A-2"], 2)).await.unwrap();
    case.advance_time(10).await;
    case.hold("bob", &["A-2"]).await;
    // The other seat and the places are free too, and ada's count is what she has: nothing.
    case.hold("cyd", &["A-1"]).await;
    case.try_hold(case.opening("dan", &[], 4)).await.unwrap();
    case.try_hold(case.opening("ada", &["A-3", "A-4", "A-5", "A-6"], 0)).await.unwrap();
    case.done().await;
}

pub(super) async fn a_renewal_stops_at_the_cap(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let mut hold = case.hold("ada", &["A-1"]).await;
    let (opened, cap) = (hold.opened_at, hold.cap_at);
    assert_eq!(cap, opened.plus(30 * case.unit));
    for _ in 0..4 {
        case.advance_time(6).await;
        let renewed = case.renew(&hold).await.unwrap();
        assert!(renewed.expires_at > hold.expires_at && renewed.expires_at <= cap);
        assert_eq!(renewed.seats, hold.seats, "the token stays");
        hold = renewed;
    }
    assert_eq!((hold.expires_at, hold.renewals), (cap, 4));
    case.advance_time(6).await;
    assert_eq!(refused(case.renew(&hold).await), Refusal::Ended(HoldState::Lapsed));
    case.done().await;
}

pub(super) async fn a_renewal_compares_tokens(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let hold = case.hold("ada", &["A-1"]).await;
    let command = RenewHold { hold_id: hold.hold_id.clone(), access: own(&hold), tokens: vec![999] };
    assert_eq!(refused(case.ledger.renew(LedgerCall::by("ada"), command).await), Refusal::StaleToken);
    case.done().await;
}

pub(super) async fn only_the_key_opens(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let hold = case.hold("ada", &["A-1"]).await;
    let no = Refusal::NoHold(hold.hold_id.clone());
    let thief = HoldRow { key_hash: "another".into(), ..hold.clone() };
    assert_eq!(refused(case.renew(&thief).await), no);
    assert_eq!(refused(case.pay(&thief, "pi").await), no);
    assert_eq!(refused(case.confirm(&thief, "pi").await), no);
    assert_eq!(refused(case.release(&thief).await), no);
    let nobody = HoldRow { hold_id: "h_none".into(), ..hold };
    assert_eq!(refused(case.release(&nobody).await), Refusal::NoHold("h_none".into()));
    case.done().await;
}

fn change(hold: &HoldRow, token: u64, add: &[&str], remove: &[&str]) -> ChangeSeats {
    ChangeSeats {
        hold_id: hold.hold_id.clone(),
        access: own(hold),
        layout_version: 1,
        add: add.iter().map(|id| Priced { id: (*id).into(), price: 100 }).collect(),
        add_areas: vec![],
        lease: (!add.is_empty()).then(|| LeaseRef { token, id: format!("lease {token}") }),
        remove: remove.iter().map(|id| (*id).into()).collect(),
        remove_areas: vec![],
    }
}

pub(super) async fn seats_are_added_and_removed(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let hold = case.hold("ada", &["A-1", "A-2"]).await;
    let bob = case.hold("bob", &["A-5"]).await;
    let command = change(&hold, case.token(), &["A-5"], &["A-1"]);
    assert_eq!(lost(case.ledger.change_seats(LedgerCall::by("ada"), command).await), [("A-5".into(), Reason::Taken)]);
    case.release(&bob).await.unwrap();
    let token = case.token();
    let changed =
        case.ledger.change_seats(LedgerCall::by("ada"), change(&hold, token, &["A-5"], &["A-1"])).await.unwrap().value;
    let seats: Vec<(&str, u64)> = changed.seats.iter().map(|seat| (seat.id.as_str(), seat.token)).collect();
    assert_eq!(seats, [("A-2", hold.seats[1].token), ("A-5", token)]);
    assert_eq!((changed.expires_at, changed.leases.len()), (hold.expires_at, 2));
    assert_eq!((case.state("A-1").await, case.state("A-5").await), (SeatState::Free, SeatState::Held));
    let many = change(&changed, case.token(), &["A-6", "A-7", "A-8"], &[]);
    let over = lost(case.ledger.change_seats(LedgerCall::by("ada"), many).await);
    assert!(over.iter().all(|(_, reason)| *reason == Reason::BuyerLimit) && over.len() == 3);
    let order = case.sell(&changed, "pi").await;
    assert_eq!(order.seats.len(), 2);
    case.done().await;
}

pub(super) async fn a_hold_keeps_something(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let hold = case.hold("ada", &["A-1"]).await;
    let empty = case.ledger.change_seats(LedgerCall::by("ada"), change(&hold, 0, &[], &["A-1"])).await;
    assert_eq!(refused(empty), Refusal::Empty);
    let other = case.ledger.change_seats(LedgerCall::by("ada"), change(&hold, 0, &[], &["A-2"])).await;
    assert_eq!(refused(other), Refusal::NoSeat("A-2".into()));
    case.pay(&hold, "pi").await.unwrap();
    let paying = case.ledger.change_seats(LedgerCall::by("ada"), change(&hold, 0, &[], &["A-1"])).await;
    assert_eq!(refused(paying), Refusal::Paying);
    case.done().await;
}

pub(super) async fn a_replaced_lease_moves_the_token(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let hold = case.try_hold(case.opening("ada", &["A-1", "A-2"], 1)).await.unwrap();
    let (old, token) = (hold.seats[0].token, case.token());
    let lease = LeaseRef { token, id: "next".into() };
    let replace = ReplaceLease { hold_id: hold.hold_id.clone(), old, lease: lease.clone() };
    let moved = case.ledger.replace_lease(LedgerCall::by("office"), replace.clone()).await.unwrap().value;
    assert!(moved.seats.iter().all(|seat| seat.token == token) && moved.areas[0].token == token);
    assert_eq!(moved.leases, [lease]);
    assert_eq!(
        refused(case.ledger.replace_lease(LedgerCall::by("office"), replace).await),
        Refusal::StaleToken,
        "it moved already"
    );
    assert_eq!(refused(case.renew(&hold).await), Refusal::StaleToken, "the old lease proves nothing any more");
    let order = case.sell(&moved, "pi").await;
    assert_eq!(order.seats[0].token, token);
    case.done().await;
}

pub(super) async fn a_release_frees_and_repeats(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let hold = case.try_hold(case.opening("ada", &["A-1"], 2)).await.unwrap();
    let released = case.release(&hold).await.unwrap();
    assert_eq!((released.state, &released.leases), (HoldState::Released, &hold.leases));
    assert_eq!(case.release(&hold).await.unwrap().state, HoldState::Released);
    let bob = case.hold("bob", &["A-1"]).await;
    case.release(&hold).await.unwrap();
    assert_eq!(case.state("A-1").await, SeatState::Held, "a repeated release leaves the successor alone");
    case.sell(&bob, "pi").await;
    assert_eq!(refused(case.release(&bob).await), Refusal::Ended(HoldState::Sold));
    case.done().await;
}

pub(super) async fn a_layout_that_changed_sends_back(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let command = OpenHold { layout_version: 7, ..case.opening("ada", &["A-1"], 0) };
    assert_eq!(refused(case.try_hold(command).await), Refusal::LayoutChanged);
    let elsewhere = OpenHold { event_id: "none".into(), ..case.opening("ada", &["A-1"], 0) };
    assert_eq!(refused(case.try_hold(elsewhere).await), Refusal::NoEvent("none".into()));
    case.done().await;
}

pub(super) async fn lapses_shorten_the_ttl(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let mut spans = Vec::new();
    for _ in 0..4 {
        let hold = case.hold("ada", &["A-1"]).await;
        spans.push(hold.ttl_ms);
        case.advance_time(10).await;
        case.ledger.lapse_due(10).await.unwrap();
    }
    let full = 10 * case.unit;
    let short = (full / 2).max(decide::MIN_TTL_MS.min(full));
    assert_eq!(spans, [full, full, full, short]);
    case.done().await;
}

pub(super) async fn the_sweeper_tidies_up(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    for seat in ["A-1", "A-2", "A-3"] {
        case.hold(seat, &[seat]).await;
    }
    assert!(case.ledger.lapse_due(10).await.unwrap().holds.is_empty(), "nothing lapses early");
    case.advance_time(9).await;
    case.hold("late", &["A-4"]).await;
    case.advance_time(2).await;
    let first = case.ledger.lapse_due(2).await.unwrap();
    assert_eq!((first.holds.len(), first.more), (2, true));
    assert!(first.lag_ms >= case.unit && first.holds.iter().all(|hold| hold.state == HoldState::Lapsed));
    let rest = case.ledger.lapse_due(2).await.unwrap();
    assert_eq!((rest.holds.len(), rest.more), (1, false));
    assert_eq!(case.state("A-4").await, SeatState::Held);
    case.done().await;
}

pub(super) async fn a_free_seat_remembers_its_token(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let first = case.hold("ada", &["A-1"]).await;
    let stalled = case.opening("bob", &["A-1"], 0);
    let second = case.hold("ada", &["A-2"]).await;
    case.release(&first).await.unwrap();
    let third = case.hold("cleo", &["A-1"]).await;
    assert_eq!(case.ledger.highest_token().await.unwrap(), third.seats[0].token);
    case.release(&third).await.unwrap();
    // Whoever was overtaken between its lease and its row comes too late, though the seat is free.
    assert_eq!(refused(case.try_hold(stalled).await), Refusal::StaleToken);
    assert_eq!(case.ledger.highest_token().await.unwrap(), third.seats[0].token, "it is remembered");
    // A sale and its void leave it, too.
    case.sell(&second, "pi").await;
    let void = Void { order_id: OrderId::for_hold(&second.hold_id), seats: None, reason: "ill".into() };
    case.ledger.void(LedgerCall::by("eve"), void).await.unwrap();
    let old = case.opening_with("bob", &["A-2"], 0, second.seats[0].token);
    assert_eq!(refused(case.try_hold(old).await), Refusal::StaleToken);
    let fresh = case.hold("dan", &["A-1", "A-2"]).await;
    assert!(fresh.seats.iter().all(|seat| seat.token > third.seats[0].token));
    case.done().await;
}

pub(super) async fn live_holds_are_counted(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    assert_eq!(case.ledger.count_live().await.unwrap(), LiveCounts::default());
    let (ada, bob) = (case.hold("ada", &["A-1"]).await, case.hold("bob", &["A-2"]).await);
    case.release(&case.hold("cleo", &["A-3"]).await).await.unwrap();
    case.pay(&bob, "pi").await.unwrap();
    let live = case.ledger.count_live().await.unwrap();
    assert_eq!((live.active, live.paying, live.overdue_ms), (1, 1, 0));
    let (paying, now) = case.ledger.paying().await.unwrap();
    assert_eq!(paying.iter().map(|hold| &hold.hold_id).collect::<Vec<_>>(), [&bob.hold_id]);
    assert!(now < paying[0].expires_at);
    // What is over is overdue until somebody ends it.
    case.advance_time(12).await;
    let live = case.ledger.count_live().await.unwrap();
    assert_eq!((live.active, live.paying), (0, 1));
    assert!(live.overdue_ms > 0, "{} is over", ada.hold_id);
    case.ledger.lapse_due(10).await.unwrap();
    assert_eq!(case.ledger.count_live().await.unwrap().overdue_ms, 0);
    case.done().await;
}

/// A payment whose hold ended without a word of the money is found, for a while; one that was told of, is not.
pub(super) async fn payments_nobody_told_of_are_found(subject: &dyn LedgerSubject) {
    const HOUR: u64 = 3_600_000;
    let case = LawCase::open(subject).await;
    let [ada, bob] = [case.hold("ada", &["A-1"]).await, case.hold("bob", &["A-2"]).await];
    let cleo = case.hold("cleo", &["A-3"]).await;
    case.pay(&ada, "pi \"1\"").await.unwrap();
    case.pay(&bob, "pi_2").await.unwrap();
    case.sell(&bob, "pi_2").await;
    case.release(&cleo).await.unwrap();
    let found = async |within_ms| {
        let (rows, _) = case.ledger.payments_without_word(within_ms).await.unwrap();
        rows.into_iter().map(|hold| hold.hold_id).collect::<Vec<_>>()
    };
    assert_eq!(found(HOUR).await, [], "what is live, sold or was never paid for is none");
    case.advance_time(20).await;
    case.ledger.lapse_due(10).await.unwrap();
    assert_eq!(found(HOUR).await, std::slice::from_ref(&ada.hold_id));
    case.advance_time(1).await;
    assert_eq!(found(1).await, [], "too long ago");
    assert!(matches!(case.confirm(&ada, "pi \"1\"").await, Ok(Confirmed::Late { .. })));
    assert_eq!(found(HOUR).await, [], "its money is written down");
    case.done().await;
}
