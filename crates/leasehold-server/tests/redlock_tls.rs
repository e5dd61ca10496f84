//! Redlock over TLS, on real servers: `tls=1` trusts whom the system trusts, and nobody else.

mod common;

use common::authority::Authority;
use common::{Answer, Site};
use leasehold_harness::free_port;
use leasehold_harness::redis::{DURABLE, RedisServer};

/// A server that speaks TLS on a port of its own. The plain port is the test's.
fn start_secure(certificate: &str, key: &str) -> (RedisServer, u16) {
    let port = free_port();
    let secure = [
        format!("--tls-port {port}"),
        format!("--tls-cert-file {certificate}"),
        format!("--tls-key-file {key}"),
        "--tls-auth-clients no".into(),
        "--requirepass s3cret".into(),
    ];
    let settings: Vec<&str> = DURABLE.iter().copied().chain(secure.iter().map(String::as_str)).collect();
    (RedisServer::start(&settings), port)
}

/// Goal: leases are taken over TLS; a server that nobody vouches for, a plain connection and a wrong password are one
/// sentence each.
#[test]
fn leases_over_tls() {
    let site = Site::new();
    let [ca, certificate, key] = Authority::new().write(&site, "redis").map(|path| path.display().to_string());
    let [stranger, ..] = Authority::new().write(&site, "stranger").map(|path| path.display().to_string());
    let nodes: Vec<(RedisServer, u16)> = (0..3).map(|_| start_secure(&certificate, &key)).collect();
    let places: Vec<String> = nodes.iter().map(|(_, port)| format!("localhost:{port}")).collect();
    let url = |password: &str, query: &str| format!("redlock://:{password}@{}{query}", places.join(","));
    let ask = |arguments: &[&str], url: &str, ca: &str| {
        let mut command = site.command(&[arguments, &["--url", url]].concat());
        Answer::of(&command.env("SSL_CERT_FILE", ca).output().expect("the binary starts"))
    };
    let secure = url("s3cret", "?tls=1");
    let lease = ask(&["acquire", "seat", "--ttl", "1m", "--json"], &secure, &ca).with_code(0).json();
    let held = nodes.iter().filter(|(server, _)| server.command(&["EXISTS", "seat"]).trim() == "1").count();
    assert!(held >= 2, "a majority has it: {held}");
    ask(&["acquire", "seat"], &secure, &ca).with_code(3);
    ask(&["renew", common::text(&lease, "lease_id")], &secure, &ca).with_code(0);
    ask(&["release", common::text(&lease, "lease_id")], &secure, &ca).with_code(0);
    ask(&["doctor", "--need", "outlives_process"], &secure, &ca).with_code(0);
    for (url, ca, code) in [
        (&secure, &stranger, 4),
        (&url("s3cret", ""), &ca, 4),
        (&url("hunter2", "?tls=1"), &ca, 2),
        (&url("s3cret", "?tls=2"), &ca, 2),
    ] {
        let answer = ask(&["acquire", "seat"], url, ca).with_code(code);
        answer.says_one_sentence();
        assert!(!answer.err.contains("hunter2") && !answer.err.contains("s3cret"), "{answer:?}");
    }
}
