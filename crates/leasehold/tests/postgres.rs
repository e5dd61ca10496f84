//! The PostgreSQL engine: the conformance suite on a real server, alone and as a fleet, and with a real reopen.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stdout)] // a real server lives in real time

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use leasehold::conformance::{BoxFuture, Fleet, Real, Subject, run_in_real_time};
use leasehold::engine::Engine;
use leasehold::engine::postgres::{PostgresEngine, PostgresEngineOptions, SchemaName};
use leasehold_harness::postgres::Cluster;

/// How far an answer may be off on a busy machine.
const SLACK: Duration = Duration::from_millis(400);

/// Most laws wait for time to pass.
const LAWS_AT_ONCE: usize = 12;

/// One server for all laws. It ends with this process.
fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| Cluster::start(&["max_connections=400"]))
}

/// A schema that nobody else uses.
fn new_schema() -> SchemaName {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    SchemaName::new(&format!("s{}", MADE.fetch_add(1, Ordering::SeqCst))).expect("a name")
}

async fn open(schema: &SchemaName) -> Arc<dyn Engine> {
    let mut options = PostgresEngineOptions::from_url(&cluster().url("postgres")).expect("a url");
    options.schema = schema.clone();
    // The laws compare spans exactly, and a day has 43 s of slew.
    options.slew_ppm = 0;
    PostgresEngine::open(options).await.expect("the engine opens")
}

/// A subject in real time that remembers which schema it made last.
struct Postgres {
    real: Real,
    last: Arc<std::sync::Mutex<Option<SchemaName>>>,
    reopens: bool,
}

impl Postgres {
    fn new(members: usize, reopens: bool, slack: Duration) -> Self {
        let last = Arc::new(std::sync::Mutex::new(None));
        let made = last.clone();
        let real = Real::new(slack, move || {
            let schema = new_schema();
            *made.lock().unwrap() = Some(schema.clone());
            Box::pin(async move {
                if members == 1 {
                    return open(&schema).await;
                }
                let mut engines = Vec::new();
                for _ in 0..members {
                    engines.push(open(&schema).await);
                }
                Fleet::new(engines) as Arc<dyn Engine>
            })
        });
        Self { real, last, reopens }
    }

    fn last(&self) -> SchemaName {
        self.last.lock().unwrap().clone().expect("a fresh engine was made")
    }
}

impl Subject for Postgres {
    fn fresh(&self) -> BoxFuture<'_, Arc<dyn Engine>> {
        self.real.fresh()
    }

    fn pass(&self, span: Duration) -> BoxFuture<'_, ()> {
        self.real.pass(span)
    }

    fn unit(&self) -> Duration {
        self.real.unit()
    }

    fn slack(&self) -> Duration {
        self.real.slack()
    }

    fn reopen(&self) -> BoxFuture<'_, Option<Arc<dyn Engine>>> {
        Box::pin(async { if self.reopens { Some(open(&self.last()).await) } else { None } })
    }

    fn beside(&self) -> BoxFuture<'_, Option<Arc<dyn Engine>>> {
        Box::pin(async { Some(open(&self.last()).await) })
    }
}

/// One test for a suite, so that there is one server.
fn keeps_the_laws(members: usize, reopens: bool) {
    // Each suite has enough to do with its own connections.
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    run_in_real_time(LAWS_AT_ONCE, SLACK, |_| true, |slack| Postgres::new(members, reopens, slack));
}

/// Goal: the engine keeps the laws, and what it knows outlives it.
/// Method: the suite on a real server, a schema for each law; reopen is another engine on the schema.
#[test]
fn the_engine_keeps_the_laws() {
    keeps_the_laws(1, true);
}

/// Goal: nothing that matters is in the memory of one process.
/// Method: the suite against three engines on one schema, each call to the next of them.
#[test]
fn a_fleet_keeps_the_laws() {
    keeps_the_laws(3, false);
}
