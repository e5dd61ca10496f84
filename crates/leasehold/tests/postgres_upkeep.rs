//! What keeps the PostgreSQL engine going for long: sweeps, tokens that are raised beside open transactions, processes that
//! come back after an outage, commits that no standby has.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stdout)] // a real server lives in real time

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::advisory::{AdvisoryKey, AdvisoryLocks, AdvisoryMode};
use leasehold::engine::postgres::{PostgresEngine, PostgresEngineOptions, SchemaName};
use leasehold::engine::{Claim, Engine, Mode, Query, Token, Want};
use leasehold_harness::postgres::Cluster;
use tokio_postgres::Client;

const TTL: Duration = Duration::from_secs(30);

async fn open(url: &str) -> Arc<PostgresEngine> {
    PostgresEngine::open(PostgresEngineOptions::from_url(url).unwrap()).await.expect("the engine opens")
}

async fn sleep(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

fn claim(name: &str, wait: Duration) -> Claim {
    Claim { wait, ..Claim::new(vec![Want::exclusive(name)], TTL, "ada") }
}

fn spawn_acquire(
    engine: &Arc<PostgresEngine>,
    claim: Claim,
) -> tokio::task::JoinHandle<Result<leasehold::engine::Grant, leasehold::Error>> {
    let engine = engine.clone();
    tokio::spawn(async move { engine.acquire(claim).await })
}

async fn count(client: &Client, what: &str) -> i64 {
    client.query_one(&format!("SELECT count(*) FROM leasehold_engine.{what}"), &[]).await.unwrap().get(0)
}

/// Goal: what is over is forgotten, what is not stays, and a sweep that fails is found by `examine`.
/// Method: leases of all kinds, waiters and bans; their times are moved back by hours; a sweep; then a sweep without rights.
#[tokio::test]
async fn a_sweep_forgets_what_is_over() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let engine = open(&cluster.url(&database)).await;
    let client = cluster.client(&database).await;
    for number in 0..700 {
        let mode = [Mode::Exclusive, Mode::Shared, Mode::Permits { count: 1, capacity: 3 }][number % 3];
        let wants = vec![Want { name: format!("old-{number}"), mode }];
        let grant = engine.acquire(Claim::new(wants, TTL, "ada")).await.unwrap();
        if number % 2 == 0 {
            engine.release(&grant.lease_id).await.unwrap();
        }
    }
    client
        .batch_execute(
            "UPDATE leasehold_engine.lease SET granted = granted - 7200000000, ends = ends - 7200000000,
                ended = ended - 7200000000;
             UPDATE leasehold_engine.resource SET used = used - 7200000000;
             INSERT INTO leasehold_engine.lease (handle, secret, state, single, ended, ttl, delay, label, names, counts,
                capacities) SELECT gen_random_uuid(), gen_random_uuid(), 'X', false,
                leasehold_engine.now_us() + 3600000000 * (i % 2 * 2 - 1), 0, 0, '', '{}', '{}', '{}'
                FROM generate_series(1, 4) i",
        )
        .await
        .unwrap();
    let live = engine.acquire(claim("live", Duration::ZERO)).await.unwrap();
    let released = engine.acquire(claim("released", Duration::ZERO)).await.unwrap();
    engine.release(&released.lease_id).await.unwrap();
    let waiting = spawn_acquire(&engine, claim("live", TTL));
    while count(&client, "queue").await == 0 {
        sleep(10).await;
    }
    // A claim that its process forgot.
    client
        .batch_execute(
            "INSERT INTO leasehold_engine.lease (handle, secret, state, single, ttl, delay, label, names, counts, capacities,
                arrival, since, patience, processes) SELECT gen_random_uuid(), secret, state, single, ttl, delay, 'gone', names,
                counts, capacities, -1, since, since - 7200000000, processes FROM leasehold_engine.lease WHERE state = 'W';
             INSERT INTO leasehold_engine.queue SELECT 'live', -1, handle, 0, 0 FROM leasehold_engine.lease WHERE label = 'gone';
             UPDATE leasehold_engine.resource SET queue = 2 WHERE name = 'live'",
        )
        .await
        .unwrap();
    assert!(count(&client, "lease").await > 700 && count(&client, "resource").await > 700);
    engine.sweep_now().await;
    // The live lease, the claim that waits for it, the ending a moment ago and two bans.
    assert_eq!(count(&client, "lease").await, 5);
    assert_eq!(count(&client, "resource WHERE name IN ('live', 'released')").await, 2);
    assert_eq!(count(&client, "resource").await, 2);
    assert_eq!(count(&client, "shared_holder").await, 0);
    assert_eq!(count(&client, "queue").await, 1);
    engine.renew(&live.lease_id, None).await.expect("a live lease stays");
    assert!(!engine.release(&released.lease_id).await.unwrap(), "an ending of a moment ago is remembered");
    engine.release(&live.lease_id).await.unwrap();
    waiting.await.unwrap().expect("the queue goes on");
    let warned = async || engine.examine().await.unwrap().into_iter().find(|finding| finding.setting == "sweep");
    assert!(warned().await.is_none());
    let again = "UPDATE leasehold_engine.meta SET swept = 0";
    client.batch_execute(again).await.unwrap();
    client.batch_execute("ALTER TABLE leasehold_engine.event RENAME TO event_away").await.unwrap();
    engine.sweep_now().await;
    assert!(warned().await.is_some_and(|finding| finding.found.contains("failed")));
    client.batch_execute("ALTER TABLE leasehold_engine.event_away RENAME TO event").await.unwrap();
    client.batch_execute(again).await.unwrap();
    engine.sweep_now().await;
    assert!(warned().await.is_none(), "a sweep that succeeds ends the warning");
}

