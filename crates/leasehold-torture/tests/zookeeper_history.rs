//! The ZooKeeper engine under faults, as the history checker sees it: clients of three engines write down what they ask and learn.
//! The laws are those of what clients are told: nobody believes in a lease beside another, tokens are unique, and rise.
//!
//! `LEASEHOLD_HISTORY_SECONDS` makes each run longer.
#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "a real ensemble lives in real time")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::engine::zookeeper::{ZookeeperEngine, ZookeeperEngineOptions};
use leasehold::engine::{Claim, Engine, Want};
use leasehold::{Error, Refusal};
use leasehold_harness::proxy::Proxy;
use leasehold_harness::zookeeper::{ZookeeperEnsemble, ZookeeperSettings};
use leasehold_torture::history::History;
use support::client_process::{ClientProcess, PROCESS_TTL, ProcessUses, run_if_ordered};
use support::fleet_run::{assert_lawful, assert_lawful_under, assert_revokes_are_seen};
use support::recorder::{Recorder, sleep_millis, wait_until};
use support::stops::{Stopper, assert_stops, finish_processes, span_of_run, stop_in_turns};

/// What a stopped process may keep others waiting for, beside its ttl: its session ends after ten seconds.
const STOPPED_SLACK: Duration = Duration::from_secs(25);
/// Leases that outlive their process, as a server has them.
const PLACE: &str = "/locks?lease=minded";

async fn open(url: &str) -> Arc<dyn Engine> {
    ZookeeperEngine::open(ZookeeperEngineOptions::from_url(url).expect("a url")).await.expect("it opens")
}

fn through(proxy: &Proxy) -> String {
    format!("zk://127.0.0.1:{}{PLACE}", proxy.port())
}

async fn open_three(ensemble: &ZookeeperEnsemble) -> Vec<Arc<dyn Engine>> {
    let mut engines = Vec::new();
    for _ in 0..3 {
        engines.push(open(&ensemble.url(PLACE)).await);
    }
    engines
}

/// Goal: without a fault every law holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quiet_run_is_lawful() {
    let ensemble = ZookeeperEnsemble::start(1);
    assert_lawful_under(open_three(&ensemble).await, async || sleep_millis(100).await).await;
}

/// Goal: the checker is not blind to two clients that believe in one lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revokes_are_seen() {
    let ensemble = ZookeeperEnsemble::start(1);
    assert_revokes_are_seen(open_three(&ensemble).await).await;
}

/// Goal: every law holds while one leader after the other is killed and started again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_of_the_leader_break_no_law() {
    let ensemble = ZookeeperEnsemble::start(3);
    let kills = AtomicUsize::new(0);
    assert_lawful_under(open_three(&ensemble).await, async || {
        sleep_millis(1500).await;
        let leader = ensemble.leader();
        ensemble.kill(leader);
        sleep_millis(1500).await;
        ensemble.restart(leader);
        kills.fetch_add(1, Ordering::SeqCst);
    })
    .await;
    println!("{} kills", kills.load(Ordering::SeqCst));
}

/// Goal: every law holds while leaders stand still until there is another one, and then go on as if nothing had happened.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_leaders_break_no_law() {
    let ensemble = ZookeeperEnsemble::start(3);
    assert_lawful_under(open_three(&ensemble).await, async || {
        sleep_millis(1000).await;
        let leader = ensemble.leader();
        ensemble.freeze(leader);
        sleep_millis(3000).await;
        ensemble.thaw(leader);
    })
    .await;
}

