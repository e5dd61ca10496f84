//! Opens connections: TCP, TLS, and the HELLO of RESP.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::command;
use super::connection::{BoxedStream, REPLY_TIMEOUT};
use super::decode::{self, ServerError};
use super::options::Options;
use super::resp::{RespReader, Value};
use crate::clock::Clock;
use crate::clock::until;
use crate::error::Error;

/// How long TCP and TLS may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// After so long without data the kernel probes the connection.
const TCP_KEEPALIVE_AFTER: Duration = Duration::from_secs(15);

/// The first byte of a TLS alert: what a TLS server answers to plain RESP. No reply of RESP begins with it.
const TLS_ALERT: u8 = 0x15;

/// Why there is no connection.
#[derive(Debug)]
pub(crate) enum NoConnection {
    /// No server, or not one that speaks RESP; retrying may help.
    Away(Away),
    /// Retrying cannot help: a wrong key, a file that is no certificate.
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
    /// The error for the caller.
    pub fn into_error(self, attempt: String) -> Error {
        match self {
            Self::Away(away) => Error::Unavailable { engine: super::ENGINE, attempt, source: Box::new(away) },
            Self::Never(error) => error,
        }
    }
}

/// Opens connections to one server.
#[derive(Debug)]
pub(crate) struct Connector {
    pub options: Options,
    #[cfg(feature = "tls")]
    tls: Option<super::tls::TlsClient>,
}

impl Connector {
    /// Reads the files of TLS, once.
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
            tls: options.tls.as_ref().map(|files| super::tls::TlsClient::read(files, &options.host)).transpose()?,
            options,
        })
    }

    /// A connection on which nothing was said yet, but for TLS.
    pub async fn dial_in_time(&self, clock: &Arc<dyn Clock>) -> Result<BoxedStream, NoConnection> {
        let at = clock.now().plus(CONNECT_TIMEOUT);
        let away = |error| NoConnection::Away(self.away(error));
        let stream = until(&**clock, at, self.dial()).await;
        stream.ok_or_else(|| away(io::Error::from(io::ErrorKind::TimedOut)))?.map_err(away)
    }

    /// A connection on which HELLO was answered.
    pub(super) async fn connect(&self, clock: &Arc<dyn Clock>) -> Result<(BoxedStream, RespReader), NoConnection> {
        let away = |error| NoConnection::Away(self.away(error));
        let speaks_tls = || NoConnection::Away(Away::SpeaksTls { at: self.options.at() });
        let late = || io::Error::from(io::ErrorKind::TimedOut);
        let mut stream = self.dial_in_time(clock).await?;
        let at = clock.now().plus(REPLY_TIMEOUT);
        let hello = until(&**clock, at, self.hello(&mut stream)).await.ok_or_else(|| away(late()))?;
        match hello {
            Ok((Value::Map(_) | Value::List(_), reader)) => Ok((stream, reader)),
            Ok((Value::Error(text), _)) => Err(match decode::parse_error(&text) {
                ServerError::Decided(error) => NoConnection::Never(error),
                ServerError::NoEffect(sentence) | ServerError::Unknown(sentence) => away(io::Error::other(sentence)),
            }),
            Ok(_) => Err(away(io::Error::other(decode::UnexpectedReply("greeting")))),
            Err(HelloError::Lost(error)) => Err(away(error)),
            Err(HelloError::SpeaksTls) => Err(speaks_tls()),
            Err(HelloError::Bad(error)) => Err(NoConnection::Never(error)),
        }
    }

    /// Classifies an error of the connection.
    pub fn away(&self, why: io::Error) -> Away {
        let at = self.options.at();
        #[cfg(feature = "tls")]
        if self.tls.is_some() {
            use super::tls::TlsFailure;
            match TlsFailure::from_io(&why) {
                Some(TlsFailure::Certificate) => return Away::Untrusted { at, source: Arc::new(why) },
                Some(TlsFailure::NoTls) => return Away::SpeaksNoTls { at },
                Some(TlsFailure::Other) => return Away::Handshake { at, source: Arc::new(why) },
                None => {}
            }
        }
        Away::Silent { at, source: Arc::new(why) }
    }

    async fn dial(&self) -> io::Result<BoxedStream> {
        let stream = TcpStream::connect((self.options.host.as_str(), self.options.port)).await?;
        stream.set_nodelay(true)?;
        // Best effort: without it a dead peer is noticed later.
        let _ = sockopt::set_socket_keepalive(&stream, true);
        let _ = sockopt::set_tcp_keepidle(&stream, TCP_KEEPALIVE_AFTER);
        let _ = sockopt::set_tcp_keepintvl(&stream, TCP_KEEPALIVE_AFTER / 3);
        let _ = sockopt::set_tcp_keepcnt(&stream, 3);
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return tls.shake_hands(stream).await;
        }
        Ok(Box::new(stream))
    }

    async fn hello(&self, stream: &mut BoxedStream) -> Result<(Value, RespReader), HelloError> {
        let hello = command::hello(self.options.key.as_deref()).map_err(HelloError::Bad)?;
        stream.write_all(&hello).await.map_err(HelloError::Lost)?;
        stream.flush().await.map_err(HelloError::Lost)?;
        let mut reader = RespReader::default();
        loop {
            if stream.read_buf(reader.room()).await.map_err(HelloError::Lost)? == 0 {
                let closed = io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection at once");
                return Err(HelloError::Lost(closed));
            }
            if self.options.tls.is_none() && reader.peek() == Some(TLS_ALERT) {
                return Err(HelloError::SpeaksTls);
            }
            let value = reader.next().map_err(|error| HelloError::Lost(io::Error::other(error)))?;
            if let Some(value) = value {
                return Ok((value, reader));
            }
        }
    }
}

/// Why HELLO failed.
enum HelloError {
    Lost(io::Error),
    SpeaksTls,
    Bad(Error),
}
