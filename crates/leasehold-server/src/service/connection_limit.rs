//! How many connections there may be: on both ports together, and of one address.
//!
//! One number for both: whoever has room on one port while the other is idle may use it, up to a few that are kept for
//! the other, so that a crowd on RESP never shuts out those who look after the server by HTTP.

use leasehold_support::sync::lock;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};

/// Where somebody comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// The HTTP port.
    Http,
    /// The RESP port.
    Resp,
}

/// Places that one door leaves to the other.
const CONNECTIONS_KEPT_FOR_OTHER_PORT: usize = 64;

/// All the places there are.
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

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitReached {
    /// For anybody.
    Total,
    /// For this address.
    PerAddress,
}

impl ConnectionLimiter {
    /// `max_total` in all, `max_per_address` for each address.
    pub fn new(max_total: usize, max_per_address: usize) -> Arc<Self> {
        Arc::new(Self { max_total, max_per_address, open: Mutex::default() })
    }

    /// Takes a place; it is given back by dropping it.
    ///
    /// # Errors
    ///
    /// There is none.
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

/// One place.
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
            // Addresses are chosen by strangers: none is remembered longer than its last connection.
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

    /// Goal: both caps hold, a place comes back with its connection, and an address is forgotten with its last one.
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

    /// Goal: a crowd at one door leaves room at the other, and the two together are no more than there may be.
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
