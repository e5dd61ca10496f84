//! The etcd engine under faults, as the history checker sees it: clients of three engines write down what they ask and learn.
//! The laws are those of what clients are told: nobody believes in a lease beside another, tokens are unique, and rise.
//!
//! `LEASEHOLD_HISTORY_SECONDS` makes each run longer, `LEASEHOLD_MASS` the mass of leases that end at once larger.
#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "a real cluster lives in real time")]

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold::clock::SystemClock;
use leasehold::engine::etcd::{EtcdEngine, EtcdEngineOptions};
use leasehold::engine::{Claim, Engine, Want};
use leasehold::{Error, Leasehold, Refusal};
use leasehold_harness::etcd::{EtcdCluster, EtcdSettings};
use leasehold_harness::proxy::Proxy;
use leasehold_torture::history::History;
use support::client_process::{ClientProcess, PROCESS_TTL, ProcessUses, run_if_ordered};
use support::fleet_run::{assert_lawful, assert_lawful_under, assert_revokes_are_seen, count_yes, run_clients};
use support::recorder::{Recorder, from_environment, sleep_millis, wait_until};
use support::stops::{Stopper, assert_stops, finish_processes, span_of_run, stop_in_turns};

/// What a stopped process may keep others waiting for, beside its ttl: its session ends after six seconds.
const STOPPED_SLACK: Duration = Duration::from_secs(15);
/// How long members are cut off, in turn: an election, and longer than a session lives.
const CUT_MILLIS: [u64; 3] = [2_500, 8_000, 9_000];
/// What the others are told yes to at least during a cut, on a slow machine too: an election takes some of its time.
const MIN_ELSEWHERE: usize = 5;
/// One bucket of etcd has a thousand keys at most: these are several.
const MASS: u64 = 3_000;
/// Those who take them.
const TAKERS: u64 = 30;

async fn open(url: &str) -> Arc<dyn Engine> {
    EtcdEngine::open(EtcdEngineOptions::from_url(url).expect("a url")).await.expect("it opens")
}

async fn open_three(cluster: &EtcdCluster) -> Vec<Arc<dyn Engine>> {
    let mut engines = Vec::new();
    for _ in 0..3 {
        engines.push(open(&cluster.url()).await);
    }
    engines
}

/// Goal: without a fault every law holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quiet_run_is_lawful() {
    let cluster = EtcdCluster::start(1);
    assert_lawful_under(open_three(&cluster).await, async || sleep_millis(100).await).await;
}

/// Goal: the checker is not blind to two clients that believe in one lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revokes_are_seen() {
    let cluster = EtcdCluster::start(1);
    assert_revokes_are_seen(open_three(&cluster).await).await;
}

/// Goal: every law holds while one leader after the other is killed and started again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_of_the_leader_break_no_law() {
    let cluster = EtcdCluster::start(3);
    let kills = AtomicUsize::new(0);
    assert_lawful_under(open_three(&cluster).await, async || {
        sleep_millis(1500).await;
        let leader = cluster.leader();
        cluster.kill(leader);
        sleep_millis(1500).await;
        cluster.restart(leader);
        kills.fetch_add(1, Ordering::SeqCst);
    })
    .await;
    println!("{} kills", kills.load(Ordering::SeqCst));
}

/// Goal: every law holds while leaders stand still until there is another one, and then go on as if nothing had happened.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_leaders_break_no_law() {
    let cluster = EtcdCluster::start(3);
    assert_lawful_under(open_three(&cluster).await, async || {
        sleep_millis(1000).await;
        let leader = cluster.leader();
        cluster.freeze(leader);
        sleep_millis(3000).await;
        cluster.thaw(leader);
    })
    .await;
}

