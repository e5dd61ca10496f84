//! Commands as bytes: arrays of bulk strings, within the limits of the server.

use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::engine::{Claim, EventId, LeaseId, Mode, Query, Token};
use crate::error::Error;

/// The server's limits on one command and on one argument of it.
const MAX_ARGUMENTS: usize = 1024;
const MAX_ARGUMENT_BYTES: usize = 64 << 10;
const MAX_COMMAND_BYTES: usize = 1 << 20;
/// Bytes of a request id.
const MAX_REQUEST_ID_BYTES: usize = 128;

/// A command being built.
#[derive(Debug)]
pub(super) struct RespCommand {
    arguments: usize,
    body: Vec<u8>,
    too_long: bool,
}

impl RespCommand {
    pub fn new(word: &str) -> Self {
        Self { arguments: 0, body: Vec::with_capacity(128), too_long: false }.arg(word)
    }

    pub fn arg(mut self, argument: impl AsRef<[u8]>) -> Self {
        let argument = argument.as_ref();
        self.too_long |= argument.len() > MAX_ARGUMENT_BYTES;
        if !self.too_long {
            self.arguments += 1;
            self.body.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
            self.body.extend_from_slice(argument);
            self.body.extend_from_slice(b"\r\n");
        }
        self
    }

    pub fn number(self, number: u64) -> Self {
        self.arg(number.to_string())
    }

    fn option(self, word: &str, millis: Option<u64>) -> Self {
        match millis {
            Some(millis) => self.arg(word).number(millis),
            None => self,
        }
    }

    /// The bytes.
    ///
    /// # Errors
    ///
    /// Invalid beyond the server's limits: it would close the connection, and fail the requests of others on it.
    pub fn bytes(self) -> Result<Vec<u8>, Error> {
        if self.too_long || self.arguments > MAX_ARGUMENTS {
            return Err(Error::Invalid("this is more than a server reads in one command".into()));
        }
        let mut bytes = format!("*{}\r\n", self.arguments).into_bytes();
        bytes.extend_from_slice(&self.body);
        if bytes.len() > MAX_COMMAND_BYTES {
            return Err(Error::Invalid("this is more than a server reads in one command".into()));
        }
        Ok(bytes)
    }
}

/// The first command of a connection. It contains the API key.
pub(super) fn hello(key: Option<&str>) -> Result<Vec<u8>, Error> {
    let hello = RespCommand::new("HELLO").number(3);
    match key {
        Some(key) => hello.arg("AUTH").arg("default").arg(key).bytes(),
        None => hello.bytes(),
    }
}

pub(super) fn acquire(claim: &Claim, wait: Duration, request: &str) -> Result<Vec<u8>, Error> {
    let first = claim.wants.first().map(|want| want.mode);
    let one_mode = claim.wants.iter().all(|want| Some(want.mode) == first);
    let mut command = lease("ACQUIRE").number(millis(claim.ttl));
    command = command.option("WAIT", Some(millis(wait)).filter(|wait| *wait > 0));
    command = match first {
        Some(Mode::Shared) if one_mode => command.arg("SHARED"),
        Some(Mode::Permits { count, capacity }) if one_mode => {
            command.arg("PERMITS").number(count.into()).arg("CAPACITY").number(capacity.into())
        }
        _ => command,
    };
    command = command.option("MAXHOLD", claim.max_hold.map(millis));
    command = command.option("DELAY", Some(millis(claim.delay)).filter(|delay| *delay > 0));
    command = command.arg("HOLDER").arg(&claim.holder).arg("REQUEST").arg(request).arg("FULL");
    command = command.arg(if one_mode { "RESOURCES" } else { "EACH" });
    for want in &claim.wants {
        command = command.arg(&want.name);
        if !one_mode {
            command = command.arg(mode(want.mode));
        }
    }
    command.bytes()
}

