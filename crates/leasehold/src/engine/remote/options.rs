//! Where the server is, and how it is spoken to: what `leasehold://:KEY@host:port` says.
//!
//! No sentence of this file repeats anything of a URL but its host and the names of its options: the rest may be
//! a key.

use std::fmt;
use std::path::PathBuf;

use crate::engine::url_text::{decode_percent, host_and_port};
use crate::error::Error;

/// The port where no port is said.
const DEFAULT_PORT: u16 = 7401;

/// The port of HTTP where the option `http` says none.
const DEFAULT_HTTP_PORT: u16 = 7400;

const EXAMPLE: &str = "as in leasehold://127.0.0.1:7401";
const HTTP_EXAMPLE: &str = "as in leasehold://127.0.0.1:7401?http=127.0.0.1:7400";

/// How a server is reached. `Debug` hides the key.
#[derive(Clone, PartialEq, Eq)]
pub struct Options {
    /// Name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// The API key, where the server wants one.
    pub key: Option<String>,
    /// TLS, where it is spoken (feature `tls`).
    pub tls: Option<Tls>,
    /// Host and port of HTTP, for a store of recipes; none: the host above, and the port that the server tells.
    pub http: Option<(String, u16)>,
}

/// The files of TLS, as PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Who signed the server's certificate, and nobody else then. Without it: the authorities that the system trusts.
    pub ca: Option<PathBuf>,
    /// Our own certificate and its key, for servers that want one.
    pub client: Option<(PathBuf, PathBuf)>,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.key.as_ref().map(|_| "…");
        let mut text = f.debug_struct("Options");
        text.field("at", &self.at()).field("key", &key).field("tls", &self.tls).field("http", &self.http).finish()
    }
}

impl Options {
    /// Reads `leasehold://[:KEY@]host[:port][?http=HOST:PORT]`, or `leaseholds://…[?ca=FILE][&cert=FILE&key=FILE]` for TLS.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`], with a sentence that says what is wrong and repeats no key.
    ///
    /// ```
    /// use leasehold::engine::remote::Options;
    ///
    /// let options = Options::from_url("leasehold://:s3cret@db-1").unwrap();
    /// assert_eq!((options.at(), options.key.as_deref()), ("db-1:7401".into(), Some("s3cret")));
    /// assert!(!format!("{options:?}").contains("s3cret"));
    /// ```
    pub fn from_url(url: &str) -> Result<Self, Error> {
        let (with_tls, rest) = if let Some(rest) = url.strip_prefix("leaseholds://") {
            (true, rest)
        } else if let Some(rest) = url.strip_prefix("leasehold://") {
            (false, rest)
        } else {
            return Err(invalid(format!("the address of a server begins with its scheme, {EXAMPLE}")));
        };
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let place = place.strip_suffix('/').unwrap_or(place);
        // The last @: a key may hold one.
        let (user, place) = place.rsplit_once('@').map_or((None, place), |(user, place)| (Some(user), place));
        let (host, port) = host_and_port(place, DEFAULT_PORT, EXAMPLE)?;
        let (files, http) = url_options(query)?;
        if !with_tls && files != Tls::default() {
            return Err(invalid("?ca=, cert= and key= are for leaseholds://"));
        }
        let tls = with_tls.then_some(files);
        Ok(Self { host, port, key: user.map(key).transpose()?.flatten(), tls, http })
    }

    /// `host:port`, for people.
    #[must_use]
    pub fn at(&self) -> String {
        if self.host.contains(':') {
            return format!("[{}]:{}", self.host, self.port);
        }
        format!("{}:{}", self.host, self.port)
    }
}

fn invalid(sentence: impl Into<String>) -> Error {
    Error::Invalid(sentence.into())
}

/// The key behind the colon; there are no user names.
fn key(user: &str) -> Result<Option<String>, Error> {
    let Some((name, key)) = user.split_once(':') else {
        return Err(invalid("the key stands behind a colon, as in leasehold://:KEY@host:7401"));
    };
    if !matches!(name, "" | "default") {
        return Err(invalid("there are no user names, only keys, as in leasehold://:KEY@host:7401"));
    }
    let key = decode_percent(key).ok_or_else(|| invalid("the key in the url has a % that stands for nothing"))?;
    Ok(Some(key).filter(|key| !key.is_empty()))
}

