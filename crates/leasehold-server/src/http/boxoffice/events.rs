//! Events: create, configure, import, show.

use std::collections::BTreeSet;

use axum::body::Body;
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use leasehold_boxoffice::Error;
use leasehold_boxoffice::import;
use leasehold_boxoffice::layout::Layout;
use leasehold_boxoffice::model::{AuditQuery, EventRow, EventSettings, Refusal};
use serde_json::{Map, Value, json};

use super::{BoxOfficeRequest, query_flag, query_number};
use crate::api::boxoffice::{availability_json, event_json};
use crate::http::call::{HttpCall, run_detached};
use crate::http::fields::{Fields, missing_field};
use crate::http::problem::Problem;
use crate::http::respond::json_response;
use crate::service::Verb;

/// The fields of an event beside its layout.
const SETTINGS_FIELDS: [&str; 9] =
    ["name", "currency", "ttl_ms", "max_hold_ms", "pay_ms", "per_buyer", "on_sale", "orphan_rule", "rehearsal"];
/// How often a change is retried after a concurrent change.
const MAX_CONFIGURE_ATTEMPTS: usize = 16;
/// Entries that a page may be behind; beyond that the whole state is sent.
const MAX_CHANGED_ENTRIES: usize = 2000;

/// `POST /v1/events`
pub async fn create(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    let request = BoxOfficeRequest::authorize(&call, Verb::RunEvent)?;
    call.query_params([])?;
    // The id is generated here, so no prefix can cover the new event.
    if !request.caller.principal.prefixes.is_empty() {
        return Err(Problem::forbidden("a key with prefixes makes no events: it could not see them"));
    }
    let body = call.body_bytes(import::MAX_FILE_BYTES, &["application/json"]).await?;
    let (layout, others) = import::parts(&body, &SETTINGS_FIELDS).map_err(bad_layout)?;
    let mut fields = Map::new();
    for (name, text) in others {
        fields.insert(name, serde_json::from_str(&text).map_err(|_| Problem::invalid("the body is not JSON"))?);
    }
    let settings = parse_settings(Fields::from_object("the body", fields), None)?;
    let ledger_call = request.ledger_call(&call, &body)?;
    let work = async move {
        let row = request.office().create_event(ledger_call, settings, layout).await;
        request.boxoffice.event_made();
        row
    };
    let row = run_detached(work).await??;
    let mut response = with_etag(json_response(StatusCode::CREATED, &event_json(&row)), &row);
    if let Ok(place) = HeaderValue::from_str(&format!("/v1/events/{}", row.event_id)) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    Ok(response)
}

/// `PUT /v1/events/{e}`: changes what is given, and leaves the rest.
pub async fn configure(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    let request = BoxOfficeRequest::authorize(&call, Verb::RunEvent)?;
    call.query_params([])?;
    let event = request.visible_event(&call)?;
    let body = call.body_bytes(call.app.config.body_bytes, &["application/json"]).await?;
    let wanted = if_match_versions(&call)?;
    let ledger_call = request.ledger_call(&call, &body)?;
    let work = async move {
        for _ in 0..MAX_CONFIGURE_ATTEMPTS {
            let known = request.office().event(&event).await?;
            let settings = parse_settings(Fields::parse(&body)?, Some(known.settings))?;
            // Fields that are not given keep the value that was read, so the write requires that version.
            let seen = match &wanted {
                Some(versions) if !versions.contains(&known.layout_version) => versions.first().copied().unwrap_or(0),
                _ => known.layout_version,
            };
            match request.office().configure(ledger_call.clone(), &event, settings, Some(seen)).await {
                Err(Error::Refused(Refusal::Changed)) if wanted.is_none() => {}
                done => return done.map_err(Problem::from),
            }
        }
        Err(Problem::unavailable("others change this event at the same time: nothing was changed"))
    };
    let row = run_detached(work).await??;
    Ok(with_etag(json_response(StatusCode::OK, &event_json(&row)), &row))
}

