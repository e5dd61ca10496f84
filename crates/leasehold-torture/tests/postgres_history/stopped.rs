//! Client processes that are stopped for longer than their leases live.

use std::time::Duration;

use leasehold::engine::postgres::PostgresEngine;
use leasehold::engine::{Claim, Engine as _, Want};
use leasehold_core::Token;
use leasehold_harness::postgres::Cluster;
use leasehold_harness::proxy::Proxy;
use leasehold_torture::history::{History, Op, OpKind, OpOutcome, Recorded};
use leasehold_torture::invariant::check_all;

use super::support::client_process::{ClientProcess, PROCESS_TTL, ProcessUses, run_if_ordered};
use super::support::laws::assert_laws;
use super::support::recorder::{Recorder, sleep_millis};
use super::support::stops::{Stopper, assert_stops, finish_processes, span_of_run, stop_in_turns};
use super::{assert_lawful, facts, open_engine};

const ENTRY: &str = "stopped::a_client_process_reports_what_it_does";
/// The number of the process that uses the guard.
const GUARD_PROCESS: u64 = 2;
/// The processes of waiters are believed to be alive for ten seconds.
const WAITER_BELIEVED: Duration = Duration::from_millis(11_000);
/// What a loaded machine adds to a wait.
const SLACK: Duration = Duration::from_secs(3);

/// Two client processes, one with the verbs and one with the guard, each behind a proxy of its own.
fn start_processes<'a>(
    cluster: &Cluster,
    database: &str,
    proxies: &'a [Proxy; 2],
    engine: &'a PostgresEngine,
    recorder: &'a Recorder,
) -> Vec<Stopper<'a>> {
    let uses = [ProcessUses::Verbs, ProcessUses::Guard];
    let start = |(at, uses): (usize, ProcessUses)| {
        let url = cluster.url_through(proxies[at].port(), "postgres", database);
        let process = ClientProcess::start(ENTRY, 1 + at as u64, &url, uses);
        Stopper { process, proxies: &proxies[at..=at], engine, recorder, has_queue: true }
    };
    uses.into_iter().enumerate().map(start).collect()
}

async fn finish(cluster: &Cluster, database: &str, recorder: &Recorder, stoppers: Vec<Stopper<'_>>) -> History {
    let mut merged = finish_processes(recorder, stoppers).await;
    let ops = std::mem::take(&mut merged.ops);
    let mut history = facts::read_history_of(cluster, database, ops, |label| merged.relabel(label)).await;
    let renewals = find_unseen_renewals(&history);
    history.ops.extend(renewals);
    history
}

/// A guard that got its lease after a long wait renews it before it hands it out. Where that comes too late, the caller
/// never learns of the lease. Such renewals are nobody's in the report.
fn find_unseen_renewals(history: &History) -> Vec<Op> {
    let unseen = |fact: &Recorded| {
        let Recorded::Granted { token, holder, .. } = fact else { return None };
        let op = history.ops.get(holder.strip_prefix("op")?.parse::<usize>().ok()?)?;
        let by_guard = op.client == GUARD_PROCESS && !matches!(op.outcome, OpOutcome::Granted { .. });
        let kind = OpKind::Renew { token: Token::new(*token)?, ttl: None };
        by_guard.then(|| Op { kind, ret: None, outcome: OpOutcome::Unknown, ..op.clone() })
    };
    history.facts.iter().filter_map(unseen).collect()
}

