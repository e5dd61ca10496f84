//! Where the server is, and how names become keys: what `redis://user:password@host:port/db?options` says.
//!
//! No sentence of this file repeats anything of a URL but its hosts and the names of its options: the rest may be a
//! password.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::Limits;

use super::scripts::Layout;
use crate::clock::{Clock, SystemClock};
use crate::engine::url_text::{decode_percent, host_and_port};
use crate::error::Error;

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
const EXAMPLE: &str = "as in redis://127.0.0.1:6379";
/// What is taken off remaining times by default: as much as a wall clock is slewed at most.
const SLEW_PPM: u32 = 500;
/// How long a waiter is believed to be alive without a word of its process.
const WAITER_TTL: Duration = Duration::from_secs(10);
/// How much later than the server said timers look.
const TIMER_MARGIN: Duration = Duration::from_millis(1);

/// How a Redis server is reached and used. `Debug` hides the password.
#[derive(Clone)]
pub struct RedisOptions {
    /// Names and ports: of the server, or of the sentinels.
    pub hosts: Vec<(String, u16)>,
    /// The name of the master that the sentinels are asked for.
    pub sentinel_master: Option<String>,
    /// TLS (feature `tls`).
    pub tls: bool,
    /// Who signed the server's certificate, and nobody else then: a file, as PEM. Without it: the authorities that the
    /// system trusts.
    pub ca: Option<PathBuf>,
    /// The user; none for the default user.
    pub user: Option<String>,
    /// The password.
    pub password: Option<String>,
    /// The number of the database.
    pub database: u32,
    /// Whose names the keys have.
    pub preset: RedisPreset,
    /// What is taken off remaining times, in parts per million: a wall clock may be slewed.
    pub slew_ppm: u32,
    /// How long a waiter is believed to be alive without a word of its process.
    pub waiter_ttl: Duration,
    /// How much later than the server said timers of this side look: its clock must have passed the moment.
    pub timer_margin: Duration,
    /// Whether plain acquires and releases of several callers share a call. None: where the server syncs every write, since
    /// that is where it pays.
    pub gather: Option<bool>,
    /// What can be asked for.
    pub limits: Limits,
    /// What deadlines on this side are counted by.
    pub clock: Arc<dyn Clock>,
}

/// The lock clients that share the names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RedisPreset {
    /// A name is its key: redis-py, node-redlock, redsync and most others.
    #[default]
    Plain,
    /// RedLock.net: `redlock:NAME`.
    RedLockNet,
    /// python-redis-lock: `lock:NAME`, and its waiters are woken.
    PythonRedisLock,
    /// ShedLock: `job-lock:default:NAME`.
    ShedLock,
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let password = self.password.as_ref().map(|_| "…");
        f.debug_struct("RedisOptions")
            .field("at", &self.at())
            .field("password", &password)
            .field("tls", &self.tls)
            .field("preset", &self.preset)
            .finish_non_exhaustive()
    }
}

