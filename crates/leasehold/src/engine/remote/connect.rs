//! From an address to a connection on which the server has said hello.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::answer::{self, Said};
use super::command;
use super::link::{REPLY, Wire};
use super::options::Options;
use super::reply::{Reader, Value};
use crate::clock::Clock;
use crate::error::Error;
use crate::renew::until;

/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(2);
/// A connection on which nothing is heard for long is asked whether it is still there.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// The first byte of a TLS alert: what a TLS server answers to plain RESP. No reply of RESP begins with it.
const TLS_ALERT: u8 = 0x15;

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum NoConnection {
    /// Nobody is there, or nobody who speaks our language; it may be otherwise soon.
    Away(Away),
    /// It would be so for ever: a wrong key, a file that is no certificate.
    Never(Error),
}

/// Why a server was not reached: the source of [`Error::Unavailable`].
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Away {
    /// Nobody answers at this address. Do: start a server, or name another address.
    #[error("no server answers at {at}")]
    Silent {
        /// `host:port`.
        at: String,
        /// What the network said.
        source: Arc<io::Error>,
    },
    /// A server answers over TLS, but not with a certificate that we trust. Do: name who signed it, as `?ca=FILE`.
    #[error("the certificate of {at} is not trusted")]
    Untrusted {
        /// `host:port`.
        at: String,
        /// What is wrong with the certificate.
        source: Arc<io::Error>,
    },
    /// A server answers, but the two sides do not agree on TLS. Do: read the cause.
    #[error("the TLS handshake with {at} failed")]
    Handshake {
        /// `host:port`.
        at: String,
        /// Why not.
        source: Arc<io::Error>,
    },
    /// We did not speak TLS, and the server does.
    #[error("{at} speaks TLS: use leaseholds:// in the url")]
    SpeaksTls {
        /// `host:port`.
        at: String,
    },
    /// We spoke TLS, and the server does not.
    #[error("{at} does not speak TLS: use leasehold:// in the url")]
    SpeaksNoTls {
        /// `host:port`.
        at: String,
    },
}

impl NoConnection {
    /// The error for somebody who tried this.
    pub fn into_error(self, attempt: String) -> Error {
        match self {
            Self::Away(away) => Error::Unavailable { engine: super::ENGINE, attempt, source: Box::new(away) },
            Self::Never(error) => error,
        }
    }
}

/// How connections are made.
#[derive(Debug)]
pub(super) struct Connector {
    pub options: Options,
    #[cfg(feature = "tls")]
    tls: Option<super::tls::Tls>,
}

impl Connector {
    /// Reads the files that TLS wants, once.
    ///
    /// # Errors
    ///
    /// Invalid for files that are none, and for TLS in a build without it.
    pub fn new(options: Options) -> Result<Self, Error> {
        #[cfg(not(feature = "tls"))]
        if options.tls.is_some() {
            return Err(Error::Invalid("this build speaks no TLS: build leasehold with the feature `tls`".into()));
        }
        Ok(Self {
            #[cfg(feature = "tls")]
            tls: options.tls.as_ref().map(|files| super::tls::Tls::read(files, &options.host)).transpose()?,
            options,
        })
    }

    /// A connection on which HELLO was answered.
    pub async fn connect(&self, clock: &Arc<dyn Clock>) -> Result<(Wire, Reader), NoConnection> {
        let at = clock.now().plus(CONNECT);
        let away = |error| NoConnection::Away(self.away(error));
        let speaks_tls = || NoConnection::Away(Away::SpeaksTls { at: self.options.at() });
        let late = || io::Error::from(io::ErrorKind::TimedOut);
        let wire = until(&**clock, at, self.dial()).await;
        let mut wire = wire.ok_or_else(|| away(late()))?.map_err(away)?;
        let at = clock.now().plus(REPLY);
        let hello = until(&**clock, at, self.hello(&mut wire)).await.ok_or_else(|| away(late()))?;
        match hello {
            Ok((Value::Map(_) | Value::List(_), reader)) => Ok((wire, reader)),
            Ok((Value::Error(text), _)) => Err(match answer::said(&text) {
                Said::No(error) => NoConnection::Never(error),
                Said::NoEffect(sentence) | Said::Unknown(sentence) => away(io::Error::other(sentence)),
            }),
            Ok(_) => Err(away(io::Error::other(answer::Unexpected("greeting")))),
            Err(Hello::Lost(error)) => Err(away(error)),
            Err(Hello::SpeaksTls) => Err(speaks_tls()),
            Err(Hello::Bad(error)) => Err(NoConnection::Never(error)),
        }
    }

    /// Why there is no server, from why there is no connection.
    pub fn away(&self, why: io::Error) -> Away {
        let at = self.options.at();
        #[cfg(feature = "tls")]
        if self.tls.is_some() {
            use super::tls::Trouble;
            match Trouble::of(&why) {
                Some(Trouble::Certificate) => return Away::Untrusted { at, source: Arc::new(why) },
                Some(Trouble::NoTls) => return Away::SpeaksNoTls { at },
                Some(Trouble::Other) => return Away::Handshake { at, source: Arc::new(why) },
                None => {}
            }
        }
        Away::Silent { at, source: Arc::new(why) }
    }

    async fn dial(&self) -> io::Result<Wire> {
        let stream = TcpStream::connect((self.options.host.as_str(), self.options.port)).await?;
        stream.set_nodelay(true)?;
        // Best effort: without it a dead peer is noticed later.
        let _ = sockopt::set_socket_keepalive(&stream, true);
        let _ = sockopt::set_tcp_keepidle(&stream, KEEPALIVE);
        let _ = sockopt::set_tcp_keepintvl(&stream, KEEPALIVE / 3);
        let _ = sockopt::set_tcp_keepcnt(&stream, 3);
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return tls.shake_hands(stream).await;
        }
        Ok(Box::new(stream))
    }

    async fn hello(&self, wire: &mut Wire) -> Result<(Value, Reader), Hello> {
        let hello = command::hello(self.options.key.as_deref()).map_err(Hello::Bad)?;
        wire.write_all(&hello).await.map_err(Hello::Lost)?;
        wire.flush().await.map_err(Hello::Lost)?;
        let mut reader = Reader::default();
        loop {
            if wire.read_buf(reader.room()).await.map_err(Hello::Lost)? == 0 {
                let closed = io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection at once");
                return Err(Hello::Lost(closed));
            }
            if self.options.tls.is_none() && reader.peek() == Some(TLS_ALERT) {
                return Err(Hello::SpeaksTls);
            }
            let value = reader.next().map_err(|error| Hello::Lost(io::Error::other(error)))?;
            if let Some(value) = value {
                return Ok((value, reader));
            }
        }
    }
}

/// Why nobody said hello.
enum Hello {
    Lost(io::Error),
    SpeaksTls,
    Bad(Error),
}