/// The versions in `If-Match`; none: any version.
fn if_match_versions(call: &HttpCall) -> Result<Option<Vec<u64>>, Problem> {
    let mut versions = Vec::new();
    let mut any = None;
    for value in call.parts.headers.get_all(header::IF_MATCH) {
        let text = value.to_str().map_err(|_| Problem::invalid("If-Match is a list of ETags, or *"))?;
        for tag in text.split(',').map(str::trim).filter(|tag| !tag.is_empty()) {
            if tag == "*" {
                return Ok(None);
            }
            any = Some(());
            // A foreign or weak tag matches no version.
            versions.extend(tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"')?.parse::<u64>().ok()));
        }
    }
    Ok(any.map(|()| versions))
}

/// Sets the ETag: the version of settings and layout.
fn with_etag(mut response: Response<Body>, row: &EventRow) -> Response<Body> {
    if let Ok(tag) = HeaderValue::from_str(&format!("\"{}\"", row.layout_version)) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}

fn parse_settings(mut fields: Fields, known: Option<EventSettings>) -> Result<EventSettings, Problem> {
    let name = fields.take_text("name")?;
    let fresh = known.is_none();
    let mut settings = match (known, name) {
        (Some(known), name) => EventSettings { name: name.unwrap_or_else(|| known.name.clone()), ..known },
        (None, Some(name)) => EventSettings { on_sale: false, ..EventSettings::named(&name) },
        (None, None) => return Err(missing_field("name")),
    };
    if let Some(currency) = fields.take_text("currency")? {
        settings.currency = currency;
    }
    let mut span = |name: &'static str, place: &mut u64| -> Result<(), Problem> {
        if let Some(span) = fields.take_number(name, " of milliseconds")? {
            *place = span;
        }
        Ok(())
    };
    span("ttl_ms", &mut settings.ttl_ms)?;
    let cap = settings.max_hold_ms;
    span("max_hold_ms", &mut settings.max_hold_ms)?;
    // A longer ttl alone is not a mistake.
    if fresh && settings.max_hold_ms == cap {
        settings.max_hold_ms = cap.max(settings.ttl_ms);
    }
    span("pay_ms", &mut settings.pay_ms)?;
    if let Some(most) = fields.take_number("per_buyer", "")? {
        settings.per_buyer = u32::try_from(most).map_err(|_| Problem::invalid("per_buyer is too big"))?;
    }
    if let Some(on_sale) = fields.take_flag("on_sale")? {
        settings.on_sale = on_sale;
    }
    if let Some(rule) = fields.take_flag("orphan_rule")? {
        settings.orphan_rule = rule;
    }
    if let Some(rehearsal) = fields.take_flag("rehearsal")? {
        settings.rehearsal = rehearsal;
    }
    fields.deny_unknown()?;
    settings.problem().map_or(Ok(settings), |problem| Err(Problem::invalid(problem)))
}

/// A layout with problems, by line.
fn bad_layout(problems: Vec<import::ImportProblem>) -> Problem {
    let first = problems.first().map(|problem| {
        let place = if problem.line > 0 { format!("line {}: ", problem.line) } else { String::new() };
        format!("{place}{}", problem.sentence)
    });
    let detail = first.unwrap_or_default();
    Problem::with_code(StatusCode::BAD_REQUEST, "bad_layout", detail).with_field("problems", json!(problems))
}

/// `POST /v1/events/{e}/import`
pub async fn import(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    let request = BoxOfficeRequest::authorize(&call, Verb::RunEvent)?;
    let [dry_run] = call.query_params(["dry_run"])?;
    let dry_run = query_flag(dry_run, "dry_run")?;
    let event = request.visible_event(&call)?;
    let body = call.body_bytes(import::MAX_FILE_BYTES, &["application/json", "text/csv"]).await?;
    let is_csv = call.is_content_type("text/csv");
    let bytes = body.clone();
    // Parsing megabytes takes a while: on the blocking pool, not on an async worker.
    let read = move || if is_csv { import::csv(&bytes) } else { import::json(&bytes) };
    let read = tokio::task::spawn_blocking(read).await.map_err(|_| Problem::unavailable("the import broke down"))?;
    if dry_run {
        request.office().event(&event).await?;
        let shown = match read {
            Ok(layout) => {
                let shown = import_json(&layout, &[], true);
                // A layout without seats that are in use is refused in a dry run too.
                request.office().try_layout(&event, layout).await?;
                shown
            }
            Err(problems) => import_json(&Layout::default(), &problems, true),
        };
        return Ok(json_response(StatusCode::OK, &shown));
    }
    let layout = read.map_err(bad_layout)?;
    let shown = import_json(&layout, &[], false);
    let ledger_call = request.ledger_call(&call, &body)?;
    let row = run_detached(async move { request.office().replace_layout(ledger_call, &event, layout).await }).await??;
    let mut shown = shown;
    shown["layout_version"] = json!(row.layout_version);
    Ok(json_response(StatusCode::OK, &shown))
}

fn import_json(layout: &Layout, problems: &[import::ImportProblem], dry_run: bool) -> Value {
    json!({
        "ok": problems.is_empty(),
        "dry_run": dry_run,
        "seats": layout.seats.len(),
        "areas": layout.areas.len(),
        "problems": problems,
    })
}

/// `GET /v1/events`
pub async fn list(call: HttpCall) -> Result<Response<Body>, Problem> {
    let request = BoxOfficeRequest::authorize(&call, Verb::SeeEvent)?;
    call.query_params([])?;
    let mut events = Vec::new();
    for row in request.office().events().await? {
        if request.check_sees(&row.event_id).is_ok() {
            events.push(with_totals(&request, &row).await?);
        }
    }
    Ok(json_response(StatusCode::OK, &json!({"events": events})))
}

