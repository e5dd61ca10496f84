//! Redlock on five real servers under faults, as the history checker sees it. It has no tokens and keeps no record, so
//! the laws are those of what clients are told: nobody believes in a lease beside another, and what has ended stays
//! ended.
//!
//! Three nodes sync every write. Two keep everything in memory, and forget it when they are killed.
//!
//! `LEASEHOLD_HISTORY_SECONDS` makes each run longer.
#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "real servers live in real time")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use leasehold::engine::redlock::{Redlock, RedlockOptions};
use leasehold::engine::{Claim, Want};
use leasehold_harness::proxy::Proxy;
use leasehold_harness::redis::{DURABLE, RedisServer};
use leasehold_harness::redlock::RedisNodes;
use leasehold_torture::history::{History, Op, OpKind, OpOutcome};
use leasehold_torture::invariant::{CheckerProfile, check_profile};
use leasehold_torture::rng::Rng;
use support::client_process::{ClientProcess, PROCESS_TTL, ProcessUses, run_if_ordered};
use support::laws::assert_laws;
use support::recorder::{NAMES, Recorder, sleep_millis};
use support::stops::{Stopper, assert_stops, finish_processes, span_of_run, stop_in_turns};

const ENTRY: &str = "a_client_process_reports_what_it_does";
/// How long a node that forgot its leases does not vote. No lease here is longer.
const QUARANTINE: &str = "?quarantine=2s";
const TTL: Duration = Duration::from_millis(1800);
/// A lease that nobody releases.
const FORGOTTEN_TTL: Duration = Duration::from_millis(300);
const MEMORY_NODES: [usize; 2] = [3, 4];
/// Then nodes in memory vote, after they were started. Uptimes are whole seconds.
const QUARANTINE_ENDS_MS: u64 = 3200;
/// Enough for a burst to split the votes.
const CONTENDERS: u64 = 16;
/// A run goes on until so much happened, even on a slow machine, but not for ever.
const MIN_GRANTS: usize = 60;
const MAX_ROUNDS: usize = 200;
/// What a loaded machine adds to a wait.
const SLACK: Duration = Duration::from_secs(3);

/// Three nodes that forget nothing, and two that do, each behind a proxy.
fn start_nodes() -> RedisNodes {
    let settings = |at: usize| if MEMORY_NODES.contains(&at) { &[] } else { DURABLE };
    let servers: Vec<RedisServer> = (0..5).map(|at| RedisServer::start(settings(at))).collect();
    let proxies = servers.iter().map(|server| Proxy::start(server.port())).collect();
    RedisNodes { servers, proxies }
}

async fn open_engine(url: &str) -> Arc<Redlock> {
    Redlock::open(RedlockOptions::from_url(url).expect("a url")).await.expect("it opens")
}

fn claim(name: &str, ttl: Duration) -> Claim {
    Claim::new(vec![Want::exclusive(name)], ttl, "")
}

/// A client: acquires one or two of three names, mostly without waiting, renews, releases or forgets.
async fn run_contender(recorder: Arc<Recorder>, engine: Arc<Redlock>, client: u64) {
    let mut rng = Rng::new(15_485_863 * (client + 1));
    let mut requests = 0;
    while !recorder.is_stopped() {
        let (forgets, first) = (rng.one_in(12), rng.below(3) as usize);
        let mut claim = claim(NAMES[first], if forgets { FORGOTTEN_TTL } else { TTL });
        if rng.one_in(4) {
            claim.wants.push(Want::exclusive(NAMES[(first + 1) % 3]));
        }
        if rng.one_in(4) {
            claim.wait = Duration::from_secs(1);
        }
        if rng.one_in(4) {
            requests += 1;
            claim.request = Some(format!("{client}-{requests}"));
        }
        let mut grant = recorder.acquire(&*engine, client, claim.clone()).await;
        if grant.is_none() && claim.request.is_some() {
            grant = recorder.acquire(&*engine, client, claim).await;
        }
        sleep_millis(rng.below(20)).await;
        let Some(grant) = grant else { continue };
        if rng.one_in(3) {
            recorder.renew(&*engine, client, &grant).await;
            sleep_millis(rng.below(10)).await;
        }
        if forgets {
            continue;
        }
        // A release that too few nodes answered is asked for again, but not for longer than the lease lives.
        for _ in 0..10 {
            if recorder.release(&*engine, client, &grant).await {
                break;
            }
            sleep_millis(100).await;
        }
    }
}