/// Goal: what client processes report is what is stored, and without a fault every law holds. The processes of the other
/// tests begin here.
#[test]
fn a_client_process_reports_what_it_does() {
    if run_if_ordered() {
        return;
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let cluster = Cluster::start(&[]);
        let database = cluster.database().await;
        let (engine, recorder) = (open_engine(&cluster.url(&database)).await, Recorder::new());
        let proxies = [Proxy::start(cluster.port()), Proxy::start(cluster.port())];
        let mut stoppers = start_processes(&cluster, &database, &proxies, &engine, &recorder);
        for stopper in &mut stoppers {
            stopper.wait_until_busy().await;
        }
        sleep_millis(500).await;
        let history = finish(&cluster, &database, &recorder, stoppers).await;
        let granted = |outcome: OpOutcome| matches!(outcome, OpOutcome::Granted { .. });
        let reported = history.ops.iter().filter(|op| granted(op.outcome)).count();
        let stored = "SELECT count(*) FROM leasehold_engine.lease WHERE token IS NOT NULL";
        let stored: i64 = cluster.client(&database).await.query_one(stored, &[]).await.expect("it can be asked").get(0);
        assert!(reported > 2, "{reported} grants");
        assert_eq!(i64::try_from(reported), Ok(stored), "every grant was reported");
        assert_laws(check_all(&history));
        // Renewals that the guard asks for by itself are of unknown outcome.
        let lost = |op: &&Op| match op.outcome {
            OpOutcome::Unknown => !matches!(op.kind, OpKind::Renew { .. }),
            outcome => matches!(outcome, OpOutcome::Failed),
        };
        assert_eq!(history.ops.iter().find(lost).map(|op| &op.kind), None, "there was no fault");
    });
}

/// Goal: every law holds while processes are stopped for longer than their leases live: while they hold one, while they
/// wait, in the middle of a call. What lapsed meanwhile is refused, and a stopped waiter keeps nobody from a name for
/// longer than its ttl.
/// Method: SIGSTOP and SIGCONT; other clients race for the same names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_processes_break_no_law() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let (engine, recorder) = (open_engine(&cluster.url(&database)).await, Recorder::new());
    let proxies = [Proxy::start(cluster.port()), Proxy::start(cluster.port())];
    let mut stoppers = start_processes(&cluster, &database, &proxies, &engine, &recorder);
    let mut clients = Vec::new();
    for client in 10..13 {
        let other = open_engine(&cluster.url(&database)).await;
        clients.push(tokio::spawn(recorder.clone().run_client(other, client)));
    }
    let stops = stop_in_turns(&mut stoppers, span_of_run()).await;
    recorder.stop();
    for client in clients {
        client.await.expect("no panic");
    }
    let history = finish(&cluster, &database, &recorder, stoppers).await;
    assert_stops(&history.ops, &stops, PROCESS_TTL + SLACK);
    assert_lawful(&history);
}

/// Goal: a waiter that was stopped for longer than it is believed to be alive is not even granted what is released then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_waiter_is_passed_over() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let (engine, recorder) = (open_engine(&cluster.url(&database)).await, Recorder::new());
    let proxies = [Proxy::start(cluster.port()), Proxy::start(cluster.port())];
    let mut stoppers = start_processes(&cluster, &database, &proxies, &engine, &recorder);
    // Nobody else waits for its names.
    stoppers.truncate(1);
    stoppers[0].wait_until_busy().await;
    // Somebody who lives waits for another name. Where nobody was seen for ten seconds, everybody is believed for ten more.
    let other = || Claim::new(vec![Want::exclusive("other")], Duration::from_secs(60), "");
    let witness = open_engine(&cluster.url(&database)).await;
    recorder.acquire(&*engine, 98, other()).await.expect("it is free");
    let waiting = Claim { wait: Duration::from_secs(60), ..other() };
    let waiting = tokio::spawn(async move { witness.acquire(waiting).await });
    let stop = stoppers[0].stop_waiting(WAITER_BELIEVED, Duration::from_millis(100)).await;
    waiting.abort();
    let passed_over = stop.blocked.is_some_and(|blocked| blocked < PROCESS_TTL / 2);
    assert!(passed_over, "it was granted to a stopped process: {stop:?}");
    let history = finish(&cluster, &database, &recorder, stoppers).await;
    assert_stops(&history.ops, &[stop], PROCESS_TTL);
    assert_laws(check_all(&history));
}