/// Goal: every law holds while one member after the other is cut off from its peers: the leader, and every third time a
/// follower. Nobody is told yes through a member that is cut off, and others go on.
/// Method: an engine for each member, which knows no other; so its clients are on the minority's side. A cut is long enough for
/// leases to lapse and sessions to end meanwhile. Each cut is seen: the member says that it misses its leader, and another
/// member leads where the leader was cut off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_are_cut_off_break_no_law() {
    let cluster = EtcdCluster::start_with(EtcdSettings { proxied_peers: true, ..EtcdSettings::new(3) });
    let mut engines = Vec::new();
    for endpoint in cluster.endpoints() {
        engines.push(open(&format!("etcd://{endpoint}")).await);
    }
    let (clock, cuts) = (SystemClock::shared(), Mutex::new(Vec::new()));
    let history = run_clients(engines, async || {
        let number = cuts.lock().expect("nobody panics with it").len();
        let leader = cluster.leader();
        let cut = if number % 3 == 1 { (leader + 1) % 3 } else { leader };
        cluster.cut_off(cut);
        let from = clock.now().as_nanos();
        sleep_millis(CUT_MILLIS[number % CUT_MILLIS.len()]).await;
        wait_until("the member that is cut off misses its leader", || cluster.misses_leader(cut)).await;
        assert_ne!(cluster.leader(), cut, "the majority has a leader");
        let to = clock.now().as_nanos();
        cluster.reconnect(cut);
        cuts.lock().expect("nobody panics with it").push((cut as u64, (from, to)));
        wait_until("it is back", || !cluster.misses_leader(cut)).await;
        sleep_millis(1_000).await;
    })
    .await;
    assert_lawful(&history);
    let cuts = cuts.into_inner().expect("nobody panicked with it");
    let mut elsewhere = 0;
    for (cut, span) in &cuts {
        assert_eq!(count_yes(&history, *cut, *span), 0, "yes through member {cut} while it was cut off: {span:?}");
        elsewhere += (0..3).filter(|other| other != cut).map(|other| count_yes(&history, other, *span)).sum::<usize>();
    }
    println!("{} cuts, {elsewhere} times yes through the others meanwhile", cuts.len());
    assert!(elsewhere >= MIN_ELSEWHERE * cuts.len(), "the others go on: {elsewhere} in {} cuts", cuts.len());
}

/// Goal: every law holds over a cluster that was killed as a whole: leases that were held are held after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_is_killed_as_a_whole_breaks_no_law() {
    let cluster = EtcdCluster::start(3);
    let engine = open(&cluster.url()).await;
    let kept =
        engine.acquire(Claim::new(vec![Want::exclusive("kept")], Duration::from_secs(600), "ada")).await.expect("free");
    assert_lawful_under(open_three(&cluster).await, async || {
        sleep_millis(1500).await;
        (0..3).for_each(|member| cluster.kill(member));
        sleep_millis(500).await;
        (0..3).for_each(|member| cluster.restart(member));
    })
    .await;
    let held = engine.acquire(Claim::new(vec![Want::exclusive("kept")], Duration::from_secs(5), "bob")).await;
    assert!(matches!(held, Err(Error::Refused(Refusal::Held { .. }))), "{held:?}");
    assert!(engine.release(&kept.lease_id).await.expect("it is live"));
}

/// Goal: every law holds while requests and replies are lost and connections are cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_replies_break_no_law() {
    let cluster = EtcdCluster::start(1);
    let proxy = Proxy::start(cluster.client_ports()[0]);
    let url = format!("etcd://127.0.0.1:{}", proxy.port());
    let engines = vec![open(&url).await, open(&url).await, open(&cluster.url()).await];
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

/// Goal: a database that is full refuses grants as unavailable, lets what is held be released, and goes on when there is
/// room again.
/// Method: a small quota, filled by others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_database_refuses_grants_and_takes_releases() {
    let flags = vec!["--quota-backend-bytes=4194304".to_owned()];
    let cluster = EtcdCluster::start_with(EtcdSettings { flags, ..EtcdSettings::new(1) });
    let engine = open(&cluster.url()).await;
    let minute = Duration::from_secs(60);
    let held = engine.acquire(Claim::new(vec![Want::exclusive("held")], minute, "ada")).await.expect("it is free");
    let mut puts = 0;
    let filler = "x".repeat(100_000);
    while cluster
        .etcdctl_command(&["put", &format!("filler/{puts}"), &filler])
        .output()
        .expect("etcdctl")
        .status
        .success()
    {
        puts += 1;
        assert!(puts < 1000, "the quota holds");
    }
    let refused = engine.acquire(Claim::new(vec![Want::exclusive("other")], minute, "ada")).await;
    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    assert!(engine.release(&held.lease_id).await.expect("a release needs no room"));
    cluster.etcdctl(&["del", "--prefix", "filler/"]);
    let status = cluster.etcdctl(&["endpoint", "status", "-w", "json"]);
    let revision =
        status.split("\"revision\":").nth(1).expect("a revision").split([',', '}']).next().expect("a number");
    cluster.etcdctl(&["compact", revision]);
    cluster.etcdctl(&["defrag"]);
    cluster.etcdctl(&["alarm", "disarm"]);
    let grant = engine.acquire(Claim::new(vec![Want::exclusive("held")], minute, "bob")).await.expect("there is room");
    assert!(grant.token > held.token);
    engine.close().await.expect("closed");
}

