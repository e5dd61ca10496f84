//! Where the ensemble is, and how names become nodes: what `zk://user:password@h1,h2,h3/chroot?options` says.
//!
//! No sentence of this file repeats anything of a URL but its hosts and the names of its options: the rest may be a
//! password.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::Limits;

use crate::clock::{Clock, SystemClock};
use crate::engine::url_text::{decode_percent, host_and_port};
use crate::error::Error;

const DEFAULT_PORT: u16 = 2181;
const EXAMPLE: &str = "as in zk://10.0.0.1:2181,10.0.0.2:2181/locks";
/// A list of children is one reply, and a reply is at most 1 MB.
const WAITERS_PER_RESOURCE: usize = 1000;
/// What a session lease can live is bounded by the session: the longest that ZooKeeper grants by default.
const SESSION_TIMEOUT: Duration = Duration::from_secs(40);
/// With a minded lease only waiters and the list of servers depend on sessions.
const MINDED_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the head of a queue looks even though nothing told it to.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How often all resources are walked through even though no process disappeared.
const WALK_EVERY: Duration = Duration::from_secs(300);

/// How an ensemble is reached and used. `Debug` hides the password.
#[derive(Clone)]
pub struct ZookeeperEngineOptions {
    /// Names and ports of the servers.
    pub hosts: Vec<(String, u16)>,
    /// The node below which the resources are; empty for the root.
    pub chroot: String,
    /// User and password, for the scheme `digest`.
    pub login: Option<(String, String)>,
    /// Which clients the resources are shared with.
    pub layout: ZookeeperLayout,
    /// What a lease depends on.
    pub lease: ZookeeperLease,
    /// Added to every token: for an ensemble that took the place of another.
    pub token_base: u64,
    /// The session timeout to ask for. None: as the kind of lease needs it.
    pub session_timeout: Option<Duration>,
    /// How often the head of a queue looks even though nothing told it to.
    pub look_every: Duration,
    /// How often a process with minded leases walks through all resources even though no other one disappeared: for leases
    /// whose process is gone, and what a lost reply may have left.
    pub walk_every: Duration,
    /// What can be asked for.
    pub limits: Limits,
    /// What deadlines are counted by.
    pub clock: Arc<dyn Clock>,
}

/// Which clients see our nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZookeeperLayout {
    /// Apache Curator, and whoever uses its names.
    #[default]
    Curator,
    /// kazoo.
    Kazoo,
    /// Both: two nodes for each resource.
    Both,
}

/// What a lease depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZookeeperLease {
    /// The session of this process: a lease ends with it, and is never longer than a session.
    #[default]
    Session,
    /// Its ttl alone. Processes opened like this end each other's leases when their time is over.
    Minded,
}

impl fmt::Debug for ZookeeperEngineOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZookeeperEngineOptions")
            .field("at", &self.at())
            .field("chroot", &self.chroot)
            .field("layout", &self.layout)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

impl ZookeeperEngineOptions {
    /// Reads `zk://[user:password@]h1[:port],h2[:port]…[/chroot][?layout=curator|kazoo|both&lease=session|minded&token_base=N]`.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`], with a sentence that says what is wrong and repeats no password.
    ///
    /// ```
    /// use leasehold::engine::zookeeper::{ZookeeperEngineOptions, ZookeeperLease};
    ///
    /// let options = ZookeeperEngineOptions::from_url("zk://ada:s3cret@zk1,zk2:2182/locks?lease=minded").unwrap();
    /// assert_eq!((options.at(), options.chroot.as_str()), ("zk1:2181,zk2:2182".into(), "/locks"));
    /// assert_eq!(options.lease, ZookeeperLease::Minded);
    /// assert!(!format!("{options:?}").contains("s3cret"));
    /// ```
    pub fn from_url(url: &str) -> Result<Self, Error> {
        let rest = url
            .strip_prefix("zk://")
            .ok_or_else(|| invalid(format!("the address of a ZooKeeper ensemble begins with zk://, {EXAMPLE}")))?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        // The last @: a password may hold one.
        let (login, place) = place.rsplit_once('@').map_or((None, place), |(login, place)| (Some(login), place));
        let (hosts, path) = place.split_once('/').unwrap_or((place, ""));
        let hosts =
            hosts.split(',').map(|host| host_and_port(host, DEFAULT_PORT, EXAMPLE)).collect::<Result<Vec<_>, _>>()?;
        let mut options = Self {
            hosts,
            chroot: read_chroot(path)?,
            login: login.map(read_login).transpose()?,
            layout: ZookeeperLayout::default(),
            lease: ZookeeperLease::default(),
            token_base: 0,
            session_timeout: None,
            look_every: LOOK_EVERY,
            walk_every: WALK_EVERY,
            limits: Limits { waiters_per_resource: WAITERS_PER_RESOURCE, ..Limits::default() },
            clock: SystemClock::shared(),
        };
        for option in query.split('&').filter(|option| !option.is_empty()) {
            options.read_option(option)?;
        }
        Ok(options)
    }

