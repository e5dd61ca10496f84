//! What the PostgreSQL engine finds at open: weak settings, missing privileges, foreign layouts, standbys; and what a
//! watch without its gate would lose.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stdout)] // a real server lives in real time

use std::sync::Arc;
use std::time::Duration;

use leasehold::engine::postgres::{PostgresEngine, PostgresEngineOptions, SchemaName, grant_sql, migration_sql};
use leasehold::engine::{Claim, Engine, FindingKind, Promise, Token, Want};
use leasehold::{Error, Leasehold, Refusal};
use leasehold_harness::postgres::Cluster;

async fn try_open(url: &str) -> Result<Arc<PostgresEngine>, Error> {
    PostgresEngine::open(PostgresEngineOptions::from_url(url)?).await
}

async fn open(url: &str) -> Arc<PostgresEngine> {
    try_open(url).await.expect("the engine opens")
}

fn seat(who: &str) -> Claim {
    Claim::new(vec![Want::exclusive("seat")], Duration::from_secs(30), who)
}

/// The settings that deny a promise, with what they deny.
async fn denials(engine: &PostgresEngine) -> Vec<(String, Vec<Promise>)> {
    let found = engine.examine().await.expect("it can be examined").into_iter();
    found
        .filter_map(|finding| match finding.kind {
            FindingKind::Denies(promises) => Some((finding.setting, promises)),
            _ => None,
        })
        .collect()
}

fn never_early() -> (String, Vec<Promise>) {
    ("clock".into(), vec![Promise::NeverEarly])
}

fn weak(setting: &str) -> (String, Vec<Promise>) {
    (setting.into(), vec![Promise::Durable, Promise::Fencing])
}

/// Goal: with default settings everything but never early is promised, and the user's own settings do not weaken it.
/// Method: a role that has synchronous_commit off and serializable transactions; the engine sets its sessions.
#[tokio::test]
async fn settings_of_a_role_do_not_weaken_the_engine() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let role = "CREATE ROLE app LOGIN; ALTER ROLE app SET synchronous_commit = off;
                ALTER ROLE app SET default_transaction_isolation = 'serializable'";
    cluster.execute(&database, &format!("{role}; GRANT CREATE ON DATABASE {database} TO app")).await;
    let engine = open(&cluster.url_through(cluster.port(), "app", &database)).await;
    let promises = engine.promises();
    assert!(
        promises.durable && promises.fencing && promises.fair && promises.outlives_process && !promises.never_early
    );
    assert_eq!(denials(&engine).await, [never_early()]);
    let grant = engine.acquire(seat("ada")).await.expect("granted");
    assert!(grant.token.is_some());
    // In a session of its own the functions refuse by themselves.
    let (client, connection) =
        tokio_postgres::connect(&cluster.url_through(cluster.port(), "app", &database), tokio_postgres::NoTls)
            .await
            .unwrap();
    tokio::spawn(connection);
    let refused = client.query("SELECT leasehold_engine.check_waiters('{}')", &[]).await.unwrap_err();
    assert_eq!(refused.code().map(|code| code.code().to_owned()), Some("LH101".into()));
    client.batch_execute("SET default_transaction_isolation = 'read committed'").await.unwrap();
    let refused = client.query("SELECT leasehold_engine.check_waiters('{}')", &[]).await.unwrap_err();
    assert_eq!(refused.code().map(|code| code.code().to_owned()), Some("LH102".into()));
}

/// Goal: each weak setting of the server denies what it must, by name, and a fenced lease is refused.
/// Method: a server for each.
#[tokio::test]
async fn weak_settings_are_named() {
    for setting in ["fsync", "full_page_writes"] {
        let cluster = Cluster::start(&[&format!("{setting}=off")]);
        let database = cluster.database().await;
        let engine = open(&cluster.url(&database)).await;
        assert!(!engine.promises().durable && !engine.promises().fencing);
        assert_eq!(denials(&engine).await, [weak(setting), never_early()]);
        assert_eq!(engine.acquire(seat("ada")).await.expect("a lease without a token").token, None);
        let leasehold = Leasehold::open(&cluster.url(&database)).await.expect("it opens");
        let refused = leasehold.acquire("other").fenced().await.unwrap_err();
        assert!(matches!(refused, Error::Invalid(_)), "{refused:?}");
    }
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let engine = open(&format!("{}?options=-c%20synchronous_commit%3Doff", cluster.url(&database))).await;
    assert_eq!(denials(&engine).await, [weak("synchronous_commit"), never_early()]);
    let error = engine.acquire(seat("ada")).await.unwrap_err();
    let Error::Unavailable { source, .. } = &error else { panic!("{error:?}") };
    assert!(source.to_string().contains("synchronous_commit"), "{source}");
}

