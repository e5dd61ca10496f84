//! Who hangs up: it leaves the line within a second, and has no lease that it never heard of for longer than its ttl.
//!
//! The server's clock is set by hand and stands still but where a test moves it, so that no law here is measured by how
//! busy the machine is: what happens while the clock stands takes none of the server's time.

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
/// How long a lease lives here that is to lapse.
const SHORT_TTL: Duration = Duration::from_secs(60);

impl ClockedServer {
    /// How many asked for something and went away before there was an answer.
    fn left(&self) -> u64 {
        let caller = self.server.service.enter_quietly(crate::service::Peer(self.server.address)).unwrap();
        // There is no box office here, so nobody is waited for.
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

/// Asks for a name that somebody has, with all the patience there is.
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

/// Goes away in this manner. What is answered keeps the socket open that was only half closed.
fn hang_up(mut client: RespClient, way: &str) -> Option<RespClient> {
    let reset = |client: &RespClient| set_socket_linger(client.stream.get_ref(), Some(Duration::ZERO)).unwrap();
    match way {
        "close" => {}
        "reset" => reset(&client),
        "half-close" => client.stream.get_ref().shutdown(Shutdown::Write).unwrap(),
        // So much that the server reads no more of it: it must notice all the same.
        "full of input, then reset" => {
            client.stream.get_ref().set_nonblocking(true).unwrap();
            while client.stream.get_mut().write(&[b'\n'; 65_536]).is_ok() {}
            reset(&client);
        }
        // As much as the server reads while it waits, and a little more: then it does not read on to where the end is.
        // Not more than that: an end behind what the server's socket has no room for does not reach it at all.
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

/// Goal: who hangs up leaves the line within a second, however it hangs up, whoever asks the engine.
/// Method: all would wait for an hour. The clock moves on by less than a second after each farewell, and never else.
#[tokio::test(flavor = "multi_thread")]
async fn who_hangs_up_leaves_the_line_within_a_second() {
    for locked in [true, false] {
        let timed = ClockedServer::open(Duration::ZERO, locked).await;
        tokio::task::block_in_place(|| {
            let mut client = timed.server.connect();
            take(&mut client, "a", ONE_HOUR_MS);
            for way in WAYS_TO_HANG_UP {
                let mut gone = timed.server.connect();
                wait_for(&mut gone, "a", ONE_HOUR_MS, &[]);
                wait_until("it stands in line", || queue(&mut client, "a") == 1);
                let kept = hang_up(gone, way);
                timed.clock.advance(Duration::from_millis(999));
                wait_until(&format!("who said goodbye by {way} left the line"), || queue(&mut client, "a") == 0);
                drop(kept);
            }
            wait_until("who left is counted", || timed.left() == WAYS_TO_HANG_UP.len() as u64);
        });
        timed.server.end().await;
    }
}

/// Goal: who left the line is granted nothing, not even for a moment.
/// Method: a crowd around one who stays. All of the crowd hang up, the server has counted them as gone, and only then the
/// holder lets go: the very next token goes to the one who stayed, and the one after it is the next grant of all.
#[tokio::test(flavor = "multi_thread")]
async fn who_left_is_granted_nothing() {
    for locked in [true, false] {
        let timed = ClockedServer::open(Duration::ZERO, locked).await;
        tokio::task::block_in_place(|| {
            let mut client = timed.server.connect();
            let (lease, token) = take(&mut client, "a", ONE_HOUR_MS);
            let mut line: Vec<RespClient> = Vec::new();
            for place in 0..41 {
                let mut waiter = timed.server.connect();
                wait_for(&mut waiter, "a", ONE_HOUR_MS, &[]);
                wait_until("it stands in line", || queue(&mut client, "a") == place + 1);
                line.push(waiter);
            }
            let mut stays = line.remove(20);
            let kept: Vec<_> =
                line.into_iter().zip(WAYS_TO_HANG_UP.iter().cycle()).map(|(gone, way)| hang_up(gone, way)).collect();
            wait_until("all of them are counted as gone", || timed.left() == 40);
            assert_eq!(queue(&mut client, "a"), 1, "one stayed");
            assert_eq!(client.ask(&["LEASE", "RELEASE", &lease]), ":1\r\n");
            let (lease, next) = granted(&stays.reply());
            assert_eq!(next, token + 1, "nobody was granted anything in between");
            assert_eq!(client.ask(&["LEASE", "RELEASE", &lease]), ":1\r\n");
            assert_eq!(take(&mut client, "b", ONE_HOUR_MS).1, token + 2, "nor afterwards");
            drop(kept);
        });
        timed.server.end().await;
    }
}

/// Goal: who hangs up when its grant is decided, but not yet on disk, leaves no lease; with a request id a retry gets it.
/// Method: hold up the disk after the release that the grant follows from, and hang up meanwhile. On a quick disk the pump
/// itself stands there, and must look before it answers; on a slow one the writer does, and the pump has closed the
/// connection long before there is an answer.
#[tokio::test(flavor = "multi_thread")]
async fn who_hangs_up_before_its_grant_is_durable_leaves_no_ghost() {
    for (slow, retried) in [(false, false), (false, true), (true, false), (true, true)] {
        let sync_takes = if slow { Duration::from_millis(5) } else { Duration::ZERO };
        let timed = ClockedServer::open(sync_takes, true).await;
        tokio::task::block_in_place(|| {
            let mut client = timed.server.connect();
            let (lease, _) = take(&mut client, "a", ONE_HOUR_MS);
            let mut gone = timed.server.connect();
            let more: &[&str] = if retried { &["REQUEST", "r"] } else { &[] };
            wait_for(&mut gone, "a", ONE_HOUR_MS, more);
            wait_until("it stands in line", || queue(&mut client, "a") == 1);
            timed.gate.close();
            client.send(&command(&["LEASE", "RELEASE", &lease]));
            wait_until("the grant is on its way to the disk", || timed.gate.holds_one());
            let kept = hang_up(gone, if slow { "half-close" } else { "close" });
            if let Some(mut kept) = kept {
                assert_eq!(kept.reply(), b"", "the server has closed it, and said nothing");
            }
            timed.gate.open();
            assert_eq!(client.reply(), b":1\r\n");
            if retried {
                let words = ["LEASE", "ACQUIRE", ONE_HOUR_MS, "WAIT", ONE_HOUR_MS, "REQUEST", "r", "RESOURCES", "a"];
                let first = granted(client.ask(&words).as_bytes());
                assert_eq!(granted(client.ask(&words).as_bytes()), first, "the same lease again");
            } else {
                wait_until("a lease that nobody heard of is given back", || is_free(&mut client, "a"));
            }
        });
        timed.server.end().await;
    }
}

/// Goal: whatever a race of grant and hang-up comes to, who knows of a lease keeps it, and one that nobody can know of is
/// gone at its ttl at the latest.
/// Method: let go and hang up at nearly the same moment, over and over, by different small spans. Who says goodbye and
/// reads to the end knows what it was told: if nothing, the lease is given back before the clock moves. Who closes may
/// have been sent a grant a moment before its farewell reached the server, which nobody can take back: so the clock moves
/// to the end of the ttl, and every one of them must be free.
#[tokio::test(flavor = "multi_thread")]
async fn a_race_of_grant_and_hang_up_strands_nothing_beyond_its_ttl() {
    let timed = ClockedServer::open(Duration::ZERO, true).await;
    let ttl = SHORT_TTL.as_millis().to_string();
    tokio::task::block_in_place(|| {
        let mut client = timed.server.connect();
        let mut dice = SeededRandom(3);
        let (mut heard, mut given_back, mut closed) = (Vec::new(), 0, Vec::new());
        for round in 0..200 {
            let name = format!("a{round}");
            let (lease, _) = take(&mut client, &name, ONE_HOUR_MS);
            let mut gone = timed.server.connect();
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
        timed.clock.advance(SHORT_TTL);
        for name in &closed {
            wait_until("a ghost is gone at its ttl", || is_free(&mut client, name));
        }
        for (name, _) in &heard {
            assert!(!is_free(&mut client, name), "{name} was renewed, and is kept");
        }
    });
    timed.server.end().await;
}
