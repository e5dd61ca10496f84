//! One connection: requests go out in order, answers come back in order, and nobody waits for ever.
//!
//! ```text
//!   Link::ask ──▶ channel ──▶ task: out ──▶ server
//!        ▲                         pending ◀── in
//!        └───────── oneshot ◀──────────┘
//! ```
//!
//! # Laws
//!
//! 1. Each request gets exactly one answer or one [`NoReply`], which says whether the server can have acted on it.
//! 2. A request of which the last byte was not given to the system cannot have been acted on.
//! 3. When an answer is overdue the connection is given up: whatever came later could not be told apart.
//! 4. Who drops the connection says goodbye to the server (the write side is closed) and still hears, for [`CLOSE_TIMEOUT`], what
//!    was under way: a grant may be on its way.

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

/// How long an answer may take that has nothing to wait for.
pub(super) const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection is listened to after goodbye.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// More than this is not taken from callers before some of it is sent.
const MAX_UNSENT_BYTES: usize = 1 << 20;

/// What a connection is made of.
pub(super) trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send + Sync {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send + Sync> ByteStream for T {}
/// See [`ByteStream`].
pub(super) type BoxedStream = Box<dyn ByteStream>;

/// There was no answer.
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

/// The answer to come. It does not hold the connection open.
pub(super) struct ReplyFuture(Option<oneshot::Receiver<Result<Value, NoReply>>>);

impl ReplyFuture {
    pub async fn reply(self) -> Result<Value, NoReply> {
        let gone = |sent| NoReply { sent, why: Arc::new(io::Error::other("the connection is closed")) };
        match self.0 {
            // The task answers everybody; it went without doing so only if its runtime did.
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

    /// Hands a request over. It is sent in the order of these calls; `patience` is how long the answer may take.
    pub fn send_request(&self, bytes: Vec<u8>, patience: Duration) -> ReplyFuture {
        let (answer, from) = oneshot::channel();
        let taken = self.to.send(QueuedRequest { bytes, patience, answer }).is_ok();
        ReplyFuture(taken.then_some(from))
    }
}

/// A request on its way or answered soon.
struct InFlightRequest {
    /// The place of its last byte among all that this connection sent.
    ends: u64,
    /// When its answer is overdue.
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
    /// How much of `out` the system has.
    written: usize,
    /// How many bytes were put into `out` since the beginning.
    total: u64,
    flushed: bool,
    /// Somebody can still ask.
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

    /// Until nobody asks and everybody is answered, or the connection breaks.
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
                        alarm = None; // what is due is due earlier now
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

    /// Takes a request, and all others that are there.
    fn queue_requests(&mut self, first: QueuedRequest) {
        let now = self.clock.now();
        let mut next = Some(first);
        while let Some(QueuedRequest { bytes, patience, answer }) = next {
            // Nobody waits for it and nothing of it was sent: it does not happen.
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

    /// Law 4. What was not sent yet is sent before, within the same time.
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
        let said = crate::renew::until(&*self.clock, until, said).await;
        said.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))?;
        self.out.clear();
        self.written = 0;
        self.flushed = true;
        Ok(())
    }
}

/// Sends some of it and says how much; with nothing to send, flushes. Dropping it loses nothing.
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
