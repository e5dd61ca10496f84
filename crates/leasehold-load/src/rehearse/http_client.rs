//! How one buyer asks: over a connection of its own, and again when no answer came.
//!
//! # Laws
//!
//! 1. What may have happened is asked again with the same Idempotency-Key, until there is an answer or patience ends.
//!    Then it is unknown, and said to be: never taken for a yes or a no.
//! 2. The moment of asking is taken before the request goes out, the moment of hearing after the answer came in. Whatever
//!    the server decided, it decided between the two.

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

/// A connection that says nothing for so long is given up.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause before a request is made again, at first and at most.
const FIRST_RETRY_PAUSE: Duration = Duration::from_millis(50);
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(1);

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

impl<'a> HttpRequest<'a> {
    /// A GET without a body.
    pub fn get(path: &'a str) -> Self {
        Self { method: "GET", path, ..Self::default() }
    }

    /// A POST of JSON.
    pub fn post(path: &'a str, body: &'a str) -> Self {
        Self { method: "POST", path, body, ..Self::default() }
    }
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

    /// Reads JSON.
    ///
    /// # Errors
    ///
    /// What came instead.
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

    /// Asks for what cannot be done without.
    ///
    /// # Errors
    ///
    /// Nobody answered, or the answer is no.
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

/// Text in a path.
pub fn escape_path(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}
