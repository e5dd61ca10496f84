//! Our own server, driven over RESP: one TCP connection per client, all of them on one thread.
//!
//! ```text
//!   Address ──▶ Crowd (sockets, epoll) ──▶ pairs    acquire and release, uncontended
//!                                      ├─▶ handoff  one name, many in line
//!                                      └─▶ idle     very many connections that do nothing
//! ```
//!
//! The load shares the machine's cores with the server it measures, so that each of its own microseconds is
//! taken from the figure. Hence one thread, one `read` and one `write` per answer, no task and no allocation.

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

/// How long connecting may take, and the first answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Where the key comes from when the URL has none.
const API_KEY_VARIABLE: &str = "LEASEHOLD_API_KEY";

/// Where a server of ours listens.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerAddress {
    /// Name or address.
    pub host: String,
    /// The port of RESP.
    pub port: u16,
    /// The secret of the URL.
    pub key: Option<String>,
    /// The URL without its secret.
    pub display_url: String,
}

impl fmt::Debug for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.display_url)
    }
}

impl ServerAddress {
    /// A connection that was let in. It blocks, until a crowd takes it.
    ///
    /// # Errors
    ///
    /// Unavailable, when nobody answers; bad usage, when the key does not fit.
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

    /// Asks on a connection that blocks: the first line of the answer, or its number, as it came.
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

    /// Nobody could be asked.
    fn unavailable(&self, cause: &io::Error) -> anyhow::Error {
        Failure::coded(UNAVAILABLE, format!("no answer from {}: {cause}", self.display_url))
    }
}
