//! The remote engine behind a proxy that breaks its connections to a real server.

#[path = "served/proxy.rs"]
mod proxy;
mod served;

use std::future::Future;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use leasehold::clock::{Clock, SystemClock};
use leasehold::engine::remote::{Options, Remote};
use leasehold::engine::{Claim, Engine, Event, EventKind, Grant, Mode, Query, Resource, Seen, Want, Watch};
use leasehold::{Error, Refusal};
use proxy::{Door, Fault, Proxy};
use served::Server;

/// Longer than anybody looks: what is free again before this was given back.
const HOUR: Duration = Duration::from_secs(3600);
/// Longer than anything here should take, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(40);

/// A server, the proxy before it, a client behind the proxy, and one that goes straight to the server.
struct Site {
    server: Server,
    proxy: Proxy,
    client: Arc<Remote>,
    straight: Arc<Remote>,
}

impl Site {
    async fn new() -> Self {
        let server = Server::start();
        let proxy = Proxy::before(server.at()).await;
        let (client, straight) = (open(&proxy.url()).await, open(&server.url()).await);
        Self { server, proxy, client, straight }
    }

    /// What the server knows of a resource.
    async fn seen(&self, name: &str) -> Option<Resource> {
        self.straight.inspect(name).await.expect("the server answers")
    }

    async fn queue(&self, name: &str) -> usize {
        self.seen(name).await.map_or(0, |seen| seen.queue_len)
    }

    /// The seat is this lease's, and then nobody's.
    async fn is_the_only_effect(&self, grant: &Grant, what: &str) {
        let seen = self.seen("seat").await.unwrap_or_else(|| panic!("{what}: nobody has the seat"));
        let [holding] = &seen.holders[..] else { panic!("{what}: {seen:?}") };
        assert_eq!(holding.token, grant.token, "{what}");
        assert!(self.straight.release(&grant.lease_id).await.expect("the server answers"), "{what}");
        assert_eq!(self.seen("seat").await, None, "{what}");
    }
}

async fn open(url: &str) -> Arc<Remote> {
    Remote::open(Options::from_url(url).expect("a url")).await.expect("the server answers")
}

fn claim(holder: &str, wait: Duration) -> Claim {
    Claim {
        wants: vec![Want { name: "seat".into(), mode: Mode::Exclusive }],
        ttl: HOUR,
        wait,
        max_hold: None,
        delay: Duration::ZERO,
        holder: holder.into(),
        request: None,
        principal: String::new(),
    }
}

async fn pause(span: Duration) {
    SystemClock.sleep_until(SystemClock.now().plus(span)).await;
}

async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let end = SystemClock.now().plus(PATIENCE);
    while !is_so().await {
        assert!(SystemClock.now() < end, "waited in vain until {what}");
        pause(Duration::from_millis(5)).await;
    }
}

/// Looks at it once.
async fn poll_once<T>(mut future: std::pin::Pin<&mut (impl Future<Output = T> + ?Sized)>) -> Option<T> {
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// Goal: an acquire whose connection is lost anywhere has one effect, and its caller learns of it.
/// Method: cut the connection after every number of bytes of the request, and of the reply. Tokens count grants: each
/// acquire must take exactly one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_cut_at_every_byte_has_one_effect() {
    let site = Site::new().await;
    let mut last = None;
    let (mut asked, mut answered) = (0, 0);
    // A request is some 130 bytes and a reply some 60; the last rounds cut nothing of it.
    let faults = (0..160).map(Fault::CutAsked).chain((0..90).map(Fault::CutAnswered));
    for fault in faults {
        let before = site.proxy.accepted();
        site.proxy.order(fault);
        let grant = site.client.acquire(claim("ada", Duration::ZERO)).await;
        let grant = grant.unwrap_or_else(|error| panic!("{fault:?}: {error:?}"));
        let token = grant.token.expect("the server has tokens").get();
        if let Some(last) = last {
            assert_eq!(token, last + 1, "{fault:?}: one acquire took more than one grant");
        }
        last = Some(token);
        let cut = site.proxy.accepted() > before;
        match fault {
            Fault::CutAsked(_) => asked += usize::from(cut),
            _ => answered += usize::from(cut),
        }
        site.is_the_only_effect(&grant, &format!("{fault:?}")).await;
        site.proxy.cut_all();
    }
    assert!(asked > 100 && answered > 40, "the connection was really cut: {asked} and {answered} times");
}

