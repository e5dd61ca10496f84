//! The PostgreSQL engine: the conformance suite on a real server, alone and as a fleet, and with a real reopen.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stdout)] // a real server lives in real time

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use leasehold::conformance::{BoxFuture, Fleet, LAWS, Real, Subject, attempt};
use leasehold::engine::Engine;
use leasehold::engine::postgres::{PostgresEngine, PostgresEngineOptions, SchemaName};
use leasehold_harness::postgres::Cluster;

/// How far an answer may be off on a busy machine.
const SLACK: Duration = Duration::from_millis(300);

/// Most laws wait for time to pass.
const LAWS_AT_ONCE: usize = 6;

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
    fn new(members: usize, reopens: bool) -> Self {
        let last = Arc::new(std::sync::Mutex::new(None));
        let made = last.clone();
        let real = Real::new(SLACK, move || {
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

/// Tries every law, several at a time, and tells all that are broken. One test, so that there is one server.
fn keeps_the_laws(make: impl Fn() -> Postgres + Sync) {
    let next = AtomicUsize::new(0);
    let broken = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..LAWS_AT_ONCE {
            scope.spawn(|| {
                while let Some(law) = LAWS.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let runtime =
                        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
                    if let Err(why) = runtime.block_on(attempt(law, &make())) {
                        broken.lock().unwrap().push(format!("{}: {why}", law.name));
                    }
                }
            });
        }
    });
    let broken = broken.into_inner().unwrap();
    assert!(broken.is_empty(), "{} of {} laws are broken:\n{}", broken.len(), LAWS.len(), broken.join("\n"));
}

/// Goal: the engine keeps the laws, and what it knows outlives it.
/// Method: the suite on a real server, a schema for each law; reopen is another engine on the schema.
#[test]
fn the_engine_keeps_the_laws() {
    keeps_the_laws(|| Postgres::new(1, true));
}

/// Goal: nothing that matters is in the memory of one process.
/// Method: the suite against three engines on one schema, each call to the next of them.
#[test]
fn a_fleet_keeps_the_laws() {
    keeps_the_laws(|| Postgres::new(3, false));
}
