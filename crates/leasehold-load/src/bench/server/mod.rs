//! A Leasehold server, driven over RESP: one TCP connection per client, all of them on one thread.
//!
//! ```text
//!   ServerAddress ──▶ ConnectionSet (sockets, epoll) ──▶ pairs    acquire and release, uncontended
//!                                                    ├─▶ handoff  one resource, many waiters
//!                                                    └─▶ idle     very many idle connections
//! ```
//!
//! The load shares the machine's cores with the server that it measures: its own CPU time lowers the figures. Hence one
//! thread, one `read` and one `write` per reply, no task and no allocation.

pub mod connection_set;
pub mod handoff;
pub mod idle;
pub mod pairs;
pub mod resp_codec;

use std::fmt;
use std::io::{self, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::bail;

use self::resp_codec::RespReply;
use leasehold_support::exit::{Failure, UNAVAILABLE};

/// The timeout of connecting, and of the first reply.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The environment variable with the key, if the URL has none.
const API_KEY_VARIABLE: &str = "LEASEHOLD_API_KEY";

/// The address of a Leasehold server.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerAddress {
    /// Host name or IP address.
    pub host: String,
    /// The RESP port.
    pub port: u16,
    /// The key of the URL.
    pub key: Option<String>,
    /// The URL without its key.
    pub display_url: String,
}

impl fmt::Debug for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.display_url)
    }
}

impl ServerAddress {
    /// Opens a connection and authenticates. It is a blocking one.
    ///
    /// # Errors
    ///
    /// Unavailable if the server does not answer. Bad usage if it refuses the key.
    pub fn connect(&self) -> anyhow::Result<TcpStream> {
        let mut stream = self.connect_tcp().map_err(|cause| self.unavailable(&cause))?;
        let from_environment = || std::env::var(API_KEY_VARIABLE).ok().filter(|key| !key.is_empty());
        if let Some(key) = self.key.clone().or_else(from_environment) {
            match self.request(&mut stream, &["AUTH", &key])?.as_str() {
                "+OK" => {}
                refusal => {
                    return Err(Failure::usage(format!(
                        "{} does not take the key: {}",
                        self.display_url,
                        &refusal[1..]
                    )));
                }
            }
        }
        Ok(stream)
    }

    fn connect_tcp(&self) -> io::Result<TcpStream> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in (self.host.as_str(), self.port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(CONNECT_TIMEOUT))?;
                    stream.set_write_timeout(Some(CONNECT_TIMEOUT))?;
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Sends a command on a blocking connection. Returns a simple string or an error with its first byte, `+` or `-`.
    pub fn request(&self, stream: &mut TcpStream, arguments: &[&str]) -> anyhow::Result<String> {
        let mut buffer = Vec::new();
        resp_codec::encode_command(&mut buffer, arguments);
        stream.write_all(&buffer).map_err(|cause| self.unavailable(&cause))?;
        buffer.clear();
        loop {
            connection_set::read_more(stream, &mut buffer).map_err(|cause| self.unavailable(&cause))?;
            match resp_codec::parse_reply(&buffer)? {
                Some((RespReply::Simple(text), _)) => return Ok(format!("+{text}")),
                Some((RespReply::Error(text), _)) => return Ok(format!("-{text}")),
                Some((other, _)) => bail!("{} answered {other:?} to {}", self.display_url, arguments[0]),
                None => {}
            }
        }
    }

    fn unavailable(&self, cause: &io::Error) -> anyhow::Error {
        Failure::coded(UNAVAILABLE, format!("no answer from {}: {cause}", self.display_url))
    }
}
