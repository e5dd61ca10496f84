//! Which engine a command talks to: the `--url`, and what this version can do with it.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use leasehold::clock::{Clock, SystemClock};
use leasehold::engine::embedded::{Notice, Visitor};
use leasehold::engine::remote::Remote;
use leasehold::engine::{Seen, Watch, embedded, remote};
use leasehold::{Error, Leasehold};

use leasehold_support::exit::{self, Failure};
use leasehold_support::output;

/// What `--url` names when nobody names anything: the server on this machine.
pub const DEFAULT_URL: &str = "leasehold://127.0.0.1:7401";

/// The environment variable with the API key, if it is not in the URL.
const API_KEY_VARIABLE: &str = "LEASEHOLD_API_KEY";

/// URL schemes of engines that the library opens by itself.
const LIBRARY_SCHEMES: [&str; 8] = ["redis", "rediss", "redlock", "postgres", "postgresql", "etcd", "etcds", "zk"];

/// What to type instead.
const URL_HINT: &str =
    "say e.g. --url leasehold://127.0.0.1:7401, embedded:./my-leases, redis://127.0.0.1:6379 or postgres://host/db";

/// An engine that a URL names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The embedded engine over a directory.
    Embedded(PathBuf),
    /// A server.
    Server(remote::Options),
    /// An engine on a system that the fleet already has.
    Engine(EngineUrl),
}

/// The URL of an engine. `Debug` shows its scheme only: the rest may carry a password.
#[derive(Clone, PartialEq, Eq)]
pub struct EngineUrl(String);

impl fmt::Debug for EngineUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EngineUrl({}:…)", self.0.split(':').next().unwrap_or_default())
    }
}

impl Target {
    /// Reads a URL.
    ///
    /// Never repeats the URL in a sentence: it may carry a password.
    ///
    /// # Errors
    ///
    /// Exit code 2 for what we do not know or do not have.
    pub fn parse(url: &str) -> anyhow::Result<Self> {
        let Some((scheme, rest)) = url.split_once(':') else {
            return Err(Failure::usage(format!("the url has no scheme: {URL_HINT}")));
        };
        match scheme {
            "embedded" if rest.is_empty() => Err(Failure::usage(format!("embedded: names no directory: {URL_HINT}"))),
            // It would name a directory in the root, which nobody means.
            "embedded" if rest.starts_with("//") => {
                Err(Failure::usage(format!("embedded: is followed by a path without //: {URL_HINT}")))
            }
            "embedded" => Ok(Self::Embedded(PathBuf::from(rest))),
            "leasehold" | "leaseholds" => {
                let options = remote::Options::from_url(url);
                options.map(Self::Server).map_err(|error| Failure::usage(format!("{error}: {URL_HINT}")))
            }
            _ if LIBRARY_SCHEMES.contains(&scheme) => Ok(Self::Engine(EngineUrl(url.to_owned()))),
            _ => Err(Failure::usage(format!("unknown engine {scheme:?} in the url: {URL_HINT}"))),
        }
    }

    /// A client.
    ///
    /// For a directory: locks it only during each operation, so that other processes can use it in between. For a
    /// server or another engine: connected.
    ///
    /// # Errors
    ///
    /// Exit code 2 for a URL that the engine does not take, 4 when nobody answers.
    pub async fn open(&self) -> anyhow::Result<Leasehold> {
        match self {
            Self::Embedded(dir) => Ok(open_directory(dir)),
            Self::Server(_) => Ok(Leasehold::with_engine(self.connect_server().await?, system_clock())),
            Self::Engine(EngineUrl(url)) => Ok(Leasehold::open(url).await?),
        }
    }

    /// What stands in the URL as `token_base`, where tokens are numbers of another system: they cannot be raised from here.
    /// None: they can.
    pub fn fixed_token_base(&self) -> Option<u64> {
        let Self::Engine(EngineUrl(url)) = self else { return None };
        let (scheme, rest) = url.split_once(':')?;
        let base = || rest.split(['?', '&']).find_map(|option| option.strip_prefix("token_base="));
        matches!(scheme, "etcd" | "etcds" | "zk").then(|| base().and_then(|text| text.parse().ok()).unwrap_or(0))
    }

    /// The server, connected.
    ///
    /// # Errors
    ///
    /// Exit code 2 if the target is none, 4 when it does not answer.
    async fn connect_server(&self) -> anyhow::Result<Arc<Remote>> {
        let Self::Server(options) = self else {
            return Err(Failure::usage("this needs a server: start leasehold serve"));
        };
        let options = with_environment_key(options.clone());
        let at = options.at();
        match Remote::open(options).await {
            Err(Error::Unavailable { source, .. }) => {
                let hint = unreachable_hint(source.downcast_ref::<remote::Away>());
                let source = exit::sentence(&anyhow::Error::from_boxed(source));
                // The cause usually names the address itself.
                let about = if source.contains(&at) { String::new() } else { format!("the server at {at}: ") };
                Err(Failure::coded(exit::UNAVAILABLE, format!("{about}{source}{hint}")))
            }
            opened => Ok(opened?),
        }
    }
}

