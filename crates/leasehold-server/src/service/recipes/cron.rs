//! The ledger of scheduled runs, for callers of the server.

use std::time::{Duration, SystemTime};

use leasehold::recipe::cron::{CronBegun, CronRun, CronSchedule, CronStart};

use super::RecipeAccess;
use super::counts::RunOutcome;
use crate::service::Denial;
use crate::service::pass::Caller;

/// Schedules that are listed.
pub(super) const MAX_SCHEDULES: u32 = 1000;
/// Runs of a schedule in the list of all.
const SHOWN_RUNS: u32 = 30;

/// The name that a prefix is compared with.
pub fn cron_resource(name: &str) -> String {
    format!("cron/{name}")
}

/// A schedule, and its newest runs.
#[derive(Debug)]
pub struct SeenSchedule {
    /// The schedule.
    pub schedule: CronSchedule,
    /// Newest first.
    pub runs: Vec<CronRun>,
}

impl RecipeAccess {
    /// Begins a run in the ledger.
    ///
    /// # Errors
    ///
    /// The store refused or failed.
    pub async fn cron_begin(&self, start: CronStart, now: SystemTime) -> Result<CronBegun, Denial> {
        let begun = self.ask(self.state.store.cron_begin(&start)).await?;
        if let CronBegun::First { recorded, .. } = begun {
            let late = now.duration_since(start.tick).unwrap_or(Duration::ZERO);
            self.state.counts.record_begin(late, recorded);
        }
        Ok(begun)
    }

    /// Ends a run. False: it was lost meanwhile, or ended before.
    ///
    /// # Errors
    ///
    /// The store refused or failed.
    pub async fn cron_finish(
        &self,
        name: &str,
        tick: SystemTime,
        token: i64,
        code: i32,
        tail: &str,
    ) -> Result<bool, Denial> {
        let ours = self.ask(self.state.store.cron_finish(name, tick, token, code, tail)).await?;
        if ours {
            self.state.counts.record_run(if code == 0 { RunOutcome::Ok } else { RunOutcome::Failed });
        }
        Ok(ours)
    }

    /// One schedule.
    ///
    /// # Errors
    ///
    /// The store refused or failed.
    pub async fn cron_schedule(&self, name: &str) -> Result<Option<CronSchedule>, Denial> {
        self.ask(self.state.store.cron_schedule(name)).await
    }

    /// The newest runs of a schedule.
    ///
    /// # Errors
    ///
    /// The store refused or failed.
    pub async fn cron_runs(&self, name: &str, most: u32) -> Result<Vec<CronRun>, Denial> {
        self.ask(self.state.store.cron_runs(name, most)).await
    }

    /// The schedules that the caller may see, with their newest runs.
    ///
    /// # Errors
    ///
    /// The store refused or failed.
    pub async fn cron_schedules(&self, caller: &Caller) -> Result<Vec<SeenSchedule>, Denial> {
        let mut found = self.ask(self.state.store.cron_schedules(MAX_SCHEDULES)).await?;
        found.retain(|schedule| caller.principal.sees(&cron_resource(&schedule.name)));
        let mut seen = Vec::with_capacity(found.len());
        for schedule in found {
            let runs = self.ask(self.state.store.cron_runs(&schedule.name, SHOWN_RUNS)).await?;
            seen.push(SeenSchedule { schedule, runs });
        }
        Ok(seen)
    }
}
