//! The Redis engine when a request arrives late, or a reply never comes: nothing happens that its caller was not told of.
#![cfg(feature = "redis")]
#![allow(clippy::disallowed_methods, reason = "a real server lives in real time")]

#[path = "support/redis.rs"]
mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::engine::redis::{RedisEngine, RedisOptions};
use leasehold::engine::{Claim, Engine, Mode, Query, Want};
use leasehold::{Error, Refusal};
use leasehold_harness::proxy::Proxy;
use leasehold_harness::redis::RedisServer;
use support::{claim, open, patient, pause};

async fn open_over(proxy: &Proxy) -> Arc<RedisEngine> {
    open(&format!("redis://127.0.0.1:{}", proxy.port())).await
}

/// Goal: a try that arrives after its caller was told "held" takes nothing.
/// Method: the connections of now stand still, so that the first try is stuck and the second one is refused; the holder
/// releases, and the first try arrives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_try_takes_nothing_after_a_refusal() {
    let server = RedisServer::start(&[]);
    let proxy = Proxy::start(server.port());
    let (engine, direct) = (open_over(&proxy).await, open(&server.url()).await);
    let permits = |capacity| {
        let want = Want { name: "room".into(), mode: Mode::Permits { count: 1, capacity } };
        Claim { wants: vec![want], ..claim("room", "bob") }
    };
    let ada = direct.acquire(claim("seat", "ada")).await.expect("granted");
    let cy = direct.acquire(permits(3)).await.expect("granted");
    proxy.stall_current(true);
    let (held, other) = tokio::join!(engine.acquire(claim("seat", "bob")), engine.acquire(permits(5)));
    assert!(matches!(held, Err(Error::Refused(Refusal::Held { .. }))), "{held:?}");
    assert!(matches!(other, Err(Error::Invalid(_))), "{other:?}");
    direct.release(&ada.lease_id).await.expect("released");
    direct.release(&cy.lease_id).await.expect("released");
    proxy.stall_current(false);
    for _ in 0..10 {
        pause(100).await;
        assert!(direct.inspect("seat").await.expect("seen").is_none(), "the first try took the seat");
        assert!(direct.inspect("room").await.expect("seen").is_none(), "the first try took the room");
    }
}

/// Goal: a server that never answers SUBSCRIBE is Unavailable, and not waited for without end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_without_an_answer_is_given_up() {
    let server = RedisServer::start(&[]);
    let proxy = Proxy::start(server.port());
    proxy.mute_after(Some("SUBSCRIBE"));
    let began = Instant::now();
    let options = RedisOptions::from_url(&format!("redis://127.0.0.1:{}", proxy.port())).expect("a url");
    let opened = tokio::time::timeout(Duration::from_secs(20), RedisEngine::open(options)).await.expect("an answer");
    assert!(matches!(opened, Err(Error::Unavailable { .. })), "{opened:?}");
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    // The same when a connection is opened again: later it works.
    proxy.mute_after(None);
    let engine = open_over(&proxy).await;
    proxy.mute_after(Some("SUBSCRIBE"));
    proxy.cut_all();
    pause(6000).await;
    proxy.mute_after(None);
    let all = Query { prefix: String::new(), after: None, limit: 10 };
    let listing = async {
        // A list that came while the old connection was being opened gets its error.
        while engine.list(all.clone()).await.is_err() {
            pause(100).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(15), listing).await.expect("it works again");
}

/// Goal: a waiter whose login is refused meanwhile does not know whether it was granted, and says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_login_is_refused_is_indeterminate() {
    let server = RedisServer::start(&[]);
    server.command(&["ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all"]);
    let engine = open(&format!("redis://app:pw@127.0.0.1:{}", server.port())).await;
    let direct = open(&server.url()).await;
    let ada = direct.acquire(Claim { ttl: Duration::from_secs(4), ..claim("seat", "ada") }).await.expect("granted");
    let asked = engine.clone();
    let waiting = tokio::spawn(async move { asked.acquire(patient("seat", "bob", Duration::from_secs(60))).await });
    pause(300).await;
    server.command(&["ACL", "SETUSER", "app", "resetpass", ">new"]);
    server.command(&["CLIENT", "KILL", "USER", "app"]);
    direct.release(&ada.lease_id).await.expect("released");
    let seen = direct.inspect("seat").await.expect("seen").expect("held");
    assert_eq!(seen.holders[0].holder, "bob", "it was granted, and nobody was told");
    let answer = waiting.await.expect("no panic");
    assert!(matches!(answer, Err(Error::Indeterminate { .. })), "{answer:?}");
}

