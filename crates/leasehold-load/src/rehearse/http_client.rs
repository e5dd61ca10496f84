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
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause before a request is made again, at first and at most.
const FIRST_RETRY_PAUSE: Duration = Duration::from_millis(50);
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// What all buyers share.
#[derive(Clone)]
pub struct RehearsalContext {
    /// Where to ask.
    pub deployment: Arc<Deployment>,
    /// What came of it.
    pub counters: SharedCounters,
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
    pub idempotency_key: Option<&'a str>,
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
    pub sent_at: Instant,
    /// Just after the answer came in.
    pub received_at: Instant,
}

/// Patience ended without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutcomeUnknown;

/// One who asks.
pub struct HttpClient {
    context: RehearsalContext,
    connection: Option<HttpConnection>,
    write_buffer: String,
}

impl HttpClient {
    /// Nobody is connected yet.
    pub const fn new(context: RehearsalContext) -> Self {
        Self { context, connection: None, write_buffer: String::new() }
    }

    /// Connects, if it is not: so that a crowd stands at the door before it opens.
    pub async fn connect(&mut self) -> std::io::Result<()> {
        if self.connection.is_none() {
            self.connection = Some(HttpConnection::new(self.context.deployment.connect().await?));
        }
        Ok(())
    }

    /// Asks until there is an answer, or patience ends.
    pub async fn send(&mut self, request: HttpRequest<'_>) -> Result<HttpResponse, OutcomeUnknown> {
        let began = time::stopwatch();
        let mut pause = FIRST_RETRY_PAUSE;
        let mut retried = false;
        loop {
            let result = self.send_once(request).await;
            let waited = time::stopwatch().saturating_duration_since(began);
            match result {
                // It did not take effect (503, 429), or nobody knows (504): either way the same is asked again.
                Ok(response) if !matches!(response.status, 429 | 503 | 504) => {
                    self.context.counters.update(|counters| counters.record_wait(waited, retried));
                    return Ok(response);
                }
                Ok(response) => self.context.counters.update(|counters| counters.count_not_now(response.status)),
                Err(_) => self.context.counters.update(|counters| counters.lost += 1),
            }
            retried = true;
            if waited >= self.context.patience || self.context.stop.is_requested() {
                return Err(OutcomeUnknown);
            }
            self.context.stop.sleep_or_stop(pause).await;
            pause = (pause * 2).min(MAX_RETRY_PAUSE);
        }
    }

    /// Asks once.
    async fn send_once(&mut self, request: HttpRequest<'_>) -> std::io::Result<HttpResponse> {
        self.write_request(request);
        let exchange = async {
            self.connect().await?;
            let connection = self.connection.as_mut().ok_or(std::io::ErrorKind::NotConnected)?;
            let sent_at = time::stopwatch();
            let (status, range, keep_alive) = connection.exchange(self.write_buffer.as_bytes()).await?;
            let received_at = time::stopwatch();
            let body = connection.body(range).to_vec();
            Ok((HttpResponse { status, body, sent_at, received_at }, keep_alive))
        };
        let done =
            timeout(RESPONSE_TIMEOUT, exchange).await.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
        match done {
            Ok((response, keep_alive)) => {
                if !keep_alive {
                    self.connection = None;
                }
                Ok(response)
            }
            Err(error) => {
                self.connection = None;
                Err(error)
            }
        }
    }

    fn write_request(&mut self, request: HttpRequest<'_>) {
        let Deployment { path_prefix, common_headers, .. } = &*self.context.deployment;
        let write_buffer = &mut self.write_buffer;
        write_buffer.clear();
        // Writing to a String cannot fail.
        let _ = write!(write_buffer, "{} {path_prefix}{} HTTP/1.1\r\n{common_headers}", request.method, request.path);
        let headers = [
            ("Idempotency-Key", request.idempotency_key),
            ("Leasehold-Hold-Key", request.hold_key),
            ("Leasehold-Signature", request.signature),
        ];
        for (name, value) in headers {
            if let Some(value) = value {
                let _ = write!(write_buffer, "{name}: {value}\r\n");
            }
        }
        if request.method == "GET" {
            write_buffer.push_str("\r\n");
        } else {
            let _ = write!(
                write_buffer,
                "Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
                request.body.len(),
                request.body
            );
        }
    }
}
