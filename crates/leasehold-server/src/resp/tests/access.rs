//! No command passes the access check unseen: every command, by every role.

use std::collections::BTreeSet;

use super::super::command::connection::ConnectionCommand;
use super::super::command::table::{self, COMMANDS};
use super::super::command::{self, Dispatcher, InlineCall, ServiceCall};
use super::super::watch::WatchCommand;
use super::TestServer;
use super::all_commands::ALL_COMMANDS;
use super::client::command;
use super::words::Words;
use crate::resp::RespConfig;
use crate::service::keys::file::KeyFile;
use crate::service::keys::secret::NewKey;
use crate::service::keys::{KeyRing, Role, Roles};
use crate::service::{Service, Verb};

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(|word| word.replace('~', " ")).collect()
}

fn admitted(service: &Service) -> Vec<u64> {
    Verb::ALL.iter().map(|verb| service.metrics.calls_so_far(*verb)).collect()
}

/// A key for each role, in the order of all.
pub fn keys() -> (Vec<NewKey>, KeyFile) {
    let made: Vec<NewKey> = Role::ALL.iter().map(|_| NewKey::random().unwrap()).collect();
    let keys = made.iter().zip(Role::ALL).map(|(key, role)| key.record(&[role], &[]));
    let file = KeyFile { keys: keys.collect() };
    (made, file)
}

/// Goal: every call of the service is counted by its verb, once, if the caller may make it. Otherwise it is not
/// counted, and the caller learns only that it may not.
/// Method: all commands, by every role and without a key, each on a connection of its own.
#[tokio::test(flavor = "multi_thread")]
async fn every_command_is_checked_once() {
    let (made, file) = keys();
    let server = TestServer::open(KeyRing::from_file(&file), RespConfig::default()).await;
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
                let may = verb.is_none_or(|verb| Roles::from_roles([role]).allow(verb.role()));
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

/// Goal: keys cannot be guessed fast, and a right key is accepted meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn guessing_keys_is_slowed_down() {
    let (made, file) = keys();
    let server = TestServer::open(KeyRing::from_file(&file), RespConfig::default()).await;
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

/// Goal: the list of commands that the tests try has every command there is, and no other.
#[test]
fn all_commands_are_those_of_the_table() {
    let text = |name: &[u8]| String::from_utf8(name.to_vec()).unwrap();
    let groups = [
        ("LEASE", command::lease::SUBCOMMANDS),
        ("CLIENT", command::connection::SUBCOMMANDS),
        ("SCRIPT", command::script::SUBCOMMANDS),
    ];
    let mut known: BTreeSet<String> = COMMANDS.iter().map(|command| text(command.name)).collect();
    for (group, subcommands) in groups {
        assert!(known.remove(group), "{group} is a command");
        known.extend(subcommands.iter().map(|name| format!("{group} {}", text(name))));
    }
    let tried: BTreeSet<String> = ALL_COMMANDS
        .iter()
        .map(|(line, _)| {
            let words = words(line);
            let group = groups.iter().any(|(group, _)| *group == words[0]);
            if group { format!("{} {}", words[0], words[1]) } else { words[0].clone() }
        })
        .collect();
    assert_eq!(known, tried);
}

/// Records the verb of a command instead of running it.
struct VerbRecorder<'a>(&'a mut Option<Verb>);

impl Dispatcher for VerbRecorder<'_> {
    fn connection(self, _: ConnectionCommand<'_>) {}

    fn inline<'a>(self, call: impl InlineCall<'a>) {
        *self.0 = Some(call.verb());
    }

    fn spawned<'a>(self, call: impl ServiceCall<'a>) {
        *self.0 = Some(call.verb());
    }

    fn watch(self, _: WatchCommand<'_>) {
        *self.0 = Some(Verb::Watch);
    }
}

/// Goal: the verb that the list has for a command is the one that the command is checked by, in either case of letters.
#[test]
fn all_commands_have_the_verb_that_is_checked() {
    for &(line, verb) in ALL_COMMANDS {
        let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
        for line in [line.to_owned(), format!("{} {rest}", name.to_lowercase())] {
            let mut recorded = None;
            if let Err(error) = table::dispatch(VerbRecorder(&mut recorded), Words::new(&line).args()) {
                panic!("{line}: {}", error.sentence);
            }
            assert_eq!(recorded, verb, "{line}");
        }
    }
}
