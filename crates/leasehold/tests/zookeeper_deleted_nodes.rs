//! The ZooKeeper engine when somebody else deletes one node of a claim on several resources: an operator, or a script that
//! tidies up. That claim or lease is over, and nothing of it is left behind.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)] // real servers live in real time

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::engine::zookeeper::{ZookeeperEngine, ZookeeperEngineOptions, ZookeeperLease};
use leasehold::engine::{Claim, Engine, Grant, Want};
use leasehold::testkit::ManualClock;
use leasehold::{Error, Refusal};
use leasehold_harness::proxy::Proxy;
use leasehold_harness::zookeeper::ZookeeperEnsemble;
use zookeeper_client::Client;

const SESSION: Duration = Duration::from_secs(2);
/// No lease of a test ends by its time unless the test waits for that.
const LONG: Duration = Duration::from_secs(60);

fn options(url: &str, lease: ZookeeperLease) -> ZookeeperEngineOptions {
    let mut options = ZookeeperEngineOptions::from_url(url).expect("a url");
    let session = if lease == ZookeeperLease::Session { Duration::from_secs(40) } else { SESSION };
    (options.lease, options.session_timeout) = (lease, Some(session));
    options
}

async fn open(url: &str) -> Arc<ZookeeperEngine> {
    ZookeeperEngine::open(options(url, ZookeeperLease::Minded)).await.expect("it opens")
}

async fn raw(ensemble: &ZookeeperEnsemble) -> Client {
    Client::connect(&ensemble.hosts()[0]).await.expect("a client")
}

fn claim(names: &[&str], ttl: Duration) -> Claim {
    Claim::new(names.iter().map(|name| Want::exclusive(*name)).collect(), ttl, "ada")
}

