//! The description of the API, OpenAPI 3.1. Written by hand, and held to the table of routes and to real answers by
//! tests.

use axum::body::Body;
use hyper::Response;
use hyper::header::{self, HeaderValue};

use super::call::HttpCall;
use super::problem::Problem;

/// The text.
pub const OPENAPI_JSON: &str = include_str!("openapi.json");

/// `GET /openapi.json`
pub async fn openapi_json(_call: HttpCall) -> Result<Response<Body>, Problem> {
    let mut response = Response::new(Body::from(OPENAPI_JSON));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}
