//! The event of a rehearsal: one of its own, or one that is marked as a rehearsal.

use std::time::Duration;

use anyhow::{Context, bail};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::api_types::{ApiArea, ApiEvent, ApiProblem, ApiSeatMap};
use super::http_client::{HttpClient, HttpRequest, HttpResponse};
use leasehold_support::exit::{Failure, UNAVAILABLE, UNEXPECTED, UNKNOWN, USAGE};
use leasehold_support::{duration, output};

/// Seats in a row, and rows in a section, of a hall of our own.
const ROW: usize = 25;
const SECTION: usize = 20;

/// An event that buyers come to.
#[derive(Debug)]
pub struct RehearsalEvent {
    pub event_id: String,
    /// Whether this rehearsal made it.
    pub own: bool,
    /// In the order of the hall.
    pub seats: Vec<String>,
    pub areas: Vec<ApiArea>,
    pub per_buyer: usize,
    pub ttl: Duration,
    pub pay: Duration,
}

/// What an event of our own shall be.
#[derive(Clone, Debug)]
pub struct EventSpec {
    pub name: String,
    pub seats: usize,
    pub floor: u32,
    pub ttl: Duration,
    pub pay: Duration,
    pub per_buyer: usize,
}

impl RehearsalEvent {
    /// Makes an event, marked as a rehearsal and on sale.
    ///
    /// # Errors
    ///
    /// The server did not make it.
    pub async fn make(desk: &mut HttpClient, build: &EventSpec, idem: &str) -> anyhow::Result<Self> {
        let ids: Vec<(String, String, usize)> = (0..build.seats)
            .map(|number| {
                let (row, section) = (number / ROW, number / ROW / SECTION);
                (format!("S{}", section + 1), format!("R{}", row % SECTION + 1), number % ROW + 1)
            })
            .collect();
        let id = |(section, row, number): &(String, String, usize)| format!("{section}-{row}-{number}");
        let seat = |place: &(String, String, usize)| json!({"id": id(place), "section": place.0, "row": place.1, "number": place.2, "price": 4500});
        let floor = (build.floor > 0).then(|| json!({"id": "floor", "capacity": build.floor, "price": 3000}));
        let body = json!({
            "name": build.name,
            "rehearsal": true,
            "on_sale": true,
            "ttl_ms": duration::millis(build.ttl),
            "max_hold_ms": duration::millis(build.ttl * 3),
            "pay_ms": duration::millis(build.pay),
            "per_buyer": build.per_buyer,
            "seats": ids.iter().map(seat).collect::<Vec<Value>>(),
            "areas": floor.into_iter().collect::<Vec<Value>>(),
        })
        .to_string();
        let ask =
            HttpRequest { method: "POST", path: "/v1/events", idem: Some(idem), body: &body, ..HttpRequest::default() };
        let event: ApiEvent = fetch(desk, ask, "make an event for the rehearsal").await?;
        let mut venue = Self::of(event, true);
        venue.seats = ids.iter().map(id).collect();
        venue.areas =
            (build.floor > 0).then(|| ApiArea { id: "floor".into(), capacity: build.floor }).into_iter().collect();
        Ok(venue)
    }

    /// Opens an event that is there. One that is not marked as a rehearsal is refused, unless it is really meant.
    ///
    /// # Errors
    ///
    /// Bad usage, where the event is a real one; or it cannot be read.
    pub async fn open(desk: &mut HttpClient, id: &str, really: bool) -> anyhow::Result<Self> {
        let path = format!("/v1/events/{}", escape(id));
        let event: ApiEvent = get(desk, &path, "look at the event").await?;
        if !event.rehearsal && !really {
            let name = output::plain(&event.name);
            return Err(Failure::usage(format!(
                "\"{name}\" is not marked as a rehearsal, and its seats would be sold for good: make one with \
                 \"rehearsal\": true, leave out --event, or say --really"
            )));
        }
        if !event.on_sale {
            return Err(Failure::usage("the event is not on sale: nobody could hold anything"));
        }
        let map: ApiSeatMap = get(desk, &format!("{path}/map"), "read the map of the event").await?;
        let mut venue = Self::of(event, false);
        let rows = map.sections.into_iter().flat_map(|section| section.rows);
        venue.seats = rows.flat_map(|row| row.seats).map(|seat| seat.id).collect();
        venue.areas = map.areas;
        if venue.seats.is_empty() && venue.areas.is_empty() {
            bail!("the event has neither seats nor areas");
        }
        Ok(venue)
    }

    fn of(event: ApiEvent, own: bool) -> Self {
        Self {
            event_id: event.event_id,
            own,
            seats: Vec::new(),
            areas: Vec::new(),
            per_buyer: usize::try_from(event.per_buyer).unwrap_or(usize::MAX),
            ttl: Duration::from_millis(event.ttl_ms),
            pay: Duration::from_millis(event.pay_ms),
        }
    }

    /// The path of something of this event.
    pub fn path(&self, of: &str) -> String {
        format!("/v1/events/{}{of}", escape(&self.event_id))
    }

    /// Takes an event of our own off sale, so that nobody buys what is only played. Others are let be.
    pub async fn close(&self, desk: &mut HttpClient) {
        if !self.own {
            return;
        }
        let ask =
            HttpRequest { method: "PUT", path: &self.path(""), body: r#"{"on_sale":false}"#, ..HttpRequest::default() };
        if !desk.ask(ask).await.is_ok_and(|answer| answer.status == 200) {
            output::say(format!("the event {} could not be taken off sale: do it by hand", self.event_id));
        }
    }
}

/// Text in a path.
pub fn escape(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

/// Reads JSON.
///
/// # Errors
///
/// What came instead.
pub async fn get<T: DeserializeOwned>(desk: &mut HttpClient, path: &str, what: &str) -> anyhow::Result<T> {
    fetch(desk, HttpRequest { method: "GET", path, ..HttpRequest::default() }, what).await
}

async fn fetch<T: DeserializeOwned>(desk: &mut HttpClient, ask: HttpRequest<'_>, what: &str) -> anyhow::Result<T> {
    let answer = reach(desk, ask, what).await?;
    serde_json::from_slice(&answer.body).with_context(|| format!("{what}: the server answered something else"))
}

/// Asks for what cannot be done without.
///
/// # Errors
///
/// Nobody answered, or the answer is no.
pub async fn reach(desk: &mut HttpClient, ask: HttpRequest<'_>, what: &str) -> anyhow::Result<HttpResponse> {
    let silent = |_| {
        let code = if ask.method == "GET" { UNAVAILABLE } else { UNKNOWN };
        Failure::coded(code, format!("{what}: the server did not answer"))
    };
    let answer = desk.ask(ask).await.map_err(silent)?;
    if (200..300).contains(&answer.status) {
        return Ok(answer);
    }
    let no: ApiProblem = serde_json::from_slice(&answer.body).unwrap_or_default();
    let why = if no.detail.is_empty() { format!("status {}", answer.status) } else { output::plain(&no.detail) };
    let code = match answer.status {
        401 | 403 | 404 | 400 => USAGE,
        _ => UNEXPECTED,
    };
    let hint = if answer.status == 401 { ": give the key of a box office in LEASEHOLD_API_KEY" } else { "" };
    Err(Failure::coded(code, format!("{what}: {why}{hint}")))
}
