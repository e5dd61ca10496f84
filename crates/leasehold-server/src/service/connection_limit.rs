//! Limits the connections: on both ports together, and from one network address.
//!
//! One limit for both ports. Each port leaves some connections to the other, so that many RESP clients cannot shut out
//! an operator who uses HTTP.

use leasehold_support::sync::lock;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};

/// A listening port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// The HTTP port.
    Http,
    /// The RESP port.
    Resp,
}

/// Connections that one port leaves to the other.
const CONNECTIONS_KEPT_FOR_OTHER_PORT: usize = 64;

/// Counts open connections, by port and by network.
#[derive(Debug)]
pub struct ConnectionLimiter {
    max_total: usize,
    max_per_address: usize,
    open: Mutex<OpenConnections>,
}

#[derive(Debug, Default)]
struct OpenConnections {
    by_port: [usize; 2],
    by_network: HashMap<IpAddr, usize>,
}

/// Why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitReached {
    /// The server has as many connections as it may have.
    Total,
    /// This address has as many connections as it may have.
    PerAddress,
}

impl ConnectionLimiter {
    /// At most `max_total` connections, and `max_per_address` from each network.
    pub fn new(max_total: usize, max_per_address: usize) -> Arc<Self> {
        Arc::new(Self { max_total, max_per_address, open: Mutex::default() })
    }

    /// Counts one more connection; dropping the permit counts it off.
    ///
    /// # Errors
    ///
    /// A limit is reached.
    pub fn try_acquire(self: &Arc<Self>, port: Port, ip: IpAddr) -> Result<ConnectionPermit, LimitReached> {
        let network = network_of(ip);
        let mut open = lock(&self.open);
        let kept = CONNECTIONS_KEPT_FOR_OTHER_PORT.min(self.max_total / 16);
        if open.by_port.iter().sum::<usize>() >= self.max_total || open.by_port[port as usize] >= self.max_total - kept
        {
            return Err(LimitReached::Total);
        }
        let count = open.by_network.entry(network).or_default();
        if *count >= self.max_per_address {
            return Err(LimitReached::PerAddress);
        }
        *count += 1;
        open.by_port[port as usize] += 1;
        Ok(ConnectionPermit { limiter: self.clone(), port, network })
    }
}

/// One counted connection.
#[derive(Debug)]
pub struct ConnectionPermit {
    limiter: Arc<ConnectionLimiter>,
    port: Port,
    network: IpAddr,
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut open = lock(&self.limiter.open);
        open.by_port[self.port as usize] -= 1;
        if let Some(count) = open.by_network.get_mut(&self.network) {
            *count -= 1;
            // Clients choose their addresses: the map forgets an address with its last connection.
            if *count == 0 {
                open.by_network.remove(&self.network);
            }
        }
    }
}

/// The network of one subscriber: an IPv4 address, or the first 64 bits of an IPv6 address. An IPv4 address mapped into
/// IPv6 is the IPv4 address.
pub(super) fn network_of(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from(u128::from(ip) >> 64 << 64)),
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Goal: both limits hold, a permit counts off when dropped, and an address is forgotten with its last one.
    #[test]
    fn places_are_counted_in_all_and_by_address() {
        let limiter = ConnectionLimiter::new(3, 2);
        let first = limiter.try_acquire(Port::Http, ip("10.0.0.1")).ok().unwrap();
        let _second = limiter.try_acquire(Port::Http, ip("::ffff:10.0.0.1")).ok().unwrap();
        assert_eq!(limiter.try_acquire(Port::Http, ip("10.0.0.1")).err(), Some(LimitReached::PerAddress));
        let other = limiter.try_acquire(Port::Http, ip("2001:db8::1")).ok().unwrap();
        assert_eq!(limiter.try_acquire(Port::Http, ip("10.0.0.2")).err(), Some(LimitReached::Total));
        drop(first);
        let _again = limiter.try_acquire(Port::Http, ip("2001:db8::2")).ok().unwrap();
        drop(other);
        assert_eq!(limiter.try_acquire(Port::Http, ip("10.0.0.1")).err(), None);
        assert_eq!(limiter.open.lock().unwrap().by_network.len(), 2);
    }

    /// Goal: many connections on one port leave room on the other, and both together stay within the limit.
    #[test]
    fn a_crowd_at_one_door_does_not_close_the_other() {
        let limiter = ConnectionLimiter::new(160, 160);
        let crowd: Vec<ConnectionPermit> =
            (0..150).map(|_| limiter.try_acquire(Port::Resp, ip("10.0.0.1")).unwrap()).collect();
        assert_eq!(limiter.try_acquire(Port::Resp, ip("10.0.0.2")).err(), Some(LimitReached::Total));
        let others: Vec<ConnectionPermit> =
            (0..10).map(|_| limiter.try_acquire(Port::Http, ip("10.0.0.3")).unwrap()).collect();
        assert_eq!(limiter.try_acquire(Port::Http, ip("10.0.0.3")).err(), Some(LimitReached::Total));
        drop(crowd);
        assert!(limiter.try_acquire(Port::Http, ip("10.0.0.3")).is_ok());
        drop(others);
    }

    /// Goal: addresses of one IPv6 network count as one, those of another do not.
    #[test]
    fn an_ipv6_network_is_one_address() {
        let limiter = ConnectionLimiter::new(9, 1);
        let _permit = limiter.try_acquire(Port::Http, ip("2001:db8::1")).ok().unwrap();
        assert_eq!(limiter.try_acquire(Port::Http, ip("2001:db8::2")).err(), Some(LimitReached::PerAddress));
        assert_eq!(limiter.try_acquire(Port::Http, ip("2001:db8:0:1::2")).err(), None);
    }
}
