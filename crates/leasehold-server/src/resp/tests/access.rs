//! Nothing goes around the gate: every command, by every role, cell by cell.

use std::collections::BTreeSet;

use super::super::codec::frame::CommandArgs;
use super::super::{Config, command as ask};
use super::TestServer;
use super::all_commands::ALL_COMMANDS;
use super::client::command;
use crate::service::keys::file::KeyFile;
use crate::service::keys::secret::NewKey;
use crate::service::keys::{KeyRing, Role, Roles};
use crate::service::{Service, Verb};

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(|word| word.replace('~', " ")).collect()
}

fn admitted(service: &Service) -> Vec<u64> {
    Verb::ALL.iter().map(|verb| service.metrics.admitted_so_far(*verb)).collect()
}

/// A key for each role, in the order of all.
pub fn keys() -> (Vec<NewKey>, KeyFile) {
    let made: Vec<NewKey> = Role::ALL.iter().map(|_| NewKey::random().unwrap()).collect();
    let keys = made.iter().zip(Role::ALL).map(|(key, role)| key.record(&[role], &[]));
    let file = KeyFile { keys: keys.collect() };
    (made, file)
}

/// Goal: every command that asks the service for something is counted by its verb, once, for whoever may; and by none
/// for whoever may not, who is told so and nothing else.
/// Method: the whole table, by every role and by nobody, each on a connection of its own.
#[tokio::test(flavor = "multi_thread")]
async fn every_command_passes_the_gate_once() {
    let (made, file) = keys();
    let server = TestServer::open(KeyRing::of(&file), Config::default()).await;
    tokio::task::block_in_place(|| {
        for &(line, verb) in ALL_COMMANDS {
            let words = words(line);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let mut stranger = server.connect();
            let before = admitted(&server.service);
            let told = stranger.ask(&words);
            match words[0] {
                "QUIT" => assert_eq!(told, "+OK\r\n"),
                "AUTH" => assert!(told.starts_with("-WRONGPASS "), "{told}"),
                _ => assert!(told.starts_with("-NOAUTH "), "{line} by nobody: {told}"),
            }
            assert_eq!(admitted(&server.service), before, "{line} by nobody");
            for (key, role) in made.iter().zip(Role::ALL) {
                let mut client = server.connect();
                assert_eq!(client.ask(&["AUTH", key.expose()]), "+OK\r\n");
                let before = admitted(&server.service);
                let told = client.ask(&words);
                let mut after = before.clone();
                let may = verb.is_none_or(|verb| Roles::of([role]).allow(verb.role()));
                if let Some(verb) = verb.filter(|_| may) {
                    after[Verb::ALL.iter().position(|other| *other == verb).unwrap()] += 1;
                }
                assert_eq!(admitted(&server.service), after, "{line} by {}: {told}", role.word());
                assert_eq!(told.starts_with("-FORBIDDEN "), !may, "{line} by {}: {told}", role.word());
                assert!(!told.starts_with("-NOAUTH "), "{line} by {}: {told}", role.word());
            }
        }
    });
    server.end().await;
}

/// Goal: keys cannot be guessed at the pace of the server, and whoever has one gets in all the same.
#[tokio::test(flavor = "multi_thread")]
async fn guessing_keys_is_slowed_down() {
    let (made, file) = keys();
    let server = TestServer::open(KeyRing::of(&file), Config::default()).await;
    tokio::task::block_in_place(|| {
        let mut client = server.connect();
        let mut auth = |key: &str| {
            client.send(&command(&["AUTH", key]));
            String::from_utf8(client.reply()).unwrap()
        };
        let told: Vec<String> = (0..50).map(|number| auth(&format!("lh_wrong-{number}"))).collect();
        assert!(told[0].starts_with("-WRONGPASS "), "{}", told[0]);
        assert!(told[49].starts_with("-QUOTA ") && told[49].contains("slow down"), "{}", told[49]);
        assert_eq!(auth(made[0].expose()), "+OK\r\n");
    });
    server.end().await;
}

/// Goal: the table above has every command there is.
/// Method: the words that the code itself compares with, read from its source, against the words of the table.
#[test]
fn the_table_has_every_command() {
    let source = include_str!("../command/mod.rs");
    let arms = |function: &str| {
        let begin = source.find(&format!("fn {function}")).unwrap_or_else(|| panic!("there is a function {function}"));
        let body = &source[begin..];
        let body = &body[..body.find("\n}\n").unwrap()];
        let arms = body.lines().filter_map(|line| line.trim().strip_prefix("b\"")?.split('"').next());
        arms.map(str::to_owned).collect::<BTreeSet<String>>()
    };
    let groups = [("LEASE", "lease("), ("CLIENT", "client("), ("SCRIPT", "script_command(")];
    let mut known: BTreeSet<String> = arms("read<").union(&arms("local<")).cloned().collect();
    for (group, function) in groups {
        assert!(known.remove(group), "{group} is a command");
        known.extend(arms(function).into_iter().map(|sub| format!("{group} {sub}")));
    }
    assert!(known.len() >= 25, "the source is read rightly: {known:?}");
    let table: BTreeSet<String> = ALL_COMMANDS
        .iter()
        .map(|(line, _)| {
            let words = words(line);
            let group = groups.iter().any(|(group, _)| *group == words[0]);
            if group { format!("{} {}", words[0], words[1]) } else { words[0].clone() }
        })
        .collect();
    assert_eq!(known, table);
}

/// Goal: what the table says of a command's verb is what the code reads, in either case of letters.
#[test]
fn the_table_says_the_verb_that_is_read() {
    for &(line, verb) in ALL_COMMANDS {
        for lower in [false, true] {
            let mut words = words(line);
            if lower {
                words[0] = words[0].to_lowercase();
            }
            let mut input = Vec::new();
            let mut at = Vec::new();
            for word in &words {
                at.push((input.len() as u32, (input.len() + word.len()) as u32));
                input.extend_from_slice(word.as_bytes());
            }
            let read = match ask::read(CommandArgs::new(&input, &at)) {
                Ok(ask::ParsedCommand::Call(call)) => Some(call.verb()),
                Ok(ask::ParsedCommand::ConnectionCommand(_)) => None,
                Err(sentence) => panic!("{line}: {sentence}"),
            };
            assert_eq!(read, verb, "{line}");
        }
    }
}