pub(super) fn renew(lease_id: &LeaseId, ttl: Option<Duration>) -> Result<Vec<u8>, Error> {
    let command = lease("RENEW").arg(lease_id.expose());
    match ttl {
        Some(ttl) => command.number(millis(ttl)).arg("FULL").bytes(),
        None => command.arg("FULL").bytes(),
    }
}

pub(super) fn release(lease_id: &LeaseId) -> Result<Vec<u8>, Error> {
    lease("RELEASE").arg(lease_id.expose()).bytes()
}

pub(super) fn relabel(lease_id: &LeaseId, holder: &str) -> Result<Vec<u8>, Error> {
    lease("RELABEL").arg(lease_id.expose()).arg("HOLDER").arg(holder).bytes()
}

pub(super) fn revoke(name: &str, reason: &str) -> Result<Vec<u8>, Error> {
    lease("REVOKE").arg(name).arg("REASON").arg(reason).bytes()
}

pub(super) fn get(name: &str) -> Result<Vec<u8>, Error> {
    lease("GET").arg(name).bytes()
}

pub(super) fn list(query: &Query) -> Result<Vec<u8>, Error> {
    let mut command = lease("LIST");
    if !query.prefix.is_empty() {
        command = command.arg("PREFIX").arg(&query.prefix);
    }
    command = command.arg("LIMIT").number(u64::try_from(query.limit).unwrap_or(u64::MAX));
    match &query.after {
        Some(after) => command.arg("AFTER").arg(after).bytes(),
        None => command.bytes(),
    }
}

pub(super) fn promises() -> Result<Vec<u8>, Error> {
    lease("PROMISES").bytes()
}

pub(super) fn floor(raise: Option<Token>) -> Result<Vec<u8>, Error> {
    let command = lease("FLOOR");
    match raise {
        Some(floor) => command.number(floor.get()).bytes(),
        None => command.bytes(),
    }
}

pub(super) fn engine() -> Result<Vec<u8>, Error> {
    lease("ENGINE").bytes()
}

pub(super) fn time() -> Result<Vec<u8>, Error> {
    RespCommand::new("TIME").bytes()
}

pub(super) fn watch(prefix: &str, since: Option<EventId>) -> Result<Vec<u8>, Error> {
    let mut command = lease("WATCH");
    if !prefix.is_empty() {
        command = command.arg("PREFIX").arg(prefix);
    }
    match since {
        Some(since) => command.arg("SINCE").arg(since.to_string()).bytes(),
        None => command.bytes(),
    }
}

/// The request id as it is sent: ids here are scoped to `principal`, and the server knows only the API key. Two pairs
/// never give the same text, and what is short enough for a server stays so.
pub(super) fn request(principal: &str, id: &str) -> String {
    let plain = principal.is_empty() && !id.starts_with("p=");
    // What is Invalid stays so.
    if plain || id.is_empty() {
        return id.to_owned();
    }
    let text = format!("p={}={principal}{id}", principal.len());
    // An id over the limit is sent unchanged: the server refuses it.
    if text.len() <= MAX_REQUEST_ID_BYTES || id.len() > MAX_REQUEST_ID_BYTES {
        return text;
    }
    Sha256::digest(text).iter().fold(String::from("p=#"), |digest, byte| digest + &format!("{byte:02x}"))
}

fn lease(verb: &str) -> RespCommand {
    RespCommand::new("LEASE").arg(verb)
}

fn mode(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "X".into(),
        Mode::Shared => "S".into(),
        Mode::Permits { count, capacity } => format!("{count}/{capacity}"),
    }
}

