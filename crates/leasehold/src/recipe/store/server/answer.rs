//! What an HTTP answer of a server means to a recipe.

use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::STORE_NAME;
use super::client::{ReceivedAnswer, SendError};
use crate::recipe::error::{RecipeError, RecipeRefusal};

/// Whether a call changes something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// It reads only.
    None,
    /// It may have happened, once it was sent.
    Change,
}

/// An answer that came.
pub(super) struct HttpAnswer {
    status: u16,
    body: Vec<u8>,
    attempt: String,
    effect: Effect,
}

/// `application/problem+json`, as far as it is read.
#[derive(Deserialize)]
struct ProblemBody {
    code: String,
    detail: String,
    remaining_ms: Option<u64>,
}

impl HttpAnswer {
    pub fn new(answer: Result<ReceivedAnswer, SendError>, attempt: &str, effect: Effect) -> Result<Self, RecipeError> {
        match answer {
            Ok(ReceivedAnswer { status, body }) => Ok(Self { status, body, attempt: attempt.to_owned(), effect }),
            Err(SendError::NotSent(source)) => {
                Err(RecipeError::Unavailable { store: STORE_NAME, attempt: attempt.to_owned(), source })
            }
            Err(SendError::Never(sentence)) => Err(RecipeError::Invalid(sentence)),
            Err(SendError::NoAnswer(source)) => Err(match effect {
                Effect::None => RecipeError::Unavailable { store: STORE_NAME, attempt: attempt.to_owned(), source },
                Effect::Change => RecipeError::Indeterminate { store: STORE_NAME, attempt: attempt.to_owned(), source },
            }),
        }
    }

    /// Whether there is no such thing.
    pub fn is_not_found(&self) -> bool {
        self.status == 404 && self.problem().is_some_and(|problem| problem.code == "not_found")
    }

    /// The answer of success.
    pub fn read_json<T: DeserializeOwned>(self) -> Result<T, RecipeError> {
        if !(200..300).contains(&self.status) {
            return Err(self.into_error());
        }
        serde_json::from_slice(&self.body).map_err(|_| self.unclear("an answer that this version does not understand"))
    }

    /// Success, whatever the answer says.
    pub fn read_done(self) -> Result<(), RecipeError> {
        if (200..300).contains(&self.status) { Ok(()) } else { Err(self.into_error()) }
    }

    fn problem(&self) -> Option<ProblemBody> {
        serde_json::from_slice(&self.body).ok()
    }

    fn into_error(self) -> RecipeError {
        let Some(problem) = self.problem() else {
            return self.unclear(&format!("HTTP status {}, and not from a Leasehold server", self.status));
        };
        let ProblemBody { code, detail, remaining_ms } = problem;
        match code.as_str() {
            "stale" => {
                let what = detail.strip_suffix(" is stale: another took over").unwrap_or(&detail).to_owned();
                RecipeRefusal::Stale { what }.into()
            }
            "in_flight" => RecipeRefusal::InFlight { remaining: remaining_ms.map(Duration::from_millis) }.into(),
            "idempotency_mismatch" => RecipeRefusal::Mismatch.into(),
            "not_found" => {
                let name = detail.strip_prefix("there is no queue ").unwrap_or(&detail).to_owned();
                RecipeRefusal::NoQueue { name }.into()
            }
            "unavailable" | "quota" | "queue_full" => self.nothing_happened(detail),
            // The body came too slowly to be read whole.
            "invalid" if self.status == 408 => self.nothing_happened(detail),
            "invalid" | "unauthorized" | "forbidden" => RecipeError::Invalid(detail),
            "corrupt" => RecipeError::corrupt(STORE_NAME, "its rows are sound", detail),
            _ => self.unclear(&detail),
        }
    }

    fn nothing_happened(self, detail: String) -> RecipeError {
        RecipeError::Unavailable { store: STORE_NAME, attempt: self.attempt, source: detail.into() }
    }

