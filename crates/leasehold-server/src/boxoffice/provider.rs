//! A payment provider that is asked over HTTP. Requests are signed as callbacks are.
//!
//! ```text
//!   POST <url>/refunds          {refund_id, payment_ref, hold_id, amount, reason}   200 progress
//!   GET  <url>/payments/{ref}                                                       200 progress | 404
//! ```

use std::sync::Arc;

use leasehold_boxoffice::provider::{Answer, PaymentProvider, Progress, ProviderError, Refund};
use leasehold_boxoffice::sign::{self, Secrets, Stamp};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::outbound::{self, Outbound};
use crate::cli::moment::wall_ms;

/// Characters of a refusal that staff is shown.
const MOST_WORDS: usize = 200;

/// See the module.
pub struct HttpProvider {
    url: String,
    secrets: Secrets,
    outbound: Arc<Outbound>,
}

impl HttpProvider {
    /// At this URL.
    pub fn new(url: &str, secrets: Secrets, outbound: Arc<Outbound>) -> Self {
        Self { url: url.trim_end_matches('/').to_owned(), secrets, outbound }
    }

    fn signature(&self, what: &[u8]) -> String {
        sign::header(&self.secrets, Stamp { at_ms: wall_ms(), seq: None }, what)
    }

    async fn ask_refund(&self, refund: Refund) -> Result<Progress, ProviderError> {
        let body = serde_json::to_vec(&refund).map_err(|_| ProviderError::Refused("it cannot be written".into()))?;
        let signature = self.signature(&body);
        let url = format!("{}/refunds", self.url);
        let answer = self.outbound.post(&url, &[(sign::HEADER, &signature)], body).await;
        progress(answer)
    }

    async fn ask_status(&self, payment_ref: String) -> Result<Progress, ProviderError> {
        let path = format!("/payments/{}", utf8_percent_encode(&payment_ref, NON_ALPHANUMERIC));
        let signature = self.signature(path.as_bytes());
        let answer = self.outbound.get(&format!("{}{path}", self.url), &[(sign::HEADER, &signature)]).await;
        progress(answer)
    }
}

fn progress(answer: Result<outbound::Answer, outbound::Failed>) -> Result<Progress, ProviderError> {
    let answer = answer.map_err(|failed| ProviderError::Unavailable(failed.to_string()))?;
    match answer.status {
        200..=299 => serde_json::from_slice(&answer.body)
            .map_err(|_| ProviderError::Unavailable("its answer cannot be understood".into())),
        404 => Ok(Progress::Unknown),
        // Not about this payment: our signature, our pace.
        status @ (401 | 403 | 407 | 408 | 425 | 429) => Err(ProviderError::Unavailable(format!("status {status}"))),
        status @ 400..=499 => Err(ProviderError::Refused(reason(status, &answer.body))),
        status => Err(ProviderError::Unavailable(format!("status {status}"))),
    }
}

/// Why it was refused, for staff: the provider's words, as far as they are words.
fn reason(status: u16, body: &[u8]) -> String {
    let words = String::from_utf8_lossy(body);
    let words: String = words.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MOST_WORDS).collect();
    let words = words.trim();
    if words.is_empty() { format!("status {status}") } else { format!("status {status}: {words}") }
}

impl PaymentProvider for HttpProvider {
    fn refund(&self, refund: Refund) -> Answer<'_> {
        Box::pin(self.ask_refund(refund))
    }

    fn status(&self, payment_ref: String) -> Answer<'_> {
        Box::pin(self.ask_status(payment_ref))
    }
}
