//! The ZooKeeper engine when a request is repeated, or a lease renewed, through a server on another machine: what that one
//! promises is kept, though nothing in the store says it there how long a lease lives.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stderr)] // real servers live in real time

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::clock::{Clock, SystemClock, Time};
use leasehold::engine::zookeeper::{ZookeeperEngine, ZookeeperEngineOptions};
use leasehold::engine::{Claim, Engine, Grant, Want};
use leasehold_harness::zookeeper::ZookeeperEnsemble;
use zookeeper_client::Client;

const TTL: Duration = Duration::from_secs(6);

/// A clock of another machine: the same time, and another boot.
struct AnotherBoot(SystemClock);

impl Clock for AnotherBoot {
    fn now(&self) -> Time {
        self.0.now()
    }

    fn boot(&self) -> [u8; 16] {
        [9; 16]
    }

    fn sleep_until(&self, at: Time) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.0.sleep_until(at)
    }

    fn on_step(&self, wake: Box<dyn Fn() + Send + Sync>) {
        self.0.on_step(wake);
    }
}

async fn open(url: &str) -> Arc<ZookeeperEngine> {
    ZookeeperEngine::open(ZookeeperEngineOptions::from_url(url).expect("a url")).await.expect("it opens")
}

async fn open_elsewhere(url: &str) -> Arc<ZookeeperEngine> {
    let options = ZookeeperEngineOptions::from_url(url).expect("a url");
    let options = ZookeeperEngineOptions { clock: Arc::new(AnotherBoot(SystemClock)), ..options };
    ZookeeperEngine::open(options).await.expect("it opens")
}

fn by_request(name: &str) -> Claim {
    Claim { request: Some(name.into()), ..Claim::new(vec![Want::exclusive(name)], TTL, "ada") }
}

/// A repeat gives the lease that it was, and what it promises is kept: nobody else gets it before.
async fn repeat_is_kept(at: &Arc<ZookeeperEngine>, asked: Claim, first: &Grant) -> Duration {
    let repeated = at.acquire(asked.clone()).await.expect("granted before");
    let promised = Instant::now() + repeated.remaining;
    assert_eq!((&repeated.lease_id, repeated.token), (&first.lease_id, first.token));
    let next = Claim { wait: Duration::from_secs(30), request: None, ..asked };
    at.acquire(next).await.expect("it lapses");
    let got = Instant::now();
    assert!(got >= promised, "another one got it {:?} before the end that was promised", promised - got);
    repeated.remaining
}

/// Goal: a repeat on another machine promises no more than the lease has.
/// Method: a lease is relabelled when most of its time is over: the store has seen a write just now, which moved no end. Then its
/// request is repeated there, where nothing but the time of that write is known.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeat_on_another_machine_is_kept() {
    let ensemble = ZookeeperEnsemble::start(1);
    let url = format!("{}?lease=minded", ensemble.url("locks"));
    let (here, there) = (open(&url).await, open_elsewhere(&url).await);
    let first = here.acquire(by_request("seat")).await.expect("free");
    tokio::time::sleep(TTL * 2 / 3).await;
    here.relabel(&first.lease_id, "bob").await.expect("live");
    let remaining = repeat_is_kept(&there, by_request("seat"), &first).await;
    eprintln!("{remaining:?} were promised");
    assert!(remaining > TTL / 2, "whoever repeats its request can work: {remaining:?}");
}

/// Goal: a repeat on another machine revives nothing, and says nothing of a lease that it cannot keep.
/// Method: the lease was released, or it is one that ends with the session of another process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeat_on_another_machine_revives_nothing() {
    let ensemble = ZookeeperEnsemble::start(1);
    for lease in ["minded", "session"] {
        let url = format!("{}?lease={lease}", ensemble.url("locks"));
        let (here, there) = (open(&url).await, open_elsewhere(&url).await);
        let (ended, live) = (format!("ended-{lease}"), format!("live-{lease}"));
        let grant = here.acquire(by_request(&ended)).await.expect("free");
        assert!(here.release(&grant.lease_id).await.expect("live"));
        let repeated = there.acquire(by_request(&ended)).await.expect("granted before");
        assert_eq!((&repeated.lease_id, repeated.remaining), (&grant.lease_id, Duration::ZERO));
        let grant = here.acquire(by_request(&live)).await.expect("free");
        let repeated = there.acquire(by_request(&live)).await.expect("granted before");
        assert_eq!(repeated.lease_id, grant.lease_id);
        assert_eq!(repeated.remaining > Duration::ZERO, lease == "minded", "{repeated:?}");
        assert!(here.release(&grant.lease_id).await.expect("it is untouched"), "{lease}");
    }
}

/// The number of a field of the record in the only node of a resource.
async fn field(client: &Client, name: &str, field: &str) -> Option<u64> {
    let directory = format!("/locks/{name}");
    let nodes = client.list_children(&directory).await.unwrap();
    let (data, _) = client.get_data(&format!("{directory}/{}", nodes[0])).await.unwrap();
    let text = String::from_utf8(data).unwrap();
    let rest = text.split_once(&format!("\"{field}\":"))?.1;
    rest.split([',', '}']).next()?.parse().ok()
}

/// Goal: a cap stays the same cap on another machine: for renewals, for repeats, and in what is left to whoever comes after.
/// Method: a lease is renewed through another machine, and its request repeated there, when half of its cap is over. A third
/// process on that machine reads what it left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cap_is_kept_on_another_machine() {
    let ensemble = ZookeeperEnsemble::start(1);
    let client = Client::connect(&ensemble.hosts()[0]).await.unwrap();
    let url = format!("{}?lease=minded", ensemble.url("locks"));
    let (here, there, beside) = (open(&url).await, open_elsewhere(&url).await, open_elsewhere(&url).await);
    let most = Duration::from_secs(8);
    let asked = |name: &str| Claim { max_hold: Some(most), ..by_request(name) };
    let (renewed, repeated) = (here.acquire(asked("renewed")).await, here.acquire(asked("repeated")).await);
    let (began, renewed, repeated) = (Instant::now(), renewed.expect("free"), repeated.expect("free"));
    tokio::time::sleep(most / 2).await;
    // The ensemble counts milliseconds.
    let left = most.saturating_sub(began.elapsed()) + Duration::from_millis(50);
    let renewal = there.renew(&renewed.lease_id, None).await.expect("live");
    let again = there.acquire(asked("repeated")).await.expect("granted before");
    let mut answers = vec![(renewal.remaining, renewal.renewable), (again.remaining, again.renewable)];
    for name in ["renewed", "repeated"] {
        let (until, cap) = (field(&client, name, "until").await, field(&client, name, "cap").await);
        assert!(cap.is_some() && until <= cap, "{name}: {until:?}, {cap:?}");
        let answer = beside.acquire(asked(name)).await.expect("granted before");
        answers.push((answer.remaining, answer.renewable));
    }
    for (remaining, renewable) in answers {
        let renewable = renewable.expect("it has a cap");
        assert!(remaining <= left && renewable <= left, "{remaining:?}, {renewable:?} of {left:?}");
        assert!(remaining > most / 4, "{remaining:?}");
    }
    for (name, grant) in [("renewed", &renewed), ("repeated", &repeated)] {
        let next = Claim { wait: Duration::from_secs(20), ..Claim::new(vec![Want::exclusive(name)], TTL, "bob") };
        beside.acquire(next).await.expect("the cap ends it");
        assert!(began.elapsed() < most + Duration::from_secs(2), "{name}: {:?}", began.elapsed());
        assert!(beside.renew(&grant.lease_id, None).await.is_err(), "{name}: it is over");
    }
}
