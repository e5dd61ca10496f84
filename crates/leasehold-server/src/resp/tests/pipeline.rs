//! Pipelines: many commands at once, cut anywhere, with pauses.

use std::io::Write;
use std::net::Shutdown;

use super::super::RespConfig;
use super::TestServer;
use super::client::command;
use crate::service::keys::{KeyRing, Role};

/// Random numbers that are the same in every run.
pub struct SeededRandom(pub u64);

impl SeededRandom {
    pub fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }
}

/// A command whose reply depends only on the commands before it, on names with this prefix.
fn mixed(dice: &mut SeededRandom, own: &str) -> Vec<String> {
    let name = format!("{own}{}", dice.roll(40));
    let value = format!("v{}", dice.roll(3));
    let text = match dice.roll(10) {
        0 | 1 => format!("SET {name} {value} NX PX 3600000"),
        2 => format!("GET {name}"),
        3 => format!("EXISTS {name} {own}1 {own}2"),
        4 => format!("DEL {name}"),
        5 => format!("EVALSHA c3f8721cbb97f72bc19e972846bd7aaf91901658 1 {name} {value}"),
        6 => format!("ECHO {name}"),
        7 => "PING".into(),
        8 => format!("PTTL {own}absent{name}"),
        _ => format!("NONSENSE {name}"),
    };
    text.split(' ').map(str::to_owned).collect()
}

/// Commands under names that begin with this letter, the same for every letter.
fn commands(own: &str, many: usize) -> Vec<Vec<u8>> {
    let mut dice = SeededRandom(7);
    (0..many).map(|_| command(&mixed(&mut dice, own).iter().map(String::as_str).collect::<Vec<_>>())).collect()
}

/// The replies when they are sent one by one.
fn answers(server: &TestServer, many: usize) -> Vec<String> {
    let mut one = server.connect();
    commands("a", many)
        .iter()
        .map(|bytes| {
            one.send(bytes);
            String::from_utf8(one.reply()).unwrap()
        })
        .collect()
}

/// A reply as it is for names with another prefix.
fn renamed(answer: &str, own: &str) -> String {
    answer.replace("\r\na", &format!("\r\n{own}")).replace("NONSENSE a", &format!("NONSENSE {own}"))
}

/// Goal: commands sent at once, cut anywhere, are answered in order as if sent one by one.
/// Method: 10,000 of many kinds, inline and spawned; once one by one, once in one go under other names of equal length.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_at_once_are_answered_as_one_by_one() {
    let server = TestServer::open(KeyRing::open(), RespConfig::default()).await;
    tokio::task::block_in_place(|| {
        let expected = answers(&server, 10_000);
        let mut many = server.connect();
        let all = commands("b", expected.len()).concat();
        let mut writer = many.stream.get_ref().try_clone().unwrap();
        let sender = std::thread::spawn(move || {
            let (mut dice, mut rest) = (SeededRandom(11), &all[..]);
            while !rest.is_empty() {
                let cut = if dice.roll(4) == 0 { 1 + dice.roll(7) } else { 1 + dice.roll(3000) }.min(rest.len());
                writer.write_all(&rest[..cut]).unwrap();
                rest = &rest[cut..];
            }
            writer.shutdown(Shutdown::Write).unwrap();
        });
        for (index, expected) in expected.iter().enumerate() {
            assert_eq!(String::from_utf8_lossy(&many.reply()), renamed(expected, "b"), "command {index}");
        }
        assert!(many.reply().is_empty(), "it is closed when all is answered");
        sender.join().unwrap();
    });
    server.end().await;
}

/// Goal: of several who send many commands in one round, each is answered as if alone.
/// Method: more in all than is parsed ahead in a round, from clients with different commands at the same places.
#[tokio::test(flavor = "multi_thread")]
async fn several_who_send_at_once_are_each_answered_as_alone() {
    let server = TestServer::open(KeyRing::open(), RespConfig::default()).await;
    tokio::task::block_in_place(|| {
        let expected = answers(&server, 1000);
        let mut clients: Vec<_> = ["b", "c", "d", "e", "f", "g", "h", "i"].map(|own| (own, server.connect())).into();
        // Of another length for each, so that no two are at the same place.
        for round in 0..3 {
            for (nth, (own, client)) in clients.iter_mut().enumerate() {
                let many = expected.len() * (nth + 1) / 8;
                client.send(&commands(own, many * (round + 1) / 3)[many * round / 3..].concat());
            }
        }
        for (nth, (own, client)) in clients.iter_mut().enumerate() {
            for (index, expected) in expected[..expected.len() * (nth + 1) / 8].iter().enumerate() {
                assert_eq!(String::from_utf8_lossy(&client.reply()), renamed(expected, own), "{own}, command {index}");
            }
        }
    });
    server.end().await;
}

