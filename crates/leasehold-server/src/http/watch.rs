//! `GET /v1/watch`: what happens, as server-sent events.
//!
//! Each event has an id and the id before it under this prefix, so a gap is visible; a client that comes back with the
//! last id it saw goes on from there. What cannot be told without a gap is a `reset` with the whole as it is now.

use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use futures_util::stream;
use hyper::Response;
use hyper::header::{self, HeaderName, HeaderValue};
use leasehold::engine::{EventId, Query};
use serde_json::json;
use tokio::time::{Instant, timeout_at};

use super::App;
use super::problem::Problem;
use super::resources::MAX_PAGE_RESOURCES;
use super::routes::Call;
use crate::api::leases::{EventJson, ResourceJson};
use crate::service::watch::{WatchMessage, Watcher};
use crate::service::{Caller, Denial};

/// How often a quiet watch looks whether its key still stands.
const LOOK: Duration = Duration::from_secs(1);

/// `GET /v1/watch`
pub async fn watch(call: Call) -> Result<Response<Body>, Problem> {
    let caller = call.authenticate()?;
    let [prefix, since] = call.query(["prefix", "since"])?;
    let since = match call.parts.headers.get("last-event-id") {
        Some(id) => Some(id.to_str().unwrap_or("unreadable").to_owned()),
        None => since,
    };
    let since = since.filter(|id| !id.is_empty()).map(|id| id.parse::<EventId>()).transpose();
    let since = since.map_err(|_| Problem::invalid("Last-Event-ID (or since) is the id of an event of this watch"))?;
    let (app, prefix) = (call.app.clone(), prefix.unwrap_or_default());
    let watcher = app.service.watch(&caller, prefix, since).await.map_err(|denial| call.denied(&denial, &caller))?;
    let quiet_until = Instant::now() + app.config.heartbeat;
    let teller = Teller { app, watcher, quiet_until };
    let events = stream::unfold(State::Begin(teller), |state| async {
        let (text, next) = state.next().await?;
        Some((Ok::<_, Infallible>(text), next))
    });
    let mut response = Response::new(Body::from_stream(events));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Proxies that gather answers before passing them on would hold back news.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok(response)
}

enum State {
    Begin(Teller),
    Going(Teller),
    Ended,
}

struct Teller {
    app: App,
    watcher: Watcher,
    quiet_until: Instant,
}

impl State {
    /// The next text to send; none at the end.
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
            let look = (Instant::now() + LOOK).min(self.quiet_until);
            match timeout_at(look, self.watcher.next()).await {
                Ok(told) => {
                    let told = told.map_err(|denial| self.problem(&denial))?;
                    self.quiet_until = Instant::now() + self.app.config.heartbeat;
                    return self.write(told).await;
                }
                Err(_) if self.watcher.caller().principal.revoked.load(Ordering::Relaxed) => {
                    return Err(Problem::from(&Denial::Unauthorized));
                }
                Err(_) if Instant::now() >= self.quiet_until => {
                    self.quiet_until = Instant::now() + self.app.config.heartbeat;
                    return Ok(": still here\n\n".into());
                }
                Err(_) => {}
            }
        }
    }

    async fn write(&mut self, told: Vec<WatchMessage>) -> Result<String, Problem> {
        let mut text = String::new();
        for told in told {
            match told {
                WatchMessage::Event(event, prev) => {
                    let (id, kind) = (event.id, event.kind.word());
                    let data = EventJson::new(event, prev).to_json();
                    push(&mut text, Some(id), kind, &data);
                }
                WatchMessage::Reset(id) => push(&mut text, Some(id), "reset", &self.whole(id).await?),
            }
        }
        Ok(text)
    }

    /// The whole as it is now: asked for after the reset came, so that nothing falls between the two.
    async fn whole(&mut self, id: EventId) -> Result<String, Problem> {
        let caller: Caller = self.watcher.caller().clone();
        let query = Query { prefix: self.watcher.prefix().to_owned(), after: None, limit: MAX_PAGE_RESOURCES + 1 };
        let listed = self.app.service.list(&caller, query).await;
        let mut found = listed.map_err(|denial| self.problem(&denial))?;
        let mut truncated = found.len() > MAX_PAGE_RESOURCES;
        // An engine far away may give no more than so many at once.
        if let (MAX_PAGE_RESOURCES, Some(last)) = (found.len(), found.last()) {
            let query = Query { prefix: self.watcher.prefix().to_owned(), after: Some(last.name.clone()), limit: 1 };
            let more = self.app.service.list(&caller, query).await;
            truncated = !more.map_err(|denial| self.problem(&denial))?.is_empty();
        }
        found.truncate(MAX_PAGE_RESOURCES);
        let resources: Vec<ResourceJson> = found.into_iter().map(ResourceJson::from).collect();
        Ok(json!({"id": id.to_string(), "resources": resources, "truncated": truncated}).to_string())
    }

    fn problem(&self, denial: &Denial) -> Problem {
        Problem::with_retry_after(denial, &self.app.service, self.watcher.caller())
    }
}

/// JSON has no raw line breaks, so one line of data is always enough.
fn push(text: &mut String, id: Option<EventId>, event: &str, data: &str) {
    if let Some(id) = id {
        text.push_str(&format!("id: {id}\n"));
    }
    text.push_str(&format!("event: {event}\ndata: {data}\n\n"));
}

/// Why the watch ends. Not named `error`: browsers use that name for the connection itself.
fn last_words(problem: &Problem) -> String {
    let mut text = String::new();
    push(&mut text, None, "end", &json!({"code": problem.code(), "detail": problem.detail()}).to_string());
    text
}
