//! The ZooKeeper engine where the numbers of a directory end: a real server, started from a snapshot that says that so many
//! nodes were made.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stderr)] // real servers live in real time

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold::engine::zookeeper::{ZookeeperEngine, ZookeeperEngineOptions};
use leasehold::engine::{Claim, Engine, Grant, Token, Want};
use leasehold::{Error, Refusal};
use leasehold_harness::zookeeper::ZookeeperEnsemble;
use zookeeper_client::{Acls, Client, CreateMode};

/// Numbers from here on are not used.
const USABLE_NUMBERS: i32 = i32::MAX - (1 << 20);
const TTL: Duration = Duration::from_secs(20);
const WORKERS: usize = 8;

fn claim(name: &str, wait: Duration) -> Claim {
    Claim { wait, ..Claim::new(vec![Want::exclusive(name)], TTL, "ada") }
}

async fn open(ensemble: &ZookeeperEnsemble, query: &str) -> Arc<ZookeeperEngine> {
    let url = format!("{}?{query}", ensemble.url("locks"));
    ZookeeperEngine::open(ZookeeperEngineOptions::from_url(&url).unwrap()).await.expect("it opens")
}

async fn raw(ensemble: &ZookeeperEnsemble) -> Client {
    Client::connect(&ensemble.hosts()[0]).await.expect("a client")
}

/// Makes the directory of a resource, and sets its next number.
async fn set_next_number(ensemble: &ZookeeperEnsemble, query: &str, name: &str, next: i32) {
    let engine = open(ensemble, query).await;
    let warm = engine.acquire(claim(name, Duration::ZERO)).await.expect("free");
    assert!(engine.release(&warm.lease_id).await.expect("live"));
    engine.close().await.unwrap();
    ensemble.set_child_counter(0, &format!("/locks/{name}"), next);
}

/// The number that a node made now gets.
async fn next_number(client: &Client, name: &str) -> i64 {
    let node = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let path = format!("/locks/{name}/look-");
    let (_, number) = client.create(&path, b"", &node).await.unwrap();
    client.delete(&format!("{path}{number}"), None).await.unwrap();
    number.into_i64()
}

/// What a race has seen.
#[derive(Default)]
struct RaceRecord {
    holding: AtomicUsize,
    overlaps: AtomicUsize,
    grants: AtomicU64,
    tokens: Mutex<Vec<Token>>,
    stop: AtomicBool,
}

