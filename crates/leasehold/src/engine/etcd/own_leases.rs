//! Leases that this process granted or renewed last: it knows their deadlines exactly, and ends them in time.
//!
//! A lease that was renewed through another process has another revision. What is known here of the old one then says
//! nothing, and the transaction that would end it fails.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::Time;
use tokio::sync::{Notify, Semaphore};

use super::plan::LeasePlan;
use super::shared::EtcdShared;
use super::values::{ContenderValue, RequestValue};
use crate::clock::Clock as _;
use crate::engine::consensus::lease_id::PublicId;

/// Leases that are ended at the same time.
const LAPSES_AT_ONCE: usize = 32;
/// Clocks of two machines differ in rate by up to this part, and a little.
const RATE_PART: u32 = 2000;
const AFTER_DEADLINE: Duration = Duration::from_millis(5);

/// One lease, as this process wrote it.
#[derive(Clone)]
pub(super) struct OwnLease {
    pub plan: Arc<LeasePlan>,
    /// As it was put, with its token.
    pub value: ContenderValue,
    pub deadline: Time,
    /// From the write to the deadline.
    pub life: Duration,
    /// The revision at which it was put.
    pub written: i64,
    /// The etcd lease of its keys.
    pub bucket: i64,
    pub cap_at: Option<Time>,
    /// The request id, and the end of its own bucket.
    pub request: Option<(RequestValue, Time)>,
}

impl OwnLease {
    /// From here on it is certainly over, even for a holder whose clock is slow.
    fn over_at(&self) -> Time {
        self.deadline.plus(self.life / RATE_PART + AFTER_DEADLINE)
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct OwnLeases {
    table: Mutex<OwnTable>,
    changed: Notify,
}

#[derive(Default)]
struct OwnTable {
    by_id: HashMap<PublicId, OwnLease>,
    due: BTreeSet<(Time, PublicId)>,
}

impl OwnLeases {
    fn lock(&self) -> MutexGuard<'_, OwnTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn put(&self, lease: OwnLease) {
        let (public, over_at) = (lease.plan.public, lease.over_at());
        let mut table = self.lock();
        if let Some(old) = table.by_id.insert(public, lease) {
            table.due.remove(&(old.over_at(), public));
        }
        let is_first = table.due.first().is_none_or(|(first, _)| over_at < *first);
        table.due.insert((over_at, public));
        drop(table);
        if is_first {
            self.changed.notify_one();
        }
    }

    pub fn get(&self, public: PublicId) -> Option<OwnLease> {
        self.lock().by_id.get(&public).cloned()
    }

    /// Forgets it, unless it was written again since.
    pub fn remove(&self, public: PublicId, written: i64) -> Option<OwnLease> {
        let mut table = self.lock();
        if table.by_id.get(&public)?.written != written {
            return None;
        }
        let old = table.by_id.remove(&public)?;
        table.due.remove(&(old.over_at(), public));
        Some(old)
    }

    /// When it is over, if it is known as it was written at this revision.
    pub fn over_at(&self, public: PublicId, written: i64) -> Option<Time> {
        self.lock().by_id.get(&public).filter(|lease| lease.written == written).map(OwnLease::over_at)
    }

    pub fn deadline(&self, public: PublicId, written: i64) -> Option<Time> {
        self.lock().by_id.get(&public).filter(|lease| lease.written == written).map(|lease| lease.deadline)
    }

    /// Those that are over now; and when the next one is.
    fn take_due(&self, now: Time) -> (Vec<OwnLease>, Option<Time>) {
        let mut table = self.lock();
        let mut due = Vec::new();
        while let Some((at, public)) = table.due.first().copied() {
            if at > now {
                return (due, Some(at));
            }
            table.due.pop_first();
            due.extend(table.by_id.get(&public).cloned());
        }
        (due, None)
    }
}

impl EtcdShared {
    /// Ends leases when their time is over, until the engine stops.
    pub async fn end_leases_in_time(self: Arc<Self>) {
        let room = Arc::new(Semaphore::new(LAPSES_AT_ONCE));
        loop {
            let (due, next) = self.own.take_due(self.clock.now());
            for lease in due {
                let Ok(permit) = room.clone().acquire_owned().await else { return };
                let shared = self.clone();
                self.spawn_background(async move {
                    shared.end_own_lease(&lease).await;
                    drop(permit);
                });
            }
            let sleep = self.clock.sleep_until(next.unwrap_or(Time::NEVER));
            tokio::select! {
                () = sleep => {}
                () = self.own.changed.notified() => {}
            }
        }
    }

    async fn end_own_lease(self: &Arc<Self>, lease: &OwnLease) {
        let mut round = 0;
        // Another process may end it too, or etcd with its bucket: then this one only forgets it.
        while self.lapse_lease(&lease.plan, &lease.value, lease.written, lease.deadline).await.is_err() {
            self.backoff(round).await;
            round += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Mode;
    use crate::engine::etcd::keys::KeyLayout;
    use crate::engine::etcd::values::ContenderState;

    fn lease(id: u8, deadline_ms: u64, written: i64) -> OwnLease {
        let wants = [("seat".to_owned(), Mode::Exclusive)];
        let plan = LeasePlan::new(&KeyLayout::new(""), PublicId([id; 16]), wants, None);
        let value = ContenderValue {
            v: 1,
            holder: String::new(),
            state: ContenderState::Held,
            mode: Mode::Exclusive.into(),
            ttl: 2000,
            early: 0,
            delay: 0,
            cap: None,
            sure: None,
            token: Some(1),
            names: None,
            first: None,
            request: None,
            at: 0,
            renewed: 0,
        };
        let deadline = Time::from_millis(deadline_ms);
        let life = Duration::from_secs(2);
        OwnLease { plan: Arc::new(plan), value, deadline, life, written, bucket: 1, cap_at: None, request: None }
    }

    /// Goal: a lease is due after its deadline, never at it, and once; a renewal moves it.
    #[test]
    fn a_lease_is_due_after_its_deadline() {
        let own = OwnLeases::default();
        own.put(lease(1, 1000, 7));
        own.put(lease(2, 500, 8));
        own.put(lease(2, 1500, 9));
        assert!(own.take_due(Time::from_millis(1005)).0.is_empty(), "a clock may be slow by a part of its ttl");
        let (due, next) = own.take_due(Time::from_millis(1006));
        assert_eq!((due.len(), due[0].written, next), (1, 7, Some(Time::from_millis(1506))));
        assert!(own.take_due(Time::from_millis(1100)).0.is_empty(), "once");
        assert_eq!(own.take_due(Time::from_millis(9000)).0.len(), 1);
    }

    /// Goal: what is known of an older write says nothing, and does not remove a newer one.
    #[test]
    fn only_the_last_write_counts() {
        let own = OwnLeases::default();
        own.put(lease(1, 1000, 7));
        own.put(lease(1, 2000, 9));
        let public = PublicId([1; 16]);
        assert_eq!((own.over_at(public, 7), own.deadline(public, 9)), (None, Some(Time::from_millis(2000))));
        assert!(own.remove(public, 7).is_none() && own.get(public).is_some());
        assert!(own.remove(public, 9).is_some() && own.get(public).is_none());
        assert_eq!(own.take_due(Time::NEVER), (Vec::new(), None));
    }

    impl PartialEq for OwnLease {
        fn eq(&self, other: &Self) -> bool {
            self.written == other.written
        }
    }

    impl std::fmt::Debug for OwnLease {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "OwnLease({})", self.written)
        }
    }
}