impl RedisOptions {
    /// Reads `redis://[user:password@]host[:port][/db][?preset=…&slew=PPM&gather=0]`, `rediss://…[?ca=FILE]` for TLS, or
    /// `redis://h1,h2,h3/MASTER?sentinel=1`.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`], with a sentence that says what is wrong and repeats no password.
    ///
    /// ```
    /// use leasehold::engine::redis::RedisOptions;
    ///
    /// let options = RedisOptions::from_url("redis://:s3cret@db-1/2").unwrap();
    /// assert_eq!((options.at(), options.database), ("db-1:6379".into(), 2));
    /// assert!(!format!("{options:?}").contains("s3cret"));
    /// ```
    pub fn from_url(url: &str) -> Result<Self, Error> {
        let (tls, rest) = match (url.strip_prefix("redis://"), url.strip_prefix("rediss://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => return Err(invalid(format!("the address of a Redis server begins with redis://, {EXAMPLE}"))),
        };
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        // The last @: a password may hold one.
        let (login, place) = place.rsplit_once('@').map_or((None, place), |(login, place)| (Some(login), place));
        let (hosts, path) = place.split_once('/').unwrap_or((place, ""));
        let query = read_query(query)?;
        let default_port = if query.sentinel { SENTINEL_PORT } else { REDIS_PORT };
        let hosts =
            hosts.split(',').map(|host| host_and_port(host, default_port, EXAMPLE)).collect::<Result<Vec<_>, _>>()?;
        if hosts.len() > 1 && !query.sentinel {
            return Err(invalid("several hosts are sentinels (?sentinel=1) or independent servers (redlock://)"));
        }
        if query.ca.is_some() && !tls {
            return Err(invalid("?ca= is for rediss://"));
        }
        let (user, password) = login.map_or(Ok((None, None)), read_login)?;
        let (database, sentinel_master) = if query.sentinel {
            let master = decode_percent(path).filter(|name| !name.is_empty());
            (0, Some(master.ok_or_else(|| invalid("sentinels are asked for a master, as in redis://h1,h2/MASTER"))?))
        } else {
            let number = if path.is_empty() { Some(0) } else { path.parse().ok() };
            (number.ok_or_else(|| invalid("what follows the host is the number of a database"))?, None)
        };
        Ok(Self {
            hosts,
            sentinel_master,
            tls,
            ca: query.ca,
            user,
            password,
            database,
            preset: query.preset,
            slew_ppm: query.slew_ppm,
            gather: query.gather,
            waiter_ttl: WAITER_TTL,
            timer_margin: TIMER_MARGIN,
            limits: Limits::default(),
            clock: SystemClock::shared(),
        })
    }

    /// `host:port`, for people.
    #[must_use]
    pub fn at(&self) -> String {
        self.hosts.iter().map(|(host, port)| show_address(host, *port)).collect::<Vec<_>>().join(",")
    }

    pub(in crate::engine) fn layout(&self) -> Layout {
        let (key_prefix, signal_prefix) = match self.preset {
            RedisPreset::Plain => ("", ""),
            RedisPreset::RedLockNet => ("redlock:", ""),
            RedisPreset::PythonRedisLock => ("lock:", "lock-signal:"),
            RedisPreset::ShedLock => ("job-lock:default:", ""),
        };
        Layout {
            key_prefix: key_prefix.into(),
            signal_prefix: signal_prefix.into(),
            waiter_ms: u64::try_from(self.waiter_ttl.as_millis()).unwrap_or(u64::MAX).max(1),
        }
    }
}

/// `host:port`, for people.
pub(super) fn show_address(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

struct UrlQuery {
    preset: RedisPreset,
    slew_ppm: u32,
    sentinel: bool,
    gather: Option<bool>,
    ca: Option<PathBuf>,
}

fn read_query(query: &str) -> Result<UrlQuery, Error> {
    let mut read = UrlQuery { preset: RedisPreset::Plain, slew_ppm: SLEW_PPM, sentinel: false, gather: None, ca: None };
    for option in query.split('&').filter(|option| !option.is_empty()) {
        match option.split_once('=').unwrap_or((option, "")) {
            ("preset", "redlock.net") => read.preset = RedisPreset::RedLockNet,
            ("preset", "python-redis-lock") => read.preset = RedisPreset::PythonRedisLock,
            ("preset", "shedlock") => read.preset = RedisPreset::ShedLock,
            ("preset", _) => return Err(invalid("preset is redlock.net, python-redis-lock or shedlock")),
            ("slew", ppm) => {
                let ppm = ppm.parse().ok().filter(|ppm| *ppm <= 100_000);
                read.slew_ppm = ppm.ok_or_else(|| invalid("slew is in parts per million, from 0 to 100000"))?;
            }
            ("sentinel", "1") => read.sentinel = true,
            ("sentinel", _) => return Err(invalid("sentinel is 1 or absent")),
            ("gather", "0") => read.gather = Some(false),
            ("gather", "1") => read.gather = Some(true),
            ("gather", _) => return Err(invalid("gather is 0, 1 or absent")),
            ("ca", file) => {
                let file = decode_percent(file).filter(|file| !file.is_empty());
                read.ca = Some(file.ok_or_else(|| invalid("ca= names no file"))?.into());
            }
            _ => return Err(invalid("the options of a redis:// url are preset=, slew=, gather=, ca= and sentinel=1")),
        }
    }
    Ok(read)
}

fn invalid(sentence: impl Into<String>) -> Error {
    Error::Invalid(sentence.into())
}

/// User and password; a text without a colon is a user.
fn read_login(login: &str) -> Result<(Option<String>, Option<String>), Error> {
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    let plain =
        |text| decode_percent(text).ok_or_else(|| invalid("the login in the url has a % that stands for nothing"));
    let some = |text: String| Some(text).filter(|text| !text.is_empty());
    Ok((some(plain(user)?), some(plain(password)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_say_where_the_server_is() {
        let table = [
            ("redis://h", "h:6379", None, None, 0),
            ("redis://h:1/", "h:1", None, None, 0),
            ("redis://[::1]:9/3", "[::1]:9", None, None, 3),
            ("redis://:p%40ss@w@h", "h:6379", None, Some("p@ss@w"), 0),
            ("rediss://ada:pw@h", "h:6379", Some("ada"), Some("pw"), 0),
        ];
        for (url, at, user, password, database) in table {
            let options = RedisOptions::from_url(url).expect(url);
            assert_eq!(options.at(), at, "{url}");
            assert_eq!((options.user.as_deref(), options.password.as_deref()), (user, password), "{url}");
            assert_eq!((options.database, options.tls), (database, url.starts_with("rediss")), "{url}");
        }
        let options = RedisOptions::from_url("redis://h1,h2:7/main?sentinel=1&slew=0").expect("a url");
        assert_eq!((options.at().as_str(), options.slew_ppm), ("h1:26379,h2:7", 0));
        assert_eq!(options.sentinel_master.as_deref(), Some("main"));
        let options = RedisOptions::from_url("redis://h?preset=python-redis-lock").expect("a url");
        assert_eq!((options.layout().key_prefix.as_str(), options.slew_ppm), ("lock:", 500));
    }

    /// Goal: a bad URL gets a sentence, and no sentence holds a password.
    #[test]
    fn bad_urls_are_invalid_and_repeat_no_password() {
        for url in [
            "redis:h",
            "redis://",
            "redis://:hunter2@",
            "redis://:hunter2@h:0",
            "redis://:hunter2@h:port",
            "redis://:hunter2%zz@h",
            "redis://:hunter2@h/x",
            "redis://:hunter2@h/-1",
            "redis://:hunter2@h,g",
            "redis://:hunter2@h,g?sentinel=1",
            "redis://:hunter2@h?sentinel=yes",
            "redis://:hunter2@h?ca=file",
            "rediss://:hunter2@h?ca=",
            "redis://:hunter2@h?gather=2",
            "redis://:hunter2@h?preset=hunter2",
            "redis://:hunter2@h?slew=-1",
            "redis://:hunter2@h?hunter2",
            "leasehold://:hunter2@h",
        ] {
            let error = RedisOptions::from_url(url).expect_err(url);
            assert!(matches!(error, Error::Invalid(_)), "{url}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }
}
