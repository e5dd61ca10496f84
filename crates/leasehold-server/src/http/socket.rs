//! A TCP socket that can be asked whether its client hung up, while hyper owns it.
//!
//! hyper notices a hang-up by reading, and does not read while it holds bytes after the current request. A claim would
//! wait for a client that is gone, and be granted to nobody.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use leasehold_support::sync::lock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// The socket for hyper. Others ask about it now and then, so the lock is nearly always free. With `try_read` it would
/// need none, but each read would be followed by one that finds nothing: only `poll_read` knows that a short read has
/// emptied the socket.
pub struct SharedSocket(Arc<Mutex<TcpStream>>);

/// Asks the kernel about the same socket.
pub struct HangupProbe(Arc<Mutex<TcpStream>>);

impl SharedSocket {
    /// A socket that others know, too.
    pub const fn new(stream: Arc<Mutex<TcpStream>>) -> Self {
        Self(stream)
    }

    /// The socket, and its probe.
    pub fn with_probe(stream: TcpStream) -> (Self, HangupProbe) {
        let stream = Arc::new(Mutex::new(stream));
        (Self(stream.clone()), HangupProbe(stream))
    }
}

impl HangupProbe {
    /// Whether the client closed its side, or the connection broke. Unread bytes do not matter.
    pub fn is_hung_up(&self) -> bool {
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let stream = lock(&self.0);
        let mut fds = [PollFd::new(&*stream, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().intersects(gone)
    }
}

impl AsyncRead for SharedSocket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *lock(&self.0)).poll_read(cx, buf)
    }
}

impl AsyncWrite for SharedSocket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *lock(&self.0)).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *lock(&self.0)).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *lock(&self.0)).poll_shutdown(cx)
    }
}
