//! How many connections there may be: on both ports together, and of one address.
//!
//! One number for both: whoever has room on one port while the other is idle may use it, up to a few that are kept for
//! the other, so that a crowd on RESP never shuts out those who look after the server by HTTP.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

/// Where somebody comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// The HTTP port.
    Http,
    /// The RESP port.
    Resp,
}

/// Places that one door leaves to the other.
const KEPT: usize = 64;

/// All the places there are.
#[derive(Debug)]
pub struct Seats {
    most: usize,
    most_of_one: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    by_door: [usize; 2],
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
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn take(self: &Arc<Self>, door: Door, ip: IpAddr) -> Result<Seat, Full> {
        let whose = neighbourhood(ip);
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = KEPT.min(self.most / 16);
        if taken.by_door.iter().sum::<usize>() >= self.most || taken.by_door[door as usize] >= self.most - kept {
            return Err(Full::All);
        }
        let theirs = taken.by.entry(whose).or_default();
        if *theirs >= self.most_of_one {
            return Err(Full::One);
        }
        *theirs += 1;
        taken.by_door[door as usize] += 1;
        Ok(Seat { seats: self.clone(), door, whose })
    }
}

/// One place.
#[derive(Debug)]
pub struct Seat {
    seats: Arc<Seats>,
    door: Door,
    whose: IpAddr,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.seats.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.by_door[self.door as usize] -= 1;
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
        let first = seats.take(Door::Http, ip("10.0.0.1")).ok().unwrap();
        let _second = seats.take(Door::Http, ip("::ffff:10.0.0.1")).ok().unwrap();
        assert_eq!(seats.take(Door::Http, ip("10.0.0.1")).err(), Some(Full::One));
        let other = seats.take(Door::Http, ip("2001:db8::1")).ok().unwrap();
        assert_eq!(seats.take(Door::Http, ip("10.0.0.2")).err(), Some(Full::All));
        drop(first);
        let _again = seats.take(Door::Http, ip("2001:db8::2")).ok().unwrap();
        drop(other);
        assert_eq!(seats.take(Door::Http, ip("10.0.0.1")).err(), None);
        assert_eq!(seats.taken.lock().unwrap().by.len(), 2);
    }

    /// Goal: a crowd at one door leaves room at the other, and the two together are no more than there may be.
    #[test]
    fn a_crowd_at_one_door_does_not_close_the_other() {
        let seats = Seats::new(160, 160);
        let crowd: Vec<Seat> = (0..150).map(|_| seats.take(Door::Resp, ip("10.0.0.1")).unwrap()).collect();
        assert_eq!(seats.take(Door::Resp, ip("10.0.0.2")).err(), Some(Full::All));
        let others: Vec<Seat> = (0..10).map(|_| seats.take(Door::Http, ip("10.0.0.3")).unwrap()).collect();
        assert_eq!(seats.take(Door::Http, ip("10.0.0.3")).err(), Some(Full::All));
        drop(crowd);
        assert!(seats.take(Door::Http, ip("10.0.0.3")).is_ok());
        drop(others);
    }

    /// Goal: addresses of one IPv6 network count as one, those of another do not.
    #[test]
    fn an_ipv6_network_is_one_address() {
        let seats = Seats::new(9, 1);
        let _seat = seats.take(Door::Http, ip("2001:db8::1")).ok().unwrap();
        assert_eq!(seats.take(Door::Http, ip("2001:db8::2")).err(), Some(Full::One));
        assert_eq!(seats.take(Door::Http, ip("2001:db8:0:1::2")).err(), None);
    }
}
