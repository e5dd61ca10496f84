//! A gate that others can reach: keys and TLS.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned};
use tokio_rustls::TlsAcceptor;

use crate::common::{Answer, Site};
use crate::process::{GateProcess, HttpClient, gate_command, shown};
use crate::upstream::Upstream;

/// Makes a key for the gate's directory.
fn make_key(site: &Site, arguments: &[&str]) -> String {
    let data = site.path("gate-data");
    let data = data.to_str().unwrap();
    let answer = site.ask(&[&["key", "create", "--data", data], arguments].concat()).with_code(0);
    answer.out.trim().to_owned()
}

/// Goal: an address that others can reach needs a key, and TLS or the word for doing without.
#[test]
fn a_public_address_needs_keys_and_tls() {
    let (site, upstream) = (Site::new(), Upstream::start());
    let refused = |arguments: &[&str]| {
        let mut command = gate_command(&site, &upstream.url(), arguments);
        Answer::of(&command.stderr(Stdio::piped()).output().unwrap()).with_code(2).err
    };
    assert!(refused(&["--listen", "0.0.0.0:0"]).contains("key create"));
    assert!(refused(&["--metrics", "0.0.0.0:0"]).contains("key create"));
    assert!(refused(&["--listen", "0.0.0.0:0", "--allow-plain"]).contains("key create"));
    make_key(&site, &["--role", "lease"]);
    assert!(refused(&["--listen", "0.0.0.0:0"]).contains("--tls-cert"));
    let gate = GateProcess::start(&site, &upstream.url(), &["--listen", "0.0.0.0:0", "--allow-plain"]);
    gate.stop().with_code(0);
}

/// Goal: with keys, a request needs one, of the right role, for these resources; the key does not reach the upstream.
#[test]
fn keys_are_checked_and_stay_here() {
    let (site, upstream) = (Site::new(), Upstream::start());
    let lease = make_key(&site, &["--role", "lease", "--prefix", "seat/"]);
    let read = make_key(&site, &["--role", "read"]);
    let gate = GateProcess::start(&site, &upstream.url(), &[]);
    let ask = |method: &str, key: Option<&str>, resource: &str| {
        let mut headers = shown(1, &[resource]).headers();
        headers.extend(key.map(|key| ("Proxy-Authorization", format!("Bearer {key}"))));
        gate.connect().ask(method, "/", &headers, b"").verdict()
    };
    assert_eq!(ask("POST", None, "seat%2F1"), (401, "unauthorized".into()));
    assert_eq!(ask("POST", Some("lh_wrong_key"), "seat%2F1"), (401, "unauthorized".into()));
    assert_eq!(ask("POST", Some(&read), "seat%2F1"), (403, "forbidden".into()));
    assert_eq!(ask("POST", Some(&lease), "other"), (403, "forbidden".into()));
    assert_eq!(ask("GET", None, "a"), (401, "unauthorized".into()));
    assert!(upstream.began().is_empty());
    assert_eq!(ask("POST", Some(&lease), "seat%2F1").0, 200);
    assert_eq!(ask("GET", Some(&read), "a").0, 200);
    assert!(upstream.headers_of(0).get("proxy-authorization").is_none());
    let metrics =
        |headers: &[(&str, String)]| HttpClient::connect(gate.metrics).ask("GET", "/metrics", headers, b"").status;
    assert_eq!(metrics(&[]), 401);
    assert_eq!(metrics(&[("Authorization", format!("Bearer {lease}"))]), 403);
    assert_eq!(metrics(&[("Authorization", format!("Bearer {read}"))]), 200);
    assert!(!gate.said().contains(&lease));
}

struct Certificates {
    ca: String,
    cert: String,
    key: String,
    client_cert: String,
    client_key: String,
}

