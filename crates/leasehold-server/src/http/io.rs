//! A socket that does not wait for ever: hyper's own timers know neither a stalled reader nor an idle connection.
//!
//! ```text
//!   Awaiting ──first byte──▶ Head ──request──▶ Busy ──answer told──▶ Awaiting
//!   (first_byte, idle)      (header)          (the handler's own limits)
//! ```
//!
//! The deadlines are tokio's: they guard sockets, not leases, and may sleep with the machine.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep_until};

use super::Config;

/// Where a connection stands.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Nothing of the next request is here; it must begin until then.
    Awaiting(Instant),
    /// Part of its head is here; it must be whole until then.
    Head(Instant),
    /// It is being answered.
    Busy,
}

/// The phase, shared by the socket and by who answers.
pub struct Pulse {
    phase: Mutex<Phase>,
    /// Told when a request is whole.
    asked: Notify,
    header: Duration,
    idle: Duration,
}

impl Pulse {
    /// A connection that has said nothing.
    pub fn new(config: &Config) -> Arc<Self> {
        let phase = Mutex::new(Phase::Awaiting(Instant::now() + config.first_byte));
        Arc::new(Self { phase, asked: Notify::new(), header: config.header, idle: config.idle })
    }

    /// The first byte of a request came.
    pub fn begin(&self) {
        self.set(Phase::Head(Instant::now() + self.header));
    }

    /// A request is whole.
    pub fn busy(&self) {
        self.set(Phase::Busy);
        self.asked.notify_one();
    }

    /// Comes to its end when a request has become whole since the last call.
    pub async fn until_busy(&self) {
        self.asked.notified().await;
    }

    /// Whether a request is being answered.
    pub fn is_busy(&self) -> bool {
        matches!(self.get(), Phase::Busy)
    }

    fn rest(&self) {
        self.set(Phase::Awaiting(Instant::now() + self.idle));
    }

    fn set(&self, phase: Phase) {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner) = phase;
    }

    fn get(&self) -> Phase {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The socket.
pub struct Guarded<S> {
    socket: S,
    pulse: Arc<Pulse>,
    /// One timer for reading, made when it is first needed.
    patience: Option<Pin<Box<Sleep>>>,
    stall: Duration,
    /// Runs while a write is stuck.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Guarded<S> {
    /// Guards a socket.
    pub fn new(socket: S, pulse: Arc<Pulse>, stall: Duration) -> Self {
        Self { socket, pulse, patience: None, stall, stalled: None }
    }

    fn too_late(&mut self, cx: &mut Context<'_>, deadline: Instant) -> bool {
        let patience = self.patience.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if patience.deadline() != deadline {
            patience.as_mut().reset(deadline);
        }
        patience.as_mut().poll(cx).is_ready()
    }

    /// Passes on what a write came to, unless nothing was taken for too long.
    fn unless_stalled<T>(&mut self, cx: &mut Context<'_>, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.stalled = None;
            return poll;
        }
        let stall = self.stall;
        let timer = self.stalled.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + stall)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(late("the client takes nothing of the answer")))
    }
}

fn late(what: &'static str) -> io::Error {
    io::Error::new(ErrorKind::TimedOut, what)
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // Before reading: who sends one byte a second always has something to read.
        match self.pulse.get() {
            Phase::Busy => {}
            Phase::Head(deadline) | Phase::Awaiting(deadline) => {
                if self.too_late(cx, deadline) {
                    return Poll::Ready(Err(late("no whole request in time")));
                }
            }
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut self.socket).poll_read(cx, buf);
        if buf.filled().len() > before && matches!(self.pulse.get(), Phase::Awaiting(_)) {
            self.pulse.begin();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.socket).poll_write(cx, buf);
        self.unless_stalled(cx, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.socket).poll_write_vectored(cx, bufs);
        self.unless_stalled(cx, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.socket).poll_flush(cx);
        self.unless_stalled(cx, poll)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.socket).poll_shutdown(cx);
        self.unless_stalled(cx, poll)
    }
}

/// The body of an answer: when hyper is through with it, the connection is idle again.
pub struct Told {
    body: Body,
    pulse: Arc<Pulse>,
}

impl Told {
    /// Watches over a body.
    pub const fn new(body: Body, pulse: Arc<Pulse>) -> Self {
        Self { body, pulse }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.pulse.rest();
    }
}

impl HttpBody for Told {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
