//! Time that moves when you say so.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use leasehold_core::Time;

use crate::clock::Clock;
use crate::clock::sleepers::{Sleep, SleeperId, SleeperList, Sleepers};

/// A clock set by hand. Clones are the same clock.
///
/// Moving it wakes sleepers, and calls the functions of [`Clock::on_step`]; it does not wait until they
/// have acted. Under a `current_thread` runtime, `tokio::task::yield_now` a few times lets them.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use leasehold::clock::Clock;
/// use leasehold::testkit::ManualClock;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let clock = ManualClock::new();
/// let dawn = clock.now().plus(Duration::from_secs(8 * 3600));
/// let sleeper = tokio::spawn(clock.sleep_until(dawn));
/// tokio::task::yield_now().await;
///
/// clock.advance(Duration::from_secs(8 * 3600));
/// sleeper.await.unwrap();
/// # }
/// ```
#[derive(Clone)]
pub struct ManualClock(Arc<ManualClockInner>);

struct ManualClockInner {
    state: Mutex<ManualClockState>,
    /// Apart from the state: they are called with the state unlocked, since they will ask for the time.
    steps: Mutex<Vec<Arc<dyn Fn() + Send + Sync>>>,
}

struct ManualClockState {
    now: Time,
    boot: [u8; 16],
    sleepers: Sleepers,
}

impl ManualClock {
    /// A clock at the beginning of time.
    #[must_use]
    pub fn new() -> Self {
        let state = ManualClockState { now: Time::ZERO, boot: [1; 16], sleepers: Sleepers::new() };
        Self(Arc::new(ManualClockInner { state: Mutex::new(state), steps: Mutex::default() }))
    }

    /// The clock as engines and clients take it.
    #[must_use]
    pub fn shared(&self) -> Arc<dyn Clock> {
        Arc::new(self.clone())
    }

    /// Sets the moment. Backwards is allowed: a machine does it when it boots again.
    pub fn set(&self, now: Time) {
        self.step(|state| state.now = now);
    }

    /// Moves on by a span.
    pub fn advance(&self, span: Duration) {
        self.step(|state| state.now = state.now.plus(span));
    }

    /// Makes it another boot. Set the time as well, where it would have started anew.
    pub fn set_boot(&self, boot: [u8; 16]) {
        self.step(|state| state.boot = boot);
    }

    /// The next moment of a sleeper: where a simulation can jump to.
    #[must_use]
    pub fn next_wake(&self) -> Option<Time> {
        self.lock().sleepers.next_due()
    }

    /// How many sleep, for tests that look for a leak.
    #[must_use]
    pub fn sleeping(&self) -> usize {
        self.lock().sleepers.moments().count()
    }

    fn step(&self, change: impl FnOnce(&mut ManualClockState)) {
        let due = {
            let mut state = self.lock();
            change(&mut state);
            let now = state.now;
            state.sleepers.take_due(now)
        };
        due.into_iter().for_each(Waker::wake);
        let steps = self.0.steps.lock().unwrap_or_else(PoisonError::into_inner).clone();
        steps.iter().for_each(|wake| wake());
    }

    fn lock(&self) -> MutexGuard<'_, ManualClockState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ManualClock").field(&self.lock().now).finish()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Time {
        self.lock().now
    }

    fn boot(&self) -> [u8; 16] {
        self.lock().boot
    }

    fn sleep_until(&self, at: Time) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(Sleep::new(self.clone(), at))
    }

    fn on_step(&self, wake: Box<dyn Fn() + Send + Sync>) {
        self.0.steps.lock().unwrap_or_else(PoisonError::into_inner).push(wake.into());
    }
}

impl SleeperList for ManualClock {
    fn poll(&self, at: Time, place: &mut Option<SleeperId>, waker: &Waker) -> Poll<()> {
        // Check and add under one lock, or a step in between would be missed.
        let mut state = self.lock();
        if state.now >= at {
            return Poll::Ready(());
        }
        state.sleepers.insert(place, at, waker);
        Poll::Pending
    }

    fn remove(&self, place: SleeperId) {
        self.lock().sleepers.remove(place);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Goal: a sleep ends at its moment, not before.
    /// Method: one nanosecond short, then the last one.
    #[tokio::test]
    async fn a_sleeper_wakes_exactly_at_its_moment() {
        let clock = ManualClock::new();
        let sleeper = tokio::spawn(clock.sleep_until(Time::from_nanos(100)));
        tokio::task::yield_now().await;
        clock.set(Time::from_nanos(99));
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        assert_eq!(clock.next_wake(), Some(Time::from_nanos(100)));
        clock.advance(Duration::from_nanos(1));
        sleeper.await.unwrap();
        assert_eq!(clock.sleeping(), 0);
    }

    #[tokio::test]
    async fn a_cancelled_sleeper_is_forgotten() {
        let clock = ManualClock::new();
        let sleeper = tokio::spawn(clock.sleep_until(Time::from_nanos(100)));
        tokio::task::yield_now().await;
        assert_eq!(clock.sleeping(), 1);
        sleeper.abort();
        let _ = sleeper.await;
        assert_eq!(clock.sleeping(), 0);
    }

    /// Goal: an engine with its own timer hears of every step, and may ask for the time meanwhile.
    /// Method: a hook that reads the clock, through each way of moving it.
    #[test]
    fn every_step_is_told_and_the_time_can_be_asked_meanwhile() {
        let clock = ManualClock::new();
        let told = Arc::new(AtomicUsize::new(0));
        let hook = (clock.clone(), told.clone());
        clock.on_step(Box::new(move || {
            let _ = hook.0.now();
            hook.1.fetch_add(1, Ordering::SeqCst);
        }));
        clock.set(Time::from_millis(5));
        clock.advance(Duration::from_millis(5));
        clock.set_boot([2; 16]);
        assert_eq!(told.load(Ordering::SeqCst), 3);
        assert_eq!((clock.now(), clock.boot()), (Time::from_millis(10), [2; 16]));
    }
}
