//! A payment provider behind an HTTP API. Requests are signed like callbacks.
//!
//! ```text
//!   POST <url>/payments                {payment_id, hold_id, amount, currency, lines, tokens, return_url, deadline_ms, mode}
//!                                      201 {payment_ref, pay_url, mode}
//!   GET  <url>/payments/{ref}          200 {outcome, amount, currency, hold_id, payment_id?} | 404
//!   POST <url>/payments/{ref}/capture  {payment_ref, amount}                            200 as GET | 404
//!   POST <url>/payments/{ref}/cancel   {payment_ref}                                    200 as GET | 404
//!   POST <url>/refunds                 {refund_id, payment_ref, hold_id, amount, reason} 200 progress | 404
//! ```

use std::sync::Arc;

use leasehold_boxoffice::model::ids::well_formed;
use leasehold_boxoffice::provider::{
    CaptureMode, Created, PaymentProvider, PaymentRequest, PaymentStatus, ProviderError, ProviderFuture, Refund,
    RefundProgress, is_page,
};
use leasehold_boxoffice::sign::{self, Secrets, SignatureStamp};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::outbound::{self, Outbound};
use leasehold_support::time::wall_ms;

/// Characters of a refusal that staff sees.
const MAX_REFUSAL_CHARS: usize = 200;
/// The longest URL of a page that buyers are sent to.
const MAX_PAY_URL_BYTES: usize = 2048;

/// A client of one payment provider.
pub struct HttpProvider {
    url: String,
    mode: Option<CaptureMode>,
    secrets: Secrets,
    outbound: Arc<Outbound>,
}

impl HttpProvider {
    /// A provider at this URL. `mode`: whether and how it creates payments.
    pub fn new(url: &str, mode: Option<CaptureMode>, secrets: Secrets, outbound: Arc<Outbound>) -> Self {
        Self { url: url.trim_end_matches('/').to_owned(), mode, secrets, outbound }
    }

    fn signature(&self, what: &[u8]) -> String {
        sign::header(&self.secrets, SignatureStamp { at_ms: wall_ms(), seq: None }, what)
    }

    /// Posts JSON and parses the response. None: status 404.
    async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<Option<T>, ProviderError> {
        let body = serde_json::to_vec(body).map_err(|_| ProviderError::Refused("it cannot be written".into()))?;
        let signature = self.signature(&body);
        let url = format!("{}{path}", self.url);
        parse_response(self.outbound.post(&url, &[(sign::HEADER, &signature)], body).await)
    }

    async fn ask_create(&self, request: PaymentRequest) -> Result<Created, ProviderError> {
        let created: Option<Created> = self.post("/payments", &request).await?;
        let created = created.ok_or_else(|| ProviderError::Unavailable("it makes no payments: status 404".into()))?;
        let fits = |url: &String| url.len() <= MAX_PAY_URL_BYTES && is_page(url);
        if !well_formed(&created.payment_ref) || !created.pay_url.as_ref().is_none_or(fits) {
            return Err(ProviderError::Unavailable("its payment_ref or pay_url cannot be used".into()));
        }
        Ok(created)
    }

    async fn ask_status(&self, payment_ref: String) -> Result<Option<PaymentStatus>, ProviderError> {
        let path = payment_path(&payment_ref);
        let signature = self.signature(path.as_bytes());
        let answer = self.outbound.get(&format!("{}{path}", self.url), &[(sign::HEADER, &signature)]).await;
        check_status(parse_response(answer)?)
    }

    async fn ask_capture(&self, payment_ref: String, amount: u64) -> Result<Option<PaymentStatus>, ProviderError> {
        let path = format!("{}/capture", payment_path(&payment_ref));
        check_status(self.post(&path, &json!({"payment_ref": payment_ref, "amount": amount})).await?)
    }

    async fn ask_cancel(&self, payment_ref: String) -> Result<Option<PaymentStatus>, ProviderError> {
        let path = format!("{}/cancel", payment_path(&payment_ref));
        check_status(self.post(&path, &json!({"payment_ref": payment_ref})).await?)
    }

    async fn ask_refund(&self, refund: Refund) -> Result<RefundProgress, ProviderError> {
        Ok(self.post("/refunds", &refund).await?.unwrap_or(RefundProgress::Unknown))
    }
}

fn payment_path(payment_ref: &str) -> String {
    format!("/payments/{}", utf8_percent_encode(payment_ref, NON_ALPHANUMERIC))
}

fn check_status(status: Option<PaymentStatus>) -> Result<Option<PaymentStatus>, ProviderError> {
    match status {
        Some(status) if !status.is_sound() => Err(ProviderError::Unavailable("its status cannot be used".into())),
        status => Ok(status),
    }
}

fn parse_response<T: DeserializeOwned>(
    answer: Result<outbound::OutboundResponse, outbound::OutboundError>,
) -> Result<Option<T>, ProviderError> {
    let answer = answer.map_err(|failed| ProviderError::Unavailable(failed.to_string()))?;
    match answer.status {
        200..=299 => serde_json::from_slice(&answer.body).map(Some).map_err(|error| {
            ProviderError::Unavailable(format!("its answer cannot be understood: {}", parse_error_brief(&error)))
        }),
        404 => Ok(None),
        // About our signature or rate, not about this payment.
        status @ (401 | 403 | 407 | 408 | 425 | 429) => Err(ProviderError::Unavailable(format!("status {status}"))),
        status @ 400..=499 => Err(ProviderError::Refused(refusal_reason(status, &answer.body))),
        status => Err(ProviderError::Unavailable(format!("status {status}"))),
    }
}

/// What is wrong with a response, without its content.
fn parse_error_brief(error: &serde_json::Error) -> String {
    let text = error.to_string();
    // The name of a missing field is ours, and an integrator needs it.
    match text.split_once(" at line") {
        Some((missing, _)) if missing.starts_with("missing field") => missing.to_owned(),
        _ => format!("line {}, column {}", error.line(), error.column()),
    }
}

/// The provider's reason for a refusal, for staff, without control characters.
fn refusal_reason(status: u16, body: &[u8]) -> String {
    let words = String::from_utf8_lossy(body);
    let words: String = words.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_REFUSAL_CHARS).collect();
    let words = words.trim();
    if words.is_empty() { format!("status {status}") } else { format!("status {status}: {words}") }
}

impl PaymentProvider for HttpProvider {
    fn makes_payments(&self) -> Option<CaptureMode> {
        self.mode
    }

    fn create(&self, request: PaymentRequest) -> ProviderFuture<'_, Created> {
        Box::pin(self.ask_create(request))
    }

    fn status(&self, payment_ref: String) -> ProviderFuture<'_, Option<PaymentStatus>> {
        Box::pin(self.ask_status(payment_ref))
    }

    fn capture(&self, payment_ref: String, amount: u64) -> ProviderFuture<'_, Option<PaymentStatus>> {
        Box::pin(self.ask_capture(payment_ref, amount))
    }

    fn cancel(&self, payment_ref: String) -> ProviderFuture<'_, Option<PaymentStatus>> {
        Box::pin(self.ask_cancel(payment_ref))
    }

    fn refund(&self, refund: Refund) -> ProviderFuture<'_, RefundProgress> {
        Box::pin(self.ask_refund(refund))
    }
}