/// Goal: whoever raises the tokens stops nobody, however long its transaction stays open.
/// Method: the sequence is far behind; a token for an advisory lock, a floor and a batch in transactions that stay open.
#[tokio::test]
async fn an_open_transaction_that_raised_tokens_stops_nobody() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let engine = open(&cluster.url(&database)).await;
    let kept = engine.acquire(claim("kept", Duration::ZERO)).await.unwrap();
    let mut last = kept.token;
    let batch = "SELECT * FROM leasehold_engine.batch(ARRAY['f']::\"char\"[], \
        ARRAY['00000000-0000-0000-0000-000000000001']::uuid[], ARRAY['00000000-0000-0000-0000-000000000002']::uuid[], \
        ARRAY['other'], ARRAY[30000]::bigint[], ARRAY[0]::bigint[], ARRAY[NULL]::bigint[], ARRAY[0]::bigint[], \
        ARRAY[NULL]::bigint[], ARRAY['ada'], '{}', '{}', '{}', '{}', '{}', '{}', 1, 100)";
    for open_call in ["SELECT leasehold_engine.advisory_token()", "SELECT leasehold_engine.raise_floor(7)", batch] {
        let other = cluster.client(&database).await;
        // An idle second: the clock is ahead of the sequence by more than a million.
        sleep(1200).await;
        other.batch_execute(&format!("BEGIN; {open_call}")).await.unwrap();
        sleep(1200).await;
        let began = Instant::now();
        engine.renew(&kept.lease_id, None).await.expect("renewed");
        let grant = engine.acquire(claim("free", Duration::ZERO)).await.expect("granted");
        engine.release(&grant.lease_id).await.expect("released");
        assert!(began.elapsed() < Duration::from_millis(900), "{open_call}: {:?}", began.elapsed());
        assert!(grant.token > last, "tokens rise");
        last = grant.token;
        other.batch_execute("ROLLBACK").await.unwrap();
        let grant = engine.acquire(claim("free", Duration::ZERO)).await.expect("granted");
        assert!(grant.token > last, "what was raised is not taken back");
        last = grant.token;
        engine.release(&grant.lease_id).await.unwrap();
    }
}

