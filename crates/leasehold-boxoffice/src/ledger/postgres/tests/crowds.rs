//! Many at once, over ledgers that know nothing of each other, as those of several servers do.

use super::*;

/// Goal: two servers on one database never exceed a limit, never grant a seat twice and never stand in each other's way
/// for good: no deadlock, whatever overlaps.
/// Method: buyers who want overlapping seats in any order, and who have many hands; whatever is held is renewed, sold or
/// given back, or left to lapse under a clock that jumps.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_are_one_ledger() {
    let database = cluster().database().await;
    let ledgers = [open(cluster(), &database).await, open(cluster(), &database).await];
    make_event(&*ledgers[0], 30).await;
    set_moment(cluster(), &database, 1_000_000).await;
    let tokens = Arc::new(AtomicU64::new(1));
    let mut granted = 0;
    for round in 0..12u64 {
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..60u64 {
            let (ledger, other) = (ledgers[usize::from(n % 2 == 0)].clone(), ledgers[usize::from(n % 2 == 1)].clone());
            let tokens = tokens.clone();
            tasks.spawn(async move {
                let token = tokens.fetch_add(1, Ordering::SeqCst);
                let mix = token.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 7;
                let seats: Vec<u64> = (0..=mix % 4).map(|at| (mix >> (at * 5)) % 30 + 1).collect();
                let (name, buyer) = (format!("h_{token}"), format!("b{}", mix % 7));
                match ledger.open_hold(LedgerCall::by("crowd"), opening(&name, token, &buyer, &seats)).await {
                    Ok(_) => {}
                    Err(error) => {
                        assert!(error.refusal().is_some(), "{error:?}");
                        return 0;
                    }
                }
                let ended = match mix % 5 {
                    0 => other.confirm(LedgerCall::by("crowd"), confirming(&name)).await.map(drop),
                    1 | 2 => other.release(LedgerCall::by("crowd"), releasing(&name)).await.map(drop),
                    3 => {
                        let renew =
                            RenewHold { hold_id: name.as_str().into(), access: Access::Staff, tokens: vec![token] };
                        other.renew(LedgerCall::by("crowd"), renew).await.map(drop)
                    }
                    _ => other.lapse_due(3).await.map(drop),
                };
                ended.unwrap();
                1
            });
        }
        granted += tasks.join_all().await.into_iter().sum::<u64>();
        check(&*ledgers[0]).await;
        if round % 3 == 2 {
            set_moment(cluster(), &database, 1_000_000 + (round + 1) * 150_000).await;
        }
        if round % 2 == 1 {
            let orders = ledgers[0].orders(&"ev".into(), None, 1000).await.unwrap();
            for order in orders {
                let void = Void { order_id: order.order_id, seats: None, reason: "again".into() };
                ledgers[1].void(LedgerCall::by("staff"), void).await.unwrap();
            }
        }
    }
    assert!(granted > 60, "{granted} holds");
    let client = cluster().client(&database).await;
    let sql = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    assert_eq!(client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0), 0);
}

/// Goal: one idempotency key at two servers at the same moment has one effect, and everybody gets the same answer, also
/// where the two want different seats, as "best available" does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_at_two_servers_has_one_effect() {
    let database = cluster().database().await;
    let ledgers = [open(cluster(), &database).await, open(cluster(), &database).await];
    make_event(&*ledgers[0], 30).await;
    for key in 0..10u64 {
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..8u64 {
            let (ledger, token) = (ledgers[usize::from(n % 2 == 0)].clone(), key * 100 + n + 1);
            tasks.spawn(async move {
                let seat = if key % 2 == 0 { key + 1 } else { 11 + n };
                let command = opening(&format!("h_{token}"), token, "ada", &[seat]);
                ledger.open_hold(call(&format!("k{key}")), command).await.unwrap()
            });
        }
        let answers = tasks.join_all().await;
        assert_eq!(answers.iter().filter(|answer| !answer.replayed).count(), 1, "key {key}");
        assert!(answers.iter().all(|answer| answer.value == answers[0].value), "key {key}");
        let hold = &answers[0].value.hold.hold_id;
        ledgers[0].release(LedgerCall::by("ada"), releasing(hold.as_str())).await.unwrap();
    }
    check(&*ledgers[0]).await;
}

