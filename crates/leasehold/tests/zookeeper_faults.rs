//! The ZooKeeper engine when replies, connections, sessions, servers and processes are lost.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stderr)] // real servers live in real time

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold::clock::{Clock, SystemClock, Time};
use leasehold::engine::zookeeper::{ZookeeperEngine, ZookeeperEngineOptions, ZookeeperLease};
use leasehold::engine::{Claim, Engine, Mode, Want};
use leasehold::{Error, Refusal};
use leasehold_harness::proxy::Proxy;
use leasehold_harness::zookeeper::ZookeeperEnsemble;
use zookeeper_client::Client;

/// The shortest session that makes sense with ticks of half a second.
const SHORT_SESSION: Duration = Duration::from_secs(2);

fn options(url: &str, lease: ZookeeperLease) -> ZookeeperEngineOptions {
    let mut options = ZookeeperEngineOptions::from_url(url).expect("a url");
    options.lease = lease;
    // A session lease is shorter than its session by more than half.
    options.session_timeout = Some(if lease == ZookeeperLease::Session { SHORT_SESSION * 2 } else { SHORT_SESSION });
    options
}

async fn open(url: &str, lease: ZookeeperLease) -> Arc<ZookeeperEngine> {
    ZookeeperEngine::open(options(url, lease)).await.expect("the engine opens")
}

fn behind(proxy: &Proxy) -> String {
    format!("zk://127.0.0.1:{}/locks", proxy.port())
}

fn claim(name: &str, ttl: Duration) -> Claim {
    Claim::new(vec![Want::exclusive(name)], ttl, "ada")
}

