//! Where the database is, and how the engine uses it: what `postgres://user@host/database?…` says.
//!
//! No sentence of this file repeats anything of a URL but the names of its options: the rest may be a password.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::Limits;
use leasehold_postgres::{ConnectTimes, DatabaseAddress};

use super::schema::SchemaName;
use crate::clock::{Clock, SystemClock};
use crate::engine::Token;
use crate::error::Error;

/// The longest that connecting to one host may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Sent data that is not acknowledged for so long ends the connection.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(10);
const KEEPALIVES_IDLE: Duration = Duration::from_secs(15);

const MAX_CONNECTIONS: usize = 16;
/// How long endings are remembered.
const DEFAULT_MEMORY: Duration = Duration::from_secs(600);
/// A wall clock may be slewed by 500 parts in a million.
const DEFAULT_SLEW_PPM: u32 = 500;

/// How the engine uses a database. `Debug` hides user and password.
#[derive(Clone)]
pub struct PostgresEngineOptions {
    /// Where it is.
    pub(super) address: DatabaseAddress,
    /// The address without a pooler in between, for messages.
    pub(super) listen: Option<DatabaseAddress>,
    /// The schema of the engine.
    pub schema: SchemaName,
    /// Connections for batches; none: two, and up to four while commits are slow.
    pub connections: Option<usize>,
    /// How long endings are remembered, at least a minute.
    pub memory: Duration,
    /// Taken off the remaining time, in parts per million: the server's wall clock may be slewed.
    pub slew_ppm: u32,
    /// The operator says that the clocks of all servers that may become primary are synchronised.
    pub clocks_synced: bool,
    /// Every token is above this one.
    pub token_base: Option<Token>,
    /// There is a pooler in transaction mode between us and the server.
    pub pooler: bool,
    /// A message about a grant is only a reason to ask.
    pub verify_grants: bool,
    /// Whether opening makes or upgrades the schema, if the role may.
    pub migrate: bool,
    /// The limits of claims.
    pub limits: Limits,
    /// What timers and retries go by.
    pub clock: Arc<dyn Clock>,
    /// The address sets `synchronous_commit` itself.
    pub(super) sets_synchronous_commit: bool,
}

impl fmt::Debug for PostgresEngineOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresEngineOptions")
            .field("address", &self.address)
            .field("schema", &self.schema)
            .field("connections", &self.connections)
            .field("pooler", &self.pooler)
            .finish_non_exhaustive()
    }
}

impl PostgresEngineOptions {
    /// Reads `postgres://user@host/database?schema=…&connections=…` with the options of the engine and those of libpq.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`], with a sentence that says what is wrong and repeats no value.
    ///
    /// ```
    /// use leasehold::engine::postgres::PostgresEngineOptions;
    ///
    /// let options = PostgresEngineOptions::from_url("postgres://ada:s3cret@localhost/app?schema=locks").unwrap();
    /// assert_eq!(options.schema.as_str(), "locks");
    /// assert!(!format!("{options:?}").contains("s3cret"));
    /// ```
    pub fn from_url(url: &str) -> Result<Self, Error> {
        let (url, ours) = split_engine_options(url);
        let times = ConnectTimes {
            connect_timeout: CONNECT_TIMEOUT,
            tcp_user_timeout: TCP_USER_TIMEOUT,
            keepalives_idle: KEEPALIVES_IDLE,
        };
        let mut address = DatabaseAddress::from_url(&url, "leasehold engine", times).map_err(Error::Invalid)?;
        address.want_primary();
        let sets = address.config().get_options().is_some_and(|options| options.contains("synchronous_commit"));
        let mut options = Self {
            address,
            listen: None,
            schema: SchemaName::new(SchemaName::DEFAULT)?,
            connections: None,
            memory: DEFAULT_MEMORY,
            slew_ppm: DEFAULT_SLEW_PPM,
            clocks_synced: false,
            token_base: None,
            pooler: false,
            verify_grants: false,
            migrate: true,
            limits: Limits::default(),
            clock: SystemClock::shared(),
            sets_synchronous_commit: sets,
        };
        for (name, value) in ours {
            options.set_option(name, value)?;
        }
        if options.listen.is_some() && !options.pooler {
            return Err(invalid("listen= is for pooler=1: without a pooler messages come over the same address"));
        }
        Ok(options)
    }

