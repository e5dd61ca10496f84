//! What a connection answers by itself.

use super::ConnectionCommand;
use super::script;
use super::table;
use crate::resp::codec::reply::{ReplyWriter, RespVersion};
use crate::resp::connection::ClientConnection;
use crate::service::{Denial, Service};

/// The version of the commands of Redis that lock clients may count on.
const AS_REDIS: &str = "7.0.0";

/// Answers, and changes the connection as asked.
pub fn answer(service: &Service, local: &ConnectionCommand<'_>, connection: &mut ClientConnection, out: &mut Vec<u8>) {
    if let ConnectionCommand::Hello { version, key, name } = local {
        return hello(service, *version, *key, *name, connection, out);
    }
    let mut reply = ReplyWriter::new(out, connection.version);
    match local {
        ConnectionCommand::Ping(None) => reply.simple("PONG"),
        ConnectionCommand::Ping(Some(text)) | ConnectionCommand::Echo(text) => reply.bulk(text),
        ConnectionCommand::Hello { .. } => unreachable!("answered above"),
        ConnectionCommand::Auth(key) => match auth(service, key, connection) {
            Ok(()) => reply.simple("OK"),
            Err(denial) => not_let_in(&mut reply, &denial),
        },
        ConnectionCommand::Select(b"0") => reply.simple("OK"),
        ConnectionCommand::Select(_) => reply.invalid("there is one database, and its number is 0"),
        ConnectionCommand::SetName(name) => match set_name(name, connection) {
            Ok(()) => reply.simple("OK"),
            Err(sentence) => reply.invalid(sentence),
        },
        ConnectionCommand::GetName if connection.name.is_empty() => reply.nil(),
        ConnectionCommand::GetName => reply.text(&connection.name),
        ConnectionCommand::ClientId => reply.unsigned(connection.id),
        ConnectionCommand::SetInfo => reply.simple("OK"),
        ConnectionCommand::Commands(about) => table::answer(about, &mut reply),
        ConnectionCommand::Info => reply.verbatim(&info()),
        ConnectionCommand::Quit => {
            reply.simple("OK");
            connection.closing = true;
        }
        // Its commands would take effect one by one: they are refused until the client is through with it.
        ConnectionCommand::Multi => {
            connection.in_refused_multi = true;
            reply.invalid(
                "MULTI is not supported: send the commands without it (redis-py: pipeline(transaction=False))",
            );
        }
        ConnectionCommand::Exec if std::mem::take(&mut connection.in_refused_multi) => {
            reply.error("EXECABORT", "Transaction discarded because of previous errors.");
        }
        ConnectionCommand::Discard if std::mem::take(&mut connection.in_refused_multi) => reply.simple("OK"),
        ConnectionCommand::Exec => reply.error("ERR", "EXEC without MULTI"),
        ConnectionCommand::Discard => reply.error("ERR", "DISCARD without MULTI"),
        ConnectionCommand::Load(text) => {
            let sha = script::sha(text);
            match script::by_sha(sha.as_bytes()) {
                Some(_) => reply.text(&sha),
                None => reply.invalid(script::UNKNOWN),
            }
        }
        ConnectionCommand::Exist(shas) => {
            reply.array(shas.len());
            for sha in shas {
                reply.integer(script::by_sha(sha).is_some().into());
            }
        }
    }
}

fn auth(service: &Service, key: &[u8], connection: &mut ClientConnection) -> Result<(), Denial> {
    // What is no text is no key, and counts as a wrong one.
    let entered = service.enter(Some(std::str::from_utf8(key).unwrap_or_default()), connection.peer);
    // A wrong key takes away what an earlier one gave: nobody goes on as somebody else by mistake.
    connection.caller = None;
    connection.caller = Some(entered?);
    Ok(())
}

/// Clients know a wrong key by Redis's own word; one too many is said in ours.
fn not_let_in(reply: &mut ReplyWriter<'_>, denial: &Denial) {
    match denial {
        Denial::Slow(_) => reply.denial(denial),
        _ => reply.error("WRONGPASS", "invalid API key, or it was revoked"),
    }
}

fn set_name(name: &[u8], connection: &mut ClientConnection) -> Result<(), &'static str> {
    let name = std::str::from_utf8(name).map_err(|_| "a name is UTF-8 text")?;
    if name.len() > 128 || name.chars().any(|letter| letter.is_control() || letter == ' ') {
        return Err("a name has at most 128 bytes, no spaces and no control characters");
    }
    name.clone_into(&mut connection.name);
    connection.holder =
        if name.is_empty() { connection.peer.to_string() } else { format!("{name} {}", connection.peer) };
    Ok(())
}

fn hello(
    service: &Service,
    version: Option<&[u8]>,
    key: Option<&[u8]>,
    name: Option<&[u8]>,
    connection: &mut ClientConnection,
    out: &mut Vec<u8>,
) {
    let version = match version {
        None => connection.version,
        Some(b"2") => RespVersion::Resp2,
        Some(b"3") => RespVersion::Resp3,
        Some(_) => return ReplyWriter::new(out, connection.version).error("NOPROTO", "unsupported protocol version"),
    };
    if let Some(key) = key
        && let Err(denial) = auth(service, key, connection)
    {
        return not_let_in(&mut ReplyWriter::new(out, connection.version), &denial);
    }
    if connection.caller.is_none() {
        return ReplyWriter::new(out, connection.version)
            .error("NOAUTH", "HELLO must be called with the client already authenticated, or with AUTH default KEY");
    }
    if let Some(name) = name
        && let Err(sentence) = set_name(name, connection)
    {
        return ReplyWriter::new(out, connection.version).invalid(sentence);
    }
    connection.set_version(version);
    let mut reply = ReplyWriter::new(out, version);
    reply.map(7);
    reply.text("server");
    reply.text("leasehold");
    reply.text("version");
    reply.text(AS_REDIS);
    reply.text("proto");
    reply.integer(if version == RespVersion::Resp3 { 3 } else { 2 });
    reply.text("id");
    reply.unsigned(connection.id);
    reply.text("mode");
    reply.text("standalone");
    reply.text("role");
    reply.text("master");
    reply.text("modules");
    reply.array(0);
}

fn info() -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "# Server\r\nleasehold_version:{version}\r\nredis_version:{AS_REDIS}\r\nredis_mode:standalone\r\n\
         \r\n# Persistence\r\nloading:0\r\n\r\n# Replication\r\nrole:master\r\nconnected_slaves:0\r\n"
    )
}
