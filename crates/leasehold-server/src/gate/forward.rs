//! One request through the gate: what it shows, whether it may go on, and its answer.
//!
//! ```text
//!   request ──▶ key? ──▶ fenced? ──▶ headers ──▶ fences.enter ──▶ upstream ──▶ answer
//!              401, 403    └ no: straight to the upstream   409, 503         503, 504
//! ```
//!
//! # Laws
//!
//! 1. A fenced request is sent once, or not at all.
//! 2. "Not sent" (503) is never confused with "sent, and not answered" (504).
//! 3. A request that was sent goes on without its client: it leaves when the upstream has answered, or when its
//!    connection is closed.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Uri, Version};
use leasehold::fence::counters::{count_admitted, count_rejected};
use leasehold::fence::{FenceKind, FenceVerdict};
use leasehold_core::limits::Limits;
use serde_json::json;
use tokio::time::{timeout, timeout_at};

use super::body::{AnswerBody, Answering, RequestBody, SendProgress, close_and_leave};
use super::fences::{Fences, Flight};
use super::headers::{HeaderRefusal, ShownHeaders, add_forwarded, read_shown, remove_hop_by_hop};
use super::machine::GateRefusal;
use super::metrics::GateMetrics;
use super::tunnel::open_tunnel;
use super::upstream::Upstream;
use crate::http::{Arrival, PhaseTracker, Problem, RequestHandler};
use crate::service::Verb;
use crate::service::keys::KeyRing;

/// How much of the body of a refused request is read,
const MAX_DISCARDED_BYTES: usize = 16 << 20;
/// and for how long.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a gate waits for both ends of a request.
#[derive(Clone, Copy, Debug)]
pub struct ExchangeTimes {
    /// For the head of the answer, after the last part of the request that was sent. Then the client learns that the
    /// outcome is unknown.
    pub answer: Duration,
    /// For the next part of a body, in either direction.
    pub body_idle: Duration,
    /// For the client to take a part of the answer. A client that is paused must not keep its request open for ever.
    pub write_stall: Duration,
}

impl Default for ExchangeTimes {
    fn default() -> Self {
        Self {
            answer: Duration::from_secs(60),
            body_idle: Duration::from_secs(30),
            write_stall: Duration::from_secs(10),
        }
    }
}

/// What all requests share.
#[derive(Clone)]
pub struct Gate {
    /// The fences.
    pub fences: Arc<Fences>,
    /// Where requests go.
    pub upstream: Arc<Upstream>,
    /// Methods that pass without a token.
    pub unfenced: Vec<Method>,
    /// Who may use the gate.
    pub keys: Arc<KeyRing>,
    /// Whether clients come by TLS.
    pub secure: bool,
    /// Sizes of names, and how many of them.
    pub limits: Limits,
    /// Counters.
    pub metrics: Arc<GateMetrics>,
    /// For `Retry-After`: how long a newer request waits for older ones.
    pub drain: Duration,
    /// How long both ends of a request may take.
    pub times: ExchangeTimes,
}

/// Answers the requests of the gate's port.
#[derive(Clone)]
pub struct GateHandler(pub Arc<Gate>);

impl RequestHandler for GateHandler {
    async fn handle_request(
        &self,
        arrival: Arrival,
        phases: &Arc<PhaseTracker>,
        request: Request<Incoming>,
    ) -> Response<Body> {
        let answer = match self.0.admit(phases, &request).await {
            Ok(Admission::Fenced(flight)) => self.0.clone().forward(arrival, phases, request, Some(flight)).await,
            Ok(Admission::Unfenced) => self.0.clone().forward(arrival, phases, request, None).await,
            Ok(Admission::Upgrade) => open_tunnel(&self.0, arrival, phases, request).await,
            Err(problem) => {
                discard_body(request).await;
                Err(problem)
            }
        };
        answer.unwrap_or_else(Problem::response)
    }
}

/// How a request goes on.
enum Admission {
    Fenced(Flight),
    Unfenced,
    Upgrade,
}

impl Gate {
    /// The same gate, with connections to the upstream of its own.
    pub fn for_worker(&self) -> Self {
        let upstream = Arc::new(self.upstream.with_own_connections());
        Self { upstream, ..self.clone() }
    }

