//! What a command polled_events for: bytes become words that the service knows.

use leasehold::engine::{Mode, Token};

pub mod connection;
pub mod inline;
pub mod script;
pub mod spawned;
pub mod table;

use super::codec::frame::CommandArgs;
use crate::service::Verb;
use script::LockScript;
use table::CommandQuery;

/// A command that was understood.
#[derive(Debug, PartialEq, Eq)]
pub enum ParsedCommand<'a> {
    /// Something between the client and this connection.
    ConnectionCommand(ConnectionCommand<'a>),
    /// Something for the service.
    Call(Call<'a>),
}

/// What a connection answers by itself: it tells nothing of any lease.
#[derive(Debug, PartialEq, Eq)]
pub enum ConnectionCommand<'a> {
    /// Are you there?
    Ping(Option<&'a [u8]>),
    /// Say this.
    Echo(&'a [u8]),
    /// Which version, who, and what name.
    Hello { version: Option<&'a [u8]>, key: Option<&'a [u8]>, name: Option<&'a [u8]> },
    /// Who.
    Auth(&'a [u8]),
    /// Which database: there is one.
    Select(&'a [u8]),
    /// A name for this connection.
    SetName(&'a [u8]),
    /// The name of this connection.
    GetName,
    /// The number of this connection.
    ClientId,
    /// What library: noted by nobody.
    SetInfo,
    /// Which commands there are.
    Commands(CommandQuery<'a>),
    /// CommandQuery the server.
    Info,
    /// Goodbye.
    Quit,
    /// A transaction begins: refused, with all that is in it.
    Multi,
    /// It ends.
    Exec,
    /// It is given up.
    Discard,
    /// Is this script known?
    Load(&'a [u8]),
    /// Which of these are known?
    Exist(Vec<&'a [u8]>),
}

/// How the answer to a push or a delete is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// How many.
    Count,
    /// Whether any.
    Flag,
}

/// What the service is asked.
#[derive(Debug, PartialEq, Eq)]
pub enum Call<'a> {
    /// Take resources.
    Acquire(Acquire<'a>),
    /// Push the end of a lease.
    Renew { lease: &'a str, ttl_ms: Option<u64>, full: bool },
    /// End a lease.
    Release { lease: &'a str },
    /// Look at one resource.
    Inspect { name: &'a str },
    /// List resources.
    List { prefix: &'a str, limit: usize, after: Option<&'a str> },
    /// End other people's leases.
    Revoke { name: &'a str, reason: &'a str },
    /// Be told what happens.
    Watch { prefix: &'a str, since: Option<&'a str> },
    /// What the engine swears to.
    Promises,
    /// Below which token none will come any more; with a token, raise that floor.
    Floor { raise: Option<Token> },
    /// Which engine it is, and what is known of it.
    Engine,
    /// Take one key.
    Set { key: &'a str, value: &'a [u8], ttl_ms: u64 },
    /// Take several keys, all or none.
    SetAll { keys: Vec<&'a str>, value: &'a [u8], ttl_ms: u64 },
    /// The value of a key.
    Get { key: &'a str },
    /// How many of these there are.
    Exists { keys: Vec<&'a str> },
    /// How long a key lives.
    Ttl { key: &'a str, seconds: bool },
    /// Delete keys.
    Free { keys: Vec<&'a str>, value: Option<&'a [u8]> },
    /// Push the end of keys: by this much, or to it.
    Extend { keys: Vec<&'a str>, value: Option<&'a [u8]>, ms: u64, add: bool, form: Form },
}

/// A claim as it is written on the wire.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Acquire<'a> {
    /// What is wanted, and how.
    pub wants: Vec<(&'a str, Mode)>,
    /// Asked life.
    pub ttl_ms: u64,
    /// Patience.
    pub wait_ms: u64,
    /// The cap.
    pub max_hold_ms: Option<u64>,
    /// Closed after a lapse.
    pub delay_ms: u64,
    /// Who, for people.
    pub holder: Option<&'a str>,
    /// The request id.
    pub request: Option<&'a str>,
    /// Whether the answer says how far the lease can be renewed.
    pub full: bool,
}

impl<'a> Call<'a> {
    /// The resources it touches by name.
    pub fn names(&self) -> Vec<&'a str> {
        match self {
            Self::Acquire(asked) => asked.wants.iter().map(|(name, _)| *name).collect(),
            Self::Inspect { name } | Self::Revoke { name, .. } => vec![name],
            Self::Set { key, .. } | Self::Get { key } | Self::Ttl { key, .. } => vec![key],
            Self::SetAll { keys, .. } | Self::Exists { keys } | Self::Free { keys, .. } | Self::Extend { keys, .. } => {
                keys.clone()
            }
            Self::Renew { .. }
            | Self::Release { .. }
            | Self::List { .. }
            | Self::Watch { .. }
            | Self::Promises
            | Self::Floor { .. }
            | Self::Engine => Vec::new(),
        }
    }

    /// Whether this is true of one of the resources it touches by name.
    pub fn any_name(&self, is: impl Fn(&str) -> bool) -> bool {
        match self {
            Self::Acquire(asked) => asked.wants.iter().any(|(name, _)| is(name)),
            Self::Inspect { name } | Self::Revoke { name, .. } => is(name),
            Self::Set { key, .. } | Self::Get { key } | Self::Ttl { key, .. } => is(key),
            Self::SetAll { keys, .. } | Self::Exists { keys } | Self::Free { keys, .. } | Self::Extend { keys, .. } => {
                keys.iter().any(|key| is(key))
            }
            Self::Renew { .. }
            | Self::Release { .. }
            | Self::List { .. }
            | Self::Watch { .. }
            | Self::Promises
            | Self::Floor { .. }
            | Self::Engine => false,
        }
    }

    /// What it takes to be let through.
    pub const fn verb(&self) -> Verb {
        match self {
            Self::Acquire(_) => Verb::Acquire,
            Self::Renew { .. } => Verb::Renew,
            Self::Release { .. } => Verb::Release,
            Self::Inspect { .. } => Verb::Inspect,
            Self::List { .. } => Verb::List,
            Self::Revoke { .. } => Verb::Revoke,
            Self::Watch { .. } => Verb::Watch,
            Self::Promises | Self::Engine => Verb::Status,
            Self::Floor { raise: None } => Verb::Floor,
            Self::Floor { raise: Some(_) } => Verb::RaiseFloor,
            Self::Set { .. } | Self::SetAll { .. } => Verb::SetKey,
            Self::Get { .. } | Self::Exists { .. } | Self::Ttl { .. } => Verb::GetKey,
            Self::Free { .. } => Verb::FreeKey,
            Self::Extend { .. } => Verb::ExtendKey,
        }
    }
}

type Understood<'a> = Result<ParsedCommand<'a>, String>;

/// Reads a command.
///
/// # Errors
///
/// One sentence that says what is wrong with it.
pub fn read<'a>(args: CommandArgs<'a>) -> Understood<'a> {
    let name = args.get(0).unwrap_or_default();
    let mut upper = [0; 16];
    let Some(upper) = upper.get_mut(..name.len()) else { return Err(unknown(name)) };
    upper.copy_from_slice(name);
    upper.make_ascii_uppercase();
    let rest = args.from(1);
    match &*upper {
        b"SET" => set(rest),
        b"LEASE" => lease(rest),
        b"EVALSHA" => eval_sha(rest),
        b"EVAL" => eval(rest),
        b"GET" => Ok(call(Call::Get { key: only(rest, "GET key")? })),
        b"EXISTS" => Ok(call(Call::Exists { keys: names(rest, "EXISTS key [key …]")? })),
        b"PTTL" => Ok(call(Call::Ttl { key: only(rest, "PTTL key")?, seconds: false })),
        b"TTL" => Ok(call(Call::Ttl { key: only(rest, "TTL key")?, seconds: true })),
        b"DEL" => Ok(call(Call::Free { keys: names(rest, "DEL key [key …]")?, value: None })),
        b"PEXPIRE" => pexpire(rest),
        _ => local(upper, rest, name),
    }
}

fn unknown(name: &[u8]) -> String {
    let shown = shown(name);
    format!(
        "{shown} is not supported: this server knows LEASE … and what lock clients of Redis use (SET key value NX PX ms, …)"
    )
}

/// So much of a word that nobody knows as fits in a sentence.
fn shown(word: &[u8]) -> String {
    String::from_utf8_lossy(word).chars().filter(|letter| !letter.is_control()).take(32).collect()
}

const fn call(call: Call<'_>) -> ParsedCommand<'_> {
    ParsedCommand::Call(call)
}

fn local<'a>(upper: &[u8], rest: CommandArgs<'a>, name: &[u8]) -> Understood<'a> {
    let word = |usage: &str| rest.get(0).filter(|_| rest.len() == 1).ok_or_else(|| wrong(usage));
    Ok(ParsedCommand::ConnectionCommand(match upper {
        b"PING" if rest.len() > 1 => return Err(wrong("PING [text]")),
        b"PING" => ConnectionCommand::Ping(rest.get(0)),
        b"ECHO" => ConnectionCommand::Echo(word("ECHO text")?),
        b"HELLO" => return hello(rest),
        // With one argument the key; with two the name `default`, which is ignored, and the key.
        b"AUTH" if rest.len() > 2 => return Err(wrong("AUTH key")),
        b"AUTH" => ConnectionCommand::Auth(rest.get(1).or_else(|| rest.get(0)).ok_or_else(|| wrong("AUTH key"))?),
        b"SELECT" => ConnectionCommand::Select(word("SELECT 0")?),
        b"CLIENT" => return client(rest),
        b"COMMAND" => return commands(rest),
        b"INFO" => ConnectionCommand::Info,
        b"QUIT" => ConnectionCommand::Quit,
        b"MULTI" => ConnectionCommand::Multi,
        b"EXEC" => ConnectionCommand::Exec,
        b"DISCARD" => ConnectionCommand::Discard,
        b"SCRIPT" => return script_command(rest),
        _ => return Err(unknown(name)),
    }))
}

fn hello(rest: CommandArgs<'_>) -> Understood<'_> {
    let mut at = usize::from(rest.len() > 0);
    let (mut key, mut name) = (None, None);
    while let Some(option) = rest.get(at) {
        if option.eq_ignore_ascii_case(b"AUTH") {
            key = Some(rest.get(at + 2).ok_or_else(|| wrong("HELLO 3 AUTH default key"))?);
            at += 3;
        } else if option.eq_ignore_ascii_case(b"SETNAME") {
            name = Some(rest.get(at + 1).ok_or_else(|| wrong("HELLO 3 SETNAME name"))?);
            at += 2;
        } else {
            return Err(wrong("HELLO [2|3] [AUTH default key] [SETNAME name]"));
        }
    }
    Ok(ParsedCommand::ConnectionCommand(ConnectionCommand::Hello { version: rest.get(0), key, name }))
}

fn client(rest: CommandArgs<'_>) -> Understood<'_> {
    let sub = rest.get(0).unwrap_or_default().to_ascii_uppercase();
    Ok(ParsedCommand::ConnectionCommand(match sub.as_slice() {
        b"SETNAME" => ConnectionCommand::SetName(rest.get(1).ok_or_else(|| wrong("CLIENT SETNAME name"))?),
        b"GETNAME" => ConnectionCommand::GetName,
        b"ID" => ConnectionCommand::ClientId,
        b"SETINFO" => ConnectionCommand::SetInfo,
        _ => return Err(format!("CLIENT {} is not supported", shown(&sub))),
    }))
}

fn commands(rest: CommandArgs<'_>) -> Understood<'_> {
    let sub = rest.get(0).unwrap_or_default().to_ascii_uppercase();
    Ok(ParsedCommand::ConnectionCommand(ConnectionCommand::Commands(match sub.as_slice() {
        b"" => CommandQuery::All,
        b"COUNT" if rest.len() == 1 => CommandQuery::Count,
        b"LIST" if rest.len() == 1 => CommandQuery::Names,
        b"INFO" if rest.len() == 1 => CommandQuery::All,
        b"INFO" => CommandQuery::Of(rest.from(1).iter().collect()),
        b"DOCS" => CommandQuery::Docs,
        _ => return Err(format!("COMMAND {} is not supported", shown(&sub))),
    })))
}

fn script_command(rest: CommandArgs<'_>) -> Understood<'_> {
    let sub = rest.get(0).unwrap_or_default().to_ascii_uppercase();
    Ok(ParsedCommand::ConnectionCommand(match sub.as_slice() {
        b"LOAD" => ConnectionCommand::Load(rest.get(1).ok_or_else(|| wrong("SCRIPT LOAD text"))?),
        b"EXISTS" if rest.len() < 2 => return Err(wrong("SCRIPT EXISTS sha1 [sha1 …]")),
        b"EXISTS" => ConnectionCommand::Exist(rest.from(1).iter().collect()),
        _ => return Err(format!("SCRIPT {} is not supported", shown(&sub))),
    }))
}

fn set(rest: CommandArgs<'_>) -> Understood<'_> {
    const USAGE: &str = "SET key value NX PX ms";
    let key = text(rest.get(0).ok_or_else(|| wrong(USAGE))?, "a key")?;
    let value = rest.get(1).ok_or_else(|| wrong(USAGE))?;
    let (mut only_new, mut ttl_ms, mut at) = (false, None, 2);
    while let Some(option) = rest.get(at) {
        let mut unit = None;
        if option.eq_ignore_ascii_case(b"NX") {
            only_new = true;
        } else if option.eq_ignore_ascii_case(b"PX") {
            unit = Some(1);
        } else if option.eq_ignore_ascii_case(b"EX") {
            unit = Some(1000);
        } else {
            return Err("SET is supported as SET key value NX PX ms (or EX s), and with no other option".into());
        }
        if let Some(unit) = unit {
            if ttl_ms.is_some() {
                return Err("SET takes one expiry: PX ms or EX s".into());
            }
            at += 1;
            let time = number(rest.get(at).ok_or_else(|| wrong(USAGE))?, "an expiry")?;
            ttl_ms = Some(time.saturating_mul(unit));
        }
        at += 1;
    }
    if !only_new {
        return Err("SET without NX would overwrite another's lock: say SET key value NX PX ms".into());
    }
    let ttl_ms =
        ttl_ms.ok_or("SET NX without an expiry would hold the lock for ever if its holder dies: add PX ms or EX s")?;
    Ok(call(Call::Set { key, value, ttl_ms }))
}

fn pexpire(rest: CommandArgs<'_>) -> Understood<'_> {
    const USAGE: &str = "PEXPIRE key ms";
    let (Some(key), Some(ms), 2) = (rest.get(0), rest.get(1), rest.len()) else { return Err(wrong(USAGE)) };
    let key = text(key, "a key")?;
    let ms: i64 = std::str::from_utf8(ms).ok().and_then(|ms| ms.parse().ok()).ok_or_else(|| wrong(USAGE))?;
    // As in Redis, an end that is not after now deletes the key.
    Ok(call(match u64::try_from(ms) {
        Ok(ms) if ms > 0 => Call::Extend { keys: vec![key], value: None, ms, add: false, form: Form::Count },
        _ => Call::Free { keys: vec![key], value: None },
    }))
}

/// The exact words that clients wait for before they send the script itself.
pub const NO_SCRIPT: &str = "No matching script. Please use EVAL.";

fn eval_sha(rest: CommandArgs<'_>) -> Understood<'_> {
    let sha = rest.get(0).ok_or_else(|| wrong("EVALSHA sha1 numkeys key … arg …"))?;
    // The one error that does not begin with INVALID: see `answer`.
    let script = script::by_sha(sha).ok_or(NO_SCRIPT)?;
    run(script, rest.from(1))
}

fn eval(rest: CommandArgs<'_>) -> Understood<'_> {
    let text = rest.get(0).ok_or_else(|| wrong("EVAL script numkeys key … arg …"))?;
    let script = script::by_sha(script::sha(text).as_bytes()).ok_or(script::UNKNOWN)?;
    run(script, rest.from(1))
}

fn run(script: LockScript, rest: CommandArgs<'_>) -> Understood<'_> {
    let count = number(rest.get(0).ok_or("a script says how many keys it has")?, "the number of keys")?;
    let count =
        usize::try_from(count).ok().filter(|count| *count < rest.len()).ok_or("there are fewer keys than said")?;
    let keys =
        (1..=count).filter_map(|at| rest.get(at)).map(|key| text(key, "a key")).collect::<Result<Vec<_>, _>>()?;
    if keys.is_empty() {
        return Err("a lock script has at least one key".into());
    }
    if keys.len() > 1 && matches!(script, LockScript::Release | LockScript::Expire | LockScript::Extend) {
        return Err("this script has one key".into());
    }
    let more = rest.from(count + 1);
    let argument = |at: usize| more.get(at).ok_or("this script lacks an argument");
    let value = argument(0)?;
    let ms = |at| number(argument(at)?, "an expiry");
    Ok(call(match script {
        LockScript::Acquire => Call::SetAll { keys, value, ttl_ms: ms(1)? },
        LockScript::Release | LockScript::ReleaseAll => Call::Free { keys, value: Some(value) },
        LockScript::Expire => Call::Extend { keys, value: Some(value), ms: ms(1)?, add: false, form: Form::Flag },
        LockScript::ExpireAll => Call::Extend { keys, value: Some(value), ms: ms(1)?, add: false, form: Form::Count },
        LockScript::Extend => {
            Call::Extend { keys, value: Some(value), ms: ms(1)?, add: argument(2)? == b"0", form: Form::Flag }
        }
    }))
}

fn lease(rest: CommandArgs<'_>) -> Understood<'_> {
    let sub = rest.get(0).unwrap_or_default().to_ascii_uppercase();
    let rest = rest.from(1);
    Ok(call(match sub.as_slice() {
        b"ACQUIRE" => Call::Acquire(acquire(rest)?),
        b"RENEW" => {
            let usage = "LEASE RENEW lease_id [ttl_ms] [FULL]";
            let lease = lease_id(rest.get(0).ok_or_else(|| wrong(usage))?);
            let full =
                rest.len() > 1 && rest.get(rest.len() - 1).is_some_and(|last| last.eq_ignore_ascii_case(b"FULL"));
            if rest.len() > 2 + usize::from(full) {
                return Err(wrong(usage));
            }
            let ttl = rest.get(1).filter(|_| rest.len() > 1 + usize::from(full));
            Call::Renew { lease, ttl_ms: ttl.map(|ms| number(ms, "ttl")).transpose()?, full }
        }
        b"RELEASE" => {
            let (Some(lease), 1) = (rest.get(0), rest.len()) else { return Err(wrong("LEASE RELEASE lease_id")) };
            Call::Release { lease: lease_id(lease) }
        }
        b"GET" => Call::Inspect { name: only(rest, "LEASE GET name")? },
        b"LIST" => list(rest)?,
        b"REVOKE" => {
            let (Some(name), Some(word), Some(reason), 3) = (rest.get(0), rest.get(1), rest.get(2), rest.len()) else {
                return Err(wrong("LEASE REVOKE name REASON text"));
            };
            if !word.eq_ignore_ascii_case(b"REASON") {
                return Err(wrong("LEASE REVOKE name REASON text"));
            }
            Call::Revoke { name: text(name, "a name")?, reason: text(reason, "a reason")? }
        }
        b"WATCH" => watch(rest)?,
        b"PROMISES" if rest.len() > 0 => return Err(wrong("LEASE PROMISES")),
        b"PROMISES" => Call::Promises,
        b"FLOOR" if rest.len() > 1 => return Err(wrong("LEASE FLOOR [token]")),
        b"FLOOR" => Call::Floor { raise: rest.get(0).map(token).transpose()? },
        b"ENGINE" if rest.len() > 0 => return Err(wrong("LEASE ENGINE")),
        b"ENGINE" => Call::Engine,
        other => {
            let shown = shown(other);
            return Err(format!(
                "LEASE {shown} is not known: ACQUIRE, RENEW, RELEASE, GET, LIST, REVOKE, WATCH, PROMISES, FLOOR, ENGINE"
            ));
        }
    }))
}

/// Text that is no lease id is an id we do not know, like any other.
fn lease_id(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}

const ACQUIRE: &str = "LEASE ACQUIRE ttl_ms [WAIT ms] [SHARED | PERMITS n CAPACITY m] [MAXHOLD ms] [DELAY ms] [HOLDER text] \
    [REQUEST id] [FULL] RESOURCES name [name …]";

fn acquire(rest: CommandArgs<'_>) -> Result<Acquire<'_>, String> {
    let ttl_ms = number(rest.get(0).ok_or_else(|| wrong(ACQUIRE))?, "ttl")?;
    let mut asked = Acquire { ttl_ms, ..Acquire::default() };
    let (mut shared, mut permits, mut capacity) = (false, None, None);
    let mut at = 1;
    loop {
        let option = rest.get(at).ok_or_else(|| wrong(ACQUIRE))?.to_ascii_uppercase();
        let value = || rest.get(at + 1).ok_or_else(|| wrong(ACQUIRE));
        match option.as_slice() {
            b"WAIT" => asked.wait_ms = number(value()?, "wait")?,
            b"MAXHOLD" => asked.max_hold_ms = Some(number(value()?, "max_hold")?),
            b"DELAY" => asked.delay_ms = number(value()?, "delay")?,
            b"HOLDER" => asked.holder = Some(text(value()?, "a holder")?),
            b"REQUEST" => asked.request = Some(text(value()?, "a request id")?),
            b"PERMITS" => permits = Some(small(value()?, "permits")?),
            b"CAPACITY" => capacity = Some(small(value()?, "capacity")?),
            b"SHARED" | b"FULL" => {
                if option == b"SHARED" {
                    shared = true
                } else {
                    asked.full = true
                }
                at += 1;
                continue;
            }
            b"RESOURCES" => break,
            b"EACH" if !shared && permits.is_none() && capacity.is_none() => {
                asked.wants = each(rest.from(at + 1))?;
                return Ok(asked);
            }
            _ => return Err(wrong(ACQUIRE)),
        }
        at += 2;
    }
    let mode = match (shared, permits, capacity) {
        (false, None, None) => Mode::Exclusive,
        (true, None, None) => Mode::Shared,
        (false, Some(count), Some(capacity)) => Mode::Permits { count, capacity },
        (false, Some(_), None) | (false, None, Some(_)) => {
            return Err("PERMITS and CAPACITY go together: PERMITS n CAPACITY m".into());
        }
        _ => return Err("a resource is wanted SHARED or by PERMITS, not both".into()),
    };
    asked.wants = names(rest.from(at + 1), ACQUIRE)?.into_iter().map(|name| (name, mode)).collect();
    Ok(asked)
}

/// Names with a mode each: `X`, `S`, or `n/m`.
fn each(rest: CommandArgs<'_>) -> Result<Vec<(&str, Mode)>, String> {
    const USAGE: &str = "LEASE ACQUIRE ttl_ms … EACH name X|S|n/m [name X|S|n/m …]";
    if rest.len() == 0 || !rest.len().is_multiple_of(2) {
        return Err(wrong(USAGE));
    }
    let mut wants = Vec::with_capacity(rest.len() / 2);
    for at in (0..rest.len()).step_by(2) {
        let (Some(name), Some(mode)) = (rest.get(at), rest.get(at + 1)) else { return Err(wrong(USAGE)) };
        let mode = match mode {
            b"X" | b"x" => Mode::Exclusive,
            b"S" | b"s" => Mode::Shared,
            share => {
                let share = text(share, "a mode")?;
                let (count, capacity) = share.split_once('/').ok_or_else(|| wrong(USAGE))?;
                Mode::Permits {
                    count: small(count.as_bytes(), "permits")?,
                    capacity: small(capacity.as_bytes(), "capacity")?,
                }
            }
        };
        wants.push((text(name, "a name")?, mode));
    }
    Ok(wants)
}

fn list(rest: CommandArgs<'_>) -> Result<Call<'_>, String> {
    const USAGE: &str = "LEASE LIST [PREFIX p] [LIMIT n] [AFTER name]";
    /// Without a limit, and at most.
    const MOST: usize = 1000;
    let (mut prefix, mut limit, mut after) = ("", MOST, None);
    for at in (0..rest.len()).step_by(2) {
        let value = rest.get(at + 1).ok_or_else(|| wrong(USAGE))?;
        match rest.get(at).unwrap_or_default().to_ascii_uppercase().as_slice() {
            b"PREFIX" => prefix = text(value, "a prefix")?,
            b"LIMIT" => limit = usize::try_from(number(value, "limit")?).unwrap_or(MOST).clamp(1, MOST),
            b"AFTER" => after = Some(text(value, "a name")?),
            _ => return Err(wrong(USAGE)),
        }
    }
    Ok(Call::List { prefix, limit, after })
}

fn watch(rest: CommandArgs<'_>) -> Result<Call<'_>, String> {
    const USAGE: &str = "LEASE WATCH [PREFIX p] [SINCE id]";
    let (mut prefix, mut since) = ("", None);
    for at in (0..rest.len()).step_by(2) {
        let value = text(rest.get(at + 1).ok_or_else(|| wrong(USAGE))?, "an argument")?;
        match rest.get(at).unwrap_or_default().to_ascii_uppercase().as_slice() {
            b"PREFIX" => prefix = value,
            b"SINCE" => since = Some(value),
            _ => return Err(wrong(USAGE)),
        }
    }
    Ok(Call::Watch { prefix, since })
}

fn wrong(usage: &str) -> String {
    format!("the command is written {usage}")
}

fn text<'a>(bytes: &'a [u8], what: &str) -> Result<&'a str, String> {
    std::str::from_utf8(bytes).map_err(|_| format!("{what} is UTF-8 text"))
}

fn number(bytes: &[u8], what: &str) -> Result<u64, String> {
    if bytes.is_empty() || bytes.len() > 20 || !bytes.iter().all(u8::is_ascii_digit) {
        return Err(format!("{what} is a whole number"));
    }
    std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok()).ok_or_else(|| format!("{what} is too large"))
}

fn token(bytes: &[u8]) -> Result<Token, String> {
    let number = number(bytes, "a token")?;
    Token::new(number).ok_or_else(|| format!("a token is from 1 to {}", Token::MAX))
}

fn small(bytes: &[u8], what: &str) -> Result<u32, String> {
    u32::try_from(number(bytes, what)?).map_err(|_| format!("{what} is too large"))
}

fn only<'a>(rest: CommandArgs<'a>, usage: &str) -> Result<&'a str, String> {
    match (rest.get(0), rest.len()) {
        (Some(name), 1) => text(name, "a name"),
        _ => Err(wrong(usage)),
    }
}

fn names<'a>(rest: CommandArgs<'a>, usage: &str) -> Result<Vec<&'a str>, String> {
    if rest.len() == 0 {
        return Err(wrong(usage));
    }
    rest.iter().map(|name| text(name, "a name")).collect()
}
