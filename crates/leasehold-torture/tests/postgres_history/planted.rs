//! Faults planted in the layout or in its sequence: each is found by the laws, and without it the same run is lawful.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::advisory::{AdvisoryKey, AdvisoryLocks, AdvisoryMode};
use leasehold::engine::Engine as _;
use leasehold::engine::postgres::{PostgresEngine, PostgresEngineOptions, SchemaName, migration_sql};
use leasehold_core::Token;
use leasehold_harness::postgres::Cluster;
use leasehold_torture::history::History;
use leasehold_torture::invariant::{believed, exclusion, token_order, token_unique};

use super::facts;
use super::support::recorder::{Recorder, from_environment, sleep_millis};
use super::{MAX_RUN, MIN_GRANTS, open_engine};

/// A fault that shows by chance has so many sprints.
const MAX_SPRINTS: usize = 10;

/// Far above the clock: then nothing but the sequence keeps the order of tokens.
const FLOOR: u64 = 5_000_000_000_000_000;

fn schema() -> SchemaName {
    SchemaName::new(SchemaName::DEFAULT).expect("a name")
}

/// The text with a fault in it. The place must be there, once.
fn plant(sql: &str, place: &str, fault: &str) -> String {
    assert_eq!(sql.matches(place).count(), 1, "the layout has changed: {place}");
    sql.replace(place, fault)
}

/// Locks and looks in one statement: what a free name is taken by has a snapshot that is older than its lock.
fn lock_and_look_in_one_statement() -> String {
    let sql = migration_sql(&schema());
    let order = ", h) FROM (SELECT DISTINCT hashtext(n) AS h";
    let end = sql.find(order).expect("the locks of names");
    let start = sql[..end].rfind("pg_advisory_xact_lock(").expect("their function");
    let lock = format!("{}, h)", &sql[start..end]);
    let without =
        plant(&sql, "begin_write(p_firsts || p_names, p_known, p_alone)", "begin_write(p_names, p_known, p_alone)");
    let locked = format!(
        "WITH k AS MATERIALIZED (SELECT count({lock}) AS n
         FROM (SELECT DISTINCT hashtext(n) AS h FROM unnest(p_firsts) n ORDER BY 1) s),
         c AS MATERIALIZED (SELECT u.* FROM k, unnest(p_kinds"
    );
    plant(&without, "WITH c AS MATERIALIZED (\n   SELECT u.* FROM unnest(p_kinds", &locked)
}

/// Several engines, one client each, one name; until enough happened.
async fn run_sprint(cluster: &Cluster, database: &str, engines: Vec<Arc<PostgresEngine>>) -> History {
    let recorder = Recorder::new();
    let runs = engines.into_iter().enumerate();
    let clients: Vec<_> =
        runs.map(|(client, engine)| tokio::spawn(recorder.clone().run_sprinter(engine, client as u64))).collect();
    let (began, span) = (Instant::now(), Duration::from_secs(from_environment("LEASEHOLD_HISTORY_SECONDS", 4)));
    while began.elapsed() < span || (recorder.count_grants() < MIN_GRANTS && began.elapsed() < MAX_RUN) {
        sleep_millis(100).await;
    }
    recorder.stop();
    for client in clients {
        client.await.expect("no panic");
    }
    let history = facts::read_history(cluster, database, recorder.take_ops()).await;
    println!("{} operations, {} facts", history.ops.len(), history.facts.len());
    assert!(history.facts.len() > MIN_GRANTS, "too little happened");
    history
}

async fn open_engines(cluster: &Cluster, database: &str, count: usize) -> Vec<Arc<PostgresEngine>> {
    let mut engines = Vec::new();
    for _ in 0..count {
        engines.push(open_engine(&cluster.url(database)).await);
    }
    engines
}

/// Goal: a lock and a look in one statement let two holders in, and the checker sees them; the layout as it is does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_and_a_look_in_one_statement_are_found() {
    let cluster = Cluster::start(&[]);
    for (planted, sql) in [(false, migration_sql(&schema())), (true, lock_and_look_in_one_statement())] {
        // Whether two meet in the gap is chance: the fault has several sprints to show itself.
        let mut seen = (false, false);
        for _ in 0..if planted { MAX_SPRINTS } else { 1 } {
            let database = cluster.database().await;
            cluster.execute(&database, &sql).await;
            let engines = open_engines(&cluster, &database, 8).await;
            let history = run_sprint(&cluster, &database, engines).await;
            let (told, stored) = (believed::check(&history), exclusion::check(&history));
            println!("planted {planted}: {told:?}, {stored:?}");
            seen = (seen.0 || told.is_err(), seen.1 || stored.is_err());
            if seen == (true, true) {
                break;
            }
        }
        assert_eq!(seen, (planted, planted), "what clients believe, and what is stored");
    }
}

