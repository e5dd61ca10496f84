//! `EVAL`, `EVALSHA`, `SCRIPT`: the scripts of common lock clients, known by their SHA-1 and run as native calls.
//!
//! There is no script interpreter: any other script is refused in one sentence.

use std::borrow::Cow;

use leasehold_core::Push;
use sha1::{Digest, Sha1};

use super::args::{parse_number, parse_text, printable_start};
use super::connection::ConnectionCommand;
use super::keys::KeyReply;
use super::keys::change::{DeleteCommand, ExtendCommand};
use super::keys::set::SetAllCommand;
use super::table::subcommands;
use super::{CommandError, Dispatcher};
use crate::resp::codec::frame::CommandArgs;
use crate::resp::codec::reply::ReplyWriter;

/// What a known script does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LockScript {
    /// Sets all keys or none. Replies how many.
    Acquire,
    /// Deletes the key if it has this value. Replies 1 or 0.
    Release,
    /// Deletes those keys that have this value. Replies how many.
    ReleaseAll,
    /// Sets the end of the key if it has this value. Replies 1 or 0.
    Expire,
    /// Sets the end of all keys if they all have this value. Replies how many, or 0.
    ExpireAll,
    /// Adds to the end of the key if it has this value, or sets it, as the third argument says. Replies 1 or 0.
    Extend,
}

/// SHA-1 of the script's text, what it does, and which client sends it.
const KNOWN_SCRIPTS: [(&str, LockScript, &str); 16] = [
    ("c3f8721cbb97f72bc19e972846bd7aaf91901658", LockScript::Release, "redis-py"),
    ("a4e8783852e6b949f9ef3a97212805108459a890", LockScript::Extend, "redis-py"),
    ("1cac51482acf5858da00f6d685d68f886cd6b6b2", LockScript::Expire, "redis-py"),
    ("e5a322e2634ef59a516e8ea150cb085afafee684", LockScript::Acquire, "redlock 4 for node"),
    ("0f0f23b9048b36752b5be114f357ba083449f908", LockScript::ReleaseAll, "redlock 4 for node"),
    ("ce46f80993d5dac20dd066eb301a4e37994bdbed", LockScript::ExpireAll, "redlock 4 for node"),
    ("daf86bbf8740dd3ca86733367a016364b2110627", LockScript::Release, "rslock"),
    ("17a49af0c4b1a9034503fa84f3570f5ca76c4cbf", LockScript::Expire, "rslock"),
    ("7157921a7cc7cfba979acf6d63f073151df17d12", LockScript::Release, "redis-semaphore"),
    ("594683e49a64ebaf975caf5f8079a1d097c438f1", LockScript::Expire, "redis-semaphore"),
    // The release script as the documentation of Redis gives it, in the spellings people copy.
    ("647c65a442733a1aa440f99908d249d13b4d6c4a", LockScript::Release, "the documentation of Redis"),
    ("b70c2384248f88e6b75b9f89241a180f856ad852", LockScript::Release, "the documentation of Redis"),
    ("f4984e94dda5d9bba88c7bdb1a61c5508d8bfd9c", LockScript::Release, "the documentation of Redis"),
    ("ae3671744a5dbb24ea37ef607b8b10ac7856d43e", LockScript::Release, "the documentation of Redis"),
    ("e9f69f2beb755be68b5e456ee2ce9aadfbc4ebf4", LockScript::Release, "the documentation of Redis"),
    ("cf0e94b2e9ffc7e04395cf88f7583fc309985910", LockScript::Release, "the documentation of Redis"),
];

/// The refusal of any other script.
const UNKNOWN_SCRIPT: &str = "this server runs no scripts: it knows those of common lock clients (redis-py, redlock, \
    rslock, redis-semaphore) by their SHA-1, and this is none of them; LEASE ACQUIRE, RENEW and RELEASE do the same";

/// The reply to a SHA-1 that is not known. Clients wait for these words before they send the script itself.
const NO_SCRIPT: CommandError =
    CommandError { word: "NOSCRIPT", sentence: Cow::Borrowed("No matching script. Please use EVAL.") };

/// The script with this SHA-1, in hexadecimal of either case.
fn find_script(sha1: &[u8]) -> Option<LockScript> {
    KNOWN_SCRIPTS.iter().find(|(known, ..)| known.as_bytes().eq_ignore_ascii_case(sha1)).map(|(_, script, _)| *script)
}

