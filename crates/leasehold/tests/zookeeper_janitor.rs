//! The ZooKeeper engine after a process with minded leases is gone: who ends them, when nobody was told.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stderr)] // real servers live in real time

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::clock::{Clock, SystemClock, Time};
use leasehold::engine::zookeeper::{ZookeeperEngine, ZookeeperEngineOptions, ZookeeperLease};
use leasehold::engine::{Claim, Engine, Mode, Want};
use leasehold::{Error, Refusal};
use leasehold_harness::proxy::Proxy;
use leasehold_harness::zookeeper::ZookeeperEnsemble;
use zookeeper_client::{Acls, Client, CreateMode};

const SESSION: Duration = Duration::from_secs(2);
const TTL: Duration = Duration::from_secs(3);
const DELAY: Duration = Duration::from_secs(2);
/// An interval that no test lives to see.
const NEVER: Duration = Duration::from_secs(3600);

fn claim(name: &str) -> Claim {
    Claim::new(vec![Want::exclusive(name)], TTL, "ada")
}

fn options(url: &str, walk_every: Duration) -> ZookeeperEngineOptions {
    let mut options = ZookeeperEngineOptions::from_url(url).expect("a url");
    (options.lease, options.session_timeout) = (ZookeeperLease::Minded, Some(SESSION));
    options.walk_every = walk_every;
    options
}

async fn raw(ensemble: &ZookeeperEnsemble) -> Client {
    Client::connect(&ensemble.hosts()[0]).await.expect("a client")
}

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

/// Says that there is a process with the lowest name of all. It lives, and never walks: as one whose watch was lost.
async fn announce_idle_janitor(client: &Client, chroot: &str) -> String {
    let path = format!("/{chroot}/.leasehold/servers/0000000000000000");
    client.create(&path, b"", &CreateMode::Ephemeral.with_acls(Acls::anyone_all())).await.unwrap();
    path
}

/// When a resource is free, as somebody sees who tries again and again. None: not in this time.
async fn freed_within(engine: &ZookeeperEngine, name: &str, span: Duration) -> Option<Instant> {
    let limit = Instant::now() + span;
    while Instant::now() < limit {
        match engine.acquire(claim(name)).await {
            Ok(grant) => {
                let at = Instant::now();
                assert!(engine.release(&grant.lease_id).await.expect("live"));
                return Some(at);
            }
            Err(Error::Refused(Refusal::Held { .. })) => tokio::time::sleep(Duration::from_millis(20)).await,
            Err(error) => panic!("{error:?}"),
        }
    }
    None
}

/// Goal: leases of a process that is gone are ended by the walk that comes by time, though nobody was told; never early.
/// Method: the janitor lives and does nothing, so that only the walk is left. A process is cut off for good. One lease of
/// several resources, one with a delay; the walker is on the same machine, and on another one. Without the walk they stay, until
/// the janitor is gone too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_walk_ends_what_nobody_was_told_of() {
    let ensemble = ZookeeperEnsemble::start(1);
    let client = raw(&ensemble).await;
    for (same_machine, walks) in [(true, true), (false, true), (true, false)] {
        let chroot = format!("locks-{same_machine}-{walks}");
        let proxy = Proxy::start(ensemble.client_ports()[0]);
        let url = format!("zk://127.0.0.1:{}/{chroot}", proxy.port());
        let gone = ZookeeperEngine::open(options(&url, NEVER)).await.expect("it opens");
        let idle = announce_idle_janitor(&client, &chroot).await;
        let every = if walks { Duration::from_millis(700) } else { NEVER };
        let mut opened = options(&ensemble.url(&chroot), every);
        if !same_machine {
            opened.clock = Arc::new(AnotherBoot(SystemClock));
        }
        let other = ZookeeperEngine::open(opened).await.expect("it opens");
        let began = Instant::now();
        let both = vec![Want::exclusive("seat"), Want { name: "aisle".into(), mode: Mode::Shared }];
        gone.acquire(Claim { wants: both, ..claim("seat") }).await.expect("granted");
        gone.acquire(Claim { delay: DELAY, ..claim("delayed") }).await.expect("granted");
        proxy.refuse(true);
        proxy.cut_all();
        let bound = SESSION * 2 + TTL * 2 + Duration::from_secs(4);
        let freed = freed_within(&other, "aisle", bound).await;
        if !walks {
            assert_eq!(freed, None, "it is not known what ended it");
            client.delete(&idle, None).await.unwrap();
            freed_within(&other, "aisle", bound).await.expect("the next janitor walks at once");
            continue;
        }
        let lived = freed.expect("the walk ends it") - began;
        assert!(lived >= TTL, "never early: {lived:?}");
        assert_eq!(other.inspect("seat").await.unwrap(), None, "both resources are free");
        let closed = freed_within(&other, "delayed", bound).await.expect("after its delay") - began;
        assert!(closed >= TTL + DELAY, "never early: {closed:?}");
        eprintln!("same machine {same_machine}: free {lived:?} and {closed:?} after the grants");
    }
}

/// Goal: a walk ends nothing of a process that lives, even if its announcement is not there.
/// Method: the announcement of one process is deleted again and again, while others walk all the time and it renews.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_walk_is_never_early_with_leases_that_are_renewed() {
    let ensemble = ZookeeperEnsemble::start(1);
    let client = raw(&ensemble).await;
    let owner = ZookeeperEngine::open(options(&ensemble.url("locks"), NEVER)).await.expect("it opens");
    let servers = "/locks/.leasehold/servers";
    let announced = client.list_children(servers).await.unwrap();
    let grant = owner.acquire(claim("seat")).await.expect("granted");
    let every = Duration::from_millis(100);
    let mut walkers = Vec::new();
    for clock in [Arc::new(SystemClock) as Arc<dyn Clock>, Arc::new(AnotherBoot(SystemClock))] {
        let opened = ZookeeperEngineOptions { clock, ..options(&ensemble.url("locks"), every) };
        walkers.push(ZookeeperEngine::open(opened).await.expect("it opens"));
    }
    let (began, mut hidden) = (Instant::now(), 0);
    while began.elapsed() < TTL * 3 {
        owner.renew(&grant.lease_id, None).await.expect("renewed");
        for _ in 0..10 {
            hidden += usize::from(client.delete(&format!("{servers}/{}", announced[0]), None).await.is_ok());
            tokio::time::sleep(Duration::from_millis(50)).await;
            let tried = walkers[0].acquire(claim("seat")).await;
            assert!(matches!(tried, Err(Error::Refused(Refusal::Held { .. }))), "{tried:?}");
        }
    }
    eprintln!("the announcement was deleted {hidden} times");
    assert!(hidden > 10, "{hidden}");
    assert!(owner.release(&grant.lease_id).await.expect("live"));
}