/// Goal: a setting that gets weaker stops new leases, with its name, and those that exist go on.
/// Method: full_page_writes is turned off under an open engine; its next connection finds it.
#[tokio::test]
async fn a_setting_that_gets_weaker_stops_new_leases() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let engine = open(&cluster.url(&database)).await;
    let ada = engine.acquire(seat("ada")).await.unwrap();
    cluster.change_setting("full_page_writes = off").await;
    cluster.terminate_backends(&database, "leasehold engine").await;
    engine.renew(&ada.lease_id, None).await.expect("a lease that exists goes on");
    let error =
        engine.acquire(Claim::new(vec![Want::exclusive("row")], Duration::from_secs(5), "bob")).await.unwrap_err();
    let Error::Unavailable { source, .. } = &error else { panic!("{error:?}") };
    assert!(source.to_string().contains("full_page_writes is off now"), "{source}");
    assert!(engine.promises().durable, "promises do not change under an open engine");
    assert!(engine.release(&ada.lease_id).await.unwrap());
}

/// Goal: a role with the documented privileges can do everything and read no table; without them a sentence says what to do.
/// Method: roles with nothing, and with what `grant_sql` says.
#[tokio::test]
async fn the_least_privileges_are_enough() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    cluster.execute(&database, "CREATE ROLE nobody LOGIN; CREATE ROLE app LOGIN").await;
    let as_nobody = cluster.url_through(cluster.port(), "nobody", &database);
    let error = try_open(&as_nobody).await.unwrap_err();
    assert!(matches!(&error, Error::Invalid(why) if why.contains("leasehold migrate")), "{error:?}");
    let owner = PostgresEngineOptions::from_url(&cluster.url(&database)).unwrap();
    assert!(PostgresEngine::migrate(&owner).await.unwrap());
    assert!(!PostgresEngine::migrate(&owner).await.unwrap(), "once");
    let error = try_open(&as_nobody).await.unwrap_err();
    assert!(matches!(&error, Error::Invalid(why) if why.contains("GRANT USAGE")), "{error:?}");
    cluster.execute(&database, &grant_sql(&SchemaName::new(SchemaName::DEFAULT).unwrap(), "app")).await;
    let as_app = cluster.url_through(cluster.port(), "app", &database);
    let engine = open(&as_app).await;
    let ada = engine.acquire(seat("ada")).await.expect("granted");
    let bob = {
        let engine = engine.clone();
        tokio::spawn(async move { engine.acquire(Claim { wait: Duration::from_secs(10), ..seat("bob") }).await })
    };
    let mut watch = engine.watch(None).await.expect("it can be watched");
    assert!(watch.next().await.is_ok());
    engine.relabel(&ada.lease_id, "ada, again").await.unwrap();
    engine.renew(&ada.lease_id, None).await.unwrap();
    assert!(engine.release(&ada.lease_id).await.unwrap());
    bob.await.unwrap().expect("granted");
    assert_eq!(engine.revoke("seat", "a drill").await.unwrap(), 1);
    engine.raise_floor(Token::new(5)).await.unwrap();
    assert!(engine.inspect("seat").await.unwrap().is_none() && engine.identity().await.unwrap().is_some());
    engine.examine().await.unwrap();
    let (client, connection) = tokio_postgres::connect(&as_app, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    for table in ["lease", "meta", "process", "event", "resource"] {
        let refused = client.query(&format!("SELECT * FROM leasehold_engine.{table}"), &[]).await.unwrap_err();
        assert_eq!(refused.code().map(|code| code.code().to_owned()), Some("42501".into()), "{table}");
    }
    let error = try_open(&as_nobody).await.unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error:?}");
}

/// Goal: what would make the promises lies is refused at open: unlogged tables, cached sequences, another layout.
/// Method: each of them made on purpose; also a database that is not there, and nobody at the port.
#[tokio::test]
async fn what_cannot_be_used_is_refused_with_a_sentence() {
    let cluster = Cluster::start(&[]);
    for (fault, sentence) in [
        ("ALTER TABLE leasehold_engine.shared_holder SET UNLOGGED", "not logged"),
        ("ALTER SEQUENCE leasehold_engine.token CACHE 50", "CACHE"),
        ("UPDATE leasehold_engine.meta SET layout = 99", "made by a newer Leasehold"),
    ] {
        let database = cluster.database().await;
        cluster.execute(&database, &migration_sql(&SchemaName::new(SchemaName::DEFAULT).unwrap())).await;
        cluster.execute(&database, fault).await;
        let error = try_open(&cluster.url(&database)).await.unwrap_err();
        assert!(error.to_string().contains(sentence), "{fault}: {error}");
    }
    let error = try_open(&cluster.url("no_such_database")).await.unwrap_err();
    assert!(matches!(&error, Error::Invalid(why) if why.contains("no such database")), "{error:?}");
    let closed = leasehold_harness::free_port();
    let error = try_open(&cluster.url_through(closed, "postgres:hunter2", "postgres")).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }) && !format!("{error:?}").contains("hunter2"), "{error:?}");
}

