//! The Redis engine under faults, as the history checker sees it: clients of several engines write down what they ask and
//! learn. Redis keeps no record of the past, so the laws are those of what clients are told: nobody believes in a lease
//! beside another, tokens are unique, and rise.
//!
//! `LEASEHOLD_HISTORY_SECONDS` makes each run longer.
#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "a real server lives in real time")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leasehold::engine::redis::{RedisEngine, RedisOptions};
use leasehold::engine::{Claim, Engine, Want};
use leasehold_harness::proxy::Proxy;
use leasehold_harness::redis::{DURABLE, RedisServer};
use leasehold_torture::history::{History, Op, OpKind, OpOutcome};
use leasehold_torture::invariant::{CheckerProfile, believed, check_profile, token_order, token_unique};
use support::client_process::{ClientProcess, PROCESS_TTL, ProcessUses, run_if_ordered};
use support::laws::assert_laws;
use support::recorder::{Recorder, from_environment, sleep_millis};
use support::stops::{Stopper, assert_stops, finish_processes, span_of_run, stop_in_turns};

/// Engines, and clients of each.
const ENGINES: u64 = 3;
const CLIENTS: u64 = 4;
/// A run goes on until so much happened, even on a slow machine, but not for ever.
const MIN_GRANTS: usize = 80;
const MAX_RUN: Duration = Duration::from_secs(60);

/// A waiter is believed to be alive for ten seconds.
const WAITER_BELIEVED: Duration = Duration::from_millis(11_000);
/// What a loaded machine adds to a wait.
const SLACK: Duration = Duration::from_secs(3);

async fn open_engine(port: u16) -> Arc<RedisEngine> {
    let url = format!("redis://127.0.0.1:{port}");
    RedisEngine::open(RedisOptions::from_url(&url).expect("a url")).await.expect("it opens")
}

/// Clients race for as long as it is asked for, while `fault` runs again and again. Returns what they were told.
async fn run_clients(port: u16, fault: impl AsyncFn()) -> History {
    let recorder = Recorder::new();
    let (mut clients, mut engines) = (Vec::new(), Vec::new());
    for engine in 0..ENGINES {
        let opened = open_engine(port).await;
        for client in 0..CLIENTS {
            clients.push(tokio::spawn(recorder.clone().run_client(opened.clone(), engine * CLIENTS + client)));
        }
        engines.push(opened);
    }
    let (began, span) = (Instant::now(), Duration::from_secs(from_environment("LEASEHOLD_HISTORY_SECONDS", 4)));
    while began.elapsed() < span || (recorder.count_grants() < MIN_GRANTS && began.elapsed() < MAX_RUN) {
        fault().await;
    }
    recorder.stop();
    for client in clients {
        tokio::time::timeout(Duration::from_secs(60), client).await.expect("clients come to an end").expect("no panic");
    }
    for name in ["a", "b", "c"] {
        // Nothing is left in the way but leases that nobody released, and they end.
        let claim = Claim {
            wait: Duration::from_secs(30),
            ..Claim::new(vec![Want::exclusive(name)], Duration::from_secs(5), "last")
        };
        let grant = engines[0].acquire(claim).await.expect("every name can be had again");
        engines[0].release(&grant.lease_id).await.expect("it is live");
    }
    let history = History { ops: recorder.take_ops(), ..History::default() };
    assert_counts(&history);
    history
}

/// An empty history proves nothing.
fn assert_counts(history: &History) {
    let count = |test: fn(&OpOutcome) -> bool| history.ops.iter().filter(|operation| test(&operation.outcome)).count();
    let grants = count(|outcome| matches!(outcome, OpOutcome::Granted { .. }));
    let unknown = count(|outcome| matches!(outcome, OpOutcome::Unknown | OpOutcome::Failed));
    println!("{} operations, {grants} grants, {unknown} without an answer", history.ops.len());
    assert!(grants >= MIN_GRANTS, "only {grants} grants");
}

fn assert_lawful(history: &History) {
    assert_laws(check_profile(history, CheckerProfile::ANSWERS));
}

/// Goal: without a fault every law holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quiet_run_is_lawful() {
    let server = RedisServer::start(DURABLE);
    assert_lawful(&run_clients(server.port(), async || sleep_millis(100).await).await);
}

/// Goal: every law holds while a server that syncs every write is killed and started again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_break_no_law() {
    let server = RedisServer::start(DURABLE);
    let kills = AtomicUsize::new(0);
    let history = run_clients(server.port(), async || {
        sleep_millis(700).await;
        server.kill_and_restart();
        kills.fetch_add(1, Ordering::SeqCst);
    })
    .await;
    println!("{} kills", kills.load(Ordering::SeqCst));
    assert!(kills.load(Ordering::SeqCst) > 1);
    assert_lawful(&history);
}

/// Goal: every law holds while requests and replies are lost and connections are cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_replies_break_no_law() {
    let server = RedisServer::start(DURABLE);
    let proxy = Proxy::start(server.port());
    let turn = AtomicUsize::new(0);
    let history = run_clients(proxy.port(), async || {
        let swallow = |on| match turn.load(Ordering::SeqCst) % 2 {
            0 => proxy.swallow_replies(on),
            _ => proxy.swallow_requests(on),
        };
        sleep_millis(120).await;
        swallow(true);
        sleep_millis(40).await;
        swallow(false);
        proxy.cut_all();
        turn.fetch_add(1, Ordering::SeqCst);
    })
    .await;
    println!("{} losses", turn.load(Ordering::SeqCst));
    assert!(turn.load(Ordering::SeqCst) > 10);
    assert_lawful(&history);
}

