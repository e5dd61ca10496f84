//! Clients that hang up: they leave the wait queue within a second. A lease that they never learnt of ends with its
//! ttl.
//!
//! The server has a manual clock that only the tests move. So no law here depends on how busy the machine is.

use std::io::Write;
use std::net::Shutdown;
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;

use futures_util::FutureExt as _;

use super::client::{RespClient, command};
use super::pipeline::SeededRandom;
use super::{ClockedServer, wait_until};

/// Longer than any test moves the clock.
const ONE_HOUR_MS: &str = "3600000";
/// The ttl of a lease that is to lapse.
const SHORT_TTL: Duration = Duration::from_secs(60);

impl ClockedServer {
    /// How many acquires have ended because their client left.
    fn left(&self) -> u64 {
        let caller = self.server.service.anonymous_caller(crate::service::PeerAddress(self.server.address)).unwrap();
        // Without a box office the future is ready at once.
        let page = self.server.service.metrics(&caller).now_or_never().unwrap().unwrap();
        let line = page.lines().find_map(|line| line.strip_prefix("leasehold_acquire_total{outcome=\"left\"} "));
        line.unwrap().parse().unwrap()
    }
}

/// The lease id and the token of a grant.
#[track_caller]
fn granted(reply: &[u8]) -> (String, u64) {
    let text = std::str::from_utf8(reply).unwrap();
    let lines: Vec<&str> = text.split("\r\n").collect();
    assert_eq!(lines[0], "*3", "a grant, not {text:?}");
    (lines[2].to_owned(), lines[3][1..].parse().unwrap())
}

fn take(client: &mut RespClient, name: &str, ttl: &str) -> (String, u64) {
    granted(client.ask(&["LEASE", "ACQUIRE", ttl, "RESOURCES", name]).as_bytes())
}

/// Sends an acquire of a name that is held, which waits for an hour.
fn wait_for(client: &mut RespClient, name: &str, ttl: &str, more: &[&str]) {
    client.send(&command(&[&["LEASE", "ACQUIRE", ttl, "WAIT", ONE_HOUR_MS], more, &["RESOURCES", name]].concat()));
}

fn queue(client: &mut RespClient, name: &str) -> u64 {
    let reply = client.ask(&["LEASE", "GET", name]);
    reply.trim_end().rsplit("\r\n").next().and_then(|last| last.strip_prefix(':')?.parse().ok()).unwrap_or(0)
}

fn is_free(client: &mut RespClient, name: &str) -> bool {
    client.ask(&["EXISTS", name]) == ":0\r\n"
}

/// Hangs up in this way. Returns the client if its socket is only half closed.
fn hang_up(mut client: RespClient, way: &str) -> Option<RespClient> {
    let reset = |client: &RespClient| set_socket_linger(client.stream.get_ref(), Some(Duration::ZERO)).unwrap();
    match way {
        "close" => {}
        "reset" => reset(&client),
        "half-close" => client.stream.get_ref().shutdown(Shutdown::Write).unwrap(),
        // More than the server reads. It must notice the hang-up without reading.
        "full of input, then reset" => {
            client.stream.get_ref().set_nonblocking(true).unwrap();
            while client.stream.get_mut().write(&[b'\n'; 65_536]).is_ok() {}
            reset(&client);
        }
        // A little more than the server reads while the command waits, so that it does not read to the end. Not more:
        // if the receive buffer of its socket is full, the end does not reach it at all.
        "much behind, then half-close" => {
            client.stream.get_mut().write_all(&[b'\n'; (1 << 20) + (65 << 10)]).unwrap();
            client.stream.get_ref().shutdown(Shutdown::Write).unwrap();
        }
        _ => panic!("no such way: {way}"),
    }
    way.contains("half-close").then_some(client)
}

const WAYS_TO_HANG_UP: [&str; 5] =
    ["close", "reset", "half-close", "full of input, then reset", "much behind, then half-close"];

