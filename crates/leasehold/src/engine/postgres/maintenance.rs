//! What is done now and then: the settings are checked again, and what is over is forgotten.

use std::sync::Arc;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leasehold_core::Time;
use leasehold_postgres::tokio_postgres::types::Type;

use super::batch::to_bigint;
use super::shared::PostgresShared;
use super::sql_error::SqlFailure;
use super::statements::Sql;
use super::verify::read_facts;
use crate::clock::Clock as _;

/// How often the settings are read again.
const VERIFY_EVERY: Duration = Duration::from_secs(30);
/// Every second time endings are forgotten.
const SWEEP_EVERY_ROUNDS: u32 = 2;
/// Rows in one transaction of the sweep.
const ROWS_PER_SWEEP: i32 = 2000;
/// A clock that gains or loses more than this between two readings was set.
const STEP_TOLERANCE: Duration = Duration::from_millis(50);

/// The server's clock beside ours.
#[derive(Default)]
pub(super) struct ClockComparison(Mutex<ClockReadings>);

#[derive(Default, Clone, Copy)]
struct ClockReadings {
    last: Option<(i64, Time)>,
    /// The largest difference between the two spans, in microseconds, with its sign.
    largest_step: i64,
}

impl ClockComparison {
    /// Notes what the server's clock showed at a moment of ours.
    pub fn add(&self, server_micros: i64, at: Time) {
        let mut readings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((before, then)) = readings.last {
            let ours = at.since(then);
            let span = i64::try_from(ours.as_micros()).unwrap_or(i64::MAX);
            let step = server_micros.saturating_sub(before).saturating_sub(span);
            let tolerance = ours / 1000 + STEP_TOLERANCE;
            let tolerance = i64::try_from(tolerance.as_micros()).unwrap_or(i64::MAX);
            if step.abs() > tolerance && step.abs() > readings.largest_step.abs() {
                readings.largest_step = step;
            }
        }
        readings.last = Some((server_micros, at));
    }

    /// How far the server's clock was set while we looked, in microseconds; zero: it was not.
    pub fn largest_step(&self) -> i64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).largest_step
    }
}

impl PostgresShared {
    /// Reads the settings of the server and its clock, and compares them with what was promised.
    pub async fn verify_again(&self) -> Result<(), SqlFailure> {
        let connection = self.reader.get().await?;
        let facts = read_facts(&connection).await?;
        self.connector.check.compare(&facts);
        self.read_server_clock().await
    }

    pub async fn read_server_clock(&self) -> Result<(), SqlFailure> {
        let asked = self.real_clock.now();
        let rows = self.reader.query(Sql::ServerClock, &[]).await?;
        let answered = self.real_clock.now();
        // A slow answer says nothing about clocks.
        if answered.since(asked) < STEP_TOLERANCE
            && let Some(server) = rows.first().and_then(|row| row.try_get::<_, i64>(0).ok())
        {
            self.clocks.add(server, asked.plus(answered.since(asked) / 2));
        }
        Ok(())
    }

    async fn sweep(&self) {
        let memory = to_bigint(u64::try_from(self.options().memory.as_millis()).unwrap_or(u64::MAX));
        let parameters = [(&ROWS_PER_SWEEP as _, Type::INT4), (&memory as _, Type::INT8)];
        // In chunks, so that no transaction is long.
        while let Ok(rows) = self.control.query(Sql::Sweep, &parameters).await {
            let swept = rows.first().and_then(|row| row.try_get::<_, i32>(0).ok()).unwrap_or(0);
            if swept < ROWS_PER_SWEEP || self.stopped.is_cancelled() {
                return;
            }
        }
    }
}

/// Runs until the engine stops.
pub(super) async fn run_maintenance(shared: Arc<PostgresShared>) {
    for round in 1_u32.. {
        let at = shared.real_clock.now().plus(VERIFY_EVERY);
        tokio::select! {
            () = shared.stopped.cancelled() => return,
            () = shared.real_clock.sleep_until(at) => {}
        }
        // A server that is away is found by those who need it.
        let _ = shared.verify_again().await;
        if round.is_multiple_of(SWEEP_EVERY_ROUNDS) {
            shared.sweep().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a clock that is set is noticed; one that is slewed within its bounds is not.
    #[test]
    fn a_clock_that_was_set_is_noticed() {
        let clocks = ClockComparison::default();
        let at = |seconds: u64| Time::from_millis(seconds * 1000);
        clocks.add(1_000_000_000, at(10));
        clocks.add(1_030_020_000, at(40));
        assert_eq!(clocks.largest_step(), 0, "20 ms in 30 s");
        clocks.add(1_120_020_000, at(70));
        assert_eq!(clocks.largest_step(), 60_000_000);
        clocks.add(1_090_020_000, at(100));
        assert_eq!(clocks.largest_step(), 60_000_000, "the larger one is kept");
    }
}
