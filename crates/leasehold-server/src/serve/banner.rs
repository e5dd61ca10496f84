//! The lines at the start of the server: addresses, and commands to try.

use std::net::SocketAddr;

use super::config::Config;
use super::listen::BoundPorts;
use leasehold_support::net::connectable;

/// The lines.
pub fn banner_lines(config: &Config, ports: &BoundPorts, keys: usize) -> Vec<String> {
    let (http, resp) = (connectable(ports.http), connectable(ports.resp));
    let secure = config.tls.is_some();
    let web = format!("{}://{http}", if secure { "https" } else { "http" });
    let who = match keys {
        0 => "no keys: everybody on this machine may do everything".to_owned(),
        1 => "1 key".to_owned(),
        keys => format!("{keys} keys"),
    };
    let bearer = if keys == 0 { "" } else { " -H \"Authorization: Bearer $LEASEHOLD_API_KEY\"" };
    let auth = if keys == 0 { "" } else { "REDISCLI_AUTH=$LEASEHOLD_API_KEY " };
    let tls = if secure { " --tls" } else { "" };
    let pages = match config.ledger.as_str() {
        "none" => format!("  page  {web}/locks"),
        _ => format!("  pages {web}/ (box office), {web}/admin (its staff), {web}/locks"),
    };
    vec![
        format!("leasehold {} serves {} ({who})", env!("CARGO_PKG_VERSION"), config.data.display()),
        pages,
        format!("  http  {web}{}", plain_note(ports.http, secure)),
        format!("  resp  {resp}{}", plain_note(ports.resp, secure)),
        "Try:".to_owned(),
        format!(
            "  curl{bearer} {web}/v1/leases -H 'Content-Type: application/json' \
             -d '{{\"resources\":[\"seat-14\"],\"ttl_ms\":30000}}'"
        ),
        // A front server does not support Redis keys: the server behind it does.
        match config.engine.as_str() {
            "embedded" => {
                format!("  {auth}redis-cli{tls} -h {} -p {} SET seat-15 ada NX PX 30000", resp.ip(), resp.port())
            }
            _ => format!("  {auth}redis-cli{tls} -h {} -p {} LEASE LIST", resp.ip(), resp.port()),
        },
        match secure {
            true => format!("  leasehold --url 'leaseholds://{resp}?ca=CA.pem' acquire seat-16 --ttl 30s"),
            false => format!("  leasehold --url leasehold://{resp} acquire seat-16 --ttl 30s"),
        },
    ]
}

fn plain_note(address: SocketAddr, secure: bool) -> &'static str {
    if secure || address.ip().to_canonical().is_loopback() { "" } else { "   (not encrypted: allow_plain)" }
}
