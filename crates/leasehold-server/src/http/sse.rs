//! Server-sent events: what the watch of leases and the stream of an event have in common.
//!
//! The first bytes go out at once, a quiet stream sends a comment now and then, and the last message says why the stream
//! ends.

use std::convert::Infallible;
use std::fmt::Display;
use std::future::Future;
use std::time::Duration;

use axum::body::Body;
use futures_util::stream;
use hyper::Response;
use hyper::header::{self, HeaderName, HeaderValue};
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::problem::Problem;

/// How often an open stream checks whether its key or ticket is still valid.
pub const REVOCATION_CHECK_EVERY: Duration = Duration::from_secs(1);

/// Where the messages of one stream come from.
pub trait EventSource: Send + 'static {
    /// Waits for the next text to send. Dropped when the server stops.
    ///
    /// # Errors
    ///
    /// Why the stream ends.
    fn next_text(&mut self) -> impl Future<Output = Result<String, Problem>> + Send;
}

/// When a quiet stream sends its next heartbeat.
pub struct Heartbeat {
    every: Duration,
    due: Instant,
}

impl Heartbeat {
    /// The first heartbeat is due after `every`.
    pub fn new(every: Duration) -> Self {
        Self { every, due: Instant::now() + every }
    }

    /// An event was sent: the next heartbeat is due after the full interval.
    pub fn restart(&mut self) {
        self.due = Instant::now() + self.every;
    }

    /// How long a quiet stream may wait before it checks its credentials or sends a heartbeat.
    pub fn next_check(&self) -> Instant {
        (Instant::now() + REVOCATION_CHECK_EVERY).min(self.due)
    }

    /// The comment to send, if one is due.
    pub fn text_if_due(&mut self) -> Option<String> {
        if Instant::now() < self.due {
            return None;
        }
        self.restart();
        Some(": still here\n\n".into())
    }
}

/// A response that sends what `source` produces, until `source` fails or the server stops.
pub fn stream_response(source: impl EventSource, stop: CancellationToken) -> Response<Body> {
    let events = stream::unfold(StreamState::Begin(Box::new(source), stop), |state| async {
        let (text, next) = state.next().await?;
        Some((Ok::<_, Infallible>(text), next))
    });
    let mut response = Response::new(Body::from_stream(events));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Proxies that buffer a response before passing it on would delay every event.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

enum StreamState<S> {
    Begin(Box<S>, CancellationToken),
    Going(Box<S>, CancellationToken),
    Ended,
}

impl<S: EventSource> StreamState<S> {
    /// The next text to send; none at the end.
    async fn next(self) -> Option<(String, Self)> {
        match self {
            // The headers reach the client with the first bytes of the body, so some are sent at once.
            Self::Begin(source, stop) => Some(("retry: 1000\n\n".into(), Self::Going(source, stop))),
            Self::Going(mut source, stop) => {
                let text = tokio::select! {
                    biased;
                    () = stop.cancelled() => Err(Problem::shutting_down()),
                    text = source.next_text() => text,
                };
                match text {
                    Ok(text) => Some((text, Self::Going(source, stop))),
                    Err(problem) => Some((end_event(&problem), Self::Ended)),
                }
            }
            Self::Ended => None,
        }
    }
}

/// Appends one event. JSON has no raw line breaks, so one line of data is always enough.
pub fn push_event(text: &mut String, id: impl Display, event: &str, data: &str) {
    text.push_str(&format!("id: {id}\nevent: {event}\ndata: {data}\n\n"));
}

/// Why the stream ends. Not named `error`: browsers use that name for the connection itself.
fn end_event(problem: &Problem) -> String {
    let data = json!({"code": problem.code(), "detail": problem.detail()});
    format!("event: end\ndata: {data}\n\n")
}
