//! TLS to a database, by rustls.
//!
//! # Laws
//!
//! 1. With TLS the server's certificate is always verified, for the host in the address. TLS without verification is not
//!    offered: it protects against nobody.
//! 2. A password never leaves this machine unencrypted unless the address says so in so many words.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;

/// The TLS parameters of an address, named as in libpq.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TlsRequest {
    mode: Option<String>,
    roots: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
}

impl TlsRequest {
    /// Splits the TLS parameters off the address. The client library does not know them.
    pub fn split_from_url(url: &str) -> (String, Self) {
        let mut asked = Self::default();
        let Some((place, query)) = url.split_once('?') else { return (url.into(), asked) };
        let mut rest = Vec::new();
        for pair in query.split('&') {
            let mut path =
                |slot: fn(&mut Self) -> &mut Option<PathBuf>, text| *slot(&mut asked) = Some(decoded(text).into());
            match pair.split_once('=') {
                Some(("sslrootcert", text)) => path(|asked| &mut asked.roots, text),
                Some(("sslcert", text)) => path(|asked| &mut asked.certificate, text),
                Some(("sslkey", text)) => path(|asked| &mut asked.key, text),
                Some(("sslmode", text)) => asked.mode = Some(decoded(text)),
                _ => rest.push(pair),
            }
        }
        let query = if rest.is_empty() { String::new() } else { format!("?{}", rest.join("&")) };
        (format!("{place}{query}"), asked)
    }

    /// Sets the TLS mode of the connection, and returns its connector.
    pub fn apply(self, config: &mut Config) -> Result<PostgresTls, String> {
        let files = self.roots.is_some() || self.certificate.is_some() || self.key.is_some();
        let wanted = match self.mode.as_deref() {
            Some("disable") if files => {
                return Err("sslmode=disable, and files for TLS: one of them is a mistake".into());
            }
            Some("disable") => false,
            Some("require" | "verify-full") => true,
            None => files || config.get_ssl_mode() == SslMode::Require || !is_local(config),
            Some("prefer" | "allow") => {
                return Err("sslmode=prefer and allow may send everything readable: say require, or disable".into());
            }
            Some("verify-ca") => {
                return Err("sslmode=verify-ca would believe any host with such a certificate: say verify-full".into());
            }
            Some(_) => return Err("sslmode is disable, require or verify-full".into()),
        };
        if !wanted {
            config.ssl_mode(SslMode::Disable);
            return Ok(PostgresTls(None));
        }
        config.ssl_mode(SslMode::Require);
        self.connector().map(|connector| PostgresTls(Some(connector)))
    }

    fn connector(self) -> Result<TlsConnector, String> {
        let mut roots = RootCertStore::empty();
        match &self.roots {
            Some(file) if file.as_os_str() != "system" => {
                for certificate in certificates(file)? {
                    roots.add(certificate).map_err(|error| unfit(file, &error))?;
                }
            }
            _ => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                if roots.is_empty() {
                    return Err("this system believes no certificates: name a file of your own by sslrootcert".into());
                }
            }
        }
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("TLS cannot be set up: {error}"))?
            .with_root_certificates(roots);
        let config = match (&self.certificate, &self.key) {
            (None, None) => config.with_no_client_auth(),
            (Some(chain), Some(key)) => {
                let private = PrivateKeyDer::from_pem_file(key).map_err(|error| unfit(key, &error))?;
                config.with_client_auth_cert(certificates(chain)?, private).map_err(|error| unfit(chain, &error))?
            }
            _ => return Err("sslcert and sslkey belong together".into()),
        };
        Ok(TlsConnector::from(Arc::new(config)))
    }
}

/// Whether all hosts are this machine.
fn is_local(config: &Config) -> bool {
    let addresses = config.get_hostaddrs();
    if !addresses.is_empty() {
        return addresses.iter().all(IpAddr::is_loopback);
    }
    config.get_hosts().iter().all(|host| match host {
        Host::Tcp(name) => name == "localhost" || name.parse().is_ok_and(|address: IpAddr| address.is_loopback()),
        Host::Unix(_) => true,
    })
}

