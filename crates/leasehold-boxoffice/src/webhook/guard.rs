//! Where a webhook may be sent. Its URL comes from outside, and the request from inside our network.
//!
//! # Laws
//!
//! 1. Only `http` and `https`, a host, no user and password, no fragment.
//! 2. By default no address of a private network, of this machine or of its link, however it is spelt: also as an IPv6
//!    address with an IPv4 one in it.
//! 3. A name is looked up **once**, every address it has is checked, and the connection goes to a checked address: whoever
//!    changes the name in between gains nothing. Redirects are not followed.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use url::{Host, Url};

const MAX_URL_BYTES: usize = 2048;

/// What is allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetGuard {
    /// Also private networks and this machine: for demos, tests, and receivers beside the server.
    pub allow_private: bool,
}

/// A URL that may be called.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookTarget {
    /// The whole of it.
    pub url: Url,
    /// By TLS.
    pub tls: bool,
    /// A name, or an address in digits without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Path and query, as a request line has them.
    pub path: String,
}

/// A path or a query may carry a secret of the receiver's.
impl fmt::Debug for WebhookTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({}://{}:{}/…)", self.url.scheme(), self.host, self.port)
    }
}

/// Why a URL is not called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetRefused {
    /// It is no URL.
    #[error("this is not a URL")]
    Unreadable,
    /// Not by this scheme.
    #[error("a webhook goes to http:// or https://")]
    Scheme,
    /// Secrets do not belong in URLs.
    #[error("a webhook's URL has no user, password or fragment in it")]
    Userinfo,
    /// Into our own network.
    #[error("a webhook does not go to an address of a private network, unless the configuration allows it")]
    Private,
}

impl TargetGuard {
    /// Looks at a URL; names are looked up later, see [`TargetGuard::allows`].
    ///
    /// # Errors
    ///
    /// Why it may not be called.
    pub fn target(self, text: &str) -> Result<WebhookTarget, TargetRefused> {
        if text.len() > MAX_URL_BYTES {
            return Err(TargetRefused::Unreadable);
        }
        let url = Url::parse(text).map_err(|_| TargetRefused::Unreadable)?;
        let tls = match url.scheme() {
            "http" => false,
            "https" => true,
            _ => return Err(TargetRefused::Scheme),
        };
        if !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
            return Err(TargetRefused::Userinfo);
        }
        let (host, fine) = match url.host().ok_or(TargetRefused::Unreadable)? {
            Host::Ipv4(address) => (address.to_string(), self.allows(address.into())),
            Host::Ipv6(address) => (address.to_string(), self.allows(address.into())),
            Host::Domain(name) => (name.to_owned(), self.allow_private || !is_local_name(name)),
        };
        if !fine {
            return Err(TargetRefused::Private);
        }
        let port = url.port_or_known_default().filter(|port| *port != 0).ok_or(TargetRefused::Unreadable)?;
        let path = url.query().map_or_else(|| url.path().to_owned(), |query| format!("{}?{query}", url.path()));
        Ok(WebhookTarget { tls, host, port, path, url })
    }

    /// Whether an address that a name stands for may be called.
    #[must_use]
    pub fn allows(self, address: IpAddr) -> bool {
        self.allow_private || is_public(address)
    }
}

