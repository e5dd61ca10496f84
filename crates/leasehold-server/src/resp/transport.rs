//! Bytes to and from a client, in the clear or under TLS. Never blocks.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustls::{ServerConfig, ServerConnection};

/// See the module.
pub enum Transport {
    /// In the clear.
    Plain(TcpStream),
    /// Under TLS.
    Tls(Box<Tls>),
}

/// A connection under TLS.
pub struct Tls {
    stream: TcpStream,
    session: ServerConnection,
}

impl Transport {
    /// A stream that was accepted; with a configuration, under TLS.
    ///
    /// # Errors
    ///
    /// The stream is broken, or TLS cannot begin.
    pub fn accept(stream: TcpStream, tls: Option<&Arc<ServerConfig>>) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        match tls {
            None => Ok(Self::Plain(stream)),
            Some(config) => {
                let session = ServerConnection::new(config.clone()).map_err(io::Error::other)?;
                Ok(Self::Tls(Box::new(Tls { stream, session })))
            }
        }
    }

    /// Reads what has come.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if nothing has; otherwise the client is gone or speaks no TLS.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buffer),
            Self::Tls(tls) => tls.read(buffer),
        }
    }

    /// Whether the client is known to have hung up, without taking anything of what it sent.
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

    /// Sends, or keeps for [`Self::flush`].
    ///
    /// # Errors
    ///
    /// `WouldBlock` if the client takes no more; otherwise it is gone.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Tls(tls) => {
                let count = tls.session.writer().write(bytes)?;
                // Its buffer is bounded: full means that the client takes no more.
                if count == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(count) }
            }
        }
    }

    /// Sends what TLS keeps.
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

    /// Whether TLS keeps bytes for the client.
    pub fn wants_write(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(tls) => tls.session.wants_write(),
        }
    }
}

impl Tls {
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
                // The client is told why, as far as it listens.
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
