//! What a connection answers by itself.

use super::Local;
use super::script;
use super::table;
use crate::resp::codec::reply::{Protocol, Reply};
use crate::resp::connection::Connection;
use crate::service::{Denial, Service};

/// The version of the commands of Redis that lock clients may count on.
const AS_REDIS: &str = "7.0.0";

/// Answers, and changes the connection as asked.
pub fn answer(service: &Service, local: &Local<'_>, connection: &mut Connection, out: &mut Vec<u8>) {
    if let Local::Hello { version, key, name } = local {
        return hello(service, *version, *key, *name, connection, out);
    }
    let mut reply = Reply::new(out, connection.protocol);
    match local {
        Local::Ping(None) => reply.simple("PONG"),
        Local::Ping(Some(text)) | Local::Echo(text) => reply.bulk(text),
        Local::Hello { .. } => unreachable!("answered above"),
        Local::Auth(key) => match auth(service, key, connection) {
            Ok(()) => reply.simple("OK"),
            Err(denial) => not_let_in(&mut reply, &denial),
        },
        Local::Select(b"0") => reply.simple("OK"),
        Local::Select(_) => reply.invalid("there is one database, and its number is 0"),
        Local::SetName(name) => match set_name(name, connection) {
            Ok(()) => reply.simple("OK"),
            Err(sentence) => reply.invalid(sentence),
        },
        Local::GetName if connection.name.is_empty() => reply.nil(),
        Local::GetName => reply.text(&connection.name),
        Local::ClientId => reply.unsigned(connection.id),
        Local::SetInfo => reply.simple("OK"),
        Local::Commands(about) => table::answer(about, &mut reply),
        Local::Info => reply.verbatim(&info()),
        Local::Quit => {
            reply.simple("OK");
            connection.closing = true;
        }
        // Its commands would take effect one by one: they are refused until the client is through with it.
        Local::Multi => {
            connection.refused_multi = true;
            reply.invalid(
                "MULTI is not supported: send the commands without it (redis-py: pipeline(transaction=False))",
            );
        }
        Local::Exec if std::mem::take(&mut connection.refused_multi) => {
            reply.error("EXECABORT", "Transaction discarded because of previous errors.");
        }
        Local::Discard if std::mem::take(&mut connection.refused_multi) => reply.simple("OK"),
        Local::Exec => reply.error("ERR", "EXEC without MULTI"),
        Local::Discard => reply.error("ERR", "DISCARD without MULTI"),
        Local::Load(text) => {
            let sha = script::sha(text);
            match script::by_sha(sha.as_bytes()) {
                Some(_) => reply.text(&sha),
                None => reply.invalid(script::UNKNOWN),
            }
        }
        Local::Exist(shas) => {
            reply.array(shas.len());
            for sha in shas {
                reply.integer(script::by_sha(sha).is_some().into());
            }
        }
    }
}

fn auth(service: &Service, key: &[u8], connection: &mut Connection) -> Result<(), Denial> {
    // What is no text is no key, and counts as a wrong one.
    let entered = service.enter(Some(std::str::from_utf8(key).unwrap_or_default()), connection.peer);
    // A wrong key takes away what an earlier one gave: nobody goes on as somebody else by mistake.
    connection.caller = None;
    connection.caller = Some(entered?);
    Ok(())
}

/// Clients know a wrong key by Redis's own word; one too many is said in ours.
fn not_let_in(reply: &mut Reply<'_>, denial: &Denial) {
    match denial {
        Denial::Slow(_) => reply.denial(denial),
        _ => reply.error("WRONGPASS", "invalid API key, or it was revoked"),
    }
}

fn set_name(name: &[u8], connection: &mut Connection) -> Result<(), &'static str> {
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
    connection: &mut Connection,
    out: &mut Vec<u8>,
) {
    let protocol = match version {
        None => connection.protocol,
        Some(b"2") => Protocol::Resp2,
        Some(b"3") => Protocol::Resp3,
        Some(_) => return Reply::new(out, connection.protocol).error("NOPROTO", "unsupported protocol version"),
    };
    if let Some(key) = key
        && let Err(denial) = auth(service, key, connection)
    {
        return not_let_in(&mut Reply::new(out, connection.protocol), &denial);
    }
    if connection.caller.is_none() {
        return Reply::new(out, connection.protocol)
            .error("NOAUTH", "HELLO must be called with the client already authenticated, or with AUTH default KEY");
    }
    if let Some(name) = name
        && let Err(sentence) = set_name(name, connection)
    {
        return Reply::new(out, connection.protocol).invalid(sentence);
    }
    connection.speak(protocol);
    let mut reply = Reply::new(out, protocol);
    reply.map(7);
    reply.text("server");
    reply.text("leasehold");
    reply.text("version");
    reply.text(AS_REDIS);
    reply.text("proto");
    reply.integer(if protocol == Protocol::Resp3 { 3 } else { 2 });
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
