//! One connection: requests go out in order, replies come back in order, and each has a deadline.
//!
//! ```text
//!   send_request ──▶ channel ──▶ ConnectionTask: out ──▶ server
//!        ▲                                pending ◀── in
//!        └──────────── oneshot ◀─────────────┘
//! ```
//!
//! # Laws
//!
//! 1. Each request gets exactly one reply or one [`NoReply`], which says whether the server can have acted on it.
//! 2. If the last byte of a request was not given to the system, the server cannot have acted on it.
//! 3. When a reply is overdue the connection is closed: later replies could not be matched to their requests.
//! 4. Dropping the connection closes its write side. Replies that are under way are still read, for [`CLOSE_TIMEOUT`]:
//!    one may be a grant.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::Time;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{mpsc, oneshot};

use super::resp::{RespReader, Value};
use crate::clock::Clock;

/// How long the reply to a request may take that does not wait on the server.
pub(super) const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long replies are still read after the write side was closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Above this many unsent bytes no more requests are taken from callers.
const MAX_UNSENT_BYTES: usize = 1 << 20;

/// TCP, or TLS over it.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send + Sync {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send + Sync> ByteStream for T {}
/// See [`ByteStream`].
pub(crate) type BoxedStream = Box<dyn ByteStream>;

/// There was no reply.
#[derive(Clone, Debug)]
pub(super) struct NoReply {
    /// The server may have acted on the request.
    pub sent: bool,
    pub why: Arc<io::Error>,
}

/// A connection that is open, as far as we know.
#[derive(Debug)]
pub(super) struct RemoteConnection {
    to: mpsc::UnboundedSender<QueuedRequest>,
}

struct QueuedRequest {
    bytes: Vec<u8>,
    patience: Duration,
    answer: oneshot::Sender<Result<Value, NoReply>>,
}

/// The reply to come. It does not keep the connection open.
pub(super) struct ReplyFuture(Option<oneshot::Receiver<Result<Value, NoReply>>>);

impl ReplyFuture {
    pub async fn reply(self) -> Result<Value, NoReply> {
        let gone = |sent| NoReply { sent, why: Arc::new(io::Error::other("the connection is closed")) };
        match self.0 {
            // The task always sends a result, unless its runtime was shut down.
            Some(from) => from.await.unwrap_or_else(|_| Err(gone(true))),
            None => Err(gone(false)),
        }
    }
}

impl RemoteConnection {
    /// Starts the task of a connection. Bytes that the reader holds already come first.
    pub fn start(
        stream: BoxedStream,
        reader: RespReader,
        clock: Arc<dyn Clock>,
        runtime: &tokio::runtime::Handle,
    ) -> Self {
        let (to, from) = mpsc::unbounded_channel();
        let (input, output) = tokio::io::split(stream);
        let task = ConnectionTask {
            input,
            output,
            from,
            clock,
            reader,
            out: Vec::new(),
            written: 0,
            total: 0,
            flushed: true,
            open: true,
            pending: VecDeque::new(),
        };
        runtime.spawn(task.run());
        Self { to }
    }

    /// Whether the connection is known to be gone.
    pub fn is_gone(&self) -> bool {
        self.to.is_closed()
    }

    /// Queues a request. Requests are sent in the order of these calls; `patience` is how long the reply may take.
    pub fn send_request(&self, bytes: Vec<u8>, patience: Duration) -> ReplyFuture {
        let (answer, from) = oneshot::channel();
        let taken = self.to.send(QueuedRequest { bytes, patience, answer }).is_ok();
        ReplyFuture(taken.then_some(from))
    }
}

/// A request that waits for its reply.
struct InFlightRequest {
    /// The offset of its last byte among all bytes of this connection.
    ends: u64,
    /// When its reply is overdue.
    due: Time,
    answer: oneshot::Sender<Result<Value, NoReply>>,
}

struct ConnectionTask {
    input: ReadHalf<BoxedStream>,
    output: WriteHalf<BoxedStream>,
    from: mpsc::UnboundedReceiver<QueuedRequest>,
    clock: Arc<dyn Clock>,
    reader: RespReader,
    out: Vec<u8>,
    /// How much of `out` was given to the system.
    written: usize,
    /// How many bytes were put into `out` since the beginning.
    total: u64,
    flushed: bool,
    /// The [`RemoteConnection`] still exists.
    open: bool,
    pending: VecDeque<InFlightRequest>,
}