/// Whole milliseconds, rounded up: nothing lapses early.
pub(super) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Want;

    fn words(bytes: &[u8]) -> String {
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let lines: Vec<&str> = text.split("\r\n").collect();
        assert_eq!(lines[0], format!("*{}", (lines.len() - 2) / 2));
        lines[1..].chunks_exact(2).map(|pair| pair[1]).collect::<Vec<_>>().join(" ")
    }

    fn claim(wants: &[(&str, Mode)]) -> Claim {
        Claim::new(
            wants.iter().map(|(name, mode)| Want { name: (*name).into(), mode: *mode }).collect(),
            Duration::from_nanos(1),
            "ada",
        )
    }

    #[test]
    fn a_claim_is_written_in_the_words_of_the_contract() {
        let said = |claim: &Claim| words(&acquire(claim, claim.wait, "r").unwrap());
        let permits = Mode::Permits { count: 2, capacity: 5 };
        let (x, s) = (Mode::Exclusive, Mode::Shared);
        assert_eq!(said(&claim(&[("a", x), ("b", x)])), "LEASE ACQUIRE 1 HOLDER ada REQUEST r FULL RESOURCES a b");
        assert_eq!(said(&claim(&[("a", s)])), "LEASE ACQUIRE 1 SHARED HOLDER ada REQUEST r FULL RESOURCES a");
        let full = Claim {
            wait: Duration::from_secs(2),
            max_hold: Some(Duration::from_secs(3)),
            delay: Duration::from_secs(4),
            ..claim(&[("a", permits)])
        };
        let expected = "LEASE ACQUIRE 1 WAIT 2000 PERMITS 2 CAPACITY 5 MAXHOLD 3000 DELAY 4000 HOLDER ada REQUEST r FULL RESOURCES a";
        assert_eq!(said(&full), expected);
        let mixed = claim(&[("a", x), ("b", s), ("c", permits)]);
        assert_eq!(said(&mixed), "LEASE ACQUIRE 1 HOLDER ada REQUEST r FULL EACH a X b S c 2/5");
        assert_eq!(said(&claim(&[])), "LEASE ACQUIRE 1 HOLDER ada REQUEST r FULL RESOURCES");
    }

    /// Goal: nothing is sent that makes the server cut a connection others use too.
    #[test]
    fn what_no_server_reads_is_invalid() {
        let long = "n".repeat(MAX_ARGUMENT_BYTES + 1);
        assert!(matches!(get(&long), Err(Error::Invalid(_))));
        let many: Vec<(String, Mode)> = (0..1100).map(|n| (n.to_string(), Mode::Exclusive)).collect();
        let many: Vec<(&str, Mode)> = many.iter().map(|(name, mode)| (name.as_str(), *mode)).collect();
        assert!(matches!(acquire(&claim(&many), Duration::ZERO, "r"), Err(Error::Invalid(_))));
        let big = "n".repeat(MAX_ARGUMENT_BYTES - 20);
        let sixteen = vec![(big.as_str(), Mode::Exclusive); 16];
        assert!(acquire(&claim(&sixteen[..15]), Duration::ZERO, "r").is_ok());
        let id = "r".repeat(200);
        assert!(
            matches!(acquire(&claim(&sixteen), Duration::ZERO, &id), Err(Error::Invalid(_))),
            "each is short enough"
        );
    }

    /// Goal: an id of one principal is never another's.
    #[test]
    fn request_ids_are_scoped() {
        let long = ["x".repeat(128), "x".repeat(127) + "y", "x".repeat(129)];
        let pairs = [
            ("", "r"),
            ("ada", "r"),
            ("ada", &*long[0]),
            ("ada", &long[1]),
            ("bob", &long[0]),
            ("", &long[0]),
            ("", "p=3=adar"),
            ("ad", "ar"),
            ("", "p=0=r"),
            ("", "p=0=p=0=r"),
        ];
        let texts: std::collections::HashSet<String> = pairs.iter().map(|(who, id)| request(who, id)).collect();
        assert_eq!(texts.len(), pairs.len(), "{texts:?}");
        assert!(texts.iter().all(|text| text.len() <= MAX_REQUEST_ID_BYTES), "{texts:?}");
        assert!(request("ada", &long[2]).len() > MAX_REQUEST_ID_BYTES, "what is too long stays so");
        assert_eq!((request("", "r"), request("ada", "")), ("r".into(), String::new()));
    }
}
