//! The headers of a request: what it shows to the fence, and what goes on to the upstream.

use hyper::HeaderMap;
use hyper::header::{self, HeaderName, HeaderValue};
use leasehold::fence::FenceToken;
use leasehold_core::limits::Limits;

use crate::http::{Arrival, percent_decode};

/// The token.
pub const FENCING_TOKEN: HeaderName = HeaderName::from_static("fencing-token");
/// The mark of the lease.
pub const FENCING_LEASE: HeaderName = HeaderName::from_static("fencing-lease");
/// The resource, percent-encoded; repeated for several.
pub const FENCING_RESOURCE: HeaderName = HeaderName::from_static("fencing-resource");

/// Headers that are for one connection only (RFC 9110, 7.6.1), and those that only a proxy reads.
const HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// What a request shows.
#[derive(Debug, PartialEq, Eq)]
pub struct ShownHeaders {
    /// The token, with the mark if there is one.
    pub shown: FenceToken,
    /// The resources, sorted, each once.
    pub resources: Vec<Box<str>>,
}

/// Why the headers are not enough.
#[derive(Debug, PartialEq, Eq)]
pub enum HeaderRefusal {
    /// No token was shown.
    NoToken,
    /// They cannot be understood.
    Malformed(String),
}

/// Reads the three headers.
///
/// # Errors
///
/// [`HeaderRefusal`].
pub fn read_shown(headers: &HeaderMap, limits: &Limits) -> Result<ShownHeaders, HeaderRefusal> {
    // An empty one is what a script with an unset variable sends.
    let token = single_value(headers, &FENCING_TOKEN)?.filter(|token| !token.is_empty());
    let token = token.ok_or(HeaderRefusal::NoToken)?;
    let text = match single_value(headers, &FENCING_LEASE)? {
        Some(mark) => format!("{token}:{mark}"),
        None => token.to_owned(),
    };
    let sentence = "Fencing-Token is a number from 1 to 2^63-1, Fencing-Lease the 16 hex digits of the mark";
    let shown = text.parse().map_err(|_| HeaderRefusal::Malformed(sentence.into()))?;
    // A colon in the token would be read as a mark.
    if token.contains(':') {
        return Err(HeaderRefusal::Malformed(sentence.into()));
    }
    let mut resources = Vec::new();
    for value in headers.get_all(&FENCING_RESOURCE) {
        resources.push(read_resource(value, limits)?);
        if resources.len() > limits.resources_per_claim {
            return Err(HeaderRefusal::Malformed(format!(
                "a request has at most {} resources",
                limits.resources_per_claim
            )));
        }
    }
    if resources.is_empty() {
        return Err(HeaderRefusal::Malformed("Fencing-Resource names what the request writes to".into()));
    }
    resources.sort_unstable();
    resources.dedup();
    Ok(ShownHeaders { shown, resources })
}

fn read_resource(value: &HeaderValue, limits: &Limits) -> Result<Box<str>, HeaderRefusal> {
    let sentence = "Fencing-Resource is percent-encoded UTF-8, one name in each header";
    let malformed = || HeaderRefusal::Malformed(sentence.into());
    let text = value.to_str().map_err(|_| malformed())?;
    // A comma may be where somebody joined two headers: it is written %2C, so that one text has one meaning.
    if text.contains(',') {
        return Err(malformed());
    }
    let name = percent_decode(text).map_err(|_| malformed())?;
    limits.check_name(&name).map_err(HeaderRefusal::Malformed)?;
    Ok(name.into())
}

fn single_value<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, HeaderRefusal> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => {
            value.to_str().map(Some).map_err(|_| HeaderRefusal::Malformed(format!("{name} is no text")))
        }
        _ => Err(HeaderRefusal::Malformed(format!("{name} comes once"))),
    }
}

