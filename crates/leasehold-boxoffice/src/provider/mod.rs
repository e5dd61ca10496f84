//! Those who take the money: what we ask of them, and how we believe what they tell.
//!
//! ```text
//!   buyer ──pays──▶ provider ──POST /v1/payments/callback, signed──▶ the office
//!   the office ──refund, status──▶ provider
//! ```
//!
//! # Laws
//!
//! 1. A callback counts when its signature fits its bytes, and only then is it read.
//! 2. A callback counts once, by its `callback_id`; it may come twice, late, and in any order.
//! 3. A callback says for which seats with which tokens the money was taken. What is not the newest token any more is
//!    late money, and never moves a seat by itself.
//! 4. A refund is asked for with an id: asking again is the same refund.
//!
//! # Not here
//!
//! What becomes of late money (the office), how providers are reached (the server).

pub mod script;

use std::future::Future;
use std::pin::Pin;

use serde::{Deserialize, Serialize};

use crate::sign::{self, Forged, Secrets, Stamp};

/// What came of a payment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The money is there.
    Captured,
    /// The money is the buyer's still, and kept for us: captured after the sale, or cancelled.
    Authorised,
    /// There will be none.
    Declined,
    /// There will be none: we asked for it, or the time was over.
    Cancelled,
    /// It went back.
    Refunded,
}

/// A seat and the token under which it was paid for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeatToken {
    /// The seat, or the area.
    pub seat: String,
    /// A decimal text, as everywhere in JSON.
    pub token: String,
}

/// What a provider tells. Fields that we do not know are let be: providers add some.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Callback {
    /// The same for each time the same thing is told.
    pub callback_id: String,
    /// The payment.
    pub payment_ref: String,
    /// For which hold.
    pub hold_id: String,
    /// What came of it.
    pub outcome: Outcome,
    /// In minor units.
    pub amount: u64,
    /// What was paid for, as the payment's metadata has it.
    #[serde(default)]
    pub tokens: Vec<SeatToken>,
    /// When, by the provider's clock: for people. It decides nothing.
    #[serde(default)]
    pub at: String,
    /// Of a refund: the id with which it was asked for. Of one payment several may be due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refund_id: Option<String>,
}

/// Why a callback does not count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unbelieved {
    /// It is not by the provider.
    #[error("the callback is not signed by the payment provider")]
    Forged(#[source] Forged),
    /// It is, and cannot be understood. What is wrong, without what was in it.
    #[error("the callback cannot be understood: {0}")]
    Unreadable(String),
}

/// Ids in a callback are no longer than this.
const MOST_BYTES: usize = 128;
/// Seats in a callback.
const MOST_TOKENS: usize = 1000;

impl Callback {
    /// Reads a callback, after its signature was found right.
    ///
    /// # Errors
    ///
    /// Why it does not count.
    pub fn believe(secrets: &Secrets, header: &str, body: &[u8]) -> Result<Self, Unbelieved> {
        // No window of time: a callback may be late, and its id keeps it from counting twice.
        sign::verify(secrets, header, body, None).map_err(Unbelieved::Forged)?;
        let callback: Self = serde_json::from_slice(body)
            .map_err(|error| Unbelieved::Unreadable(format!("line {}, column {}", error.line(), error.column())))?;
        callback.check().map_err(Unbelieved::Unreadable)?;
        Ok(callback)
    }

    fn check(&self) -> Result<(), String> {
        let ids = [("callback_id", &self.callback_id), ("payment_ref", &self.payment_ref), ("hold_id", &self.hold_id)];
        for (field, id) in ids {
            if id.is_empty() || id.len() > MOST_BYTES || id.chars().any(char::is_control) {
                return Err(format!("{field} is 1 to {MOST_BYTES} bytes without control characters"));
            }
        }
        if self.tokens.len() > MOST_TOKENS || self.at.len() > MOST_BYTES {
            return Err("it is too long".into());
        }
        let digits = |token: &SeatToken| token.token.parse::<u64>().is_ok();
        self.tokens.iter().all(digits).then_some(()).ok_or_else(|| "a token is a decimal text".into())
    }

    /// The body and the signature header with which this goes out: for providers, real ones and those of tests.
    ///
    /// # Errors
    ///
    /// It cannot be written as JSON.
    pub fn signed(&self, secrets: &Secrets, now_ms: u64) -> Result<(Vec<u8>, String), serde_json::Error> {
        let body = serde_json::to_vec(self)?;
        let header = sign::header(secrets, Stamp { at_ms: now_ms, seq: None }, &body);
        Ok((body, header))
    }
}

