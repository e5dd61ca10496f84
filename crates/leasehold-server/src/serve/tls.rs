//! TLS for both ports: rustls with ring, TLS 1.2 and 1.3. Certificates can be reloaded while the server runs.
//!
//! # Laws
//!
//! 1. Certificate and key always belong together: a reload that fails changes nothing.
//! 2. With `client_ca` every handshake checks the certificate of the client: sessions are not resumed.

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme};

use super::config::TlsFiles;

/// The TLS configuration of both ports, which can be reloaded from its files.
pub struct ServerTls {
    files: TlsFiles,
    current: Arc<CurrentMaterial>,
    /// The configuration of the HTTP port, with ALPN.
    pub http: Arc<ServerConfig>,
    /// The configuration of the RESP port.
    pub resp: Arc<ServerConfig>,
}

/// What new handshakes use.
#[derive(Debug)]
struct CurrentMaterial(RwLock<TlsMaterial>);

#[derive(Clone, Debug)]
struct TlsMaterial {
    key: Arc<CertifiedKey>,
    clients: Option<Arc<dyn ClientCertVerifier>>,
}

impl ServerTls {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// A sentence that names the file.
    pub fn load(files: TlsFiles) -> Result<Self, String> {
        let material = TlsMaterial::read(&files)?;
        let wants_client_certificates = material.clients.is_some();
        let current = Arc::new(CurrentMaterial(RwLock::new(material)));
        let http = Arc::new(server_config(&current, wants_client_certificates, &[b"http/1.1"])?);
        let resp = Arc::new(server_config(&current, wants_client_certificates, &[])?);
        Ok(Self { files, current, http, resp })
    }

    /// Reads the files again; new connections use them.
    ///
    /// # Errors
    ///
    /// A sentence that names the file; nothing was changed.
    pub fn reload(&self) -> Result<(), String> {
        let material = TlsMaterial::read(&self.files)?;
        *self.current.0.write().unwrap_or_else(PoisonError::into_inner) = material;
        Ok(())
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("files", &self.files).finish_non_exhaustive()
    }
}

fn server_config(
    current: &Arc<CurrentMaterial>,
    wants_client_certificates: bool,
    protocols: &[&[u8]],
) -> Result<ServerConfig, String> {
    let builder = ServerConfig::builder_with_provider(crypto_provider())
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .map_err(|error| format!("TLS cannot be set up: {error}"))?;
    let builder = if wants_client_certificates {
        builder.with_client_cert_verifier(current.clone())
    } else {
        builder.with_no_client_auth()
    };
    let mut config = builder.with_cert_resolver(current.clone());
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    if wants_client_certificates {
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Ok(config)
}

fn crypto_provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

impl TlsMaterial {
    fn read(files: &TlsFiles) -> Result<Self, String> {
        let chain = read_certificates(&files.cert)?;
        let key = PrivateKeyDer::from_pem_slice(&read_file(&files.key)?)
            .map_err(|error| format!("{} holds no private key: {error}", files.key.display()))?;
        let key = CertifiedKey::from_der(chain, key, &crypto_provider())
            .map_err(|error| format!("{} and {} do not fit: {error}", files.cert.display(), files.key.display()))?;
        let clients = files.client_ca.as_deref().map(client_verifier).transpose()?;
        Ok(Self { key: Arc::new(key), clients })
    }
}

fn client_verifier(path: &Path) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(path)? {
        roots.add(certificate).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), crypto_provider())
        .build()
        .map_err(|error| format!("{}: {error}", path.display()))
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read_file(path)?).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(format!("{} holds no certificate", path.display())),
        Err(error) => Err(format!("{} holds no certificate: {error}", path.display())),
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("{} cannot be read: {error}", path.display()))
}

impl CurrentMaterial {
    fn get(&self) -> TlsMaterial {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn clients(&self) -> Result<Arc<dyn ClientCertVerifier>, rustls::Error> {
        // Called only where a client_ca is configured, and a reload reads the same files.
        self.get().clients.ok_or_else(|| rustls::Error::General("nobody signs clients".into()))
    }
}

impl ResolvesServerCert for CurrentMaterial {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.get().key)
    }
}

impl ClientCertVerifier for CurrentMaterial {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // No hints: clients know which authority signs them.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.clients()?.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.clients()?.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.clients()?.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        crypto_provider().signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests;