impl RaceRecord {
    async fn hold(&self, grant: &Grant) {
        if self.holding.fetch_add(1, Ordering::SeqCst) > 0 {
            self.overlaps.fetch_add(1, Ordering::SeqCst);
        }
        self.tokens.lock().unwrap().push(grant.token.expect("a token"));
        self.grants.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.holding.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Workers of two engines race for one name until there were so many grants. Some try, the others wait.
async fn race(engines: &[Arc<ZookeeperEngine>], name: &str, grants: u64) -> Arc<RaceRecord> {
    let record = Arc::new(RaceRecord::default());
    let work = |number: usize| {
        let (engine, record, name) = (engines[number % engines.len()].clone(), record.clone(), name.to_owned());
        async move {
            let wait = if number.is_multiple_of(3) { Duration::ZERO } else { Duration::from_secs(20) };
            while !record.stop.load(Ordering::SeqCst) {
                match engine.acquire(claim(&name, wait)).await {
                    Ok(grant) => {
                        record.hold(&grant).await;
                        assert!(engine.release(&grant.lease_id).await.expect("it is live"));
                    }
                    Err(Error::Refused(Refusal::Held { .. })) => tokio::time::sleep(Duration::from_millis(2)).await,
                    Err(error) => panic!("{error:?}"),
                }
            }
        }
    };
    let workers: Vec<_> = (0..WORKERS).map(|number| tokio::spawn(work(number))).collect();
    let limit = Instant::now() + Duration::from_secs(60);
    while record.grants.load(Ordering::SeqCst) < grants {
        assert!(Instant::now() < limit, "only {} grants", record.grants.load(Ordering::SeqCst));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    record.stop.store(true, Ordering::SeqCst);
    for worker in workers {
        worker.await.unwrap();
    }
    assert_eq!(record.overlaps.load(Ordering::SeqCst), 0, "two held it");
    assert!(record.tokens.lock().unwrap().is_sorted_by(|a, b| a < b), "tokens rise in the order of grants");
    record
}

/// Goal: exclusion holds and tokens rise while a directory comes to the end of its numbers, and it goes on in a new one.
/// Method: 40 numbers are left. Each kind of lease and layout; without a rule for the end two hold, as a server gives its
/// last number again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_race_goes_on_past_the_last_number() {
    let ensemble = ZookeeperEnsemble::start(1);
    for (query, next) in [
        ("lease=minded", i32::MAX - 40),
        ("lease=minded", USABLE_NUMBERS - 40),
        ("lease=session", USABLE_NUMBERS - 40),
        ("lease=minded&layout=kazoo", USABLE_NUMBERS - 40),
        ("lease=session&layout=both", USABLE_NUMBERS - 40),
    ] {
        let name = format!("seat-{next}-{}", query.replace(['=', '&'], "-"));
        set_next_number(&ensemble, query, &name, next).await;
        let engines = [open(&ensemble, query).await, open(&ensemble, query).await];
        let record = race(&engines, &name, 400).await;
        let number = next_number(&raw(&ensemble).await, &name).await;
        eprintln!("{query} from {next}: {} grants, now at {number}", record.grants.load(Ordering::SeqCst));
        assert!((0..100_000).contains(&number), "the directory is another one: {number}");
    }
}

/// Goal: order of arrival holds for everybody who is in the queue when the numbers end, and whoever comes later waits.
/// Method: ada holds, bob waits, both by usable numbers; carl comes after them and gets none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_has_a_place_keeps_it_when_the_numbers_end() {
    let ensemble = ZookeeperEnsemble::start(1);
    for query in ["lease=minded", "lease=session"] {
        let name = format!("row-{}", query.replace('=', "-"));
        set_next_number(&ensemble, query, &name, USABLE_NUMBERS - 2).await;
        let engine = open(&ensemble, query).await;
        let ada = engine.acquire(claim(&name, Duration::ZERO)).await.expect("free");
        let spawn = || {
            let (engine, asked) = (engine.clone(), claim(&name, Duration::from_secs(20)));
            tokio::spawn(async move { engine.acquire(asked).await })
        };
        let bob = spawn();
        let limit = Instant::now() + Duration::from_secs(5);
        while engine.inspect(&name).await.unwrap().is_none_or(|seen| seen.queue_len < 1) {
            assert!(Instant::now() < limit, "bob waits");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let carl = spawn();
        let tried = engine.acquire(claim(&name, Duration::ZERO)).await;
        assert!(matches!(tried, Err(Error::Refused(Refusal::Held { .. }))), "{tried:?}");
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!bob.is_finished() && !carl.is_finished());
        assert!(engine.release(&ada.lease_id).await.expect("live"));
        let bob = bob.await.unwrap().expect("his turn");
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!carl.is_finished(), "bob holds it");
        assert!(engine.release(&bob.lease_id).await.expect("live"));
        let carl = carl.await.unwrap().expect("his turn");
        assert!(ada.token < bob.token && bob.token < carl.token, "{ada:?} {bob:?} {carl:?}");
        assert!(engine.release(&carl.lease_id).await.expect("live"));
    }
}

/// Goal: a directory that other clients have brought to its very last number: they are waited for, and nobody is let in beside
/// them.
/// Method: nodes as Curator makes them. The server gives both the same number.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_at_the_last_number_are_waited_for() {
    let ensemble = ZookeeperEnsemble::start(1);
    let query = "lease=minded";
    set_next_number(&ensemble, query, "gate", i32::MAX).await;
    let (engine, client) = (open(&ensemble, query).await, raw(&ensemble).await);
    let node = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let mut made = Vec::new();
    for digit in ['1', '2'] {
        let path =
            format!("/locks/gate/_c_{}-lock-", "0f6f5a0e-7d8f-4a55-9d07-0d9a6f0f3a7x".replace('x', &digit.to_string()));
        let (_, number) = client.create(&path, b"", &node).await.unwrap();
        assert_eq!(
            number.into_i64(),
            i64::from(i32::MAX),
            "this server numbers on past the end: look at `numbering.rs`"
        );
        made.push(format!("{path}{number}"));
    }
    let found = engine.examine().await.expect("it is examined");
    assert!(
        found.iter().any(|finding| finding.setting == "numbers of gate" && finding.found == "2147483647"),
        "{found:?}"
    );
    for _ in 0..20 {
        // With a little patience: without any, a name that was held a moment ago is only looked at.
        let tried = engine.acquire(claim("gate", Duration::from_millis(20))).await;
        assert!(matches!(tried, Err(Error::Refused(Refusal::Held { .. }))), "{tried:?}");
    }
    let waiter = tokio::spawn({
        let engine = engine.clone();
        async move { engine.acquire(claim("gate", Duration::from_secs(20))).await }
    });
    for path in made {
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!waiter.is_finished(), "somebody is in it");
        client.delete(&path, None).await.unwrap();
    }
    let grant = waiter.await.unwrap().expect("its turn");
    let held = engine.acquire(claim("gate", Duration::ZERO)).await;
    assert!(matches!(held, Err(Error::Refused(Refusal::Held { .. }))), "{held:?}");
    assert!(engine.release(&grant.lease_id).await.expect("live"));
}
