//! Checks the addresses, opens the listeners, and builds the settings of both protocols.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use super::config::Config;
use super::tls::ServerTls;
use crate::service::connection_limit::ConnectionLimiter;
use crate::{http, resp};
use leasehold_support::exit::{Failure, UNAVAILABLE, USAGE};

/// Connections that the kernel queues before they are accepted.
const LISTEN_BACKLOG: i32 = 4096;
/// File descriptors kept for the journal, timers and threads.
pub const FILES_KEPT_FOR_ENGINE: u64 = 64;

/// The addresses of the listeners: port 0 was replaced by the kernel's choice.
#[derive(Clone, Copy, Debug)]
pub struct BoundPorts {
    /// HTTP.
    pub http: SocketAddr,
    /// RESP.
    pub resp: SocketAddr,
    /// The limit of open files, where it is too low for all allowed connections.
    pub files: Option<u64>,
}

impl BoundPorts {
    /// Connections on both ports: as many as allowed, and no more than file descriptors. Some stay free: if the journal
    /// could not open its next segment, the engine would stop.
    pub fn max_connections(&self, allowed: usize) -> usize {
        let room = self.files.map_or(usize::MAX, |files| {
            usize::try_from(files.saturating_sub(FILES_KEPT_FOR_ENGINE)).unwrap_or(usize::MAX).max(1)
        });
        allowed.min(room)
    }
}

/// Refuses an address that others can reach without keys, or without TLS unless that was asked for.
///
/// # Errors
///
/// Exit code 2, and what to do.
pub fn check_exposure(config: &Config, has_keys: bool) -> anyhow::Result<()> {
    let (http, resp) = config.addresses().map_err(Failure::usage)?;
    if !has_keys && config.hosts.iter().any(|host| host == "*") {
        return Err(Failure::usage(
            "hosts has \"*\" and there is no API key: any web page that a browser on this machine shows could use this \
             server. Make a key with `leasehold key create --role admin`, or name the hosts",
        ));
    }
    for (port, address) in [("http", http), ("resp", resp)] {
        if address.ip().to_canonical().is_loopback() {
            continue;
        }
        if !has_keys {
            let data = config.data.display();
            return Err(Failure::usage(format!(
                "others can reach {port} on {address} and there is no API key: make one with `leasehold key create \
                 --role admin --data {data}`, or listen on 127.0.0.1"
            )));
        }
        if config.tls.is_none() && !config.allow_plain {
            return Err(Failure::usage(format!(
                "others can reach {port} on {address} and there is no TLS: give it a certificate (tls.cert and \
                 tls.key), or say allow_plain = true if you trust that network with your keys"
            )));
        }
    }
    Ok(())
}

/// Listens on both ports.
///
/// # Errors
///
/// Exit code 4 if the port is in use, 2 if the address does not exist or is not permitted.
pub fn bind_ports(config: &Config) -> anyhow::Result<(TcpListener, TcpListener, BoundPorts)> {
    let (http, resp) = config.addresses().map_err(Failure::usage)?;
    let files = raise_file_limit(config.limits.connections);
    let web = listen_on("http", http)?;
    let redis = listen_on("resp", resp)?;
    let address = |listener: &TcpListener, asked| listener.local_addr().unwrap_or(asked);
    let ports = BoundPorts { http: address(&web, http), resp: address(&redis, resp), files };
    Ok((web, redis, ports))
}

/// Listens on one address; `port` is the option that names it.
///
/// # Errors
///
/// As [`bind_ports`].
pub fn listen_on(port: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address).map_err(|error| {
        let (code, hint) = match error.kind() {
            io::ErrorKind::AddrInUse => {
                (UNAVAILABLE, format!("; another program has it: choose another with --{port}"))
            }
            io::ErrorKind::AddrNotAvailable => (USAGE, "; this machine has no such address".into()),
            io::ErrorKind::PermissionDenied => (USAGE, "; ports below 1024 take a privilege".into()),
            _ => (UNAVAILABLE, String::new()),
        };
        Failure::coded(code, format!("cannot listen on {address} for {port}: {error}{hint}"))
    })?;
    // The standard library uses a backlog of 128; a second `listen` changes it.
    let _ = rustix::net::listen(&listener, LISTEN_BACKLOG);
    Ok(listener)
}