/// Goal: a standby is no engine; an asynchronous one denies durable and fencing; a promoted one goes on with higher tokens.
/// Method: a real standby, looked at through every URL, then promoted without the newest grants.
#[tokio::test]
async fn standbys_are_told_apart() {
    let cluster = Cluster::start(&["wal_level=replica"]);
    let database = cluster.database().await;
    let before = open(&cluster.url(&database)).await;
    before.acquire(seat("ada")).await.unwrap();
    let identity = before.identity().await.unwrap();
    let standby = cluster.start_standby("copy");
    let error = try_open(&standby.url(&database)).await.unwrap_err();
    let Error::Unavailable { source, .. } = &error else { panic!("{error:?}") };
    assert!(source.to_string().contains("standby"), "{source}");
    let both = format!("postgres://postgres@127.0.0.1:{},127.0.0.1:{}/{database}", standby.port(), cluster.port());
    assert!(!open(&both).await.promises().durable, "the primary is found, and it has an asynchronous standby");
    let engine = open(&cluster.url(&database)).await;
    assert_eq!(denials(&engine).await, [weak("synchronous_standby_names"), never_early()]);
    let synced = open(&format!("{}?clocks=synced", cluster.url(&database))).await;
    assert!(!synced.promises().durable && synced.promises().fencing);
    // With its name in synchronous_standby_names it is as good as none.
    cluster.change_setting("synchronous_standby_names = 'copy'").await;
    let mut promised = false;
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        promised = open(&cluster.url(&database)).await.promises().durable;
        if promised {
            break;
        }
    }
    assert!(promised, "a synchronous standby loses nothing");
    cluster.change_setting("synchronous_standby_names = ''").await;
    // The standby stops following; what comes now is lost with the primary.
    standby.execute("postgres", "SELECT pg_wal_replay_pause()").await;
    let mut newest = None;
    for _ in 0..40 {
        let grant =
            synced.acquire(Claim::new(vec![Want::exclusive("row")], Duration::from_secs(30), "bob")).await.unwrap();
        newest = grant.token;
        synced.release(&grant.lease_id).await.unwrap();
    }
    cluster.crash();
    standby.execute("postgres", "SELECT pg_wal_replay_resume(); SELECT pg_promote()").await;
    let after = open(&standby.url(&database)).await;
    assert_eq!(after.identity().await.unwrap(), identity, "the same engine, elsewhere");
    let grant = after.acquire(Claim::new(vec![Want::exclusive("row")], Duration::from_secs(30), "cy")).await.unwrap();
    assert!(grant.token > newest, "{:?} after {newest:?}", grant.token);
    let held = after.acquire(seat("dan")).await.unwrap_err();
    assert!(matches!(held, Error::Refused(Refusal::Held { .. })), "{held:?}");
}

/// Goal: a watch that begins without the gate loses the grant of a batch that did not see it; with the gate it waits.
/// Method: a batch that is not committed yet, and `begin_watch` beside it: as it is, and without its lock.
#[tokio::test]
async fn a_watch_without_its_gate_loses_an_event() {
    let cluster = Cluster::start(&[]);
    for planted in [false, true] {
        let database = cluster.database().await;
        let schema = SchemaName::new(SchemaName::DEFAULT).unwrap();
        let sql = migration_sql(&schema);
        let at = sql.find("FUNCTION \"leasehold_engine\".begin_watch").expect("the function is there");
        let (head, tail) = sql.split_at(at);
        let gate = tail.find("PERFORM pg_advisory_xact_lock").expect("its gate");
        let end = gate + tail[gate..].find(';').unwrap();
        let planted_sql = format!("{head}{}{}", &tail[..gate], &tail[end + 1..]);
        cluster.execute(&database, if planted { &planted_sql } else { &sql }).await;
        let (writer, watcher) = (cluster.client(&database).await, cluster.client(&database).await);
        let grant = "BEGIN; SELECT * FROM leasehold_engine.batch(ARRAY['f']::\"char\"[], \
            ARRAY['00000000-0000-0000-0000-000000000001']::uuid[], ARRAY['00000000-0000-0000-0000-000000000002']::uuid[], \
            ARRAY['seat'], ARRAY[30000]::bigint[], ARRAY[0]::bigint[], ARRAY[NULL]::bigint[], ARRAY[0]::bigint[], \
            ARRAY[NULL]::bigint[], ARRAY['ada'], '{}', '{}', '{}', '{}', '{}', '{}', 1, 100)";
        writer.batch_execute(grant).await.unwrap();
        let watching = tokio::spawn(async move {
            watcher.query_one("SELECT last FROM leasehold_engine.begin_watch(7)", &[]).await.unwrap();
            let seen = watcher.query("SELECT * FROM leasehold_engine.list('', '', 10)", &[]).await.unwrap().len();
            (watcher, seen)
        });
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(watching.is_finished(), planted, "the gate waits for the batch");
        writer.batch_execute("COMMIT").await.unwrap();
        let (watcher, seen) = watching.await.unwrap();
        let events: i64 = watcher.query_one("SELECT count(*) FROM leasehold_engine.event", &[]).await.unwrap().get(0);
        // Whoever reads the list after the watch began, and then the events, must know of the grant.
        assert_eq!(seen as i64 + events > 0, !planted, "planted {planted}: {seen} in the list, {events} events");
    }
}
