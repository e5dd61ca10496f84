//! The ledger's own clock: BOOTTIME based, kept in the file, never back.
//!
//! # Laws
//!
//! 1. It never goes back, over restarts and boots either.
//! 2. Nothing lapses early: on another boot it goes on from the last moment that was written down, so time that nobody
//!    can prove has passed has not.
//! 3. The wall clock is never asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold::clock::Clock;
use rusqlite::{Connection, OptionalExtension as _};

use crate::model::Moment;

/// See the module.
pub(super) struct LedgerClock {
    clock: Arc<dyn Clock>,
    /// Boottime that stands for `moment`.
    boottime: u64,
    moment: u64,
    /// The latest moment that was told.
    latest: AtomicU64,
}

impl LedgerClock {
    /// Goes on where the file says.
    pub(super) fn open(connection: &Connection, clock: Arc<dyn Clock>) -> rusqlite::Result<Self> {
        let query = "SELECT boot, boottime, moment FROM clock";
        let kept: Option<(Vec<u8>, u64, u64)> =
            connection.query_row(query, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).optional()?;
        let now = boottime(&*clock);
        let moment = match kept {
            None => 0,
            // The same boot, and its clock has gone on: exactly so much time has passed.
            Some((boot, then, moment)) if boot == clock.boot() && now >= then => moment.saturating_add(now - then),
            Some((_, _, moment)) => moment,
        };
        Ok(Self { clock, boottime: now, moment, latest: AtomicU64::new(moment) })
    }

    /// The moment it is.
    pub(super) fn now(&self) -> Moment {
        let passed = boottime(&*self.clock).saturating_sub(self.boottime);
        let now = self.moment.saturating_add(passed);
        Moment(self.latest.fetch_max(now, Ordering::SeqCst).max(now))
    }

    /// Writes down where it stands, in the transaction of whatever was decided by it.
    pub(super) fn persist(&self, connection: &Connection) -> rusqlite::Result<()> {
        let mut statement = connection.prepare_cached("INSERT OR REPLACE INTO clock VALUES (1, ?1, ?2, ?3)")?;
        // One reading for both: with a pause between two, the moment would be ahead of its boottime from then on.
        let boottime = boottime(&*self.clock);
        let moment = self.moment.saturating_add(boottime.saturating_sub(self.boottime));
        statement.execute((&self.clock.boot()[..], boottime, moment))?;
        Ok(())
    }
}

/// Whole milliseconds, rounded down: the ledger is never ahead.
fn boottime(clock: &dyn Clock) -> u64 {
    clock.now().as_nanos() / 1_000_000
}
