//! Payment providers: the requests to them, and how their callbacks are verified.
//!
//! ```text
//!   the office ──create──▶ provider ◀──pays── buyer
//!   provider ──POST /v1/payments/callback, signed──▶ the office ──sale──▶ ledger
//!   the office ──capture, cancel, refund, status──▶ provider
//! ```
//!
//! # Laws
//!
//! 1. A callback counts when its signature fits its bytes, and only then is it read.
//! 2. A callback counts once, by its `callback_id`; it may come twice, late, and in any order.
//! 3. A callback says for which seats with which tokens the money was taken. What is not the newest token any more is
//!    late money, and never moves a seat by itself.
//! 4. Whatever is asked for has an id: asking again is the same payment, the same capture, the same refund.
//! 5. A status says outcome, amount, currency and hold. One that says less is no status: it settles nothing.
//! 6. A payment that is only authorised is captured after the sale committed, and cancelled where there was none.
//!
//! # Not here
//!
//! What becomes of late money (the office), how providers are reached (the server).

pub mod script;

use std::future::Future;
use std::pin::Pin;

use serde::{Deserialize, Serialize};

pub use crate::model::order::MAX_AMOUNT;
use crate::sign::{self, Forged, Secrets, SignatureStamp};

/// What came of a payment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallbackOutcome {
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

/// A callback of a provider. Unknown fields are ignored: providers add some.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Callback {
    /// The same for each time the same thing is told.
    pub callback_id: String,
    /// The payment.
    pub payment_ref: String,
    /// For which hold.
    pub hold_id: String,
    /// What came of it.
    pub outcome: CallbackOutcome,
    /// In minor units.
    pub amount: u64,
    /// Of which currency, as ISO 4217 has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
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

/// Why a callback is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallbackError {
    /// It is not by the provider.
    #[error("the callback is not signed by the payment provider")]
    Forged(#[source] Forged),
    /// It is, and cannot be understood. What is wrong, without what was in it.
    #[error("the callback cannot be understood: {0}")]
    Unreadable(String),
}

/// The longest id in a callback.
const MAX_CALLBACK_ID_BYTES: usize = 128;
/// The most seats in a callback.
const MAX_CALLBACK_TOKENS: usize = 1000;

impl Callback {
    /// Verifies the signature of a callback, then parses it.
    ///
    /// # Errors
    ///
    /// Why it does not count.
    pub fn verify(secrets: &Secrets, header: &str, body: &[u8]) -> Result<Self, CallbackError> {
        // No window of time: a callback may be late, and its id keeps it from counting twice.
        sign::verify(secrets, header, body, None).map_err(CallbackError::Forged)?;
        let callback: Self = serde_json::from_slice(body)
            .map_err(|error| CallbackError::Unreadable(format!("line {}, column {}", error.line(), error.column())))?;
        callback.check().map_err(CallbackError::Unreadable)?;
        Ok(callback)
    }

    fn check(&self) -> Result<(), String> {
        let ids = [("callback_id", &self.callback_id), ("payment_ref", &self.payment_ref), ("hold_id", &self.hold_id)];
        for (field, id) in ids {
            if id.is_empty() || id.len() > MAX_CALLBACK_ID_BYTES || id.chars().any(char::is_control) {
                return Err(format!("{field} is 1 to {MAX_CALLBACK_ID_BYTES} bytes without control characters"));
            }
        }
        if self.tokens.len() > MAX_CALLBACK_TOKENS || self.at.len() > MAX_CALLBACK_ID_BYTES {
            return Err("it is too long".into());
        }
        if self.amount > MAX_AMOUNT {
            return Err(format!("amount is at most {MAX_AMOUNT}"));
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
        let header = sign::header(secrets, SignatureStamp { at_ms: now_ms, seq: None }, &body);
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

/// When a provider takes the money.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CaptureMode {
    /// Kept for us at first, taken after the sale. Nobody's money moves for seats that are gone.
    Authorise,
    /// Taken at once.
    Capture,
}

/// What is paid for, for the provider's page and receipt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PaymentLine {
    /// The seat, or the area.
    pub id: String,
    /// How many.
    pub qty: u32,
    /// Of one, in minor units.
    pub price: u64,
}

/// A payment that a provider is asked to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PaymentRequest {
    /// Ours: asking again with the same id is the same payment.
    pub payment_id: String,
    /// For which hold. It comes back in callbacks and statuses.
    pub hold_id: String,
    /// In minor units.
    pub amount: u64,
    /// Of which currency.
    pub currency: String,
    /// What is paid for.
    pub lines: Vec<PaymentLine>,
    /// The seats and their tokens. They come back in callbacks.
    pub tokens: Vec<SeatToken>,
    /// Where the buyer goes afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub return_url: Option<String>,
    /// How long the seats wait for the money, from now, in milliseconds.
    pub deadline_ms: u64,
    /// When the money shall be taken. A method that cannot authorise takes it at once.
    pub mode: CaptureMode,
}

/// A payment that a provider made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Created {
    /// The provider's name for it.
    pub payment_ref: String,
    /// Where the buyer pays, if the provider has a page.
    #[serde(default)]
    pub pay_url: Option<String>,
    /// When the money is taken.
    pub mode: CaptureMode,
}