fn assert_lawful(history: &History) {
    assert_laws(check_profile(history, CheckerProfile::NO_TOKENS));
}

fn count_grants(ops: &[Op]) -> usize {
    ops.iter().filter(|op| matches!(op.outcome, OpOutcome::Granted { .. })).count()
}

fn print_counts(ops: &[Op]) {
    let count = |test: fn(&Op) -> bool| ops.iter().filter(|op| test(op)).count();
    println!(
        "{} operations, {} grants, {} renewals, {} held, {} stale or not held, {} without an answer",
        ops.len(),
        count_grants(ops),
        count(|op| matches!(op.outcome, OpOutcome::Renewed { .. })),
        count(|op| matches!(op.outcome, OpOutcome::Held)),
        count(|op| matches!(op.outcome, OpOutcome::Stale | OpOutcome::NotHeld)),
        count(|op| matches!(op.outcome, OpOutcome::Unknown | OpOutcome::Failed)),
    );
}

/// One fault of each kind, in turns. Nodes in memory are killed so seldom that they vote in between. At most two nodes
/// are away at once, but for those in quarantine.
async fn make_fault(nodes: &RedisNodes, round: usize) {
    let (durable, memory) = (round / 8 % 3, MEMORY_NODES[round / 8 % 2]);
    match round % 8 {
        0 | 5 => nodes.servers[(durable + round % 8) % 3].kill_and_restart(),
        1 => nodes.servers[memory].kill_and_restart(),
        2 | 6 => {
            let frozen = if round % 8 == 2 { durable } else { memory };
            nodes.servers[frozen].freeze();
            sleep_millis(400).await;
            nodes.servers[frozen].thaw();
        }
        fault => {
            let lossy = [&nodes.proxies[durable], &nodes.proxies[memory]];
            let swallow = |on: bool| match fault {
                3 | 7 => lossy.iter().for_each(|proxy| proxy.swallow_replies(on)),
                _ => lossy.iter().for_each(|proxy| proxy.swallow_requests(on)),
            };
            swallow(true);
            sleep_millis(60).await;
            lossy.iter().for_each(|proxy| proxy.cut_all());
            swallow(false);
        }
    }
    sleep_millis(200).await;
}

/// Goal: nobody believes in a lease beside another while nodes are killed and come back with and without their memory,
/// stand still, and lose requests and replies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_break_no_law() {
    let nodes = start_nodes();
    let recorder = Recorder::without_tokens();
    let (mut clients, mut engines) = (Vec::new(), Vec::new());
    for engine in 0..3 {
        let opened = open_engine(&nodes.url(QUARANTINE)).await;
        for client in 0..2 {
            clients.push(tokio::spawn(run_contender(recorder.clone(), opened.clone(), 10 * engine + client)));
        }
        engines.push(opened);
    }
    sleep_millis(QUARANTINE_ENDS_MS).await;
    let until = recorder.nanos() + u64::try_from(span_of_run().as_nanos()).expect("a short run");
    let mut rounds = 0;
    while recorder.nanos() < until || rounds < 10 || (recorder.count_grants() < MIN_GRANTS && rounds < MAX_ROUNDS) {
        make_fault(&nodes, rounds).await;
        rounds += 1;
    }
    recorder.stop();
    for client in clients {
        tokio::time::timeout(Duration::from_secs(60), client).await.expect("clients come to an end").expect("no panic");
    }
    for name in NAMES {
        let last = Claim { wait: Duration::from_secs(20), ..claim(name, TTL) };
        let grant = recorder.acquire(&*engines[0], 90, last).await.expect("every name can be had again");
        assert!(recorder.release(&*engines[0], 90, &grant).await);
    }
    let history = History { ops: recorder.take_ops(), ..History::default() };
    println!("{rounds} faults");
    print_counts(&history.ops);
    assert!(count_grants(&history.ops) >= MIN_GRANTS, "too little happened");
    assert_lawful(&history);
}

