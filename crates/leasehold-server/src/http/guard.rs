//! Checks of Host and Origin, and the security headers of responses.
//!
//! Any page in a browser on this machine can reach a server on loopback. What stops it:
//!
//! - the **Host** must be a name of this server: a page that rebinds its own name to our address is refused;
//! - **Origin** and **Sec-Fetch-Site** must say that the request comes from our own pages, or from no page at all;
//! - there are no cookies and no CORS headers, and bodies must be `application/json`.

use std::net::IpAddr;

use axum::body::Body;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, Version};

use super::HttpConfig;
use super::problem::Problem;
use crate::service::PeerAddress;

/// The two ends of the connection of a request.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The address of the client.
    pub peer: PeerAddress,
    /// The local address.
    pub local: IpAddr,
}

const CONTENT_SECURITY_POLICY: &str =
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'";

/// Whether the path is of the API. Other paths are pages, which any site may link to.
pub fn is_api(path: &str) -> bool {
    path.starts_with("/v1/") || path == "/metrics"
}

/// Refuses a foreign Host or Origin.
///
/// # Errors
///
/// What is wrong with it.
pub fn check_request<B>(config: &HttpConfig, arrival: Arrival, request: &Request<B>) -> Result<(), Problem> {
    let host = request_host(request)?;
    if host.as_ref().is_some_and(|host| !is_our_host(config, arrival.local, &host_name(host))) {
        let detail = "this server does not answer to the Host of this request: add the name to its hosts";
        return Err(Problem::forbidden(detail));
    }
    let changes = !matches!(*request.method(), Method::GET | Method::HEAD);
    if (changes || is_api(request.uri().path()))
        && is_foreign_origin(request.headers(), host.as_deref().unwrap_or_default())
    {
        return Err(Problem::forbidden("requests from pages of another origin are refused"));
    }
    Ok(())
}

/// The authority that the request is for: of its target, else of its Host header. HTTP/1.0 health checks have none;
/// browsers always have one.
fn request_host<B>(request: &Request<B>) -> Result<Option<String>, Problem> {
    if let Some(authority) = request.uri().authority() {
        return Ok(Some(authority.as_str().to_ascii_lowercase()));
    }
    let mut hosts = request.headers().get_all(header::HOST).iter();
    match (hosts.next().map(HeaderValue::to_str), hosts.next()) {
        (Some(Ok(host)), None) => Ok(Some(host.to_ascii_lowercase())),
        (None, _) if request.version() == Version::HTTP_10 => Ok(None),
        _ => Err(Problem::invalid("a request has one Host header")),
    }
}

/// The name or address in an authority, without its port.
fn host_name(authority: &str) -> String {
    let name = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => authority.rsplit_once(':').map_or(authority, |(name, _)| name),
    };
    name.trim_end_matches('.').to_owned()
}

fn is_our_host(config: &HttpConfig, local: IpAddr, name: &str) -> bool {
    if let Ok(address) = name.parse::<IpAddr>() {
        let address = address.to_canonical();
        if address.is_loopback() || address == local.to_canonical() {
            return true;
        }
    }
    name == "localhost"
        || name.ends_with(".localhost")
        || config.hosts.iter().any(|host| host == "*" || host_name(&host.to_ascii_lowercase()) == name)
}

fn is_foreign_origin(headers: &HeaderMap, host: &str) -> bool {
    let text = |name: &HeaderName| headers.get_all(name).iter().map(|value| value.to_str().unwrap_or("unreadable"));
    const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
    let elsewhere = text(&SITE).any(|site| !matches!(site, "same-origin" | "none"));
    // The scheme is ignored: a proxy that ends TLS before us has another one.
    let other = text(&header::ORIGIN).any(|origin| {
        let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        authority.is_none_or(|authority| !authority.eq_ignore_ascii_case(host))
    });
    elsewhere || other
}

/// Adds the security headers.
pub fn set_security_headers(mut response: Response<Body>, is_api: bool) -> Response<Body> {
    let headers = response.headers_mut();
    let mut set = |name: HeaderName, value: &'static str| {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    };
    set(header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY);
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(header::X_FRAME_OPTIONS, "DENY");
    set(header::REFERRER_POLICY, "no-referrer");
    set(HeaderName::from_static("cross-origin-resource-policy"), "same-origin");
    set(header::CACHE_CONTROL, if is_api { "no-store" } else { "no-cache" });
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: only names of this server pass, whatever port or case they come with.
    #[test]
    fn a_host_is_ours_or_refused() {
        let config = HttpConfig { hosts: vec!["locks.example:7400".into()], ..HttpConfig::default() };
        let local: IpAddr = "10.0.0.7".parse().unwrap();
        let passes = |authority: &str| is_our_host(&config, local, &host_name(&authority.to_ascii_lowercase()));
        for ours in [
            "localhost",
            "LOCALHOST:7400",
            "localhost.:1",
            "app.localhost",
            "127.0.0.1:7400",
            "127.9.9.9",
            "[::1]:7400",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "10.0.0.7",
            "locks.example",
            "Locks.Example:80",
        ] {
            assert!(passes(ours), "{ours}");
        }
        for other in ["", ":7400", "evil.example", "localhost.evil.example", "10.0.0.8", "xlocalhost", "[::2]", "*"] {
            assert!(!passes(other), "{other}");
        }
        let any = HttpConfig { hosts: vec!["*".into()], ..HttpConfig::default() };
        assert!(is_our_host(&any, local, "whatever.example"));
    }

    /// Goal: a page elsewhere is told from our own pages and from no page at all.
    #[test]
    fn an_origin_is_ours_or_foreign() {
        let foreign = |name: &'static str, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static(value));
            is_foreign_origin(&headers, "localhost:7400")
        };
        assert!(!is_foreign_origin(&HeaderMap::new(), "localhost:7400"));
        for (name, value) in [
            ("origin", "http://localhost:7400"),
            ("origin", "https://LOCALHOST:7400"),
            ("sec-fetch-site", "same-origin"),
            ("sec-fetch-site", "none"),
        ] {
            assert!(!foreign(name, value), "{name}: {value}");
        }
        for (name, value) in [
            ("origin", "null"),
            ("origin", "http://localhost"),
            ("origin", "http://localhost:7401"),
            ("origin", "http://evil.example"),
            ("origin", "file://"),
            ("origin", ""),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
            ("sec-fetch-site", "SAME-ORIGIN"),
        ] {
            assert!(foreign(name, value), "{name}: {value}");
        }
    }
}