/// Goal: many leases that end at the same time end all, none early, and others are not kept from the cluster meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mass_lapse_is_never_early_and_holds_nobody_up() {
    let cluster = EtcdCluster::start(1);
    let (engine, other) = (open(&cluster.url()).await, open(&cluster.url()).await);
    let mass = from_environment("LEASEHOLD_MASS", MASS).next_multiple_of(TAKERS);
    // Longer than it takes to take them all.
    let ttl = Duration::from_millis(5_000 + mass * 3 / 2);
    let (began, mut tasks) = (Instant::now(), tokio::task::JoinSet::new());
    for chunk in 0..TAKERS {
        let engine = engine.clone();
        tasks.spawn(async move {
            for number in 0..mass / TAKERS {
                let name = format!("mass/{chunk}-{number}");
                engine.acquire(Claim::new(vec![Want::exclusive(name)], ttl, "ada")).await.expect("it is free");
            }
        });
    }
    tasks.join_all().await;
    let taken = began.elapsed();
    assert!(taken < ttl, "too slow a machine for this test: {taken:?}");
    let list = Leasehold::with_engine(other.clone(), SystemClock::shared());
    // A list takes a while, too.
    sleep_until(began + ttl - Duration::from_millis(1_500 + mass / 4)).await;
    let found = list.list("mass/").await.expect("a list").len() as u64;
    assert!(began.elapsed() < ttl, "too slow a machine for this test");
    assert_eq!(found, mass, "none ended early");
    let mut slowest = Duration::ZERO;
    while began.elapsed() < ttl + taken + Duration::from_secs(10) {
        let asked = Instant::now();
        let claim = Claim::new(vec![Want::exclusive("beside")], Duration::from_secs(5), "bob");
        let grant = other.acquire(claim).await.expect("nobody is held up");
        assert!(other.release(&grant.lease_id).await.expect("released"));
        slowest = slowest.max(asked.elapsed());
        sleep_millis(20).await;
    }
    assert_eq!(list.list("mass/").await.expect("a list").len(), 0, "all have ended");
    println!("{mass} leases in {taken:?}; the slowest pair beside their lapse took {slowest:?}");
    assert!(slowest < Duration::from_secs(3), "{slowest:?}");
}

async fn sleep_until(moment: Instant) {
    tokio::time::sleep(moment.saturating_duration_since(Instant::now())).await;
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
    let cluster = EtcdCluster::start(1);
    let (engine, recorder) = (open(&cluster.url()).await, Recorder::new());
    let proxies = [0, 1].map(|_| Proxy::start(cluster.client_ports()[0]));
    let start = |(at, uses): (usize, ProcessUses)| Stopper {
        process: ClientProcess::start(ENTRY, 1 + at as u64, &format!("etcd://127.0.0.1:{}", proxies[at].port()), uses),
        proxies: &proxies[at..=at],
        engine: &*engine,
        recorder: &recorder,
        has_queue: true,
    };
    let mut stoppers: Vec<Stopper> =
        [ProcessUses::Verbs, ProcessUses::Guard].into_iter().enumerate().map(start).collect();
    let mut clients = Vec::new();
    for client in 10..13 {
        clients.push(tokio::spawn(recorder.clone().run_client(open(&cluster.url()).await, client)));
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