fn certificates() -> Certificates {
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, "an authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["localhost".into()]).unwrap().signed_by(&key, &authority).unwrap();
    let client_key = KeyPair::generate().unwrap();
    let client = CertificateParams::new(vec!["ada".into()]).unwrap().signed_by(&client_key, &authority).unwrap();
    Certificates {
        ca: authority.pem(),
        cert: certificate.pem(),
        key: key.serialize_pem(),
        client_cert: client.pem(),
        client_key: client_key.serialize_pem(),
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn acceptor(files: &Certificates) -> TlsAcceptor {
    let certificate = CertificateDer::from_pem_slice(files.cert.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(files.key.as_bytes()).unwrap();
    let config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

/// Goal: TLS on both sides: clients come by it, and the upstream's certificate is verified.
#[test]
fn tls_on_both_sides() {
    let site = Site::new();
    let files = certificates();
    for (name, text) in [("ca.pem", &files.ca), ("cert.pem", &files.cert), ("key.pem", &files.key)] {
        std::fs::write(site.path(name), text).unwrap();
    }
    let upstream = Upstream::start_with(Some(acceptor(&files)));
    let url = format!("https://localhost:{}", upstream.address.port());
    let (cert, key) = (site.path("cert.pem"), site.path("key.pem"));
    let arguments = ["--tls-cert", cert.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
    // Without the authority the upstream is nobody we know: nothing is sent.
    std::fs::write(site.path("none.pem"), "").unwrap();
    let mut plain = gate_command(&site, &url, &[]);
    let gate = GateProcess::spawn(&site, plain.env("SSL_CERT_FILE", site.path("none.pem")));
    assert_eq!(gate.post("/", &shown(1, &["a"])).verdict(), (503, "unavailable".into()));
    gate.stop().with_code(0);

    let mut command = gate_command(&site, &url, &arguments);
    let gate = GateProcess::spawn(&site, command.env("SSL_CERT_FILE", site.path("ca.pem")));
    let answer = ask_over_tls(&gate, &files.ca, None);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("3 bytes"), "{answer}");
    assert_eq!(upstream.headers_of(0)["x-forwarded-proto"], "https");
}

/// Sends one request over TLS, with this certificate of the client's. What comes back is empty if the gate hangs up.
fn ask_over_tls(gate: &GateProcess, ca: &str, client: Option<&Certificates>) -> String {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.as_bytes()).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match client {
        None => config.with_no_client_auth(),
        Some(files) => {
            let certificate = CertificateDer::from_pem_slice(files.client_cert.as_bytes()).unwrap();
            let key = PrivateKeyDer::from_pem_slice(files.client_key.as_bytes()).unwrap();
            config.with_client_auth_cert(vec![certificate], key).unwrap()
        }
    };
    let connection = ClientConnection::new(Arc::new(config), ServerName::try_from("localhost").unwrap()).unwrap();
    let mut stream = StreamOwned::new(connection, TcpStream::connect(gate.address).unwrap());
    let request = "POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nFencing-Token: 2\r\n\
                   Fencing-Resource: a\r\nContent-Length: 3\r\n\r\nxyz";
    let _ = stream.write_all(request.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// Goal: with an authority for clients, whoever has no certificate of it reaches nothing.
#[test]
fn clients_need_a_certificate_of_the_authority() {
    let (site, upstream) = (Site::new(), Upstream::start());
    let (files, strangers) = (certificates(), certificates());
    for (name, text) in [("ca.pem", &files.ca), ("cert.pem", &files.cert), ("key.pem", &files.key)] {
        std::fs::write(site.path(name), text).unwrap();
    }
    let paths = ["cert.pem", "key.pem", "ca.pem"].map(|name| site.path(name).to_str().unwrap().to_owned());
    let arguments = ["--tls-cert", &paths[0], "--tls-key", &paths[1], "--tls-client-ca", &paths[2]];
    let mut command = gate_command(&site, &upstream.url(), &arguments);
    let gate = GateProcess::spawn(&site, &mut command);
    assert_eq!(ask_over_tls(&gate, &files.ca, None), "");
    assert_eq!(ask_over_tls(&gate, &files.ca, Some(&strangers)), "");
    // Whoever speaks no TLS at all reaches nothing either.
    let mut plain = gate.connect();
    plain.try_write(b"POST / HTTP/1.1\r\nHost: a\r\nFencing-Token: 1\r\nFencing-Resource: a\r\n\r\n");
    assert!(plain.read_answer().is_none());
    assert!(upstream.began().is_empty());
    let answer = ask_over_tls(&gate, &files.ca, Some(&files));
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("3 bytes"), "{answer}");
}