/// Where a payment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PaymentState {
    /// Nothing came of it yet.
    Pending,
    /// See [`CallbackOutcome::Authorised`].
    Authorised,
    /// See [`CallbackOutcome::Captured`].
    Captured,
    /// See [`CallbackOutcome::Declined`].
    Declined,
    /// See [`CallbackOutcome::Cancelled`].
    Cancelled,
    /// See [`CallbackOutcome::Refunded`].
    Refunded,
}

/// What a provider says of a payment when it is asked. All of it is needed: a bare "captured" settles nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PaymentStatus {
    /// Where it is.
    pub outcome: PaymentState,
    /// How much was authorised or captured, in minor units; of a payment that is pending, how much it is for.
    pub amount: u64,
    /// Of which currency.
    pub currency: String,
    /// For which hold, by the provider's own records.
    pub hold_id: String,
    /// The id that it was made with, if we made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payment_id: Option<String>,
}

/// How far a refund is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefundProgress {
    /// The provider is at it, and will call back.
    Pending,
    /// It is done.
    Done(CallbackOutcome),
    /// The provider knows of no such payment.
    Unknown,
}

impl PaymentStatus {
    /// Whether what is said can be kept.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.amount <= MAX_AMOUNT && crate::model::ids::well_formed(&self.hold_id) && self.currency.len() == 3
    }
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

/// A payment provider.
pub trait PaymentProvider: Send + Sync + 'static {
    /// When payments that we ask it to make are to be captured. None: it makes none, and payments begin with the shop.
    fn makes_payments(&self) -> Option<CaptureMode>;

    /// Makes a payment. Asking again with the same `payment_id` is the same payment.
    fn create(&self, request: PaymentRequest) -> ProviderFuture<'_, Created>;

    /// What became of a payment: for those whose callback never came. None: it knows of no such payment.
    fn status(&self, payment_ref: String) -> ProviderFuture<'_, Option<PaymentStatus>>;

    /// Takes money that was authorised. Asking again takes it once. None: it knows of no such payment.
    fn capture(&self, payment_ref: String, amount: u64) -> ProviderFuture<'_, Option<PaymentStatus>>;

    /// Ends a payment that is pending or authorised. Answers where it is then: one that is captured stays so. None: it
    /// knows of no such payment.
    fn cancel(&self, payment_ref: String) -> ProviderFuture<'_, Option<PaymentStatus>>;

    /// Gives money back. Asking again with the same `refund_id` gives it back once.
    fn refund(&self, refund: Refund) -> ProviderFuture<'_, RefundProgress>;
}

/// The future of a request to a provider.
pub type ProviderFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, ProviderError>> + Send + 'a>>;

/// Whether a buyer may be sent there: a page, without a password in its address.
#[must_use]
pub fn is_page(url: &str) -> bool {
    url::Url::parse(url).is_ok_and(|url| {
        matches!(url.scheme(), "https" | "http")
            && url.has_host()
            && url.username().is_empty()
            && url.password().is_none()
    })
}

/// A short digest of a name, for ids of messages: a payment's own name may be as long as an id.
#[must_use]
pub fn short_id(name: &str) -> String {
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
            outcome: CallbackOutcome::Captured,
            amount: 9000,
            currency: None,
            tokens: vec![SeatToken { seat: "A-1".into(), token: "41".into() }],
            at: "2026-11-16T01:00:00Z".into(),
            refund_id: None,
        }
    }

    fn believed(body: &str) -> Result<Callback, CallbackError> {
        let header = sign::header(&secrets(), SignatureStamp { at_ms: 1, seq: None }, body.as_bytes());
        Callback::verify(&secrets(), &header, body.as_bytes())
    }

    /// Goal: the body is the one of the specification, and what is signed comes back whole.
    #[test]
    fn a_signed_callback_is_believed() {
        let (body, header) = callback().signed(&secrets(), 5).unwrap();
        let text = String::from_utf8(body.clone()).unwrap();
        assert!(text.contains(r#""outcome":"captured""#) && text.contains(r#"{"seat":"A-1","token":"41"}"#), "{text}");
        assert_eq!(Callback::verify(&secrets(), &header, &body), Ok(callback()));
        let other = Secrets::new(&["what somebody else knows"]).unwrap();
        assert_eq!(Callback::verify(&other, &header, &body), Err(CallbackError::Forged(Forged::Wrong)));
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
            whole.replace(":1,", ":9007199254740992,"),
            whole.replace(r#""c""#, r#""""#),
            whole.replace(r#""p""#, &format!("\"{long}\"")),
            whole.replace(r#""h""#, r#""a\u0000b""#),
            whole.replace(r#""later":true"#, r#""tokens":[{"seat":"A","token":"secret-x"}]"#),
            whole.replace(r#""later":true"#, r#""tokens":[{"seat":"A","token":41}]"#),
        ] {
            let told = believed(&bad).unwrap_err();
            assert!(matches!(told, CallbackError::Unreadable(_)), "{bad}: {told}");
            assert!(!told.to_string().contains("secret"), "{told}");
        }
    }
}
