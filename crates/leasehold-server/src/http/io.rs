//! Timeouts of a connection: hyper has none for a stalled reader and none for an idle connection.
//!
//! ```text
//!   Awaiting ──first byte──▶ Head ──request──▶ Busy ──response sent──▶ Awaiting
//!   (first_byte, idle)      (header)          (the handler's own limits)
//! ```
//!
//! The deadlines use tokio's clock: they protect sockets, not leases, and may stop while the machine sleeps.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, Sleep, sleep_until};

use super::HttpConfig;
use leasehold_support::sync::lock;

/// Bytes of a head that are kept.
const MAX_KEPT_HEAD_BYTES: usize = 128 * 1024;

/// The phase of a connection.
#[derive(Clone, Copy, Debug)]
enum HttpPhase {
    /// No byte of the next request has come; the first must come before this.
    Awaiting(Instant),
    /// Part of the head has come; the rest must come before this.
    Head(Instant),
    /// A request is being handled.
    Busy,
    /// The connection was taken over by another protocol.
    Upgraded,
}

/// The phase, shared by the stream, the body of the response and the connection task.
pub struct PhaseTracker {
    phase: Mutex<HttpPhase>,
    /// Notified when the head of a request is complete.
    request_complete: Notify,
    header: Duration,
    idle: Duration,
    /// The connection was dropped, perhaps in the middle of a request.
    closed: AtomicBool,
    /// The head of a request as it came, for what hyper does not tell.
    head: Mutex<Vec<u8>>,
    /// What uses the connection after an upgrade.
    tunnel: Mutex<Option<JoinHandle<()>>>,
}

/// Marks a connection as closed when it is dropped. Who forwards a body must tell a whole one from one whose connection
/// was dropped. hyper 1.12 reports it, older versions ended both in the same way: this does not depend on it.
pub struct CloseGuard(Arc<PhaseTracker>);

impl CloseGuard {
    /// For the connection of this tracker. It must be dropped before the connection.
    pub const fn new(phases: Arc<PhaseTracker>) -> Self {
        Self(phases)
    }
}

impl Drop for CloseGuard {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::SeqCst);
    }
}

impl PhaseTracker {
    /// The phase of a new connection.
    pub fn new(config: &HttpConfig) -> Arc<Self> {
        let phase = Mutex::new(HttpPhase::Awaiting(Instant::now() + config.first_byte));
        Arc::new(Self {
            phase,
            request_complete: Notify::new(),
            header: config.header,
            idle: config.idle,
            closed: AtomicBool::new(false),
            head: Mutex::default(),
            tunnel: Mutex::default(),
        })
    }

    /// The connection is taken over: no deadline of HTTP counts any more, and it is open as long as this task runs.
    pub fn start_tunnel(&self, task: JoinHandle<()>) {
        self.set_phase(HttpPhase::Upgraded);
        *lock(&self.tunnel) = Some(task);
    }

    /// The task that took the connection over.
    pub fn take_tunnel(&self) -> Option<JoinHandle<()>> {
        lock(&self.tunnel).take()
    }

    /// Whether the connection was dropped.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Whether the head of the current request has a header of this name, even one that hyper took away. Only for a head
    /// that did not come together with the request before it.
    pub fn head_names(&self, name: &str) -> bool {
        let head = lock(&self.head);
        let end = head.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap_or(head.len());
        head[..end].split(|byte| *byte == b'\n').skip(1).any(|line| {
            line.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name.as_bytes()))
                && line.get(name.len()) == Some(&b':')
        })
    }

    fn keep_head(&self, bytes: &[u8], is_first: bool) {
        let mut head = lock(&self.head);
        if is_first {
            head.clear();
        }
        // hyper refuses a longer head.
        if head.len() + bytes.len() <= MAX_KEPT_HEAD_BYTES {
            head.extend_from_slice(bytes);
        }
    }

    /// The first byte of a request came.
    pub fn head_started(&self) {
        self.set_phase(HttpPhase::Head(Instant::now() + self.header));
    }

    /// The head of a request is complete, and its handler starts.
    pub fn request_started(&self) {
        self.set_phase(HttpPhase::Busy);
        self.request_complete.notify_one();
    }

    /// Resolves when a request has started since the last call.
    pub async fn until_busy(&self) {
        self.request_complete.notified().await;
    }

    /// Whether a request is being handled.
    pub fn is_busy(&self) -> bool {
        matches!(self.current_phase(), HttpPhase::Busy)
    }

    fn response_done(&self) {
        lock(&self.head).clear();
        self.set_phase(HttpPhase::Awaiting(Instant::now() + self.idle));
    }

    fn set_phase(&self, next: HttpPhase) {
        let mut phase = lock(&self.phase);
        if !matches!(*phase, HttpPhase::Upgraded) {
            *phase = next;
        }
    }

    fn current_phase(&self) -> HttpPhase {
        *lock(&self.phase)
    }
}