/// Goal: a token that is drawn without a logged write comes again after a crash, and the checker sees it.
/// Method: an open transaction has logged the sequence ahead; tokens are drawn for locks that are held; the server crashes.
#[tokio::test]
async fn a_bare_nextval_is_found() {
    let real = migration_sql(&schema());
    let drawn = "RETURN \"leasehold_engine\".next_token(\"leasehold_engine\".now_us());";
    let logged = format!("PERFORM \"leasehold_engine\".wait_for_standbys();\n {drawn}");
    for sql in [real.clone(), plant(&real, &logged, drawn)] {
        let planted = sql != real;
        let cluster = Arc::new(Cluster::start(&["wal_writer_delay=10000", "checkpoint_timeout=3600"]));
        let database = cluster.database().await;
        cluster.execute(&database, &sql).await;
        cluster.execute(&database, &format!("SELECT leasehold_engine.raise_floor({FLOOR})")).await;
        let locks = AdvisoryLocks::new(&cluster.url(&database), schema()).expect("an address");
        let recorder = Recorder::new();
        let lock = async |key: i64| {
            let key = AdvisoryKey::Single(key);
            locks.lock(key, AdvisoryMode::Exclusive, Duration::from_secs(20)).await.expect("it is free")
        };
        // The locks first: what is done for them flushes the log.
        let held = [lock(1).await, lock(2).await, lock(3).await];
        let ahead = cluster.client(&database).await;
        ahead.batch_execute("BEGIN; SELECT leasehold_engine.advisory_token()").await.expect("a transaction");
        for (client, lock) in held.iter().enumerate() {
            let draw = async { lock.token().await.expect("a token") };
            recorder.draw_token(client as u64, "a", draw).await;
        }
        let crashing = cluster.clone();
        let crash = move || {
            crashing.crash();
            crashing.start_server();
        };
        tokio::task::spawn_blocking(crash).await.expect("it starts again");
        let again = lock(1).await;
        for client in 3..8 {
            recorder.draw_token(client, "a", async { again.token().await.expect("a token") }).await;
        }
        let history = History { ops: recorder.take_ops(), ..History::default() };
        println!("planted {planted}: {:?}, {:?}", token_unique::check(&history), token_order::check(&history));
        assert_eq!(token_unique::check(&history).is_err(), planted, "a token came twice");
        assert_eq!(token_order::check(&history).is_err(), planted, "tokens rise");
    }
}

/// Goal: a sequence with CACHE is refused at open; where it is changed later, the checker sees tokens out of order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sequence_with_cache_is_found() {
    let cluster = Cluster::start(&[]);
    let refused = cluster.database().await;
    let cached = plant(&migration_sql(&schema()), ".token CACHE 1;", ".token CACHE 50;");
    cluster.execute(&refused, &cached).await;
    let options = PostgresEngineOptions::from_url(&cluster.url(&refused)).expect("a url");
    let error = PostgresEngine::open(options).await.expect_err("tokens would not rise");
    assert!(error.to_string().contains("CACHE"), "{error}");
    for planted in [false, true] {
        let database = cluster.database().await;
        let engines = open_engines(&cluster, &database, 6).await;
        engines[0].raise_floor(Token::new(FLOOR)).await.expect("raised");
        if planted {
            cluster.execute(&database, "ALTER SEQUENCE leasehold_engine.token CACHE 50").await;
        }
        let history = run_sprint(&cluster, &database, engines).await;
        println!("planted {planted}: {:?}", token_order::check(&history));
        assert_eq!(token_order::check(&history).is_err(), planted, "tokens rise");
    }
}