fn sha1_hex(text: &[u8]) -> String {
    Sha1::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Parses and runs `EVALSHA`.
pub fn dispatch_evalsha(dispatcher: impl Dispatcher, args: CommandArgs<'_>) -> Result<(), CommandError> {
    let sha1 = args.get(0).ok_or_else(|| CommandError::usage("EVALSHA sha1 numkeys key … arg …"))?;
    dispatch_script(dispatcher, find_script(sha1).ok_or(NO_SCRIPT)?, args.from(1))
}

/// Parses and runs `EVAL`.
pub fn dispatch_eval(dispatcher: impl Dispatcher, args: CommandArgs<'_>) -> Result<(), CommandError> {
    let text = args.get(0).ok_or_else(|| CommandError::usage("EVAL script numkeys key … arg …"))?;
    let script = find_script(sha1_hex(text).as_bytes()).ok_or(UNKNOWN_SCRIPT)?;
    dispatch_script(dispatcher, script, args.from(1))
}

/// Which argument of `EVAL` and `EVALSHA` is the first key, counted from the command's name.
pub const FIRST_KEY_INDEX: usize = 3;

/// Runs a known script. `args` begin with the number of keys.
fn dispatch_script(dispatcher: impl Dispatcher, script: LockScript, args: CommandArgs<'_>) -> Result<(), CommandError> {
    let count = parse_number(args.get(0).ok_or("a script says how many keys it has")?, "the number of keys")?;
    let count =
        usize::try_from(count).ok().filter(|count| *count < args.len()).ok_or("there are fewer keys than said")?;
    let keys =
        (1..=count).filter_map(|at| args.get(at)).map(|key| parse_text(key, "a key")).collect::<Result<Vec<_>, _>>()?;
    if keys.is_empty() {
        return Err("a lock script has at least one key".into());
    }
    if keys.len() > 1 && matches!(script, LockScript::Release | LockScript::Expire | LockScript::Extend) {
        return Err("this script has one key".into());
    }
    let more = args.from(count + 1);
    let argument = |at: usize| more.get(at).ok_or("this script lacks an argument");
    let value = argument(0)?;
    let ms = |at| parse_number(argument(at)?, "an expiry");
    let extend = |keys, push, shape| ExtendCommand { keys, value: Some(value), push, shape };
    match script {
        LockScript::Acquire => dispatcher.inline(SetAllCommand { keys, value, ttl_ms: ms(1)? }),
        LockScript::Release | LockScript::ReleaseAll => dispatcher.inline(DeleteCommand { keys, value: Some(value) }),
        LockScript::Expire => dispatcher.inline(extend(keys, Push::Set(ms(1)?), KeyReply::Flag)),
        LockScript::ExpireAll => dispatcher.inline(extend(keys, Push::Set(ms(1)?), KeyReply::Count)),
        LockScript::Extend => {
            let ms = ms(1)?;
            let push = if argument(2)? == b"0" { Push::Add(ms) } else { Push::Set(ms) };
            dispatcher.inline(extend(keys, push, KeyReply::Flag));
        }
    }
    Ok(())
}

/// What a client asks about scripts.
#[derive(Debug, PartialEq, Eq)]
pub enum ScriptQuery<'a> {
    /// `SCRIPT LOAD text`: the SHA-1 of a known script.
    Load(&'a [u8]),
    /// `SCRIPT EXISTS sha1 …`: which of them are known.
    Exists(Vec<&'a [u8]>),
}

subcommands! {
    /// Parses and runs a `SCRIPT` command.
    pub fn dispatch(dispatcher, args) {
        b"LOAD" => dispatcher.connection(ConnectionCommand::Script(ScriptQuery::parse_load(args)?));
        b"EXISTS" => dispatcher.connection(ConnectionCommand::Script(ScriptQuery::parse_exists(args)?));
    }
    else unknown_script_command
}

fn unknown_script_command(subcommand: &[u8]) -> CommandError {
    format!("SCRIPT {} is not supported", printable_start(subcommand)).into()
}

impl<'a> ScriptQuery<'a> {
    fn parse_load(args: CommandArgs<'a>) -> Result<Self, CommandError> {
        Ok(Self::Load(args.get(0).ok_or_else(|| CommandError::usage("SCRIPT LOAD text"))?))
    }

    fn parse_exists(args: CommandArgs<'a>) -> Result<Self, CommandError> {
        if args.len() == 0 {
            return Err(CommandError::usage("SCRIPT EXISTS sha1 [sha1 …]"));
        }
        Ok(Self::Exists(args.iter().collect()))
    }

    pub fn write_reply(&self, reply: &mut ReplyWriter<'_>) {
        match self {
            Self::Load(text) => {
                let sha1 = sha1_hex(text);
                match find_script(sha1.as_bytes()) {
                    Some(_) => reply.text(&sha1),
                    None => reply.invalid(UNKNOWN_SCRIPT),
                }
            }
            Self::Exists(all) => {
                reply.array(all.len());
                for sha1 in all {
                    reply.integer(find_script(sha1).is_some().into());
                }
            }
        }
    }
}
