//! Several offices over one engine and one ledger are one box office.

use super::*;
use crate::model::history;
use crate::provider::CallbackOutcome;

/// Goal: a refusal names every seat that is lost, also those that another office held a moment ago.
#[tokio::test]
async fn a_loser_elsewhere_is_told_of_every_seat() {
    let case = TestOffice::open().await;
    let other = case.another();
    let want =
        |seats: &[&str]| HoldRequest::These { seats: seats.iter().map(|seat| (*seat).into()).collect(), areas: vec![] };
    // It has looked at the event before, and nobody tells it what happens.
    other.hold(LedgerCall::by("eve"), &case.event, "eve".into(), want(&["B-1"])).await.unwrap();
    case.clock.advance(seconds(10));
    case.hold("ada", &["A-5", "A-6"]).await.unwrap();
    let lost =
        refused(other.hold(LedgerCall::by("bob"), &case.event, "bob".into(), want(&["A-4", "A-5", "A-6"])).await);
    let Refusal::Conflict { conflicts, .. } = lost else { panic!("{lost:?}") };
    assert_eq!(conflicts, [Conflict::seat("A-5", Reason::Taken), Conflict::seat("A-6", Reason::Taken)]);
    // Of an area that has too few places left, too: three of its five are sold.
    let floor = |seats: &[&str], qty| match want(seats) {
        HoldRequest::These { seats, .. } => HoldRequest::These { seats, areas: vec![("floor".into(), qty)] },
        other => other,
    };
    let sold = case.office.hold(LedgerCall::by("dan"), &case.event, "dan".into(), floor(&[], 3)).await.unwrap();
    case.office.confirm(LedgerCall::by("dan"), &sold.hold.hold_id, key(&sold), "pi").await.unwrap();
    case.clock.advance(seconds(10));
    let lost = async |qty| {
        let told = refused(other.hold(LedgerCall::by("bob"), &case.event, "bob".into(), floor(&["A-5"], qty)).await);
        let Refusal::Conflict { conflicts, .. } = told else { panic!("{told:?}") };
        assert_eq!(conflicts[0], Conflict::seat("A-5", Reason::Taken));
        conflicts[1..].iter().map(|lost| (lost.area.clone().unwrap(), lost.reason)).collect::<Vec<_>>()
    };
    assert_eq!((lost(2).await, lost(3).await), (vec![], vec![("floor".into(), Reason::Sold)]));
    case.office.hold(LedgerCall::by("eve"), &case.event, "eve".into(), floor(&[], 1)).await.unwrap();
    assert_eq!(lost(2).await, [("floor".into(), Reason::Taken)], "also if it was looked at a moment ago");
}

/// A small generator: the same seed, the same choices.
struct OfficeDice(u64);

impl OfficeDice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }

    fn seat(&mut self) -> String {
        let row = if self.roll(2) == 0 { "A" } else { "B" };
        format!("{row}-{}", self.roll(10) + 1)
    }
}

/// What a buyer remembers of a hold.
#[derive(Clone)]
struct WalkHold {
    hold: HoldId,
    access: Access,
    payment_ref: String,
}

/// What a step of the crowd asks for.
enum WalkAct {
    Hold(Buyer, HoldRequest),
    Renew(WalkHold),
    Pay(WalkHold),
    Decline(WalkHold),
    Confirm(WalkHold),
    Message(WalkHold, u64, bool),
    Release(WalkHold),
    Change(WalkHold, HoldChange),
    Force(String),
    Block(String, bool),
    Void(WalkHold),
    Sweep,
    Orphans,
}

