//! What breaks between us and the server, and what we say then.

use super::*;

const LEDGER_SESSIONS: &str = "application_name LIKE 'leasehold%' AND datname = current_database()";

/// Waits until a session of the ledger is in this state; its process.
async fn session_that(client: &tokio_postgres::Client, state: &str) -> i32 {
    let sql = format!("SELECT pid FROM pg_stat_activity WHERE {LEDGER_SESSIONS} AND {state}");
    let look = async {
        loop {
            if let Some(row) = client.query_opt(&sql, &[]).await.unwrap() {
                return row.get(0);
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, look).await.expect("the ledger came to where the test waits for it")
}

/// A ledger that waits long for locks: the test decides how long.
async fn patient(database: &str) -> Arc<Postgres> {
    let options =
        PostgresOptions { lock_timeout: TEST_TIMEOUT, statement_timeout: TEST_TIMEOUT, ..PostgresOptions::default() };
    Postgres::open(&cluster().url(database), options).await.unwrap()
}

async fn terminate(client: &tokio_postgres::Client, pid: i32) {
    client.query("SELECT pg_terminate_backend($1)", &[&pid]).await.unwrap();
}

/// Goal: a session that ends before COMMIT is Unavailable, and nothing took effect.
/// Method: another session locks a table that is written last; the ledger waits there, and its backend is terminated.
#[tokio::test]
async fn a_session_that_ends_before_commit_changed_nothing() {
    let database = cluster().database().await;
    let ledger = patient(&database).await;
    make_event(&*ledger, 3).await;
    for (number, table) in [(1, "outbox"), (2, "seats")] {
        let mut blocker = cluster().client(&database).await;
        let tx = blocker.transaction().await.unwrap();
        tx.batch_execute(&format!("LOCK TABLE leasehold_boxoffice.{table} IN EXCLUSIVE MODE")).await.unwrap();
        let name = format!("h_{number}");
        let answer = ledger.open_hold(call(&name), opening(&name, number, "ada", &[number]));
        let client = cluster().client(&database).await;
        let pid = session_that(&client, "wait_event_type = 'Lock'").await;
        terminate(&client, pid).await;
        let answer = answer.await;
        assert!(matches!(answer, Err(Error::Unavailable { .. })), "{table}: {answer:?}");
        tx.rollback().await.unwrap();
        assert_eq!(ledger.hold(&name.as_str().into()).await.unwrap().0, None);
        // The same again is done, on another connection.
        let again = ledger.open_hold(call(&name), opening(&name, number, "ada", &[number])).await.unwrap();
        assert!(!again.replayed);
    }
    check(&*ledger).await;
}

/// Goal: a session that ends in COMMIT is Indeterminate: this one took effect, and a retry with its key finds that out.
/// Method: COMMIT waits for a synchronous standby that does not exist, after it was made durable; then the backend is
/// terminated.
#[tokio::test]
async fn a_session_that_ends_in_commit_has_an_unknown_outcome() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let ledger = open(&cluster, &database).await;
    make_event(&*ledger, 2000).await;
    ledger
        .configure(
            LedgerCall::by("staff"),
            Configure {
                event_id: "ev".into(),
                settings: EventSettings { per_buyer: 2000, ..EventSettings::named("Gala") },
                seen: None,
            },
        )
        .await
        .unwrap();
    let client = cluster.client(&database).await;
    client.batch_execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'").await.unwrap();
    client.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    // The server reads its settings when it comes to it: the first COMMIT after that waits.
    let mut number = 0;
    let (answer, pid) = loop {
        number += 1;
        let name = format!("h_{number}");
        let command = OpenHold { layout_version: 2, ..opening(&name, number, "ada", &[number]) };
        let mut answer = ledger.open_hold(call(&name), command);
        tokio::select! {
            done = &mut answer => drop(done.unwrap()),
            pid = session_that(&client, "wait_event = 'SyncRep'") => break (answer, pid),
        }
    };
    terminate(&client, pid).await;
    let answer = answer.await;
    assert!(matches!(answer, Err(Error::Indeterminate { .. })), "{answer:?}");
    client.batch_execute("ALTER SYSTEM RESET synchronous_standby_names").await.unwrap();
    client.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    let name = format!("h_{number}");
    let again = ledger.open_hold(call(&name), opening("h_again", 9999, "ada", &[number])).await.unwrap();
    assert!(again.replayed && again.value.hold.hold_id == name.as_str().into(), "{again:?}");
    check(&*ledger).await;
}

/// What a hold came to, as it was told.
#[derive(Debug, PartialEq, Eq)]
enum AnswerSeen {
    Granted,
    Not,
    Unknown,
}

/// Holds in a crowd, each seat wanted once, while something breaks; says what each was told.
async fn crowd(ledger: &Arc<Postgres>, from: u64, count: u64) -> Vec<(u64, AnswerSeen)> {
    let mut tasks = tokio::task::JoinSet::new();
    for n in from..from + count {
        let ledger = ledger.clone();
        tasks.spawn(async move {
            let answer =
                ledger.open_hold(LedgerCall::by("crowd"), opening(&format!("h_{n}"), n, &format!("b{n}"), &[n])).await;
            let told = match answer {
                Ok(_) => AnswerSeen::Granted,
                Err(Error::Unavailable { .. }) => AnswerSeen::Not,
                Err(Error::Indeterminate { .. }) => AnswerSeen::Unknown,
                Err(other) => panic!("{other:?}"),
            };
            (n, told)
        });
    }
    tasks.join_all().await
}

/// All that was acknowledged is there, and nothing of what was said to have had no effect.
async fn compare(ledger: &Postgres, told: &[(u64, AnswerSeen)]) {
    let snapshot = ledger.snapshot(&"ev".into()).await.unwrap().unwrap();
    let there: std::collections::BTreeSet<HoldId> = snapshot.holds.into_iter().map(|hold| hold.hold_id).collect();
    for (n, told) in told {
        let there = there.contains(&HoldId(format!("h_{n}")));
        match told {
            AnswerSeen::Granted => assert!(there, "h_{n} was granted, and is lost"),
            AnswerSeen::Not => assert!(!there, "h_{n} was said to have had no effect"),
            AnswerSeen::Unknown => {}
        }
    }
    check(ledger).await;
}

/// Goal: whenever sessions end, what is acknowledged is there and what is Unavailable is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backends_that_are_terminated_lose_nothing_that_was_told() {
    let database = cluster().database().await;
    let ledger = open(cluster(), &database).await;
    make_event(&*ledger, 2000).await;
    let client = cluster().client(&database).await;
    let (mut all, mut broken) = (Vec::new(), 0);
    for round in 0..25 {
        let holds = {
            let ledger = ledger.clone();
            tokio::spawn(async move { crowd(&ledger, round * 50 + 1, 50).await })
        };
        // At another moment every time: while one of them is at work.
        let sql = format!("SELECT pid FROM pg_stat_activity WHERE {LEDGER_SESSIONS} AND state <> 'idle'");
        while !holds.is_finished() {
            if let Some(row) = client.query(&sql, &[]).await.unwrap().first() {
                terminate(&client, row.get(0)).await;
                break;
            }
        }
        let told = holds.await.unwrap();
        broken += told.iter().filter(|(_, told)| *told != AnswerSeen::Granted).count();
        all.extend(told);
    }
    assert!(broken > 0, "sessions ended while they were at work");
    assert!(all.iter().any(|(_, told)| *told == AnswerSeen::Granted));
    compare(&ledger, &all).await;
}

