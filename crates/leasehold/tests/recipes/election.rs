//! Elections on every kind of engine: one leader at a time, published, observed, handed over, taken over.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leasehold::recipe::election::Observer;
use leasehold::{Error, Leasehold};
use leasehold_harness::etcd::EtcdCluster;
use leasehold_harness::postgres::Cluster;
use leasehold_harness::redis::{DURABLE, RedisServer};
use leasehold_harness::redlock::RedisNodes;
use leasehold_harness::zookeeper::ZookeeperEnsemble;

const TTL: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(60);

/// What the observer tells next: the value, and whether a token came with it.
async fn told(observer: &mut Observer) -> Option<(String, Option<u64>)> {
    let next = tokio::time::timeout(PATIENCE, observer.next()).await.expect("told in time").unwrap();
    next.map(|leader| (leader.value, leader.token.map(leasehold::Token::get)))
}

/// Waits until the observer tells this leader; what it tells before that may be what was true before.
async fn told_at_last(observer: &mut Observer, value: Option<&str>) -> Option<u64> {
    let mut highest = None;
    loop {
        let seen = told(observer).await;
        let token = seen.as_ref().and_then(|(_, token)| *token);
        assert!(token.is_none() || token >= highest, "went back from {highest:?} to {token:?}");
        highest = highest.max(token);
        if seen.as_ref().map(|(value, _)| value.as_str()) == value {
            return token;
        }
    }
}

/// Goal: on this engine, two processes hand over by resigning and take over from one that died; a third one observes.
/// Method: a client each. Ada leads, proclaims and resigns; bob leads, and is dropped, so that its term lapses.
async fn elect_on(url: &str) {
    let open = async || Leasehold::open(url).await.unwrap();
    let (ada, bob, eve) = (open().await, open().await, open().await);
    let mut observer = eve.election("e").ttl(TTL).observe();
    assert_eq!(told(&mut observer).await, None, "{url}");

    let first = ada.election("e").value("ada").ttl(TTL).campaign().await.unwrap();
    let waiting = tokio::spawn(bob.election("e").value("bob").ttl(TTL).campaign());
    assert_eq!(told_at_last(&mut observer, Some("ada")).await, Some(first.token().get()));
    first.proclaim("ada:9001").await.unwrap();
    assert_eq!(told_at_last(&mut observer, Some("ada:9001")).await, Some(first.token().get()));
    assert!(!waiting.is_finished());
    assert!(first.run(async |term| term.is_safe()).await.unwrap());
    let old = first.token();
    assert!(first.resign().await.unwrap());

    let second = tokio::time::timeout(PATIENCE, waiting).await.expect("handed over").unwrap().unwrap();
    assert!(second.token() > old);
    assert_eq!(told_at_last(&mut observer, Some("bob")).await, Some(second.token().get()));
    let taken = second.token();
    drop(second);
    let third = tokio::time::timeout(PATIENCE, ada.election("e").value("cleo").ttl(TTL).campaign()).await;
    let third = third.expect("taken over").unwrap();
    assert!(third.token() > taken);
    assert_eq!(told_at_last(&mut observer, Some("cleo")).await, Some(third.token().get()));
    third.resign().await.unwrap();
    assert_eq!(told_at_last(&mut observer, None).await, None);
    for client in [ada, bob, eve] {
        client.close().await.unwrap();
    }
}

#[tokio::test]
async fn elections_on_etcd() {
    let cluster = EtcdCluster::start(1);
    elect_on(&cluster.url()).await;
}

#[tokio::test]
async fn elections_on_zookeeper() {
    let ensemble = ZookeeperEnsemble::start(1);
    elect_on(&ensemble.url("elections")).await;
}

#[tokio::test]
async fn elections_on_redis() {
    let server = RedisServer::start(DURABLE);
    elect_on(&server.url()).await;
}

#[tokio::test]
async fn elections_on_postgres() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    elect_on(&cluster.url(&database)).await;
}