fn url_options(query: &str) -> Result<(Tls, Option<(String, u16)>), Error> {
    let (mut ca, mut cert, mut private, mut http) = (None, None, None, None);
    for option in query.split('&').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        if name == "http" {
            http = Some(host_and_port(value, DEFAULT_HTTP_PORT, HTTP_EXAMPLE)?);
            continue;
        }
        let file = decode_percent(value).filter(|file| !file.is_empty()).map(PathBuf::from);
        let Some(file) = file else { return Err(invalid("an option of the url names no file")) };
        match name {
            "ca" => ca = Some(file),
            "cert" => cert = Some(file),
            "key" => private = Some(file),
            _ => return Err(invalid("the options of a server's url are http=, and ca=, cert= and key=, each a file")),
        }
    }
    let client = match (cert, private) {
        (Some(cert), Some(private)) => Some((cert, private)),
        (None, None) => None,
        _ => return Err(invalid("cert= and key= belong together")),
    };
    Ok((Tls { ca, client }, http))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_say_where_the_server_is() {
        let table = [
            ("leasehold://127.0.0.1:7401", "127.0.0.1:7401", None),
            ("leasehold://db-1", "db-1:7401", None),
            ("leasehold://db-1:9/", "db-1:9", None),
            ("leasehold://[::1]:9", "[::1]:9", None),
            ("leasehold://[::1]", "[::1]:7401", None),
            ("leasehold://:s3@cret%3A@db-1:9", "db-1:9", Some("s3@cret:")),
            ("leasehold://default:k@db-1", "db-1:7401", Some("k")),
            ("leasehold://:@db-1", "db-1:7401", None),
        ];
        for (url, at, key) in table {
            let options = Options::from_url(url).expect(url);
            assert_eq!((options.at().as_str(), options.key.as_deref(), &options.tls), (at, key, &None), "{url}");
        }
        let options = Options::from_url("leaseholds://:k@h?ca=/a%20b&cert=c&key=d").expect("a url");
        let tls = Tls { ca: Some("/a b".into()), client: Some(("c".into(), "d".into())) };
        assert_eq!(options.tls, Some(tls));
        let options = Options::from_url("leasehold://h?http=web:80").expect("a url");
        assert_eq!((options.http, options.tls), (Some(("web".into(), 80)), None));
        let options = Options::from_url("leaseholds://h?http=[::1]&ca=f").expect("a url");
        assert_eq!((options.http, options.tls.is_some()), (Some(("::1".into(), 7400)), true));
        let options = Options::from_url("leaseholds://h").expect("a url");
        assert_eq!(options.tls, Some(Tls::default()), "the authorities of the system");
    }

    /// Goal: a bad URL gets a sentence, and no sentence holds a key.
    #[test]
    fn bad_urls_are_invalid_and_repeat_no_key() {
        for url in [
            "leasehold://",
            "leasehold:7401",
            "leasehold://:hunter2@",
            "leasehold://:hunter2@h:0",
            "leasehold://:hunter2@h:65536",
            "leasehold://:hunter2@h:port",
            "leasehold://hunter2@h",
            "leasehold://ada:hunter2@h",
            "leasehold://:hunter2%@h",
            "leasehold://:hunter2%zz@h",
            "leasehold://:hunter2@h/path",
            "leasehold://:hunter2@[::1",
            "leasehold://:hunter2@[::1]x",
            "leasehold://:hunter2@a b",
            "leasehold://:hunter2@h?ca=f",
            "leasehold://:hunter2@h?hunter2",
            "leasehold://:hunter2@h?http=",
            "leasehold://:hunter2@h?http=web:0",
            "leaseholds://:hunter2@h?ca=",
            "leaseholds://:hunter2@h?ca=f&cert=c",
            "leasehold://:hunter2@h?cert=c&key=d",
            "leaseholds://:hunter2@h?ca=f&hunter2=x",
            "redis://:hunter2@h",
        ] {
            let error = Options::from_url(url).expect_err(url);
            assert!(matches!(error, Error::Invalid(_)), "{url}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }
}