/// Goal: a server that is stopped at once and started again has all that was acknowledged, and the ledger goes on
/// without being opened again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_immediate_restart_loses_nothing_that_was_told() {
    let cluster = Arc::new(Cluster::start(&[]));
    let database = cluster.database().await;
    let ledger = open(&cluster, &database).await;
    make_event(&*ledger, 4000).await;
    let mut all = Vec::new();
    for round in 0..3 {
        let first = crowd(&ledger, round * 1100 + 1, 100).await;
        assert!(first.iter().all(|(_, told)| *told == AnswerSeen::Granted), "round {round}: {first:?}");
        let holds = {
            let ledger = ledger.clone();
            tokio::spawn(async move { crowd(&ledger, round * 1100 + 101, 1000).await })
        };
        let crashing = cluster.clone();
        tokio::task::spawn_blocking(move || crashing.crash()).await.unwrap();
        let told = holds.await.unwrap();
        let refused = ledger.open_hold(LedgerCall::by("ada"), opening("h_never", 9999, "ada", &[4000])).await;
        assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
        let starting = cluster.clone();
        tokio::task::spawn_blocking(move || starting.start_server()).await.unwrap();
        compare(&ledger, &first).await;
        compare(&ledger, &told).await;
        all.extend(told);
    }
    assert!(all.iter().any(|(_, told)| *told != AnswerSeen::Granted), "it was stopped while holds were under way");
}

/// Goal: a server that has no connection left is Unavailable, not a hang, and served again when it has one.
#[tokio::test]
async fn no_connection_left_is_unavailable() {
    let cluster = Cluster::start(&["max_connections=8", "superuser_reserved_connections=0", "max_wal_senders=0"]);
    let database = cluster.database().await;
    let ledger = open(&cluster, &database).await;
    make_event(&*ledger, 3).await;
    let client = cluster.client(&database).await;
    let mut others = Vec::new();
    let full = loop {
        match tokio_postgres::connect(&cluster.url(&database), tokio_postgres::NoTls).await {
            Ok((client, connection)) => {
                tokio::spawn(async move { drop(connection.await) });
                others.push(client);
            }
            Err(error) if others.len() > 20 => panic!("{error}"),
            Err(error) => {
                // Those of the ledger that are idle go, and others take their places, until there is no room for it.
                let kill =
                    format!("SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity WHERE {LEDGER_SESSIONS}");
                if client.query(&kill, &[]).await.unwrap().is_empty() {
                    break error;
                }
            }
        }
    };
    assert_eq!(full.code(), Some(&tokio_postgres::error::SqlState::TOO_MANY_CONNECTIONS));
    let answer =
        tokio::time::timeout(TEST_TIMEOUT, ledger.open_hold(LedgerCall::by("ada"), opening("h_1", 1, "ada", &[1])))
            .await;
    let answer = answer.expect("an answer, not a hang");
    assert!(matches!(answer, Err(Error::Unavailable { .. })), "{answer:?}");
    let read = tokio::time::timeout(TEST_TIMEOUT, ledger.events()).await.expect("an answer, not a hang");
    assert!(matches!(read, Err(Error::Unavailable { .. })), "{read:?}");
    drop(others);
    let serve = async {
        while ledger.open_hold(LedgerCall::by("ada"), opening("h_1", 1, "ada", &[1])).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, serve).await.expect("served again");
    check(&*ledger).await;
}