async fn until(what: &str, limit: Duration, is_so: impl AsyncFn() -> bool) {
    let began = Instant::now();
    while !is_so().await {
        assert!(began.elapsed() < limit, "after {limit:?} it is not so that {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Goal: tokens rise in the order of grants, even for a node that was made before the grant that it follows.
/// Method: bob waits behind ada. The reply of eve's create is lost, and she stays cut off while bob is granted and releases.
/// Then she finds her node with its turn. Both kinds of leases, one name and two.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_found_again_late_has_a_token_above_those_before_it() {
    let ensemble = ZookeeperEnsemble::start(1);
    let proxy = Proxy::start(ensemble.client_ports()[0]);
    let direct = open(&ensemble.url("locks"), ZookeeperLease::Minded).await;
    for (lease, names) in [
        (ZookeeperLease::Minded, 1),
        (ZookeeperLease::Minded, 2),
        (ZookeeperLease::Session, 1),
        (ZookeeperLease::Session, 2),
    ] {
        let mut long = options(&behind(&proxy), lease);
        long.session_timeout = Some(Duration::from_secs(13));
        let cut_off = ZookeeperEngine::open(long).await.expect("it opens");
        let name = format!("seat-{lease:?}-{names}");
        let asked = |wait| {
            let mut asked = Claim { wait, ..claim(&name, Duration::from_secs(8)) };
            asked.wants.extend((1..names).map(|at| Want::exclusive(format!("{name}-{at}"))));
            asked
        };
        let spawn = |engine: &Arc<ZookeeperEngine>| {
            let (engine, asked) = (engine.clone(), asked(Duration::from_secs(20)));
            tokio::spawn(async move { engine.acquire(asked).await })
        };
        let waiting = |count| {
            let (direct, name) = (&direct, &name);
            async move || direct.inspect(name).await.unwrap().is_some_and(|seen| seen.queue_len >= count)
        };
        // It knows that the directories are there: the request whose reply is lost makes the nodes.
        let warm = cut_off.acquire(asked(Duration::ZERO)).await.expect("free");
        assert!(cut_off.release(&warm.lease_id).await.expect("live"));
        let ada = direct.acquire(asked(Duration::ZERO)).await.expect("free");
        let bob = spawn(&direct);
        until("bob waits", Duration::from_secs(5), waiting(1)).await;
        proxy.swallow_replies(true);
        let eve = spawn(&cut_off);
        until("eve waits", Duration::from_secs(5), waiting(2)).await;
        proxy.refuse(true);
        proxy.cut_all();
        proxy.swallow_replies(false);
        assert!(direct.release(&ada.lease_id).await.expect("live"));
        let bob = bob.await.unwrap().expect("his turn");
        assert!(direct.release(&bob.lease_id).await.expect("live"));
        proxy.refuse(false);
        let eve = eve.await.unwrap().expect("her turn");
        assert!(eve.token > bob.token && bob.token > ada.token, "{lease:?}: {ada:?} {bob:?} {eve:?}");
        assert!(cut_off.release(&eve.lease_id).await.expect("live"));
    }
}

/// Goal: a create whose reply is lost is found again: it has one effect, and leaves nothing behind.
/// Method: swallow the replies of an acquire, cut the connections, let it go on. One name and two, both kinds of leases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_replies_of_creates_are_found_again() {
    let ensemble = ZookeeperEnsemble::start(1);
    let proxy = Proxy::start(ensemble.client_ports()[0]);
    let direct = open(&ensemble.url("locks"), ZookeeperLease::Minded).await;
    for lease in [ZookeeperLease::Minded, ZookeeperLease::Session] {
        let mut long = options(&behind(&proxy), lease);
        long.session_timeout = Some(Duration::from_secs(13));
        let engine = ZookeeperEngine::open(long).await.expect("it opens");
        for round in 0..12_u64 {
            let name = format!("seat-{lease:?}-{round}");
            let mut asked = claim(&name, Duration::from_secs(8));
            if round % 3 == 2 {
                asked.wants.push(Want::exclusive(format!("{name}-aisle")));
            }
            // The directories are there, and every other time the engine knows it: the request whose reply is lost makes the
            // nodes, or is the transaction that fails.
            let warmed = if round % 2 == 0 { &engine } else { &direct };
            let warm = warmed.acquire(asked.clone()).await.expect("granted");
            warmed.release(&warm.lease_id).await.expect("released");
            proxy.swallow_replies(true);
            let acquire = tokio::spawn({
                let (engine, asked) = (engine.clone(), asked.clone());
                async move { engine.acquire(asked).await }
            });
            tokio::time::sleep(Duration::from_millis(5 + round * 5)).await;
            proxy.cut_all();
            proxy.swallow_replies(false);
            let grant = acquire.await.unwrap().unwrap_or_else(|error| panic!("round {round}: {error:?}"));
            let seen = direct.inspect(&name).await.unwrap().expect("it is held");
            assert_eq!((seen.holders.len(), seen.holders[0].token), (1, grant.token), "round {round}");
            assert!(engine.release(&grant.lease_id).await.expect("released"), "round {round}");
            for want in &asked.wants {
                assert_eq!(direct.inspect(&want.name).await.unwrap(), None, "nothing is left of round {round}");
            }
        }
    }
}

/// Goal: releases and renewals whose replies are lost have one effect, and are answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_replies_of_owners_are_found_again() {
    let ensemble = ZookeeperEnsemble::start(1);
    let proxy = Proxy::start(ensemble.client_ports()[0]);
    let direct = open(&ensemble.url("locks"), ZookeeperLease::Minded).await;
    let mut long = options(&behind(&proxy), ZookeeperLease::Minded);
    long.session_timeout = Some(Duration::from_secs(10));
    let engine = ZookeeperEngine::open(long).await.expect("it opens");
    let lose = async || {
        proxy.swallow_replies(true);
        tokio::time::sleep(Duration::from_millis(40)).await;
        proxy.cut_all();
        proxy.swallow_replies(false);
    };
    for round in 0..6 {
        let grant = engine.acquire(claim("seat", Duration::from_secs(20))).await.expect("granted");
        let (renewed, ()) = tokio::join!(engine.renew(&grant.lease_id, None), lose());
        assert!(renewed.expect("renewed").remaining > Duration::from_secs(15), "round {round}");
        assert_eq!(direct.inspect("seat").await.unwrap().expect("held").holders[0].token, grant.token);
        let (released, ()) = tokio::join!(engine.release(&grant.lease_id), lose());
        assert!(released.expect("released"), "round {round}");
        assert_eq!(direct.inspect("seat").await.unwrap(), None);
    }
}