fn is_local_name(name: &str) -> bool {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let local = ["localhost", "local", "internal", "home.arpa", "lan"];
    !name.contains('.') || local.iter().any(|end| name == *end || name.ends_with(&format!(".{end}")))
}

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let special = address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_broadcast()
        || address.is_documentation()
        || address.is_multicast()
        || a == 0
        || a >= 240
        || (a == 100 && (64..128).contains(&b)) // shared by carriers
        || (a == 192 && b == 0 && c == 0)
        || (a == 192 && b == 88 && c == 99)
        || (a == 198 && (18..20).contains(&b)); // benchmarks
    !special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [a, b, c, d, e, f, g, h] = address.segments();
    let v4 = |high: u16, low: u16| is_public_v4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)));
    match (a, b) {
        // Mapped, compatible, and translated: what counts is the IPv4 address inside.
        (0, 0) if c == 0 && d == 0 && e == 0 && (f == 0xffff || f == 0) => f == 0xffff && v4(g, h),
        (0x64, 0xff9b) if c == 0 && d == 0 && e == 0 && f == 0 => v4(g, h),
        (0x2002, _) => v4(b, c),
        // Only 2000::/3 is given out to the public; of that, not Teredo, documentation and the like.
        (0x2001, 0x0000..=0x01ff) | (0x2001, 0x0db8) | (0x3fff, _) => false,
        _ => a & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: nothing of our own network can be reached, however it is spelt.
    #[test]
    fn private_targets_are_refused_however_they_are_spelt() {
        for url in [
            "http://127.0.0.1/",
            "http://127.1/",
            "http://2130706433/",
            "http://0x7f000001/",
            "http://017700000001/",
            "http://0/",
            "http://10.1.2.3/hook",
            "http://172.16.0.1/",
            "http://192.168.1.1:8080/",
            "http://169.254.169.254/latest/meta-data/",
            "http://100.64.0.1/",
            "http://198.18.0.1/",
            "http://224.0.0.1/",
            "http://255.255.255.255/",
            "http://[::1]/",
            "http://[::]/",
            "http://[::ffff:127.0.0.1]/",
            "http://[::127.0.0.1]/",
            "http://[64:ff9b::7f00:1]/",
            "http://[64:ff9b:1::7f00:1]/",
            "http://[2002:7f00:1::]/",
            "http://[fe80::1]/",
            "http://[fc00::1]/",
            "http://[fd12:3456::1]/",
            "http://[ff02::1]/",
            "http://[2001::1]/",
            "http://localhost/",
            "http://LOCALHOST./",
            "http://app.localhost/",
            "http://printer.local/",
            "http://metadata.google.internal/",
            "http://intranet/",
            "http://\u{ff11}27.0.0.1/",
        ] {
            assert_eq!(TargetGuard::default().target(url).err(), Some(TargetRefused::Private), "{url}");
            let open = TargetGuard { allow_private: true };
            assert!(open.target(url).is_ok(), "allowed by configuration: {url}");
        }
    }

    /// Goal: what is public passes, with the parts a request needs.
    #[test]
    fn public_targets_pass() {
        let target = TargetGuard::default().target("https://Hooks.Example.org/a%20b?key=1").unwrap();
        assert_eq!((target.tls, target.host.as_str(), target.port), (true, "hooks.example.org", 443));
        assert_eq!(target.path, "/a%20b?key=1");
        assert!(!format!("{target:?}").contains("key"), "{target:?}");
        for url in ["http://93.184.216.34:8080/x", "https://[2606:2800:220:1::1]/", "http://example.org"] {
            assert!(TargetGuard::default().target(url).is_ok(), "{url}");
        }
        assert_eq!(TargetGuard::default().target("https://[2606:2800::1]:444/").unwrap().host, "2606:2800::1");
    }

    /// Goal: other schemes, secrets in the URL and nonsense are refused for what they are.
    #[test]
    fn nonsense_is_refused_for_what_it_is() {
        let long = format!("http://example.org/{}", "x".repeat(2048));
        for (url, why) in [
            ("", TargetRefused::Unreadable),
            ("example.org/hook", TargetRefused::Unreadable),
            ("http://", TargetRefused::Unreadable),
            ("http://exa mple.org/", TargetRefused::Unreadable),
            ("http://example.org:0/", TargetRefused::Unreadable),
            ("http://example.org:70000/", TargetRefused::Unreadable),
            (&long, TargetRefused::Unreadable),
            ("ftp://example.org/", TargetRefused::Scheme),
            ("file:///etc/passwd", TargetRefused::Scheme),
            ("gopher://example.org/", TargetRefused::Scheme),
            ("javascript:alert(1)", TargetRefused::Scheme),
            ("http://user:pass@example.org/", TargetRefused::Userinfo),
            ("http://user@example.org/", TargetRefused::Userinfo),
            ("http://example.org/#top", TargetRefused::Userinfo),
        ] {
            assert_eq!(TargetGuard { allow_private: true }.target(url).err(), Some(why), "{url}");
        }
    }
}
