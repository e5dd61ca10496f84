//! The event of a rehearsal: one of its own, or an existing one that is marked as a rehearsal.

use std::time::Duration;

use anyhow::bail;
use serde_json::{Value, json};

use super::api_types::{ApiArea, ApiEvent, ApiSeatMap};
use super::http_client::{HttpClient, HttpRequest, escape_path};
use leasehold_support::exit::Failure;
use leasehold_support::{duration, output};

/// The layout of an event of our own.
const SEATS_PER_ROW: usize = 25;
const ROWS_PER_SECTION: usize = 20;

/// The event at which buyers buy.
#[derive(Debug)]
pub struct RehearsalEvent {
    pub event_id: String,
    /// Whether this rehearsal created the event.
    pub is_own: bool,
    /// Seat ids in the order of the seat map.
    pub seats: Vec<String>,
    pub areas: Vec<ApiArea>,
    pub per_buyer: usize,
    pub ttl: Duration,
    pub pay: Duration,
}

/// The event to create.
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
    /// Creates an event, marked as a rehearsal and on sale.
    ///
    /// # Errors
    ///
    /// The server refused, or did not answer.
    pub async fn create(client: &mut HttpClient, spec: &EventSpec, idempotency_key: &str) -> anyhow::Result<Self> {
        let ids: Vec<(String, String, usize)> = (0..spec.seats)
            .map(|number| {
                let (row, section) = (number / SEATS_PER_ROW, number / SEATS_PER_ROW / ROWS_PER_SECTION);
                (format!("S{}", section + 1), format!("R{}", row % ROWS_PER_SECTION + 1), number % SEATS_PER_ROW + 1)
            })
            .collect();
        let id = |(section, row, number): &(String, String, usize)| format!("{section}-{row}-{number}");
        let seat = |parts: &(String, String, usize)| json!({"id": id(parts), "section": parts.0, "row": parts.1, "number": parts.2, "price": 4500});
        let floor = (spec.floor > 0).then(|| json!({"id": "floor", "capacity": spec.floor, "price": 3000}));
        let body = json!({
            "name": spec.name,
            "rehearsal": true,
            "on_sale": true,
            "ttl_ms": duration::millis(spec.ttl),
            "max_hold_ms": duration::millis(spec.ttl * 3),
            "pay_ms": duration::millis(spec.pay),
            "per_buyer": spec.per_buyer,
            "seats": ids.iter().map(seat).collect::<Vec<Value>>(),
            "areas": floor.into_iter().collect::<Vec<Value>>(),
        })
        .to_string();
        let request = HttpRequest { idempotency_key: Some(idempotency_key), ..HttpRequest::post("/v1/events", &body) };
        let api_event: ApiEvent = client.send_for_json(request, "make an event for the rehearsal").await?;
        let mut event = Self::from_api(api_event, true);
        event.seats = ids.iter().map(id).collect();
        event.areas =
            (spec.floor > 0).then(|| ApiArea { id: "floor".into(), capacity: spec.floor }).into_iter().collect();
        Ok(event)
    }

    /// Opens an existing event. One that is not marked as a rehearsal is refused, unless `really` is set.
    ///
    /// # Errors
    ///
    /// Bad usage if the event is a real one or not on sale. Or it cannot be read.
    pub async fn open(client: &mut HttpClient, id: &str, really: bool) -> anyhow::Result<Self> {
        let path = format!("/v1/events/{}", escape_path(id));
        let api_event: ApiEvent = client.get_json(&path, "look at the event").await?;
        if !api_event.rehearsal && !really {
            let name = output::plain(&api_event.name);
            return Err(Failure::usage(format!(
                "\"{name}\" is not marked as a rehearsal, and its seats would be sold for good: make one with \
                 \"rehearsal\": true, leave out --event, or say --really"
            )));
        }
        if !api_event.on_sale {
            return Err(Failure::usage("the event is not on sale: nobody could hold anything"));
        }
        let map: ApiSeatMap = client.get_json(&format!("{path}/map"), "read the map of the event").await?;
        let mut event = Self::from_api(api_event, false);
        let rows = map.sections.into_iter().flat_map(|section| section.rows);
        event.seats = rows.flat_map(|row| row.seats).map(|seat| seat.id).collect();
        event.areas = map.areas;
        if event.seats.is_empty() && event.areas.is_empty() {
            bail!("the event has neither seats nor areas");
        }
        Ok(event)
    }

    fn from_api(api_event: ApiEvent, is_own: bool) -> Self {
        Self {
            event_id: api_event.event_id,
            is_own,
            seats: Vec::new(),
            areas: Vec::new(),
            per_buyer: usize::try_from(api_event.per_buyer).unwrap_or(usize::MAX),
            ttl: Duration::from_millis(api_event.ttl_ms),
            pay: Duration::from_millis(api_event.pay_ms),
        }
    }

    /// The path of a resource of this event.
    pub fn path(&self, suffix: &str) -> String {
        format!("/v1/events/{}{suffix}", escape_path(&self.event_id))
    }

    /// Takes an event of our own off sale, so that nobody buys at a rehearsal. Other events stay as they are.
    pub async fn close(&self, client: &mut HttpClient) {
        if !self.is_own {
            return;
        }
        let request =
            HttpRequest { method: "PUT", path: &self.path(""), body: r#"{"on_sale":false}"#, ..HttpRequest::default() };
        if !client.send(request).await.is_ok_and(|response| response.status == 200) {
            output::say(format!("the event {} could not be taken off sale: do it by hand", self.event_id));
        }
    }
}
