//! Errors: `application/problem+json` (RFC 9457) with a stable `code`.

use std::time::Duration;

use axum::body::Body;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use leasehold::recipe::{RecipeError, RecipeRefusal};
use leasehold::{Error, Refusal};
use serde_json::{Map, Value, json};

use crate::api::boxoffice::resolution_json;
use crate::service::{Caller, Denial, Service};

/// One error response.
#[derive(Debug)]
pub struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: String,
    more: Map<String, Value>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// The title of each code. The OpenAPI text lists the same.
pub const PROBLEM_TITLES: [(&str, &str); 33] = [
    ("held", "Held by another"),
    ("stale", "The lease has ended"),
    ("not_held", "No such lease"),
    ("queue_full", "The queue is full"),
    ("quota", "Too much was asked"),
    ("invalid", "The request cannot be understood"),
    ("unauthorized", "A key is needed"),
    ("forbidden", "Not allowed"),
    ("unavailable", "Not available now"),
    ("unknown_outcome", "The outcome is unknown"),
    ("corrupt", "Stored state is damaged"),
    ("idempotency_mismatch", "This Idempotency-Key was used for another request"),
    ("in_flight", "The first try of this key still runs"),
    ("not_found", "There is no such thing"),
    ("exists", "It is there already"),
    ("conflict", "Not all of it can be had"),
    ("stale_token", "The token is not the newest"),
    ("not_paid", "No payment has come"),
    ("released", "The hold was released"),
    ("sold", "The hold became an order"),
    ("expired", "The hold has expired"),
    ("paying", "A payment is on its way"),
    ("not_paying", "No payment is on its way"),
    ("payment_mismatch", "Another payment is meant"),
    ("already_paid", "The payment is paid"),
    ("offer_stands", "The seats are held for money that came already"),
    ("layout_changed", "The layout has changed"),
    ("changed", "Somebody else changed it meanwhile"),
    ("empty_hold", "Nothing would be left"),
    ("too_dear", "It costs more than can be paid"),
    ("not_renewable", "The hold cannot be renewed"),
    ("bad_layout", "The layout has problems"),
    ("bad_signature", "The signature does not fit"),
];

/// The titles of codes that only a gate says.
const GATE_PROBLEM_TITLES: [(&str, &str); 3] = [
    ("other_lease", "The token belongs to another lease"),
    ("token_required", "A fencing token is needed"),
    ("fence_busy", "Older requests are not answered yet"),
];

impl Problem {
    fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self { status, code, detail: detail.into(), more: Map::new(), headers: Vec::new() }
    }

    /// The request is invalid: status 400.
    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid", detail)
    }

    /// The request is invalid, with a more exact status.
    pub fn invalid_with_status(status: StatusCode, detail: impl Into<String>) -> Self {
        Self::new(status, "invalid", detail)
    }

    /// The caller may not do this.
    pub fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", detail)
    }

    /// The server stops, and nothing was changed.
    pub fn shutting_down() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "shutting down: nothing was changed, try again")
            .with_header(header::RETRY_AFTER, HeaderValue::from_static("1"))
    }

    /// The server stops, and a waiting claim with a request id may have been granted at that moment.
    pub fn shutting_down_while_queued() -> Self {
        Self::unknown("shutting down: it may have been granted, repeat it with the same Idempotency-Key to know")
            .with_header(header::RETRY_AFTER, HeaderValue::from_static("1"))
    }

    /// The outcome is unknown.
    pub fn unknown(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, "unknown_outcome", detail)
    }

    /// Engine, ledger or provider does not answer.
    pub fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail)
    }

    /// An error with a code of its own.
    pub fn with_code(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(status, code, detail)
    }

    /// Too many connections: in all, or from one address.
    pub fn too_many_connections(of_one: bool) -> Self {
        let detail = if of_one {
            "this address has as many connections as one may have: close some, or come again later"
        } else {
            "the server has as many connections as it may have: come again later"
        };
        Self::new(StatusCode::TOO_MANY_REQUESTS, "quota", detail)
    }

    /// Adds a field to the answer.
    pub fn with_field(mut self, name: &str, value: Value) -> Self {
        self.more.insert(name.into(), value);
        self
    }

    /// The problem for a denial. Where the caller is too fast, Retry-After says when the next call may succeed.
    pub fn with_retry_after(denial: &Denial, service: &Service, caller: &Caller) -> Self {
        let problem = Self::from(denial);
        if !matches!(denial, Denial::Slow(_)) {
            return problem;
        }
        let now = service.clock().now();
        let principal = &caller.principal;
        let wait = principal
            .rate
            .as_ref()
            .map_or(Duration::ZERO, |rate| rate.time_until_free(now))
            .max(principal.guesses.time_until_free(now));
        let seconds = wait.as_millis().div_ceil(1000).max(1);
        let after = HeaderValue::from_str(&seconds.to_string()).unwrap_or(HeaderValue::from_static("1"));
        problem.with_header(header::RETRY_AFTER, after)
    }

    /// Adds a header to the answer.
    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// The code.
    pub const fn code(&self) -> &'static str {
        self.code
    }

    /// The sentence.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// As JSON.
    pub fn body(&self) -> String {
        let mut titles = PROBLEM_TITLES.iter().chain(&GATE_PROBLEM_TITLES);
        let title = titles.find(|(code, _)| *code == self.code).map_or("", |(_, title)| title);
        let mut body = Map::new();
        body.insert("type".into(), format!("/docs#code-{}", self.code).into());
        body.insert("title".into(), title.into());
        body.insert("status".into(), self.status.as_u16().into());
        body.insert("code".into(), self.code.into());
        body.insert("detail".into(), self.detail.as_str().into());
        body.extend(self.more.clone());
        Value::Object(body).to_string()
    }

    /// As HTTP says it.
    pub fn response(self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.body()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        for (name, value) in self.headers {
            headers.insert(name, value);
        }
        response
    }
}

impl From<&Denial> for Problem {
    fn from(denial: &Denial) -> Self {
        let code = denial.code();
        let status = StatusCode::from_u16(code.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut problem = Self::new(status, code.code, denial.sentence());
        match denial {
            Denial::Engine(Error::Refused(Refusal::Held { resource, holder, remaining, queue_len })) => {
                problem.more.insert("resource".into(), json!(resource));
                problem.more.insert("holder".into(), json!(holder));
                problem.more.insert("remaining_ms".into(), json!(remaining.map(leasehold_support::duration::millis)));
                problem.more.insert("queue_len".into(), json!(queue_len));
            }
            Denial::Recipe(RecipeError::Refused(RecipeRefusal::InFlight { remaining })) => {
                problem.more.insert("remaining_ms".into(), json!(remaining.map(leasehold_support::duration::millis)));
            }
            Denial::Unauthorized | Denial::Ticket(_) => {
                let how = HeaderValue::from_static("Bearer realm=\"leasehold\"");
                problem.headers.push((header::WWW_AUTHENTICATE, how));
            }
            _ => {}
        }
        problem
    }
}

impl From<leasehold_boxoffice::Error> for Problem {
    fn from(error: leasehold_boxoffice::Error) -> Self {
        use leasehold_boxoffice::model::Refusal;
        let more = match error.refusal() {
            Some(Refusal::Conflict { conflicts, .. }) => {
                vec![("conflicts", json!(conflicts)), ("alternative", json!(null))]
            }
            Some(Refusal::Late(resolution)) => vec![("resolution", resolution_json(resolution))],
            _ => Vec::new(),
        };
        more.into_iter()
            .fold(Self::from(&Denial::Office(error)), |problem, (name, value)| problem.with_field(name, value))
    }
}