/// Goal: a deadlock is tried again inside, and who asked does not learn of it.
/// Method: a session that takes the same locks in the other order, and is patient: the ledger is the victim.
#[tokio::test]
async fn a_deadlock_is_tried_again() {
    let database = cluster().database().await;
    let client = cluster().client(&database).await;
    // A session looks for a circle once, so long after it began to wait: by then there is one.
    client.batch_execute(&format!("ALTER DATABASE {database} SET deadlock_timeout = '5s'")).await.unwrap();
    let ledger = patient(&database).await;
    make_event(&*ledger, 3).await;
    ledger.open_hold(LedgerCall::by("ada"), opening("h_1", 1, "ada", &[1])).await.unwrap();
    client.batch_execute("SET deadlock_timeout = '1min'; SET search_path TO leasehold_boxoffice; BEGIN").await.unwrap();
    client.batch_execute("SELECT 1 FROM seats WHERE seat_id = 'A-2' FOR UPDATE").await.unwrap();
    let answer = ledger.open_hold(LedgerCall::by("ada"), opening("h_2", 2, "ada", &[2]));
    let watcher = cluster().client(&database).await;
    session_that(&watcher, "wait_event_type = 'Lock'").await;
    // Waits for the ledger, which waits for us: a circle, until the ledger's patience with it ends.
    client.batch_execute("UPDATE buyers SET held = held; COMMIT").await.unwrap();
    answer.await.unwrap();
    let sql = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    let counted = async {
        loop {
            watcher.batch_execute("SELECT pg_stat_clear_snapshot()").await.unwrap();
            if watcher.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) > 0 {
                break;
            }
            ledger.open_hold(LedgerCall::by("bob"), opening("h_3", 3, "bob", &[2])).await.unwrap_err();
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, counted).await.expect("there was a deadlock");
    check(&*ledger).await;
}

/// Goal: a lock that somebody keeps for long is Unavailable for who needs it, and for nobody else of the same batch.
#[tokio::test]
async fn a_lock_that_is_kept_stops_only_who_needs_it() {
    let database = cluster().database().await;
    let options =
        PostgresOptions { writers: 1, lock_timeout: Duration::from_millis(200), ..PostgresOptions::default() };
    let ledger = Postgres::open(&cluster().url(&database), options).await.unwrap();
    make_event(&*ledger, 9).await;
    let mut blocker = cluster().client(&database).await;
    let tx = blocker.transaction().await.unwrap();
    tx.batch_execute("SELECT 1 FROM leasehold_boxoffice.seats WHERE seat_id = 'A-2' FOR UPDATE").await.unwrap();
    let holds: Vec<_> = (1..=9)
        .map(|n| ledger.open_hold(LedgerCall::by("crowd"), opening(&format!("h_{n}"), n, &format!("b{n}"), &[n])))
        .collect();
    let mut answers = Vec::new();
    for hold in holds {
        answers.push(hold.await);
    }
    assert!(matches!(answers[1], Err(Error::Unavailable { .. })), "{:?}", answers[1]);
    assert!(answers.iter().enumerate().all(|(at, answer)| at == 1 || answer.is_ok()), "{answers:?}");
    tx.rollback().await.unwrap();
    check(&*ledger).await;
}

/// Goal: a batch that waits for a lock of somebody else's does not keep the next one from its turn.
#[tokio::test]
async fn who_waits_for_a_lock_gives_the_turn_away() {
    let database = cluster().database().await;
    let ledger = patient(&database).await;
    make_event(&*ledger, 3).await;
    let mut blocker = cluster().client(&database).await;
    let tx = blocker.transaction().await.unwrap();
    tx.batch_execute("SELECT 1 FROM leasehold_boxoffice.seats WHERE seat_id = 'A-2' FOR UPDATE").await.unwrap();
    let waits = ledger.open_hold(LedgerCall::by("ada"), opening("h_1", 1, "ada", &[2]));
    session_that(&cluster().client(&database).await, "wait_event_type = 'Lock'").await;
    // The lock is there until this is answered. Who kept the turn would keep it until its patience with the lock ends.
    let passes = ledger.open_hold(LedgerCall::by("bob"), opening("h_2", 2, "bob", &[3]));
    tokio::time::timeout(TEST_TIMEOUT / 2, passes).await.expect("bob has his turn").unwrap();
    tx.rollback().await.unwrap();
    waits.await.unwrap();
    check(&*ledger).await;
}
