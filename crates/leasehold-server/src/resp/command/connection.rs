//! `PING`, `ECHO`, `HELLO`, `AUTH`, `SELECT`, `CLIENT`, `INFO`, `TIME`, `QUIT`, `MULTI`, `EXEC`, `DISCARD`: commands that the
//! connection answers by itself. They reveal nothing of any lease.

use leasehold_support::time::wall_micros;

use super::CommandError;
use super::args::{printable_start, single_argument};
use super::script::ScriptQuery;
use super::table::{CommandQuery, subcommands};
use crate::resp::codec::frame::CommandArgs;
use crate::resp::codec::reply::{ReplyWriter, RespVersion};
use crate::resp::connection::ClientConnection;
use crate::service::{Denial, Service};

/// The version of Redis whose commands lock clients may count on.
const REDIS_VERSION: &str = "7.0.0";

/// The longest name of a connection.
const MAX_NAME_BYTES: usize = 128;

/// A command for the connection itself.
#[derive(Debug, PartialEq, Eq)]
pub enum ConnectionCommand<'a> {
    Ping(Option<&'a [u8]>),
    Echo(&'a [u8]),
    Hello(HelloCommand<'a>),
    Auth {
        key: &'a [u8],
    },
    /// The database: there is only 0.
    Select(&'a [u8]),
    SetName(&'a [u8]),
    GetName,
    ClientId,
    /// The client's library. It is not stored.
    SetInfo,
    Commands(CommandQuery<'a>),
    Info,
    /// The wall clock of this machine, to be compared with another's.
    Time,
    Quit,
    /// Starts a transaction: refused, with every command in it.
    Multi,
    Exec,
    Discard,
    Script(ScriptQuery<'a>),
}

/// `HELLO [2|3] [AUTH default key] [SETNAME name]`.
#[derive(Debug, PartialEq, Eq)]
pub struct HelloCommand<'a> {
    version: Option<&'a [u8]>,
    key: Option<&'a [u8]>,
    name: Option<&'a [u8]>,
}

type Parsed<'a> = Result<ConnectionCommand<'a>, CommandError>;

pub fn parse_ping(args: CommandArgs<'_>) -> Parsed<'_> {
    if args.len() > 1 {
        return Err(CommandError::usage("PING [text]"));
    }
    Ok(ConnectionCommand::Ping(args.get(0)))
}

pub fn parse_echo(args: CommandArgs<'_>) -> Parsed<'_> {
    Ok(ConnectionCommand::Echo(single_argument(args, "ECHO text")?))
}

pub fn parse_select(args: CommandArgs<'_>) -> Parsed<'_> {
    Ok(ConnectionCommand::Select(single_argument(args, "SELECT 0")?))
}

/// With one argument it is the key. With two the first is a user name, which is ignored.
pub fn parse_auth(args: CommandArgs<'_>) -> Parsed<'_> {
    let key = args.get(1).or_else(|| args.get(0)).filter(|_| args.len() <= 2);
    Ok(ConnectionCommand::Auth { key: key.ok_or_else(|| CommandError::usage("AUTH key"))? })
}

pub fn parse_hello(args: CommandArgs<'_>) -> Parsed<'_> {
    let mut parsed = HelloCommand { version: args.get(0), key: None, name: None };
    let mut at = 1;
    while let Some(option) = args.get(at) {
        if option.eq_ignore_ascii_case(b"AUTH") {
            let key = args.get(at + 2).ok_or_else(|| CommandError::usage("HELLO 3 AUTH default key"))?;
            parsed.key = Some(key);
            at += 3;
        } else if option.eq_ignore_ascii_case(b"SETNAME") {
            let name = args.get(at + 1).ok_or_else(|| CommandError::usage("HELLO 3 SETNAME name"))?;
            parsed.name = Some(name);
            at += 2;
        } else {
            return Err(CommandError::usage("HELLO [2|3] [AUTH default key] [SETNAME name]"));
        }
    }
    Ok(ConnectionCommand::Hello(parsed))
}

subcommands! {
    /// Parses and runs a `CLIENT` command.
    pub fn dispatch_client(dispatcher, args) {
        b"SETNAME" => dispatcher.connection(parse_set_name(args)?);
        b"GETNAME" => dispatcher.connection(ConnectionCommand::GetName);
        b"ID" => dispatcher.connection(ConnectionCommand::ClientId);
        b"SETINFO" => dispatcher.connection(ConnectionCommand::SetInfo);
    }
    else unknown_client_command
}

fn parse_set_name(args: CommandArgs<'_>) -> Parsed<'_> {
    let name = args.get(0).ok_or_else(|| CommandError::usage("CLIENT SETNAME name"))?;
    Ok(ConnectionCommand::SetName(name))
}

fn unknown_client_command(subcommand: &[u8]) -> CommandError {
    format!("CLIENT {} is not supported", printable_start(subcommand)).into()
}

impl ConnectionCommand<'_> {
    /// Whether a client may send it before it has shown a key.
    pub const fn runs_before_auth(&self) -> bool {
        matches!(self, Self::Auth { .. } | Self::Hello(_) | Self::Quit)
    }

    /// Writes the reply, and changes the connection as asked.
    pub fn execute(&self, service: &Service, connection: &mut ClientConnection, out: &mut Vec<u8>) {
        let mut reply = ReplyWriter::new(out, connection.version);
        match self {
            Self::Ping(None) => reply.simple("PONG"),
            Self::Ping(Some(text)) | Self::Echo(text) => reply.bulk(text),
            Self::Hello(hello) => hello.execute(service, connection, out),
            Self::Auth { key } => match authenticate(service, key, connection) {
                Ok(()) => reply.simple("OK"),
                Err(denial) => write_auth_failure(&mut reply, &denial),
            },
            Self::Select(b"0") => reply.simple("OK"),
            Self::Select(_) => reply.invalid("there is one database, and its number is 0"),
            Self::SetName(name) => match set_connection_name(name, connection) {
                Ok(()) => reply.simple("OK"),
                Err(sentence) => reply.invalid(sentence),
            },
            Self::GetName if connection.name.is_empty() => reply.nil(),
            Self::GetName => reply.text(&connection.name),
            Self::ClientId => reply.unsigned(connection.id),
            Self::SetInfo => reply.simple("OK"),
            Self::Commands(query) => query.write_reply(&mut reply),
            Self::Info => reply.verbatim(&server_info()),
            Self::Time => {
                let micros = wall_micros();
                reply.array(2);
                reply.text(&(micros / 1_000_000).to_string());
                reply.text(&(micros % 1_000_000).to_string());
            }
            Self::Quit => {
                reply.simple("OK");
                connection.state.start_draining();
            }
            // The commands of a transaction would take effect one by one. So they are refused until it ends.
            Self::Multi => {
                connection.in_refused_multi = true;
                reply.invalid(
                    "MULTI is not supported: send the commands without it (redis-py: pipeline(transaction=False))",
                );
            }
            Self::Exec if std::mem::take(&mut connection.in_refused_multi) => {
                reply.error("EXECABORT", "Transaction discarded because of previous errors.");
            }
            Self::Discard if std::mem::take(&mut connection.in_refused_multi) => reply.simple("OK"),
            Self::Exec => reply.error("ERR", "EXEC without MULTI"),
            Self::Discard => reply.error("ERR", "DISCARD without MULTI"),
            Self::Script(query) => query.write_reply(&mut reply),
        }
    }
}

fn authenticate(service: &Service, key: &[u8], connection: &mut ClientConnection) -> Result<(), Denial> {
    // Bytes that are not text count as a wrong key.
    let entered = service.authenticate(Some(std::str::from_utf8(key).unwrap_or_default()), connection.peer);
    // A wrong key ends what an earlier key allowed: no client goes on under another identity by mistake.
    connection.caller = None;
    connection.caller = Some(entered?);
    Ok(())
}

/// Clients know a wrong key by Redis's own word. A rate limit has our word.
fn write_auth_failure(reply: &mut ReplyWriter<'_>, denial: &Denial) {
    match denial {
        Denial::Slow(_) => reply.denial(denial),
        _ => reply.error("WRONGPASS", "invalid API key, or it was revoked"),
    }
}

fn set_connection_name(name: &[u8], connection: &mut ClientConnection) -> Result<(), &'static str> {
    let name = std::str::from_utf8(name).map_err(|_| "a name is UTF-8 text")?;
    if name.len() > MAX_NAME_BYTES || name.chars().any(|letter| letter.is_control() || letter == ' ') {
        return Err("a name has at most 128 bytes, no spaces and no control characters");
    }
    name.clone_into(&mut connection.name);
    connection.holder =
        if name.is_empty() { connection.peer.to_string() } else { format!("{name} {}", connection.peer) };
    Ok(())
}

impl HelloCommand<'_> {
    fn execute(&self, service: &Service, connection: &mut ClientConnection, out: &mut Vec<u8>) {
        let mut refusal = ReplyWriter::new(out, connection.version);
        let version = match self.version {
            None => connection.version,
            Some(b"2") => RespVersion::Resp2,
            Some(b"3") => RespVersion::Resp3,
            Some(_) => return refusal.error("NOPROTO", "unsupported protocol version"),
        };
        if let Some(key) = self.key
            && let Err(denial) = authenticate(service, key, connection)
        {
            return write_auth_failure(&mut refusal, &denial);
        }
        if connection.caller.is_none() {
            return refusal.error(
                "NOAUTH",
                "HELLO must be called with the client already authenticated, or with AUTH default KEY",
            );
        }
        if let Some(name) = self.name
            && let Err(sentence) = set_connection_name(name, connection)
        {
            return refusal.invalid(sentence);
        }
        connection.set_version(version);
        write_hello(connection.id, &mut ReplyWriter::new(out, version), version);
    }
}

fn write_hello(connection_id: u64, reply: &mut ReplyWriter<'_>, version: RespVersion) {
    reply.map(7);
    reply.text("server");
    reply.text("leasehold");
    reply.text("version");
    reply.text(REDIS_VERSION);
    reply.text("proto");
    reply.integer(if version == RespVersion::Resp3 { 3 } else { 2 });
    reply.text("id");
    reply.unsigned(connection_id);
    reply.text("mode");
    reply.text("standalone");
    reply.text("role");
    reply.text("master");
    reply.text("modules");
    reply.array(0);
}

fn server_info() -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "# Server\r\nleasehold_version:{version}\r\nredis_version:{REDIS_VERSION}\r\nredis_mode:standalone\r\n\
         \r\n# Persistence\r\nloading:0\r\n\r\n# Replication\r\nrole:master\r\nconnected_slaves:0\r\n"
    )
}
