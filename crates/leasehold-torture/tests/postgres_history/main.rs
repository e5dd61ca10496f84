//! The PostgreSQL engine under faults, as the history checker sees it: clients of several engines write down what they ask
//! and learn, the tables are the record, and every law is checked. What is planted in the layout is found by the same laws.
//!
//! `LEASEHOLD_HISTORY_SECONDS` makes each run longer.
#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "a real server lives in real time")]

mod facts;
mod planted;
mod stopped;
#[path = "../support/mod.rs"]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leasehold::engine::postgres::{PostgresEngine, PostgresEngineOptions};
use leasehold::engine::{Claim, Engine as _, Want};
use leasehold_harness::postgres::Cluster;
use leasehold_harness::proxy::Proxy;
use leasehold_torture::history::{History, Op, OpKind, OpOutcome, Recorded};
use leasehold_torture::invariant::{believed, check_all, token_order, token_unique};
use support::laws::assert_laws;
use support::recorder::{Recorder, from_environment, sleep_millis};

/// Engines, and clients of each.
const ENGINES: u64 = 3;
const CLIENTS: u64 = 4;
/// A run goes on until enough happened ([`Counts::are_enough`], and its faults), even on a slow machine, but not for ever.
const MIN_GRANTS: usize = 80;
const MAX_RUN: Duration = Duration::from_secs(180);

async fn open_engine(url: &str) -> Arc<PostgresEngine> {
    PostgresEngine::open(PostgresEngineOptions::from_url(url).expect("a url")).await.expect("it opens")
}

/// Clients race for as long as it is asked for, while `fault` runs again and again and says how many faults it made, until
/// there were `min_faults`. Returns what happened.
async fn run_clients(
    cluster: &Cluster,
    database: &str,
    port: u16,
    min_faults: usize,
    fault: impl AsyncFn() -> usize,
) -> History {
    let recorder = Recorder::new();
    let mut clients = Vec::new();
    for engine in 0..ENGINES {
        let opened = open_engine(&cluster.url_through(port, "postgres", database)).await;
        for client in 0..CLIENTS {
            clients.push(tokio::spawn(recorder.clone().run_client(opened.clone(), engine * CLIENTS + client)));
        }
    }
    let (began, span) = (Instant::now(), Duration::from_secs(from_environment("LEASEHOLD_HISTORY_SECONDS", 4)));
    let mut faults = 0;
    let is_enough = |faults: usize| faults >= min_faults && recorder.with_ops(count).are_enough();
    while began.elapsed() < span || (!is_enough(faults) && began.elapsed() < MAX_RUN) {
        faults += fault().await;
    }
    println!("{faults} faults in {:?}", began.elapsed());
    assert!(faults >= min_faults, "only {faults} faults in {:?}", began.elapsed());
    recorder.stop();
    for client in clients {
        tokio::time::timeout(Duration::from_secs(60), client).await.expect("clients come to an end").expect("no panic");
    }
    let engine = open_engine(&cluster.url(database)).await;
    for name in ["a", "b", "c"] {
        // Nothing is left in the way but leases that nobody released, and they end.
        let claim = Claim {
            wait: Duration::from_secs(30),
            ..Claim::new(vec![Want::exclusive(name)], Duration::from_secs(5), "last")
        };
        let grant = engine.acquire(claim).await.expect("every name can be had again");
        engine.release(&grant.lease_id).await.expect("it is live");
    }
    let queue = "SELECT count(*) FROM leasehold_engine.queue";
    let left: i64 = cluster.client(database).await.query_one(queue, &[]).await.expect("it can be asked").get(0);
    assert_eq!(left, 0, "nobody waits any more");
    facts::read_history(cluster, database, recorder.take_ops()).await
}

/// How much happened: an empty history proves nothing.
#[derive(Debug)]
struct Counts {
    grants: usize,
    waited: usize,
    renewals: usize,
    refused: usize,
    unknown: usize,
}

impl Counts {
    fn are_enough(&self) -> bool {
        self.grants >= MIN_GRANTS && self.waited > 10 && self.renewals > 5 && self.refused > 0
    }
}

fn count(ops: &[Op]) -> Counts {
    let count = |test: fn(&OpKind, OpOutcome) -> bool| ops.iter().filter(|op| test(&op.kind, op.outcome)).count();
    Counts {
        grants: count(|_, outcome| matches!(outcome, OpOutcome::Granted { .. })),
        waited: count(|kind, outcome| {
            let waits = matches!(kind, OpKind::Acquire(ask) if !ask.wait.is_zero());
            waits && matches!(outcome, OpOutcome::Granted { .. })
        }),
        renewals: count(|_, outcome| matches!(outcome, OpOutcome::Renewed { .. })),
        refused: count(|_, outcome| matches!(outcome, OpOutcome::Held)),
        unknown: count(|_, outcome| matches!(outcome, OpOutcome::Unknown | OpOutcome::Failed)),
    }
}

