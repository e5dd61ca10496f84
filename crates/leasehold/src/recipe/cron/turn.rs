//! A run that this machine has begun: its tick, its lease, and how it is finished.

use std::fmt;
use std::time::SystemTime;

use super::{CronRun, MissedTicks};
use crate::recipe::StrongestLease;
use crate::recipe::error::RecipeError;
use crate::recipe::store::Store;

/// A run that this machine has begun. Do the work, [`finish`](CronTurn::finish) it, then release its lease.
///
/// Dropped without that, the run stays `running` in the ledger until another machine begins a later tick, and finds it lost.
#[must_use = "a run that is not finished is reported as lost"]
pub struct CronTurn {
    pub(super) name: String,
    pub(super) tick: SystemTime,
    /// The token of the run in the ledger.
    pub(super) token: i64,
    pub(super) lease: StrongestLease,
    /// None: leases only.
    pub(super) ledger: Option<Store>,
    pub(super) skipped: Option<MissedTicks>,
    pub(super) missed: Option<MissedTicks>,
    pub(super) lost: Option<CronRun>,
}

impl fmt::Debug for CronTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CronTurn")
            .field("name", &self.name)
            .field("tick", &self.tick)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

impl CronTurn {
    /// The tick that is run.
    #[must_use]
    pub const fn tick(&self) -> SystemTime {
        self.tick
    }

    /// The lease that keeps others from running at the same time.
    pub const fn lease(&self) -> &StrongestLease {
        &self.lease
    }

    /// The ticks before this one that came while a run was at work: the ledger keeps them as skipped since this run.
    #[must_use]
    pub const fn skipped(&self) -> Option<MissedTicks> {
        self.skipped
    }

    /// The other ticks before this one that nobody began: the ledger keeps them as missed since this run.
    #[must_use]
    pub const fn missed(&self) -> Option<MissedTicks> {
        self.missed
    }

    /// The run before this one, if its machine did not finish it: the ledger keeps it as lost since this run.
    #[must_use]
    pub const fn lost(&self) -> Option<&CronRun> {
        self.lost.as_ref()
    }

    /// Whether the lease is kept after the run, so that nobody runs the tick again: there is no ledger.
    #[must_use]
    pub const fn keeps_lease(&self) -> bool {
        self.ledger.is_none()
    }

    /// Ends the run in the ledger, once: `ok` with code 0, otherwise `failed`. `tail`: the last words of its output. False: it
    /// was reported lost meanwhile. Call it before the lease is released, or another machine may find it running.
    ///
    /// # Errors
    ///
    /// What the store says when it cannot be asked. It may be asked again.
    pub async fn finish(&self, code: i32, tail: &str) -> Result<bool, RecipeError> {
        match &self.ledger {
            Some(ledger) => ledger.cron_finish(&self.name, self.tick, self.token, code, tail).await,
            None => Ok(true),
        }
    }

    /// The lease alone, for those who keep it by other means.
    pub fn into_lease(self) -> StrongestLease {
        self.lease
    }
}
