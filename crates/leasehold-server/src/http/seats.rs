//! How many connections there may be: in all, and of one address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

/// All the places there are.
pub struct Seats {
    most: usize,
    most_of_one: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    all: usize,
    by: HashMap<IpAddr, usize>,
}

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// For anybody.
    All,
    /// For this address.
    One,
}

impl Seats {
    /// `most` in all, `most_of_one` for each address.
    pub fn new(most: usize, most_of_one: usize) -> Arc<Self> {
        Arc::new(Self { most, most_of_one, taken: Mutex::default() })
    }

    /// Takes a place; it is given back by dropping it.
    pub fn take(self: &Arc<Self>, ip: IpAddr) -> Result<Seat, Full> {
        let whose = neighbourhood(ip);
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.all >= self.most {
            return Err(Full::All);
        }
        let theirs = taken.by.entry(whose).or_default();
        if *theirs >= self.most_of_one {
            return Err(Full::One);
        }
        *theirs += 1;
        taken.all += 1;
        Ok(Seat { seats: self.clone(), whose })
    }
}

/// One place.
pub struct Seat {
    seats: Arc<Seats>,
    whose: IpAddr,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.seats.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.all -= 1;
        if let Some(theirs) = taken.by.get_mut(&self.whose) {
            *theirs -= 1;
            // Addresses are chosen by strangers: none is remembered longer than its last connection.
            if *theirs == 0 {
                taken.by.remove(&self.whose);
            }
        }
    }
}

/// Whoever has one IPv6 address has 2^64 of them.
fn neighbourhood(ip: IpAddr) -> IpAddr {
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
        let seats = Seats::new(3, 2);
        let first = seats.take(ip("10.0.0.1")).ok().unwrap();
        let _second = seats.take(ip("::ffff:10.0.0.1")).ok().unwrap();
        assert_eq!(seats.take(ip("10.0.0.1")).err(), Some(Full::One));
        let other = seats.take(ip("2001:db8::1")).ok().unwrap();
        assert_eq!(seats.take(ip("10.0.0.2")).err(), Some(Full::All));
        drop(first);
        let _again = seats.take(ip("2001:db8::2")).ok().unwrap();
        drop(other);
        assert_eq!(seats.take(ip("10.0.0.1")).err(), None);
        assert_eq!(seats.taken.lock().unwrap().by.len(), 2);
    }

    /// Goal: addresses of one IPv6 network count as one, those of another do not.
    #[test]
    fn an_ipv6_network_is_one_address() {
        let seats = Seats::new(9, 1);
        let _seat = seats.take(ip("2001:db8::1")).ok().unwrap();
        assert_eq!(seats.take(ip("2001:db8::2")).err(), Some(Full::One));
        assert_eq!(seats.take(ip("2001:db8:0:1::2")).err(), None);
    }
}
