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
//! 1. Each request gets exactly one answer or one [`Broken`], which says whether the server can have acted on it.
//! 2. A request of which the last byte was not given to the system cannot have been acted on.
//! 3. When an answer is overdue the connection is given up: whatever came later could not be told apart.
//! 4. Who drops the link says goodbye to the server (the write side is closed) and still hears, for [`FAREWELL`], what
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

use super::reply::{Reader, Value};
use crate::clock::Clock;

/// How long an answer may take that has nothing to wait for.
pub(super) const REPLY: Duration = Duration::from_secs(5);
/// How long a connection is listened to after goodbye.
const FAREWELL: Duration = Duration::from_secs(2);
/// More than this is not taken from callers before some of it is sent.
const MOST_OUT: usize = 1 << 20;

/// What a connection is made of.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send + Sync {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send + Sync> Stream for T {}
/// See [`Stream`].
pub(super) type Wire = Box<dyn Stream>;

/// There was no answer.
#[derive(Clone, Debug)]
pub(super) struct Broken {
    /// The server may have acted on the request.
    pub sent: bool,
    pub why: Arc<io::Error>,
}

/// A connection that is open, as far as we know.
#[derive(Debug)]
pub(super) struct Link {
    to: mpsc::UnboundedSender<Ask>,
}

struct Ask {
    bytes: Vec<u8>,
    patience: Duration,
    answer: oneshot::Sender<Result<Value, Broken>>,
}

/// The answer to come. It does not hold the link open.
pub(super) struct Answering(Option<oneshot::Receiver<Result<Value, Broken>>>);

impl Answering {
    pub async fn heard(self) -> Result<Value, Broken> {
        let gone = |sent| Broken { sent, why: Arc::new(io::Error::other("the connection is closed")) };
        match self.0 {
            // The task answers everybody; it went without doing so only if its runtime did.
            Some(from) => from.await.unwrap_or_else(|_| Err(gone(true))),
            None => Err(gone(false)),
        }
    }
}

impl Link {
    /// Starts the task of a connection. Bytes that the reader holds already come first.
    pub fn start(wire: Wire, reader: Reader, clock: Arc<dyn Clock>, runtime: &tokio::runtime::Handle) -> Self {
        let (to, from) = mpsc::unbounded_channel();
        let (input, output) = tokio::io::split(wire);
        let task = Task {
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
    pub fn ask(&self, bytes: Vec<u8>, patience: Duration) -> Answering {
        let (answer, from) = oneshot::channel();
        let taken = self.to.send(Ask { bytes, patience, answer }).is_ok();
        Answering(taken.then_some(from))
    }
}

/// A request on its way or answered soon.
struct Pending {
    /// The place of its last byte among all that this connection sent.
    ends: u64,
    /// When its answer is overdue.
    due: Time,
    answer: oneshot::Sender<Result<Value, Broken>>,
}

struct Task {
    input: ReadHalf<Wire>,
    output: WriteHalf<Wire>,
    from: mpsc::UnboundedReceiver<Ask>,
    clock: Arc<dyn Clock>,
    reader: Reader,
    out: Vec<u8>,
    /// How much of `out` the system has.
    written: usize,
    /// How many bytes were put into `out` since the beginning.
    total: u64,
    flushed: bool,
    /// Somebody can still ask.
    open: bool,
    pending: VecDeque<Pending>,
}

impl Task {
    async fn run(mut self) {
        let Err(why) = self.converse().await else { return };
        let why = Arc::new(why);
        self.from.close();
        let sent_up_to = self.total - u64::try_from(self.out.len() - self.written).unwrap_or(0);
        for pending in self.pending.drain(..) {
            let sent = pending.ends <= sent_up_to;
            let _ = pending.answer.send(Err(Broken { sent, why: why.clone() }));
        }
        while let Ok(ask) = self.from.try_recv() {
            let _ = ask.answer.send(Err(Broken { sent: false, why: why.clone() }));
        }
    }

    /// Until nobody asks and everybody is answered, or the connection breaks.
    async fn converse(&mut self) -> io::Result<()> {
        let mut alarm: Option<Pin<Box<dyn Future<Output = ()> + Send>>> = None;
        self.answer_all()?;
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
                ask = self.from.recv(), if self.open && self.out.len() < MOST_OUT => match ask {
                    Some(ask) => self.take(ask),
                    None => {
                        self.say_goodbye().await?;
                        alarm = None; // what is due is due earlier now
                    }
                },
                sent = send(&mut self.output, rest), if to_send => match sent? {
                    0 => self.flushed = true,
                    count => self.wrote(count),
                },
                read = self.input.read_buf(self.reader.room()) => {
                    if read? == 0 {
                        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection"));
                    }
                    self.answer_all()?;
                }
                () = ring(&mut alarm), if alarm.is_some() => {
                    alarm = None;
                    if self.pending.front().is_some_and(|first| first.due <= self.clock.now()) {
                        return Err(io::Error::new(io::ErrorKind::TimedOut, "the server did not answer in time"));
                    }
                }
            }
        }
    }

    /// Takes a request, and all others that are there.
    fn take(&mut self, first: Ask) {
        let now = self.clock.now();
        let mut next = Some(first);
        while let Some(Ask { bytes, patience, answer }) = next {
            // Nobody waits for it and nothing of it was sent: it does not happen.
            if !answer.is_closed() {
                self.out.extend_from_slice(&bytes);
                self.total = self.total.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
                self.pending.push_back(Pending { ends: self.total, due: now.plus(patience), answer });
            }
            next = if self.out.len() < MOST_OUT { self.from.try_recv().ok() } else { None };
        }
    }

    fn wrote(&mut self, count: usize) {
        self.written += count;
        self.flushed = false;
        if self.written == self.out.len() {
            self.out.clear();
            self.written = 0;
        }
    }

    fn answer_all(&mut self) -> io::Result<()> {
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
    async fn say_goodbye(&mut self) -> io::Result<()> {
        self.open = false;
        let until = self.clock.now().plus(FAREWELL);
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
async fn send(output: &mut WriteHalf<Wire>, bytes: &[u8]) -> io::Result<usize> {
    if bytes.is_empty() {
        output.flush().await?;
        return Ok(0);
    }
    match output.write(bytes).await? {
        0 => Err(io::ErrorKind::WriteZero.into()),
        count => Ok(count),
    }
}

async fn ring(alarm: &mut Option<Pin<Box<dyn Future<Output = ()> + Send>>>) {
    match alarm {
        Some(alarm) => alarm.await,
        None => std::future::pending().await,
    }
}
