//! `GET /v1/watch`: lease events, as server-sent events.
//!
//! Each event has its id and the id before it under this prefix, so a gap is visible. A client resumes with the last id
//! it saw. After a gap, a `reset` event carries the whole state.

use std::sync::atomic::Ordering;

use axum::body::Body;
use hyper::Response;
use leasehold::engine::{EventId, Query};
use serde_json::json;
use tokio::time::timeout_at;

use super::App;
use super::call::HttpCall;
use super::problem::Problem;
use super::resources::MAX_PAGE_RESOURCES;
use super::sse::{EventSource, Heartbeat, push_event, stream_response};
use crate::api::leases::{EventJson, ResourceJson};
use crate::service::watch::{WatchUpdate, Watcher};
use crate::service::{Caller, Denial};

/// `GET /v1/watch`
pub async fn watch(call: HttpCall) -> Result<Response<Body>, Problem> {
    let caller = call.authenticate()?;
    let [prefix, since] = call.query_params(["prefix", "since"])?;
    let since = match call.parts.headers.get("last-event-id") {
        Some(id) => Some(id.to_str().unwrap_or("unreadable").to_owned()),
        None => since,
    };
    let since = since.filter(|id| !id.is_empty()).map(|id| id.parse::<EventId>()).transpose();
    let since = since.map_err(|_| Problem::invalid("Last-Event-ID (or since) is the id of an event of this watch"))?;
    let (app, prefix) = (call.app.clone(), prefix.unwrap_or_default());
    let watcher =
        app.service.watch(&caller, prefix, since).await.map_err(|denial| call.denial_problem(&denial, &caller))?;
    let heartbeat = Heartbeat::new(app.config.heartbeat);
    let stop = app.stop.clone();
    Ok(stream_response(WatchSource { app, watcher, heartbeat }, stop))
}

struct WatchSource {
    app: App,
    watcher: Watcher,
    heartbeat: Heartbeat,
}

impl EventSource for WatchSource {
    async fn next_text(&mut self) -> Result<String, Problem> {
        loop {
            match timeout_at(self.heartbeat.next_check(), self.watcher.next()).await {
                Ok(updates) => {
                    let updates = updates.map_err(|denial| self.denial_problem(&denial))?;
                    self.heartbeat.restart();
                    return self.write_updates(updates).await;
                }
                Err(_) if self.watcher.caller().principal.revoked.load(Ordering::Relaxed) => {
                    return Err(Problem::from(&Denial::Unauthorized));
                }
                Err(_) => {
                    if let Some(text) = self.heartbeat.text_if_due() {
                        return Ok(text);
                    }
                }
            }
        }
    }
}

impl WatchSource {
    async fn write_updates(&mut self, updates: Vec<WatchUpdate>) -> Result<String, Problem> {
        let mut text = String::new();
        for update in updates {
            match update {
                WatchUpdate::Event(event, prev) => {
                    let (id, kind) = (event.id, event.kind.word());
                    let data = EventJson::new(event, prev).to_json();
                    push_event(&mut text, id, kind, &data);
                }
                WatchUpdate::Reset(id) => push_event(&mut text, id, "reset", &self.reset_json(id).await?),
            }
        }
        Ok(text)
    }

    /// The whole state under the prefix. Read after the reset, so that no event is lost between the two.
    async fn reset_json(&mut self, id: EventId) -> Result<String, Problem> {
        let caller: Caller = self.watcher.caller().clone();
        let query = Query { prefix: self.watcher.prefix().to_owned(), after: None, limit: MAX_PAGE_RESOURCES + 1 };
        let listed = self.app.service.list(&caller, query).await;
        let mut found = listed.map_err(|denial| self.denial_problem(&denial))?;
        let mut truncated = found.len() > MAX_PAGE_RESOURCES;
        // A remote engine may return fewer than asked.
        if let (MAX_PAGE_RESOURCES, Some(last)) = (found.len(), found.last()) {
            let query = Query { prefix: self.watcher.prefix().to_owned(), after: Some(last.name.clone()), limit: 1 };
            let more = self.app.service.list(&caller, query).await;
            truncated = !more.map_err(|denial| self.denial_problem(&denial))?.is_empty();
        }
        found.truncate(MAX_PAGE_RESOURCES);
        let resources: Vec<ResourceJson> = found.into_iter().map(ResourceJson::from).collect();
        Ok(json!({"id": id.to_string(), "resources": resources, "truncated": truncated}).to_string())
    }

    fn denial_problem(&self, denial: &Denial) -> Problem {
        Problem::with_retry_after(denial, &self.app.service, self.watcher.caller())
    }
}
