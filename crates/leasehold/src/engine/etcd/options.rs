//! Where the cluster is, and how the engine uses it: what `etcd://h1:2379,h2:2379?prefix=…` says.
//!
//! No sentence of this file repeats anything of a URL but hosts and the names of its options: the rest may be a password.

use std::fmt;
use std::path::PathBuf;

use leasehold_core::Limits;

use crate::engine::url_text::{decode_percent, host_and_port};
use crate::error::Error;

const DEFAULT_PORT: u16 = 2379;
/// Waiters on one resource: each of them is a key that others count.
const MAX_WAITERS_PER_RESOURCE: usize = 1000;
/// Bytes of the prefix: it is part of every key.
const MAX_PREFIX_BYTES: usize = 128;
/// Members in one URL.
const MAX_MEMBERS: usize = 32;
const EXAMPLE: &str = "as in etcd://h1:2379,h2:2379,h3:2379";

/// How the engine uses a cluster. `Debug` hides user and password.
#[derive(Clone)]
pub struct EtcdEngineOptions {
    /// Host and port of members, in the order in which they are tried.
    pub(super) members: Vec<(String, u16)>,
    pub(super) login: Option<(String, String)>,
    pub(super) tls: Option<EtcdTlsFiles>,
    /// Comes before every key. The lock clients of etcd see the same names only without one, or with the same.
    pub prefix: String,
    /// Added to the revision: every token is above it.
    pub token_base: u64,
    /// The limits of claims.
    pub limits: Limits,
}

/// Files for TLS.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct EtcdTlsFiles {
    /// Who signed the members; none: as the system believes.
    pub ca: Option<PathBuf>,
    /// Certificate and key of this client.
    pub client: Option<(PathBuf, PathBuf)>,
}

impl fmt::Debug for EtcdEngineOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdEngineOptions")
            .field("at", &self.at())
            .field("tls", &self.tls.is_some())
            .field("prefix", &self.prefix)
            .field("token_base", &self.token_base)
            .finish_non_exhaustive()
    }
}

impl EtcdEngineOptions {
    /// Reads `etcd://[user:password@]h1:p,h2:p[?prefix=…&token_base=N]`, or `etcds://…[?ca=FILE&cert=FILE&key=FILE]` for
    /// TLS.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`], with a sentence that says what is wrong and repeats no password.
    ///
    /// ```
    /// use leasehold::engine::etcd::EtcdEngineOptions;
    ///
    /// let options = EtcdEngineOptions::from_url("etcd://ada:s3cret@h1,h2:2380?prefix=locks/").unwrap();
    /// assert_eq!((options.at(), options.prefix.as_str()), ("h1:2379,h2:2380".into(), "locks/"));
    /// assert!(!format!("{options:?}").contains("s3cret"));
    /// ```
    pub fn from_url(url: &str) -> Result<Self, Error> {
        let (tls, rest) = match (url.strip_prefix("etcd://"), url.strip_prefix("etcds://")) {
            (Some(rest), _) => (None, rest),
            (_, Some(rest)) => (Some(EtcdTlsFiles::default()), rest),
            _ => return Err(invalid(format!("the address of an etcd cluster begins with etcd://, {EXAMPLE}"))),
        };
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        // The last @: a password may hold one.
        let (login, hosts) = place.rsplit_once('@').map_or((None, place), |(login, hosts)| (Some(login), hosts));
        let hosts = hosts.strip_suffix('/').unwrap_or(hosts);
        if hosts.contains('/') {
            return Err(invalid("an etcd url has no path: names begin with what ?prefix= says"));
        }
        let members =
            hosts.split(',').map(|host| host_and_port(host, DEFAULT_PORT, EXAMPLE)).collect::<Result<Vec<_>, _>>()?;
        if members.len() > MAX_MEMBERS {
            return Err(invalid(format!("an etcd url names at most {MAX_MEMBERS} members")));
        }
        let limits = Limits { waiters_per_resource: MAX_WAITERS_PER_RESOURCE, ..Limits::default() };
        let login = login.map(read_login).transpose()?;
        let mut options = Self { members, login, tls, prefix: String::new(), token_base: 0, limits };
        options.read_query(query)?;
        Ok(options)
    }

    /// Hosts and ports, for people.
    #[must_use]
    pub fn at(&self) -> String {
        let shown = self.members.iter().map(|(host, port)| show_member(host, *port));
        shown.collect::<Vec<_>>().join(",")
    }

