//! The remote engine over TLS: who is believed, and who is not.

#![cfg(feature = "tls")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use leasehold::{Error, Leasehold};
use rcgen::{BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::<String>::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("it signs itself")
}

fn signed(by: &Authority, name: &str) -> (Certificate, KeyPair) {
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new([name.to_owned()]).expect("a name");
    (params.signed_by(&key, by).expect("it is signed"), key)
}

fn file(dir: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::write(&path, text).expect("it is written");
    path
}

/// A server that greets over TLS and says what it promises; it wants a certificate of clients if `clients` signs them.
async fn serve(by: &Authority, name: &str, clients: Option<&Authority>) -> u16 {
    let (certificate, key) = signed(by, name);
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions");
    let config = match clients {
        None => config.with_no_client_auth(),
        Some(clients) => {
            let mut roots = RootCertStore::empty();
            roots.add(clients.der().clone()).expect("a root");
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            config.with_client_cert_verifier(verifier.expect("a verifier"))
        }
    };
    let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
    let config = config.with_single_cert(vec![certificate.der().clone()], key).expect("a certificate");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            tokio::spawn(async move {
                let mut bytes = Vec::new();
                while stream.read_buf(&mut bytes).await.unwrap_or(0) > 0 {
                    let answer: &[u8] = if bytes.starts_with(b"*2\r\n$5\r\nHELLO") {
                        b"%0\r\n"
                    } else {
                        b"%5\r\n+durable\r\n#t\r\n+fencing\r\n#t\r\n+fair\r\n#t\r\n+never_early\r\n#t\r\n+outlives_process\r\n#t\r\n"
                    };
                    bytes.clear();
                    if stream.write_all(answer).await.and(stream.flush().await).is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

async fn open(port: u16, ca: &Path, more: &str) -> Result<Leasehold, Error> {
    Leasehold::open(&format!("leaseholds://localhost:{port}?ca={}{more}", ca.display())).await
}

/// Goal: the authority that was named is believed, for the name it signed, and no other.
#[tokio::test]
async fn only_the_named_authority_is_believed() {
    let dir = tempfile::tempdir().expect("a directory");
    let (ours, others) = (authority(), authority());
    let ca = file(&dir, "ca.pem", &ours.pem());
    let opened = open(serve(&ours, "localhost", None).await, &ca, "").await.expect("it is believed");
    assert!(opened.promises().fencing);
    for (what, port) in [
        ("another authority", serve(&others, "localhost", None).await),
        ("another name", serve(&ours, "db-1.example", None).await),
    ] {
        let refused = open(port, &ca, "").await;
        assert!(matches!(refused, Err(Error::Unavailable { .. })), "{what}: {refused:?}");
    }
}

/// Goal: a server that wants a certificate of its clients gets ours.
#[tokio::test]
async fn a_client_certificate_is_shown() {
    let dir = tempfile::tempdir().expect("a directory");
    let ours = authority();
    let ca = file(&dir, "ca.pem", &ours.pem());
    let (certificate, key) = signed(&ours, "worker-1");
    let cert = file(&dir, "cert.pem", &certificate.pem());
    let key = file(&dir, "key.pem", &key.serialize_pem());
    let port = serve(&ours, "localhost", Some(&ours)).await;
    let shown = open(port, &ca, &format!("&cert={}&key={}", cert.display(), key.display())).await;
    assert!(shown.is_ok(), "{shown:?}");
    let bare = open(port, &ca, "").await;
    assert!(matches!(bare, Err(Error::Unavailable { .. })), "{bare:?}");
}

/// Goal: files that are none are Invalid, and named; plain RESP on a TLS port and the other way round is Unavailable.
#[tokio::test]
async fn what_is_no_tls_is_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let missing = dir.path().join("nowhere.pem");
    let empty = file(&dir, "empty.pem", "nothing");
    for path in [&missing, &empty] {
        let answer = open(1, path, "").await;
        let name = path.display().to_string();
        assert!(matches!(&answer, Err(Error::Invalid(sentence)) if sentence.contains(&name)), "{answer:?}");
    }
    let ours = authority();
    let port = serve(&ours, "localhost", None).await;
    let plain = Leasehold::open(&format!("leasehold://127.0.0.1:{port}")).await;
    assert!(matches!(plain, Err(Error::Unavailable { .. })), "{plain:?}");
}
