//! The store of a server, asked over HTTP: `leasehold://host:port`, with TLS `leaseholds://…`.
//!
//! The server is found by its RESP port, as an engine is; `LEASE ENGINE` tells the port of HTTP. The option `http=HOST:PORT`
//! tells it too, and then RESP is not asked. The API key is the one of the URL.
//!
//! # What an answer means
//!
//! | answer | error |
//! | --- | --- |
//! | `stale`, `in_flight`, `idempotency_mismatch`, no such queue | [`RecipeError::Refused`] |
//! | 400, 401, 403, 413 | [`RecipeError::Invalid`]: asking again cannot help |
//! | nothing was sent; 408, 429, 503 | [`RecipeError::Unavailable`]: nothing was changed |
//! | it was sent, and there is no answer, or 504, or one that is none of ours | [`RecipeError::Indeterminate`] |
//!
//! A call that only reads is never Indeterminate. No call that changes something is sent twice by itself: a second claim would
//! take other jobs, and leave the first ones to nobody.
//!
//! # Not here
//!
//! Transactions of the caller's: a server takes part in none. Open the database itself for them.

mod answer;
mod client;

use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::clock::Clock;
use crate::engine::remote::{Options, Remote};
use crate::error::Error;
use crate::recipe::error::RecipeError;
use answer::{Effect, HttpAnswer};
use client::HttpClient;

/// What errors call this store.
pub(crate) const STORE_NAME: &str = "server's";

/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// The store of a server. See the module.
pub(crate) struct ServerDatabase {
    client: HttpClient,
}

impl ServerDatabase {
    /// Finds the HTTP port.
    pub async fn open(options: Options, clock: Arc<dyn Clock>) -> Result<Self, RecipeError> {
        let (host, port) = match options.http.clone() {
            Some(place) => place,
            None => (options.host.clone(), find_http_port(options.clone()).await?),
        };
        let http = Options { host, port, ..options };
        let client = HttpClient::new(http, clock).map_err(from_engine_error)?;
        Ok(Self { client })
    }

    /// Asks for something to be read.
    pub async fn get<T: DeserializeOwned>(&self, attempt: &str, path: &str) -> Result<T, RecipeError> {
        self.ask(attempt, Method::GET, path, Vec::new(), Effect::None).await?.read_json()
    }

    /// As [`ServerDatabase::get`]; none: there is no such thing.
    pub async fn find<T: DeserializeOwned>(&self, attempt: &str, path: &str) -> Result<Option<T>, RecipeError> {
        let answer = self.ask(attempt, Method::GET, path, Vec::new(), Effect::None).await?;
        if answer.is_not_found() { Ok(None) } else { answer.read_json().map(Some) }
    }

    /// Asks for a change, and reads what came of it.
    pub async fn post<T: DeserializeOwned>(
        &self,
        attempt: &str,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, RecipeError> {
        self.ask(attempt, Method::POST, path, to_json(body)?, Effect::Change).await?.read_json()
    }

    /// Asks for a change.
    pub async fn post_done(&self, attempt: &str, path: &str, body: &impl Serialize) -> Result<(), RecipeError> {
        self.ask(attempt, Method::POST, path, to_json(body)?, Effect::Change).await?.read_done()
    }

    /// Asks a question that takes a body, and may be answered so much later.
    pub async fn wait_for<T: DeserializeOwned>(
        &self,
        attempt: &str,
        path: &str,
        body: &impl Serialize,
        wait: Duration,
    ) -> Result<T, RecipeError> {
        let timeout = ANSWER_TIMEOUT.saturating_add(wait);
        let answer = self.client.send(Method::POST, path, to_json(body)?, timeout).await;
        HttpAnswer::new(answer, attempt, Effect::None)?.read_json()
    }

    /// Whether the server, its engine and its store answer.
    pub async fn ping(&self) -> Result<(), RecipeError> {
        let attempt = "ask whether the server is ready";
        self.ask(attempt, Method::GET, "/readyz", Vec::new(), Effect::None).await?.read_done()
    }

    async fn ask(
        &self,
        attempt: &str,
        method: Method,
        path: &str,
        body: Vec<u8>,
        effect: Effect,
    ) -> Result<HttpAnswer, RecipeError> {
        let answer = self.client.send(method, path, body, ANSWER_TIMEOUT).await;
        HttpAnswer::new(answer, attempt, effect)
    }

    /// Closes its connections. Later calls are unavailable.
    pub fn close(&self) {
        self.client.close();
    }
}

/// A segment of a path.
pub(crate) fn path_segment(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(char::from(byte)),
            other => encoded.push_str(&format!("%{other:02X}")),
        }
    }
    // A dot alone would be a step in the path, to some who read it.
    if text == "." || text == ".." { encoded.replace('.', "%2E") } else { encoded }
}

async fn find_http_port(options: Options) -> Result<u16, RecipeError> {
    let at = options.at();
    let server = Remote::open(options).await.map_err(from_engine_error)?;
    let port = server.http_port().await;
    // Whatever it says, this connection was for one question.
    let _ = crate::engine::Engine::close(&*server).await;
    let none = || RecipeError::Invalid(format!("the server at {at} has no HTTP port: a store is asked over HTTP"));
    port.map_err(from_engine_error)?.ok_or_else(none)
}

fn to_json(body: &impl Serialize) -> Result<Vec<u8>, RecipeError> {
    serde_json::to_vec(body).map_err(|error| RecipeError::Invalid(format!("it cannot be written as JSON: {error}")))
}

/// What the way to the server said, as a store says it. Nothing was changed yet.
fn from_engine_error(error: Error) -> RecipeError {
    match error {
        Error::Invalid(sentence) => RecipeError::Invalid(sentence),
        Error::Unavailable { attempt, source, .. } => RecipeError::Unavailable { store: STORE_NAME, attempt, source },
        other => RecipeError::unavailable(STORE_NAME, "open a store", other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_segment_of_a_path() {
        assert_eq!(path_segment("mail-1.x_~"), "mail-1.x_~");
        assert_eq!(path_segment("a/b?c d%é"), "a%2Fb%3Fc%20d%25%C3%A9");
        assert_eq!((path_segment("."), path_segment("..")), ("%2E".into(), "%2E%2E".into()));
    }
}
