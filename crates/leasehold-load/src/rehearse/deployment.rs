//! The deployment under test: parses `--http URL` and opens connections to it.

use std::fmt;
use std::io;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::http_connection::HttpStream;
use leasehold_support::exit::{Failure, UNAVAILABLE};

/// The environment variable with the key.
const API_KEY_VARIABLE: &str = "LEASEHOLD_API_KEY";

/// The address of a deployment, and what every request to it contains.
pub struct Deployment {
    /// The URL for messages and reports.
    pub display_url: String,
    /// The path of the URL, before the path of each request.
    pub path_prefix: String,
    /// The headers Host and Authorization of every request.
    pub common_headers: String,
    host: String,
    port: u16,
    tls: Option<TlsConnector>,
}

impl fmt::Debug for Deployment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.display_url)
    }
}

impl Deployment {
    /// Parses a URL, and reads the key from the environment.
    ///
    /// # Errors
    ///
    /// Bad usage. The message does not quote the URL, which may contain a secret.
    pub fn parse(url: &str) -> anyhow::Result<Self> {
        let key = std::env::var(API_KEY_VARIABLE).ok().filter(|key| !key.is_empty());
        Self::new(url, key.as_deref())
    }

    fn new(url: &str, key: Option<&str>) -> anyhow::Result<Self> {
        let usage_error = |why: &str| Failure::usage(format!("--http: {why}: say e.g. --http http://127.0.0.1:7400"));
        let (secure, rest) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => return Err(usage_error("a URL begins with http:// or https://")),
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err(usage_error("the key comes in LEASEHOLD_API_KEY, not in the URL"));
        }
        let is_forbidden = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '?' | '#');
        if path.contains(is_forbidden) || authority.contains(is_forbidden) {
            return Err(usage_error("a query, a fragment or a space has no place here"));
        }
        let (host, port) = split_authority(authority).ok_or_else(|| usage_error("that is no host and port"))?;
        let port = port.unwrap_or(if secure { 443 } else { 80 });
        let auth = match key {
            Some(key) if key.contains(|c: char| c.is_control() || c == ' ' || !c.is_ascii()) => {
                return Err(Failure::usage(format!("{API_KEY_VARIABLE} is no key")));
            }
            Some(key) => format!("Authorization: Bearer {key}\r\n"),
            None => String::new(),
        };
        Ok(Self {
            display_url: url.trim_end_matches('/').to_owned(),
            path_prefix: path.trim_end_matches('/').to_owned(),
            common_headers: format!("Host: {authority}\r\n{auth}"),
            host,
            port,
            tls: if secure { Some(tls_connector()?) } else { None },
        })
    }

    /// Opens a connection.
    ///
    /// # Errors
    ///
    /// The TCP connection or the TLS handshake failed.
    pub async fn connect(&self) -> io::Result<HttpStream> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        let Some(tls) = &self.tls else { return Ok(HttpStream::Plain(stream)) };
        let name = ServerName::try_from(self.host.clone()).map_err(io::Error::other)?;
        Ok(HttpStream::Tls(Box::new(tls.connect(name, stream).await?)))
    }

    /// Resolves the host name once, for all later connections.
    ///
    /// # Errors
    ///
    /// Unavailable: the name has no address, or the server does not accept.
    pub async fn resolve_host(mut self) -> anyhow::Result<Arc<Self>> {
        let unavailable =
            |cause: io::Error| Failure::coded(UNAVAILABLE, format!("no answer from {}: {cause}", self.display_url));
        let address = match self.connect().await.map_err(unavailable)? {
            HttpStream::Plain(stream) => stream.peer_addr().ok(),
            // TLS needs the name for the certificate.
            HttpStream::Tls(_) => None,
        };
        if let Some(address) = address {
            self.host = address.ip().to_string();
        }
        Ok(Arc::new(self))
    }
}

/// Splits an authority into host and port. An IPv6 address stands in brackets.
fn split_authority(authority: &str) -> Option<(String, Option<u16>)> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']')?;
            (host, if after.is_empty() { None } else { Some(after.strip_prefix(':')?) })
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let port = port.map(|port| port.parse::<u16>().ok().filter(|port| *port > 0));
    match port {
        Some(None) => None,
        port => (!host.is_empty()).then(|| (host.to_owned(), port.flatten())),
    }
}

fn tls_connector() -> anyhow::Result<TlsConnector> {
    Ok(TlsConnector::from(leasehold_support::tls::client_config()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what people type is understood, and what cannot work is refused without being repeated.
    #[test]
    fn urls() {
        let deployment = |url: &str| Deployment::new(url, Some("k_1")).unwrap();
        let one = deployment("http://127.0.0.1:7400/");
        assert_eq!((one.host.as_str(), one.port, one.path_prefix.as_str()), ("127.0.0.1", 7400, ""));
        assert_eq!(one.common_headers, "Host: 127.0.0.1:7400\r\nAuthorization: Bearer k_1\r\n");
        let two = deployment("https://tickets.example/office");
        assert_eq!((two.port, two.path_prefix.as_str(), two.tls.is_some()), (443, "/office", true));
        let six = deployment("http://[::1]:80");
        assert_eq!((six.host.as_str(), six.port), ("::1", 80));
        let bad = [
            "",
            "127.0.0.1:7400",
            "ftp://x",
            "http://",
            "http://h:0",
            "http://h:99999",
            "http://u:hunter2@h",
            "http://h/?key=hunter2",
            "http://[::1",
            "http://h:80:90",
            "http://h x",
        ];
        for bad in bad {
            let sentence = Deployment::new(bad, None).unwrap_err().to_string();
            assert!(sentence.starts_with("--http: ") && !sentence.contains("hunter2"), "{bad}: {sentence}");
        }
        assert!(Deployment::new("http://h", Some("two words\r\n")).is_err());
    }
}