fn choose(dice: &mut OfficeDice, mine: &[WalkHold]) -> WalkAct {
    let die = dice.roll(100);
    let some = (!mine.is_empty()).then(|| {
        let recent = mine.len().saturating_sub(1 + usize::try_from(dice.roll(8)).unwrap());
        let mut mine = mine[recent].clone();
        if dice.roll(20) == 0 {
            mine.access = Access::key("guessed");
        }
        mine
    });
    match (die, some) {
        (0..40, _) | (_, None) => {
            let buyer = Buyer(format!("b{}", dice.roll(8)));
            let places = u32::try_from(dice.roll(3)).unwrap();
            let areas = if places > 0 { vec![("floor".into(), places)] } else { vec![] };
            let seats: Vec<String> = (0..dice.roll(4)).map(|_| dice.seat()).collect();
            let best = HoldRequest::Best { qty: 2, section: None, adjacent: dice.roll(2) == 0 };
            WalkAct::Hold(buyer, if seats.is_empty() { best } else { HoldRequest::These { seats, areas } })
        }
        (40..48, Some(mine)) => WalkAct::Renew(mine),
        (48..58, Some(mine)) => WalkAct::Pay(mine),
        (58..62, Some(mine)) => WalkAct::Decline(mine),
        (62..70, Some(mine)) => WalkAct::Confirm(mine),
        (70..78, Some(mine)) => WalkAct::Message(mine, dice.roll(200), dice.roll(4) > 0),
        (78..84, Some(mine)) => WalkAct::Release(mine),
        (84..90, Some(mine)) => {
            let change = HoldChange { add: vec![dice.seat()], remove: vec![dice.seat()], ..HoldChange::default() };
            WalkAct::Change(mine, if dice.roll(2) == 0 { change } else { HoldChange { remove: vec![], ..change } })
        }
        (90..92, _) => WalkAct::Force(dice.seat()),
        (92..94, _) => WalkAct::Block(dice.seat(), dice.roll(2) == 0),
        (94..96, Some(mine)) => WalkAct::Void(mine),
        (96..99, _) => WalkAct::Sweep,
        _ => WalkAct::Orphans,
    }
}

/// Does one act; a refusal is an answer, anything else is not.
async fn act(office: Office, event: EventId, act: WalkAct) -> Option<WalkHold> {
    let call = || LedgerCall::by("crowd");
    let answer: Result<Option<HoldView>, Error> = match act {
        WalkAct::Hold(buyer, want) => office.hold(call(), &event, buyer, want).await.map(Some),
        WalkAct::Renew(mine) => office.renew(call(), &mine.hold, mine.access).await.map(|_| None),
        WalkAct::Pay(mine) => office.pay(call(), &mine.hold, mine.access, &mine.payment_ref).await.map(|_| None),
        WalkAct::Decline(mine) => office
            .end_payment(call(), &mine.hold, mine.access, &mine.payment_ref, PaymentEnding::Declined)
            .await
            .map(|_| None),
        WalkAct::Confirm(mine) => {
            office.confirm(call(), &mine.hold, mine.access, &mine.payment_ref).await.map(|_| None)
        }
        WalkAct::Message(mine, id, succeeded) => {
            let (hold_id, payment_ref) = (mine.hold, mine.payment_ref);
            let row = office.ledger().hold(&hold_id).await.ok().and_then(|(row, _)| row);
            let message = PaymentMessage {
                id: format!("m{id}"),
                payment_ref,
                paid_for: hold_id.clone(),
                hold_id,
                outcome: if succeeded { CallbackOutcome::Captured } else { CallbackOutcome::Declined },
                tokens: vec![],
                amount: row.map_or(0, |row| row.total()),
                currency: None,
            };
            office.payment(message).await.map(|_| None)
        }
        WalkAct::Release(mine) => office.release(call(), &mine.hold, mine.access).await.map(|_| None),
        WalkAct::Change(mine, change) => office.change(call(), &mine.hold, mine.access, change).await.map(|_| None),
        WalkAct::Force(seat) => office.force_release(call(), &event, &seat, "staff").await.map(|_| None),
        WalkAct::Block(seat, block) => {
            let (block, unblock) = if block { (vec![seat], vec![]) } else { (vec![], vec![seat]) };
            let blocks = SetBlocks { event_id: event, block, unblock, areas: vec![], reason: "house".into() };
            office.set_blocks(call(), blocks).await.map(|_| None)
        }
        WalkAct::Void(mine) => office.void(call(), &OrderId::for_hold(&mine.hold), None, "void").await.map(|_| None),
        WalkAct::Sweep => office.sweep(2).await.map(|()| None),
        WalkAct::Orphans => office.revoke_orphans().await.map(|()| None),
    };
    match answer {
        Ok(None) => None,
        Ok(Some(held)) => {
            let payment_ref = format!("pi-{}", held.hold.hold_id);
            Some(WalkHold { hold: held.hold.hold_id.clone(), access: key(&held), payment_ref })
        }
        Err(Error::Refused(_) | Error::Invalid(_)) => None,
        Err(error) => panic!("{error:?}"),
    }
}