    /// Decides about a request by its head. A fenced one waits here for its turn.
    async fn admit(&self, phases: &PhaseTracker, request: &Request<Incoming>) -> Result<Admission, Problem> {
        check_framing(request, phases)?;
        let headers = request.headers();
        let is_fenced = !self.unfenced.contains(request.method());
        let is_upgrade = headers.contains_key(header::UPGRADE);
        if request.method() == Method::CONNECT || is_fenced && is_upgrade {
            return Err(no_upgrade(is_fenced));
        }
        if carries_requests(headers) {
            return Err(no_other_http());
        }
        if !is_fenced {
            self.check_key(headers.get(header::PROXY_AUTHORIZATION), Verb::Inspect, &[])?;
            return Ok(if is_upgrade { Admission::Upgrade } else { Admission::Unfenced });
        }
        let ShownHeaders { shown, resources } = read_shown(headers, &self.limits).map_err(|refusal| {
            count_rejected(FenceKind::Gate);
            header_problem(refusal)
        })?;
        let names: Vec<&str> = resources.iter().map(|name| &**name).collect();
        self.check_key(headers.get(header::PROXY_AUTHORIZATION), Verb::Acquire, &names)?;
        let flight = self.fences.enter(&resources, shown).await.map_err(|refusal| self.refusal_problem(refusal))?;
        count_admitted(FenceKind::Gate);
        Ok(Admission::Fenced(flight))
    }

    /// A key travels in `Proxy-Authorization`: `Authorization` is the upstream's. On the port of the metrics, where there is
    /// no upstream, it travels in `Authorization`.
    pub(super) fn check_key(&self, shown: Option<&HeaderValue>, verb: Verb, names: &[&str]) -> Result<(), Problem> {
        if !self.keys.are_needed() {
            return Ok(());
        }
        let shown = shown.and_then(|value| value.to_str().ok());
        let key = shown.and_then(|text| text.strip_prefix("Bearer ")).map(str::trim);
        let Some(principal) = key.and_then(|key| self.keys.find_principal(key)) else {
            let detail = match verb {
                Verb::Metrics => "the metrics take an API key: Authorization: Bearer KEY",
                _ => "this gate takes an API key: Proxy-Authorization: Bearer KEY",
            };
            return Err(Problem::with_code(StatusCode::UNAUTHORIZED, "unauthorized", detail));
        };
        match self.keys.check_access(&principal, verb, names) {
            None => Ok(()),
            Some(denial) => Err(Problem::from(&denial)),
        }
    }

    fn refusal_problem(&self, refusal: GateRefusal) -> Problem {
        match refusal {
            GateRefusal::Rule { resource, verdict } => {
                count_rejected(FenceKind::Gate);
                rule_problem(&resource, verdict)
            }
            GateRefusal::Busy { resource } => {
                self.metrics.count_busy();
                let detail = format!(
                    "{resource}: requests with an older token are still without an answer; nothing was sent, try again"
                );
                let seconds = self.drain.as_secs().clamp(1, 30).to_string();
                let after = HeaderValue::from_str(&seconds).unwrap_or(HeaderValue::from_static("1"));
                Problem::with_code(StatusCode::SERVICE_UNAVAILABLE, "fence_busy", detail)
                    .with_field("resource", json!(resource))
                    .with_header(header::RETRY_AFTER, after)
            }
            GateRefusal::Full => Problem::unavailable("too many requests are under way: nothing was sent, try again"),
            GateRefusal::Failed => Problem::unavailable("the memory of this gate failed: nothing was sent"),
        }
    }

    /// Sends a request and waits for the head of its answer.
    async fn forward(
        self: Arc<Self>,
        arrival: Arrival,
        phases: &Arc<PhaseTracker>,
        mut request: Request<Incoming>,
        flight: Option<Flight>,
    ) -> Result<Response<Body>, Problem> {
        self.prepare_head(arrival, &mut request)?;
        let cut_handle = flight.as_ref().map(Flight::cut_handle);
        let progress = SendProgress::new();
        let work = self.clone().exchange(request, phases.clone(), flight, progress.clone());
        let mut exchange = Detached::new(work, cut_handle.is_some());
        let mut until = progress.last_part() + self.times.answer;
        loop {
            if let Ok(answer) = timeout_at(until, &mut exchange).await {
                return answer;
            }
            // A long body that still goes on is not late.
            let later = progress.last_part() + self.times.answer;
            if later <= until {
                break;
            }
            until = later;
        }
        match cut_handle {
            Some(handle) if progress.is_whole() => self.fences.cut_if_allowed(&handle),
            Some(handle) => self.fences.cut_half_sent(&handle),
            None => {}
        }
        self.metrics.count_unanswered();
        Err(Problem::unknown("the upstream did not answer in time: the request may have taken effect, or may still"))
    }

