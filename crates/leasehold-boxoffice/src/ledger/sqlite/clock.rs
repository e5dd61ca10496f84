//! The clock of the SQLite ledger: BOOTTIME based, stored in the file, never going back.
//!
//! # Laws
//!
//! 1. It never goes back, not even over restarts and reboots.
//! 2. Nothing lapses early: after a reboot it continues from the last stored moment. Time that the machine was off does
//!    not count.
//! 3. The wall clock is never read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold::clock::Clock;
use rusqlite::{Connection, OptionalExtension as _};

use crate::model::Moment;

/// See the module.
pub(super) struct LedgerClock {
    clock: Arc<dyn Clock>,
    /// The boottime at `moment`, in milliseconds.
    boottime: u64,
    moment: u64,
    /// The latest moment that [`LedgerClock::now`] returned.
    latest: AtomicU64,
}

impl LedgerClock {
    /// Continues from the moment that the file has.
    pub(super) fn open(connection: &Connection, clock: Arc<dyn Clock>) -> rusqlite::Result<Self> {
        let query = "SELECT boot, boottime, moment FROM clock";
        let kept: Option<(Vec<u8>, u64, u64)> =
            connection.query_row(query, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).optional()?;
        let now = boottime(&*clock);
        let moment = match kept {
            None => 0,
            // The same boot: the time since then is known exactly.
            Some((boot, then, moment)) if boot == clock.boot() && now >= then => moment.saturating_add(now - then),
            Some((_, _, moment)) => moment,
        };
        Ok(Self { clock, boottime: now, moment, latest: AtomicU64::new(moment) })
    }

    /// The present moment.
    pub(super) fn now(&self) -> Moment {
        let passed = boottime(&*self.clock).saturating_sub(self.boottime);
        let now = self.moment.saturating_add(passed);
        Moment(self.latest.fetch_max(now, Ordering::SeqCst).max(now))
    }

    /// Stores the present moment, in the transaction that was decided by it.
    pub(super) fn persist(&self, connection: &Connection) -> rusqlite::Result<()> {
        let mut statement = connection.prepare_cached("INSERT OR REPLACE INTO clock VALUES (1, ?1, ?2, ?3)")?;
        // One reading for both values: after a pause between two readings, the moment would be ahead of its boottime.
        let boottime = boottime(&*self.clock);
        let moment = self.moment.saturating_add(boottime.saturating_sub(self.boottime));
        statement.execute((&self.clock.boot()[..], boottime, moment))?;
        Ok(())
    }
}

/// Whole milliseconds, rounded down.
fn boottime(clock: &dyn Clock) -> u64 {
    clock.now().as_nanos() / 1_000_000
}
