//! Text inside the URL of an engine.
//!
//! No sentence of this file repeats anything of a URL: it may be a password.

use crate::error::Error;

/// The text with its percent signs decoded; none where they stand for nothing.
pub(crate) fn decode_percent(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        let digits = std::str::from_utf8(digits).ok().filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = after;
    }
    String::from_utf8(bytes).ok()
}

/// `host`, `host:port` or `[address]:port`. `example`: what a URL of this engine looks like, for the sentence that refuses.
pub(crate) fn host_and_port(place: &str, default_port: u16, example: &str) -> Result<(String, u16), Error> {
    let (host, port) = match place.strip_prefix('[') {
        Some(rest) => {
            let closed = rest.split_once(']');
            let (host, after) = closed.ok_or_else(|| Error::Invalid("an IPv6 address wants its ]".into()))?;
            (host, after.strip_prefix(':').or(after.is_empty().then_some("")))
        }
        None => match place.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (place, Some("")),
        },
    };
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '%');
    if host.is_empty() || !host.chars().all(fine) {
        return Err(Error::Invalid(format!("the url names no host, {example}")));
    }
    let port = match port {
        Some("") => Some(default_port),
        Some(text) => text.parse().ok().filter(|port| *port != 0),
        None => None,
    };
    let port = port.ok_or_else(|| Error::Invalid(format!("the port is a number from 1 to 65535, {example}")))?;
    Ok((host.to_owned(), port))
}
