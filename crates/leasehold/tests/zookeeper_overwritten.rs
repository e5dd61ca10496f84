//! The ZooKeeper engine when somebody writes over the data of a lease, as Curator's `Revoker` does to ask a holder to leave.
//! The lease stays what it was, and it leaves nothing behind for ever.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)] // real servers live in real time

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::engine::zookeeper::{ZookeeperEngine, ZookeeperEngineOptions, ZookeeperLease};
use leasehold::engine::{Claim, Engine, FindingKind, Want};
use leasehold::testkit::ManualClock;
use leasehold_harness::proxy::Proxy;
use leasehold_harness::zookeeper::ZookeeperEnsemble;
use zookeeper_client::Client;

const SESSION: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

fn options(url: &str) -> ZookeeperEngineOptions {
    let mut options = ZookeeperEngineOptions::from_url(url).expect("a url");
    (options.lease, options.session_timeout) = (ZookeeperLease::Minded, Some(SESSION));
    options
}

async fn open(url: &str) -> Arc<ZookeeperEngine> {
    ZookeeperEngine::open(options(url)).await.expect("it opens")
}

fn claim(names: &[&str], ttl: Duration) -> Claim {
    Claim::new(names.iter().map(|name| Want::exclusive(*name)).collect(), ttl, "ada")
}

/// Writes over every node that is like this.
async fn overwrite(client: &Client, name: &str, is_meant: impl Fn(&str) -> bool) {
    let mut written = 0;
    for child in client.list_children(&format!("/locks/{name}")).await.unwrap() {
        if is_meant(&child) {
            client.set_data(&format!("/locks/{name}/{child}"), b"__REVOKE__", None).await.unwrap();
            written += 1;
        }
    }
    assert!(written > 0, "{name} has no such node");
}

async fn until(what: &str, limit: Duration, is_so: impl AsyncFn() -> bool) {
    let began = Instant::now();
    while !is_so().await {
        assert!(began.elapsed() < limit, "after {limit:?} it is not so that {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn is_free(engine: &ZookeeperEngine, names: &[&str]) -> bool {
    for name in names {
        if engine.inspect(name).await.unwrap().is_some() {
            return false;
        }
    }
    true
}

/// Goal: the server that minds a lease renews it, and ends it by its time, as if nobody had written; with a delay too.
/// Method: write over the node of the first resource, of the second one, or of both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_written_over_goes_on() {
    let ensemble = ZookeeperEnsemble::start(1);
    let client = Client::connect(&ensemble.hosts()[0]).await.unwrap();
    let (engine, other) = (open(&ensemble.url("locks")).await, open(&ensemble.url("locks")).await);
    let (ttl, delay) = (Duration::from_secs(3), Duration::from_secs(1));
    for written in [vec!["a1"], vec!["a2"], vec!["a1", "a2"]] {
        let names = ["a1", "a2"];
        let grant = engine.acquire(Claim { delay, ..claim(&names, ttl) }).await.expect("free");
        for name in &written {
            overwrite(&client, name, |_| true).await;
        }
        engine.renew(&grant.lease_id, None).await.unwrap_or_else(|error| panic!("{written:?}: {error:?}"));
        let began = Instant::now();
        let seen = other.inspect(written[0]).await.unwrap().expect("held");
        assert_eq!(
            (seen.holders[0].holder.as_str(), seen.holders[0].token),
            ("ada", grant.token),
            "it is written anew"
        );
        for name in &written {
            overwrite(&client, name, |_| true).await;
        }
        until("it lapsed", ttl * 4, async || is_free(&other, &names).await).await;
        assert!(began.elapsed() >= ttl + delay - Duration::from_millis(100), "{written:?}: {:?}", began.elapsed());
    }
}

/// Goal: a lease that was written over and whose server is dead is ended, when the longest ttl and the longest delay after it
/// are over; not before, and not while it is renewed. It is shown for what it is.
/// Method: two servers are cut off for good. A walker with a clock set by hand walks. One of the leases is written over once more
/// in the middle: that may have been a renewal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dead_server_left_is_ended_after_the_longest_life() {
    let ensemble = ZookeeperEnsemble::start(1);
    let client = Client::connect(&ensemble.hosts()[0]).await.unwrap();
    let proxy = Proxy::start(ensemble.client_ports()[0]);
    let dead = open(&format!("zk://127.0.0.1:{}/locks", proxy.port())).await;
    for names in [&["alone"][..], &["first", "second"], &["again"]] {
        dead.acquire(claim(names, LONG)).await.expect("free");
    }
    for name in ["alone", "first", "again"] {
        overwrite(&client, name, |_| true).await;
    }
    proxy.refuse(true);
    proxy.cut_all();
    let clock = ManualClock::new();
    let walking = ZookeeperEngineOptions { clock: clock.shared(), ..options(&ensemble.url("locks")) };
    let walker = ZookeeperEngine::open(walking).await.expect("it opens");
    let watcher = open(&ensemble.url("locks")).await;
    let servers = "/locks/.leasehold/servers";
    until("the server is gone", SESSION * 5, async || client.list_children(servers).await.unwrap().len() == 2).await;
    let walk = async |hours: u32| {
        tokio::time::sleep(Duration::from_millis(500)).await;
        clock.advance(HOUR * hours);
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    walk(1).await;
    walk(40).await;
    overwrite(&client, "again", |_| true).await;
    walk(1).await;
    for name in ["alone", "first", "second", "again"] {
        assert!(!is_free(&walker, &[name]).await, "{name}: such a lease may live");
    }
    let seen = walker.inspect("alone").await.unwrap().expect("held");
    let said = "(a lease of Leasehold whose data somebody wrote over)";
    assert_eq!((seen.holders[0].holder.as_str(), seen.holders[0].token), (said, None));
    let found = walker.examine().await.unwrap();
    assert!(found.iter().any(|f| f.kind == FindingKind::Warning && f.setting == "lease on alone"), "{found:?}");
    walk(12).await;
    walk(1).await;
    assert!(is_free(&watcher, &["alone", "first", "second"]).await, "the longest life is over");
    assert!(!is_free(&watcher, &["again"]).await, "it was written since");
    walk(50).await;
    until("the last one is ended too", LONG, async || is_free(&watcher, &["again"]).await).await;
}

/// Goal: an operator ends such a lease at once, with all of its nodes.
/// Method: both layouts; the node that Curator sees is written over, or that of kazoo.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_ends_what_was_written_over() {
    let ensemble = ZookeeperEnsemble::start(1);
    let client = Client::connect(&ensemble.hosts()[0]).await.unwrap();
    let engine = open(&format!("{}?layout=both", ensemble.url("locks"))).await;
    for (name, marker) in [("of-curator", "-lock-"), ("of-kazoo", "__lock__")] {
        let grant = engine.acquire(claim(&[name], LONG)).await.expect("free");
        overwrite(&client, name, |child| child.contains(marker)).await;
        assert_eq!(engine.revoke(name, "a test").await.expect("held"), 1);
        assert_eq!(client.list_children(&format!("/locks/{name}")).await.unwrap(), Vec::<String>::new(), "{name}");
        assert!(engine.renew(&grant.lease_id, None).await.is_err(), "{name}: it is over");
    }
}