/// Goal: without an answer and without a way to ask again, nobody says yes or no, and "nothing was changed" is true.
/// Method: cut at several places and let nobody through afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_known_is_indeterminate() {
    let mut tried = Vec::new();
    for fault in [Fault::CutAsked(0), Fault::CutAsked(40), Fault::CutAnswered(0), Fault::CutAnswered(20)] {
        tried.push(tokio::spawn(async move {
            let site = Site::new().await;
            site.proxy.order(fault);
            site.proxy.door(Door::Closed);
            let answer = site.client.acquire(claim("ada", Duration::ZERO)).await;
            match (&answer, site.seen("seat").await) {
                (Err(Error::Indeterminate { .. }), _) | (Err(Error::Unavailable { .. }), None) => {}
                (answer, seen) => panic!("{fault:?}: {answer:?} while the server has {seen:?}"),
            }
            let server_acted = matches!(fault, Fault::CutAnswered(_));
            assert_eq!(
                site.seen("seat").await.is_some(),
                server_acted,
                "{fault:?}: the fault is the one that was meant"
            );
            // And what never was sent is Unavailable.
            let answer = site.client.acquire(claim("bob", Duration::ZERO)).await;
            assert!(matches!(answer, Err(Error::Unavailable { .. })), "{answer:?}");
            let answer = site.client.inspect("seat").await;
            assert!(matches!(answer, Err(Error::Unavailable { .. })), "{answer:?}");
        }));
    }
    for tried in tried {
        tried.await.expect("no panic");
    }
}

/// Goal: a server that takes requests and says nothing is given up, and asked again with one effect.
/// Method: silence after the request was carried, and in the middle of the reply.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silence_is_given_up_and_asked_again() {
    let site = Site::new().await;
    for bytes in [0, 20] {
        // So that there is a connection that the order is for.
        assert_eq!(site.client.inspect("seat").await.expect("the server answers"), None);
        site.proxy.order(Fault::Silence(bytes));
        let began = SystemClock.now();
        let grant = site.client.acquire(claim("ada", Duration::ZERO)).await.expect("the second try is heard");
        assert!(SystemClock.now().since(began) >= Duration::from_secs(5), "the fault is the one that was meant");
        site.is_the_only_effect(&grant, "silence").await;
    }
}

/// Goal: a lost reply to a renew or a release is asked for again; to a revoke it is not.
/// Method: cut after the request was carried. The successor of a revoked holder must not be revoked too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_be_repeated_is_and_what_may_not_is_not() {
    let site = Site::new().await;
    let grant = site.client.acquire(claim("ada", Duration::ZERO)).await.expect("it is free");
    site.proxy.order(Fault::CutAnswered(0));
    let renewal = site.client.renew(&grant.lease_id, None).await.expect("it is asked again");
    assert!(renewal.remaining > HOUR / 2);
    site.proxy.order(Fault::CutAnswered(0));
    site.client.release(&grant.lease_id).await.expect("it is asked again");
    assert_eq!(site.seen("seat").await, None);

    site.straight.acquire(claim("ada", Duration::ZERO)).await.expect("it is free");
    let successor = site.straight.clone();
    let successor = tokio::spawn(async move { successor.acquire(claim("bob", HOUR)).await });
    until("bob stands in line", async || site.queue("seat").await == 1).await;
    site.proxy.order(Fault::CutAnswered(0));
    let answer = site.client.revoke("seat", "a burst pipe").await;
    assert!(matches!(answer, Err(Error::Indeterminate { .. })), "{answer:?}");
    let bob = successor.await.expect("no panic").expect("bob is served");
    assert!(site.straight.renew(&bob.lease_id, None).await.is_ok(), "bob was not revoked");
}

/// Goal: an acquire that is dropped leaves no lease, also when its connection is lost at that moment.
/// Method: the reply is cut off, or never comes; the future is dropped while it waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_acquire_on_a_lost_connection_leaves_no_lease() {
    let site = Site::new().await;
    for (fault, wait) in [Fault::CutAnswered(0), Fault::Silence(0)]
        .into_iter()
        .flat_map(|fault| [(fault, Duration::ZERO), (fault, HOUR)])
    {
        // So that the waiting acquire finds a connection that the order is for.
        let warm = site.client.acquire(claim("ada", HOUR)).await.expect("it is free");
        site.straight.release(&warm.lease_id).await.expect("the server answers");
        site.proxy.order(fault);
        let mut acquire = site.client.acquire(claim("ada", wait));
        assert!(poll_once(acquire.as_mut()).await.is_none(), "it takes a while");
        until("the server has granted it", async || site.seen("seat").await.is_some()).await;
        drop(acquire);
        until("it was given back", async || site.seen("seat").await.is_none()).await;
    }
}