impl ConnectionTask {
    async fn run(mut self) {
        let Err(why) = self.run_until_closed().await else { return };
        let why = Arc::new(why);
        self.from.close();
        let sent_up_to = self.total - u64::try_from(self.out.len() - self.written).unwrap_or(0);
        for pending in self.pending.drain(..) {
            let sent = pending.ends <= sent_up_to;
            let _ = pending.answer.send(Err(NoReply { sent, why: why.clone() }));
        }
        while let Ok(ask) = self.from.try_recv() {
            let _ = ask.answer.send(Err(NoReply { sent: false, why: why.clone() }));
        }
    }

    /// Runs until the handle is dropped and all replies have come, or the connection breaks.
    async fn run_until_closed(&mut self) -> io::Result<()> {
        let mut alarm: Option<Pin<Box<dyn Future<Output = ()> + Send>>> = None;
        self.complete_replies()?;
        loop {
            if !self.open && self.pending.is_empty() && self.written == self.out.len() {
                return Ok(());
            }
            if let (None, Some(first)) = (&alarm, self.pending.front()) {
                alarm = Some(self.clock.sleep_until(first.due));
            }
            let rest = &self.out[self.written..];
            let to_send = !rest.is_empty() || !self.flushed;
            tokio::select! {
                ask = self.from.recv(), if self.open && self.out.len() < MAX_UNSENT_BYTES => match ask {
                    Some(ask) => self.queue_requests(ask),
                    None => {
                        self.close_write_side().await?;
                        alarm = None; // the deadlines are earlier now
                    }
                },
                sent = send(&mut self.output, rest), if to_send => match sent? {
                    0 => self.flushed = true,
                    count => self.note_written(count),
                },
                read = self.input.read_buf(self.reader.room()) => {
                    if read? == 0 {
                        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection"));
                    }
                    self.complete_replies()?;
                }
                () = wait_for_alarm(&mut alarm), if alarm.is_some() => {
                    alarm = None;
                    if self.pending.front().is_some_and(|first| first.due <= self.clock.now()) {
                        return Err(io::Error::new(io::ErrorKind::TimedOut, "the server did not answer in time"));
                    }
                }
            }
        }
    }

    /// Queues this request, and all others in the channel.
    fn queue_requests(&mut self, first: QueuedRequest) {
        let now = self.clock.now();
        let mut next = Some(first);
        while let Some(QueuedRequest { bytes, patience, answer }) = next {
            // The caller is gone and nothing was sent: the request is dropped.
            if !answer.is_closed() {
                self.out.extend_from_slice(&bytes);
                self.total = self.total.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
                self.pending.push_back(InFlightRequest { ends: self.total, due: now.plus(patience), answer });
            }
            next = if self.out.len() < MAX_UNSENT_BYTES { self.from.try_recv().ok() } else { None };
        }
    }

    fn note_written(&mut self, count: usize) {
        self.written += count;
        self.flushed = false;
        if self.written == self.out.len() {
            self.out.clear();
            self.written = 0;
        }
    }

    fn complete_replies(&mut self) -> io::Result<()> {
        let malformed = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        while let Some(value) = self.reader.next().map_err(malformed)? {
            if matches!(value, Value::Push(_)) {
                continue;
            }
            let Some(first) = self.pending.pop_front() else {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the server answered what nobody asked"));
            };
            let _ = first.answer.send(Ok(value));
        }
        Ok(())
    }

    /// Law 4. Unsent requests are sent first, within the same time.
    async fn close_write_side(&mut self) -> io::Result<()> {
        self.open = false;
        let until = self.clock.now().plus(CLOSE_TIMEOUT);
        for pending in &mut self.pending {
            pending.due = pending.due.min(until);
        }
        let rest = self.out[self.written..].to_vec();
        let said = async {
            self.output.write_all(&rest).await?;
            self.output.shutdown().await
        };
        let said = crate::clock::until(&*self.clock, until, said).await;
        said.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))?;
        self.out.clear();
        self.written = 0;
        self.flushed = true;
        Ok(())
    }
}

/// Sends some bytes and returns how many; without bytes it flushes. Cancel safe.
async fn send(output: &mut WriteHalf<BoxedStream>, bytes: &[u8]) -> io::Result<usize> {
    if bytes.is_empty() {
        output.flush().await?;
        return Ok(0);
    }
    match output.write(bytes).await? {
        0 => Err(io::ErrorKind::WriteZero.into()),
        count => Ok(count),
    }
}

async fn wait_for_alarm(alarm: &mut Option<Pin<Box<dyn Future<Output = ()> + Send>>>) {
    match alarm {
        Some(alarm) => alarm.await,
        None => std::future::pending().await,
    }
}
