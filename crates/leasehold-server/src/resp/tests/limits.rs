//! Deadlines of a connection, by a manual clock, and limits of a front server.

use std::io::ErrorKind;
use std::time::Duration;

use leasehold::clock::SystemClock;
use leasehold::engine::embedded::{Embedded, Options};
use leasehold_core::Limits;

use super::super::RespConfig;
use super::client::RespClient;
use super::{ClockedServer, TestServer};
use crate::service::ServedEngine;
use crate::service::keys::KeyRing;

/// Whether the server has not hung up.
fn is_open(client: &RespClient) -> bool {
    client.stream.get_ref().set_nonblocking(true).unwrap();
    let peeked = client.stream.get_ref().peek(&mut [0; 1]);
    client.stream.get_ref().set_nonblocking(false).unwrap();
    matches!(peeked, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

/// Goal: a client without a first byte is disconnected after 5 s, with half a command after 10 s, neither before. An
/// idle client never is.
#[tokio::test(flavor = "multi_thread")]
async fn silence_and_half_a_command_are_cut_off_each_at_its_limit() {
    let clocked = ClockedServer::open(Duration::ZERO, true).await;
    tokio::task::block_in_place(|| {
        let (mut silent, mut half) = (clocked.server.connect(), clocked.server.connect());
        half.send(b"PIN");
        let mut idle = clocked.server.connect();
        // After the second reply the event loop has checked all deadlines at the present time.
        let mut looks = || (0..2).for_each(|_| assert_eq!(idle.ask(&["PING"]), "+PONG\r\n"));
        looks();
        clocked.clock.advance(Duration::from_secs(5));
        looks();
        assert!(is_open(&silent) && is_open(&half), "not early");
        // Deadlines are checked twice a second.
        clocked.clock.advance(Duration::from_millis(500));
        assert_eq!(silent.reply(), b"", "no first byte");
        clocked.clock.advance(Duration::from_millis(4500));
        looks();
        assert!(is_open(&half), "not early");
        clocked.clock.advance(Duration::from_millis(500));
        assert_eq!(half.reply(), b"", "half a command");
        clocked.clock.advance(Duration::from_secs(3600));
        looks();
        looks();
    });
    clocked.server.end().await;
}

/// Goal: a front server applies its own limits, whatever the engine behind it would allow.
#[tokio::test(flavor = "multi_thread")]
async fn a_front_server_has_limits_of_its_own() {
    let home = tempfile::tempdir().unwrap();
    let engine = Embedded::open(home.path().join("data"), Options::default()).await.unwrap();
    let limits = Limits { name_bytes: 8, ttl_ms: 10_000, resources_per_claim: 2, ..Limits::default() };
    let engine = ServedEngine::Other(engine, limits);
    let server = TestServer::over(home, engine, SystemClock::shared(), KeyRing::open(), RespConfig::default());
    tokio::task::block_in_place(|| {
        let mut client = server.connect();
        for line in [
            "LEASE ACQUIRE 1000 RESOURCES a-name-too-long",
            "LEASE ACQUIRE 60000 RESOURCES a",
            "LEASE ACQUIRE 1000 RESOURCES a b c",
        ] {
            let told = client.ask(&line.split(' ').collect::<Vec<_>>());
            assert!(told.starts_with("-INVALID "), "{line}: {told}");
        }
        let granted = client.ask(&["LEASE", "ACQUIRE", "9000", "RESOURCES", "a", "b"]);
        let lease = granted.lines().nth(2).unwrap().to_owned();
        let told = client.ask(&["LEASE", "RENEW", &lease, "TTL", "60000"]);
        assert!(told.starts_with("-INVALID "), "{granted} {told}");
    });
    server.end().await;
}