/// Goal: every law holds over an ensemble that was killed as a whole: leases that were held are held after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ensemble_that_is_killed_as_a_whole_breaks_no_law() {
    let ensemble = ZookeeperEnsemble::start(3);
    let engine = open(&ensemble.url(PLACE)).await;
    let kept =
        engine.acquire(Claim::new(vec![Want::exclusive("kept")], Duration::from_secs(600), "ada")).await.expect("free");
    assert_lawful_under(open_three(&ensemble).await, async || {
        sleep_millis(1500).await;
        (0..3).for_each(|server| ensemble.kill(server));
        sleep_millis(500).await;
        (0..3).for_each(|server| ensemble.restart(server));
    })
    .await;
    let held = engine.acquire(Claim::new(vec![Want::exclusive("kept")], Duration::from_secs(5), "bob")).await;
    assert!(matches!(held, Err(Error::Refused(Refusal::Held { .. }))), "{held:?}");
    assert!(engine.release(&kept.lease_id).await.expect("it is live"));
}

/// Goal: every law holds while requests and replies are lost and connections are cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_replies_break_no_law() {
    let ensemble = ZookeeperEnsemble::start(1);
    let proxy = Proxy::start(ensemble.client_ports()[0]);
    let engines = vec![open(&through(&proxy)).await, open(&through(&proxy)).await, open(&ensemble.url(PLACE)).await];
    let turn = AtomicUsize::new(0);
    assert_lawful_under(engines, async || {
        let swallow = |on| match turn.load(Ordering::SeqCst) % 2 {
            0 => proxy.swallow_replies(on),
            _ => proxy.swallow_requests(on),
        };
        sleep_millis(300).await;
        swallow(true);
        sleep_millis(40).await;
        swallow(false);
        proxy.cut_all();
        turn.fetch_add(1, Ordering::SeqCst);
    })
    .await;
}

/// Goal: every law holds over sessions that expire: those who waited are told, and minded leases live on.
/// Method: one of three engines is cut off for longer than its session lives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_expire_break_no_law() {
    let ensemble = ZookeeperEnsemble::start(1);
    let proxy = Proxy::start(ensemble.client_ports()[0]);
    let engines =
        vec![open(&through(&proxy)).await, open(&ensemble.url(PLACE)).await, open(&ensemble.url(PLACE)).await];
    let lived = engines[0].acquire(Claim::new(vec![Want::exclusive("kept")], Duration::from_secs(600), "ada")).await;
    let lived = lived.expect("it is free");
    let observer = open(&ensemble.url(PLACE)).await;
    assert_lawful_under(engines, async || {
        sleep_millis(1000).await;
        proxy.black_hole(true);
        sleep_millis(12_000).await;
        proxy.black_hole(false);
        proxy.cut_all();
        sleep_millis(2000).await;
    })
    .await;
    assert!(observer.release(&lived.lease_id).await.expect("it outlived the session of its engine"));
}

/// Which server is cut off from the others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CutServer {
    Leader,
    Follower,
}

