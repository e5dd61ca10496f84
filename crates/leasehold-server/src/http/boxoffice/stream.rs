//! `GET /v1/events/{e}/stream`: the entries of an event, as server-sent events.
//!
//! Each has the number of its entry as id, and numbers have no gap. A client resumes with the last number it saw.
//! Without a number, or with an unknown one, a `reset` with the whole state comes first.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::Body;
use hyper::Response;
use leasehold_boxoffice::model::EventId;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::{BoxOfficeRequest, query_number};
use crate::api::boxoffice::availability_json;
use crate::boxoffice::feed::Feed;
use crate::http::call::HttpCall;
use crate::http::problem::Problem;
use crate::http::sse::{EventSource, Heartbeat, REVOCATION_CHECK_EVERY, push_event, stream_response};
use crate::service::{Denial, Verb};

/// `GET /v1/events/{e}/stream`
pub async fn stream(call: HttpCall) -> Result<Response<Body>, Problem> {
    let request = BoxOfficeRequest::authorize(&call, Verb::SeeEvent)?;
    let [since] = call.query_params(["since"])?;
    let event = request.visible_event(&call)?;
    let last = call.single_header("last-event-id", "Last-Event-ID")?.map(str::to_owned).or(since);
    let since = query_number(last.filter(|text| !text.is_empty()), "Last-Event-ID (or since)")?;
    let now = request.office().availability(&event).await?.seq;
    // A number above the newest is of another ledger.
    let since = since.filter(|since| *since <= now);
    let feed = request.boxoffice.feed(&event);
    let (head, app) = (feed.subscribe(), call.app.clone());
    let (heartbeat, stop) = (Heartbeat::new(app.config.heartbeat), app.stop.clone());
    let source =
        EntrySource { request, event, feed, head, last_sent: since, heartbeat, next_access_check: Instant::now() };
    Ok(stream_response(source, stop))
}

struct EntrySource {
    request: BoxOfficeRequest,
    event: EventId,
    feed: Arc<Feed>,
    head: watch::Receiver<u64>,
    /// The number of the last entry sent; none before the first reset.
    last_sent: Option<u64>,
    heartbeat: Heartbeat,
    next_access_check: Instant,
}

impl EventSource for EntrySource {
    async fn next_text(&mut self) -> Result<String, Problem> {
        loop {
            // Checked here too: a busy stream never waits long enough to check in `wait_for_entries`.
            if Instant::now() >= self.next_access_check {
                self.next_access_check = Instant::now() + REVOCATION_CHECK_EVERY;
                self.check_access()?;
            }
            let Some(last_sent) = self.last_sent else { return self.reset_text().await };
            self.head.borrow_and_update();
            let entries = self.feed.entries_after(last_sent).await?;
            if let Some(first) = entries.first() {
                if first.seq != last_sent + 1 {
                    return self.reset_text().await;
                }
                self.heartbeat.restart();
                let mut text = String::new();
                for entry in entries {
                    push_event(&mut text, entry.seq, "seats", &entry.data);
                    self.last_sent = Some(entry.seq);
                }
                return Ok(text);
            }
            if let Some(text) = self.wait_for_entries().await? {
                return Ok(text);
            }
        }
    }
}

impl EntrySource {
    /// Waits for more entries; a text if a heartbeat is due before any came.
    async fn wait_for_entries(&mut self) -> Result<Option<String>, Problem> {
        loop {
            match timeout_at(self.heartbeat.next_check(), self.head.changed()).await {
                Ok(Ok(())) => return Ok(None),
                Ok(Err(_)) => return Err(Problem::shutting_down()),
                Err(_) => self.check_access()?,
            }
            if let Some(text) = self.heartbeat.text_if_due() {
                return Ok(Some(text));
            }
        }
    }

    /// Fails when the key was revoked or the ticket expired.
    fn check_access(&self) -> Result<(), Problem> {
        if self.request.caller.principal.revoked.load(Ordering::Relaxed) {
            return Err(Problem::from(&Denial::Unauthorized));
        }
        let over =
            self.request.caller.ticket.as_ref().is_some_and(|ticket| self.request.boxoffice.ticket_expired(ticket));
        if over { Err(Problem::from(&Denial::Ticket(leasehold_boxoffice::ticket::Invalid::Expired))) } else { Ok(()) }
    }

    /// The whole state of the event, and the number that the next entries follow.
    async fn reset_text(&mut self) -> Result<String, Problem> {
        let office = self.request.office();
        let now = office.availability(&self.event).await?;
        let (_, layout) = office.layout(&self.event).await?;
        self.last_sent = Some(now.seq);
        let mut text = String::new();
        push_event(&mut text, now.seq, "reset", &availability_json(&now, &layout, None, None));
        Ok(text)
    }
}