    fn set_option(&mut self, name: &str, value: &str) -> Result<(), Error> {
        match name {
            "schema" => self.schema = SchemaName::new(value)?,
            "connections" => {
                let count = value.parse().ok().filter(|count| (1..=MAX_CONNECTIONS).contains(count));
                self.connections = Some(count.ok_or_else(|| invalid("connections= is a number from 1 to 16"))?);
            }
            "memory" => {
                let span = parse_span(value).filter(|span| *span >= Duration::from_secs(60));
                self.memory = span.ok_or_else(|| invalid("memory= is a time of at least 60s, as in memory=10m"))?;
            }
            "slew" => {
                let ppm = value.parse().ok().filter(|ppm| *ppm <= 100_000);
                self.slew_ppm = ppm.ok_or_else(|| invalid("slew= is in parts per million, from 0 to 100000"))?;
            }
            "clocks" if value == "synced" => self.clocks_synced = true,
            "clocks" => return Err(invalid("clocks= can only be synced")),
            "token_base" => {
                let token = value.parse().ok().and_then(Token::new).filter(|token| *token <= Token::MAX_FLOOR);
                self.token_base = Some(token.ok_or_else(|| invalid("token_base= is a token, from 1 on"))?);
            }
            "pooler" => self.pooler = flag(value, "pooler=")?,
            "verify" => self.verify_grants = flag(value, "verify=")?,
            _ => self.listen = Some(self.listen_address(value)?),
        }
        Ok(())
    }

    /// The same database, user and TLS at `HOST:PORT`.
    fn listen_address(&self, place: &str) -> Result<DatabaseAddress, Error> {
        let sentence = "listen= is HOST:PORT, the address of the server itself";
        let (host, port) = place.rsplit_once(':').ok_or_else(|| invalid(sentence))?;
        let port = port.parse::<u16>().ok().filter(|port| *port > 0).ok_or_else(|| invalid(sentence))?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(invalid(sentence));
        }
        Ok(self.address.at_host(host, port))
    }
}

const OPTION_NAMES: [&str; 9] =
    ["schema", "connections", "memory", "slew", "clocks", "token_base", "pooler", "verify", "listen"];

/// Splits the options of the engine off a URL. What is left is for the client library.
pub(crate) fn split_engine_options(url: &str) -> (String, Vec<(&str, &str)>) {
    let (place, query) = url.split_once('?').unwrap_or((url, ""));
    let (mut ours, mut rest) = (Vec::new(), Vec::new());
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some((name, value)) if OPTION_NAMES.contains(&name) => ours.push((name, value)),
            _ => rest.push(pair),
        }
    }
    let url = if rest.is_empty() { place.to_owned() } else { format!("{place}?{}", rest.join("&")) };
    (url, ours)
}

fn invalid(sentence: &str) -> Error {
    Error::Invalid(sentence.into())
}

fn flag(value: &str, name: &str) -> Result<bool, Error> {
    match value {
        "1" => Ok(true),
        "0" => Ok(false),
        _ => Err(Error::Invalid(format!("{name} is 1 or 0"))),
    }
}

/// `90s`, `10m`, `1h`.
fn parse_span(text: &str) -> Option<Duration> {
    let unit = text.chars().last()?;
    let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        _ => return None,
    };
    // A day is more than anybody retries for.
    number.checked_mul(seconds).filter(|seconds| *seconds <= 86_400).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str) -> Result<PostgresEngineOptions, String> {
        PostgresEngineOptions::from_url(&format!("postgres://ada:hunter2@localhost/app{query}"))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_options_of_the_url_are_read() {
        let plain = read("").unwrap();
        assert_eq!((plain.schema.as_str(), plain.connections, plain.pooler), ("leasehold_engine", None, false));
        let all = read(
            "?schema=locks&connections=3&memory=60s&slew=0&clocks=synced&token_base=7&pooler=1&listen=db:5433&verify=1&\
             application_name=x&options=-c%20synchronous_commit%3Doff",
        )
        .unwrap();
        assert_eq!((all.schema.as_str(), all.connections, all.slew_ppm), ("locks", Some(3), 0));
        assert_eq!((all.memory, all.token_base), (Duration::from_secs(60), Token::new(7)));
        assert!(all.clocks_synced && all.pooler && all.verify_grants && all.sets_synchronous_commit);
        assert!(all.listen.is_some() && !format!("{all:?}").contains("hunter2"));
    }

    #[test]
    fn what_is_wrong_is_said_without_the_password() {
        for (query, sentence) in [
            ("?schema=A", "a schema has a name"),
            ("?connections=0", "from 1 to 16"),
            ("?memory=5s", "at least 60s"),
            ("?slew=x", "parts per million"),
            ("?clocks=mine", "can only be synced"),
            ("?token_base=0", "token_base= is a token"),
            ("?pooler=yes", "pooler= is 1 or 0"),
            ("?listen=db:1", "listen= is for pooler=1"),
            ("?pooler=1&listen=db", "HOST:PORT"),
            ("?colour=red", "this is no address of PostgreSQL"),
        ] {
            let said = read(query).unwrap_err();
            assert!(said.contains(sentence) && !said.contains("hunter2"), "{query}: {said}");
        }
    }
}