/// `GET /v1/events/{e}`
pub async fn show(call: HttpCall) -> Result<Response<Body>, Problem> {
    let request = BoxOfficeRequest::authorize(&call, Verb::SeeEvent)?;
    call.query_params([])?;
    let event = request.visible_event(&call)?;
    let row = request.office().event(&event).await?;
    Ok(with_etag(json_response(StatusCode::OK, &with_totals(&request, &row).await?), &row))
}

async fn with_totals(request: &BoxOfficeRequest, row: &EventRow) -> Result<Value, Problem> {
    let now = request.office().availability(&row.event_id).await?;
    let mut shown = event_json(row);
    shown["totals"] = json!(now.totals);
    Ok(shown)
}

/// `GET /v1/events/{e}/map`
pub async fn map(call: HttpCall) -> Result<Response<Body>, Problem> {
    let request = BoxOfficeRequest::authorize(&call, Verb::SeeEvent)?;
    call.query_params([])?;
    let event = request.visible_event(&call)?;
    let row = request.office().event(&event).await?;
    let seat_map = request.boxoffice.seat_map(&row).await?;
    let etag = &seat_map.etag;
    let known = call.parts.headers.get_all(header::IF_NONE_MATCH).iter();
    let known = known.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    let fresh = known.map(|tag| tag.trim().trim_start_matches("W/")).any(|tag| tag == etag.as_str() || tag == "*");
    let mut response = if fresh {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        json_body(Body::from(seat_map.map.clone()))
    };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    if let Ok(etag) = HeaderValue::from_str(etag) {
        headers.insert(header::ETAG, etag);
    }
    Ok(response)
}

/// `GET /v1/events/{e}/availability`
pub async fn availability(call: HttpCall) -> Result<Response<Body>, Problem> {
    let request = BoxOfficeRequest::authorize(&call, Verb::SeeEvent)?;
    let [since, detail] = call.query_params(["since", "detail"])?;
    let (since, detail) = (query_number(since, "since")?, query_flag(detail, "detail")?);
    let event = request.visible_event(&call)?;
    let holds = if detail {
        // Details of other buyers need another verb.
        let request = BoxOfficeRequest::authorize_caller(&call, request.caller.clone(), Verb::OverseeEvent)?;
        Some(request.office().holds(&event).await?)
    } else {
        None
    };
    let now = request.office().availability(&event).await?;
    // Read after the availability: a change between the two reads is listed now and again with the next number. Read
    // before it, the change could be lost.
    let changed = match since {
        Some(since) if since <= now.seq => changed_since(&request, &event, since).await?,
        // No client got such a number from this ledger.
        _ => None,
    };
    let (_, layout) = request.office().layout(&event).await?;
    Ok(json_body(Body::from(availability_json(&now, &layout, changed.as_deref(), holds.as_deref()))))
}

/// A response whose body is JSON already.
fn json_body(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Seats that changed after a number; none where the whole state must be sent.
async fn changed_since(
    request: &BoxOfficeRequest,
    event: &leasehold_boxoffice::model::EventId,
    since: u64,
) -> Result<Option<Vec<String>>, Problem> {
    use leasehold_boxoffice::model::EntryKind;
    let query = AuditQuery { since, seat: None, limit: MAX_CHANGED_ENTRIES };
    let entries = request.office().audit(event, query).await?;
    let whole = |entry: &leasehold_boxoffice::model::Entry| {
        matches!(entry.kind, EntryKind::LayoutChanged | EntryKind::EventCreated)
    };
    if entries.len() >= MAX_CHANGED_ENTRIES || entries.iter().any(whole) {
        return Ok(None);
    }
    let seats: BTreeSet<String> = entries.into_iter().flat_map(|entry| entry.seats).map(|seat| seat.id).collect();
    Ok(Some(seats.into_iter().collect()))
}

/// `POST /v1/events/{e}/freeze` and `/unfreeze`
pub async fn freeze(call: HttpCall) -> Result<Response<Body>, Problem> {
    set_frozen(call, true).await
}

/// See [`freeze`].
pub async fn unfreeze(call: HttpCall) -> Result<Response<Body>, Problem> {
    set_frozen(call, false).await
}

async fn set_frozen(mut call: HttpCall, frozen: bool) -> Result<Response<Body>, Problem> {
    let request = BoxOfficeRequest::authorize(&call, Verb::RunEvent)?;
    call.query_params([])?;
    let event = request.visible_event(&call)?;
    let body = call.optional_body_bytes().await?;
    let mut fields = Fields::parse(&body)?;
    let reason = fields.take_text("reason")?.filter(|reason| !reason.is_empty());
    let reason = reason.unwrap_or_else(|| "no reason given".into());
    fields.deny_unknown()?;
    let ledger_call = request.ledger_call(&call, &body)?;
    let work = async move { request.office().freeze(ledger_call, &event, frozen, &reason).await };
    let row = run_detached(work).await??;
    Ok(json_response(StatusCode::OK, &event_json(&row)))
}
