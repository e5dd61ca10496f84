//! Where the nodes are: what `redlock://user:password@h1:p,h2:p,h3:p/db?options` says.
//!
//! No sentence of this file repeats anything of a URL but its hosts and the names of its options.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::Limits;

use crate::clock::Clock;
use crate::engine::redis::RedisOptions;
use crate::error::Error;

const SCHEME: &str = "redlock://";
const EXAMPLE: &str = "as in redlock://10.0.0.1:6379,10.0.0.2:6379,10.0.0.3:6379";
/// As long as most leases are, twice over.
const DEFAULT_QUARANTINE: Duration = Duration::from_secs(60);
/// More nodes make every acquire dearer, and nothing safer.
const MAX_NODES: usize = 31;

/// How independent Redis servers are reached and used. `Debug` hides the password.
#[derive(Clone)]
pub struct RedlockOptions {
    /// One for each server.
    pub nodes: Vec<RedisOptions>,
    /// How long a server that keeps nothing over a restart does not vote after it started. No lease is longer, with its
    /// delay, unless a majority keeps its leases. The same in every process that uses these servers.
    pub quarantine: Duration,
    /// What can be asked for.
    pub limits: Limits,
    /// What validity is counted by.
    pub clock: Arc<dyn Clock>,
}

impl fmt::Debug for RedlockOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedlockOptions")
            .field("nodes", &self.nodes)
            .field("quarantine", &self.quarantine)
            .finish_non_exhaustive()
    }
}

impl RedlockOptions {
    /// Reads `redlock://[user:password@]host[:port],host[:port],…[/db][?preset=…&quarantine=60s&tls=1]`.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`], with a sentence that says what is wrong and repeats no password.
    ///
    /// ```
    /// use leasehold::engine::redlock::RedlockOptions;
    ///
    /// let options = RedlockOptions::from_url("redlock://:s3cret@a,b:7001,c?quarantine=30s").unwrap();
    /// assert_eq!(options.addresses(), ["a:6379", "b:7001", "c:6379"]);
    /// assert!(!format!("{options:?}").contains("s3cret"));
    /// ```
    pub fn from_url(url: &str) -> Result<Self, Error> {
        let rest = url
            .strip_prefix(SCHEME)
            .ok_or_else(|| invalid(format!("the address of a Redlock begins with {SCHEME}, {EXAMPLE}")))?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        // The last @: a password may hold one.
        let (login, place) = place.rsplit_once('@').map_or(("", place), |(login, place)| (login, place));
        let (hosts, path) = place.split_once('/').unwrap_or((place, ""));
        let query = RedlockQuery::read(query)?;
        let at = if login.is_empty() { "" } else { "@" };
        let node = |host: &str| {
            RedisOptions::from_url(&format!("{}://{login}{at}{host}/{path}?{}", query.scheme, query.passed_on))
        };
        let nodes = hosts.split(',').map(node).collect::<Result<Vec<_>, _>>()?;
        if nodes.len() > MAX_NODES {
            return Err(invalid(format!("a Redlock has at most {MAX_NODES} nodes")));
        }
        let different: HashSet<String> = nodes.iter().map(RedisOptions::at).collect();
        if different.len() < nodes.len() {
            return Err(invalid("a node comes twice: a majority needs servers that fail one by one"));
        }
        let clock = nodes[0].clock.clone();
        Ok(Self { nodes, quarantine: query.quarantine, limits: Limits::default(), clock })
    }

    /// `host:port` of each node, for people.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        self.nodes.iter().map(RedisOptions::at).collect()
    }
}

struct RedlockQuery {
    scheme: &'static str,
    quarantine: Duration,
    /// Options that each node has.
    passed_on: String,
}

impl RedlockQuery {
    fn read(query: &str) -> Result<Self, Error> {
        let mut read = Self { scheme: "redis", quarantine: DEFAULT_QUARANTINE, passed_on: String::new() };
        for option in query.split('&').filter(|option| !option.is_empty()) {
            match option.split_once('=').unwrap_or((option, "")) {
                ("preset", "redlock.net") => read.passed_on = option.to_owned(),
                ("preset", _) => return Err(invalid("the preset of a Redlock is redlock.net")),
                ("quarantine", span) => {
                    let span = parse_span(span).ok_or_else(|| invalid("quarantine is a time, as in 60s or 5m"))?;
                    read.quarantine = span;
                }
                ("tls", "1") => read.scheme = "rediss",
                ("tls", _) => return Err(invalid("tls is 1 or absent")),
                _ => {
                    return Err(invalid(
                        "the options of a redlock:// url are preset=redlock.net, quarantine= and tls=1",
                    ));
                }
            }
        }
        Ok(read)
    }
}

/// A whole number and its unit, up to a day.
fn parse_span(text: &str) -> Option<Duration> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
    let factor = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    let millis = number.checked_mul(factor).filter(|millis| (1..=86_400_000).contains(millis))?;
    Some(Duration::from_millis(millis))
}

fn invalid(sentence: impl Into<String>) -> Error {
    Error::Invalid(sentence.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_say_where_the_nodes_are() {
        let options =
            RedlockOptions::from_url("redlock://ada:p%40ss@w@a,b:1,[::1]:2/3?quarantine=5m&preset=redlock.net");
        let options = options.expect("a url");
        assert_eq!(options.addresses(), ["a:6379", "b:1", "[::1]:2"]);
        assert_eq!(options.quarantine, Duration::from_secs(300));
        for node in &options.nodes {
            assert_eq!((node.user.as_deref(), node.password.as_deref()), (Some("ada"), Some("p@ss@w")));
            assert_eq!((node.database, node.tls, node.layout().key_prefix.as_str()), (3, false, "redlock:"));
        }
        let options = RedlockOptions::from_url("redlock://a?tls=1&quarantine=1500ms").expect("a url");
        assert_eq!((options.nodes[0].tls, options.quarantine), (true, Duration::from_millis(1500)));
    }

    /// Goal: a bad URL gets a sentence, and no sentence holds a password.
    #[test]
    fn bad_urls_are_invalid_and_repeat_no_password() {
        for url in [
            "redlock:a,b",
            "redlock://",
            "redlock://:hunter2@a,,b",
            "redlock://:hunter2@a,b,a",
            "redlock://:hunter2@a,b:0",
            "redlock://:hunter2@a,b/x",
            "redlock://:hunter2@a?preset=hunter2",
            "redlock://:hunter2@a?preset=shedlock",
            "redlock://:hunter2@a?quarantine=hunter2",
            "redlock://:hunter2@a?quarantine=0s",
            "redlock://:hunter2@a?quarantine=25h",
            "redlock://:hunter2@a?quarantine=99999999999999999999h",
            "redlock://:hunter2@a?sentinel=1",
            "redlock://:hunter2@a?tls=hunter2",
            "redlock://:hunter2%zz@a",
        ] {
            let error = RedlockOptions::from_url(url).expect_err(url);
            assert!(matches!(error, Error::Invalid(_)), "{url}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
        let many = vec!["h"; 40].iter().enumerate().map(|(n, h)| format!("{h}{n}")).collect::<Vec<_>>().join(",");
        assert!(RedlockOptions::from_url(&format!("redlock://{many}")).is_err());
    }
}
