//! Parses the `--url` of the bench: a directory, a Leasehold server, another engine, or a peer (`bare+…`).
//!
//! # Laws
//!
//! 1. Secrets of a URL (userinfo, query) appear in no report, plot or message: `display_url` has neither.
//! 2. A target that cannot be measured is refused before anything is measured.
//!
//! # Not here
//!
//! The engine that other commands use (`cli::target`). The bench also drives servers of others.

use std::fmt;
use std::path::PathBuf;

use super::peers::{self, PeerKind, PeerServer};
use super::server::ServerAddress;
use leasehold_support::exit::Failure;

/// The port when the URL names none.
const DEFAULT_RESP_PORT: u16 = 7401;

/// The hint in every error about a URL.
const URL_HINT: &str = "say e.g. --url embedded:./data or --url leasehold://127.0.0.1:7401";

/// URL schemes of engines that are driven through the library.
const ENGINE_SCHEMES: [&str; 8] = ["redis", "rediss", "redlock", "postgres", "postgresql", "etcd", "etcds", "zk"];

/// What a peer's scheme begins with: its own client, without an engine of ours.
const PEER_PREFIX: &str = "bare+";

/// One target of the bench.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BenchTarget {
    /// The embedded engine, in this process.
    Embedded(PathBuf),
    /// A Leasehold server, over RESP.
    Server(ServerAddress),
    /// An engine on a system that the fleet already has, through the library.
    Engine(BenchEngine),
    /// A server of another kind, through its native client.
    Peer(PeerServer),
}

/// An engine by its URL. `Debug` shows no secret.
#[derive(Clone, PartialEq, Eq)]
pub struct BenchEngine {
    /// The URL as given, with its secrets.
    pub url: String,
    /// The URL without its secrets.
    pub display_url: String,
}

impl fmt::Debug for BenchEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.display_url)
    }
}

impl BenchTarget {
    /// Parses a URL.
    ///
    /// # Errors
    ///
    /// Bad usage for an unknown scheme, and for a peer in a build without the feature `peers`.
    pub fn parse(url: &str) -> anyhow::Result<Self> {
        let Some((scheme, rest)) = url.split_once(':') else {
            return Err(Failure::usage(format!("the url has no scheme: {URL_HINT}")));
        };
        match scheme {
            "embedded" => parse_directory(rest).map(Self::Embedded),
            "leasehold" => parse_server(rest).map(Self::Server),
            _ if ENGINE_SCHEMES.contains(&scheme) => {
                let location = UrlParts::parse(scheme, rest)?.location;
                Ok(Self::Engine(BenchEngine { url: url.to_owned(), display_url: format!("{scheme}://{location}") }))
            }
            _ => match scheme.strip_prefix(PEER_PREFIX) {
                Some(bare) => parse_peer(bare, rest),
                None => Err(Failure::usage(format!("the bench cannot drive {scheme:?}: {URL_HINT}"))),
            },
        }
    }
}

fn parse_peer(scheme: &str, rest: &str) -> anyhow::Result<BenchTarget> {
    let Some(kind) = PeerKind::from_scheme(scheme) else {
        return Err(Failure::usage(format!("the bench cannot drive bare {scheme:?}: {URL_HINT}")));
    };
    let location = UrlParts::parse(scheme, rest)?.location;
    peers::require_built(kind)?;
    let display_url = format!("{PEER_PREFIX}{scheme}://{location}");
    Ok(BenchTarget::Peer(PeerServer { kind, url: format!("{scheme}:{rest}"), location, display_url }))
}

fn parse_directory(rest: &str) -> anyhow::Result<PathBuf> {
    if rest.is_empty() {
        return Err(Failure::usage(format!("embedded: names no directory: {URL_HINT}")));
    }
    // `embedded://data` would mean a directory in the root: surely a mistake.
    if rest.starts_with("//") {
        return Err(Failure::usage(format!("embedded: is followed by a path without //: {URL_HINT}")));
    }
    Ok(PathBuf::from(rest))
}

fn parse_server(rest: &str) -> anyhow::Result<ServerAddress> {
    let parts = UrlParts::parse("leasehold", rest)?;
    let location = parts.location.trim_end_matches('/');
    let no_port = || Failure::usage(format!("leasehold:// is followed by host:port: {URL_HINT}"));
    // An IPv6 address contains colons: it stands in brackets when a port follows.
    let (host, port) = match location.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse::<u16>().map_err(|_| no_port())?),
        _ => (location, DEFAULT_RESP_PORT),
    };
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if host.is_empty() || host.contains('/') || port == 0 {
        return Err(no_port());
    }
    Ok(ServerAddress { host: host.to_owned(), port, key: parts.secret, display_url: format!("leasehold://{location}") })
}

/// The parts of a URL.
struct UrlParts {
    /// Host, port and path. It contains no secret.
    location: String,
    /// The password of the userinfo, or all of the userinfo if it has no colon.
    secret: Option<String>,
}