/// Goal: a client that hangs up leaves the wait queue within a second, however it hangs up, inline or in a task.
/// Method: all would wait for an hour. The clock moves by less than a second after each hang-up, and at no other time.
#[tokio::test(flavor = "multi_thread")]
async fn who_hangs_up_leaves_the_line_within_a_second() {
    for embedded in [true, false] {
        let clocked = ClockedServer::open(Duration::ZERO, embedded).await;
        tokio::task::block_in_place(|| {
            let mut client = clocked.server.connect();
            take(&mut client, "a", ONE_HOUR_MS);
            for way in WAYS_TO_HANG_UP {
                let mut gone = clocked.server.connect();
                wait_for(&mut gone, "a", ONE_HOUR_MS, &[]);
                wait_until("it stands in line", || queue(&mut client, "a") == 1);
                let kept = hang_up(gone, way);
                clocked.clock.advance(Duration::from_millis(999));
                wait_until(&format!("who said goodbye by {way} left the line"), || queue(&mut client, "a") == 0);
                drop(kept);
            }
            wait_until("who left is counted", || clocked.left() == WAYS_TO_HANG_UP.len() as u64);
        });
        clocked.server.end().await;
    }
}

/// Goal: a client that left the wait queue is granted nothing, not even for a moment.
/// Method: 41 clients wait, and all but one hang up. When the server has counted them, the holder releases: the next
/// token goes to the client that stayed, and the token after it to the next grant of all.
#[tokio::test(flavor = "multi_thread")]
async fn who_left_is_granted_nothing() {
    for embedded in [true, false] {
        let clocked = ClockedServer::open(Duration::ZERO, embedded).await;
        tokio::task::block_in_place(|| {
            let mut client = clocked.server.connect();
            let (lease, token) = take(&mut client, "a", ONE_HOUR_MS);
            let mut line: Vec<RespClient> = Vec::new();
            for place in 0..41 {
                let mut waiter = clocked.server.connect();
                wait_for(&mut waiter, "a", ONE_HOUR_MS, &[]);
                wait_until("it stands in line", || queue(&mut client, "a") == place + 1);
                line.push(waiter);
            }
            let mut stays = line.remove(20);
            let kept: Vec<_> =
                line.into_iter().zip(WAYS_TO_HANG_UP.iter().cycle()).map(|(gone, way)| hang_up(gone, way)).collect();
            wait_until("all of them are counted as gone", || clocked.left() == 40);
            assert_eq!(queue(&mut client, "a"), 1, "one stayed");
            assert_eq!(client.ask(&["LEASE", "RELEASE", &lease]), ":1\r\n");
            let (lease, next) = granted(&stays.reply());
            assert_eq!(next, token + 1, "nobody was granted anything in between");
            assert_eq!(client.ask(&["LEASE", "RELEASE", &lease]), ":1\r\n");
            assert_eq!(take(&mut client, "b", ONE_HOUR_MS).1, token + 2, "nor afterwards");
            drop(kept);
        });
        clocked.server.end().await;
    }
}

/// Goal: a client that hangs up when its grant is decided, but not on disk, leaves no lease. With a request id a retry
/// gets it.
/// Method: stop the disk after the release that makes the grant, and hang up. On a fast disk the event loop itself
/// waits in the sync, and must check the socket before it replies. On a slow disk the writer thread does, and the event
/// loop has closed the connection long before the completion.
#[tokio::test(flavor = "multi_thread")]
async fn who_hangs_up_before_its_grant_is_durable_leaves_no_ghost() {
    for (slow, retried) in [(false, false), (false, true), (true, false), (true, true)] {
        let sync_takes = if slow { Duration::from_millis(5) } else { Duration::ZERO };
        let clocked = ClockedServer::open(sync_takes, true).await;
        tokio::task::block_in_place(|| {
            let mut client = clocked.server.connect();
            let (lease, _) = take(&mut client, "a", ONE_HOUR_MS);
            let mut gone = clocked.server.connect();
            let more: &[&str] = if retried { &["REQUEST", "r"] } else { &[] };
            wait_for(&mut gone, "a", ONE_HOUR_MS, more);
            wait_until("it stands in line", || queue(&mut client, "a") == 1);
            clocked.barrier.close();
            client.send(&command(&["LEASE", "RELEASE", &lease]));
            wait_until("the grant is on its way to the disk", || clocked.barrier.holds_a_sync());
            let kept = hang_up(gone, if slow { "half-close" } else { "close" });
            if let Some(mut kept) = kept {
                assert_eq!(kept.reply(), b"", "the server has closed it, and said nothing");
            }
            clocked.barrier.open();
            assert_eq!(client.reply(), b":1\r\n");
            if retried {
                let words = ["LEASE", "ACQUIRE", ONE_HOUR_MS, "WAIT", ONE_HOUR_MS, "REQUEST", "r", "RESOURCES", "a"];
                let first = granted(client.ask(&words).as_bytes());
                assert_eq!(granted(client.ask(&words).as_bytes()), first, "the same lease again");
            } else {
                wait_until("a lease that nobody heard of is given back", || is_free(&mut client, "a"));
            }
        });
        clocked.server.end().await;
    }
}

