//! TLS on the real ports: openssl's client and rustls' own, certificates changed by SIGHUP, clients that need one.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use common::Site;
use common::authority::Authority;
use common::server::{Client, Server, key};
use rustix::process::Signal;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

fn text(path: &std::path::Path) -> &str {
    path.to_str().expect("UTF-8")
}

type Secure = StreamOwned<ClientConnection, TcpStream>;

/// A connection by rustls, with a certificate of its own if files are given.
fn connect(address: std::net::SocketAddr, ca: &PathBuf, own: Option<(&PathBuf, &PathBuf)>) -> Secure {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).expect("a certificate")).expect("a root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("versions");
    let builder = builder.with_root_certificates(roots);
    let config = match own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let certificate = CertificateDer::from_pem_file(certificate).expect("a certificate");
            let key = PrivateKeyDer::from_pem_file(key).expect("a key");
            builder.with_client_auth_cert(vec![certificate], key).expect("they fit")
        }
    };
    let name = ServerName::try_from("localhost").expect("a name");
    let client = ClientConnection::new(Arc::new(config), name).expect("a client");
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(common::PATIENCE)).expect("a timeout");
    StreamOwned::new(client, stream)
}

/// What HTTP answers, or why it cannot be asked.
fn get(stream: &mut Secure, path: &str) -> std::io::Result<String> {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        // A server that ends TCP without ending TLS has still answered.
        Err(error) if answer.is_empty() => return Err(error),
        _ => {}
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn own_certificate(stream: &Secure) -> Vec<u8> {
    stream.conn.peer_certificates().expect("shaken hands")[0].to_vec()
}

/// Goal: both ports speak TLS and nothing else; openssl agrees; SIGHUP brings the new certificate to the next who
/// comes, and one that cannot be read changes nothing.
#[test]
fn both_ports_speak_tls_and_reload_on_hangup() {
    let site = Site::new();
    let authority = Authority::new();
    let [ca, certificate, key] = authority.write(&site, "s");
    let server = Server::start(&site, &["--tls-cert", text(&certificate), "--tls-key", text(&key)]);
    let mut http = connect(server.http, &ca, None);
    assert!(get(&mut http, "/healthz").expect("it answers").starts_with("HTTP/1.1 200"));
    let first = own_certificate(&http);
    let mut resp = Client::with(connect(server.resp, &ca, None));
    assert_eq!(resp.ask(&["SET", "seat", "ada", "NX", "PX", "60000"]), "OK");

    for address in [server.http, server.resp] {
        let mut openssl = Command::new("openssl");
        openssl.args(["s_client", "-connect", &address.to_string(), "-servername", "localhost", "-CAfile", text(&ca)]);
        openssl.args(["-verify_return_error", "-brief"]).stdin(Stdio::null());
        let output = openssl.output().expect("openssl is installed: apt-get install openssl");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("Verification: OK") && said.contains("TLSv1.3"), "{said}");
        let mut plain = TcpStream::connect(address).expect("it listens");
        plain.set_read_timeout(Some(common::PATIENCE)).expect("a timeout");
        plain.write_all(b"PING\r\nGET / HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sent");
        let mut answer = Vec::new();
        let _ = plain.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        assert!(!answer.contains("HTTP") && !answer.contains("PONG"), "{answer}");
    }

    authority.write(&site, "s");
    server.signal(Signal::HUP);
    server.wait_for("the certificates were read again");
    let mut http = connect(server.http, &ca, None);
    assert!(get(&mut http, "/healthz").is_ok());
    let second = own_certificate(&http);
    assert_ne!(first, second);
    std::fs::write(&key, "no key").expect("written");
    server.signal(Signal::HUP);
    server.wait_for("the certificates stay as they were");
    let mut http = connect(server.http, &ca, None);
    assert!(get(&mut http, "/healthz").is_ok());
    assert_eq!(own_certificate(&http), second);
    assert_eq!(resp.ask(&["GET", "seat"]), "ada", "who is connected stays so");
    server.stop().with_code(0);
}

