//! The payment provider of demos and tests: a small HTTP server of its own, which calls back over HTTP like a real one.
//!
//! ```text
//!   POST /payments        a buyer pays, and the bank does what the script says   202
//!   POST /refunds         money goes back, once for each refund_id               200, and a callback
//!   GET  /payments/{ref}  what became of it                                      200 | 404
//!   ──▶ POST <callback url>, signed; again and again until it is taken
//! ```
//!
//! It listens on loopback alone, believes only what is signed, and keeps everything in memory.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use leasehold::clock::Clock;
use leasehold_boxoffice::provider::script::{self, Act, Payment};
use leasehold_boxoffice::provider::{Callback, Outcome, Progress, Refund};
use leasehold_boxoffice::sign::{self, Secrets};
use leasehold_boxoffice::webhook;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::outbound::Outbound;
use crate::cli::moment::{rfc3339_at, wall_ms};

/// What a buyer does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// What is paid for.
    pub payment: Payment,
    /// What the bank does.
    pub act: Act,
}

/// See the module.
pub struct Bank {
    secrets: Secrets,
    outbound: Arc<Outbound>,
    clock: Arc<dyn Clock>,
    /// Where it calls back.
    callback: String,
    accounts: Mutex<HashMap<String, Account>>,
    /// How many payments were tried: with the moment, a name for each.
    attempts: AtomicU64,
    stop: CancellationToken,
}

struct Account {
    payment: Payment,
    outcome: Option<Outcome>,
    refunds: HashMap<String, u64>,
}

const MOST_BYTES: usize = 64 * 1024;
/// Payments are forgotten beyond this: it is play money.
const MOST_ACCOUNTS: usize = 100_000;

impl Bank {
    /// Listens on a free port of loopback, and answers until `stop`. Answers its URL.
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
        let bank = Arc::new(Self {
            secrets,
            outbound,
            clock,
            callback,
            accounts,
            attempts: AtomicU64::new(0),
            stop: stop.clone(),
        });
        tokio::spawn(stop.run_until_cancelled_owned(async move { bank.accept(listener).await }));
        Ok(url)
    }

    async fn accept(self: Arc<Self>, listener: TcpListener) {
        loop {
            let Ok((stream, _)) = listener.accept().await else { continue };
            let bank = self.clone();
            let serve = async move {
                let answer = service_fn(|request| {
                    let bank = bank.clone();
                    async move { Ok::<_, Infallible>(bank.answer(request).await) }
                });
                let mut http = http1::Builder::new();
                http.timer(TokioTimer::new()).header_read_timeout(Duration::from_secs(5));
                let _ = http.serve_connection(TokioIo::new(stream), answer).await;
            };
            tokio::spawn(self.stop.clone().run_until_cancelled_owned(serve));
        }
    }

    async fn answer(self: &Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let path = head.uri.path().to_owned();
        let Ok(body) = Limited::new(body, MOST_BYTES).collect().await else {
            return status(StatusCode::PAYLOAD_TOO_LARGE);
        };
        let body = body.to_bytes();
        let signed = if head.method == Method::GET { path.as_bytes() } else { &body };
        let header = head.headers.get(sign::HEADER).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let window = Duration::from_mins(5).as_millis() as u64;
        if sign::verify(&self.secrets, header, signed, Some((wall_ms(), window))).is_err() {
            return status(StatusCode::UNAUTHORIZED);
        }
        match (&head.method, path.as_str()) {
            (&Method::POST, "/payments") => self.pay(&body),
            (&Method::POST, "/refunds") => self.refund(&body),
            (&Method::GET, path) => match path.strip_prefix("/payments/") {
                Some(payment) => self.look(payment),
                None => status(StatusCode::NOT_FOUND),
            },
            _ => status(StatusCode::NOT_FOUND),
        }
    }

    fn pay(self: &Arc<Self>, body: &[u8]) -> Response<Body> {
        let Ok(order) = serde_json::from_slice::<Order>(body) else { return status(StatusCode::BAD_REQUEST) };
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        if accounts.len() >= MOST_ACCOUNTS {
            accounts.clear();
        }
        let account = Account { payment: order.payment.clone(), outcome: None, refunds: HashMap::new() };
        accounts.entry(order.payment.payment_ref.clone()).or_insert(account);
        drop(accounts);
        let attempt = format!("{:x}.{}", wall_ms(), self.attempts.fetch_add(1, Ordering::Relaxed));
        for (after, told) in script::plan(&order.payment, order.act, &attempt) {
            self.tell_later(after, told);
        }
        json(StatusCode::ACCEPTED, &Progress::Pending)
    }

    fn refund(self: &Arc<Self>, body: &[u8]) -> Response<Body> {
        let Ok(refund) = serde_json::from_slice::<Refund>(body) else { return status(StatusCode::BAD_REQUEST) };
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        // Money that this bank never saw (it forgets with its process) goes back all the same: it is play.
        let account = accounts.entry(refund.payment_ref.clone()).or_insert_with(|| Account {
            payment: Payment {
                payment_ref: refund.payment_ref.clone(),
                hold_id: refund.hold_id.clone(),
                amount: refund.amount,
                tokens: Vec::new(),
                remaining_ms: 0,
            },
            outcome: None,
            refunds: HashMap::new(),
        });
        let fresh = account.refunds.insert(refund.refund_id.clone(), refund.amount).is_none();
        account.outcome = Some(Outcome::Refunded);
        let told = script::refunded(&account.payment, &refund.refund_id, refund.amount);
        drop(accounts);
        if fresh {
            self.tell_later(Duration::from_millis(500), told);
        }
        json(StatusCode::OK, &Progress::Pending)
    }

    fn look(&self, payment: &str) -> Response<Body> {
        let name = percent_encoding::percent_decode_str(payment).decode_utf8_lossy();
        let accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        match accounts.get(name.as_ref()).map(|account| account.outcome) {
            None => status(StatusCode::NOT_FOUND),
            Some(None) => json(StatusCode::OK, &Progress::Pending),
            Some(Some(outcome)) => json(StatusCode::OK, &Progress::Done(outcome)),
        }
    }

    fn tell_later(self: &Arc<Self>, after: Duration, told: Callback) {
        let bank = self.clone();
        let stop = self.stop.clone();
        tokio::spawn(stop.run_until_cancelled_owned(async move {
            bank.clock.sleep_until(bank.clock.now().plus(after)).await;
            bank.tell(told).await;
        }));
    }

    /// Calls back until it is taken, or for good.
    async fn tell(&self, mut told: Callback) {
        told.at = rfc3339_at(wall_ms());
        if told.outcome != Outcome::Refunded {
            let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(account) = accounts.get_mut(&told.payment_ref) {
                // What was captured stays so, whatever arrives after it.
                account.outcome = account.outcome.filter(|known| *known != Outcome::Declined).or(Some(told.outcome));
            }
        }
        for failed in 1..8 {
            let Ok((body, signature)) = told.signed(&self.secrets, wall_ms()) else { return };
            let answer = self.outbound.post(&self.callback, &[(sign::HEADER, &signature)], body).await;
            // Refused as it stands is refused for good.
            if answer.as_ref().is_ok_and(|answer| answer.is_fine() || (400..500).contains(&answer.status)) {
                return;
            }
            let Some(pause) = webhook::pause(failed, 512) else { return };
            self.clock.sleep_until(self.clock.now().plus(pause)).await;
        }
    }
}

fn status(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

fn json(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    crate::http::shape::json(status, value)
}