/// Deletes every node in the directory of a resource, as an operator does.
async fn delete_nodes_of(client: &Client, directory: &str) -> usize {
    let children = client.list_children(directory).await.unwrap();
    for child in &children {
        client.delete(&format!("{directory}/{child}"), None).await.unwrap();
    }
    children.len()
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

fn is_stale<T>(answer: &Result<T, Error>) -> bool {
    matches!(answer, Err(Error::Refused(Refusal::Stale)))
}

/// Goal: a lease that misses a node is over for its owner, and its other nodes go at once. Nobody holds beside another.
/// Method: delete the node of the first or of the last resource. Another client takes that resource. Then the owner renews
/// or releases, through its own process or another one, which knows only what the store has. Both kinds of leases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_misses_a_node_is_over_and_leaves_nothing() {
    let ensemble = ZookeeperEnsemble::start(1);
    let client = raw(&ensemble).await;
    let other = open(&ensemble.url("locks")).await;
    for (lease, through_other) in
        [(ZookeeperLease::Minded, false), (ZookeeperLease::Minded, true), (ZookeeperLease::Session, false)]
    {
        let owner = ZookeeperEngine::open(options(&ensemble.url("locks"), lease)).await.expect("it opens");
        for (gone, renews) in [(0, true), (2, true), (0, false), (2, false)] {
            let case = format!("{lease:?}-{through_other}-{gone}-{renews}");
            let names: Vec<String> = (0..3).map(|at| format!("seat-{case}-{at}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let ttl = Duration::from_secs(20);
            // A delay closes nothing: as after a revoke. Session leases have none.
            let delay = Duration::from_secs(if lease == ZookeeperLease::Minded { 20 } else { 0 });
            let asked = Claim { delay, ..claim(&names, ttl) };
            let grant = owner.acquire(asked).await.expect("free");
            assert_eq!(delete_nodes_of(&client, &format!("/locks/{}", names[gone])).await, 1);
            let taken = other.acquire(claim(&names[gone..=gone], LONG)).await.expect("its node is gone");
            let through = if through_other { &other } else { &owner };
            if renews {
                let renewed = through.renew(&grant.lease_id, None).await;
                // Another process finds a lease by its first node.
                let unknown = matches!(renewed, Err(Error::Refused(Refusal::NotHeld))) && through_other && gone == 0;
                assert!(is_stale(&renewed) || unknown, "{case}: {renewed:?}");
            } else {
                let released = through.release(&grant.lease_id).await;
                assert!(
                    matches!(released, Err(Error::Refused(Refusal::Stale | Refusal::NotHeld))),
                    "{case}: {released:?}"
                );
            }
            if through_other && gone == 0 {
                // That one cannot know where the others are. The owner's process does.
                assert!(is_stale(&owner.renew(&grant.lease_id, None).await), "{case}");
            }
            let rest: Vec<&str> = names.iter().filter(|name| **name != names[gone]).copied().collect();
            assert!(is_free(&other, &rest).await, "{case}: the others are free at once");
            assert!(other.release(&taken.lease_id).await.expect("its own"), "{case}: the new lease is untouched");
            assert!(owner.renew(&grant.lease_id, None).await.is_err(), "{case}: it stays over");
        }
    }
}

/// Goal: a lease that misses a node and that nobody renews leaves nothing when its time is over, with a delay too; and a
/// revoke of one of its other resources takes all that is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_misses_a_node_lapses_or_is_revoked_whole() {
    let ensemble = ZookeeperEnsemble::start(1);
    let (client, engine) = (raw(&ensemble).await, open(&ensemble.url("locks")).await);
    let ttl = Duration::from_secs(4);
    let (delayed, plain, revoked) = (["a1", "a2", "a3"], ["b1", "b2", "b3"], ["c1", "c2", "c3"]);
    engine.acquire(Claim { delay: LONG, ..claim(&delayed, ttl) }).await.expect("free");
    engine.acquire(claim(&plain, ttl)).await.expect("free");
    engine.acquire(claim(&revoked, LONG)).await.expect("free");
    for names in [delayed, plain, revoked] {
        assert_eq!(delete_nodes_of(&client, &format!("/locks/{}", names[0])).await, 1);
    }
    assert_eq!(engine.revoke("c2", "a test").await.expect("held"), 1);
    assert!(is_free(&engine, &revoked).await, "all of it is revoked");
    // Both, before either is waited for: their times are over together.
    for names in [delayed, plain] {
        assert!(!is_free(&engine, &names[1..]).await, "{names:?} is not over yet");
    }
    for names in [delayed, plain] {
        until("it lapsed", ttl * 3, async || is_free(&engine, &names).await).await;
    }
}

/// Goal: when the process that minds a lease is dead and a node is missing, the walk of a janitor removes the rest: whichever
/// node it is. A claim that is whole is kept meanwhile, and one that is just being made is never taken for a rest.
/// Method: cut a process off for good, delete nodes, and let another process walk all the time while a third one makes
/// and releases claims on the same resources.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_walk_removes_what_is_left_of_a_dead_owner() {
    let ensemble = ZookeeperEnsemble::start(1);
    let client = raw(&ensemble).await;
    let proxy = Proxy::start(ensemble.client_ports()[0]);
    let dead = open(&format!("zk://127.0.0.1:{}/locks", proxy.port())).await;
    let (first, last, whole) = (["a1", "a2", "a3"], ["b1", "b2", "b3"], ["c1", "c2"]);
    dead.acquire(claim(&first, LONG)).await.expect("free");
    dead.acquire(claim(&last, LONG)).await.expect("free");
    dead.acquire(claim(&whole, LONG)).await.expect("free");
    proxy.refuse(true);
    proxy.cut_all();
    assert_eq!(delete_nodes_of(&client, "/locks/a1").await, 1);
    assert_eq!(delete_nodes_of(&client, "/locks/b3").await, 1);
    let mut walking = options(&ensemble.url("locks"), ZookeeperLease::Minded);
    walking.walk_every = Duration::from_millis(50);
    let walker = ZookeeperEngine::open(walking).await.expect("it opens");
    let busy = open(&ensemble.url("locks")).await;
    let bound = SESSION * 3 + Duration::from_secs(5);
    until("the rests are gone", bound, async || is_free(&walker, &first).await && is_free(&walker, &last).await).await;
    // Its announcement is hidden, so that the walk looks at its nodes too.
    let servers = "/locks/.leasehold/servers";
    let began = Instant::now();
    let mut made = 0;
    while began.elapsed() < Duration::from_secs(2) {
        for server in client.list_children(servers).await.unwrap() {
            let _ = client.delete(&format!("{servers}/{server}"), None).await;
        }
        let grant = busy.acquire(claim(&["d1", "d2", "d3"], LONG)).await.expect("free");
        busy.renew(&grant.lease_id, None).await.expect("it is whole");
        assert!(busy.release(&grant.lease_id).await.expect("live"));
        made += 1;
    }
    assert!(made > 20, "{made}");
    for name in whole {
        assert!(walker.inspect(name).await.unwrap().is_some(), "a lease that is whole lives for its ttl");
    }
}

