//! The book's clock: how the book's time follows the machine's clock.
//!
//! The book's time never goes back and has no gaps that could make a lease lapse early: on the same boot it
//! runs with `CLOCK_BOOTTIME` (exact remaining times after a restart, suspend counted); after another boot it
//! goes on from the last moment that the journal can prove. The wall clock is never read.

use std::sync::Arc;

use leasehold_core::Time;
use leasehold_core::book::ClockMark;

use crate::clock::Clock;

/// See the module.
#[derive(Clone)]
pub struct BookClock {
    clock: Arc<dyn Clock>,
    mark: ClockMark,
}

impl BookClock {
    /// The clock of a book that was last started at `before`, and whose journal ends at `heard`. `true` beside it: this
    /// is another boot, and the time that passed is unknown.
    pub fn take_up(clock: Arc<dyn Clock>, before: ClockMark, heard: Time) -> (Self, bool) {
        let boot = clock.boot();
        let boottime = clock.now().as_nanos();
        let blank = before == ClockMark::default();
        let at = Time::from_nanos(before.at.as_nanos().saturating_add(boottime.saturating_sub(before.boottime)));
        // A clock that is behind the journal is another clock, even if its boot id is the same.
        let same = before.boot == boot && boottime >= before.boottime && at >= heard;
        let at = if same { at } else { heard };
        let mark = ClockMark { at, boot, boottime };
        (Self { clock, mark }, !same && !blank)
    }

    /// How the two clocks relate to each other.
    pub const fn mark(&self) -> ClockMark {
        self.mark
    }

    /// The book's time now.
    pub fn now(&self) -> Time {
        let since = self.clock.now().as_nanos().saturating_sub(self.mark.boottime);
        Time::from_nanos(self.mark.at.as_nanos().saturating_add(since))
    }

    /// The machine's clock.
    pub fn machine(&self) -> &Arc<dyn Clock> {
        &self.clock
    }
}