/// A refund that is owed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refund {
    /// Ours: asking again with the same id is the same refund.
    pub refund_id: String,
    /// Of this payment.
    pub payment_ref: String,
    /// For this hold.
    pub hold_id: String,
    /// In minor units.
    pub amount: u64,
    /// For people.
    pub reason: String,
}

/// How far a payment or a refund is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Progress {
    /// The provider is at it, and will call back.
    Pending,
    /// It is done.
    Done(Outcome),
    /// The provider knows of no such payment.
    Unknown,
}

/// Why a provider could not be asked, or would not.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// Nobody answered, or nobody knows what came of it. Do: ask again with the same id.
    #[error("the payment provider did not answer: {0}")]
    Unavailable(String),
    /// It said no. Do: call a person.
    #[error("the payment provider refused: {0}")]
    Refused(String),
}

/// What is asked of whoever takes the money.
pub trait PaymentProvider: Send + Sync + 'static {
    /// Gives money back. Asking again with the same `refund_id` gives it back once.
    fn refund(&self, refund: Refund) -> Answer<'_>;

    /// What became of a payment: for those whose callback never came.
    fn status(&self, payment_ref: String) -> Answer<'_>;
}

/// What a provider answers, in its own time.
pub type Answer<'a> = Pin<Box<dyn Future<Output = Result<Progress, ProviderError>> + Send + 'a>>;

/// A name for what has a long one: ids of messages are made from it, and are as long as a payment may be.
#[must_use]
pub fn short(name: &str) -> String {
    use sha2::Digest as _;
    sha2::Sha256::digest(name.as_bytes()).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets() -> Secrets {
        Secrets::new(&["what the provider and we know"]).unwrap()
    }

    fn callback() -> Callback {
        Callback {
            callback_id: "cb_1".into(),
            payment_ref: "pi_1".into(),
            hold_id: "h_1".into(),
            outcome: Outcome::Captured,
            amount: 9000,
            tokens: vec![SeatToken { seat: "A-1".into(), token: "41".into() }],
            at: "2026-11-16T01:00:00Z".into(),
            refund_id: None,
        }
    }

    fn believed(body: &str) -> Result<Callback, Unbelieved> {
        let header = sign::header(&secrets(), Stamp { at_ms: 1, seq: None }, body.as_bytes());
        Callback::believe(&secrets(), &header, body.as_bytes())
    }

    /// Goal: the body is the one of the specification, and what is signed comes back whole.
    #[test]
    fn a_signed_callback_is_believed() {
        let (body, header) = callback().signed(&secrets(), 5).unwrap();
        let text = String::from_utf8(body.clone()).unwrap();
        assert!(text.contains(r#""outcome":"captured""#) && text.contains(r#"{"seat":"A-1","token":"41"}"#), "{text}");
        assert_eq!(Callback::believe(&secrets(), &header, &body), Ok(callback()));
        let other = Secrets::new(&["what somebody else knows"]).unwrap();
        assert_eq!(Callback::believe(&other, &header, &body), Err(Unbelieved::Forged(Forged::Wrong)));
    }

    /// Goal: what is signed and nonsense is named without being shown.
    #[test]
    fn nonsense_is_not_shown() {
        let whole =
            r#"{"callback_id":"c","payment_ref":"p","hold_id":"h","outcome":"captured","amount":1,"later":true}"#;
        assert!(believed(whole).is_ok(), "a field we do not know yet");
        let long = "x".repeat(129);
        for bad in [
            "".to_owned(),
            "{}".to_owned(),
            "[]".to_owned(),
            whole.replace("captured", "stolen-secret"),
            whole.replace(":1,", ":-1,"),
            whole.replace(":1,", ":1.5,"),
            whole.replace(r#""c""#, r#""""#),
            whole.replace(r#""p""#, &format!("\"{long}\"")),
            whole.replace(r#""h""#, r#""a\u0000b""#),
            whole.replace(r#""later":true"#, r#""tokens":[{"seat":"A","token":"secret-x"}]"#),
            whole.replace(r#""later":true"#, r#""tokens":[{"seat":"A","token":41}]"#),
        ] {
            let told = believed(&bad).unwrap_err();
            assert!(matches!(told, Unbelieved::Unreadable(_)), "{bad}: {told}");
            assert!(!told.to_string().contains("secret"), "{told}");
        }
    }
}
