//! Leases on several engines: one order for all, and nothing left after a no.

use std::time::Duration;

use leasehold::recipe::several::SeveralEngines;
use leasehold::{Error, Leasehold, Refusal};
use leasehold_harness::redis::{DURABLE, RedisServer};
use leasehold_harness::redlock::RedisNodes;

struct Places {
    _dirs: [tempfile::TempDir; 2],
    clients: Vec<(String, Leasehold)>,
    _server: RedisServer,
}

impl Places {
    /// Two directories and a Redis server.
    async fn open() -> Self {
        let dirs = [(); 2].map(|()| tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
        let server = RedisServer::start(DURABLE);
        let mut urls: Vec<String> = dirs.iter().map(|dir| format!("embedded:{}", dir.path().display())).collect();
        urls.push(server.url());
        let mut clients = Vec::new();
        for url in urls {
            clients.push((url.clone(), Leasehold::open(&url).await.unwrap()));
        }
        Self { _dirs: dirs, clients, _server: server }
    }

    /// One lease of this name on each, asked for in this order.
    fn all(&self, order: [usize; 3], name: &str) -> SeveralEngines {
        order.into_iter().fold(SeveralEngines::new(), |all, place| {
            let (url, client) = &self.clients[place];
            all.lease(url, client, name)
        })
    }

    async fn held(&self, name: &str) -> usize {
        let mut held = 0;
        for (_, client) in &self.clients {
            held += usize::from(client.inspect(name).await.unwrap().is_some());
        }
        held
    }
}

/// Goal: law 1: everybody takes them in the same order, whatever order they were named in, so nobody blocks anybody
/// for ever.
/// Method: tasks that name them in different orders, each many times; with another order for each this would deadlock
/// until the wait is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn different_orders_do_not_deadlock() {
    let places = std::sync::Arc::new(Places::open().await);
    let orders = [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1]];
    let inside = std::sync::Arc::new(tokio::sync::Mutex::new(()));
    let tasks: Vec<_> = orders
        .map(|order| {
            let (places, inside) = (places.clone(), inside.clone());
            tokio::spawn(async move {
                let mut taken = Vec::new();
                for _ in 0..25 {
                    let set = places.all(order, "x").wait(Duration::from_secs(30)).acquire_all_fenced().await.unwrap();
                    let alone = inside.try_lock().expect("nobody else has all of them");
                    assert_eq!((set.leases().len(), set.is_atomic(), set.is_live()), (3, false, true));
                    taken.push(set.leases()[0].token());
                    drop(alone);
                    set.release().await.unwrap();
                }
                assert!(taken.windows(2).all(|pair| pair[0] < pair[1]), "tokens rise on each engine");
            })
        })
        .into_iter()
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(places.held("x").await, 0);
}

/// Goal: law 3: after a no nothing is held, wherever the no comes from.
#[tokio::test]
async fn a_no_leaves_nothing_held() {
    let places = Places::open().await;
    for (url, client) in &places.clients {
        let other = client.acquire("x").holder("other").await.unwrap();
        let error = places.all([0, 1, 2], "x").wait(Duration::from_millis(50)).acquire_all().await.unwrap_err();
        assert!(matches!(error, Error::Refused(Refusal::Held { .. })), "{url}: {error}");
        assert_eq!(places.held("x").await, 1, "only the other's");
        other.release().await.unwrap();
    }
}

/// Goal: law 2: names on one engine are one claim, by whatever URL it was named, and that is atomic.
#[tokio::test]
async fn names_on_one_engine_are_one_claim() {
    let places = Places::open().await;
    let (url, client) = &places.clients[0];
    let both = SeveralEngines::new().lease(url, client, "b").lease("another name of it", client, "a");
    let set = both.acquire_all_fenced().await.unwrap();
    assert_eq!((set.leases().len(), set.is_atomic()), (1, true));
    assert_eq!(set.leases()[0].resources(), ["a", "b"]);
    set.release().await.unwrap();
    let nothing = SeveralEngines::new().acquire_all().await.unwrap_err();
    assert!(matches!(nothing, Error::Invalid(_)), "{nothing}");
}

/// Goal: a set is lost with its first lease; an engine without tokens refuses a fenced set and leaves nothing behind.
#[tokio::test]
async fn a_set_is_lost_with_its_first_lease() {
    let places = Places::open().await;
    let set = places.all([0, 1, 2], "x").ttl(Duration::from_secs(6)).acquire_all().await.unwrap();
    assert!(places.clients[1].1.revoke("x", "a drill").await.unwrap() == 1);
    let lost = tokio::time::timeout(Duration::from_secs(20), set.lost()).await.expect("told");
    assert_eq!(lost, leasehold::Lost::Stale);
    assert!(!set.is_live());
    assert!(set.release().await.is_err(), "one of them was gone");
    assert_eq!(places.held("x").await, 0);

    let nodes = RedisNodes::start(3, &[]);
    let url = nodes.url("?quarantine=7s");
    let redlock = Leasehold::open(&url).await.unwrap();
    let mixed = places.all([0, 1, 2], "x").ttl(Duration::from_secs(6)).lease(&url, &redlock, "x");
    let refused = mixed.clone().acquire_all_fenced().await.unwrap_err();
    assert!(matches!(refused, Error::Invalid(_)), "{refused}");
    assert_eq!(places.held("x").await, 0);
    let set = loop {
        match mixed.clone().acquire_all().await {
            Ok(set) => break set,
            // Nodes that have just started do not vote for a while.
            Err(Error::Unavailable { .. }) => assert_eq!(places.held("x").await, 0),
            Err(error) => panic!("{error}"),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    assert_eq!(set.leases().len(), 4);
    assert!(nodes.holding("x") >= 2, "a majority");
    set.release().await.unwrap();
}
