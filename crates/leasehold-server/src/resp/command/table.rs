//! `COMMAND`: what this port understands, in the form in which clients of Redis ask for it.

use crate::resp::codec::reply::ReplyWriter;

/// One command: its name, how many words it has with its own (at least so many, where negative), and which of them are
/// keys (the first, the last counted from the end where negative, every how many).
struct CommandInfo {
    name: &'static str,
    words: i64,
    keys: (i64, i64, i64),
}

const fn known(name: &'static str, words: i64, keys: (i64, i64, i64)) -> CommandInfo {
    CommandInfo { name, words, keys }
}

const NO_KEY: (i64, i64, i64) = (0, 0, 0);
const ONE_KEY: (i64, i64, i64) = (1, 1, 1);

/// In alphabetical order. The keys of a script and of `LEASE` are counted by the command itself.
const ALL: &[CommandInfo] = &[
    known("auth", -2, NO_KEY),
    known("client", -2, NO_KEY),
    known("command", -1, NO_KEY),
    known("del", -2, (1, -1, 1)),
    known("discard", 1, NO_KEY),
    known("echo", 2, NO_KEY),
    known("eval", -3, NO_KEY),
    known("evalsha", -3, NO_KEY),
    known("exec", 1, NO_KEY),
    known("exists", -2, (1, -1, 1)),
    known("get", 2, ONE_KEY),
    known("hello", -1, NO_KEY),
    known("info", -1, NO_KEY),
    known("lease", -2, NO_KEY),
    known("multi", 1, NO_KEY),
    known("pexpire", -3, ONE_KEY),
    known("ping", -1, NO_KEY),
    known("pttl", 2, ONE_KEY),
    known("quit", 1, NO_KEY),
    known("script", -2, NO_KEY),
    known("select", 2, NO_KEY),
    known("set", -3, ONE_KEY),
    known("ttl", 2, ONE_KEY),
];

/// What is asked about the commands.
#[derive(Debug, PartialEq, Eq)]
pub enum CommandQuery<'a> {
    /// All of them.
    All,
    /// How many there are.
    Count,
    /// Their names.
    Names,
    /// These.
    Of(Vec<&'a [u8]>),
    /// Their documentation, which is elsewhere.
    Docs,
}

/// Answers.
pub fn answer(about: &CommandQuery<'_>, reply: &mut ReplyWriter<'_>) {
    match about {
        CommandQuery::All => {
            reply.array(ALL.len());
            ALL.iter().for_each(|command| describe(command, reply));
        }
        CommandQuery::Count => reply.integer(i64::try_from(ALL.len()).unwrap_or(i64::MAX)),
        CommandQuery::Names => {
            reply.array(ALL.len());
            ALL.iter().for_each(|command| reply.text(command.name));
        }
        CommandQuery::Of(names) => {
            reply.array(names.len());
            for name in names {
                match ALL.iter().find(|command| name.eq_ignore_ascii_case(command.name.as_bytes())) {
                    Some(command) => describe(command, reply),
                    None => reply.nil(),
                }
            }
        }
        CommandQuery::Docs => reply.map(0),
    }
}

fn describe(command: &CommandInfo, reply: &mut ReplyWriter<'_>) {
    reply.array(6);
    reply.text(command.name);
    reply.integer(command.words);
    reply.array(0);
    let (first, last, step) = command.keys;
    [first, last, step].into_iter().for_each(|number| reply.integer(number));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::resp::tests::all_commands::ALL_COMMANDS;

    /// Goal: what is listed is what is understood.
    #[test]
    fn every_command_is_listed_and_no_other() {
        let listed: Vec<&str> = ALL.iter().map(|command| command.name).collect();
        assert!(listed.is_sorted(), "{listed:?}");
        let understood: BTreeSet<String> = ALL_COMMANDS
            .iter()
            .map(|(typed, _)| typed.split(' ').next().unwrap_or_default().to_ascii_lowercase())
            .collect();
        assert_eq!(listed, understood.iter().map(String::as_str).collect::<Vec<_>>());
    }
}
