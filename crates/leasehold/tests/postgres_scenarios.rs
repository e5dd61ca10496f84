//! Every script in `tests/scenarios/` against the PostgreSQL engine: a real server whose clock is the script's.
//!
//! `now_us()` is replaced by a function that reads a file, which every step of the script's clock writes. A heartbeat
//! never gets old: the clock jumps further than any.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stdout)] // a real server lives in real time

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::Refusal;
use leasehold::clock::Clock;
use leasehold::engine::postgres::{PostgresEngine, PostgresEngineOptions, SchemaName, migration_sql};
use leasehold::engine::{
    Answer, Claim, Engine, EventId, Finding, Grant, Keys, LeaseId, Promises, Query, Renewal, Resource, Token, Watch,
};
use leasehold::testkit::ManualClock;
use leasehold::testkit::scenario::Scenario;
use leasehold_core::Time;
use leasehold_harness::postgres::Cluster;

/// The resource by which the scenario runner finds out that an engine has done what is due.
const PROBE: &str = "~probe";
/// Nothing under way for this long, some times over: the engine has done what is due.
const QUIET: Duration = Duration::from_millis(4);

/// The engine, which answers reads only when everything that was asked before has arrived. The runner's probe relies on
/// one order of all that an engine does; several connections have none.
struct Settling {
    engine: Arc<PostgresEngine>,
    clock: ManualClock,
}

impl Settling {
    async fn settle(&self) {
        let mut quiet = 0;
        while quiet < 4 {
            tokio::time::sleep(QUIET).await;
            quiet = if self.engine.calls_in_flight() == 0 { quiet + 1 } else { 0 };
        }
    }
}

impl Engine for Settling {
    fn promises(&self) -> Promises {
        self.engine.promises()
    }

    fn acquire(&self, claim: Claim) -> Answer<'_, Grant> {
        Box::pin(async move {
            if claim.wants[0].name == PROBE && !claim.wait.is_zero() {
                self.clock.sleep_until(self.clock.now().plus(claim.wait)).await;
                self.settle().await;
                let held = Refusal::Held { resource: PROBE.into(), holder: None, remaining: None, queue_len: 0 };
                return Err(held.into());
            }
            self.engine.acquire(claim).await
        })
    }

    fn renew<'a>(&'a self, lease: &'a LeaseId, ttl: Option<Duration>) -> Answer<'a, Renewal> {
        self.engine.renew(lease, ttl)
    }

    fn relabel<'a>(&'a self, lease: &'a LeaseId, holder: &'a str) -> Answer<'a, ()> {
        self.engine.relabel(lease, holder)
    }

    fn release<'a>(&'a self, lease: &'a LeaseId) -> Answer<'a, bool> {
        self.engine.release(lease)
    }

    fn revoke<'a>(&'a self, name: &'a str, reason: &'a str) -> Answer<'a, usize> {
        self.engine.revoke(name, reason)
    }

    fn inspect<'a>(&'a self, name: &'a str) -> Answer<'a, Option<Resource>> {
        Box::pin(async move {
            self.settle().await;
            self.engine.inspect(name).await
        })
    }

    fn list(&self, query: Query) -> Answer<'_, Vec<Resource>> {
        self.engine.list(query)
    }

    fn raise_floor(&self, floor: Option<Token>) -> Answer<'_, Token> {
        self.engine.raise_floor(floor)
    }

    fn identity(&self) -> Answer<'_, Option<String>> {
        self.engine.identity()
    }

    fn examine(&self) -> Answer<'_, Vec<Finding>> {
        self.engine.examine()
    }

    fn watch(&self, since: Option<EventId>) -> Answer<'_, Watch> {
        self.engine.watch(since)
    }

    fn keys(&self) -> Option<&dyn Keys> {
        None
    }

    fn close(&self) -> Answer<'_, ()> {
        self.engine.close()
    }
}

/// Where the server reads the time. Replaced as a whole, so that no half of a number is read.
struct ClockFile(PathBuf);

impl ClockFile {
    fn set(&self, micros: u64) {
        let fresh = self.0.with_extension("new");
        std::fs::write(&fresh, micros.to_string()).expect("it can be written");
        std::fs::rename(&fresh, &self.0).expect("it can be replaced");
    }
}

async fn play(cluster: &Cluster, dir: &Path, script: &Scenario, watched: bool) -> Result<(), String> {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    let name = format!("s{}", MADE.fetch_add(1, Ordering::SeqCst));
    let schema = SchemaName::new(&name).expect("a name");
    let clock = ManualClock::new();
    let file = ClockFile(dir.join(&name));
    cluster.execute("postgres", &migration_sql(&schema)).await;
    let frozen = format!(
        "CREATE OR REPLACE FUNCTION {name}.now_us() RETURNS bigint LANGUAGE sql VOLATILE AS
         $$ SELECT pg_read_file('{}')::bigint $$;
         CREATE OR REPLACE FUNCTION {name}.heartbeat(p_self bigint, p_channel text) RETURNS void LANGUAGE sql
         SECURITY DEFINER AS $$
         INSERT INTO {name}.process VALUES (p_self, p_channel, 4611686018427387904) ON CONFLICT (id) DO NOTHING $$",
        file.0.display()
    );
    let hand = clock.clone();
    clock.on_step(Box::new(move || file.set(hand.now().as_nanos() / 1000)));
    clock.set(Time::from_millis(1_234_567));
    cluster.execute("postgres", &frozen).await;
    let mut options = PostgresEngineOptions::from_url(&cluster.url("postgres")).expect("a url");
    options.schema = schema;
    options.slew_ppm = 0;
    options.clock = clock.shared();
    options.limits = script.limits().clone();
    let engine = PostgresEngine::open(options).await.expect("it opens");
    let watcher = if watched {
        let mut watch = engine.watch(None).await.expect("it can be watched");
        Some(tokio::spawn(async move { while watch.next().await.is_ok() {} }))
    } else {
        None
    };
    let settling = Arc::new(Settling { engine: engine.clone(), clock: clock.clone() });
    let played = script.run(settling, &clock).await.map_err(|failure| failure.to_string());
    if let Some(watcher) = watcher {
        watcher.abort();
    }
    let _ = engine.close().await;
    played
}

async fn play_all(watched: bool) {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/scenarios");
    let scripts = Scenario::load_all(&scripts).unwrap_or_else(|failure| panic!("{failure}"));
    let cluster = Cluster::start(&[]);
    let dir = tempfile::tempdir().expect("a place for the clock");
    // The server is another user.
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    let mut failures = Vec::new();
    for script in &scripts {
        if let Err(failure) = play(&cluster, dir.path(), script, watched).await {
            failures.push(failure);
        }
    }
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), scripts.len(), failures.join("\n"));
    println!("{} scenarios played, watched {watched}", scripts.len());
}

/// Goal: PostgreSQL answers as the book does, to the microsecond.
/// Method: the server's clock stands still and is moved by the script.
#[tokio::test]
async fn postgres_plays_every_scenario() {
    play_all(false).await;
}

/// Goal: watching changes no answer.
/// Method: the same, while somebody watches: every operation goes one by one and writes events.
#[tokio::test]
async fn postgres_plays_every_scenario_while_watched() {
    play_all(true).await;
}