    /// Makes the head of a request that of a request to the upstream.
    pub(super) fn prepare_head(&self, arrival: Arrival, request: &mut Request<Incoming>) -> Result<(), Problem> {
        let target = self.upstream.target_of(request.uri().path_and_query());
        let target = target.ok_or_else(|| Problem::invalid("the path cannot be sent to the upstream"))?;
        *request.uri_mut() = Uri::from(target);
        *request.version_mut() = Version::HTTP_11;
        remove_hop_by_hop(request.headers_mut());
        // The length is that of the body: hyper writes it.
        request.headers_mut().remove(header::CONTENT_LENGTH);
        add_forwarded(request.headers_mut(), arrival, self.upstream.host_header(), self.secure);
        Ok(())
    }

    async fn exchange(
        self: Arc<Self>,
        request: Request<Incoming>,
        phases: Arc<PhaseTracker>,
        flight: Option<Flight>,
        progress: Arc<SendProgress>,
    ) -> Result<Response<Body>, Problem> {
        let mut connection = self.upstream.connect().await.map_err(|error| {
            tracing::debug!(target: "leasehold::gate", upstream = self.upstream.authority(), %error, "not connected");
            Problem::unavailable("the upstream could not be reached: nothing was sent")
        })?;
        if flight.as_ref().is_some_and(|flight| !flight.set_connection(connection.close_handle())) {
            connection.close().await;
            return Err(Problem::unavailable("a newer request took over before this one was sent"));
        }
        if phases.is_closed() {
            // The flight first: a cut must not reach a connection that others may take.
            drop(flight);
            self.upstream.keep_idle(connection);
            return Err(Problem::unavailable("the client went away before anything was sent"));
        }
        let (head, incoming) = request.into_parts();
        let idle_limit = self.times.body_idle;
        let body = RequestBody::new(incoming, phases, progress.clone(), idle_limit);
        let sent = connection.sender.try_send_request(Request::from_parts(head, body)).await;
        let response = match sent {
            Ok(response) => response,
            Err(mut error) => {
                let unsent = error.take_message().is_some();
                // On a task of its own: after a cut the request stays for a while, and its client need not wait.
                tokio::spawn(close_and_leave(connection, flight));
                if unsent {
                    return Err(Problem::unavailable("the connection to the upstream was closed: nothing was sent"));
                }
                self.metrics.count_unanswered();
                let detail = "the upstream did not answer: the request may have taken effect, or may still";
                return Err(Problem::unknown(detail));
            }
        };
        let (upstream, metrics) = (self.upstream.clone(), self.metrics.clone());
        let answering = Answering { upstream, connection, flight, progress, idle_limit, metrics };
        Ok(pass_answer(response, answering))
    }
}

/// Reads the body of a request that is refused, within limits. A connection that is closed with unread bytes is reset, and
/// its client might never see the answer.
async fn discard_body(request: Request<Incoming>) {
    // Whoever asks first has sent nothing yet, and reading would tell it to go on.
    if request.headers().contains_key(header::EXPECT) {
        return;
    }
    let body = Limited::new(request.into_body(), MAX_DISCARDED_BYTES);
    let mut body = std::pin::pin!(body);
    let discard = async { while let Some(Ok(_)) = body.frame().await {} };
    let _ = timeout(DISCARD_TIMEOUT, discard).await;
}

/// The answer of the upstream as the client gets it.
pub(super) fn pass_answer(response: Response<Incoming>, answering: Answering) -> Response<Body> {
    let (mut head, incoming) = response.into_parts();
    // An answer in chunks has no other length. hyper would believe this one.
    if head.headers.contains_key(header::TRANSFER_ENCODING) {
        head.headers.remove(header::CONTENT_LENGTH);
    }
    remove_hop_by_hop(&mut head.headers);
    head.version = Version::HTTP_11;
    Response::from_parts(head, Body::new(AnswerBody::new(incoming, answering)))
}

