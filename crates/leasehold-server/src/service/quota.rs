//! Quotas of a server whose engine is elsewhere: how many leases and waiters one principal may have, and how many
//! waiters there may be in all.
//!
//! The embedded engine counts these itself. Other engines know no principals, and several servers may use one of them:
//! each server counts what went through it. A lease is counted until it is released through this server, or its time
//! is over by this server's clock.

use std::collections::{BTreeSet, HashMap};
use std::sync::Mutex;
use std::time::Duration;

use leasehold::Refusal;
use leasehold::clock::Time;
use leasehold::engine::LeaseId;
use leasehold_core::Limits;
use leasehold_support::sync::lock;

/// See the module.
#[derive(Debug)]
pub struct QuotaCounter {
    waiters: usize,
    waiters_per_principal: usize,
    leases_per_principal: usize,
    counted: Mutex<Counted>,
}

#[derive(Debug, Default)]
struct Counted {
    waiters: usize,
    waiters_of: HashMap<String, usize>,
    leases_of: HashMap<String, usize>,
    /// Who a lease is counted for, and until when; by mark, so that no secret is kept.
    leases: HashMap<String, (String, Time)>,
    /// The same leases in the order in which they end.
    ends: BTreeSet<(Time, String)>,
}

/// A place among the waiters. Dropping it gives it back.
#[derive(Debug)]
pub struct WaiterPlace<'q> {
    quota: &'q QuotaCounter,
    principal: String,
}

impl Drop for WaiterPlace<'_> {
    fn drop(&mut self) {
        let mut counted = lock(&self.quota.counted);
        counted.waiters -= 1;
        take_one(&mut counted.waiters_of, &self.principal);
    }
}

impl QuotaCounter {
    /// Counts against these limits.
    pub fn new(limits: &Limits) -> Self {
        Self {
            waiters: limits.waiters,
            waiters_per_principal: limits.waiters_per_principal,
            leases_per_principal: limits.leases_per_principal,
            counted: Mutex::default(),
        }
    }

    /// Whether the principal may have one lease more.
    pub fn check_leases(&self, principal: &str, now: Time) -> Result<(), Refusal> {
        let mut counted = lock(&self.counted);
        counted.forget_ended(now);
        let most = self.leases_per_principal;
        if counted.leases_of.get(principal).copied().unwrap_or(0) >= most {
            return Err(Refusal::Quota(format!("{most} leases of one key")));
        }
        Ok(())
    }

    /// A place among those who wait for this resource and others.
    pub fn wait(&self, principal: &str, resource: &str) -> Result<WaiterPlace<'_>, Refusal> {
        let mut counted = lock(&self.counted);
        if counted.waiters >= self.waiters {
            return Err(Refusal::QueueFull { resource: resource.to_owned() });
        }
        let most = self.waiters_per_principal;
        let waiting = counted.waiters_of.entry(principal.to_owned()).or_default();
        if *waiting >= most {
            return Err(Refusal::Quota(format!("{most} waiters of one key")));
        }
        *waiting += 1;
        counted.waiters += 1;
        Ok(WaiterPlace { quota: self, principal: principal.to_owned() })
    }

    /// A lease was granted, or granted before to the same request.
    pub fn record_grant(&self, principal: &str, lease: &LeaseId, remaining: Duration, now: Time) {
        if remaining.is_zero() {
            return;
        }
        let mut counted = lock(&self.counted);
        let mark = lease.mark();
        if !counted.leases.contains_key(&mark) {
            *counted.leases_of.entry(principal.to_owned()).or_default() += 1;
        }
        counted.set_end(mark, principal.to_owned(), now.plus(remaining));
    }

    /// A lease has another end.
    pub fn record_renewal(&self, lease: &LeaseId, remaining: Duration, now: Time) {
        let mut counted = lock(&self.counted);
        let mark = lease.mark();
        if let Some((principal, _)) = counted.leases.get(&mark).cloned() {
            counted.set_end(mark, principal, now.plus(remaining));
        }
    }

    /// A lease is known to have ended.
    pub fn record_end(&self, lease: &LeaseId) {
        lock(&self.counted).forget(&lease.mark());
    }
}

impl Counted {
    fn set_end(&mut self, mark: String, principal: String, ends: Time) {
        if let Some((_, before)) = self.leases.insert(mark.clone(), (principal, ends)) {
            self.ends.remove(&(before, mark.clone()));
        }
        self.ends.insert((ends, mark));
    }

    fn forget_ended(&mut self, now: Time) {
        while let Some((ends, mark)) = self.ends.first().cloned()
            && ends <= now
        {
            self.forget(&mark);
        }
    }

    fn forget(&mut self, mark: &str) {
        if let Some((principal, ends)) = self.leases.remove(mark) {
            self.ends.remove(&(ends, mark.to_owned()));
            take_one(&mut self.leases_of, &principal);
        }
    }
}

/// One less; nobody is kept with none.
fn take_one(counts: &mut HashMap<String, usize>, principal: &str) {
    if let Some(count) = counts.get_mut(principal) {
        *count -= 1;
        if *count == 0 {
            counts.remove(principal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    fn quota() -> QuotaCounter {
        let limits = Limits { waiters: 3, waiters_per_principal: 2, leases_per_principal: 2, ..Limits::default() };
        QuotaCounter::new(&limits)
    }

    fn id(number: u32) -> LeaseId {
        LeaseId::new(format!("{number:x}-0123456789abcdef"))
    }

    #[test]
    fn a_principal_has_its_share_of_leases() {
        let (quota, at) = (quota(), Time::from_millis);
        quota.record_grant("ada", &id(1), TTL, at(0));
        quota.record_grant("ada", &id(1), TTL, at(5));
        assert_eq!(quota.check_leases("ada", at(5)), Ok(()), "a repeat is no second lease");
        quota.record_grant("ada", &id(2), TTL, at(6));
        assert!(matches!(quota.check_leases("ada", at(7)), Err(Refusal::Quota(what)) if what == "2 leases of one key"));
        assert_eq!(quota.check_leases("bob", at(7)), Ok(()));
        quota.record_renewal(&id(1), TTL, at(9_000));
        assert!(quota.check_leases("ada", at(10_005)).is_err(), "both are live");
        assert_eq!(quota.check_leases("ada", at(10_006)), Ok(()), "the second is over");
        quota.record_end(&id(1));
        quota.record_end(&id(1));
        quota.record_renewal(&id(7), TTL, at(11_000));
        quota.record_grant("ada", &id(3), Duration::ZERO, at(11_000));
        let counted = lock(&quota.counted);
        assert!(counted.leases.is_empty() && counted.ends.is_empty() && counted.leases_of.is_empty(), "{counted:?}");
    }

    #[test]
    fn waiters_are_counted_while_they_wait() {
        let quota = quota();
        let first = quota.wait("ada", "seat").expect("there is room");
        let second = quota.wait("ada", "seat").expect("there is room");
        assert!(matches!(quota.wait("ada", "seat"), Err(Refusal::Quota(what)) if what == "2 waiters of one key"));
        let third = quota.wait("bob", "seat").expect("there is room");
        assert!(matches!(quota.wait("cy", "row"), Err(Refusal::QueueFull { resource }) if resource == "row"));
        drop(first);
        drop(quota.wait("ada", "seat").expect("there is room again"));
        drop((second, third));
        let counted = lock(&quota.counted);
        assert!(counted.waiters == 0 && counted.waiters_of.is_empty(), "{counted:?}");
    }
}