/// Goal: when many ask at once, so that votes are split, one has it, and never two.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn split_votes_have_one_winner() {
    // Votes count as split only if all nodes were asked: none is in quarantine.
    let nodes = RedisNodes::start(5, DURABLE);
    let recorder = Recorder::without_tokens();
    let mut engines = Vec::new();
    for _ in 0..4 {
        engines.push(open_engine(&nodes.url(QUARANTINE)).await);
    }
    let until = recorder.nanos() + u64::try_from(span_of_run().as_nanos()).expect("a short run");
    let (mut rounds, mut won) = (0_usize, 0);
    while recorder.nanos() < until || rounds < 5 {
        let before = recorder.count_grants();
        let contend = |client: u64| {
            let (recorder, engine) = (recorder.clone(), engines[client as usize % engines.len()].clone());
            tokio::spawn(async move { recorder.acquire(&*engine, client, claim("a", TTL)).await })
        };
        let contenders: Vec<_> = (0..CONTENDERS).map(contend).collect();
        let mut winner = None;
        for contender in contenders {
            winner = contender.await.expect("no panic").or(winner);
        }
        won += usize::from(recorder.count_grants() > before);
        rounds += 1;
        if let Some(winner) = winner {
            assert!(recorder.release(&*engines[0], 90, &winner).await, "the release is answered");
        }
    }
    let ops = recorder.take_ops();
    println!("{won} of {rounds} rounds of {CONTENDERS} were won");
    print_counts(&ops);
    // On a slow machine a whole round may be too late.
    assert!(won * 2 > rounds, "{won} of {rounds} rounds were won");
    assert_lawful(&History { ops, ..History::default() });
}

/// Goal: a majority that forgot a lease does not grant it again while it may be live.
/// Method: two of the nodes that forget nothing are away when ada's lease is granted; then they come back, and the two
/// that forget everything are killed. Of the four only the quarantine keeps two from voting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forgotten_leases_are_not_granted_again() {
    let nodes = start_nodes();
    let (ada, bob) = (open_engine(&nodes.url(QUARANTINE)).await, open_engine(&nodes.url(QUARANTINE)).await);
    let recorder = Recorder::without_tokens();
    nodes.servers[..2].iter().for_each(RedisServer::kill);
    let patient = Claim { wait: Duration::from_secs(20), ..claim("a", TTL) };
    recorder.acquire(&*ada, 1, patient).await.expect("the quarantine of new nodes ends");
    // Sharp: without the wait, its validity counts from here.
    let sharp = claim("b", TTL);
    let grant = recorder.acquire(&*ada, 1, sharp).await.expect("three of five vote");
    nodes.servers[..2].iter().for_each(RedisServer::spawn_server);
    MEMORY_NODES.iter().for_each(|at| nodes.servers[*at].kill());
    MEMORY_NODES.iter().for_each(|at| nodes.servers[*at].spawn_server());
    let fresh = open_engine_again(&nodes).await;
    let over = recorder.nanos() + u64::try_from(grant.remaining.as_nanos()).expect("short") + 200_000_000;
    let mut asked = 0;
    while recorder.nanos() < over {
        for engine in [&bob, &fresh] {
            recorder.acquire(&**engine, 2, claim("b", TTL)).await;
            asked += 1;
        }
        sleep_millis(20).await;
    }
    let history = History { ops: recorder.take_ops(), ..History::default() };
    println!("asked {asked} times for the forgotten lease");
    print_counts(&history.ops);
    assert!(asked > 5, "asked {asked} times");
    assert_lawful(&history);
}

/// An engine that knows nothing of earlier runs of the nodes. They may still be starting.
async fn open_engine_again(nodes: &RedisNodes) -> Arc<Redlock> {
    for _ in 0..100 {
        let options = RedlockOptions::from_url(&nodes.url(QUARANTINE)).expect("a url");
        if let Ok(engine) = Redlock::open(options).await {
            return engine;
        }
        sleep_millis(20).await;
    }
    panic!("the nodes do not come back");
}

/// Two client processes, one with the verbs and one with the guard, each behind proxies of its own.
fn start_processes<'a>(proxies: &'a [Vec<Proxy>; 2], engine: &'a Redlock, recorder: &'a Recorder) -> Vec<Stopper<'a>> {
    let start = |(at, uses): (usize, ProcessUses)| {
        let places: Vec<String> = proxies[at].iter().map(|proxy| format!("127.0.0.1:{}", proxy.port())).collect();
        let url = format!("redlock://{}{QUARANTINE}", places.join(","));
        let process = ClientProcess::start(ENTRY, 1 + at as u64, &url, uses);
        Stopper { process, proxies: &proxies[at], engine, recorder, has_queue: false }
    };
    [ProcessUses::Verbs, ProcessUses::Guard].into_iter().enumerate().map(start).collect()
}