/// A crowd of buyers over two offices, some of it at the same moment; every snapshot conserves, and at the end the
/// history is played.
async fn crowd(case: TestOffice, seed: u64, rounds: usize) -> usize {
    let offices = [case.office.clone(), case.another()];
    let (mut dice, mut mine) = (OfficeDice(seed), Vec::new());
    for round in 0..rounds {
        let mut at_once = tokio::task::JoinSet::new();
        for _ in 0..=dice.roll(4) {
            let office = offices[usize::try_from(dice.roll(2)).unwrap()].clone();
            at_once.spawn(act(office, case.event.clone(), choose(&mut dice, &mine)));
        }
        while let Some(answer) = at_once.join_next().await {
            mine.extend(answer.unwrap());
        }
        if dice.roll(3) == 0 {
            case.advance_time(Duration::from_millis(dice.roll(200_000))).await;
        }
        if dice.roll(4) == 0 {
            offices[usize::try_from(dice.roll(2)).unwrap()].sequence().await.unwrap();
        }
        let seen = case.office.availability(&case.event).await.unwrap();
        let Totals { seats, free, held, paying, sold, blocked } = seen.totals;
        assert_eq!(free + held + paying + sold + blocked, seats, "seed {seed}, round {round}");
        assert!(seen.areas[0].held + seen.areas[0].paying + seen.areas[0].sold <= 5, "seed {seed}, round {round}");
        let broken: Vec<InvariantCheck> = case.office.invariants(&case.event).await.unwrap();
        let broken: Vec<&InvariantCheck> = broken.iter().filter(|check| !check.ok).collect();
        assert!(broken.is_empty(), "seed {seed}, round {round}: {broken:#?}");
    }
    case.check().await;
    let entries =
        case.office.audit(&case.event, AuditQuery { limit: 1_000_000, ..AuditQuery::default() }).await.unwrap();
    let settings = case.office.event(&case.event).await.unwrap().settings;
    let faults = history::faults(&settings, &hall(), &entries);
    assert!(faults.is_empty(), "seed {seed}: {faults:#?}");
    tampered(&settings, &entries);
    // Everything ends by itself: at last no lease is left that a sweeper must not take.
    case.advance_time(seconds(3600)).await;
    case.office.sweep(2).await.unwrap();
    assert_eq!(case.leases().await, 0, "seed {seed}");
    case.check().await;
    entries.iter().filter(|entry| entry.kind == EntryKind::Sold).count()
}

/// The checker sees: a history with one lie in it is found out.
fn tampered(settings: &EventSettings, entries: &[Entry]) {
    let lies: [fn(&mut Entry); 4] = [
        |entry| entry.at = entry.at.plus(100_000_000),
        |entry| entry.buyer = Some("somebody else".into()),
        |entry| entry.seats.iter_mut().for_each(|seat| seat.token = seat.token.map(|token| token + 1)),
        |entry| entry.hold_id = Some("h_another".into()),
    ];
    let Some(sale) = entries.iter().position(|entry| entry.kind == EntryKind::Sold && !entry.seats.is_empty()) else {
        return;
    };
    for lie in lies {
        let mut told = entries[..=sale].to_vec();
        lie(&mut told[sale]);
        assert!(!history::faults(settings, &hall(), &told).is_empty());
    }
    let mut twice = entries[..=sale].to_vec();
    twice.push(Entry { seq: twice.len() as u64 + 1, ..twice[sale].clone() });
    assert!(history::faults(settings, &hall(), &twice).iter().any(|fault| fault.contains("sold twice")));
}

