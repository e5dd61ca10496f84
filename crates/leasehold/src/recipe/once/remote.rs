//! `once` at a server, over HTTP.

use serde::Deserialize;
use serde_json::{Value, json};

use super::request::millis;
use super::{Answer, Begun, First, OnceEnd, OnceRequest};
use crate::recipe::error::{RecipeError, RecipeRefusal};
use crate::recipe::store::server::{STORE_NAME, ServerDatabase};

/// What a server says to a begin that is not refused.
#[derive(Deserialize)]
struct BegunAnswer {
    outcome: String,
    token: Option<String>,
    status: Option<i32>,
    body: Option<String>,
    body_hex: Option<String>,
}

impl ServerDatabase {
    pub(super) async fn once_begin(&self, request: &OnceRequest) -> Result<Begun, RecipeError> {
        const ATTEMPT: &str = "begin a try";
        let OnceRequest { scope, key, asked, .. } = request;
        let body = json!({
            "scope": scope, "key": key, "asked_sha256": to_hex(asked),
            "ttl_ms": millis(request.ttl), "keep_ms": millis(request.keep),
        });
        let begun = match self.post::<BegunAnswer>(ATTEMPT, "/v1/once/begin", &body).await {
            Ok(begun) => begun,
            Err(RecipeError::Refused(RecipeRefusal::InFlight { remaining: Some(remaining) })) => {
                return Ok(Begun::InFlight { remaining });
            }
            Err(RecipeError::Refused(RecipeRefusal::Mismatch)) => return Ok(Begun::Mismatch),
            Err(error) => return Err(error),
        };
        let token = begun.token.as_deref().and_then(|token| token.parse().ok());
        let stored = begun.body.map(String::into_bytes).or_else(|| from_hex(&begun.body_hex?));
        match (begun.outcome.as_str(), token, begun.status.zip(stored)) {
            ("first", Some(token), _) => Ok(Begun::First(First { scope: scope.clone(), key: key.clone(), token })),
            ("replay", _, Some((status, body))) => Ok(Begun::Replay(Answer { status, body, replayed: true })),
            _ => {
                Err(RecipeError::indeterminate(STORE_NAME, ATTEMPT, "an answer that this version does not understand"))
            }
        }
    }

    /// False: stale, and nothing was written.
    pub(super) async fn once_end(&self, first: &First, end: OnceEnd<'_>) -> Result<bool, RecipeError> {
        let how = match end {
            OnceEnd::Finish { status, body } => match readable_text(body) {
                Some(text) => json!({"how": "finish", "status": status, "body": text}),
                None => json!({"how": "finish", "status": status, "body_hex": to_hex(body)}),
            },
            OnceEnd::Renew { ttl } => json!({"how": "renew", "ttl_ms": millis(ttl)}),
            OnceEnd::Abandon => json!({"how": "abandon"}),
        };
        self.end_try("end a try", first, how).await
    }

    /// Whether the answer of this try is the stored one.
    pub(super) async fn once_is_stored(&self, first: &First) -> Result<bool, RecipeError> {
        self.end_try("read the answer of a try", first, json!({"how": "ask"})).await
    }

    async fn end_try(&self, attempt: &str, first: &First, mut body: Value) -> Result<bool, RecipeError> {
        let First { scope, key, token } = first;
        body["scope"] = json!(scope);
        body["key"] = json!(key);
        body["token"] = json!(token.to_string());
        match self.post_done(attempt, "/v1/once/end", &body).await {
            Ok(()) => Ok(true),
            Err(RecipeError::Refused(RecipeRefusal::Stale { .. })) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Text that JSON does not make much longer: a control character would become six bytes.
fn readable_text(body: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(body).ok()?;
    let fine = |letter: char| !letter.is_control() || matches!(letter, '\n' | '\r' | '\t');
    text.chars().all(fine).then_some(text)
}

fn to_hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing into a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    if !text.len().is_multiple_of(2) || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    text.as_bytes().chunks(2).map(digits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_can_read_goes_as_text() {
        assert_eq!(readable_text("é\n{}\t".as_bytes()), Some("é\n{}\t"));
        assert_eq!((readable_text(b"\0"), readable_text(&[0xff]), readable_text(b"\x1b[1m")), (None, None, None));
    }

    #[test]
    fn bytes_go_as_hexadecimal_digits_and_come_back() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(from_hex(&to_hex(&all)), Some(all));
        assert_eq!((to_hex(&[0, 255]), from_hex("")), ("00ff".into(), Some(Vec::new())));
        for odd in ["0", "0g", "+1", "é"] {
            assert_eq!(from_hex(odd), None, "{odd}");
        }
    }
}