/// Goal: one payment for two holds at two servers is money once: what came for the second is kept apart, and waits for staff.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_payment_is_written_down_once() {
    let database = cluster().database().await;
    let ledgers = [open(cluster(), &database).await, open(cluster(), &database).await];
    make_event(&*ledgers[0], 30).await;
    for n in 1..=10u64 {
        let payment = format!("pi_{n}");
        for (half, buyer) in [(0, "ada"), (1, "bob")] {
            let name = format!("h_{n}_{half}");
            ledgers[0]
                .open_hold(LedgerCall::by(buyer), opening(&name, n * 2 + half, buyer, &[n * 2 + half]))
                .await
                .unwrap();
            ledgers[0].release(LedgerCall::by(buyer), releasing(&name)).await.unwrap();
        }
        let confirm = |half: u64| Confirm {
            payment_ref: payment.clone(),
            callback: Some(format!("m_{n}_{half}")),
            proof: PaymentProof::captured(&format!("h_{n}_{half}").as_str().into(), 100),
            ..confirming(&format!("h_{n}_{half}"))
        };
        let (one, two) = tokio::join!(
            ledgers[0].confirm(LedgerCall::by("provider"), confirm(0)),
            ledgers[1].confirm(LedgerCall::by("provider"), confirm(1))
        );
        assert!(one.is_ok() && two.is_ok(), "{one:?} {two:?}");
        let rows = ledgers[0].money_of_payment(&payment).await.unwrap();
        let states: Vec<_> = rows.iter().map(|row| (row.part.is_empty(), row.state, row.steps.len())).collect();
        assert_eq!(states, [(true, MoneyState::RefundDue, 1), (false, MoneyState::Stuck, 1)]);
    }
    check(&*ledgers[0]).await;
}

/// Goal: numbers have no gap and no entry is left out, however many number and write at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_entry_is_numbered_once() {
    let database = cluster().database().await;
    let ledgers = [open(cluster(), &database).await, open(cluster(), &database).await];
    make_event(&*ledgers[0], 200).await;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 1..=200u64 {
        let ledger = ledgers[usize::from(n % 2 == 0)].clone();
        tasks.spawn(async move {
            let command = opening(&format!("h_{n}"), n, &format!("b{n}"), &[n]);
            ledger.open_hold(LedgerCall::by("crowd"), command).await.unwrap();
            ledger.sequence(3).await.unwrap().into_iter().map(|entry| entry.seq).collect::<Vec<u64>>()
        });
    }
    let mut given: Vec<u64> = tasks.join_all().await.into_iter().flatten().collect();
    loop {
        let more = ledgers[0].sequence(50).await.unwrap();
        if more.is_empty() {
            break;
        }
        given.extend(more.into_iter().map(|entry| entry.seq));
    }
    given.sort_unstable();
    assert_eq!(given, (1..=201).collect::<Vec<u64>>());
    let query = AuditQuery { limit: 1000, ..AuditQuery::default() };
    assert_eq!(ledgers[1].audit(&"ev".into(), query).await.unwrap().len(), 201);
    check(&*ledgers[0]).await;
}

/// Goal: the limit of a buyer holds over two servers, also for a buyer whom neither has seen before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_holds_over_two_servers() {
    let database = cluster().database().await;
    let ledgers = [open(cluster(), &database).await, open(cluster(), &database).await];
    make_event(&*ledgers[0], 300).await;
    for round in 0..10u64 {
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..30u64 {
            let (ledger, token) = (ledgers[usize::from(n % 2 == 0)].clone(), round * 30 + n + 1);
            tasks.spawn(async move {
                let command = opening(&format!("h_{token}"), token, &format!("b{round}"), &[token]);
                ledger.open_hold(LedgerCall::by("crowd"), command).await.is_ok()
            });
        }
        let granted = tasks.join_all().await.into_iter().filter(|granted| *granted).count();
        assert_eq!(granted, 20, "round {round}");
    }
    check(&*ledgers[0]).await;
}

/// Goal: a seat that one server holds and another blocks at the same moment is held or blocked, not both: the two go into
/// different tables, so that only the lock on the seat tells them apart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seat_is_held_or_blocked() {
    let database = cluster().database().await;
    let ledgers = [open(cluster(), &database).await, open(cluster(), &database).await];
    make_event(&*ledgers[0], 100).await;
    for n in 1..=100u64 {
        let blocks = SetBlocks {
            event_id: "ev".into(),
            block: vec![format!("A-{n}")],
            unblock: vec![],
            areas: vec![],
            reason: "house".into(),
        };
        let (held, blocked) = tokio::join!(
            ledgers[0].open_hold(LedgerCall::by("ada"), opening(&format!("h_{n}"), n, &format!("b{n}"), &[n])),
            ledgers[1].set_blocks(LedgerCall::by("staff"), blocks)
        );
        assert!(held.is_ok() != blocked.is_ok(), "seat {n}: {held:?} {blocked:?}");
    }
    check(&*ledgers[0]).await;
}

/// Goal: one idempotency key for a new event at several servers makes one event, though each draws a name of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_makes_one_event() {
    let database = cluster().database().await;
    let ledgers = [open(cluster(), &database).await, open(cluster(), &database).await];
    for key in 0..10 {
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..6 {
            let ledger = ledgers[usize::from(n % 2 == 0)].clone();
            tasks.spawn(async move {
                let event_id = EventId(format!("ev_{key}_{n}"));
                let command = NewEvent { event_id, settings: EventSettings::named("Gala"), layout: Layout::default() };
                ledger.create_event(call(&format!("k{key}")), command).await.unwrap().value.event_id
            });
        }
        let made = tasks.join_all().await;
        assert!(made.iter().all(|id| *id == made[0]), "{made:?}");
        assert_eq!(ledgers[0].events().await.unwrap().len(), key + 1);
    }
}