/// Goal: tokens and floors that were told survive a crash, whoever asks; a session that would lose them is refused.
/// Method: a transaction has logged the sequence ahead and is not committed; a token and a floor; the server crashes.
#[tokio::test]
async fn told_floors_survive_crashes() {
    let cluster = Arc::new(Cluster::start(&["wal_writer_delay=10000", "checkpoint_timeout=3600"]));
    let database = cluster.database().await;
    let engine = open(&cluster.url(&database)).await;
    for sql in ["SELECT leasehold_engine.advisory_token()", "SELECT leasehold_engine.raise_floor(7)"] {
        for weak in ["off", "local"] {
            let client = cluster.client(&database).await;
            client.batch_execute(&format!("SET synchronous_commit = {weak}")).await.unwrap();
            let refused = client.query_one(sql, &[]).await.unwrap_err();
            assert_eq!(refused.code().map(|code| code.code().to_owned()), Some("LH102".into()), "{sql} {weak}");
        }
    }
    // An advisory lock sets its own session, whatever its role prefers.
    cluster.execute(&database, "ALTER ROLE postgres SET synchronous_commit = off").await;
    let locks = AdvisoryLocks::new(&cluster.url(&database), SchemaName::new(SchemaName::DEFAULT).unwrap()).unwrap();
    let lock = locks.lock(AdvisoryKey::Single(7), AdvisoryMode::Exclusive, Duration::ZERO).await.unwrap();
    lock.token().await.expect("a token");
    cluster.execute(&database, "ALTER ROLE postgres RESET synchronous_commit").await;
    sleep(1200).await;
    // Raises the sequence and logs it, and nobody has flushed that.
    let ahead = cluster.client(&database).await;
    ahead.batch_execute("BEGIN; SELECT leasehold_engine.advisory_token()").await.unwrap();
    let floor = engine.raise_floor(None).await.expect("a floor is told");
    let crashing = cluster.clone();
    tokio::task::spawn_blocking(move || {
        crashing.crash();
        crashing.start_server();
    })
    .await
    .unwrap();
    let client = cluster.client(&database).await;
    let sql = "SELECT last_value FROM leasehold_engine.token";
    let after: i64 = client.query_one(sql, &[]).await.unwrap().get(0);
    assert!(Token::new(after.cast_unsigned()) >= Some(floor), "{after} after {floor:?}");
}

/// Goal: a grant that no standby has is not told, although a retry finds it.
/// Method: a synchronous standby that does not exist; the wait of the first commit is cancelled; the caller gets no answer
/// before the setting is gone. The same for the release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_wait_for_a_standby_is_waited_for_again() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let engine = open(&cluster.url(&database)).await;
    let grant = engine.acquire(claim("warm", Duration::ZERO)).await.unwrap();
    engine.release(&grant.lease_id).await.unwrap();
    let client = cluster.client("postgres").await;
    let sql = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    let cancel_one = async || {
        for _ in 0..300 {
            if client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) > 0 {
                return;
            }
            sleep(10).await;
        }
        panic!("no commit waits for the standby");
    };
    cluster.change_setting("synchronous_standby_names = 'ghost'").await;
    sleep(300).await;
    let acquiring = spawn_acquire(&engine, claim("seat", Duration::ZERO));
    cancel_one().await;
    sleep(800).await;
    assert!(!acquiring.is_finished(), "the grant is only local: {:?}", acquiring.await);
    cluster.change_setting("synchronous_standby_names = ''").await;
    let grant = acquiring.await.unwrap().expect("granted");
    cluster.change_setting("synchronous_standby_names = 'ghost'").await;
    sleep(300).await;
    let releasing = {
        let (engine, grant) = (engine.clone(), grant.clone());
        tokio::spawn(async move { engine.release(&grant.lease_id).await })
    };
    cancel_one().await;
    sleep(800).await;
    assert!(!releasing.is_finished(), "the release is only local");
    cluster.change_setting("synchronous_standby_names = ''").await;
    releasing.await.unwrap().expect("released");
}