/// A future that goes on by itself when it is dropped, if it should.
struct Detached<F: Future + Send + 'static>
where
    F::Output: Send,
{
    work: Option<Pin<Box<F>>>,
    goes_on: bool,
}

impl<F: Future + Send + 'static> Detached<F>
where
    F::Output: Send,
{
    fn new(work: F, goes_on: bool) -> Self {
        Self { work: Some(Box::pin(work)), goes_on }
    }
}

impl<F: Future + Send + 'static> Future for Detached<F>
where
    F::Output: Send,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Some(work) = &mut self.work else { return Poll::Pending };
        let polled = work.as_mut().poll(cx);
        if polled.is_ready() {
            self.work = None;
        }
        polled
    }
}

impl<F: Future + Send + 'static> Drop for Detached<F>
where
    F::Output: Send,
{
    fn drop(&mut self) {
        if let Some(work) = self.work.take().filter(|_| self.goes_on) {
            tokio::spawn(async move { drop(work.await) });
        }
    }
}

/// Refuses a head with two lengths: whoever reads it by the other one sees another request. And one whose body is coded
/// for this connection: the upstream would get the coded bytes, without the header that says so.
fn check_framing(request: &Request<Incoming>, phases: &PhaseTracker) -> Result<(), Problem> {
    let mut codings = request.headers().get_all(header::TRANSFER_ENCODING).iter();
    let Some(coding) = codings.next() else { return Ok(()) };
    // hyper takes the Content-Length away where both are there.
    if phases.head_names("content-length") {
        return Err(Problem::invalid("a request has a Content-Length or a Transfer-Encoding, not both"));
    }
    if codings.next().is_some() || !coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked") {
        let detail = "the only Transfer-Encoding that this gate knows is chunked";
        return Err(Problem::with_code(StatusCode::NOT_IMPLEMENTED, "invalid", detail));
    }
    Ok(())
}

/// Whether an upgrade is to a protocol that carries HTTP requests: they would reach the upstream without a fence. With
/// `Upgrade: h2c` a client asks an upstream to speak HTTP/2 on the connection.
fn carries_requests(headers: &HeaderMap) -> bool {
    let protocols =
        headers.get_all(header::UPGRADE).iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let names = protocols.map(|protocol| protocol.trim_ascii().to_ascii_lowercase());
    headers.contains_key("http2-settings")
        || names
            .into_iter()
            .any(|name| ["h2", "h3", "http", "tls"].iter().any(|start| name.starts_with(start.as_bytes())))
}

fn no_other_http() -> Problem {
    let detail = "an upgrade to another version of HTTP, or to TLS, would carry requests around the fence";
    Problem::with_code(StatusCode::NOT_IMPLEMENTED, "invalid", detail)
}

fn no_upgrade(is_fenced: bool) -> Problem {
    let detail = if is_fenced {
        "a fenced request ends with its answer: a connection that is taken over has no end to wait for"
    } else {
        "this gate is no proxy for other hosts"
    };
    Problem::with_code(StatusCode::NOT_IMPLEMENTED, "invalid", detail)
}

fn header_problem(refusal: HeaderRefusal) -> Problem {
    match refusal {
        HeaderRefusal::NoToken => {
            let detail =
                "this method is fenced: show the token of your lease (Fencing-Token, Fencing-Lease, Fencing-Resource)";
            Problem::with_code(StatusCode::PRECONDITION_REQUIRED, "token_required", detail)
        }
        HeaderRefusal::Malformed(detail) => Problem::invalid(detail),
    }
}

fn rule_problem(resource: &str, verdict: FenceVerdict) -> Problem {
    let problem = match verdict {
        FenceVerdict::Stale { presented, highest } => {
            let detail = format!("token {presented} is stale: {resource} has seen token {highest}");
            Problem::with_code(StatusCode::CONFLICT, "stale", detail)
                .with_field("presented", json!(presented.to_string()))
                .with_field("highest", json!(highest.to_string()))
        }
        FenceVerdict::OtherLease { presented } => {
            let detail = format!("token {presented} of {resource} belongs to another lease");
            Problem::with_code(StatusCode::CONFLICT, "other_lease", detail)
                .with_field("presented", json!(presented.to_string()))
                .with_field("highest", json!(presented.to_string()))
        }
        FenceVerdict::Admit | FenceVerdict::AdmitAndRemember => Problem::unavailable("the fence admits it"),
    };
    problem.with_field("resource", json!(resource))
}
