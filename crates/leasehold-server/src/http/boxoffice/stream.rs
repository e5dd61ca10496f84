//! `GET /v1/events/{e}/stream`: what happens at an event, as server-sent events.
//!
//! Each has the number of its entry as id, and numbers have no gap: a client that comes back with the last one it saw
//! goes on from there. Without a number, or with one that is not known, a `reset` with the whole comes first.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use futures_util::stream;
use hyper::Response;
use hyper::header::{self, HeaderName, HeaderValue};
use leasehold_boxoffice::model::EventId;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::{BoxOfficeRequest, query_number};
use crate::api::boxoffice::availability_json;
use crate::boxoffice::feed::Feed;
use crate::http::App;
use crate::http::problem::Problem;
use crate::http::routes::Call;
use crate::service::{Denial, Verb};

/// How often a quiet stream looks whether its key still stands.
const LOOK: Duration = Duration::from_secs(1);

/// `GET /v1/events/{e}/stream`
pub async fn stream(call: Call) -> Result<Response<Body>, Problem> {
    let request = BoxOfficeRequest::authorize(&call, Verb::SeeEvent)?;
    let [since] = call.query(["since"])?;
    let event = request.event(&call)?;
    let last = super::single_header(&call, "last-event-id", "Last-Event-ID")?.map(str::to_owned).or(since);
    let since = query_number(last.filter(|text| !text.is_empty()), "Last-Event-ID (or since)")?;
    let now = request.office().availability(&event).await?.seq;
    // A number from the future is of another ledger.
    let since = since.filter(|since| *since <= now);
    let feed = request.boxoffice.feed(&event);
    let (head, app) = (feed.subscribe(), call.app.clone());
    let quiet_until = Instant::now() + app.config.heartbeat;
    let teller = Teller { app, request, event, feed, head, seen: since, quiet_until, look_again: Instant::now() };
    let events = stream::unfold(State::Begin(Box::new(teller)), |state| async {
        let (text, next) = state.next().await?;
        Some((Ok::<_, Infallible>(text), next))
    });
    let mut response = Response::new(Body::from_stream(events));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok(response)
}

enum State {
    Begin(Box<Teller>),
    Going(Box<Teller>),
    Ended,
}

struct Teller {
    app: App,
    request: BoxOfficeRequest,
    event: EventId,
    feed: Arc<Feed>,
    head: watch::Receiver<u64>,
    /// The last number told; none before the whole was.
    seen: Option<u64>,
    quiet_until: Instant,
    look_again: Instant,
}

impl State {
    async fn next(self) -> Option<(String, Self)> {
        match self {
            // Headers reach the client with the first bytes of the body, so there are some at once.
            Self::Begin(teller) => Some(("retry: 1000\n\n".into(), Self::Going(teller))),
            Self::Going(mut teller) => match teller.next().await {
                Ok(text) => Some((text, Self::Going(teller))),
                Err(problem) => Some((last_words(&problem), Self::Ended)),
            },
            Self::Ended => None,
        }
    }
}

impl Teller {
    async fn next(&mut self) -> Result<String, Problem> {
        let stop = self.app.stop.clone();
        tokio::select! {
            biased;
            () = stop.cancelled() => Err(Problem::shutting_down()),
            text = self.tell() => text,
        }
    }

    async fn tell(&mut self) -> Result<String, Problem> {
        loop {
            // Also where so much happens that it is never quiet.
            if Instant::now() >= self.look_again {
                self.look_again = Instant::now() + LOOK;
                self.still_welcome()?;
            }
            let Some(seen) = self.seen else { return self.reset().await };
            self.head.borrow_and_update();
            let told = self.feed.entries_after(seen).await?;
            if let Some(first) = told.first() {
                if first.seq != seen + 1 {
                    return self.reset().await;
                }
                self.quiet_until = Instant::now() + self.app.config.heartbeat;
                let mut text = String::new();
                for told in told {
                    text.push_str(&format!("id: {}\nevent: seats\ndata: {}\n\n", told.seq, told.data));
                    self.seen = Some(told.seq);
                }
                return Ok(text);
            }
            if let Some(text) = self.wait().await? {
                return Ok(text);
            }
        }
    }

    /// Waits for more; a text if it was quiet for long.
    async fn wait(&mut self) -> Result<Option<String>, Problem> {
        loop {
            let look = (Instant::now() + LOOK).min(self.quiet_until);
            match timeout_at(look, self.head.changed()).await {
                Ok(Ok(())) => return Ok(None),
                Ok(Err(_)) => return Err(Problem::shutting_down()),
                Err(_) => self.still_welcome()?,
            }
            if Instant::now() >= self.quiet_until {
                self.quiet_until = Instant::now() + self.app.config.heartbeat;
                return Ok(Some(": still here\n\n".into()));
            }
        }
    }

    fn still_welcome(&self) -> Result<(), Problem> {
        if self.request.caller.principal.revoked.load(Ordering::Relaxed) {
            return Err(Problem::from(&Denial::Unauthorized));
        }
        let over =
            self.request.caller.ticket.as_ref().is_some_and(|ticket| self.request.boxoffice.ticket_expired(ticket));
        if over { Err(Problem::from(&Denial::Ticket(leasehold_boxoffice::ticket::Invalid::Expired))) } else { Ok(()) }
    }

    /// The whole as it is now.
    async fn now(&self) -> Result<(u64, String), Problem> {
        let office = self.request.office();
        let now = office.availability(&self.event).await?;
        let (_, layout) = office.layout(&self.event).await?;
        Ok((now.seq, availability_json(&now, &layout, None, None)))
    }

    async fn reset(&mut self) -> Result<String, Problem> {
        let (seq, data) = self.now().await?;
        self.seen = Some(seq);
        Ok(format!("id: {seq}\nevent: reset\ndata: {data}\n\n"))
    }
}

/// Why the stream ends. Not named `error`: browsers use that name for the connection itself.
fn last_words(problem: &Problem) -> String {
    let data = json!({"code": problem.code(), "detail": problem.detail()});
    format!("event: end\ndata: {data}\n\n")
}
