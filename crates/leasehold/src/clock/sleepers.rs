//! The list of sleeping tasks that both clocks keep, and the future that adds itself to it.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use leasehold_core::Time;

/// The key of a sleeper. The number distinguishes sleepers of the same moment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct SleeperId(Time, u64);

/// Sleepers in order of their moment. A tree and not a heap, because most sleeps of a lease are
/// cancelled (each renewal ends three of them) and must be removable.
#[derive(Debug)]
pub(crate) struct Sleepers {
    wakers: BTreeMap<SleeperId, Waker>,
    entered: u64,
}

impl Sleepers {
    pub(crate) const fn new() -> Self {
        Self { wakers: BTreeMap::new(), entered: 0 }
    }

    /// Adds a sleeper, or replaces its waker.
    pub(crate) fn insert(&mut self, place: &mut Option<SleeperId>, at: Time, waker: &Waker) {
        let place = *place.get_or_insert_with(|| {
            self.entered = self.entered.wrapping_add(1);
            SleeperId(at, self.entered)
        });
        self.wakers.insert(place, waker.clone());
    }

    pub(crate) fn remove(&mut self, place: SleeperId) {
        self.wakers.remove(&place);
    }

    /// The next moment at which a sleeper is due.
    pub(crate) fn next_due(&self) -> Option<Time> {
        self.wakers.first_key_value().map(|(place, _)| place.0)
    }

    /// Removes the sleepers that are due. Wake them after the list is unlocked: a waker is foreign code.
    pub(crate) fn take_due(&mut self, now: Time) -> Vec<Waker> {
        let mut due = Vec::new();
        while let Some(entry) = self.wakers.first_entry() {
            if entry.key().0 > now {
                break;
            }
            due.push(entry.remove());
        }
        due
    }

    /// The moments of all sleepers, for tests that look for a leak.
    #[cfg(any(test, feature = "testkit"))]
    pub(crate) fn moments(&self) -> impl Iterator<Item = Time> + '_ {
        self.wakers.keys().map(|place| place.0)
    }
}

/// A clock's list of sleepers.
pub(crate) trait SleeperList: Unpin {
    /// Whether `at` has come; if not, adds the sleeper, so that its waker is called then.
    fn poll(&self, at: Time, place: &mut Option<SleeperId>, waker: &Waker) -> Poll<()>;

    /// Removes a sleeper.
    fn remove(&self, place: SleeperId);
}

/// One sleep. Removed from the list when dropped.
pub(crate) struct Sleep<D: SleeperList> {
    dormitory: D,
    at: Time,
    place: Option<SleeperId>,
}

impl<D: SleeperList> Sleep<D> {
    pub(crate) const fn new(dormitory: D, at: Time) -> Self {
        Self { dormitory, at, place: None }
    }
}

impl<D: SleeperList> Future for Sleep<D> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        if this.at == Time::NEVER {
            return Poll::Pending;
        }
        this.dormitory.poll(this.at, &mut this.place, cx.waker())
    }
}

impl<D: SleeperList> Drop for Sleep<D> {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.dormitory.remove(place);
        }
    }
}
