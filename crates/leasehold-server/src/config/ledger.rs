//! The URL of the ledger.

use std::path::{Path, PathBuf};

use super::SecretText;

/// The ledger's file in the data directory.
const SQLITE_FILE: &str = "boxoffice.sqlite";

/// Where the ledger is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LedgerUrl {
    /// There is no box office.
    None,
    /// In a file.
    Sqlite(PathBuf),
    /// In a database that several servers share.
    Postgres(SecretText),
}

impl LedgerUrl {
    /// Reads a URL. A relative default is in the data directory.
    ///
    /// # Errors
    ///
    /// A sentence. It does not repeat the URL: that may carry a password.
    pub fn parse(url: &str, data: &Path) -> Result<Self, String> {
        match url {
            "none" => Ok(Self::None),
            "sqlite" => Ok(Self::Sqlite(data.join(SQLITE_FILE))),
            url if url.starts_with("postgres://") || url.starts_with("postgresql://") => {
                Ok(Self::Postgres(SecretText::new(url)))
            }
            url => match url.strip_prefix("sqlite:") {
                Some(path) if !path.is_empty() => Ok(Self::Sqlite(path.trim_start_matches("//").into())),
                _ => Err("a ledger is sqlite (in the data directory), sqlite:FILE, postgres://…, or none".into()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_ledgers() {
        let data = Path::new("/d");
        assert_eq!(LedgerUrl::parse("none", data), Ok(LedgerUrl::None));
        assert_eq!(LedgerUrl::parse("sqlite", data), Ok(LedgerUrl::Sqlite("/d/boxoffice.sqlite".into())));
        assert_eq!(LedgerUrl::parse("sqlite:/x/y.db", data), Ok(LedgerUrl::Sqlite("/x/y.db".into())));
        let with_password = LedgerUrl::parse("postgres://u:hunter2@h/d", data).unwrap();
        assert!(matches!(with_password, LedgerUrl::Postgres(_)) && !format!("{with_password:?}").contains("hunter2"));
        for bad in ["", "sqlite:", "mysql://u:hunter2@h/d", "oracle"] {
            let sentence = LedgerUrl::parse(bad, data).unwrap_err();
            assert!(!sentence.contains("hunter2"), "{sentence}");
        }
    }
}