/// Goal: every call of a request gets a lease id that works, also if the server forgot the first and the second came anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_calls_of_a_request_get_the_lease_after_a_flush() {
    let server = RedisServer::start(&[]);
    let (engine, direct) = (open(&server.url()).await, open(&server.url()).await);
    // At once, and after a heartbeat has told the first call of the new record.
    for (round, between) in [(0, 100), (1, 4500)] {
        let name = format!("seat-{round}");
        direct.acquire(claim(&name, "ada")).await.expect("granted");
        let wanted =
            Claim { request: Some(format!("request-{round}")), ..patient(&name, "bob", Duration::from_secs(60)) };
        let call = || {
            let (asked, wanted) = (engine.clone(), wanted.clone());
            tokio::spawn(async move { asked.acquire(wanted).await })
        };
        let first = call();
        pause(300).await;
        server.command(&["FLUSHALL"]);
        let ada = direct.acquire(claim(&name, "ada")).await.expect("granted");
        let second = call();
        pause(between).await;
        direct.release(&ada.lease_id).await.expect("released");
        for waiting in [first, second] {
            let grant = waiting.await.expect("no panic").expect("granted");
            let renewed = engine.renew(&grant.lease_id, None).await;
            assert!(renewed.is_ok(), "round {round}: {renewed:?}");
        }
    }
}

/// Goal: a renewal that arrives late does not shorten what a later one was promised, nor a relabel bring an old label back.
/// Method: the connections of now stand still, so that the first try is stuck, and a retry over a new one is answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_renewal_shortens_nothing() {
    let server = RedisServer::start(&[]);
    let proxy = Proxy::start(server.port());
    let (engine, direct) = (open_over(&proxy).await, open(&server.url()).await);
    let ada = engine.acquire(claim("seat", "ada")).await.expect("granted");
    let row = engine.acquire(claim("row", "ada")).await.expect("granted");
    proxy.stall_current(true);
    let (renewed, labelled) = tokio::join!(
        engine.renew(&ada.lease_id, Some(Duration::from_secs(2))),
        engine.relabel(&row.lease_id, "first"),
    );
    assert!(renewed.expect("renewed").remaining <= Duration::from_secs(2));
    labelled.expect("relabelled");
    let renewed = engine.renew(&ada.lease_id, Some(Duration::from_secs(60))).await.expect("renewed");
    assert!(renewed.remaining > Duration::from_secs(50), "{renewed:?}");
    engine.relabel(&row.lease_id, "second").await.expect("relabelled");
    proxy.stall_current(false);
    pause(500).await;
    let left = direct.inspect("seat").await.expect("seen").expect("held").holders[0].remaining;
    assert!(left > Duration::from_secs(50), "{left:?}");
    assert_eq!(direct.inspect("row").await.expect("seen").expect("held").holders[0].holder, "second");
    // A renewal by somebody who was handed the lease id is not late.
    let shorter = direct.renew(&ada.lease_id, Some(Duration::from_secs(3))).await.expect("renewed");
    assert!(shorter.remaining <= Duration::from_secs(3), "{shorter:?}");
    let longer = engine.renew(&ada.lease_id, Some(Duration::from_secs(60))).await.expect("renewed");
    assert!(longer.remaining > Duration::from_secs(50), "{longer:?}");
}

/// Goal: a release whose first try may have worked does not say "not held" when nothing is known of it any more.
/// Method: the reply is lost, and what is remembered of releases is overwritten before the retry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_may_have_worked_is_not_unknown() {
    let server = RedisServer::start(&[]);
    let proxy = Proxy::start(server.port());
    let (engine, direct) = (open_over(&proxy).await, open(&server.url()).await);
    let ada = engine.acquire(claim("seat", "ada")).await.expect("granted");
    proxy.swallow_replies(true);
    let (asked, lease) = (engine.clone(), ada.lease_id.clone());
    let releasing = tokio::spawn(async move { asked.release(&lease).await });
    pause(200).await;
    assert!(direct.inspect("seat").await.expect("seen").is_none(), "it was released, and nobody was told");
    server.command(&["DEL", "leasehold:z"]);
    proxy.swallow_replies(false);
    proxy.cut_all();
    let answer = releasing.await.expect("no panic");
    assert!(matches!(answer, Err(Error::Indeterminate { .. })), "{answer:?}");
    let again = direct.release(&ada.lease_id).await;
    assert!(matches!(again, Err(Error::Refused(Refusal::NotHeld))), "asked once: {again:?}");
}
