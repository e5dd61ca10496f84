//! What the PostgreSQL engine says where it cannot be used: each time one sentence, in time, and no secret in it.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stdout)] // a real server lives in real time

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::Error;
use leasehold::engine::postgres::{PostgresEngine, PostgresEngineOptions};
use leasehold::engine::{Claim, Engine, Want};
use leasehold_harness::postgres::Cluster;

/// No refusal takes longer, whatever is wrong.
const MAX_ANSWER_TIME: Duration = Duration::from_secs(9);

async fn try_open(url: &str) -> Result<Arc<PostgresEngine>, Error> {
    let began = Instant::now();
    let opened = PostgresEngine::open(PostgresEngineOptions::from_url(url)?).await;
    assert!(began.elapsed() < MAX_ANSWER_TIME, "{:?}", began.elapsed());
    opened
}

/// The sentence for the operator. It repeats no password.
async fn refusal(url: &str) -> String {
    let error = try_open(url).await.expect_err("it cannot be used");
    assert!(!format!("{error:?} {error}").contains("hunter2"), "{error:?}");
    match error {
        Error::Invalid(sentence) => format!("invalid: {sentence}"),
        Error::Unavailable { source, .. } => format!("unavailable: {source}"),
        other => panic!("{other:?}"),
    }
}

fn assert_says(said: &str, kind: &str, words: &str) {
    println!("{said}");
    assert!(said.starts_with(kind) && said.contains(words) && said.lines().count() == 1, "{said}");
}

/// Rules of the server for its users, then the rest as before.
async fn set_rules(cluster: &Cluster, rules: &str) {
    cluster.put_file("pg_hba.conf", &format!("{rules}\nhost all postgres 127.0.0.1/32 trust\n"));
    cluster.execute("postgres", "SELECT pg_reload_conf()").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
}

/// Goal: a wrong password, a missing one, and a user that is not admitted are told apart.
#[tokio::test]
async fn wrong_credentials_are_said() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let role = format!("CREATE ROLE app LOGIN PASSWORD 'right'; GRANT CREATE ON DATABASE {database} TO app");
    cluster.execute(&database, &role).await;
    set_rules(&cluster, "host all app 127.0.0.1/32 scram-sha-256\nhost all ghost 127.0.0.1/32 trust").await;
    let url = |user: &str| cluster.url_through(cluster.port(), user, &database);
    let wrong = "invalid: PostgreSQL does not accept this user and password";
    assert_says(&refusal(&url("app:hunter2")).await, wrong, "");
    assert_says(&refusal(&url("app")).await, "invalid: PostgreSQL wants a password", "");
    assert_says(&refusal(&url("ghost:hunter2")).await, wrong, "");
    assert_says(&refusal(&url("stranger:hunter2")).await, "invalid: pg_hba.conf", "does not admit this user");
    try_open(&url("app:right")).await.expect("the right one");
}

/// Goal: a server that wants TLS says so to whoever comes without; with the authority named it is used, and a server that
/// another authority signed, or that has no TLS, is not.
#[tokio::test]
async fn a_server_that_wants_tls_says_so() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    cluster.execute(&database, &format!("CREATE ROLE app LOGIN; GRANT CREATE ON DATABASE {database} TO app")).await;
    let authority = |name: &str| {
        let signed = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let file = tempfile::Builder::new().prefix(name).tempfile().unwrap();
        std::fs::write(&file, signed.cert.pem()).unwrap();
        (signed, file)
    };
    let (ours, file) = authority("ours");
    let (_, foreign) = authority("foreign");
    let plain = cluster.url_through(cluster.port(), "app:hunter2", &database);
    let with_root =
        |root: &tempfile::NamedTempFile| format!("{plain}?sslmode=verify-full&sslrootcert={}", root.path().display());
    assert_says(&refusal(&with_root(&file)).await, "unavailable: ", "TLS");
    cluster.put_file("server.crt", &ours.cert.pem());
    cluster.put_file("server.key", &ours.signing_key.serialize_pem());
    cluster.change_setting("ssl = on").await;
    set_rules(&cluster, "hostssl all app 127.0.0.1/32 trust").await;
    assert_says(&refusal(&plain).await, "invalid: pg_hba.conf", "sslmode=require");
    assert_says(&refusal(&with_root(&foreign)).await, "unavailable: ", "certificate");
    let engine = try_open(&with_root(&file)).await.expect("it opens over TLS");
    let claim = |wait| Claim { wait, ..Claim::new(vec![Want::exclusive("seat")], Duration::from_secs(30), "ada") };
    let first = engine.acquire(claim(Duration::ZERO)).await.expect("granted");
    // Messages come over TLS too.
    let second = {
        let (engine, claim) = (engine.clone(), claim(Duration::from_secs(10)));
        tokio::spawn(async move { engine.acquire(claim).await })
    };
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(engine.release(&first.lease_id).await.unwrap());
    assert!(second.await.unwrap().expect("its turn").token > first.token);
    let text = "SELECT count(*), count(*) FILTER (WHERE s.ssl) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) \
                WHERE a.usename = 'app'";
    let row = cluster.client(&database).await.query_one(text, &[]).await.unwrap();
    assert!(row.get::<_, i64>(0) > 2 && row.get::<_, i64>(0) == row.get::<_, i64>(1), "all of them: {row:?}");
}

/// Goal: an old version and a server that takes no writes are refused by name.
/// Method: the version is what `current_setting` says, which stands before the server's own in the search path.
#[tokio::test]
async fn an_old_and_a_read_only_server_are_said() {
    let cluster = Cluster::start(&[]);
    let old = cluster.database().await;
    let version = "CREATE FUNCTION public.current_setting(text) RETURNS text LANGUAGE sql AS $$ SELECT CASE $1
         WHEN 'server_version_num' THEN '130012' ELSE pg_catalog.current_setting($1) END $$";
    cluster.execute(&old, version).await;
    cluster.execute(&old, &format!("ALTER DATABASE {old} SET search_path = public, pg_catalog")).await;
    assert_says(&refusal(&cluster.url(&old)).await, "invalid: PostgreSQL 13 is too old", "14 or newer");
    let read_only = cluster.database().await;
    cluster.execute(&read_only, &format!("ALTER DATABASE {read_only} SET default_transaction_read_only = on")).await;
    let said = refusal(&cluster.url(&read_only)).await;
    assert_says(&said, "unavailable: the server is read only", "default_transaction_read_only");
}
