//! The crate rslock, as it comes, against real servers.

use std::time::{Duration, Instant};

use leasehold_clients::Server;
use redis::Commands;
use rslock::{LockError, LockManager};

const LONG: Duration = Duration::from_secs(60);

fn manager(servers: &[Server]) -> LockManager {
    let mut manager = LockManager::new(servers.iter().map(Server::url).collect());
    manager.set_retry(1, Duration::from_millis(10));
    manager
}

fn plain(server: &Server) -> redis::Connection {
    redis::Client::open(server.url()).unwrap().get_connection().unwrap()
}

/// Goal: lock, refuse, extend and unlock over one server, with the 20 raw bytes that rslock takes for a value.
#[tokio::test]
async fn one_server() {
    let servers = [Server::start("one")];
    let (ada, bob) = (manager(&servers), manager(&servers));
    let mut look = plain(&servers[0]);

    let lock = ada.lock("seat", LONG).await.unwrap();
    assert_eq!(lock.val.len(), 20);
    assert_eq!(look.get::<_, Vec<u8>>("seat").unwrap(), lock.val);
    assert!(matches!(bob.lock("seat", LONG).await, Err(LockError::Unavailable)));
    assert!(!ada.is_freed(&lock).await.unwrap());

    let lock = ada.extend(&lock, Duration::from_secs(90)).await.unwrap();
    let left: u64 = look.pttl("seat").unwrap();
    assert!((60_001..=90_000).contains(&left), "{left}");

    ada.unlock(&lock).await;
    assert!(!look.exists::<_, bool>("seat").unwrap());
    assert!(matches!(ada.is_freed(&lock).await, Err(LockError::RedisKeyNotFound)));
    assert!(matches!(ada.extend(&lock, LONG).await, Err(LockError::Unavailable)));

    let next = bob.lock("seat", LONG).await.unwrap();
    ada.unlock(&lock).await;
    assert!(!bob.is_freed(&next).await.unwrap(), "a late unlock does not touch the next holder");
}

/// Goal: a guard waits until the lock lapses, never less, and gives it back.
#[tokio::test]
async fn a_guard_waits_for_a_lapse() {
    let servers = [Server::start("guard")];
    let (ada, bob) = (manager(&servers), manager(&servers));
    let began = Instant::now();
    ada.lock("seat", Duration::from_millis(400)).await.unwrap();
    let guard = bob.acquire("seat", LONG).await.unwrap();
    assert!(began.elapsed() >= Duration::from_millis(400));
    guard.release().await;
    ada.lock("seat", LONG).await.unwrap();
}

/// Goal: `using` extends in the background, well past the first ttl.
///
/// A machine that pauses for longer than the ttl loses the lock, and rightly so: then it is tried again.
#[tokio::test]
async fn using_extends() {
    let servers = [Server::start("using")];
    let ada = manager(&servers);
    let mut look = plain(&servers[0]);
    for _ in 0..5 {
        let began = Instant::now();
        let held = ada
            .using(b"seat", Duration::from_millis(1500), async || {
                tokio::time::sleep(Duration::from_millis(2500)).await;
                look.exists::<_, bool>("seat").unwrap()
            })
            .await;
        if began.elapsed() < Duration::from_millis(3000) {
            assert!(held.unwrap());
            assert!(!look.exists::<_, bool>("seat").unwrap());
            return;
        }
    }
    panic!("the machine paused in every one of five tries");
}

/// Goal: a majority of three goes on with one dead, and a server that was killed kept its part.
#[tokio::test]
async fn a_majority_of_three() {
    let mut servers = [Server::start("three-0"), Server::start("three-1"), Server::start("three-2")];
    let ada = manager(&servers);
    let lock = ada.lock("seat", LONG).await.unwrap();
    servers[0].restart();
    assert_eq!(plain(&servers[0]).get::<_, Vec<u8>>("seat").unwrap(), lock.val);
    servers[1].kill();
    let bob = manager(&servers);
    assert!(matches!(bob.lock("seat", LONG).await, Err(LockError::Unavailable)));
    let other = bob.lock("another seat", LONG).await.unwrap();
    bob.unlock(&other).await;
    assert!(!plain(&servers[2]).exists::<_, bool>("another seat").unwrap());
    servers[2].kill();
    assert!(bob.lock("a third seat", LONG).await.is_err());
    assert!(!plain(&servers[0]).exists::<_, bool>("a third seat").unwrap(), "the minority gave it back");
}
