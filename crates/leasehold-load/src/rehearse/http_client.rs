//! The HTTP client of one buyer: one connection, and retries when no response comes.
//!
//! # Laws
//!
//! 1. A request that may have taken effect is retried with the same Idempotency-Key, until there is a response or the
//!    retry time is over. Then its outcome is unknown: never taken for success or refusal.
//! 2. `sent_at` is read before the request is written, `received_at` after the response was read. The server decided
//!    between the two.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::api_types::ApiProblem;
use super::context::RehearsalContext;
use super::deployment::Deployment;
use super::http_connection::HttpConnection;
use leasehold_support::exit::{Failure, UNAVAILABLE, UNEXPECTED, UNKNOWN, USAGE};
use leasehold_support::{output, time};

/// A connection without a response for this long is closed.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause before a retry: it starts at the first value and doubles up to the second.
const FIRST_RETRY_PAUSE: Duration = Duration::from_millis(50);
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, Default)]
pub struct HttpRequest<'a> {
    /// `POST`, `GET` or `PUT`.
    pub method: &'static str,
    /// The path from `/v1` on.
    pub path: &'a str,
    /// The same for every retry of a request.
    pub idempotency_key: Option<&'a str>,
    pub hold_key: Option<&'a str>,
    /// The signature of a payment provider.
    pub signature: Option<&'a str>,
    /// JSON, or empty.
    pub body: &'a str,
}

impl<'a> HttpRequest<'a> {
    pub fn get(path: &'a str) -> Self {
        Self { method: "GET", path, ..Self::default() }
    }

    pub fn post(path: &'a str, body: &'a str) -> Self {
        Self { method: "POST", path, body, ..Self::default() }
    }
}

#[derive(Debug)]
pub struct HttpResponse {
    pub status: u16,
    pub body: Vec<u8>,
    /// Just before the answered request was written.
    pub sent_at: Instant,
    /// Just after the response was read.
    pub received_at: Instant,
}

/// The retry time is over, and no response came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutcomeUnknown;

/// One connection, opened on demand.
pub struct HttpClient {
    context: RehearsalContext,
    connection: Option<HttpConnection>,
    write_buffer: String,
}

impl HttpClient {
    /// A client that is not connected yet.
    pub const fn new(context: RehearsalContext) -> Self {
        Self { context, connection: None, write_buffer: String::new() }
    }

    /// Connects if there is no connection.
    pub async fn connect(&mut self) -> std::io::Result<()> {
        if self.connection.is_none() {
            self.connection = Some(HttpConnection::new(self.context.deployment.connect().await?));
        }
        Ok(())
    }

    /// Sends a request, with retries, until there is a response or the retry time is over.
    pub async fn send(&mut self, request: HttpRequest<'_>) -> Result<HttpResponse, OutcomeUnknown> {
        let began = time::stopwatch();
        let mut pause = FIRST_RETRY_PAUSE;
        let mut retried = false;
        loop {
            let result = self.send_once(request).await;
            let waited = time::stopwatch().saturating_duration_since(began);
            match result {
                // 429 and 503 mean no effect, 504 means unknown: all three are retried.
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

    /// Sends a GET and parses the JSON of the response.
    ///
    /// # Errors
    ///
    /// As of [`Self::send_required`], or the body is something else.
    pub async fn get_json<T: DeserializeOwned>(&mut self, path: &str, what: &str) -> anyhow::Result<T> {
        self.send_for_json(HttpRequest::get(path), what).await
    }

    pub async fn send_for_json<T: DeserializeOwned>(
        &mut self,
        request: HttpRequest<'_>,
        what: &str,
    ) -> anyhow::Result<T> {
        let response = self.send_required(request, what).await?;
        serde_json::from_slice(&response.body).with_context(|| format!("{what}: the server answered something else"))
    }

    /// Sends a request that must succeed. `what` names it in errors.
    ///
    /// # Errors
    ///
    /// No response, or a status other than 2xx.
    pub async fn send_required(&mut self, request: HttpRequest<'_>, what: &str) -> anyhow::Result<HttpResponse> {
        let no_answer = |_| {
            let code = if request.method == "GET" { UNAVAILABLE } else { UNKNOWN };
            Failure::coded(code, format!("{what}: the server did not answer"))
        };
        let response = self.send(request).await.map_err(no_answer)?;
        if (200..300).contains(&response.status) {
            return Ok(response);
        }
        let problem: ApiProblem = serde_json::from_slice(&response.body).unwrap_or_default();
        let why = if problem.detail.is_empty() {
            format!("status {}", response.status)
        } else {
            output::plain(&problem.detail)
        };
        let code = match response.status {
            401 | 403 | 404 | 400 => USAGE,
            _ => UNEXPECTED,
        };
        let hint = if response.status == 401 { ": give the key of a box office in LEASEHOLD_API_KEY" } else { "" };
        Err(Failure::coded(code, format!("{what}: {why}{hint}")))
    }

    /// Sends a request once. An error closes the connection.
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

/// Escapes text for a path segment.
pub fn escape_path(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}