/// Takes away what is for one connection only, and what `Connection` names.
pub fn remove_hop_by_hop(headers: &mut HeaderMap) {
    if headers.contains_key(header::CONNECTION) {
        let values = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
        let named: Vec<HeaderName> =
            values.flat_map(|text| text.split(',')).filter_map(|name| name.trim().parse().ok()).collect();
        for name in named {
            // A client cannot have the fence's own headers taken away.
            if ![FENCING_TOKEN, FENCING_LEASE, FENCING_RESOURCE].contains(&name) {
                headers.remove(name);
            }
        }
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

/// Says to the upstream who asked, and for which host.
pub fn add_forwarded(headers: &mut HeaderMap, arrival: Arrival, upstream_host: &HeaderValue, secure: bool) {
    if let Some(host) = headers.insert(header::HOST, upstream_host.clone()) {
        headers.insert(HeaderName::from_static("x-forwarded-host"), host);
    }
    const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
    if let Ok(peer) = HeaderValue::from_str(&arrival.peer.0.ip().to_string()) {
        headers.append(FORWARDED_FOR, peer);
    }
    let scheme = HeaderValue::from_static(if secure { "https" } else { "http" });
    headers.insert(HeaderName::from_static("x-forwarded-proto"), scheme);
    headers.append(header::VIA, HeaderValue::from_static("1.1 leasehold"));
    // The gate asks for the body when the upstream reads it.
    headers.remove(header::EXPECT);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers
    }

    fn read(pairs: &[(&'static str, &'static str)]) -> Result<ShownHeaders, HeaderRefusal> {
        read_shown(&map(pairs), &Limits::default())
    }

    /// Goal: names are decoded, sorted and counted once; the mark may be missing.
    #[test]
    fn headers_are_read() {
        let read = read(&[
            ("fencing-token", "42"),
            ("fencing-lease", "0123456789abcdef"),
            ("fencing-resource", "seat%2F15"),
            ("fencing-resource", "seat/14"),
            ("fencing-resource", "seat/15"),
        ]);
        let shown = "42:0123456789abcdef".parse().unwrap();
        assert_eq!(read, Ok(ShownHeaders { shown, resources: vec!["seat/14".into(), "seat/15".into()] }));
        let read = super::tests::read(&[("fencing-token", "7"), ("fencing-resource", "a%2Cb")]);
        assert_eq!(read, Ok(ShownHeaders { shown: "7".parse().unwrap(), resources: vec!["a,b".into()] }));
    }

    /// Goal: what is ambiguous or malformed is refused, never guessed at.
    #[test]
    fn bad_headers_are_refused() {
        assert_eq!(read(&[("fencing-resource", "a")]), Err(HeaderRefusal::NoToken));
        assert_eq!(read(&[("fencing-token", ""), ("fencing-resource", "a")]), Err(HeaderRefusal::NoToken));
        let bad: [&[(&'static str, &'static str)]; 12] = [
            &[("fencing-token", "42")],
            &[("fencing-token", "0"), ("fencing-resource", "a")],
            &[("fencing-token", "042"), ("fencing-resource", "a")],
            &[("fencing-token", "9223372036854775808"), ("fencing-resource", "a")],
            &[("fencing-token", "42:0123456789abcdef"), ("fencing-resource", "a")],
            &[("fencing-token", "42"), ("fencing-token", "43"), ("fencing-resource", "a")],
            &[("fencing-token", "42"), ("fencing-lease", "xyz"), ("fencing-resource", "a")],
            &[("fencing-token", "42"), ("fencing-lease", ""), ("fencing-resource", "a")],
            &[("fencing-token", "42"), ("fencing-resource", "a, b")],
            &[("fencing-token", "42"), ("fencing-resource", "%")],
            &[("fencing-token", "42"), ("fencing-resource", "%00")],
            &[("fencing-token", "42"), ("fencing-resource", "")],
        ];
        for pairs in bad {
            assert!(matches!(read(pairs), Err(HeaderRefusal::Malformed(_))), "{pairs:?}");
        }
    }

    /// Goal: nothing of this connection goes on to the next one, and `Connection` cannot take the fence's headers away.
    #[test]
    fn hop_by_hop_headers_are_dropped() {
        let mut headers = map(&[
            ("connection", "close, X-Private, Fencing-Token"),
            ("x-private", "1"),
            ("keep-alive", "5"),
            ("transfer-encoding", "chunked"),
            ("te", "trailers"),
            ("proxy-authorization", "Bearer k"),
            ("fencing-token", "42"),
            ("x-public", "2"),
        ]);
        remove_hop_by_hop(&mut headers);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["fencing-token", "x-public"]);
    }
}