/// Goal: a claim that waits and loses a node gets nothing and leaves nothing, whether it had its turn there or not.
/// Method: it waits for the first or the last of two resources. The node of the other one is deleted, where it has its turn
/// and somebody else is let in; or the one where it waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_claim_that_loses_a_node_leaves_nothing() {
    let ensemble = ZookeeperEnsemble::start(1);
    let (client, engine) = (raw(&ensemble).await, open(&ensemble.url("locks")).await);
    let other = open(&ensemble.url("locks")).await;
    for (held, deleted) in [(0, 1), (1, 0), (0, 0), (1, 1)] {
        let names = [format!("seat-{held}-{deleted}-0"), format!("seat-{held}-{deleted}-1")];
        let names = [names[0].as_str(), names[1].as_str()];
        let holder = engine.acquire(claim(&names[held..=held], LONG)).await.expect("free");
        let asked = Claim { wait: LONG, ..claim(&names, LONG) };
        let waiting = tokio::spawn({
            let engine = engine.clone();
            async move { engine.acquire(asked).await }
        });
        let directory = format!("/locks/{}", names[deleted]);
        // Its nodes change their names when it begins to wait: the last digit of the id says so.
        let waiting_node = async || {
            let children = client.list_children(&directory).await.unwrap_or_default();
            children.into_iter().find(|child| child.contains("1-lock-"))
        };
        until("it waits", Duration::from_secs(5), async || waiting_node().await.is_some()).await;
        let node = waiting_node().await.expect("it waits");
        client.delete(&format!("{directory}/{node}"), None).await.unwrap();
        let taken: Option<Grant> = if deleted == held {
            None
        } else {
            Some(other.acquire(claim(&names[deleted..=deleted], LONG)).await.expect("its node is gone"))
        };
        assert!(engine.release(&holder.lease_id).await.expect("live"));
        let answer = tokio::time::timeout(Duration::from_secs(8), waiting).await.expect("it is told").unwrap();
        assert!(matches!(answer, Err(Error::Unavailable { .. })), "{held} {deleted}: {answer:?}");
        if let Some(taken) = taken {
            assert!(other.release(&taken.lease_id).await.expect("its own"), "{held} {deleted}");
        }
        assert!(is_free(&engine, &names).await, "{held} {deleted}: nothing is left");
    }
}

/// Goal: a repeat of a request whose lease misses a node is answered as one whose lease has ended.
/// Method: another process takes the resource whose node was deleted, and is asked by the same request id.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeat_does_not_revive_a_lease_that_misses_a_node() {
    let ensemble = ZookeeperEnsemble::start(1);
    let (client, owner) = (raw(&ensemble).await, open(&ensemble.url("locks")).await);
    let other = open(&ensemble.url("locks")).await;
    let asked = Claim { request: Some("an order".into()), ..claim(&["a1", "a2"], LONG) };
    let grant = owner.acquire(asked.clone()).await.expect("free");
    assert_eq!(delete_nodes_of(&client, "/locks/a2").await, 1);
    let taken = other.acquire(claim(&["a2"], LONG)).await.expect("its node is gone");
    let repeated = other.acquire(asked).await.expect("it was granted once");
    assert_eq!((&repeated.lease_id, repeated.remaining), (&grant.lease_id, Duration::ZERO));
    assert!(is_free(&other, &["a1"]).await, "the rest is removed");
    assert!(is_stale(&owner.renew(&grant.lease_id, None).await));
    assert!(other.release(&taken.lease_id).await.expect("its own"));
}

/// Goal: of two processes that saw a lease end, the later does not forget the request of a new acquire with the same id.
/// Method: one process takes two leases by request ids, and releases them. The node of one request is deleted, as another
/// process does that is earlier, and its id is used again. Then the clock of the first process moves on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_in_use_again_is_not_forgotten() {
    let ensemble = ZookeeperEnsemble::start(1);
    let client = raw(&ensemble).await;
    let clock = ManualClock::new();
    let url = ensemble.url("locks");
    let late = ZookeeperEngineOptions { clock: clock.shared(), ..options(&url, ZookeeperLease::Minded) };
    let (late, other) = (ZookeeperEngine::open(late).await.expect("it opens"), open(&url).await);
    let asked = |id: &str| Claim { request: Some(id.into()), ..claim(&[id], LONG * 60) };
    let requests = async || client.list_children("/locks/.leasehold/requests").await.unwrap();
    let used = late.acquire(asked("used-again")).await.expect("free");
    let digest = requests().await.pop().expect("one request");
    let unused = late.acquire(asked("unused")).await.expect("free");
    for grant in [used, unused] {
        assert!(late.release(&grant.lease_id).await.expect("live"));
    }
    client.delete(&format!("/locks/.leasehold/requests/{digest}"), None).await.unwrap();
    let again = other.acquire(asked("used-again")).await.expect("free");
    assert_eq!(requests().await.len(), 2);
    clock.advance(Duration::from_secs(61));
    until("the other request is forgotten", Duration::from_secs(10), async || requests().await.len() < 2).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(requests().await, [digest], "the request of a live lease is kept");
    let repeated = other.acquire(asked("used-again")).await.expect("the same lease");
    assert_eq!(repeated.lease_id, again.lease_id);
}