fn start_proxies(nodes: &RedisNodes) -> [Vec<Proxy>; 2] {
    [0, 1].map(|_| nodes.servers.iter().map(|server| Proxy::start(server.port())).collect())
}

/// Goal: without a fault client processes and the test exclude each other. The processes of the other test begin here.
#[test]
fn a_client_process_reports_what_it_does() {
    if run_if_ordered() {
        return;
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let nodes = start_nodes();
        let (engine, recorder) = (open_engine(&nodes.url(QUARANTINE)).await, Recorder::without_tokens());
        let proxies = start_proxies(&nodes);
        let mut stoppers = start_processes(&proxies, &engine, &recorder);
        for stopper in &mut stoppers {
            stopper.wait_until_busy().await;
        }
        let contender = tokio::spawn(run_contender(recorder.clone(), engine.clone(), 10));
        sleep_millis(700).await;
        recorder.stop();
        contender.await.expect("no panic");
        let history = History { ops: finish_processes(&recorder, stoppers).await.ops, ..History::default() };
        print_counts(&history.ops);
        for client in [1, 2, 10] {
            let granted = |op: &Op| op.client == client && matches!(op.outcome, OpOutcome::Granted { .. });
            assert!(history.ops.iter().any(granted), "client {client} was granted nothing");
        }
        assert_lawful(&history);
    });
}

/// Goal: nobody believes in a lease beside another while processes are stopped for longer than their leases live, and
/// what lapsed meanwhile is refused. Method: SIGSTOP and SIGCONT.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_processes_break_no_law() {
    let nodes = start_nodes();
    let (engine, recorder) = (open_engine(&nodes.url(QUARANTINE)).await, Recorder::without_tokens());
    let proxies = start_proxies(&nodes);
    let mut stoppers = start_processes(&proxies, &engine, &recorder);
    let contender = tokio::spawn(run_contender(recorder.clone(), engine.clone(), 10));
    let stops = stop_in_turns(&mut stoppers, span_of_run()).await;
    recorder.stop();
    contender.await.expect("no panic");
    let history = History { ops: finish_processes(&recorder, stoppers).await.ops, ..History::default() };
    print_counts(&history.ops);
    assert_stops(&history.ops, &stops, PROCESS_TTL + SLACK);
    assert!(history.ops.iter().any(|op| op.client == 10 && matches!(op.kind, OpKind::Release { .. })), "nobody raced");
    assert_lawful(&history);
}

/// Expected failure, kept: a majority loses what it promised to keep (its disks, or its keys by FLUSHALL), nothing can
/// tell, and the checker flags two holders. Where a minority loses it, the lease stays one holder's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_majority_without_memory_is_seen() {
    let lose_disk = |server: &RedisServer| {
        server.kill();
        std::fs::remove_dir_all(server.dir().join("appendonlydir")).expect("its files");
        server.start_server();
    };
    let flush = |server: &RedisServer| drop(server.command(&["FLUSHALL"]));
    for (what, lose) in [("disks", &lose_disk as &dyn Fn(&RedisServer)), ("keys", &flush)] {
        for lost in [2, 3] {
            let nodes = RedisNodes::start(5, DURABLE);
            let (ada, bob) = (open_engine(&nodes.url("")).await, open_engine(&nodes.url("")).await);
            let recorder = Recorder::without_tokens();
            let long = Duration::from_secs(30);
            recorder.acquire(&*ada, 1, claim("seat", long)).await.expect("granted");
            while nodes.holding("seat") < 5 {
                sleep_millis(10).await;
            }
            nodes.servers[..lost].iter().for_each(lose);
            let fresh = open_engine(&nodes.url("")).await;
            for engine in [&bob, &fresh] {
                let patient = Claim { wait: Duration::from_secs(1), ..claim("seat", long) };
                if recorder.acquire(&**engine, 2, patient).await.is_some() {
                    break;
                }
            }
            let history = History { ops: recorder.take_ops(), ..History::default() };
            let found = check_profile(&history, CheckerProfile::NO_TOKENS).map_err(|(law, _)| law);
            println!("{lost} of 5 lost their {what}: {found:?}");
            assert_eq!(found, if lost > 2 { Err("believed") } else { Ok(()) }, "{lost} of 5 lost their {what}");
        }
    }
}