/// Every law holds while one server of three is cut off from its peers, and clients still reach it: those of two engines that
/// know one server only, and those of one that knows all. Nothing is granted through a server without a majority.
async fn assert_partitions_break_no_law(who: CutServer) {
    let lines = vec!["syncLimit=4".to_owned()];
    // A server that is back asks for the leader soon, and not after up to a minute.
    let java = vec!["-Dzookeeper.fastleader.maxNotificationInterval=1000".to_owned()];
    let settings = ZookeeperSettings { partitions: true, lines, java, ..ZookeeperSettings::new(3) };
    let ensemble = ZookeeperEnsemble::start_with(settings);
    let alone: Vec<String> = ensemble.hosts().iter().map(|host| format!("zk://{host}{PLACE}")).collect();
    let mut pinned = Vec::new();
    for url in &alone {
        pinned.push(open(url).await);
    }
    let engines = vec![open(&ensemble.url(PLACE)).await, open(&alone[0]).await, open(&alone[1]).await];
    let (cuts, other_leaders) = (AtomicUsize::new(0), AtomicUsize::new(0));
    assert_lawful_under(engines, async || {
        sleep_millis(800).await;
        let leader = ensemble.leader();
        let turn = cuts.fetch_add(1, Ordering::SeqCst);
        let cut = if who == CutServer::Leader { leader } else { (leader + 1 + turn % 2) % 3 };
        wait_until("all servers serve", || (0..3).all(|server| ensemble.serves(server))).await;
        ensemble.isolate(cut, true);
        // The server does not know it yet.
        let claim = Claim::new(vec![Want::exclusive(format!("lonely-{turn}"))], Duration::from_secs(5), "eve");
        let lonely = tokio::spawn({
            let engine = pinned[cut].clone();
            async move { engine.acquire(claim).await }
        });
        wait_until("the server that is cut off serves nobody", || !ensemble.serves(cut)).await;
        wait_until("the others serve", || (0..3).all(|server| server == cut || ensemble.serves(server))).await;
        let next = (0..3).find(|server| ensemble.four_letter_word(*server, "srvr").contains("Mode: leader"));
        assert!(next.is_some_and(|next| next != cut), "{next:?} leads, and {cut} is cut off");
        other_leaders.fetch_add(usize::from(next != Some(leader)), Ordering::SeqCst);
        sleep_millis(1500).await;
        assert!(!ensemble.serves(cut), "it is still cut off");
        let lonely = lonely.await.expect("no panic");
        assert!(
            matches!(lonely, Err(Error::Unavailable { .. } | Error::Indeterminate { .. })),
            "granted without a majority: {lonely:?}"
        );
        ensemble.isolate(cut, false);
        wait_until("it is back", || ensemble.serves(cut)).await;
    })
    .await;
    let (cuts, others) = (cuts.load(Ordering::SeqCst), other_leaders.load(Ordering::SeqCst));
    println!("{cuts} partitions, {others} times another leader");
    // A follower that is cut off seldom costs the others their leader, but a slow machine may.
    assert!(who == CutServer::Follower || others == cuts);
}

/// Goal: every law holds while the leader is cut off from the others, and clients still reach it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_cut_off_breaks_no_law() {
    assert_partitions_break_no_law(CutServer::Leader).await;
}

/// Goal: the same for a follower, which goes on to answer reads for a while.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_is_cut_off_breaks_no_law() {
    assert_partitions_break_no_law(CutServer::Follower).await;
}

const ENTRY: &str = "a_client_process_reports_what_it_does";

/// The processes of the next test begin here.
#[test]
fn a_client_process_reports_what_it_does() {
    run_if_ordered();
}

/// Goal: every law holds while processes are stopped for longer than their leases live: while they hold one, while they
/// wait, in the middle of a call. What lapsed meanwhile is refused.
/// Method: SIGSTOP and SIGCONT; other clients race for the same names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_processes_break_no_law() {
    let ensemble = ZookeeperEnsemble::start(1);
    let (engine, recorder) = (open(&ensemble.url(PLACE)).await, Recorder::new());
    let proxies = [0, 1].map(|_| Proxy::start(ensemble.client_ports()[0]));
    let start = |(at, uses): (usize, ProcessUses)| Stopper {
        process: ClientProcess::start(ENTRY, 1 + at as u64, &through(&proxies[at]), uses),
        proxies: &proxies[at..=at],
        engine: &*engine,
        recorder: &recorder,
        has_queue: true,
    };
    let mut stoppers: Vec<Stopper> =
        [ProcessUses::Verbs, ProcessUses::Guard].into_iter().enumerate().map(start).collect();
    let mut clients = Vec::new();
    for client in 10..13 {
        clients.push(tokio::spawn(recorder.clone().run_client(open(&ensemble.url(PLACE)).await, client)));
    }
    let stops = stop_in_turns(&mut stoppers, span_of_run()).await;
    recorder.stop();
    for client in clients {
        client.await.expect("no panic");
    }
    let ops = finish_processes(&recorder, stoppers).await.ops;
    assert_stops(&ops, &stops, PROCESS_TTL + STOPPED_SLACK);
    assert_lawful(&History { ops, ..History::default() });
}
