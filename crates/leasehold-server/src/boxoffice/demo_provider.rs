//! The payment provider of demos and tests: an HTTP server in this process, which calls back over HTTP like a real one.
//!
//! ```text
//!   POST /payments                a payment is made, once for each payment_id       201 {payment_ref, pay_url, mode}
//!   GET  /payments/{ref}          what became of it                                 200 | 404
//!   POST /payments/{ref}/capture  money that was kept is taken                      200 | 404 | 422
//!   POST /payments/{ref}/cancel   what was not taken is let go                      200 | 404
//!   POST /refunds                 money goes back, once for each refund_id          200, and a callback
//!   POST /play                    a buyer pays, and the script is played                 202
//!   GET  /pay/{ref}               the page where a buyer pays; its buttons POST to it
//!   ──▶ POST <callback url>, signed; again and again until it is taken
//! ```
//!
//! It listens on loopback alone, accepts only signed requests (except for its page), and keeps everything in memory.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::body::Body;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use leasehold::clock::Clock;
use leasehold_boxoffice::provider::script::{self, ScriptedAct, ScriptedPayment};
use leasehold_boxoffice::provider::{
    Callback, CallbackOutcome, Created, PaymentRequest, PaymentState, PaymentStatus, Refund, RefundProgress, is_page,
};
use leasehold_boxoffice::sign::{self, Secrets};
use leasehold_boxoffice::webhook;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::outbound::Outbound;
use leasehold_support::duration::millis;
use leasehold_support::sync::lock;
use leasehold_support::time::{rfc3339_at, wall_ms};

mod page;

/// The body of `/play`: a payment, and how it ends.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DemoPayment {
    /// The payment.
    pub payment: ScriptedPayment,
    /// The outcome to play.
    pub act: ScriptedAct,
}

/// The accounts of the provider, and where it calls back.
pub struct DemoPaymentProvider {
    secrets: Secrets,
    outbound: Arc<Outbound>,
    clock: Arc<dyn Clock>,
    /// Its own URL.
    url: String,
    /// The callback URL.
    callback: String,
    accounts: Mutex<HashMap<String, DemoAccount>>,
    /// Counts attempts: with the time, it makes callback ids unique.
    attempts: AtomicU64,
    stop: CancellationToken,
}

struct DemoAccount {
    payment: ScriptedPayment,
    /// The request that created the payment, if it was created by `/payments`.
    made: Option<PaymentRequest>,
    outcome: Option<CallbackOutcome>,
    /// The amount authorised or captured.
    amount: u64,
    /// Captures of this payment fail.
    capture_fails: bool,
    refunds: HashMap<String, u64>,
}

impl DemoAccount {
    fn new(payment: ScriptedPayment) -> Self {
        let (made, outcome, refunds) = (None, None, HashMap::new());
        Self { amount: payment.amount, payment, made, outcome, capture_fails: false, refunds }
    }

    fn status(&self) -> PaymentStatus {
        PaymentStatus {
            outcome: match self.outcome {
                None => PaymentState::Pending,
                Some(CallbackOutcome::Authorised) => PaymentState::Authorised,
                Some(CallbackOutcome::Captured) => PaymentState::Captured,
                Some(CallbackOutcome::Declined) => PaymentState::Declined,
                Some(CallbackOutcome::Cancelled) => PaymentState::Cancelled,
                Some(CallbackOutcome::Refunded) => PaymentState::Refunded,
            },
            amount: self.amount,
            currency: self.payment.currency.clone(),
            hold_id: self.payment.hold_id.clone(),
            payment_id: self.made.as_ref().map(|made| made.payment_id.clone()),
        }
    }
}

/// How old a signature may be.
const SIGNATURE_WINDOW: Duration = Duration::from_mins(5);
/// Bytes of a request body.
const MAX_BODY_BYTES: usize = 64 * 1024;
/// Accounts in memory. At the limit all are dropped: it is a simulation.
const MAX_ACCOUNTS: usize = 100_000;

