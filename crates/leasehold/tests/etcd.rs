//! The etcd engine: the conformance suite on a real cluster, alone and as a fleet, and with a real reopen.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stdout)] // a real server lives in real time

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use leasehold::conformance::{BoxFuture, Fleet, Real, Subject, run_in_real_time};
use leasehold::engine::Engine;
use leasehold::engine::etcd::{EtcdEngine, EtcdEngineOptions};
use leasehold_harness::etcd::EtcdCluster;

/// How far an answer may be off on a busy machine. Ends of leases of other processes are known better than this after a
/// few probes.
const SLACK: Duration = Duration::from_millis(400);
/// Through another process an end is first known in whole seconds.
const FLEET_SLACK: Duration = Duration::from_millis(1200);

/// Laws about a closed engine's leases, which the next one knows in whole seconds at first.
const WHOLE_SECONDS: [&str; 2] = ["a_durable_engine_remembers", "a_durable_engine_remembers_endings_and_requests"];

/// Most laws wait for time to pass.
const LAWS_AT_ONCE: usize = 24;

/// One member for all laws. It ends with this process.
fn cluster() -> &'static EtcdCluster {
    static CLUSTER: OnceLock<EtcdCluster> = OnceLock::new();
    CLUSTER.get_or_init(|| EtcdCluster::start(1))
}

/// A prefix that nobody else uses.
fn new_prefix() -> String {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    format!("p{}/", MADE.fetch_add(1, Ordering::SeqCst))
}

async fn open(prefix: &str) -> Arc<dyn Engine> {
    let mut options = EtcdEngineOptions::from_url(&cluster().url()).expect("a url");
    options.prefix = prefix.to_owned();
    EtcdEngine::open(options).await.expect("the engine opens")
}

/// A subject in real time that remembers which prefix it used last.
struct Etcd {
    real: Real,
    last: Arc<Mutex<Option<String>>>,
    members: usize,
    unit: Duration,
}

impl Etcd {
    fn new(members: usize, slack: Duration) -> Self {
        let last = Arc::new(Mutex::new(None));
        let made = last.clone();
        let real = Real::new(slack, move || {
            let prefix = new_prefix();
            *made.lock().unwrap() = Some(prefix.clone());
            Box::pin(async move {
                if members == 1 {
                    return open(&prefix).await;
                }
                let mut engines = Vec::new();
                for _ in 0..members {
                    engines.push(open(&prefix).await);
                }
                Fleet::new(engines) as Arc<dyn Engine>
            })
        });
        // A slack of whole seconds is not a matter of load: twice that is enough to tell before from after.
        let unit = slack * if slack < FLEET_SLACK { 4 } else { 2 };
        Self { real, last, members, unit }
    }

    fn last(&self) -> String {
        self.last.lock().unwrap().clone().expect("a fresh engine was made")
    }
}

impl Subject for Etcd {
    fn fresh(&self) -> BoxFuture<'_, Arc<dyn Engine>> {
        self.real.fresh()
    }

    fn pass(&self, span: Duration) -> BoxFuture<'_, ()> {
        self.real.pass(span)
    }

    fn unit(&self) -> Duration {
        self.unit
    }

    fn slack(&self) -> Duration {
        self.real.slack()
    }

    fn joins_requests(&self) -> bool {
        self.members == 1
    }

    fn reopen(&self) -> BoxFuture<'_, Option<Arc<dyn Engine>>> {
        Box::pin(async { if self.members == 1 { Some(open(&self.last()).await) } else { None } })
    }

    fn beside(&self) -> BoxFuture<'_, Option<Arc<dyn Engine>>> {
        Box::pin(async { Some(open(&self.last()).await) })
    }
}

/// Goal: the engine keeps the laws, and what it knows outlives it.
/// Method: the suite on a real member, a prefix for each law; reopen is another engine on the prefix.
#[test]
fn the_engine_keeps_the_laws() {
    run_in_real_time(LAWS_AT_ONCE, SLACK, |law| !WHOLE_SECONDS.contains(&law), |slack| Etcd::new(1, slack));
}

/// Goal: what an engine knew is known to the next one, within the whole seconds that etcd tells.
/// Method: the two laws about it that compare spans.
#[test]
fn the_next_engine_knows_what_this_one_did() {
    let at_once = WHOLE_SECONDS.len();
    run_in_real_time(at_once, FLEET_SLACK, |law| WHOLE_SECONDS.contains(&law), |slack| Etcd::new(1, slack));
}

/// Goal: nothing that matters is in the memory of one process.
/// Method: the suite against three engines on one prefix, each call to the next of them. Joining a request that waits
/// through another process is left out.
#[test]
fn a_fleet_keeps_the_laws() {
    run_in_real_time(LAWS_AT_ONCE, FLEET_SLACK, |_| true, |slack| Etcd::new(3, slack));
}