    /// An answer that does not say whether it happened.
    fn unclear(&self, what: &str) -> RecipeError {
        match self.effect {
            Effect::None => RecipeError::unavailable(STORE_NAME, &self.attempt, what),
            Effect::Change => RecipeError::indeterminate(STORE_NAME, &self.attempt, what),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(status: u16, body: &str, effect: Effect) -> RecipeError {
        let answer = ReceivedAnswer { status, body: body.as_bytes().to_vec() };
        HttpAnswer::new(Ok(answer), "try", effect).and_then(HttpAnswer::read_done).unwrap_err()
    }

    fn kind(error: &RecipeError) -> &'static str {
        match error {
            RecipeError::Refused(_) => "refused",
            RecipeError::Unavailable { .. } => "unavailable",
            RecipeError::Indeterminate { .. } => "indeterminate",
            RecipeError::Invalid(_) => "invalid",
            RecipeError::Corrupt { .. } => "corrupt",
            RecipeError::Work(_) => "work",
        }
    }

    /// Goal: each answer is the error that says what to do next; what is unclear is never called a no.
    #[test]
    fn answers_mean_what_the_table_says() {
        let problem = |code: &str| format!("{{\"code\":\"{code}\",\"detail\":\"why\",\"status\":1}}");
        for (status, code, meaning) in [
            (409, "stale", "refused"),
            (409, "in_flight", "refused"),
            (422, "idempotency_mismatch", "refused"),
            (404, "not_found", "refused"),
            (400, "invalid", "invalid"),
            (413, "invalid", "invalid"),
            (408, "invalid", "unavailable"),
            (401, "unauthorized", "invalid"),
            (403, "forbidden", "invalid"),
            (429, "quota", "unavailable"),
            (503, "unavailable", "unavailable"),
            (504, "unknown_outcome", "indeterminate"),
            (500, "corrupt", "corrupt"),
            (500, "unheard_of", "indeterminate"),
        ] {
            assert_eq!(kind(&error_of(status, &problem(code), Effect::Change)), meaning, "{status} {code}");
        }
        for text in ["", "<html>502 Bad Gateway</html>", "{}", "{\"code\":7}"] {
            assert_eq!(kind(&error_of(502, text, Effect::Change)), "indeterminate", "{text}");
            assert_eq!(kind(&error_of(502, text, Effect::None)), "unavailable", "{text}");
        }
        let sent: Result<ReceivedAnswer, SendError> = Err(SendError::NoAnswer("reset".into()));
        assert_eq!(kind(&HttpAnswer::new(sent, "try", Effect::Change).err().unwrap()), "indeterminate");
        let not_sent: Result<ReceivedAnswer, SendError> = Err(SendError::NotSent("refused".into()));
        assert_eq!(kind(&HttpAnswer::new(not_sent, "try", Effect::Change).err().unwrap()), "unavailable");
        // It was done, and the answer cannot be read.
        let odd = ReceivedAnswer { status: 200, body: b"[]".to_vec() };
        let odd = HttpAnswer::new(Ok(odd), "try", Effect::Change).and_then(|answer| answer.read_json::<String>());
        assert_eq!(kind(&odd.unwrap_err()), "indeterminate");
    }

    #[test]
    fn refusals_say_the_same_as_at_home() {
        let text = "{\"code\":\"not_found\",\"detail\":\"there is no queue mail\"}";
        let error = error_of(404, text, Effect::Change);
        assert_eq!(error.refusal(), Some(&RecipeRefusal::NoQueue { name: "mail".into() }));
        let text = "{\"code\":\"stale\",\"detail\":\"delivery 7 of job 5 is stale: another took over\"}";
        let what = "delivery 7 of job 5".to_owned();
        assert_eq!(error_of(409, text, Effect::Change).refusal(), Some(&RecipeRefusal::Stale { what }));
        let text = "{\"code\":\"in_flight\",\"detail\":\"x\",\"remaining_ms\":70}";
        let remaining = Some(Duration::from_millis(70));
        assert_eq!(error_of(409, text, Effect::Change).refusal(), Some(&RecipeRefusal::InFlight { remaining }));
    }
}