impl DemoPaymentProvider {
    /// Listens on a free loopback port until `stop`, and returns its URL.
    ///
    /// # Errors
    ///
    /// It cannot listen.
    pub async fn start(
        secrets: Secrets,
        callback: String,
        outbound: Arc<Outbound>,
        clock: Arc<dyn Clock>,
        stop: CancellationToken,
    ) -> std::io::Result<String> {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let accounts = Mutex::new(HashMap::new());
        let provider = Arc::new(Self {
            secrets,
            outbound,
            clock,
            url: url.clone(),
            callback,
            accounts,
            attempts: AtomicU64::new(0),
            stop: stop.clone(),
        });
        tokio::spawn(stop.run_until_cancelled_owned(async move { provider.accept_connections(listener).await }));
        Ok(url)
    }

    async fn accept_connections(self: Arc<Self>, listener: TcpListener) {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                // Most likely out of file descriptors: an immediate retry would spin.
                self.clock.sleep_until(self.clock.now().plus(Duration::from_millis(100))).await;
                continue;
            };
            let provider = self.clone();
            let serve = async move {
                let answer = service_fn(|request| {
                    let provider = provider.clone();
                    async move { Ok::<_, Infallible>(provider.handle_request(request).await) }
                });
                let mut http = http1::Builder::new();
                http.timer(TokioTimer::new()).header_read_timeout(Duration::from_secs(5));
                let _ = http.serve_connection(TokioIo::new(stream), answer).await;
            };
            tokio::spawn(self.stop.clone().run_until_cancelled_owned(serve));
        }
    }

    async fn handle_request(self: &Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let path = head.uri.path().to_owned();
        let Ok(body) = Limited::new(body, MAX_BODY_BYTES).collect().await else {
            return empty_response(StatusCode::PAYLOAD_TOO_LARGE);
        };
        let body = body.to_bytes();
        if let Some(payment) = path.strip_prefix("/pay/") {
            return self.payment_page(&head.method, &decode_segment(payment), &body);
        }
        let signed = if head.method == Method::GET { path.as_bytes() } else { &body };
        let header = head.headers.get(sign::HEADER).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let window = millis(SIGNATURE_WINDOW);
        if sign::verify(&self.secrets, header, signed, Some((wall_ms(), window))).is_err() {
            return empty_response(StatusCode::UNAUTHORIZED);
        }
        let of_payment = path.strip_prefix("/payments/").map(|rest| rest.split_once('/').unwrap_or((rest, "")));
        match (&head.method, path.as_str(), of_payment) {
            (&Method::POST, "/payments", _) => self.create_payment(&body),
            (&Method::POST, "/play", _) => self.play_payment(&body),
            (&Method::POST, "/refunds", _) => self.refund_payment(&body),
            (&Method::GET, _, Some((payment, ""))) => self.payment_status(&decode_segment(payment)),
            (&Method::POST, _, Some((payment, "capture"))) => self.capture_payment(&decode_segment(payment), &body),
            (&Method::POST, _, Some((payment, "cancel"))) => self.cancel_payment(&decode_segment(payment)),
            _ => empty_response(StatusCode::NOT_FOUND),
        }
    }

    fn accounts(&self) -> MutexGuard<'_, HashMap<String, DemoAccount>> {
        let mut accounts = lock(&self.accounts);
        if accounts.len() >= MAX_ACCOUNTS {
            accounts.clear();
        }
        accounts
    }

    /// Creates a payment. The same payment_id again returns the same payment.
    fn create_payment(&self, body: &[u8]) -> Response<Body> {
        let Ok(request) = serde_json::from_slice::<PaymentRequest>(body) else {
            return empty_response(StatusCode::BAD_REQUEST);
        };
        let payment_ref = format!("bank_{}", request.payment_id);
        let mode = request.mode;
        let payment = ScriptedPayment {
            payment_ref: payment_ref.clone(),
            hold_id: request.hold_id.clone(),
            amount: request.amount,
            currency: request.currency.clone(),
            tokens: request.tokens.clone(),
            remaining_ms: request.deadline_ms,
        };
        let fresh = || DemoAccount { made: Some(request), ..DemoAccount::new(payment) };
        self.accounts().entry(payment_ref.clone()).or_insert_with(fresh);
        let pay_url = Some(format!("{}/pay/{}", self.url, utf8_percent_encode(&payment_ref, NON_ALPHANUMERIC)));
        json_response(StatusCode::CREATED, &Created { payment_ref, pay_url, mode })
    }

    fn play_payment(self: &Arc<Self>, body: &[u8]) -> Response<Body> {
        let Ok(asked) = serde_json::from_slice::<DemoPayment>(body) else {
            return empty_response(StatusCode::BAD_REQUEST);
        };
        let name = asked.payment.payment_ref.clone();
        self.accounts().entry(name).or_insert_with(|| DemoAccount::new(asked.payment.clone()));
        self.run_script(&asked.payment, asked.act);
        json_response(StatusCode::ACCEPTED, &RefundProgress::Pending)
    }

    fn run_script(self: &Arc<Self>, payment: &ScriptedPayment, act: ScriptedAct) {
        if let Some(account) = self.accounts().get_mut(&payment.payment_ref) {
            account.capture_fails = act == ScriptedAct::CaptureFails;
        }
        let attempt = format!("{:x}.{}", wall_ms(), self.attempts.fetch_add(1, Ordering::Relaxed));
        for (after, callback) in script::plan(payment, act, &attempt) {
            self.call_back_after(after, callback);
        }
    }

    fn capture_payment(self: &Arc<Self>, payment: &str, body: &[u8]) -> Response<Body> {
        let amount = serde_json::from_slice::<serde_json::Value>(body).ok().and_then(|body| body["amount"].as_u64());
        let Some(amount) = amount else { return empty_response(StatusCode::BAD_REQUEST) };
        let mut accounts = self.accounts();
        let Some(account) = accounts.get_mut(payment) else { return empty_response(StatusCode::NOT_FOUND) };
        match account.outcome {
            Some(CallbackOutcome::Captured) => {}
            Some(CallbackOutcome::Authorised) if amount <= account.amount && !account.capture_fails => {
                (account.outcome, account.amount) = (Some(CallbackOutcome::Captured), amount);
                self.call_back_after(Duration::from_millis(500), script::captured(&account.payment, amount));
            }
            _ => return text_response(StatusCode::UNPROCESSABLE_ENTITY, "nothing is kept for this payment"),
        }
        json_response(StatusCode::OK, &account.status())
    }

    fn cancel_payment(&self, payment: &str) -> Response<Body> {
        let mut accounts = self.accounts();
        let Some(account) = accounts.get_mut(payment) else { return empty_response(StatusCode::NOT_FOUND) };
        if matches!(account.outcome, None | Some(CallbackOutcome::Authorised | CallbackOutcome::Declined)) {
            account.outcome = Some(CallbackOutcome::Cancelled);
        }
        json_response(StatusCode::OK, &account.status())
    }

    fn refund_payment(self: &Arc<Self>, body: &[u8]) -> Response<Body> {
        let Ok(refund) = serde_json::from_slice::<Refund>(body) else { return empty_response(StatusCode::BAD_REQUEST) };
        let mut accounts = self.accounts();
        // An unknown payment is refunded too: the accounts are lost with the process, and it is a simulation.
        let account = accounts.entry(refund.payment_ref.clone()).or_insert_with(|| {
            DemoAccount::new(ScriptedPayment {
                payment_ref: refund.payment_ref.clone(),
                hold_id: refund.hold_id.clone(),
                amount: refund.amount,
                currency: String::from("EUR"),
                tokens: Vec::new(),
                remaining_ms: 0,
            })
        });
        let fresh = account.refunds.insert(refund.refund_id.clone(), refund.amount).is_none();
        account.outcome = Some(CallbackOutcome::Refunded);
        let callback = script::refunded(&account.payment, &refund.refund_id, refund.amount);
        drop(accounts);
        if fresh {
            self.call_back_after(Duration::from_millis(500), callback);
        }
        json_response(StatusCode::OK, &RefundProgress::Pending)
    }

    fn payment_status(&self, payment: &str) -> Response<Body> {
        match self.accounts().get(payment) {
            None => empty_response(StatusCode::NOT_FOUND),
            Some(account) => json_response(StatusCode::OK, &account.status()),
        }
    }

    /// The payment page: one button for each outcome, then back to the shop.
    fn payment_page(self: &Arc<Self>, method: &Method, payment: &str, body: &[u8]) -> Response<Body> {
        let found = self.accounts().get(payment).map(|account| (account.payment.clone(), account.made.clone()));
        let Some((payment, Some(made))) = found else { return empty_response(StatusCode::NOT_FOUND) };
        if *method == Method::GET {
            return html_response(&page::render_page(&payment));
        }
        let asked = std::str::from_utf8(body).unwrap_or_default().strip_prefix("act=").unwrap_or_default();
        let act: Result<ScriptedAct, _> = serde_json::from_value(asked.into());
        match act {
            Ok(act) => self.run_script(&payment, act),
            Err(_) if asked == "back" => {
                drop(self.cancel_payment(&payment.payment_ref));
                // The cancel did not come from the provider's API, so a callback must report it.
                self.call_back_after(Duration::ZERO, script::cancelled(&payment));
            }
            Err(_) => return empty_response(StatusCode::BAD_REQUEST),
        }
        let back = made.return_url.filter(|url| is_page(url));
        match back.and_then(|url| HeaderValue::from_str(&url).ok()) {
            Some(url) => {
                let mut response = empty_response(StatusCode::SEE_OTHER);
                response.headers_mut().insert(header::LOCATION, url);
                response
            }
            None => html_response(&page::done_page()),
        }
    }

    fn call_back_after(self: &Arc<Self>, after: Duration, callback: Callback) {
        let provider = self.clone();
        let stop = self.stop.clone();
        tokio::spawn(stop.run_until_cancelled_owned(async move {
            provider.clock.sleep_until(provider.clock.now().plus(after)).await;
            provider.call_back(callback).await;
        }));
    }

    /// Sends a callback until it is accepted, or refused for good.
    async fn call_back(&self, mut callback: Callback) {
        callback.at = rfc3339_at(wall_ms());
        if callback.outcome != CallbackOutcome::Refunded {
            let mut accounts = self.accounts();
            if let Some(account) = accounts.get_mut(&callback.payment_ref) {
                if account.outcome == Some(CallbackOutcome::Cancelled) && callback.outcome != CallbackOutcome::Cancelled
                {
                    return;
                }
                // A captured payment stays captured, whatever callback is sent later.
                account.outcome =
                    account.outcome.filter(|known| *known != CallbackOutcome::Declined).or(Some(callback.outcome));
                account.amount = callback.amount;
            }
        }
        for failed in 1..8 {
            let Ok((body, signature)) = callback.signed(&self.secrets, wall_ms()) else { return };
            let answer = self.outbound.post(&self.callback, &[(sign::HEADER, &signature)], body).await;
            // A 4xx is final.
            if answer.as_ref().is_ok_and(|answer| answer.is_success() || (400..500).contains(&answer.status)) {
                return;
            }
            let Some(pause) = webhook::pause(failed, 512) else { return };
            self.clock.sleep_until(self.clock.now().plus(pause)).await;
        }
    }
}

fn decode_segment(name: &str) -> String {
    percent_encoding::percent_decode_str(name).decode_utf8_lossy().into_owned()
}

fn html_response(text: &str) -> Response<Body> {
    let mut response = text_response(StatusCode::OK, text);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    response
}

fn text_response(status: StatusCode, text: &str) -> Response<Body> {
    let mut response = Response::new(Body::from(text.to_owned()));
    *response.status_mut() = status;
    response
}

fn empty_response(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

fn json_response(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    let mut response = text_response(status, &serde_json::to_string(value).unwrap_or_default());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