/// Goal: the same when the caller goes while the acquire comes back to ask again, or when the server cannot be reached at
/// that moment.
/// Method: the first reply is cut off, and the door is held or closed before the acquire comes again; its caller goes, and
/// the door opens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_acquire_that_was_about_to_ask_again_leaves_no_lease() {
    let site = Site::new().await;
    for (door, wait) in [Door::Held, Door::Closed].into_iter().flat_map(|door| [(door, Duration::ZERO), (door, HOUR)]) {
        let warm = site.client.acquire(claim("ada", HOUR)).await.expect("it is free");
        site.client.release(&warm.lease_id).await.expect("the server answers");
        site.proxy.order(Fault::CutAnswered(0));
        site.proxy.door(door);
        let came = site.proxy.came();
        let mut acquire = site.client.acquire(claim("ada", wait));
        assert!(poll_once(acquire.as_mut()).await.is_none(), "it takes a while");
        until("the server has granted it", async || site.seen("seat").await.is_some()).await;
        until("it comes again", async || site.proxy.came() > came).await;
        drop(acquire);
        if door == Door::Closed {
            let before = site.proxy.came();
            until("it was turned away", async || site.proxy.came() > before).await;
        }
        site.proxy.door(Door::Open);
        until("it was given back", async || site.seen("seat").await.is_none()).await;
    }
}

/// Goal: the same in a crowd that the server does not show whole: who gave up is not left among those it hides.
/// Method: more readers than are shown came before; then the reply to one more is cut off, and its caller goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_acquire_in_a_crowd_leaves_no_lease() {
    let site = Site::new().await;
    let shared = |holder: &str, wait| Claim {
        wants: vec![Want { name: "hall".into(), mode: Mode::Shared }],
        ..claim(holder, wait)
    };
    let crowd = 1001;
    for _ in 0..crowd {
        site.straight.acquire(shared("reader", Duration::ZERO)).await.expect("there is room");
    }
    let total = async || site.seen("hall").await.map_or(0, |seen| seen.holders_total);
    assert_eq!(total().await, crowd);
    assert!(site.seen("hall").await.is_some_and(|seen| seen.holders.len() < crowd), "not all are shown");
    // So that there is a connection that the order is for.
    site.client.inspect("hall").await.expect("the server answers");
    site.proxy.order(Fault::Silence(0));
    let mut acquire = site.client.acquire(shared("ada", Duration::ZERO));
    assert!(poll_once(acquire.as_mut()).await.is_none(), "it takes a while");
    until("the server has granted it", async || total().await == crowd + 1).await;
    drop(acquire);
    until("it was given back", async || total().await == crowd).await;
}

/// Goal: with the caller's own request id the lease stays, and a retry finds it.
/// Method: the same drop; then the same id again, from another client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drop_with_a_request_id_leaves_the_lease_for_the_retry() {
    let site = Site::new().await;
    let mine = Claim { request: Some("order 7".into()), ..claim("ada", Duration::ZERO) };
    // The answer never comes: else it could be there before it is looked for. A claim with an id of its caller has a
    // connection of its own: one of that kind must be there for the order, since later ones are sound.
    let before = Want { name: "another seat".into(), mode: Mode::Exclusive };
    let before = Claim { wants: vec![before], request: Some("order 6".into()), ..claim("ada", Duration::ZERO) };
    site.client.acquire(before).await.expect("it is free");
    site.proxy.order(Fault::Silence(0));
    let mut acquire = site.client.acquire(mine.clone());
    assert!(poll_once(acquire.as_mut()).await.is_none(), "it takes a while");
    until("the server has granted it", async || site.seen("seat").await.is_some()).await;
    drop(acquire);
    site.client.close().await.expect("it closes");
    let token = site.seen("seat").await.expect("it stays").holders[0].token;
    let retry = site.straight.acquire(mine).await.expect("the retry finds it");
    assert_eq!(retry.token, token);
    site.is_the_only_effect(&retry, "after the retry").await;
}