/// Goal: with session leases nobody who lost the session thinks that they hold; and the next one gets it only then.
/// Method: cut a holder and a waiter off for longer than their session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_over_takes_its_leases_and_waiters_along() {
    let ensemble = ZookeeperEnsemble::start(1);
    let proxy = Proxy::start(ensemble.client_ports()[0]);
    let cut_off = open(&behind(&proxy), ZookeeperLease::Session).await;
    let other = open(&ensemble.url("locks"), ZookeeperLease::Session).await;
    let (ttl, patience) = (Duration::from_millis(1500), Duration::from_secs(30));
    let lost = cut_off.acquire(claim("seat", ttl)).await.expect("granted");
    let busy = other.acquire(claim("aisle", ttl)).await.expect("granted");
    let waiter = tokio::spawn({
        let (engine, asked) = (cut_off.clone(), Claim { wait: patience, ..claim("aisle", ttl) });
        async move { engine.acquire(asked).await }
    });
    until("one waits", Duration::from_secs(5), async || {
        other.inspect("aisle").await.unwrap().is_some_and(|seen| seen.queue_len == 1)
    })
    .await;
    let keep = tokio::spawn({
        let (other, busy) = (other.clone(), busy.lease_id.clone());
        async move {
            for _ in 0..16 {
                other.renew(&busy, None).await.expect("renewed");
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        }
    });
    cut_off.renew(&lost.lease_id, None).await.expect("renewed");
    let began = Instant::now();
    proxy.refuse(true);
    proxy.cut_all();
    let next = other.acquire(Claim { wait: patience, ..claim("seat", ttl) }).await.expect("granted");
    assert!(began.elapsed() >= ttl - Duration::from_millis(100), "never early: {:?}", began.elapsed());
    assert!(next.token > lost.token);
    let answer = waiter.await.unwrap();
    assert!(matches!(answer, Err(Error::Unavailable { .. })), "{answer:?}");
    proxy.refuse(false);
    let renewed = cut_off.renew(&lost.lease_id, None).await;
    assert!(
        matches!(renewed, Err(Error::Refused(Refusal::Stale) | Error::Unavailable { .. })),
        "a lost lease is not renewed: {renewed:?}"
    );
    keep.await.unwrap();
    // It works again by itself.
    until("the engine is back", Duration::from_secs(10), async || cut_off.acquire(claim("row", ttl)).await.is_ok())
        .await;
}

/// The session that the node of a session lease ends with.
async fn session_of(client: &Client, name: &str) -> i64 {
    let directory = format!("/locks/{name}");
    let nodes = client.list_children(&directory).await.unwrap();
    assert_eq!(nodes.len(), 1, "{nodes:?}");
    client.get_data(&format!("{directory}/{}", nodes[0])).await.unwrap().1.ephemeral_owner
}

