//! What is asked under a key, and its limits.

use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::{First, OnceEnd};
use crate::recipe::error::RecipeError;

/// How long a try may be silent before it can be taken over.
const DEFAULT_TTL: Duration = Duration::from_secs(30);
/// How long an answer is kept.
const DEFAULT_KEEP: Duration = Duration::from_secs(24 * 3600);

const MAX_SCOPE_BYTES: usize = 128;
const MAX_KEY_BYTES: usize = 255;
const MAX_TTL: Duration = Duration::from_secs(3600);
const MAX_KEEP: Duration = Duration::from_secs(30 * 24 * 3600);
pub(super) const MAX_ANSWER_BYTES: usize = 1024 * 1024;

/// A request under an idempotency key: where the key is unique, the key, and a digest of what is asked.
#[derive(Clone, Debug)]
pub struct OnceRequest {
    pub(super) scope: String,
    pub(super) key: String,
    pub(super) asked: [u8; 32],
    pub(super) ttl: Duration,
    pub(super) keep: Duration,
    /// SHA-256 of the body.
    body: [u8; 32],
}

impl OnceRequest {
    /// A request with this body. A key that comes again must come with the same body: its SHA-256 is compared, which a caller
    /// of the functions of SQL can show too.
    pub fn new(scope: impl Into<String>, key: impl Into<String>, body: impl AsRef<[u8]>) -> Self {
        let body = Sha256::digest(body.as_ref()).into();
        Self { scope: scope.into(), key: key.into(), asked: body, ttl: DEFAULT_TTL, keep: DEFAULT_KEEP, body }
    }

    /// A request whose digest is known: SHA-256 of what must be the same when the key is used again.
    pub fn from_digest(scope: impl Into<String>, key: impl Into<String>, asked: [u8; 32]) -> Self {
        Self { scope: scope.into(), key: key.into(), asked, ttl: DEFAULT_TTL, keep: DEFAULT_KEEP, body: asked }
    }

    /// A request of HTTP: its method and its path must be the same too.
    #[must_use]
    pub fn of(mut self, method: &str, path: &str) -> Self {
        self.asked = request_digest(method, path, self.body);
        self
    }

    /// How long the first try may be silent before another takes over. Default: 30 s, at most 1 h.
    #[must_use]
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long the answer is kept, from the beginning of the try that gave it. Default: 24 h, at most 30 days.
    #[must_use]
    pub const fn keep(mut self, keep: Duration) -> Self {
        self.keep = keep;
        self
    }

    /// Checks the limits before anything is asked.
    pub(super) fn check(&self) -> Result<(), RecipeError> {
        check_text("scope", &self.scope, MAX_SCOPE_BYTES)?;
        check_text("key", &self.key, MAX_KEY_BYTES)?;
        check_ttl(self.ttl)?;
        if self.keep < Duration::from_millis(1) || self.keep > MAX_KEEP {
            return Err(RecipeError::Invalid("an answer is kept for 1 ms to 30 days".into()));
        }
        Ok(())
    }
}

/// A try that was begun elsewhere may be anything.
pub(super) fn check_first(first: &First) -> Result<(), RecipeError> {
    check_text("scope", &first.scope, MAX_SCOPE_BYTES)?;
    check_text("key", &first.key, MAX_KEY_BYTES)
}

fn check_text(what: &str, text: &str, most: usize) -> Result<(), RecipeError> {
    if text.is_empty() || text.len() > most || text.chars().any(char::is_control) {
        return Err(RecipeError::Invalid(format!("a {what} is 1 to {most} bytes without control characters")));
    }
    Ok(())
}

fn check_ttl(ttl: Duration) -> Result<(), RecipeError> {
    if ttl < Duration::from_millis(1) || ttl > MAX_TTL {
        return Err(RecipeError::Invalid("the ttl of a try is 1 ms to 1 h".into()));
    }
    Ok(())
}

pub(super) fn check_end(end: OnceEnd<'_>) -> Result<(), RecipeError> {
    match end {
        OnceEnd::Finish { body, .. } => check_answer(body),
        OnceEnd::Renew { ttl } => check_ttl(ttl),
        OnceEnd::Abandon => Ok(()),
    }
}

pub(super) fn check_answer(body: &[u8]) -> Result<(), RecipeError> {
    if body.len() > MAX_ANSWER_BYTES {
        return Err(RecipeError::Invalid("an answer is at most 1 MiB".into()));
    }
    Ok(())
}

/// SHA-256 over method, path and the digest of the body. The first two with their lengths: no two requests share a text.
fn request_digest(method: &str, path: &str, body: [u8; 32]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in [method.as_bytes(), path.as_bytes()] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.update(body);
    hash.finalize().into()
}

/// Seconds, as PostgreSQL makes an interval of them.
pub(super) fn seconds(span: Duration) -> f64 {
    span.as_secs_f64()
}

/// Milliseconds, as a file of SQLite has them. At least one: a span that ends at once is none.
pub(super) fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_checked_before_anything_is_asked() {
        let request = |scope: &str, key: &str| OnceRequest::new(scope, key, "x").check();
        assert!(request("payments", &"k".repeat(255)).is_ok());
        assert!(request(&"s".repeat(128), "k").is_ok());
        for (scope, key) in [("", "k"), ("s", ""), (&*"s".repeat(129), "k"), ("s", &*"k".repeat(256)), ("s", "a\0b")] {
            assert!(matches!(request(scope, key), Err(RecipeError::Invalid(_))), "{scope} {key}");
        }
        let spans = |ttl: u64, keep: u64| {
            let spans = OnceRequest::new("s", "k", "").ttl(Duration::from_secs(ttl)).keep(Duration::from_secs(keep));
            spans.check().is_ok()
        };
        assert!(spans(3600, 30 * 86_400));
        assert!(!spans(3601, 1) && !spans(1, 30 * 86_400 + 1) && !spans(0, 1) && !spans(1, 0));
        assert!(
            check_answer(&vec![0; MAX_ANSWER_BYTES]).is_ok() && check_answer(&vec![0; MAX_ANSWER_BYTES + 1]).is_err()
        );
    }

    /// Goal: the parts of a request cannot be moved into each other.
    #[test]
    fn method_path_and_body_are_kept_apart() {
        let asked = |method: &str, path: &str, body: &str| OnceRequest::new("s", "k", body).of(method, path).asked;
        let texts = [("POST", "/a", "b"), ("POST", "/ab", ""), ("POS", "T/a", "b"), ("", "", "POST/ab"), ("", "", "")];
        for (at, one) in texts.iter().enumerate() {
            for (other_at, other) in texts.iter().enumerate() {
                let same = asked(one.0, one.1, one.2) == asked(other.0, other.1, other.2);
                assert_eq!(same, at == other_at, "{one:?} {other:?}");
            }
        }
        let plain = OnceRequest::new("s", "k", "x");
        assert_eq!(plain.asked[..], Sha256::digest("x")[..], "as `sha256('x')` of SQL");
        assert_ne!(plain.asked, asked("", "", "x"));
        assert!(!format!("{plain:?}").contains('x'), "a body may be a secret");
    }
}
