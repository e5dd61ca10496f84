//! TLS by rustls. Trusts the authorities that the caller names, or else those of the system.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, InvalidMessage, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::connection::BoxedStream;
use super::options;
use crate::error::Error;

/// Makes TLS connections to one server.
pub(super) struct TlsClient {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("name", &self.name).finish_non_exhaustive()
    }
}

impl TlsClient {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// Invalid, with the file that is not what it should be.
    pub fn read(files: &options::Tls, host: &str) -> Result<Self, Error> {
        let roots = match &files.ca {
            Some(file) => named_roots(file)?,
            None => system_roots()?,
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::Invalid(format!("TLS cannot be set up: {error}")))?
            .with_root_certificates(roots);
        let config = match &files.client {
            None => config.with_no_client_auth(),
            Some((chain, key)) => {
                let private = PrivateKeyDer::from_pem_file(key).map_err(|error| unfit(key, &error))?;
                config.with_client_auth_cert(certificates(chain)?, private).map_err(|error| unfit(chain, &error))?
            }
        };
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| Error::Invalid("the host in the url is no name a certificate can be for".into()))?;
        Ok(Self { connector: TlsConnector::from(Arc::new(config)), name })
    }

    pub async fn shake_hands(&self, stream: TcpStream) -> io::Result<BoxedStream> {
        let stream = self.connector.connect(self.name.clone(), stream).await?;
        Ok(Box::new(stream))
    }
}

/// Why a TLS handshake failed.
pub(in crate::engine) enum TlsFailure {
    /// We do not trust the server's certificate.
    Certificate,
    /// What the server sent is not TLS.
    NoTls,
    /// No common version, a client certificate that is missing or refused, and whatever else an alert says.
    Other,
}

impl TlsFailure {
    /// None if TLS was not the cause.
    pub fn from_io(error: &io::Error) -> Option<Self> {
        match error.get_ref()?.downcast_ref::<rustls::Error>()? {
            rustls::Error::InvalidCertificate(_) => Some(Self::Certificate),
            rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => Some(Self::NoTls),
            _ => Some(Self::Other),
        }
    }
}

fn named_roots(file: &Path) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots.add(certificate).map_err(|error| unfit(file, &error))?;
    }
    Ok(roots)
}

fn system_roots() -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    // A certificate that cannot be read is ignored, as other programs do.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        let sentence = "this system has no certificates of authorities: name who signed the server by ?ca=FILE";
        return Err(Error::Invalid(sentence.into()));
    }
    Ok(roots)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let read = CertificateDer::pem_file_iter(file).map_err(|error| unfit(file, &error))?;
    let read: Vec<_> = read.collect::<Result<_, _>>().map_err(|error| unfit(file, &error))?;
    if read.is_empty() {
        return Err(unfit(file, &"there is no certificate in it"));
    }
    Ok(read)
}

fn unfit(file: &Path, why: &dyn fmt::Display) -> Error {
    Error::Invalid(format!("{} cannot be used for TLS: {why}", file.display()))
}