/// Goal: who waits goes on waiting over a lost connection, and over a server that is killed and started again.
/// Method: ada holds, bob waits; cut bob off, then kill the server; ada releases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_survives_lost_connections_and_a_restart() {
    let mut site = Site::new().await;
    let ada = site.straight.acquire(claim("ada", Duration::ZERO)).await.expect("it is free");
    let bob = site.client.clone();
    let bob = tokio::spawn(async move { bob.acquire(claim("bob", PATIENCE)).await });
    until("bob stands in line", async || site.queue("seat").await == 1).await;
    site.proxy.cut_all();
    let connections = site.proxy.accepted();
    until("bob has come again", async || site.proxy.accepted() > connections && site.queue("seat").await == 1).await;
    site.server.kill();
    site.server.start_again();
    until("bob stands in line again", async || site.queue("seat").await == 1).await;
    site.straight.release(&ada.lease_id).await.expect("the lease has survived");
    let bob = bob.await.expect("no panic").expect("bob is served");
    site.is_the_only_effect(&bob, "bob's").await;
}

/// Goal: a waiter who goes away leaves the line, long before its patience would end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_who_goes_leaves_the_line() {
    let site = Site::new().await;
    site.straight.acquire(claim("ada", Duration::ZERO)).await.expect("it is free");
    let mut bob = site.client.acquire(claim("bob", HOUR));
    assert!(poll_once(bob.as_mut()).await.is_none());
    until("bob stands in line", async || site.queue("seat").await == 1).await;
    drop(bob);
    until("nobody stands in line", async || site.queue("seat").await == 0).await;
}

/// Goal: a repeat of a claim that waits blocks nobody: not the connection that others share.
/// Method: the claim in line, its repeat without a wait, and a renewal that must not take as long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeat_of_one_who_waits_keeps_nobody_waiting() {
    let site = Site::new().await;
    site.straight.acquire(claim("eve", Duration::ZERO)).await.expect("it is free");
    let other =
        Claim { wants: vec![Want { name: "row".into(), mode: Mode::Exclusive }], ..claim("bob", Duration::ZERO) };
    let other = site.client.acquire(other).await.expect("it is free");
    let waits = Claim { request: Some("r".into()), ..claim("ada", HOUR) };
    let first = tokio::spawn({
        let (client, waits) = (site.client.clone(), waits.clone());
        async move { client.acquire(waits).await }
    });
    until("the claim is in line", async || site.queue("seat").await == 1).await;
    let repeat = tokio::spawn({
        let client = site.client.clone();
        async move { client.acquire(Claim { wait: Duration::ZERO, ..waits }).await }
    });
    // It has had the time to be sent, and others go on all the while.
    for _ in 0..20 {
        pause(Duration::from_millis(25)).await;
        let began = SystemClock.now();
        site.client.renew(&other.lease_id, None).await.expect("it is held");
        let took = SystemClock.now().since(began);
        assert!(took < Duration::from_secs(3), "a renewal took {took:?}");
    }
    assert!(!first.is_finished() && !repeat.is_finished(), "both are in line");
    first.abort();
    repeat.abort();
}

/// Goal: however many wait through one engine, what is free is had at once, and nobody waits longer than they said.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_that_waits_keeps_nobody_from_what_is_free() {
    const CROWD: usize = 512;
    let site = Site::new().await;
    site.straight.acquire(claim("eve", Duration::ZERO)).await.expect("it is free");
    let crowd: Vec<_> = (0..CROWD)
        .map(|_| {
            let client = site.client.clone();
            tokio::spawn(async move { client.acquire(claim("ada", HOUR)).await })
        })
        .collect();
    until("all are in line", async || site.queue("seat").await == CROWD).await;
    let free = Claim { wants: vec![Want { name: "row".into(), mode: Mode::Exclusive }], ..claim("bob", HOUR) };
    let granted = tokio::time::timeout(PATIENCE, site.client.acquire(free)).await.expect("nobody waits for the crowd");
    let granted = granted.expect("it is free");
    site.client.release(&granted.lease_id).await.expect("it is held");
    let named = Claim {
        wants: vec![Want { name: "row".into(), mode: Mode::Exclusive }],
        request: Some("r".into()),
        ..claim("bob", Duration::ZERO)
    };
    site.client.acquire(named).await.expect("it is free again");
    let held = site.client.acquire(claim("cyd", Duration::from_millis(200)));
    let held = tokio::time::timeout(PATIENCE, held).await.expect("as long as was said");
    assert!(matches!(held, Err(Error::Refused(Refusal::Held { .. }))), "{held:?}");
    crowd.iter().for_each(tokio::task::JoinHandle::abort);
}