fn assert_lawful(history: &History) -> Counts {
    let found = check_all(history);
    if let Err((_, why)) = &found {
        let about = |fact: &&Recorded| match fact {
            Recorded::Granted { token, .. } | Recorded::Ended { token, .. } | Recorded::Renewed { token, .. } => {
                why.contains(&token.to_string())
            }
            _ => false,
        };
        println!("{:#?}", history.facts.iter().filter(about).collect::<Vec<_>>());
    }
    assert_laws(found);
    let counts = count(&history.ops);
    println!("{} operations, {} facts, {counts:?}", history.ops.len(), history.facts.len());
    assert!(counts.are_enough(), "{counts:?}");
    counts
}

/// Goal: without a fault every law holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quiet_run_is_lawful() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let history = run_clients(&cluster, &database, cluster.port(), 0, async || {
        sleep_millis(100).await;
        0
    })
    .await;
    assert_eq!(assert_lawful(&history).unknown, 0, "there was no fault");
}

/// Goal: every law holds while connections are ended all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ended_backends_break_no_law() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let history = run_clients(&cluster, &database, cluster.port(), 20, async || {
        sleep_millis(150).await;
        let ended = cluster.terminate_backends(&database, "leasehold engine").await;
        usize::try_from(ended).expect("a count")
    })
    .await;
    assert_lawful(&history);
}

/// Goal: every law holds over crashes, and nothing that was acknowledged is lost.
/// Method: the server is stopped at once (`-m immediate`) and its postmaster is killed, in turns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crashes_break_no_law() {
    let cluster = Arc::new(Cluster::start(&[]));
    let database = cluster.database().await;
    let crashes = AtomicUsize::new(0);
    // Both kinds.
    let history = run_clients(&cluster, &database, cluster.port(), 2, async || {
        sleep_millis(900).await;
        let (crashing, kill) = (cluster.clone(), crashes.fetch_add(1, Ordering::SeqCst) % 2 == 1);
        let crash = move || {
            if kill {
                crashing.kill()
            } else {
                crashing.crash()
            }
            crashing.start_server();
        };
        tokio::task::spawn_blocking(crash).await.expect("it starts again");
        1
    })
    .await;
    assert_lawful(&history);
}

/// Goal: every law holds while replies and requests are lost.
/// Method: a proxy swallows replies, or requests, for a moment, and then cuts all connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_replies_break_no_law() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let proxy = Proxy::start(cluster.port());
    let losses = AtomicUsize::new(0);
    let history = run_clients(&cluster, &database, proxy.port(), 10, async || {
        sleep_millis(250).await;
        let requests = losses.fetch_add(1, Ordering::SeqCst) % 3 == 2;
        if requests {
            proxy.swallow_requests(true)
        } else {
            proxy.swallow_replies(true)
        }
        sleep_millis(10).await;
        proxy.cut_all();
        proxy.swallow_requests(false);
        proxy.swallow_replies(false);
        1
    })
    .await;
    assert_lawful(&history);
}

/// Goal: the expected failure: a clock that steps forward ends a lease early. The checker flags that, and tokens still rise.
/// Method: `now_us()` with an offset; ada holds, the clock steps by a minute, bob is granted.
#[tokio::test]
async fn a_stepped_clock_breaks_exclusion_and_not_the_order() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let engine = open_engine(&cluster.url(&database)).await;
    let step = "CREATE TABLE public.step (us bigint); INSERT INTO public.step VALUES (0);
        CREATE OR REPLACE FUNCTION leasehold_engine.now_us() RETURNS bigint LANGUAGE sql VOLATILE AS
        $$ SELECT (date_part('epoch', clock_timestamp()) * 1e6)::bigint + (SELECT us FROM public.step) $$";
    cluster.execute(&database, step).await;
    let recorder = Recorder::new();
    let claim = || Claim::new(vec![Want::exclusive("seat")], Duration::from_secs(60), "");
    recorder.acquire(&*engine, 1, claim()).await.expect("granted");
    cluster.execute(&database, "UPDATE public.step SET us = 61000000").await;
    recorder.acquire(&*engine, 2, claim()).await.expect("granted, early");
    cluster.execute(&database, "UPDATE public.step SET us = -61000000").await;
    let grant =
        recorder.acquire(&*engine, 3, Claim::new(vec![Want::exclusive("row")], Duration::from_secs(5), "")).await;
    grant.expect("another name is free");
    let history = facts::read_history(&cluster, &database, recorder.take_ops()).await;
    believed::check(&history).expect_err("two clients believe in the seat");
    assert_eq!((token_order::check(&history), token_unique::check(&history)), (Ok(()), Ok(())));
}