/// The key of the environment, where the URL has none.
pub fn with_environment_key(mut options: remote::Options) -> remote::Options {
    if options.key.is_none() {
        options.key = std::env::var(API_KEY_VARIABLE).ok().filter(|key| !key.is_empty());
    }
    options
}

/// Events under a prefix, and the client they come from. A server sends no others; what other engines tell is selected
/// here.
pub struct PrefixWatch {
    /// The client, to be closed.
    pub client: Leasehold,
    stream: Watch,
    /// Empty where the engine selects.
    prefix: String,
}

impl Target {
    /// Watches what happens under a prefix.
    ///
    /// # Errors
    ///
    /// Exit code 2 from an engine that cannot be watched, 4 when nobody answers.
    pub async fn watch(&self, prefix: &str) -> anyhow::Result<PrefixWatch> {
        match self {
            Self::Server(_) => {
                let server = self.connect_server().await?;
                let stream = server.watch_prefix(prefix, None).await?;
                let client = Leasehold::with_engine(server, system_clock());
                Ok(PrefixWatch { client, stream, prefix: String::new() })
            }
            Self::Embedded(_) => Err(Failure::usage(
                "this needs a server: a directory cannot tell what happens in it, so ask again with leasehold ls, or \
                 start leasehold serve",
            )),
            Self::Engine(_) => {
                let client = self.open().await?;
                let stream = client.engine().watch(None).await?;
                Ok(PrefixWatch { client, stream, prefix: prefix.to_owned() })
            }
        }
    }
}

impl PrefixWatch {
    /// Waits for the next events under the prefix, or for a gap.
    ///
    /// # Errors
    ///
    /// What the engine says when it cannot be asked.
    pub async fn next(&mut self) -> Result<Seen, Error> {
        loop {
            let seen = match self.stream.next().await? {
                Seen::Events(mut events) => {
                    events.retain(|event| event.resources.iter().any(|name| name.starts_with(&self.prefix)));
                    Seen::Events(events)
                }
                reset => reset,
            };
            if !matches!(&seen, Seen::Events(events) if events.is_empty()) {
                return Ok(seen);
            }
        }
    }
}

/// What to do about a server that cannot be reached, where the cause does not say it.
fn unreachable_hint(away: Option<&remote::Away>) -> &'static str {
    match away {
        // Default certificates of openssl: rustls accepts them as an authority only.
        Some(remote::Away::Untrusted { source, .. }) if source.to_string().contains("CaUsedAsEndEntity") => {
            "; it is the certificate of an authority, so give the server one with basicConstraints=critical,CA:FALSE"
        }
        Some(remote::Away::Untrusted { .. }) => "; name who signed it by ?ca=FILE in the url",
        Some(remote::Away::Handshake { .. } | remote::Away::SpeaksTls { .. } | remote::Away::SpeaksNoTls { .. }) => "",
        _ => "; start one with `leasehold serve`, or name another by --url",
    }
}

fn open_directory(dir: &std::path::Path) -> Leasehold {
    // Notices of recovery are for the person at the terminal.
    let notices = Arc::new(|notice: Notice| {
        if !matches!(notice, Notice::Failed(_)) {
            output::say(notice.to_string());
        }
    });
    let options = embedded::Options { notices, ..embedded::Options::default() };
    Leasehold::with_engine(Visitor::new(dir, options), system_clock())
}

/// The clock leases are counted by: it includes suspend.
pub fn system_clock() -> Arc<dyn Clock> {
    SystemClock::shared()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_a_target() {
        for dir in ["./data", "/var/lib/leasehold", "a:b", " x"] {
            assert_eq!(Target::parse(&format!("embedded:{dir}")).unwrap(), Target::Embedded(PathBuf::from(dir)));
        }
    }

    #[test]
    fn a_server_is_a_target() {
        let Target::Server(options) = Target::parse(DEFAULT_URL).unwrap() else { panic!("the default is a server") };
        assert_eq!(options.at(), "127.0.0.1:7401");
    }

    #[test]
    fn other_engines_are_targets_and_show_no_password() {
        let others =
            ["postgres://u:secret@h/db", "postgresql://h", "etcd://u:secret@h", "etcds://h", "zk://u:secret@h/x"];
        for url in ["redis://:secret@h", "rediss://h", "redlock://a,b,c"].into_iter().chain(others) {
            let target = Target::parse(url).unwrap();
            assert!(matches!(target, Target::Engine(_)), "{url}");
            assert!(!format!("{target:?}").contains("secret"), "{target:?}");
        }
    }

    #[test]
    fn what_we_do_not_have_gets_one_sentence_and_its_code() {
        let table = [
            "carrier-pigeon://coop",
            "leasehold://",
            "leasehold://u:secret@h",
            "embedded:",
            "embedded://data",
            "./data",
            "",
        ];
        for url in table {
            let error = Target::parse(url).expect_err(url);
            assert_eq!(exit::code(&error), 2, "{url}");
            let sentence = exit::sentence(&error);
            assert!(sentence.contains("embedded:./my-leases"), "{url}: {sentence}");
            assert!(!sentence.contains("secret"), "{sentence}");
        }
    }
}