/// Goal: in a race of grant and hang-up, a client that learnt of its lease keeps it. A lease that nobody can know of
/// ends with its ttl at the latest.
/// Method: release and hang up at nearly the same moment, 200 times. A client that half-closes and reads to the end
/// knows whether it has the lease: if not, the lease is released before the clock moves. A client that closes may have
/// been sent a grant just before, which cannot be taken back: so the clock moves to the end of the ttl, and all must be
/// free.
#[tokio::test(flavor = "multi_thread")]
async fn a_race_of_grant_and_hang_up_strands_nothing_beyond_its_ttl() {
    let clocked = ClockedServer::open(Duration::ZERO, true).await;
    let ttl = SHORT_TTL.as_millis().to_string();
    tokio::task::block_in_place(|| {
        let mut client = clocked.server.connect();
        let mut dice = SeededRandom(3);
        let (mut heard, mut given_back, mut closed) = (Vec::new(), 0, Vec::new());
        for round in 0..200 {
            let name = format!("a{round}");
            let (lease, _) = take(&mut client, &name, ONE_HOUR_MS);
            let mut gone = clocked.server.connect();
            wait_for(&mut gone, &name, &ttl, &[]);
            wait_until("it stands in line", || queue(&mut client, &name) == 1);
            client.send(&command(&["LEASE", "RELEASE", &lease]));
            // Around the time that a release takes.
            (0..dice.roll(10_000)).for_each(|_| std::hint::spin_loop());
            if round % 2 == 0 {
                gone.stream.get_ref().shutdown(Shutdown::Write).unwrap();
                let told = gone.reply();
                assert_eq!(client.reply(), b":1\r\n");
                if told.is_empty() {
                    wait_until("a lease that nobody heard of is given back", || is_free(&mut client, &name));
                    given_back += 1;
                } else {
                    heard.push((name, granted(&told).0));
                }
            } else {
                drop(gone);
                assert_eq!(client.reply(), b":1\r\n");
                closed.push(name);
            }
        }
        assert_eq!(heard.len() + given_back, closed.len());
        for (name, lease) in &heard {
            assert!(!is_free(&mut client, name), "{name} was told of, and is kept");
            let renewed = client.ask(&["LEASE", "RENEW", lease, ONE_HOUR_MS]);
            assert!(renewed.starts_with(':'), "{renewed}");
        }
        let ghosts = closed.iter().filter(|name| !is_free(&mut client, name)).count();
        println!(
            "{} heard of their lease, {given_back} gave it back, {ghosts} of {} ghosts",
            heard.len(),
            closed.len()
        );
        clocked.clock.advance(SHORT_TTL);
        for name in &closed {
            wait_until("a ghost is gone at its ttl", || is_free(&mut client, name));
        }
        for (name, _) in &heard {
            assert!(!is_free(&mut client, name), "{name} was renewed, and is kept");
        }
    });
    clocked.server.end().await;
}

/// Goal: a renewal that fails because the engine has stopped counts as a failed renewal, inline and in a task alike.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_by_a_stopped_engine_is_counted() {
    for embedded in [true, false] {
        let clocked = ClockedServer::open(Duration::ZERO, embedded).await;
        let server = clocked.server;
        let mut client = server.connect();
        let granted =
            tokio::task::block_in_place(|| client.ask(&["LEASE", "ACQUIRE", "30000", "RESOURCES", "seat-14"]));
        let lease = granted.lines().nth(2).unwrap_or_else(|| panic!("{granted}")).to_owned();
        server.service.close().await.unwrap();
        let refused = tokio::task::block_in_place(|| client.ask(&["LEASE", "RENEW", &lease]));
        assert!(refused.starts_with("-UNAVAILABLE"), "{refused}");
        let caller = server.service.anonymous_caller(crate::service::PeerAddress(server.address)).unwrap();
        let metrics = server.service.metrics(&caller).await.unwrap();
        assert!(metrics.contains("leasehold_renew_failures_total{reason=\"other\"} 1\n"), "{metrics}");
        tokio::task::block_in_place(|| server.server.stop());
    }
}