/// Goal: an engine without fencing has leaders without a token, says so to who wants one, and what to do instead of
/// proclaiming.
#[tokio::test]
async fn elections_on_redlock_have_no_token() {
    // Nodes that have just started do not vote for a while: the campaign goes on.
    let nodes = RedisNodes::start(3, &[]);
    let client = Leasehold::open(&nodes.url("?quarantine=6s")).await.unwrap();
    let refused = client.election("e").campaign().await.unwrap_err();
    assert!(matches!(&refused, Error::Invalid(why) if why.contains("campaign_unfenced()")), "{refused}");
    let leader = client.election("e").value("ada").ttl(TTL).campaign_unfenced().await.unwrap();
    let mut observer = client.election("e").ttl(TTL).observe();
    assert_eq!(told(&mut observer).await, Some(("ada".into(), None)));
    let refused = leader.proclaim("ada:9001").await.unwrap_err();
    assert!(matches!(&refused, Error::Invalid(why) if why.contains("resign, and campaign")), "{refused}");
    assert!(leader.resign().await.unwrap());
    assert_eq!(told(&mut observer).await, None);
}

/// Goal: the figure: a resignation is followed by the next leader in less than 50 ms, with eight campaigners on the
/// embedded engine; never two at once, and an observer that never goes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hand_over_on_resign_is_quick() {
    const CAMPAIGNERS: usize = 8;
    const TERMS: usize = 50;
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let leasehold = Leasehold::open(&format!("embedded:{}", dir.path().display())).await.unwrap();
    let leading = Arc::new(AtomicUsize::new(0));
    let resigned: Arc<std::sync::Mutex<Option<Instant>>> = Arc::default();
    let gaps: Arc<std::sync::Mutex<Vec<Duration>>> = Arc::default();
    let mut observer = leasehold.election("chair").observe();
    let watching = tokio::spawn(async move {
        let mut highest = None;
        let mut seen = 0;
        loop {
            let token = observer.next().await.unwrap().and_then(|leader| leader.token);
            assert!(token.is_none() || token >= highest, "went back from {highest:?} to {token:?}");
            highest = highest.max(token);
            seen += 1;
            if seen > 2 && token.is_none() && highest.is_some_and(|token| token.get() >= (CAMPAIGNERS * TERMS) as u64) {
                return seen;
            }
        }
    });
    let campaigns: Vec<_> = (0..CAMPAIGNERS)
        .map(|number| {
            let (leasehold, leading) = (leasehold.clone(), leading.clone());
            let (resigned, gaps) = (resigned.clone(), gaps.clone());
            tokio::spawn(async move {
                for _ in 0..TERMS {
                    let leader = leasehold.election("chair").value(number.to_string()).campaign().await.unwrap();
                    let began = Instant::now();
                    assert_eq!(leading.fetch_add(1, Ordering::SeqCst), 0, "two lead at once");
                    if let Some(before) = resigned.lock().unwrap().take() {
                        gaps.lock().unwrap().push(began - before);
                    }
                    leader.run(async |_| tokio::time::sleep(Duration::from_millis(1)).await).await.unwrap();
                    assert_eq!(leading.fetch_sub(1, Ordering::SeqCst), 1);
                    *resigned.lock().unwrap() = Some(Instant::now());
                    leader.resign().await.unwrap();
                }
            })
        })
        .collect();
    for campaign in campaigns {
        campaign.await.unwrap();
    }
    let seen = tokio::time::timeout(PATIENCE, watching).await.expect("the observer comes to the end").unwrap();
    let mut gaps = gaps.lock().unwrap().clone();
    gaps.sort();
    let at = |percent: usize| gaps[(gaps.len() - 1) * percent / 100];
    println!("{} hand-overs: p50 {:?}, p99 {:?}, max {:?}; {seen} told", gaps.len(), at(50), at(99), at(100));
    assert_eq!(gaps.len(), CAMPAIGNERS * TERMS - 1);
    assert!(at(50) < Duration::from_millis(50), "{:?}", at(50));
    leasehold.close().await.unwrap();
}