/// A percent-decoded value of the address.
fn decoded(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    let found = found.map_err(|error| unfit(file, &error))?;
    if found.is_empty() { Err(format!("{}: there is no certificate in it", file.display())) } else { Ok(found) }
}

fn unfit(file: &Path, error: &dyn std::fmt::Display) -> String {
    format!("{}: {error}", file.display())
}

/// The TLS connector; none: no TLS.
#[derive(Clone)]
pub struct PostgresTls(Option<TlsConnector>);

/// The same, with one host. Made for every connection, also where nobody will ask for it.
pub struct Handshake(Option<(TlsConnector, ServerName<'static>)>);

/// A connection after it.
pub struct PostgresTlsStream<S>(tokio_rustls::client::TlsStream<S>);

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for PostgresTls {
    type Stream = PostgresTlsStream<S>;
    type TlsConnect = Handshake;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<Handshake> {
        let Some(connector) = self.0.clone() else { return Ok(Handshake(None)) };
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| io::Error::other("the host in the address is no name that a certificate can be for"))?;
        Ok(Handshake(Some((connector, name))))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for Handshake {
    type Stream = PostgresTlsStream<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<PostgresTlsStream<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let (connector, name) = self.0.ok_or_else(|| io::Error::other("TLS was not asked for"))?;
            connector.connect(name, stream).await.map(PostgresTlsStream)
        })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for PostgresTlsStream<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for PostgresTlsStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, into)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for PostgresTlsStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(url: &str) -> Result<bool, String> {
        let (url, asked) = TlsRequest::split_from_url(url);
        let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| error.to_string())?;
        asked.apply(&mut config)?;
        Ok(config.get_ssl_mode() == SslMode::Require)
    }

    /// Goal: what leaves this machine is encrypted unless the address says otherwise, and what is half of either is refused.
    #[test]
    fn an_address_says_how_it_is_spoken_to() {
        let root = tempfile::NamedTempFile::new().unwrap();
        let signed = rcgen::generate_simple_self_signed(["db.example".to_owned()]).unwrap();
        std::fs::write(&root, signed.cert.pem()).unwrap();
        let root = format!("sslrootcert={}", root.path().display());
        for (url, encrypted) in [
            ("postgres://ada@127.0.0.1/tickets".to_owned(), false),
            ("postgres://ada@localhost,[::1]:5433/tickets".to_owned(), false),
            ("postgres://ada@%2Frun%2Fpostgresql/tickets".to_owned(), false),
            ("postgres://ada@db.example/tickets?sslmode=disable".to_owned(), false),
            (format!("postgres://ada@db.example/tickets?{root}"), true),
            (format!("postgres://ada@127.0.0.1,db.example/tickets?{root}&application_name=a"), true),
            (format!("postgres://ada@localhost/tickets?{root}"), true),
            (format!("postgres://ada@localhost/tickets?hostaddr=192.0.2.7&{root}"), true),
            (format!("postgres://ada@db.example/tickets?sslmode=require&{root}"), true),
            (format!("postgres://ada@localhost/tickets?sslmode=verify-full&{root}"), true),
        ] {
            assert_eq!(mode(&url), Ok(encrypted), "{url}");
        }
        // Without a word of TLS. (A system that believes nobody says so, and sends nothing.)
        for hosts in ["db.example", "127.0.0.1,db.example", "192.0.2.7", "localhost/?hostaddr=192.0.2.7"] {
            assert_ne!(mode(&format!("postgres://ada@{hosts}")), Ok(false), "{hosts}");
        }
        for (query, sentence) in [
            ("sslmode=prefer", "say require, or disable"),
            ("sslmode=verify-ca", "say verify-full"),
            ("sslmode=perhaps", "disable, require or verify-full"),
            ("sslmode=disable&sslrootcert=/x", "one of them is a mistake"),
            ("sslrootcert=/there%20is/no+such=file", "/there is/no+such=file: "),
            (&format!("{root}&sslcert=/x"), "belong together"),
            ("sslrootcert=/dev/null", "there is no certificate in it"),
        ] {
            let refused = mode(&format!("postgres://ada:hunter2@db.example/tickets?{query}")).unwrap_err();
            assert!(refused.contains(sentence) && !refused.contains("hunter2"), "{query}: {refused}");
        }
    }
}