/// Goal: a command that was parsed before a key was shown is decided with the key.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_shown_in_the_middle_counts_from_there() {
    let (made, file) = super::access::keys();
    let server = TestServer::open(KeyRing::from_file(&file), RespConfig::default()).await;
    tokio::task::block_in_place(|| {
        let set = |name| command(&["SET", name, "v", "NX", "PX", "60000"]);
        let lease = Role::ALL.iter().position(|role| *role == Role::Lease).unwrap();
        let auth = command(&["AUTH", made[lease].expose()]);
        let mut client = server.connect();
        client.send(&[set("a"), set("b"), auth, set("a"), set("b")].concat());
        let replies: Vec<_> = (0..5).map(|_| String::from_utf8(client.reply()).unwrap()).collect();
        assert!(replies[..2].iter().all(|reply| reply.starts_with("-NOAUTH")), "{replies:?}");
        assert_eq!(replies[2..], ["+OK\r\n"; 3]);
    });
    server.end().await;
}

/// Goal: a reply has the version that was set when its command was sent, even if it becomes durable later.
#[tokio::test(flavor = "multi_thread")]
async fn each_is_answered_in_the_version_it_was_asked_in() {
    let server = TestServer::open(KeyRing::open(), RespConfig::default()).await;
    tokio::task::block_in_place(|| {
        let hello = |version| command(&["HELLO", version]);
        let set = || command(&["SET", "seat", "v", "NX", "PX", "60000"]);
        let mut client = server.connect();
        client
            .send(&[set(), set(), hello("3"), set(), hello("2"), set(), hello("2"), set(), hello("3"), set()].concat());
        let replies: Vec<_> = (0..10).map(|_| String::from_utf8(client.reply()).unwrap()).collect();
        let nils: Vec<&str> = [1, 3, 5, 7, 9].map(|at| replies[at].as_str()).into();
        assert_eq!((replies[0].as_str(), nils), ("+OK\r\n", vec!["$-1\r\n", "_\r\n", "$-1\r\n", "$-1\r\n", "_\r\n"]));
        let hellos: String = [2, 4, 6, 8].map(|at| replies[at].chars().next().unwrap()).iter().collect();
        assert_eq!(hellos, "%**%");
    });
    server.end().await;
}

/// Goal: a client that sends many commands and then half-closes gets every reply, even those not run in the first turn.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_sent_before_a_half_close_is_answered() {
    let server = TestServer::open(KeyRing::open(), RespConfig::default()).await;
    tokio::task::block_in_place(|| {
        for kind in [&["PING"][..], &["LEASE", "GET", "a"], &["SET", "k", "v", "NX", "PX", "60000"], &["DEL", "k"]] {
            let mut client = server.connect();
            let count = 1500;
            client.send(&command(kind).repeat(count));
            client.stream.get_ref().shutdown(Shutdown::Write).unwrap();
            let answers = (0..=count).take_while(|_| !client.reply().is_empty()).count();
            assert_eq!(answers, count, "{kind:?}");
        }
    });
    server.end().await;
}

/// Goal: nothing after QUIT is done.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_after_quit_is_done() {
    let server = TestServer::open(KeyRing::open(), RespConfig::default()).await;
    tokio::task::block_in_place(|| {
        let mut client = server.connect();
        client.send(b"PING\r\nQUIT\r\nSET after v NX PX 60000\r\n");
        assert_eq!([client.reply(), client.reply(), client.reply()], [&b"+PONG\r\n"[..], b"+OK\r\n", b""]);
        assert_eq!(server.connect().ask(&["EXISTS", "after"]), ":0\r\n");
    });
    server.end().await;
}

/// Goal: a client that does not read is not answered further and costs no processor time; when it reads, all is there.
/// Method: a small backlog, far more answers than it and the kernel hold; the time this process used meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_costs_nothing_and_loses_nothing() {
    let config =
        RespConfig { backlog: 64 << 10, write_stall: std::time::Duration::from_secs(60), ..RespConfig::default() };
    let server = TestServer::open(KeyRing::open(), config).await;
    tokio::task::block_in_place(|| {
        let client = server.connect();
        let text = "x".repeat(60_000);
        let count = 1000;
        let mut writer = client.stream.get_ref().try_clone().unwrap();
        let (sent, all) = (command(&["ECHO", &text]), count);
        let sender = std::thread::spawn(move || (0..all).for_each(|_| writer.write_all(&sent).unwrap()));
        // Until the backlog is full, and other threads of this process are done.
        let rests = (0..30).any(|_| {
            let before = process_time_ms();
            super::pause(std::time::Duration::from_secs(1));
            process_time_ms() - before < 300
        });
        assert!(rests, "not a second in thirty that had nothing to do");
        let mut client = client;
        for index in 0..count {
            assert_eq!(client.reply().len(), text.len() + 10, "answer {index}");
        }
        sender.join().unwrap();
    });
    server.end().await;
}

/// Milliseconds of processor time of this process. Tests run one to a process under nextest.
fn process_time_ms() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    // Ticks of ten milliseconds, in user and system mode.
    (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()) * 10
}
