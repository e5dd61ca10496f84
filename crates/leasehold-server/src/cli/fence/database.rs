//! The fenced database that `--url` names.

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use leasehold_support::exit::Failure;

const HINT: &str = "say --url postgres://user@host/database or --url sqlite:FILE";

/// `--url` of the commands of the fence. It is not that of the engine, and has no default.
#[derive(Debug, Args)]
pub struct DatabaseArg {
    /// The fenced database: postgres://user@host/database, sqlite:FILE
    // Several values and the same name as the option of the whole command line: it takes the place of that one.
    #[arg(long, value_name = "DB")]
    url: Vec<String>,
}

/// A database with fenced tables. `Debug` shows no password.
#[derive(PartialEq, Eq)]
pub enum FencedDatabase {
    Postgres(String),
    Sqlite(PathBuf),
}

impl fmt::Debug for FencedDatabase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Postgres(_) => f.write_str("Postgres(…)"),
            Self::Sqlite(path) => f.debug_tuple("Sqlite").field(path).finish(),
        }
    }
}

impl DatabaseArg {
    /// Whether a database was named.
    pub fn is_given(&self) -> bool {
        !self.url.is_empty()
    }

    /// The database.
    ///
    /// # Errors
    ///
    /// Exit code 2 for none, several, or what is no database that can be fenced.
    pub fn parse(&self) -> anyhow::Result<FencedDatabase> {
        match self.url.as_slice() {
            [] => Err(Failure::usage(format!("name the fenced database: {HINT}"))),
            [url] => parse_url(url),
            _ => Err(Failure::usage("this command works on one database: give --url once")),
        }
    }
}

fn parse_url(url: &str) -> anyhow::Result<FencedDatabase> {
    // No message repeats more of the URL than its scheme: the rest may carry a password.
    match url.split_once(':') {
        Some(("postgres" | "postgresql", _)) => Ok(FencedDatabase::Postgres(url.to_owned())),
        Some(("sqlite", "")) => Err(Failure::usage(format!("sqlite: names no file: {HINT}"))),
        Some(("sqlite", path)) if path.starts_with("//") => {
            Err(Failure::usage(format!("sqlite: is followed by a path without //: {HINT}")))
        }
        Some(("sqlite", path)) => Ok(FencedDatabase::Sqlite(PathBuf::from(path))),
        _ => Err(Failure::usage(format!("that is no database that can be fenced: {HINT}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn databases_are_told_by_their_scheme() {
        let parse = |url: &str| DatabaseArg { url: vec![url.to_owned()] }.parse();
        assert_eq!(parse("sqlite:./a b").unwrap(), FencedDatabase::Sqlite("./a b".into()));
        let postgres = parse("postgres://u:secret@h/db").unwrap();
        assert!(!format!("{postgres:?}").contains("secret"));
        for url in ["mysql://u:secret@h", "sqlite:", "sqlite:///x", "shop", ""] {
            let sentence = parse(url).unwrap_err().to_string();
            assert!(sentence.contains("sqlite:FILE") && !sentence.contains("secret"), "{sentence}");
        }
        assert!(DatabaseArg { url: Vec::new() }.parse().unwrap_err().to_string().contains("--url"));
    }
}