/// Goal: every law holds while the server forgets scripts, pauses its clients, or stands still.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pauses_break_no_law() {
    let server = RedisServer::start(DURABLE);
    let history = run_clients(server.port(), async || {
        server.command(&["SCRIPT", "FLUSH"]);
        sleep_millis(100).await;
        server.command(&["CLIENT", "PAUSE", "150", "ALL"]);
        sleep_millis(200).await;
        // Longer than a lease that nobody releases lives.
        server.freeze();
        sleep_millis(200).await;
        server.thaw();
        sleep_millis(100).await;
    })
    .await;
    assert_lawful(&history);
}

/// Goal: the checker is not blind: what FLUSHALL does to leases that are held is seen, and tokens still rise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushall_is_seen() {
    let server = RedisServer::start(DURABLE);
    let history = run_clients(server.port(), async || {
        sleep_millis(20).await;
        server.command(&["FLUSHALL"]);
    })
    .await;
    believed::check(&history).expect_err("two clients believe in one lease");
    assert_eq!(token_unique::check(&history), Ok(()));
    assert_eq!(token_order::check(&history), Ok(()));
}

/// Two client processes, one with the verbs and one with the guard, each behind a proxy of its own.
fn start_processes<'a>(proxies: &'a [Proxy; 2], engine: &'a RedisEngine, recorder: &'a Recorder) -> Vec<Stopper<'a>> {
    let uses = [ProcessUses::Verbs, ProcessUses::Guard];
    let start = |(at, uses): (usize, ProcessUses)| Stopper {
        process: ClientProcess::start(ENTRY, 1 + at as u64, &format!("redis://127.0.0.1:{}", proxies[at].port()), uses),
        proxies: &proxies[at..=at],
        engine,
        recorder,
        has_queue: true,
    };
    uses.into_iter().enumerate().map(start).collect()
}

const ENTRY: &str = "a_client_process_reports_what_it_does";

/// Goal: what a client process reports is what it did, and without a fault every law holds. The processes of the other
/// tests begin here.
#[test]
fn a_client_process_reports_what_it_does() {
    if run_if_ordered() {
        return;
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let server = RedisServer::start(DURABLE);
        let (engine, recorder) = (open_engine(server.port()).await, Recorder::new());
        let proxies = [Proxy::start(server.port()), Proxy::start(server.port())];
        let mut stoppers = start_processes(&proxies, &engine, &recorder);
        for stopper in &mut stoppers {
            stopper.wait_until_busy().await;
        }
        sleep_millis(500).await;
        let granted = |op: &&Op| matches!(op.outcome, OpOutcome::Granted { .. });
        let ops = finish_processes(&recorder, stoppers).await.ops;
        let (grants, known) = (ops.iter().filter(granted).count(), read_counter(&server));
        // Renewals that the guard asks for by itself are of unknown outcome.
        let lost = |op: &&Op| match op.outcome {
            OpOutcome::Unknown => !matches!(op.kind, OpKind::Renew { .. }),
            outcome => matches!(outcome, OpOutcome::Failed),
        };
        assert_eq!(ops.iter().find(lost).map(|op| &op.kind), None, "there was no fault");
        let highest = ops.iter().filter_map(|op| match op.outcome {
            OpOutcome::Granted { token, .. } => Some(token.get()),
            _ => None,
        });
        assert_eq!(highest.max(), Some(known), "the last grant was reported");
        assert!(grants > 2 && recorder.count_grants() == 0, "{grants} grants");
        assert_lawful(&History { ops, ..History::default() });
    });
}

/// The last token that the server gave.
fn read_counter(server: &RedisServer) -> u64 {
    server.command(&["GET", "leasehold:t"]).trim().parse().expect("a number")
}

/// Goal: every law holds while processes are stopped for longer than their leases live: while they hold one, while they
/// wait, in the middle of a call. What lapsed meanwhile is refused, and a stopped waiter keeps nobody from a name for
/// longer than its ttl.
/// Method: SIGSTOP and SIGCONT; other clients race for the same names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_processes_break_no_law() {
    let server = RedisServer::start(DURABLE);
    let (engine, recorder) = (open_engine(server.port()).await, Recorder::new());
    let proxies = [Proxy::start(server.port()), Proxy::start(server.port())];
    let mut stoppers = start_processes(&proxies, &engine, &recorder);
    let mut clients = Vec::new();
    for client in 10..13 {
        clients.push(tokio::spawn(recorder.clone().run_client(open_engine(server.port()).await, client)));
    }
    let stops = stop_in_turns(&mut stoppers, span_of_run()).await;
    recorder.stop();
    for client in clients {
        client.await.expect("no panic");
    }
    let ops = finish_processes(&recorder, stoppers).await.ops;
    assert_stops(&ops, &stops, PROCESS_TTL + SLACK);
    let history = History { ops, ..History::default() };
    assert_counts(&history);
    assert_lawful(&history);
}

/// Goal: a waiter that was stopped for longer than it is believed to be alive is not even granted what is released then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_waiter_is_passed_over() {
    let server = RedisServer::start(DURABLE);
    let (engine, recorder) = (open_engine(server.port()).await, Recorder::new());
    let proxies = [Proxy::start(server.port()), Proxy::start(server.port())];
    let mut stoppers = start_processes(&proxies, &engine, &recorder);
    // Nobody else waits.
    stoppers.truncate(1);
    stoppers[0].wait_until_busy().await;
    let stop = stoppers[0].stop_waiting(WAITER_BELIEVED, Duration::from_millis(100)).await;
    let passed_over = stop.blocked.is_some_and(|blocked| blocked < PROCESS_TTL / 2);
    assert!(passed_over, "it was granted to a stopped process: {stop:?}");
    let ops = finish_processes(&recorder, stoppers).await.ops;
    assert_stops(&ops, &[stop], PROCESS_TTL);
    assert_lawful(&History { ops, ..History::default() });
}
