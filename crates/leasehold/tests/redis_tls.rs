//! The Redis engine over TLS, on a real server: who is trusted, and who is not.
#![cfg(all(feature = "redis", feature = "tls"))]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leasehold::Error;
use leasehold::engine::redis::{RedisEngine, RedisOptions};
use leasehold::engine::{Claim, Engine, Want};
use leasehold_harness::free_port;
use leasehold_harness::redis::RedisServer;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;

struct TlsRedis {
    server: RedisServer,
    tls_port: u16,
    files: TempDir,
}

fn write_file(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).expect("it is written");
    path
}

fn new_authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::<String>::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("it signs itself")
}

impl TlsRedis {
    /// A server with a certificate for 127.0.0.1; `ca.pem` is who signed it, `other.pem` somebody else.
    fn start() -> Self {
        let files = tempfile::tempdir().expect("a place");
        let (authority, other) = (new_authority(), new_authority());
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(["127.0.0.1".to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &authority).expect("it is signed");
        let ca = write_file(files.path(), "ca.pem", &authority.pem());
        write_file(files.path(), "other.pem", &other.pem());
        let certificate = write_file(files.path(), "server.pem", &certificate.pem());
        let key = write_file(files.path(), "server.key", &key.serialize_pem());
        let tls_port = free_port();
        let settings = [
            format!("--tls-port {tls_port}"),
            format!("--tls-cert-file {}", certificate.display()),
            format!("--tls-key-file {}", key.display()),
            format!("--tls-ca-cert-file {}", ca.display()),
            "--tls-auth-clients no".to_owned(),
        ];
        let server = RedisServer::start(&settings.each_ref().map(String::as_str));
        Self { server, tls_port, files }
    }

    async fn open(&self, port: u16, ca: &str) -> Result<Arc<RedisEngine>, Error> {
        let url = format!("rediss://127.0.0.1:{port}?ca={}", self.files.path().join(ca).display());
        RedisEngine::open(RedisOptions::from_url(&url)?).await
    }
}

/// The error of an open that must fail, as its causes say it.
fn sentence(opened: Result<Arc<RedisEngine>, Error>) -> String {
    let error = opened.expect_err("it does not open");
    match std::error::Error::source(&error) {
        Some(cause) => cause.to_string(),
        None => error.to_string(),
    }
}

/// Goal: with the right authority everything works, messages too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_named_authority_is_trusted() {
    let redis = TlsRedis::start();
    let engine = redis.open(redis.tls_port, "ca.pem").await.expect("it opens");
    let claim = |holder: &str| Claim::new(vec![Want::exclusive("seat")], Duration::from_secs(30), holder);
    let ada = engine.acquire(claim("ada")).await.expect("granted");
    let asked = engine.clone();
    let patient = Claim { wait: Duration::from_secs(20), ..claim("bob") };
    let waiting = tokio::spawn(async move { asked.acquire(patient).await });
    assert!(engine.release(&ada.lease_id).await.expect("released"));
    let bob = waiting.await.expect("no panic").expect("granted");
    assert!(engine.release(&bob.lease_id).await.expect("released"));
}

/// Goal: each mistake is one sentence that says what to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mistakes_are_named() {
    let redis = TlsRedis::start();
    let wrong = sentence(redis.open(redis.tls_port, "other.pem").await);
    assert!(wrong.contains("is not trusted"), "{wrong}");
    let plain = sentence(redis.open(redis.server.port(), "ca.pem").await);
    assert!(plain.contains("does not speak TLS") || plain.contains("does not answer over TLS"), "{plain}");
    let missing = redis.open(redis.tls_port, "missing.pem").await;
    assert!(matches!(&missing, Err(Error::Invalid(why)) if why.contains("missing.pem")), "{missing:?}");
    let key = redis.open(redis.tls_port, "server.key").await;
    assert!(matches!(&key, Err(Error::Invalid(why)) if why.contains("no certificate in it")), "{key:?}");
    let url = format!("redis://127.0.0.1:{}", redis.tls_port);
    let asked_plainly = RedisEngine::open(RedisOptions::from_url(&url).expect("a url")).await;
    assert!(matches!(&asked_plainly, Err(Error::Unavailable { .. })), "{asked_plainly:?}");
}