/// Goal: after an outage nobody loses its place because nobody could be heard; a process that is really gone does.
/// Method: two waiters of two engines; the times at which they were seen are moved back; another caller tries the name.
#[tokio::test]
async fn an_outage_keeps_the_order_of_waiters() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let client = cluster.client(&database).await;
    let holder = open(&cluster.url(&database)).await;
    let grant = holder.acquire(claim("seat", Duration::ZERO)).await.unwrap();
    let mut waiting = Vec::new();
    for number in 1..=2 {
        let engine = open(&cluster.url(&database)).await;
        waiting.push((spawn_acquire(&engine, claim("seat", TTL)), engine));
        while count(&client, "queue").await < number {
            sleep(10).await;
        }
    }
    let arrivals = async || -> Vec<i64> {
        let rows = client.query("SELECT arrival FROM leasehold_engine.queue ORDER BY 1", &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    };
    let before = arrivals().await;
    let reader = || Claim::new(vec![Want { name: "seat".into(), mode: Mode::Shared }], TTL, "bob");
    client
        .batch_execute(
            "INSERT INTO leasehold_engine.process VALUES (4711, 'gone', leasehold_engine.now_us() - 30000000);
             UPDATE leasehold_engine.process SET seen = seen - 60000000",
        )
        .await
        .unwrap();
    holder.acquire(reader()).await.expect_err("it is held, and others wait");
    assert_eq!(arrivals().await, before, "nobody lost its place");
    assert_eq!(
        count(&client, "process WHERE seen > leasehold_engine.now_us() - 10000000").await,
        2,
        "one was gone before"
    );
    // Once more without a heartbeat in between: now they are gone.
    let gone = "UPDATE leasehold_engine.process SET seen = seen - 60000000, revived = true;
                SELECT leasehold_engine.heartbeat(4712, 'new')";
    client.batch_execute(gone).await.unwrap();
    holder.acquire(reader()).await.expect_err("it is held");
    assert_ne!(arrivals().await, before, "who is gone has no place");
    holder.release(&grant.lease_id).await.unwrap();
    // They ask again, in any order: each makes room for the other.
    let served = waiting.into_iter().map(|(waiter, engine)| {
        tokio::spawn(async move {
            let grant = waiter.await.unwrap().expect("granted");
            engine.release(&grant.lease_id).await.unwrap();
        })
    });
    for task in served.collect::<Vec<_>>() {
        task.await.unwrap();
    }
}

/// Goal: what copies the log and can never be promoted denies nothing.
/// Method: pg_receivewal beside the engine.
#[tokio::test]
async fn a_copy_of_the_log_is_no_standby() {
    let cluster = Cluster::start(&["wal_level=replica"]);
    let database = cluster.database().await;
    let versions = std::fs::read_dir("/usr/lib/postgresql").unwrap().flatten();
    let program = versions.map(|version| version.path().join("bin/pg_receivewal")).max().unwrap();
    let place = std::env::temp_dir().join(format!("leasehold-wal-{}", cluster.port()));
    std::fs::create_dir(&place).unwrap();
    let mut copying = std::process::Command::new(program)
        .args(["-h", "127.0.0.1", "-U", "postgres", "-p", &cluster.port().to_string(), "-D"])
        .arg(&place)
        .spawn()
        .unwrap();
    let client = cluster.client(&database).await;
    let sql = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
    for _ in 0..500 {
        if client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) > 0 {
            break;
        }
        sleep(10).await;
    }
    let streaming: i64 = client.query_one(sql, &[]).await.unwrap().get(0);
    let promises = open(&cluster.url(&database)).await.promises();
    copying.kill().unwrap();
    copying.wait().unwrap();
    std::fs::remove_dir_all(&place).unwrap();
    assert_eq!(streaming, 1);
    assert!(promises.durable && promises.fencing);
}

/// Goal: a check of many claims with many names fits into the table of locks, and forgets none.
/// Method: 500 claims of 64 names, checked and ended at once.
#[tokio::test]
async fn many_names_fit_into_one_check() {
    let cluster = Cluster::start(&["max_connections=20"]);
    let database = cluster.database().await;
    drop(open(&cluster.url(&database)).await);
    let client = cluster.client(&database).await;
    client
        .batch_execute(
            "INSERT INTO leasehold_engine.lease (handle, secret, state, single, token, granted, ends, ttl, delay, label, names,
                counts, capacities, patience) SELECT gen_random_uuid(), gen_random_uuid(), s::\"char\", false,
                CASE s WHEN 'L' THEN i END, 1, 1, 1000, 0, '', array_agg(i || s || j),
                array_agg(0), array_agg(0), leasehold_engine.now_us() + 60000000
                FROM generate_series(1, 500) i, generate_series(1, 64) j, unnest(ARRAY['W', 'L']) s GROUP BY i, s",
        )
        .await
        .unwrap();
    for (function, state) in [("check_waiters", "W"), ("expire", "L")] {
        let sql = format!(
            "SELECT count(*) FROM leasehold_engine.{function}(ARRAY(SELECT handle FROM leasehold_engine.lease WHERE state = '{state}'))"
        );
        let rows: i64 = client.query_one(&sql, &[]).await.expect("it fits").get(0);
        assert!(rows > 480, "{function}: {rows}");
    }
}