/// Goal: with a client_ca nobody without a certificate of theirs is heard on either port; a key is needed beside it.
#[test]
fn clients_need_certificates_and_keys() {
    let site = Site::new();
    let (authority, clients, others) = (Authority::new(), Authority::new(), Authority::new());
    let [ca, certificate, private] = authority.write(&site, "s");
    let [client_ca, client, client_key] = clients.write(&site, "c");
    let [_, other, other_key] = others.write(&site, "o");
    let (bearer, _) = key(&site, &["--role", "lease"]);
    let server = Server::start(
        &site,
        &["--tls-cert", text(&certificate), "--tls-key", text(&private), "--tls-client-ca", text(&client_ca)],
    );
    let mut http = connect(server.http, &ca, Some((&client, &client_key)));
    assert!(get(&mut http, "/healthz").expect("let in").starts_with("HTTP/1.1 200"));
    let mut resp = Client::with(connect(server.resp, &ca, Some((&client, &client_key))));
    assert!(resp.ask(&["EXISTS", "a"]).starts_with("-NOAUTH"));
    assert_eq!(resp.ask(&["AUTH", &bearer]), "OK");
    assert_eq!(resp.ask(&["EXISTS", "a"]), "0");
    for address in [server.http, server.resp] {
        for own in [None, Some((&other, &other_key))] {
            let answer = get(&mut connect(address, &ca, own), "/healthz");
            assert!(answer.is_err(), "{answer:?}");
        }
    }
}

const PAGE: &str = include_str!("../../../docs/operating/tls.md");

/// Makes the certificate that the page shows, by the page's own command: cert.pem and key.pem.
fn certificate_of_the_page(site: &Site) {
    let mut blocks = PAGE.split("```").skip(1).step_by(2).filter_map(|block| block.strip_prefix("bash\n"));
    let command = blocks.find(|block| block.contains("openssl req")).expect("the page makes a certificate");
    let made = Command::new("bash").current_dir(site.path(".")).arg("-c").arg(command).output().expect("bash runs");
    assert!(made.status.success(), "{made:?}");
}

/// Goal: the certificate of the page is taken by our own client, by name and by address, named in the URL or known to
/// the system.
#[test]
fn the_certificate_of_the_page_works_with_our_own_client() {
    let site = Site::new();
    certificate_of_the_page(&site);
    let server = Server::start(&site, &["--tls-cert", "cert.pem", "--tls-key", "key.pem"]);
    let port = server.resp.port();
    for (host, name) in [("localhost", "seat-14"), ("127.0.0.1", "seat-15")] {
        let url = format!("leaseholds://{host}:{port}?ca=cert.pem");
        site.ask(&["--url", &url, "acquire", name]).with_code(0);
    }
    let url = format!("leaseholds://localhost:{port}");
    let mut known = site.command(&["--url", &url, "acquire", "seat-16"]);
    let known = known.env("SSL_CERT_FILE", site.path("cert.pem")).output().expect("the binary starts");
    assert!(known.status.success(), "{known:?}");
    server.stop().with_code(0);
}

/// Goal: a server that is there, but not for us, is not "start one": the sentence says what is wrong with TLS.
#[test]
fn what_is_wrong_with_tls_is_said() {
    let site = Site::new();
    certificate_of_the_page(&site);
    let authority = Authority::new();
    let [other_ca, ..] = authority.write(&site, "other");
    let other_key = site.path("authority.key");
    std::fs::write(&other_key, authority.key_pem()).expect("written");
    let sites = [Site::new(), Site::new(), Site::new()];
    let ours = Server::start(
        &sites[0],
        &["--tls-cert", text(&site.path("cert.pem")), "--tls-key", text(&site.path("key.pem"))],
    );
    let plain = Server::start(&sites[1], &[]);
    // An authority's certificate as the server's own: what openssl makes without the constraint of the page.
    let wrong_kind = Server::start(&sites[2], &["--tls-cert", text(&other_ca), "--tls-key", text(&other_key)]);
    let (port, plain_port, wrong_port) = (ours.resp.port(), plain.resp.port(), wrong_kind.resp.port());
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port();
    for (url, sentence) in [
        (format!("leaseholds://localhost:{port}?ca={}", text(&other_ca)), "is not trusted: invalid peer certificate"),
        (format!("leaseholds://localhost:{wrong_port}?ca={}", text(&other_ca)), "basicConstraints=critical,CA:FALSE"),
        (format!("leasehold://127.0.0.1:{port}"), "speaks TLS: use leaseholds://"),
        (format!("leaseholds://localhost:{plain_port}?ca=cert.pem"), "does not speak TLS: use leasehold://"),
        (format!("leaseholds://localhost:{free}?ca=cert.pem"), "start one with `leasehold serve`"),
    ] {
        let answer = site.ask(&["--url", &url, "acquire", "seat-14"]).with_code(4);
        answer.says_one_sentence();
        assert!(answer.err.contains(sentence), "{url}: {answer:?}");
        let starts = answer.err.contains("start one");
        assert_eq!(starts, sentence.contains("start one"), "{url}: {answer:?}");
    }
}
