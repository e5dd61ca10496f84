//! The table of commands: the port finds a command in it by name, and `COMMAND` answers from it.

use super::args::printable_start;
use super::connection::{self, ConnectionCommand};
use super::keys::change::{self, DeleteCommand};
use super::keys::read::{ExistsCommand, GetCommand, TtlCommand};
use super::keys::set::SetCommand;
use super::{CommandError, Dispatcher, lease, script};
use crate::resp::codec::frame::CommandArgs;
use crate::resp::codec::reply::ReplyWriter;

/// No name of a command or subcommand is longer.
const MAX_NAME_BYTES: usize = 16;

/// A command as clients of Redis ask for it.
pub struct CommandInfo {
    /// In upper case.
    pub name: &'static [u8],
    /// How many words the command has, its name included. Negative: at least so many.
    words: i64,
    /// Which words are keys: the first, the last (negative: counted from the end), and the step between them.
    keys: (i64, i64, i64),
}

const NO_KEY: (i64, i64, i64) = (0, 0, 0);
const ONE_KEY: (i64, i64, i64) = (1, 1, 1);
const ALL_KEYS: (i64, i64, i64) = (1, -1, 1);

/// Makes the list of commands and the function that runs one from the same lines.
macro_rules! commands {
    (
        $(#[$doc:meta])*
        pub fn $function:ident($dispatcher:ident, $args:ident) {
            $($name:literal, $words:expr, $keys:expr => $run:expr;)*
        }
    ) => {
        /// Every command, in alphabetical order.
        pub const COMMANDS: &[CommandInfo] = &[$(CommandInfo { name: $name, words: $words, keys: $keys }),*];

        $(#[$doc])*
        pub fn $function($dispatcher: impl Dispatcher, $args: CommandArgs<'_>) -> Result<(), CommandError> {
            let name = $args.get(0).unwrap_or_default();
            let $args = $args.from(1);
            match $crate::resp::command::table::upper_case(name, &mut Default::default()) {
                $($name => $run,)*
                _ => return Err(unknown_command(name)),
            }
            Ok(())
        }
    };
}

/// Makes the list of subcommands of one command and the function that runs one from the same lines.
macro_rules! subcommands {
    (
        $(#[$doc:meta])*
        pub fn $function:ident($dispatcher:ident, $args:ident) {
            $($name:literal => $run:expr;)*
        }
        else $unknown:ident
    ) => {
        /// Every subcommand.
        #[allow(dead_code, reason = "a test compares every group with the commands that tests try")]
        pub const SUBCOMMANDS: &[&[u8]] = &[$($name),*];

        $(#[$doc])*
        pub fn $function(
            $dispatcher: impl $crate::resp::command::Dispatcher,
            $args: $crate::resp::codec::frame::CommandArgs<'_>,
        ) -> Result<(), $crate::resp::command::CommandError> {
            let name = $args.get(0).unwrap_or_default();
            let $args = $args.from(1);
            match $crate::resp::command::table::upper_case(name, &mut Default::default()) {
                $($name => $run,)*
                _ => return Err($unknown(&name.to_ascii_uppercase())),
            }
            Ok(())
        }
    };
}
pub(super) use subcommands;

commands! {
    /// Parses a command and runs it. The keys of `EVAL`, `EVALSHA` and `LEASE` are counted by the command itself.
    ///
    /// # Errors
    ///
    /// Why the command cannot run as it is written.
    pub fn dispatch(dispatcher, args) {
        b"AUTH", -2, NO_KEY => dispatcher.connection(connection::parse_auth(args)?);
        b"CLIENT", -2, NO_KEY => connection::dispatch_client(dispatcher, args)?;
        b"COMMAND", -1, NO_KEY => dispatcher.connection(ConnectionCommand::Commands(CommandQuery::parse(args)?));
        b"DEL", -2, ALL_KEYS => dispatcher.spawned(DeleteCommand::parse(args)?);
        b"DISCARD", 1, NO_KEY => dispatcher.connection(ConnectionCommand::Discard);
        b"ECHO", 2, NO_KEY => dispatcher.connection(connection::parse_echo(args)?);
        b"EVAL", -3, NO_KEY => script::dispatch_eval(dispatcher, args)?;
        b"EVALSHA", -3, NO_KEY => script::dispatch_evalsha(dispatcher, args)?;
        b"EXEC", 1, NO_KEY => dispatcher.connection(ConnectionCommand::Exec);
        b"EXISTS", -2, ALL_KEYS => dispatcher.inline(ExistsCommand::parse(args)?);
        b"GET", 2, ONE_KEY => dispatcher.inline(GetCommand::parse(args)?);
        b"HELLO", -1, NO_KEY => dispatcher.connection(connection::parse_hello(args)?);
        b"INFO", -1, NO_KEY => dispatcher.connection(ConnectionCommand::Info);
        b"LEASE", -2, NO_KEY => lease::dispatch(dispatcher, args)?;
        b"MULTI", 1, NO_KEY => dispatcher.connection(ConnectionCommand::Multi);
        b"PEXPIRE", -3, ONE_KEY => change::dispatch_pexpire(dispatcher, args)?;
        b"PING", -1, NO_KEY => dispatcher.connection(connection::parse_ping(args)?);
        b"PTTL", 2, ONE_KEY => dispatcher.inline(TtlCommand::parse_millis(args)?);
        b"QUIT", 1, NO_KEY => dispatcher.connection(ConnectionCommand::Quit);
        b"SCRIPT", -2, NO_KEY => script::dispatch(dispatcher, args)?;
        b"SELECT", 2, NO_KEY => dispatcher.connection(connection::parse_select(args)?);
        b"SET", -3, ONE_KEY => dispatcher.inline(SetCommand::parse(args)?);
        b"TIME", 1, NO_KEY => dispatcher.connection(ConnectionCommand::Time);
        b"TTL", 2, ONE_KEY => dispatcher.inline(TtlCommand::parse_seconds(args)?);
    }
}

/// The word in upper case; empty if it is longer than any name.
pub fn upper_case<'b>(word: &[u8], buffer: &'b mut [u8; MAX_NAME_BYTES]) -> &'b [u8] {
    let Some(upper) = buffer.get_mut(..word.len()) else { return b"" };
    upper.copy_from_slice(word);
    upper.make_ascii_uppercase();
    upper
}

fn unknown_command(name: &[u8]) -> CommandError {
    let name = printable_start(name);
    format!(
        "{name} is not supported: this server knows LEASE … and what lock clients of Redis use (SET key value NX PX ms, …)"
    )
    .into()
}

/// Which argument names the resource that the command looks up first, without parsing the command. A hint for the
/// lookahead: for a command that looks up none on the inline path it may be any argument.
pub fn first_name_index(args: CommandArgs<'_>) -> Option<usize> {
    let name = args.get(0)?;
    if name.eq_ignore_ascii_case(b"LEASE") {
        lease::first_name_index(args)
    } else if name.eq_ignore_ascii_case(b"EVALSHA") || name.eq_ignore_ascii_case(b"EVAL") {
        Some(script::FIRST_KEY_INDEX)
    } else {
        Some(1)
    }
}

/// What a client asks about the commands.
#[derive(Debug, PartialEq, Eq)]
pub enum CommandQuery<'a> {
    /// `COMMAND`: all of them.
    All,
    /// `COMMAND COUNT`.
    Count,
    /// `COMMAND LIST`: their names.
    Names,
    /// `COMMAND INFO name …`.
    Named(Vec<&'a [u8]>),
    /// `COMMAND DOCS`: always empty.
    Docs,
}

impl<'a> CommandQuery<'a> {
    pub fn parse(args: CommandArgs<'a>) -> Result<Self, CommandError> {
        let subcommand = args.get(0).unwrap_or_default().to_ascii_uppercase();
        match subcommand.as_slice() {
            b"" => Ok(Self::All),
            b"COUNT" if args.len() == 1 => Ok(Self::Count),
            b"LIST" if args.len() == 1 => Ok(Self::Names),
            b"INFO" if args.len() == 1 => Ok(Self::All),
            b"INFO" => Ok(Self::Named(args.from(1).iter().collect())),
            b"DOCS" => Ok(Self::Docs),
            _ => Err(format!("COMMAND {} is not supported", printable_start(&subcommand)).into()),
        }
    }

    pub fn write_reply(&self, reply: &mut ReplyWriter<'_>) {
        match self {
            Self::All => {
                reply.array(COMMANDS.len());
                COMMANDS.iter().for_each(|command| command.write_info(reply));
            }
            Self::Count => reply.integer(i64::try_from(COMMANDS.len()).unwrap_or(i64::MAX)),
            Self::Names => {
                reply.array(COMMANDS.len());
                COMMANDS.iter().for_each(|command| command.write_name(reply));
            }
            Self::Named(names) => {
                reply.array(names.len());
                for name in names {
                    match COMMANDS.iter().find(|command| name.eq_ignore_ascii_case(command.name)) {
                        Some(command) => command.write_info(reply),
                        None => reply.nil(),
                    }
                }
            }
            Self::Docs => reply.map(0),
        }
    }
}

impl CommandInfo {
    fn write_info(&self, reply: &mut ReplyWriter<'_>) {
        reply.array(6);
        self.write_name(reply);
        reply.integer(self.words);
        reply.array(0);
        let (first, last, step) = self.keys;
        [first, last, step].into_iter().for_each(|number| reply.integer(number));
    }

    fn write_name(&self, reply: &mut ReplyWriter<'_>) {
        reply.bulk(&self.name.to_ascii_lowercase());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::tests::words::Words;

    /// Goal: clients that search the list of commands find it sorted.
    #[test]
    fn commands_are_in_alphabetical_order() {
        let names: Vec<&[u8]> = COMMANDS.iter().map(|command| command.name).collect();
        assert!(names.is_sorted(), "{names:?}");
        assert!(names.iter().all(|name| name.len() <= MAX_NAME_BYTES));
    }

    /// Goal: the name that is prefetched is the resource, not a word of the command.
    #[test]
    fn first_name_is_the_resource() {
        for (line, name) in [
            ("SET a v NX PX 30000", Some("a")),
            ("get a", Some("a")),
            ("EXISTS a b", Some("a")),
            ("LEASE ACQUIRE 30000 RESOURCES a b", Some("a")),
            ("lease acquire 30000 wait 5 full resources a", Some("a")),
            ("LEASE ACQUIRE 30000 EACH a X b S", Some("a")),
            ("EVALSHA c3f8721cbb97f72bc19e972846bd7aaf91901658 1 a v", Some("a")),
            // A lease is looked up by its token, not by a name.
            ("LEASE RELEASE 1-00000000000000000000000000000000", None),
            ("LEASE RENEW 1-00000000000000000000000000000000 30000", None),
            ("LEASE GET a", None),
            ("LEASE", None),
            ("PING", None),
        ] {
            let words = Words::new(line);
            let found = first_name_index(words.args()).and_then(|index| words.args().get(index));
            assert_eq!(found, name.map(str::as_bytes), "{line}");
        }
    }
}