/// Raises the limit of open files as far as the system allows. Returns the limit if it is too low.
pub fn raise_file_limit(connections: usize) -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let wanted = (connections as u64).saturating_add(FILES_KEPT_FOR_ENGINE);
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return None;
    }
    let current = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
    let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum: limit.maximum });
    (current < wanted).then_some(current)
}

/// The settings of the HTTP server.
pub fn http_config(
    config: &Config,
    tls: Option<&ServerTls>,
    connection_limiter: &Arc<ConnectionLimiter>,
) -> http::HttpConfig {
    let limits = &config.limits;
    http::HttpConfig {
        tls: tls.map(|tls| tls.http.clone()),
        hosts: config.hosts.clone(),
        first_byte: limits.first_byte.0,
        header: limits.header.0,
        body: limits.body.0,
        write_stall: limits.write_stall.0,
        idle: limits.idle.0,
        connection_limiter: connection_limiter.clone(),
        body_bytes: limits.body_bytes.0,
        ..http::HttpConfig::default()
    }
}

/// The settings of the RESP server.
pub fn resp_config(
    config: &Config,
    tls: Option<&ServerTls>,
    connection_limiter: &Arc<ConnectionLimiter>,
) -> resp::RespConfig {
    let limits = &config.limits;
    let mut resp = resp::RespConfig {
        connection_limiter: connection_limiter.clone(),
        first_byte: limits.first_byte.0,
        command_within: limits.body.0,
        write_stall: limits.write_stall.0,
        tls: tls.map(|tls| tls.resp.clone()),
        ..resp::RespConfig::default()
    };
    resp.sizes.arguments = limits.arguments;
    resp.sizes.bulk = limits.bulk_bytes.0;
    // One argument of the maximum size always fits.
    resp.sizes.command = resp.sizes.command.max(limits.bulk_bytes.0.saturating_mul(2));
    resp
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TlsFiles;
    use leasehold_support::exit;

    /// Goal: a server that answers to any name is served only with keys: else any web page could use it.
    #[test]
    fn any_name_needs_a_key() {
        for (hosts, keys, fine) in
            [(vec!["*"], false, false), (vec!["*"], true, true), (vec!["a.example"], false, true)]
        {
            let config = Config { hosts: hosts.iter().map(|&host| host.into()).collect(), ..Config::default() };
            let answer = check_exposure(&config, keys);
            assert_eq!(answer.is_ok(), fine, "{hosts:?} keys={keys}");
            assert!(answer.err().is_none_or(|error| exit::sentence(&error).contains("key create")));
        }
    }

    /// Goal: an address that others can reach is served only with keys, and with TLS or the word for doing without.
    #[test]
    fn what_others_can_reach_is_guarded() {
        let tls = TlsFiles { cert: "c".into(), key: "k".into(), client_ca: None };
        let loopback = ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1", "localhost:1"];
        let public = ["0.0.0.0:1", "[::]:1", "192.0.2.1:1", "[::ffff:192.0.2.1]:1", "10.0.0.1:1"];
        for (address, reachable) in
            loopback.map(|address| (address, false)).into_iter().chain(public.map(|address| (address, true)))
        {
            for resp in [false, true] {
                for (keys, secure, plain) in [(false, false, false), (false, true, true), (true, false, false)]
                    .into_iter()
                    .chain([(true, true, false), (true, false, true)])
                {
                    let mut config =
                        Config { allow_plain: plain, tls: secure.then(|| tls.clone()), ..Config::default() };
                    *(if resp { &mut config.resp } else { &mut config.http }) = address.into();
                    let answer = check_exposure(&config, keys);
                    let fine = !reachable || (keys && (secure || plain));
                    assert_eq!(answer.is_ok(), fine, "{address} keys={keys} tls={secure} plain={plain}");
                    if let Err(error) = answer {
                        let sentence = exit::sentence(&error);
                        assert_eq!(exit::code(&error), 2);
                        assert!(sentence.contains(if keys { "allow_plain" } else { "key create" }), "{sentence}");
                    }
                }
            }
        }
    }
}
