//! Handshakes against a real rustls client, in memory.

use std::io;
use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, ServerConnection};

use super::*;

/// Somebody who signs, and files signed by them.
struct Authority {
    dir: tempfile::TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        // Another name than its certificates have, or openssl takes those for self-signed.
        params.distinguished_name.push(DnType::CommonName, "an authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Self { dir: tempfile::tempdir().unwrap(), issuer }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a certificate for localhost and its key.
    fn write(&self, name: &str) {
        let (certificate, key) = self.sign();
        fs::write(self.path(&format!("{name}.pem")), certificate.pem()).unwrap();
        fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    fn sign(&self) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        (CertificateParams::new(vec!["localhost".into()]).unwrap().signed_by(&key, &self.issuer).unwrap(), key)
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        roots
    }

    fn client(&self, certified_by: Option<&Self>) -> ClientConfig {
        let builder =
            ClientConfig::builder_with_provider(crypto_provider()).with_safe_default_protocol_versions().unwrap();
        let builder = builder.with_root_certificates(self.roots());
        match certified_by {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let (certificate, key) = authority.sign();
                let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
                builder.with_client_auth_cert(vec![certificate.der().clone()], key).unwrap()
            }
        }
    }
}

/// Shakes hands in memory, and says which certificate the client saw.
fn shake(server: &Arc<ServerConfig>, client: ClientConfig) -> Result<Vec<u8>, String> {
    let name = ServerName::try_from("localhost").unwrap();
    let mut client = ClientConnection::new(Arc::new(client), name).unwrap();
    let mut server = ServerConnection::new(server.clone()).unwrap();
    for _ in 0..10 {
        let mut wire = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut wire).unwrap();
        }
        feed(&wire, |bytes| server.read_tls(bytes))?;
        server.process_new_packets().map_err(|error| format!("server: {error}"))?;
        wire.clear();
        while server.wants_write() {
            server.write_tls(&mut wire).unwrap();
        }
        feed(&wire, |bytes| client.read_tls(bytes))?;
        client.process_new_packets().map_err(|error| format!("client: {error}"))?;
    }
    assert!(!client.is_handshaking() && !server.is_handshaking());
    Ok(client.peer_certificates().unwrap()[0].to_vec())
}

fn feed(wire: &[u8], mut read: impl FnMut(&mut dyn io::Read) -> io::Result<usize>) -> Result<(), String> {
    let mut wire = wire;
    while !wire.is_empty() {
        read(&mut wire).map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn files(authority: &Authority, client_ca: Option<PathBuf>) -> TlsFiles {
    TlsFiles { cert: authority.path("s.pem"), key: authority.path("s.key"), client_ca }
}

/// Goal: both ports prove who they are, and a reload shows the new certificate to the next who comes.
#[test]
fn a_reload_shows_the_new_certificate() {
    let authority = Authority::new();
    authority.write("s");
    let tls = ServerTls::load(files(&authority, None)).unwrap();
    let first = shake(&tls.http, authority.client(None)).unwrap();
    assert_eq!(first, shake(&tls.resp, authority.client(None)).unwrap());
    assert!(shake(&tls.http, Authority::new().client(None)).is_err(), "a client that trusts somebody else");
    authority.write("s");
    assert_eq!(first, shake(&tls.http, authority.client(None)).unwrap(), "nobody asked for it yet");
    tls.reload().unwrap();
    let second = shake(&tls.http, authority.client(None)).unwrap();
    assert_ne!(first, second);
    for (file, text) in [("s.key", "no key"), ("s.pem", ""), ("s.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n")] {
        let good = fs::read(authority.path(file)).unwrap();
        fs::write(authority.path(file), text).unwrap();
        let sentence = tls.reload().expect_err(text);
        assert!(sentence.contains(file) && !sentence.contains('\n'), "{sentence}");
        assert_eq!(second, shake(&tls.http, authority.client(None)).unwrap(), "the old one stays");
        fs::write(authority.path(file), good).unwrap();
    }
    let other = Authority::new();
    other.write("s");
    fs::copy(other.path("s.key"), authority.path("s.key")).unwrap();
    assert!(tls.reload().expect_err("a key of another").contains("do not fit"));
}

/// Goal: with `client_ca` only its own are let in, by TLS 1.3 and 1.2, and a reload changes who that is.
#[test]
fn clients_need_a_certificate_of_theirs() {
    let (authority, clients, others) = (Authority::new(), Authority::new(), Authority::new());
    authority.write("s");
    let ca = authority.path("ca.pem");
    fs::write(&ca, clients.issuer.pem()).unwrap();
    let tls = ServerTls::load(files(&authority, Some(ca.clone()))).unwrap();
    for port in [&tls.http, &tls.resp] {
        assert!(shake(port, authority.client(Some(&clients))).is_ok());
        assert!(shake(port, authority.client(None)).is_err());
        assert!(shake(port, authority.client(Some(&others))).is_err());
    }
    fs::write(&ca, others.issuer.pem()).unwrap();
    tls.reload().unwrap();
    assert!(shake(&tls.http, authority.client(Some(&clients))).is_err());
    assert!(shake(&tls.http, authority.client(Some(&others))).is_ok());
}