/// Goal: a watch over a connection that is lost tells everything once, in order, and without a reset.
/// Method: cut it between grants, and in the middle of a message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_has_no_gap_over_lost_connections() {
    let site = Site::new().await;
    let mut watch = site.client.watch(None).await.expect("it watches");
    let first = watch.next().await.expect("it is told where it begins");
    assert!(matches!(first, Seen::Reset(_)), "{first:?}");
    for round in 0..20 {
        match round % 4 {
            1 => site.proxy.cut_all(),
            3 => site.proxy.order(Fault::CutAnswered(round * 7)),
            _ => {}
        }
        let grant = site.straight.acquire(claim("ada", Duration::ZERO)).await.expect("it is free");
        site.straight.release(&grant.lease_id).await.expect("the server answers");
        let got: Vec<_> = told(&mut watch, 2).await.iter().map(|event| (event.kind, event.token)).collect();
        assert_eq!(got, [(EventKind::Granted, grant.token), (EventKind::Released, grant.token)], "round {round}");
    }
    assert!(site.proxy.accepted() > 5, "the connection was really cut");
}

/// So many events, and no reset among them.
async fn told(watch: &mut Watch, count: usize) -> Vec<Event> {
    let mut events = Vec::new();
    while events.len() < count {
        match tokio::time::timeout(PATIENCE, watch.next()).await.expect("events come in time") {
            Ok(Seen::Events(more)) => events.extend(more),
            other => panic!("after {} events: {other:?}", events.len()),
        }
    }
    events
}

/// Goal: a restart of the server is a gap, and is told as one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_over_a_restart_says_reset() {
    let mut site = Site::new().await;
    let mut watch = site.straight.watch(None).await.expect("it watches");
    assert!(matches!(watch.next().await, Ok(Seen::Reset(_))));
    site.straight.acquire(claim("ada", Duration::ZERO)).await.expect("it is free");
    assert_eq!(told(&mut watch, 1).await[0].kind, EventKind::Granted);
    site.server.kill();
    site.server.start_again();
    let seen = tokio::time::timeout(PATIENCE, watch.next()).await.expect("it is told in time");
    assert!(matches!(seen, Ok(Seen::Reset(_))), "{seen:?}");
    assert_eq!(site.straight.revoke("seat", "a burst pipe").await.expect("the server answers"), 1);
    assert_eq!(told(&mut watch, 1).await[0].kind, EventKind::Revoked);
}

/// Goal: a lot of calls at once share connections, and each has its own answer.
/// Method: 200 acquires on 50 names, half of them waiting, each released; beside them a list.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_calls_at_once_get_their_own_answers() {
    let site = Site::new().await;
    let mut calls = Vec::new();
    for n in 0..200 {
        let client = site.client.clone();
        calls.push(tokio::spawn(async move {
            let wait = if n % 2 == 0 { Duration::ZERO } else { PATIENCE };
            let name = format!("seat {}", n % 50);
            let wants = vec![Want { name: name.clone(), mode: Mode::Exclusive }];
            match client.acquire(Claim { wants, ..claim(&format!("caller {n}"), wait) }).await {
                Ok(grant) => {
                    let seen = client.inspect(&name).await.expect("the server answers").expect("it is held");
                    assert_eq!((seen.name, seen.holders[0].token), (name, grant.token));
                    assert!(client.release(&grant.lease_id).await.expect("the server answers"));
                }
                Err(Error::Refused(Refusal::Held { resource, .. })) => {
                    assert_eq!((resource, wait), (name, Duration::ZERO));
                }
                Err(other) => panic!("{other:?}"),
            }
        }));
    }
    for call in calls {
        call.await.expect("no panic");
    }
    let all = Query { prefix: String::new(), after: None, limit: 1000 };
    assert_eq!(site.client.list(all).await.expect("the server answers"), []);
    assert!(site.proxy.accepted() <= 102, "calls share connections: {}", site.proxy.accepted());
}
