//! One HTTP request on its way to its handler: credentials, query, path and body.

use std::future::Future;

use axum::body::Body;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::http::request::Parts;

use super::fields::{self, Fields};
use super::guard::Arrival;
use super::problem::Problem;
use super::{App, text};
use crate::service::{Caller, Denial, Principal, Role, Roles};

/// One request, as its handler gets it.
pub struct HttpCall {
    /// The service and the settings.
    pub app: App,
    /// The head of the request.
    pub parts: Parts,
    pub(super) arrival: Arrival,
    pub(super) body: Option<Body>,
}

impl HttpCall {
    /// Authenticates the request by its Authorization header.
    ///
    /// # Errors
    ///
    /// The key or ticket is not known.
    pub fn authenticate(&self) -> Result<Caller, Problem> {
        let header = self.single_header_value(&header::AUTHORIZATION, "Authorization")?;
        let key =
            header.map(|value| bearer_token(value).ok_or_else(|| Problem::from(&Denial::Unauthorized))).transpose()?;
        self.app.service.authenticate(key, self.arrival.peer).map_err(|denial| Problem::from(&denial))
    }

    /// A header that comes at most once. `shown` is its name in sentences.
    ///
    /// # Errors
    ///
    /// It comes more than once, or is not UTF-8.
    pub fn single_header(&self, name: &'static str, shown: &str) -> Result<Option<&str>, Problem> {
        let value = self.single_header_value(&HeaderName::from_static(name), shown)?;
        let text = value.map(|value| std::str::from_utf8(value.as_bytes())).transpose();
        text.map_err(|_| Problem::invalid(format!("{shown} is not UTF-8")))
    }

    fn single_header_value(&self, name: &HeaderName, shown: &str) -> Result<Option<&HeaderValue>, Problem> {
        let mut found = self.parts.headers.get_all(name).iter();
        match (found.next(), found.next()) {
            (found, None) => Ok(found),
            (_, Some(_)) => Err(Problem::invalid(format!("there is more than one {shown}"))),
        }
    }

    /// The parameters of the query.
    ///
    /// # Errors
    ///
    /// See [`text::parse_query`].
    pub fn query_params<const N: usize>(&self, known: [&str; N]) -> Result<[Option<String>; N], Problem> {
        text::parse_query(self.parts.uri.query(), known)
    }

    /// The resource name in the path.
    ///
    /// # Errors
    ///
    /// It is not percent-encoded UTF-8.
    pub fn resource_name(&self) -> Result<String, Problem> {
        text::percent_decode(self.parts.uri.path().strip_prefix("/v1/resources/").unwrap_or_default())
    }

    /// The fields of the body.
    ///
    /// # Errors
    ///
    /// See [`fields::read_json_body`] and [`Fields::parse`].
    pub async fn json_fields(&mut self) -> Result<Fields, Problem> {
        let body = self.body.take().unwrap_or_default();
        Fields::parse(&fields::read_json_body(&self.app.config, &self.parts.headers, body).await?)
    }

    /// As [`HttpCall::json_fields`], for a body of up to so many bytes.
    ///
    /// # Errors
    ///
    /// As [`HttpCall::json_fields`].
    pub async fn json_fields_up_to(&mut self, most: usize) -> Result<Fields, Problem> {
        Fields::parse(&self.body_bytes(most, &["application/json"]).await?)
    }

    /// A segment of the path, counted from 0 after the first slash.
    ///
    /// # Errors
    ///
    /// It is not percent-encoded UTF-8.
    pub fn path_segment(&self, at: usize) -> Result<String, Problem> {
        text::percent_decode(self.parts.uri.path().split('/').nth(at + 1).unwrap_or_default())
    }

    /// The raw body, of one of these content types and no longer than this.
    ///
    /// # Errors
    ///
    /// See [`fields::read_json_body`].
    pub async fn body_bytes(&mut self, most: usize, kinds: &[&str]) -> Result<Vec<u8>, Problem> {
        let body = self.body.take().unwrap_or_default();
        fields::read_body(&self.app.config, &self.parts.headers, body, most, kinds).await
    }

    /// The body; an empty object where there is none.
    ///
    /// # Errors
    ///
    /// See [`fields::read_json_body`].
    pub async fn optional_body_bytes(&mut self) -> Result<Vec<u8>, Problem> {
        if self.body.as_ref().is_none_or(hyper::body::Body::is_end_stream) {
            return Ok(b"{}".to_vec());
        }
        self.body_bytes(self.app.config.body_bytes, &["application/json"]).await
    }

    /// Whether the Content-Type is this.
    pub fn is_content_type(&self, kind: &str) -> bool {
        fields::is_content_type(&self.parts.headers, kind)
    }

    /// Who calls a demo server. A request without credentials gets this role.
    ///
    /// # Errors
    ///
    /// The credentials are not known.
    pub fn demo_caller(&self, role: Role) -> Result<Caller, Problem> {
        if self.parts.headers.contains_key(header::AUTHORIZATION) {
            return self.authenticate();
        }
        let principal = Principal::new("demo".into(), Roles::from_roles([role]), Vec::new(), None);
        Ok(self.app.service.internal_caller(principal))
    }

    /// The problem for a denial, with Retry-After where it helps.
    pub fn denial_problem(&self, denial: &Denial, caller: &Caller) -> Problem {
        Problem::with_retry_after(denial, &self.app.service, caller)
    }
}

fn bearer_token(value: &HeaderValue) -> Option<&str> {
    let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}

/// Runs a state change to its end on a task of its own: a hang-up drops the handler, not the task.
///
/// # Errors
///
/// The task panicked.
pub async fn run_detached<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> Result<T, Problem> {
    let ended = tokio::spawn(work).await;
    ended.map_err(|_| Problem::unknown("the server gave up on this request: it may have happened"))
}
