//! The alarm: one thread per process that wakes sleepers by `CLOCK_BOOTTIME`.
//!
//! ```text
//!   sleep_until ──▶ sleepers, under a lock ──▶ timerfd armed for the first ──▶ thread ──▶ wakers
//! ```
//!
//! A tokio timer would not do: it counts `CLOCK_MONOTONIC`, which stands still in suspend, so a lease
//! would be reported lost minutes after it was. The thread starts with the first sleep and stays.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Poll, Waker};
use std::thread;
use std::time::Duration;

use leasehold_core::Time;
use rustix::fd::OwnedFd;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::boottime;
use super::sleepers::{Sleep, SleeperId, SleeperList, Sleepers};

/// How often the thread reads the clock when the kernel gives it no timer (no descriptor left, or a sandbox that
/// forbids it). Worse than a timer, better than a lease that is never declared lost.
const POLL_EVERY: Duration = Duration::from_millis(10);

static ALARM: Alarm =
    Alarm { timer: OnceLock::new(), state: Mutex::new(AlarmState { running: false, sleepers: Sleepers::new() }) };

pub(super) fn sleep_until(at: Time) -> impl Future<Output = ()> + Send {
    Sleep::new(&ALARM, at)
}

struct Alarm {
    /// Made once, by the first sleep; `None` inside when the kernel gave none.
    timer: OnceLock<Option<OwnedFd>>,
    state: Mutex<AlarmState>,
}

struct AlarmState {
    running: bool,
    sleepers: Sleepers,
}

impl SleeperList for &'static Alarm {
    fn poll(&self, at: Time, place: &mut Option<SleeperId>, waker: &Waker) -> Poll<()> {
        if boottime() >= at {
            return Poll::Ready(());
        }
        let mut state = self.lock();
        if !state.running && !self.start() {
            // The thread could not be started. Poll again rather than sleep for ever.
            waker.wake_by_ref();
            return Poll::Pending;
        }
        state.running = true;
        let first = state.sleepers.next_due();
        state.sleepers.insert(place, at, waker);
        if first.is_none_or(|first| at < first) {
            self.arm(at);
        }
        Poll::Pending
    }

    fn remove(&self, place: SleeperId) {
        // The timer stays armed; at worst the thread wakes once without need.
        self.lock().sleepers.remove(place);
    }
}

impl Alarm {
    fn start(&'static self) -> bool {
        thread::Builder::new().name("leasehold-alarm".into()).spawn(|| self.run()).is_ok()
    }

    fn run(&self) -> ! {
        loop {
            self.wait();
            let mut state = self.lock();
            let due = state.sleepers.take_due(boottime());
            // Armed under the lock, like everywhere, so that a later moment never overwrites an earlier.
            if let Some(first) = state.sleepers.next_due() {
                self.arm(first);
            }
            drop(state);
            for waker in due {
                // A waker that panics must not take every other lease's alarm with it.
                let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
            }
        }
    }

    fn timer(&self) -> Option<&OwnedFd> {
        self.timer.get_or_init(|| timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC).ok()).as_ref()
    }

    fn wait(&self) {
        let mut expirations = [0; 8];
        let read = self.timer().map(|timer| rustix::io::read(timer, &mut expirations));
        // After an interrupted read the list is checked once more.
        if !matches!(read, Some(Ok(_) | Err(rustix::io::Errno::INTR))) {
            thread::sleep(POLL_EVERY);
        }
    }

    /// Sets the timer to an absolute moment; one that has passed rings at once. The thread may sit in
    /// `read` meanwhile: the kernel lets it wait for the new moment.
    fn arm(&self, at: Time) {
        let Some(timer) = self.timer() else { return };
        // Zero would disarm it.
        let nanos = at.as_nanos().max(1);
        let value = Timespec {
            tv_sec: i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: (nanos % 1_000_000_000).cast_signed(),
        };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        // Cannot fail: the descriptor is a timer of ours and the moment is well formed.
        let _ = timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &once);
    }

    fn lock(&self) -> MutexGuard<'_, AlarmState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Wake};

    use super::*;

    struct Flag(AtomicBool);

    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    /// Looks for one moment: other tests sleep in the same process.
    fn entered(at: Time) -> bool {
        ALARM.lock().sleepers.moments().any(|moment| moment == at)
    }

    /// Goal: a cancelled sleep leaves nothing in the process-wide list.
    /// Method: poll a sleep of an hour once, see it entered, drop it, look again.
    #[test]
    fn a_cancelled_sleep_leaves_nothing_behind() {
        let flag = Arc::new(Flag(AtomicBool::new(false)));
        let at = boottime().plus(Duration::from_secs(3600));
        {
            let mut sleep = pin!(sleep_until(at));
            let waker = flag.clone().into();
            assert!(sleep.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            assert!(entered(at));
        }
        assert!(!entered(at));
        assert!(!flag.0.load(Ordering::SeqCst));
    }
}
