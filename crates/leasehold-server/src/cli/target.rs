//! Which engine a command talks to: the `--url`, and what this version can do with it.

use std::path::PathBuf;
use std::sync::Arc;

use leasehold::Leasehold;
use leasehold::clock::{Clock, SystemClock};
use leasehold::engine::embedded::{Notice, Options, Visitor};

use super::exit::{Failure, UNAVAILABLE};
use super::output;

/// What `--url` names when nobody names anything: the server, which this version does not have.
pub const DEFAULT_URL: &str = "leasehold://127.0.0.1:7401";

/// Engines of the design that this version does not have, by URL scheme.
const LATER: [&str; 7] = ["redis", "rediss", "redlock", "etcd", "zk", "postgres", "postgresql"];

/// What to type instead.
const HINT: &str = "this version has only embedded:DIR, so say e.g. --url embedded:./leasehold-data";

/// An engine that was named and that we have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The directory of the embedded engine.
    pub dir: PathBuf,
}

impl Target {
    /// Reads a URL.
    ///
    /// Never repeats the URL in a sentence: it may carry a password.
    ///
    /// # Errors
    ///
    /// Exit code 2 for what we do not know or do not have, 4 for a server, since nobody can be asked.
    pub fn parse(url: &str) -> anyhow::Result<Self> {
        let Some((scheme, rest)) = url.split_once(':') else {
            return Err(Failure::usage(format!("the url has no scheme: {HINT}")));
        };
        match scheme {
            "embedded" if rest.is_empty() => Err(Failure::usage(format!("embedded: names no directory: {HINT}"))),
            // It would mean a directory in the root, which nobody means.
            "embedded" if rest.starts_with("//") => {
                Err(Failure::usage(format!("embedded: is followed by a path without //: {HINT}")))
            }
            "embedded" => Ok(Self { dir: PathBuf::from(rest) }),
            "leasehold" => Err(Failure::coded(UNAVAILABLE, format!("no server can be asked yet: {HINT}"))),
            _ if LATER.contains(&scheme) => {
                Err(Failure::usage(format!("the engine {scheme}: is not in this version: {HINT}")))
            }
            _ => Err(Failure::usage(format!("unknown engine {scheme:?} in the url: {HINT}"))),
        }
    }

    /// A client that holds the directory only for the moment of each operation, so that other processes
    /// have their turn between them.
    pub fn visit(&self) -> Leasehold {
        // What recovery left behind, or a disk that failed, is for the person at the terminal.
        // A disk that failed is in the error of the command that met it: one sentence, not two.
        let notices = Arc::new(|notice: Notice| {
            if !matches!(notice, Notice::Failed(_)) {
                output::say(notice.to_string());
            }
        });
        let options = Options { notices, ..Options::default() };
        Leasehold::with_engine(Visitor::new(self.dir.clone(), options), clock())
    }
}

/// The clock leases are counted by: it includes suspend.
pub fn clock() -> Arc<dyn Clock> {
    SystemClock::shared()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::exit;

    #[test]
    fn a_directory_is_a_target() {
        for dir in ["./data", "/var/lib/leasehold", "a:b", " x"] {
            assert_eq!(Target::parse(&format!("embedded:{dir}")).unwrap().dir, PathBuf::from(dir));
        }
    }

    #[test]
    fn what_we_do_not_have_gets_one_sentence_and_its_code() {
        let table = [
            ("leasehold://127.0.0.1:7401", 4),
            ("redis://localhost", 2),
            ("redlock://a,b,c", 2),
            ("etcd://a", 2),
            ("zk://a/b", 2),
            ("postgres://u:secret@h/db", 2),
            ("carrier-pigeon://coop", 2),
            ("embedded:", 2),
            ("embedded://data", 2),
            ("./data", 2),
            ("", 2),
        ];
        for (url, code) in table {
            let error = Target::parse(url).expect_err(url);
            assert_eq!(exit::code(&error), code, "{url}");
            let sentence = exit::sentence(&error);
            assert!(sentence.contains("embedded:./leasehold-data"), "{url}: {sentence}");
            assert!(!sentence.contains("secret"), "{sentence}");
        }
    }
}