/// Goal: only the last page of a list is short, whatever has lapsed meanwhile.
/// Method: thirty names, every second lapsed; pages of four.
#[tokio::test]
async fn only_the_last_page_is_short() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let engine = open(&cluster.url(&database)).await;
    for number in 0..30 {
        engine.acquire(claim(&format!("row-{number:02}"), Duration::ZERO)).await.unwrap();
    }
    let lapse = "UPDATE leasehold_engine.lease SET ends = 1 WHERE right(names[1], 1)::int % 2 = 0";
    cluster.execute(&database, lapse).await;
    let mut query = Query { prefix: "row-".into(), after: None, limit: 4 };
    let mut sizes = Vec::new();
    loop {
        let page = engine.list(query.clone()).await.unwrap();
        sizes.push(page.len());
        let Some(last) = page.last() else { break };
        query.after = Some(last.name.clone());
    }
    assert_eq!(sizes, [4, 4, 4, 3, 0]);
}

/// Goal: an acquire that was cancelled while it waited is never granted by a try that comes late.
/// Method: its caller goes away; the server keeps a ban for its handle.
#[tokio::test]
async fn a_cancelled_claim_leaves_a_ban() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let engine = open(&cluster.url(&database)).await;
    let client = cluster.client(&database).await;
    engine.acquire(claim("seat", Duration::ZERO)).await.unwrap();
    let waiting = spawn_acquire(&engine, claim("seat", TTL));
    while count(&client, "queue").await == 0 {
        sleep(10).await;
    }
    waiting.abort();
    while count(&client, "queue").await > 0 {
        sleep(10).await;
    }
    assert_eq!(count(&client, "lease WHERE state = 'X' AND ended > leasehold_engine.now_us()").await, 1);
}

/// Goal: where one ending frees more than one transaction serves, nobody is forgotten.
/// Method: three names held by one lease; more readers wait for the last of them than are served at once.
#[tokio::test]
async fn more_waiters_than_are_served_at_once_are_all_served() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let engine = open(&cluster.url(&database)).await;
    let client = cluster.client(&database).await;
    for round in 0..3 {
        let wants = ["a", "b", "c"].map(Want::exclusive).to_vec();
        let grant = engine.acquire(Claim::new(wants, TTL, "ada")).await.unwrap();
        let reader = |name: &str| {
            let wants = vec![Want { name: name.into(), mode: Mode::Shared }];
            Claim { wait: TTL, ..Claim::new(wants, TTL, "reader") }
        };
        let names = (0..70).map(|_| "c").chain(["a", "b"]);
        let waiting: Vec<_> = names.map(|name| spawn_acquire(&engine, reader(name))).collect();
        while count(&client, "queue").await < 72 {
            sleep(10).await;
        }
        let began = Instant::now();
        engine.release(&grant.lease_id).await.unwrap();
        let mut grants = Vec::new();
        for waiter in waiting {
            grants.push(waiter.await.unwrap().expect("granted"));
        }
        assert!(began.elapsed() < Duration::from_millis(1500), "round {round}: {:?}", began.elapsed());
        for grant in grants {
            engine.release(&grant.lease_id).await.unwrap();
        }
    }
}

/// Goal: a session whose settings nobody made, as behind a pooler, does not wait for a kept lock for ever.
/// Method: one transaction keeps a name; a plain session asks for it.
#[tokio::test]
async fn a_plain_session_gives_up_on_a_kept_name() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    drop(open(&cluster.url(&database)).await);
    let (keeper, other) = (cluster.client(&database).await, cluster.client(&database).await);
    let revoke = "SELECT leasehold_engine.revoke('seat', 'a drill')";
    keeper.batch_execute(&format!("BEGIN; {revoke}")).await.unwrap();
    let asked = tokio::time::timeout(Duration::from_secs(6), other.batch_execute(revoke)).await;
    let refused = asked.expect("it gives up by itself").unwrap_err();
    assert_eq!(refused.code().map(|code| code.code().to_owned()), Some("55P03".into()));
}
