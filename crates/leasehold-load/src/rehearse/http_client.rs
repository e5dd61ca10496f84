//! How one buyer asks: over a connection of its own, and again when no answer came.
//!
//! # Laws
//!
//! 1. What may have happened is asked again with the same Idempotency-Key, until there is an answer or patience ends.
//!    Then it is unknown, and said to be: never taken for a yes or a no.
//! 2. The moment of asking is taken before the request goes out, the moment of hearing after the answer came in. Whatever
//!    the server decided, it decided between the two.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::timeout;

use super::counters::SharedCounters;
use super::deployment::Deployment;
use super::http_connection::HttpConnection;
use crate::bench::stop_signal::StopSignal;
use leasehold_support::time;

/// A connection that says nothing for so long is given up.
const SILENCE: Duration = Duration::from_secs(10);
/// The pause before a request is made again, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// What all buyers share.
#[derive(Clone)]
pub struct RehearsalContext {
    /// Where to ask.
    pub place: Arc<Deployment>,
    /// What came of it.
    pub tally: SharedCounters,
    /// Whether to go on.
    pub stop: StopSignal,
    /// How long to ask for an answer that does not come.
    pub patience: Duration,
}

/// One request.
#[derive(Clone, Copy, Debug, Default)]
pub struct HttpRequest<'a> {
    /// `POST`, `GET`, `PUT`.
    pub method: &'static str,
    /// From `/v1` on.
    pub path: &'a str,
    /// The same for each time the same thing is asked.
    pub idem: Option<&'a str>,
    /// The secret of a hold.
    pub hold_key: Option<&'a str>,
    /// Of a payment provider.
    pub signature: Option<&'a str>,
    /// JSON, or nothing.
    pub body: &'a str,
}

/// What came of a request.
#[derive(Debug)]
pub struct HttpResponse {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
    /// Just before the request that was answered went out.
    pub asked: Instant,
    /// Just after the answer came in.
    pub heard: Instant,
}

/// Patience ended without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutcomeUnknown;

/// One who asks.
pub struct HttpClient {
    counter: RehearsalContext,
    wire: Option<HttpConnection>,
    out: String,
}

impl HttpClient {
    /// Nobody is connected yet.
    pub const fn new(counter: RehearsalContext) -> Self {
        Self { counter, wire: None, out: String::new() }
    }

    /// Connects, if it is not: so that a crowd stands at the door before it opens.
    pub async fn connect(&mut self) -> std::io::Result<()> {
        if self.wire.is_none() {
            self.wire = Some(HttpConnection::new(self.counter.place.connect().await?));
        }
        Ok(())
    }

    /// Asks until there is an answer, or patience ends.
    pub async fn ask(&mut self, ask: HttpRequest<'_>) -> Result<HttpResponse, OutcomeUnknown> {
        let began = time::stopwatch();
        let mut pause = FIRST_PAUSE;
        let mut retried = false;
        loop {
            let once = self.once(ask).await;
            let waited = time::stopwatch().saturating_duration_since(began);
            match once {
                // It did not take effect (503, 429), or nobody knows (504): either way the same is asked again.
                Ok(answer) if !matches!(answer.status, 429 | 503 | 504) => {
                    self.counter.tally.change(|tally| tally.answered(waited, retried));
                    return Ok(answer);
                }
                Ok(answer) => self.counter.tally.change(|tally| tally.again(answer.status)),
                Err(_) => self.counter.tally.change(|tally| tally.lost += 1),
            }
            retried = true;
            if waited >= self.counter.patience || self.counter.stop.is_asked() {
                return Err(OutcomeUnknown);
            }
            self.counter.stop.within(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    /// Asks once.
    async fn once(&mut self, ask: HttpRequest<'_>) -> std::io::Result<HttpResponse> {
        self.write(ask);
        let talk = async {
            self.connect().await?;
            let wire = self.wire.as_mut().ok_or(std::io::ErrorKind::NotConnected)?;
            let asked = time::stopwatch();
            let (status, range, keep) = wire.exchange(self.out.as_bytes()).await?;
            let heard = time::stopwatch();
            let body = wire.body(range).to_vec();
            Ok((HttpResponse { status, body, asked, heard }, keep))
        };
        let done = timeout(SILENCE, talk).await.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
        match done {
            Ok((answer, keep)) => {
                if !keep {
                    self.wire = None;
                }
                Ok(answer)
            }
            Err(error) => {
                self.wire = None;
                Err(error)
            }
        }
    }

    fn write(&mut self, ask: HttpRequest<'_>) {
        let Deployment { prefix, head, .. } = &*self.counter.place;
        let out = &mut self.out;
        out.clear();
        // Writing to a String cannot fail.
        let _ = write!(out, "{} {prefix}{} HTTP/1.1\r\n{head}", ask.method, ask.path);
        let headers = [
            ("Idempotency-Key", ask.idem),
            ("Leasehold-Hold-Key", ask.hold_key),
            ("Leasehold-Signature", ask.signature),
        ];
        for (name, value) in headers {
            if let Some(value) = value {
                let _ = write!(out, "{name}: {value}\r\n");
            }
        }
        if ask.method == "GET" {
            out.push_str("\r\n");
        } else {
            let _ =
                write!(out, "Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{}", ask.body.len(), ask.body);
        }
    }
}