/// A stream that fails when a deadline of its phase has passed.
pub struct TimeoutStream<S> {
    socket: S,
    phases: Arc<PhaseTracker>,
    /// The timer for reading, created when it is first needed.
    read_timer: Option<Pin<Box<Sleep>>>,
    write_stall: Duration,
    /// The timer of a write that makes no progress.
    write_timer: Option<Pin<Box<Sleep>>>,
}

impl<S> TimeoutStream<S> {
    /// Adds timeouts to a stream.
    pub fn new(socket: S, phases: Arc<PhaseTracker>, write_stall: Duration) -> Self {
        Self { socket, phases, read_timer: None, write_stall, write_timer: None }
    }

    fn deadline_passed(&mut self, cx: &mut Context<'_>, deadline: Instant) -> bool {
        let read_timer = self.read_timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if read_timer.deadline() != deadline {
            read_timer.as_mut().reset(deadline);
        }
        read_timer.as_mut().poll(cx).is_ready()
    }

    /// Passes on the result of a write, or fails when the client read nothing for too long.
    fn check_write_stall<T>(&mut self, cx: &mut Context<'_>, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.write_timer = None;
            return poll;
        }
        let write_stall = self.write_stall;
        let timer = self.write_timer.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + write_stall)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(timed_out("the client takes nothing of the answer")))
    }
}

fn timed_out(what: &'static str) -> io::Error {
    io::Error::new(ErrorKind::TimedOut, what)
}

impl<S: AsyncRead + Unpin> AsyncRead for TimeoutStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // Checked before reading: a client that sends one byte a second always has something to read.
        match self.phases.current_phase() {
            HttpPhase::Busy | HttpPhase::Upgraded => {}
            HttpPhase::Head(deadline) | HttpPhase::Awaiting(deadline) => {
                if self.deadline_passed(cx, deadline) {
                    return Poll::Ready(Err(timed_out("no whole request in time")));
                }
            }
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut self.socket).poll_read(cx, buf);
        let bytes = &buf.filled()[before..];
        if !bytes.is_empty() {
            match self.phases.current_phase() {
                HttpPhase::Awaiting(_) => {
                    self.phases.keep_head(bytes, true);
                    self.phases.head_started();
                }
                HttpPhase::Head(_) => self.phases.keep_head(bytes, false),
                HttpPhase::Busy | HttpPhase::Upgraded => {}
            }
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimeoutStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.socket).poll_write(cx, buf);
        self.check_write_stall(cx, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.socket).poll_write_vectored(cx, bufs);
        self.check_write_stall(cx, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.socket).poll_flush(cx);
        self.check_write_stall(cx, poll)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.socket).poll_shutdown(cx);
        self.check_write_stall(cx, poll)
    }
}

/// The body of a response. When hyper drops it, the connection is idle again.
pub struct TrackedBody {
    body: Body,
    phases: Arc<PhaseTracker>,
}

impl TrackedBody {
    /// Wraps a body.
    pub const fn new(body: Body, phases: Arc<PhaseTracker>) -> Self {
        Self { body, phases }
    }
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        self.phases.response_done();
    }
}

impl HttpBody for TrackedBody {
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