    fn read_option(&mut self, option: &str) -> Result<(), Error> {
        match option.split_once('=').unwrap_or((option, "")) {
            ("layout", "curator") => self.layout = ZookeeperLayout::Curator,
            ("layout", "kazoo") => self.layout = ZookeeperLayout::Kazoo,
            ("layout", "both") => self.layout = ZookeeperLayout::Both,
            ("layout", _) => return Err(invalid("layout is curator, kazoo or both")),
            ("lease", "session") => self.lease = ZookeeperLease::Session,
            ("lease", "minded") => self.lease = ZookeeperLease::Minded,
            ("lease", _) => return Err(invalid("lease is session or minded")),
            ("token_base", number) => {
                let number = number.parse().ok().filter(|number| *number <= i64::MAX.unsigned_abs());
                self.token_base =
                    number.ok_or_else(|| invalid("token_base is a number from 0 to 9223372036854775807"))?;
            }
            _ => return Err(invalid("the options of a zk:// url are layout=, lease= and token_base=")),
        }
        Ok(())
    }

    /// The servers, for people and for the client.
    #[must_use]
    pub fn at(&self) -> String {
        self.hosts.iter().map(show_host).collect::<Vec<_>>().join(",")
    }

    pub(super) fn wanted_session(&self) -> Duration {
        self.session_timeout.unwrap_or(match self.lease {
            ZookeeperLease::Session => SESSION_TIMEOUT,
            ZookeeperLease::Minded => MINDED_TIMEOUT,
        })
    }
}

/// A server, as it stands in the URL.
pub(super) fn show_host((host, port): &(String, u16)) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn invalid(sentence: impl Into<String>) -> Error {
    Error::Invalid(sentence.into())
}

/// A path of nodes, as ZooKeeper takes it.
fn read_chroot(path: &str) -> Result<String, Error> {
    let path = path.trim_end_matches('/');
    if path.is_empty() {
        return Ok(String::new());
    }
    let path = decode_percent(path).ok_or_else(|| invalid("the path in the url has a % that stands for nothing"))?;
    let fine = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains(char::is_control);
    if !path.split('/').all(fine) || path == "zookeeper" || path.starts_with("zookeeper/") {
        return Err(invalid(format!("the path in the url is no path of nodes for resources, {EXAMPLE}")));
    }
    Ok(format!("/{path}"))
}

fn read_login(login: &str) -> Result<(String, String), Error> {
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    let plain =
        |text| decode_percent(text).ok_or_else(|| invalid("the login in the url has a % that stands for nothing"));
    let (user, password) = (plain(user)?, plain(password)?);
    if user.is_empty() || password.is_empty() || user.contains(':') {
        return Err(invalid("a login in the url is user:password"));
    }
    Ok((user, password))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_say_where_the_ensemble_is() {
        let table = [
            ("zk://h", "h:2181", ""),
            ("zk://h:1,g/", "h:1,g:2181", ""),
            ("zk://[::1]:9/a/b", "[::1]:9", "/a/b"),
            ("zk://h/a%20b/", "h:2181", "/a b"),
        ];
        for (url, at, chroot) in table {
            let options = ZookeeperEngineOptions::from_url(url).expect(url);
            assert_eq!((options.at().as_str(), options.chroot.as_str()), (at, chroot), "{url}");
            assert_eq!((options.layout, options.lease), (ZookeeperLayout::Curator, ZookeeperLease::Session));
            assert_eq!(options.limits.waiters_per_resource, 1000);
        }
        let url = "zk://ada:p%40ss@w@h/x?layout=both&lease=minded&token_base=77";
        let options = ZookeeperEngineOptions::from_url(url).expect("a url");
        assert_eq!(options.login, Some(("ada".into(), "p@ss@w".into())));
        assert_eq!((options.layout, options.lease), (ZookeeperLayout::Both, ZookeeperLease::Minded));
        assert_eq!(options.token_base, 77);
    }

    /// Goal: a bad URL gets a sentence, and no sentence holds a password.
    #[test]
    fn bad_urls_are_invalid_and_repeat_no_password() {
        for url in [
            "zk:h",
            "zk://",
            "zk://ada:hunter2@",
            "zk://ada:hunter2@h:0",
            "zk://ada:hunter2@h,",
            "zk://ada:hunter2%zz@h",
            "zk://:hunter2@h",
            "zk://hunter2@h",
            "zk://ada:hunter2@h/a//b",
            "zk://ada:hunter2@h/../b",
            "zk://ada:hunter2@h/zookeeper",
            "zk://ada:hunter2@h?layout=hunter2",
            "zk://ada:hunter2@h?lease=hunter2",
            "zk://ada:hunter2@h?token_base=-1",
            "zk://ada:hunter2@h?token_base=9223372036854775808",
            "zk://ada:hunter2@h?hunter2",
            "etcd://ada:hunter2@h",
        ] {
            let error = ZookeeperEngineOptions::from_url(url).expect_err(url);
            assert!(matches!(error, Error::Invalid(_)), "{url}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }
}
