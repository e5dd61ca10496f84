//! The socket of a connection, plain or with TLS. No call blocks.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustls::{ServerConfig, ServerConnection};

pub enum Transport {
    Plain(TcpStream),
    Tls(Box<TlsStream>),
}

/// A socket with TLS.
pub struct TlsStream {
    stream: TcpStream,
    session: ServerConnection,
}

impl Transport {
    /// Wraps a socket that was accepted; with TLS, if there is a configuration.
    ///
    /// # Errors
    ///
    /// The socket is broken, or TLS cannot start.
    pub fn accept(stream: TcpStream, tls: Option<&Arc<ServerConfig>>) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        match tls {
            None => Ok(Self::Plain(stream)),
            Some(config) => {
                let session = ServerConnection::new(config.clone()).map_err(io::Error::other)?;
                Ok(Self::Tls(Box::new(TlsStream { stream, session })))
            }
        }
    }

    /// Reads what has arrived.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if nothing has; otherwise the client is gone or does not speak TLS.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buffer),
            Self::Tls(tls) => tls.read(buffer),
        }
    }

    /// Whether the client has ended its side. Takes none of its bytes.
    pub fn has_hung_up(&self) -> bool {
        let stream = match self {
            Self::Plain(stream) => stream,
            Self::Tls(tls) => &tls.stream,
        };
        match stream.peek(&mut [0]) {
            Ok(count) => count == 0,
            Err(error) => !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
        }
    }

    /// Sends, or buffers for [`Self::flush`].
    ///
    /// # Errors
    ///
    /// `WouldBlock` if the client takes no more; otherwise it is gone.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Tls(tls) => {
                let count = tls.session.writer().write(bytes)?;
                // The buffer of TLS is bounded. If it is full, the client takes no more.
                if count == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(count) }
            }
        }
    }

    /// Sends what TLS has buffered.
    ///
    /// # Errors
    ///
    /// The client is gone.
    pub fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Tls(tls) => tls.flush(),
        }
    }

    /// Whether TLS has buffered bytes.
    pub fn wants_write(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(tls) => tls.session.wants_write(),
        }
    }
}

impl TlsStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.session.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
            if self.session.read_tls(&mut self.stream)? == 0 {
                return Ok(0);
            }
            if let Err(error) = self.session.process_new_packets() {
                // Sends the alert that says why, as far as the client reads it.
                let _ = self.flush();
                return Err(io::Error::new(io::ErrorKind::InvalidData, error));
            }
            self.flush()?;
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut self.stream) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl AsFd for Transport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Plain(stream) => stream.as_fd(),
            Self::Tls(tls) => tls.stream.as_fd(),
        }
    }
}