/// Goal: invariants 8 to 11 hold over whatever a crowd asks of two offices, under a clock that jumps.
#[tokio::test]
async fn two_offices_are_one_box_office() {
    let mut sold = 0;
    for seed in 0..8 {
        let case = TestOffice::open_with(|settings| settings.per_buyer = 4).await;
        sold += crowd(case, seed, 120).await;
    }
    assert!(sold > 20, "the crowd buys: {sold}");
}

/// Goal: the same over PostgreSQL, where each office has a ledger of its own on one database, as two servers have.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_offices_on_postgres_are_one_box_office() {
    let mut sold = 0;
    for seed in 0..3 {
        let case = TestOffice::on_postgres(|settings| settings.per_buyer = 4).await;
        sold += crowd(case, seed, 120).await;
    }
    assert!(sold > 6, "the crowd buys: {sold}");
}

/// Goal: a flash crowd over two offices sells every seat once, and answers everybody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flash_crowd_sells_every_seat_once() {
    flash_crowd(TestOffice::open().await).await;
}

/// Goal: the same over PostgreSQL, with two ledgers on one database.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flash_crowd_on_postgres_sells_every_seat_once() {
    flash_crowd(TestOffice::on_postgres(|_| {}).await).await;
}

async fn flash_crowd(case: TestOffice) {
    let offices = [case.office.clone(), case.another()];
    let mut crowd = tokio::task::JoinSet::new();
    for buyer in 0..200u64 {
        let (office, event) = (offices[usize::try_from(buyer % 2).unwrap()].clone(), case.event.clone());
        crowd.spawn(async move {
            let (name, mut dice) = (format!("b{buyer}"), OfficeDice(buyer));
            for _ in 0..40 {
                let want = HoldRequest::These { seats: vec![dice.seat()], areas: vec![] };
                match office.hold(LedgerCall::by(&name), &event, name.as_str().into(), want).await {
                    Ok(held) => {
                        office
                            .confirm(LedgerCall::by(&name), &held.hold.hold_id, key(&held), &format!("pi {name}"))
                            .await
                            .unwrap();
                        return 1;
                    }
                    Err(error) => assert!(error.refusal().is_some(), "{error:?}"),
                }
            }
            0
        });
    }
    let mut sold = 0;
    while let Some(answer) = crowd.join_next().await {
        sold += answer.unwrap();
    }
    let seen = case.office.availability(&case.event).await.unwrap();
    assert_eq!((sold, seen.totals.sold), (20, 20));
    assert_eq!(case.leases().await, 0);
    case.check().await;
}

/// Goal: sweeper, sequencer and follower run under leases of their own: of two offices one does each, and when it is
/// gone the other does.
#[tokio::test]
async fn one_of_two_offices_sweeps_and_numbers() {
    let case = TestOffice::open().await;
    let (first, second) = (case.office.clone(), case.another());
    let mut changes = second.changes(&case.event);
    let one = tokio::spawn(async move { first.run().await });
    let two = tokio::spawn(async move { second.run().await });
    case.hold("ada", &["A-1"]).await.unwrap();
    until(&case, async || *changes.borrow_and_update() >= 2).await;
    one.abort();
    let _ = one.await;
    case.hold("bob", &["A-2"]).await.unwrap();
    // The hold lapses, is swept and told by whoever is left.
    until(&case, async || {
        let told = case.office.audit(&case.event, AuditQuery::default()).await.unwrap();
        told.iter().filter(|entry| entry.kind == EntryKind::Lapsed).count() == 2
    })
    .await;
    // A lapse is told before its lease is let go.
    until(&case, async || case.leases().await == 0).await;
    two.abort();
}

/// Moves the clock in small steps until something is so.
async fn until(case: &TestOffice, mut so: impl AsyncFnMut() -> bool) {
    for _ in 0..100_000 {
        if so().await {
            return;
        }
        case.clock.advance(Duration::from_millis(200));
        for _ in 0..5 {
            tokio::task::yield_now().await;
        }
    }
    panic!("it never came to be");
}
