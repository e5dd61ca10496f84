//! Pages: the built files of `/`, `/admin` and `/locks`, and the docs page, all in the binary. They hold no data and need
//! no key.

use axum::body::Body;
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use rust_embed::{EmbeddedFile, RustEmbed};

use super::call::HttpCall;
use super::problem::Problem;
use super::text;
use leasehold_support::hex;

#[derive(RustEmbed)]
#[folder = "src/web/dist"]
struct Dist;

#[derive(RustEmbed)]
#[folder = "src/http/docs"]
struct Docs;

/// For files whose name contains a hash of their content.
const CACHE_FOREVER: &str = "public, max-age=31536000, immutable";
const CACHE_REVALIDATE: &str = "no-cache";

/// `GET /`: the page for buyers. Where nothing is sold, it leads to the locks.
pub async fn buy(call: HttpCall) -> Result<Response<Body>, Problem> {
    serve_file(&call, Dist::get("buy.html"), "buy.html", CACHE_REVALIDATE)
}

/// `GET /admin`: the page for staff of the box office.
pub async fn staff(call: HttpCall) -> Result<Response<Body>, Problem> {
    serve_file(&call, Dist::get("staff.html"), "staff.html", CACHE_REVALIDATE)
}

/// `GET /locks`
pub async fn locks(call: HttpCall) -> Result<Response<Body>, Problem> {
    serve_file(&call, Dist::get("locks.html"), "locks.html", CACHE_REVALIDATE)
}

/// `GET /assets/{*file}`
pub async fn asset(call: HttpCall) -> Result<Response<Body>, Problem> {
    let path = text::percent_decode(call.parts.uri.path().trim_start_matches('/'))?;
    serve_file(&call, Dist::get(&path), &path, CACHE_FOREVER)
}

/// `GET /docs`
pub async fn docs(call: HttpCall) -> Result<Response<Body>, Problem> {
    serve_file(&call, Docs::get("index.html"), "index.html", CACHE_REVALIDATE)
}

/// `GET /docs/{*file}`
pub async fn docs_file(call: HttpCall) -> Result<Response<Body>, Problem> {
    let path = text::percent_decode(call.parts.uri.path().strip_prefix("/docs/").unwrap_or_default())?;
    serve_file(&call, Docs::get(&path), &path, CACHE_REVALIDATE)
}

fn serve_file(
    call: &HttpCall,
    file: Option<EmbeddedFile>,
    path: &str,
    cache: &'static str,
) -> Result<Response<Body>, Problem> {
    let file =
        file.ok_or_else(|| Problem::invalid_with_status(StatusCode::NOT_FOUND, "there is nothing at this path"))?;
    let hash = hex::encode(&file.metadata.sha256_hash()[..16]);
    let etag = format!("\"{hash}\"");
    let known = call.parts.headers.get_all(header::IF_NONE_MATCH).iter();
    let known = known.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    let fresh = known.map(|tag| tag.trim().trim_start_matches("W/")).any(|tag| tag == etag || tag == "*");
    let mut response = Response::new(if fresh { Body::empty() } else { Body::from(file.data.into_owned()) });
    if fresh {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type(path)));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(cache));
    headers.insert(header::ETAG, HeaderValue::from_str(&etag).expect("a quoted hex text"));
    Ok(response)
}

fn content_type(path: &str) -> &'static str {
    match path.rsplit_once('.').map_or("", |(_, end)| end) {
        "html" => "text/html; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "json" | "map" => "application/json",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "ico" => "image/x-icon",
        "woff2" => "font/woff2",
        "txt" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}
