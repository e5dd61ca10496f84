//! What the tests of this folder share: one server, a database for each test, and writes under a token.

use std::sync::OnceLock;
use std::time::Duration;

use leasehold::fence::HoleKind;
use leasehold::fence::postgres::{FenceMode, InstallOptions, InstallReport, Remember, examine, install};
use leasehold_harness::postgres::Cluster;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Error};

/// Longer than anything here should take, also on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub const ADA: &str = "41:aaaaaaaaaaaaaaaa";
pub const BOB: &str = "42:bbbbbbbbbbbbbbbb";

/// One server for all tests of this binary. It ends with the process.
pub fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| {
        Cluster::start(&["max_prepared_transactions=10", "wal_level=logical", "max_connections=200", "fsync=off"])
    })
}

/// A database of its own for a test.
pub struct Database {
    pub name: String,
    pub admin: Client,
}

impl Database {
    pub async fn new(sql: &str) -> Self {
        let name = cluster().database().await;
        let admin = cluster().client(&name).await;
        admin.batch_execute(sql).await.unwrap();
        Self { name, admin }
    }

    pub async fn client(&self) -> Client {
        cluster().client(&self.name).await
    }

    pub fn url(&self) -> String {
        cluster().url(&self.name)
    }

    pub async fn install(&self, options: &InstallOptions) -> InstallReport {
        install(&mut self.client().await, options).await.unwrap()
    }

    /// The sentence with which an install is refused.
    pub async fn refuses_install(&self, options: &InstallOptions) -> String {
        let error = install(&mut self.client().await, options).await.expect_err("it cannot be fenced");
        assert!(matches!(error, leasehold::fence::FenceError::Invalid(_)), "{error:?}");
        error.to_string()
    }

    /// Writes in a transaction of its own: "ok", or the code of the error.
    pub async fn write(&self, token: &str, sql: &str) -> String {
        outcome(&under_token(&self.client().await, token, sql).await)
    }

    pub async fn value(&self, sql: &str) -> String {
        let row = self.admin.query_opt(sql, &[]).await.unwrap();
        row.and_then(|row| row.get::<_, Option<String>>(0)).unwrap_or_else(|| "none".into())
    }

    /// The kinds of the holes there are.
    pub async fn holes(&self) -> Vec<HoleKind> {
        let mut kinds: Vec<HoleKind> =
            examine(&self.admin, false).await.unwrap().holes.iter().map(|hole| hole.kind).collect();
        kinds.dedup();
        kinds
    }
}

/// Runs SQL in a transaction under a token.
pub async fn under_token(client: &Client, token: &str, sql: &str) -> Result<(), Error> {
    client.batch_execute("BEGIN").await?;
    let done = async {
        client.execute("SELECT set_config('leasehold.token', $1, true)", &[&token]).await?;
        client.batch_execute(sql).await?;
        client.batch_execute("COMMIT").await
    };
    let done = done.await;
    if done.is_err() {
        let _ = client.batch_execute("ROLLBACK").await;
    }
    done
}

/// "ok", or the code of the error.
pub fn outcome<T>(result: &Result<T, Error>) -> String {
    match result {
        Ok(_) => "ok".into(),
        Err(error) => error.code().map_or_else(|| format!("{error}"), |code| code.code().to_owned()),
    }
}

/// Begins a transaction at an isolation level, takes its snapshot, and shows a token.
pub async fn begin(client: &Client, level: &str, token: &str) {
    client.batch_execute(&format!("BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM seats")).await.unwrap();
    client.execute("SELECT set_config('leasehold.token', $1, true)", &[&token]).await.unwrap();
}

/// Runs a statement in the background, and returns once it waits for a lock.
pub async fn run_until_blocked(client: Client, sql: &str) -> JoinHandle<(Client, String)> {
    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let sql = sql.to_owned();
    let running = tokio::spawn(async move {
        let done = outcome(&client.batch_execute(&sql).await);
        (client, done)
    });
    let watcher = cluster().client("postgres").await;
    let waits = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $1";
    let deadline = std::time::Instant::now() + PATIENCE;
    while watcher.query_one(waits, &[&pid]).await.unwrap().get::<_, Option<bool>>(0) != Some(true) {
        assert!(!running.is_finished(), "it does not wait: {:?}", running.await.unwrap().1);
        assert!(std::time::Instant::now() < deadline, "it does not wait");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    running
}

/// The three ways to fence `seats(seat_id, owner)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fenced {
    Row,
    Keyed,
    OneName,
}

impl Fenced {
    pub const ALL: [Self; 3] = [Self::Row, Self::Keyed, Self::OneName];

    pub fn options(self) -> InstallOptions {
        match self {
            Self::Row => options("seats", &["seat_id"], "seat/{}", Remember::Row),
            Self::Keyed => options("seats", &["seat_id"], "seat/{}", Remember::Name),
            Self::OneName => options("seats", &[], "billing", Remember::Name),
        }
    }

    /// A database with 20 seats, fenced so.
    pub async fn database(self) -> Database {
        let database = Database::new(SEATS).await;
        database.install(&self.options()).await;
        database
    }
}

pub const SEATS: &str = "CREATE TABLE seats (seat_id int PRIMARY KEY, owner text);
    INSERT INTO seats SELECT n, 'free' FROM generate_series(1, 20) n";

pub fn options(table: &str, keys: &[&str], resource: &str, remember: Remember) -> InstallOptions {
    InstallOptions {
        table: table.into(),
        keys: keys.iter().map(|key| (*key).to_owned()).collect(),
        resource: Some(resource.into()),
        remember: Some(remember),
        mode: FenceMode::Enforce,
    }
}