/// Goal: a session lease whose session alone is cut off is renewed by no other one: after the session is over nobody is told
/// that they still hold it, and what a renewal promised before is kept.
/// Method: a proxy that passes nothing of that session, however often it connects. The other sessions of the engine go on. The
/// second time the reply of a renewal is lost first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_cut_off_alone_takes_its_lease_along() {
    let ensemble = ZookeeperEnsemble::start(1);
    let client = Client::connect(&ensemble.hosts()[0]).await.unwrap();
    let other = open(&ensemble.url("locks"), ZookeeperLease::Session).await;
    let ttl = Duration::from_millis(1500);
    for (name, loses_a_reply) in [("seat", false), ("stall", true)] {
        let proxy = Proxy::start(ensemble.client_ports()[0]);
        let engine = open(&behind(&proxy), ZookeeperLease::Session).await;
        let grant = engine.acquire(claim(name, ttl)).await.expect("granted");
        let session = session_of(&client, name).await;
        // A lease of the same engine that depends on another session.
        let mut beside = None;
        for number in 0..32 {
            let beside_name = format!("{name}-{number}");
            let held = engine.acquire(claim(&beside_name, ttl)).await.expect("granted");
            if session_of(&client, &beside_name).await != session {
                beside = Some(held);
                break;
            }
        }
        let beside = beside.expect("an engine has several sessions");
        engine.renew(&grant.lease_id, None).await.expect("renewed");
        let next = tokio::spawn({
            let (other, asked) = (other.clone(), Claim { wait: Duration::from_secs(30), ..claim(name, ttl) });
            async move { (other.acquire(asked).await, Instant::now()) }
        });
        let mut lost = None;
        if loses_a_reply {
            proxy.swallow_replies(true);
            let (engine, id) = (engine.clone(), grant.lease_id.clone());
            lost = Some(tokio::spawn(async move { engine.renew(&id, None).await }));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        proxy.mute_after_bytes(Some(session.to_be_bytes().to_vec()));
        proxy.cut_all();
        proxy.swallow_replies(false);
        let (cut, mut promised, mut answers) = (Instant::now(), Instant::now(), Vec::new());
        let keeps = tokio::spawn({
            let engine = engine.clone();
            async move {
                let mut kept = 0;
                while cut.elapsed() < SHORT_SESSION * 4 {
                    kept += usize::from(engine.renew(&beside.lease_id, None).await.is_ok());
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                (kept, engine.renew(&beside.lease_id, None).await.is_ok())
            }
        });
        while cut.elapsed() < SHORT_SESSION * 4 {
            let renewed = engine.renew(&grant.lease_id, None).await;
            if let Ok(renewal) = &renewed {
                promised = promised.max(Instant::now() + renewal.remaining);
            }
            answers.push((Instant::now(), renewed));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let (kept, is_kept) = keeps.await.unwrap();
        let (taken, at) = next.await.unwrap();
        assert!(taken.expect("the lease ends with its session").token > grant.token);
        assert!(promised <= at, "a renewal promised {:?} more", promised - at);
        assert!(answers.iter().all(|(when, answer)| *when < at || answer.is_err()), "{answers:?}");
        let is_lawful = |answer: &Result<leasehold::engine::Renewal, Error>| {
            let stale = matches!(answer, Err(Error::Refused(Refusal::Stale)));
            stale || matches!(answer, Ok(_) | Err(Error::Unavailable { .. } | Error::Indeterminate { .. }))
        };
        assert!(answers.iter().all(|(_, answer)| is_lawful(answer)), "{answers:?}");
        let last = &answers.last().expect("there are some").1;
        assert!(matches!(last, Err(Error::Refused(Refusal::Stale))), "{last:?}");
        if let Some(lost) = lost {
            let answer = lost.await.unwrap();
            assert!(answer.is_err() && is_lawful(&answer), "{answer:?}");
        }
        eprintln!("{name}: {} answers, {kept} renewals by another session", answers.len());
        assert!(is_kept && kept >= 20, "the other sessions go on: {kept}");
    }
}

/// A clock of another machine: the same time, and another boot.
struct OtherBoot(SystemClock);

impl Clock for OtherBoot {
    fn now(&self) -> Time {
        self.0.now()
    }

    fn boot(&self) -> [u8; 16] {
        [7; 16]
    }

    fn sleep_until(&self, at: Time) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.0.sleep_until(at)
    }

    fn on_step(&self, wake: Box<dyn Fn() + Send + Sync>) {
        self.0.on_step(wake);
    }
}

/// Goal: when the process that minds leases is gone, others renew and release them, and end the rest: never early.
/// Method: cut a process off for good. One lease is renewed by another one, one is released, two lapse; the other process
/// is on the same machine, or on another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_of_a_process_that_is_gone_are_minded_by_others() {
    let ensemble = ZookeeperEnsemble::start(1);
    for same_machine in [true, false] {
        let chroot = format!("locks-{same_machine}");
        let proxy = Proxy::start(ensemble.client_ports()[0]);
        let url = format!("zk://127.0.0.1:{}/{chroot}", proxy.port());
        let gone = open(&url, ZookeeperLease::Minded).await;
        let mut opened = options(&ensemble.url(&chroot), ZookeeperLease::Minded);
        if !same_machine {
            opened.clock = Arc::new(OtherBoot(SystemClock));
        }
        let other = ZookeeperEngine::open(opened).await.expect("it opens");
        let ttl = Duration::from_secs(4);
        let began = Instant::now();
        let kept = gone.acquire(claim("kept", ttl)).await.expect("granted");
        let released = gone.acquire(claim("released", ttl)).await.expect("granted");
        let both = vec![Want::exclusive("lapsing"), Want { name: "shared".into(), mode: Mode::Shared }];
        let lapsing = gone.acquire(Claim { wants: both, ..claim("lapsing", ttl) }).await.expect("granted");
        let delayed = Claim { delay: Duration::from_secs(2), ..claim("delayed", ttl) };
        gone.acquire(delayed).await.expect("granted");
        proxy.refuse(true);
        proxy.cut_all();
        assert!(other.release(&released.lease_id).await.expect("through another process"));
        let renewing = tokio::spawn({
            let (other, kept) = (other.clone(), kept.lease_id.clone());
            async move {
                for _ in 0..12 {
                    other.renew(&kept, None).await.expect("through another process");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        });
        let next = other
            .acquire(Claim { wait: Duration::from_secs(30), ..claim("shared", ttl) })
            .await
            .expect("the lease of a process that is gone ends");
        let took = began.elapsed();
        eprintln!("same machine {same_machine}: ended {took:?} after the grant of {ttl:?}");
        assert!(took >= ttl, "never early: {took:?}");
        assert!(took < ttl + SHORT_SESSION * 2 + ttl + Duration::from_secs(3), "{took:?}");
        assert!(next.token > lapsing.token);
        assert_eq!(other.inspect("lapsing").await.unwrap(), None, "both resources are free");
        let closed = other.acquire(Claim { wait: Duration::from_secs(30), ..claim("delayed", ttl) }).await;
        closed.expect("after the delay");
        let took = began.elapsed();
        assert!(took >= ttl + Duration::from_secs(2), "never early: {took:?}");
        renewing.await.unwrap();
        assert_eq!(other.inspect("kept").await.unwrap().expect("held").holders[0].token, kept.token);
        drop(gone);
    }
}

/// Goal: nobody holds twice and tokens rise while leaders are killed and stopped; and it goes on afterwards.
/// Method: two engines, eight workers on one name; the history is checked while it is made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaders_may_be_killed_and_stopped() {
    let ensemble = ZookeeperEnsemble::start(3);
    let mut engines = Vec::new();
    for _ in 0..2 {
        let mut options = options(&ensemble.url("locks"), ZookeeperLease::Minded);
        options.session_timeout = Some(Duration::from_secs(10));
        engines.push(ZookeeperEngine::open(options).await.expect("it opens"));
    }
    let (holding, grants) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU64::new(0)));
    let last: Arc<Mutex<Option<leasehold::Token>>> = Arc::default();
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let workers: Vec<_> = (0..8)
        .map(|number| {
            let engine = engines[number % 2].clone();
            let (holding, grants, last, stop) = (holding.clone(), grants.clone(), last.clone(), stop.clone());
            tokio::spawn(async move {
                let ttl = Duration::from_secs(20);
                while !stop.load(Ordering::SeqCst) {
                    let asked = Claim { wait: Duration::from_secs(20), ..claim("seat", ttl) };
                    let grant = match engine.acquire(asked).await {
                        Ok(grant) => grant,
                        Err(Error::Unavailable { .. } | Error::Indeterminate { .. } | Error::Refused(_)) => {
                            tokio::time::sleep(Duration::from_millis(100)).await;
                            continue;
                        }
                        Err(error) => panic!("{error:?}"),
                    };
                    assert_eq!(holding.fetch_add(1, Ordering::SeqCst), 0, "two hold it");
                    {
                        let mut last = last.lock().unwrap();
                        assert!(grant.token > *last, "{:?} after {last:?}", grant.token);
                        *last = grant.token;
                    }
                    grants.fetch_add(1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    holding.fetch_sub(1, Ordering::SeqCst);
                    for _ in 0..40 {
                        match engine.release(&grant.lease_id).await {
                            Err(Error::Unavailable { .. } | Error::Indeterminate { .. }) => {
                                tokio::time::sleep(Duration::from_millis(100)).await;
                            }
                            _ => break,
                        }
                    }
                }
            })
        })
        .collect();
    let more = async |what: &str| {
        let before = grants.load(Ordering::SeqCst);
        until(what, Duration::from_secs(30), async || grants.load(Ordering::SeqCst) > before + 20).await;
    };
    more("it goes well").await;
    let leader = ensemble.leader();
    ensemble.kill(leader);
    more("it goes on without the leader").await;
    ensemble.restart(leader);
    let leader = ensemble.leader();
    ensemble.freeze(leader);
    tokio::time::sleep(Duration::from_secs(6)).await;
    more("it goes on while the leader is stopped").await;
    ensemble.thaw(leader);
    more("it goes on when it is back").await;
    stop.store(true, Ordering::SeqCst);
    for worker in workers {
        worker.await.unwrap();
    }
    eprintln!("{} grants", grants.load(Ordering::SeqCst));
    until("nothing is left", Duration::from_secs(25), async || matches!(engines[0].inspect("seat").await, Ok(None)))
        .await;
}