    fn read_query(&mut self, query: &str) -> Result<(), Error> {
        let (mut cert, mut key) = (None, None);
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let text =
                || decode_percent(value).ok_or_else(|| invalid(format!("the value of {name}= is not encoded well")));
            match name {
                "prefix" => self.prefix = checked_prefix(text()?)?,
                "token_base" => {
                    let base = value.parse().ok().filter(|base| *base <= crate::engine::Token::MAX_FLOOR.get());
                    self.token_base = base.ok_or_else(|| invalid("token_base= is a token, from 0 on"))?;
                }
                "ca" | "cert" | "key" => {
                    let Some(tls) = &mut self.tls else { return Err(invalid("ca=, cert= and key= are for etcds://")) };
                    let file = Some(PathBuf::from(text()?));
                    match name {
                        "ca" => tls.ca = file,
                        "cert" => cert = file,
                        _ => key = file,
                    }
                }
                _ => {
                    return Err(invalid(
                        "the options of etcd:// are prefix= and token_base=, of etcds:// ca=, cert= and key= too",
                    ));
                }
            }
        }
        match (cert, key, &mut self.tls) {
            (Some(cert), Some(key), Some(tls)) => tls.client = Some((cert, key)),
            (None, None, _) => {}
            _ => return Err(invalid("cert= and key= come together")),
        }
        Ok(())
    }
}

/// `host:port`, for people.
pub(super) fn show_member(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn checked_prefix(prefix: String) -> Result<String, Error> {
    if prefix.len() > MAX_PREFIX_BYTES || prefix.chars().any(char::is_control) {
        return Err(invalid(format!("prefix= is at most {MAX_PREFIX_BYTES} bytes without control characters")));
    }
    Ok(prefix)
}

fn read_login(login: &str) -> Result<(String, String), Error> {
    let (user, password) = login.split_once(':').ok_or_else(|| invalid("a login is USER:PASSWORD"))?;
    match (decode_percent(user), decode_percent(password)) {
        (Some(user), Some(password)) if !user.is_empty() => Ok((user, password)),
        _ => Err(invalid("a login is USER:PASSWORD, with signs like @ written as %40")),
    }
}

fn invalid(sentence: impl Into<String>) -> Error {
    Error::Invalid(sentence.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<EtcdEngineOptions, String> {
        EtcdEngineOptions::from_url(url).map_err(|error| error.to_string())
    }

    #[test]
    fn the_options_of_the_url_are_read() {
        let plain = read("etcd://localhost").unwrap();
        assert_eq!((plain.at().as_str(), plain.prefix.as_str(), plain.token_base), ("localhost:2379", "", 0));
        let all = read("etcds://ada:p%40ss@[::1]:99,h2?prefix=a%2Fb/&token_base=7&ca=/c&cert=/x&key=/y").unwrap();
        assert_eq!((all.at().as_str(), all.prefix.as_str(), all.token_base), ("[::1]:99,h2:2379", "a/b/", 7));
        assert_eq!(all.login, Some(("ada".into(), "p@ss".into())));
        let tls = all.tls.clone().unwrap();
        assert_eq!((tls.ca, tls.client), (Some("/c".into()), Some(("/x".into(), "/y".into()))));
        assert!(!format!("{all:?}").contains("p@ss"));
        assert_eq!(all.limits.waiters_per_resource, 1000);
    }

    #[test]
    fn what_is_wrong_is_said_without_the_password() {
        for (url, sentence) in [
            ("redis://h", "begins with etcd://"),
            ("etcd://", "names no host"),
            ("etcd://h1,,h2", "names no host"),
            ("etcd://h1:0", "from 1 to 65535"),
            ("etcd://h1:x", "from 1 to 65535"),
            ("etcd://h1/path", "has no path"),
            ("etcd://ada:hunter2@h1?colour=red", "the options of etcd://"),
            ("etcd://hunter2@h1", "USER:PASSWORD"),
            ("etcd://h1?token_base=-1", "token_base= is a token"),
            ("etcd://h1?token_base=9223372036854775807", "token_base= is a token"),
            ("etcd://h1?prefix=%01", "without control characters"),
            ("etcd://h1?prefix=%zz", "not encoded well"),
            ("etcd://h1?ca=/c", "are for etcds://"),
            ("etcds://h1?cert=/c", "come together"),
        ] {
            let said = read(url).unwrap_err();
            assert!(said.contains(sentence) && !said.contains("hunter2"), "{url}: {said}");
        }
    }
}