impl UrlParts {
    fn parse(scheme: &str, rest: &str) -> anyhow::Result<Self> {
        let none = || Failure::usage(format!("{scheme}: is followed by //host:port"));
        let rest = rest.strip_prefix("//").ok_or_else(none)?;
        // A query may contain a password.
        let (rest, query) = rest.split_at(rest.find(['?', '#']).unwrap_or(rest.len()));
        if query.contains('@') {
            // The host could not be told from a part of a password, and would be displayed.
            return Err(Failure::usage("inside a url, write ? as %3F, # as %23 and @ as %40 where they are data"));
        }
        let (userinfo, location) =
            rest.rsplit_once('@').map_or((None, rest), |(user, location)| (Some(user), location));
        if location.is_empty() || location.starts_with(['/', ':']) {
            return Err(none());
        }
        let secret = userinfo.map(|userinfo| userinfo.split_once(':').map_or(userinfo, |(_, secret)| secret));
        Ok(Self {
            location: location.to_owned(),
            secret: secret.filter(|secret| !secret.is_empty()).map(str::to_owned),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_support::exit;

    fn address(url: &str) -> (String, u16, Option<String>, String) {
        match BenchTarget::parse(url) {
            Ok(BenchTarget::Server(ServerAddress { host, port, key, display_url })) => (host, port, key, display_url),
            other => panic!("{url}: {other:?}"),
        }
    }

    /// Goal: host, port and key of a server are found, and the key is not in what is shown.
    #[test]
    fn a_server_has_a_host_a_port_and_perhaps_a_key() {
        let table = [
            ("leasehold://127.0.0.1:7401", "127.0.0.1", 7401, None, "leasehold://127.0.0.1:7401"),
            ("leasehold://db.example/", "db.example", 7401, None, "leasehold://db.example"),
            ("leasehold://[::1]:99", "::1", 99, None, "leasehold://[::1]:99"),
            ("leasehold://[::1]", "::1", 7401, None, "leasehold://[::1]"),
            ("leasehold://s3cret@h:1", "h", 1, Some("s3cret"), "leasehold://h:1"),
            ("leasehold://:s3c@ret@h:1", "h", 1, Some("s3c@ret"), "leasehold://h:1"),
            ("leasehold://me:s3cret@h:1?k=s3cret", "h", 1, Some("s3cret"), "leasehold://h:1"),
        ];
        for (url, host, port, key, display_url) in table {
            assert_eq!(address(url), (host.into(), port, key.map(str::to_owned), display_url.into()), "{url}");
        }
    }

    #[test]
    fn a_directory_is_taken_as_it_is() {
        for dir in ["./data", "/var/lib/leasehold", "a:b", " x"] {
            assert_eq!(BenchTarget::parse(&format!("embedded:{dir}")).unwrap(), BenchTarget::Embedded(dir.into()));
        }
    }

    /// Goal: what cannot be driven is bad usage, in a sentence that repeats no secret.
    #[test]
    fn what_cannot_be_driven_says_what_to_type() {
        let table = [
            ("", "scheme"),
            ("./data", "scheme"),
            ("embedded:", "no directory"),
            ("embedded://data", "without //"),
            ("leasehold:", "//host:port"),
            ("leasehold://", "//host:port"),
            ("leasehold://:7401", "//host:port"),
            ("leasehold://s3cret@", "//host:port"),
            ("leasehold://s3cret@h:port", "host:port"),
            ("leasehold://h:0", "host:port"),
            ("leasehold://h:70000", "host:port"),
            ("leasehold://h/x", "host:port"),
            ("redis:", "//host:port"),
            ("postgres:///db?password=s3cret", "//host:port"),
            ("leasehold://s3cret?s3cret@h:1", "%3F"),
            ("postgres://h/db?password=s3cret@s3cret", "%40"),
            ("carrier-pigeon://s3cret@coop", "cannot drive"),
            ("bare+carrier-pigeon://s3cret@coop", "cannot drive"),
            ("mysql://s3cret@h", "cannot drive"),
        ];
        for (url, part) in table {
            let error = BenchTarget::parse(url).expect_err(url);
            let sentence = exit::sentence(&error);
            assert_eq!(exit::code(&error), exit::USAGE, "{url}");
            assert!(sentence.contains(part), "{url}: {sentence}");
            assert!(!sentence.contains("s3cret"), "{sentence}");
        }
    }

    /// Goal: an engine is driven as it is, and its password is not shown.
    #[test]
    fn engines_show_no_password() {
        let several = [("redlock", "a:1,b:2,c:3"), ("etcd", "a:1,b:2,c:3"), ("zk", "a:1,b:2/locks")];
        for (scheme, location) in [("redis", "h:1/2"), ("postgres", "h:1/db")].into_iter().chain(several) {
            let url = format!("{scheme}://ada:s3cret@{location}?slew=0");
            let Ok(BenchTarget::Engine(engine)) = BenchTarget::parse(&url) else { panic!("{url}") };
            assert_eq!((engine.url.as_str(), engine.display_url.as_str()), (&*url, &*format!("{scheme}://{location}")));
            assert!(!format!("{engine:?}").contains("s3cret"), "{engine:?}");
        }
    }

    /// Goal: a build without peers says how to get them; a build with them shows no password.
    #[test]
    fn peers_are_there_or_say_how_to_build_them() {
        for (scheme, location) in [("redis", "h:1/2"), ("etcd", "h:1,i:2"), ("zk", "h:1/root"), ("postgres", "h:1/db")]
        {
            let parsed = BenchTarget::parse(&format!("bare+{scheme}://ada:s3cret@{location}?password=s3cret"));
            if cfg!(feature = "peers") {
                let Ok(BenchTarget::Peer(peer)) = parsed else { panic!("{parsed:?}") };
                assert_eq!(peer.display_url, format!("bare+{scheme}://{location}"));
                assert_eq!(peer.url, format!("{scheme}://ada:s3cret@{location}?password=s3cret"));
                assert_eq!(peer.location, location);
                assert!(!format!("{peer:?}").contains("s3cret"), "{peer:?}");
            } else {
                let error = parsed.expect_err(scheme);
                let sentence = exit::sentence(&error);
                assert_eq!(exit::code(&error), exit::USAGE);
                assert!(sentence.contains("--features peers") && !sentence.contains("s3cret"), "{sentence}");
            }
        }
    }
}
