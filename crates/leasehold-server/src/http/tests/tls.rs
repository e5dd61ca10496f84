//! The same over TLS.

use std::sync::Arc;

use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::*;

fn certificates() -> (ServerConfig, ClientConfig) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let server = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().unwrap();
    let server = server.with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key).unwrap();
    let client = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    (server, client.with_root_certificates(roots).with_no_client_auth())
}

/// Goal: requests are answered over TLS; plain text, RESP and silence on that port are closed in time.
#[tokio::test(flavor = "multi_thread")]
async fn requests_over_tls() {
    let (tls, client) = certificates();
    let server = Server::with(HttpConfig { tls: Some(Arc::new(tls)), ..hasty() }, Options::default()).await;
    let connector = TlsConnector::from(Arc::new(client));
    let open = async || {
        let socket = TcpStream::connect(server.at).await.unwrap();
        connector.connect(ServerName::try_from("localhost").unwrap(), socket).await.unwrap()
    };
    let mut socket = open().await;
    socket.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    timeout(PATIENCE, socket.read_to_end(&mut answer)).await.unwrap().unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200 OK"), "{}", String::from_utf8_lossy(&answer));

    let mut silent = open().await;
    let mut answer = Vec::new();
    let _ = timeout(PATIENCE, silent.read_to_end(&mut answer)).await.expect("closed in time");
    let mut resp = open().await;
    resp.write_all(b"*1\r\n$4\r\nPING\r\n").await.unwrap();
    let _ = timeout(PATIENCE, resp.read_to_end(&mut answer)).await.expect("closed in time");
    assert!(!String::from_utf8_lossy(&answer).contains("PONG"));

    for words in [&b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"[..], b"", b"\x16\x03\x01"] {
        let mut plain = server.client().await;
        plain.raw(words).await;
        assert!(!plain.until_closed().await.contains("HTTP/1.1 200"));
    }
    server.end().await;
}
