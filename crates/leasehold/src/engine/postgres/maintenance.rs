//! What is done now and then: the settings are checked again, and what is over is forgotten.

use std::sync::Arc;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leasehold_core::Time;
use leasehold_postgres::tokio_postgres::types::Type;
use leasehold_postgres::tokio_postgres::{Error as SqlError, Row};

use super::batch::to_bigint;
use super::connection::ConnectionRoute;
use super::ids::Bits;
use super::shared::PostgresShared;
use super::sql_error::{Cause, SqlFailure};
use super::statements::Sql;
use super::verify::read_facts;
use crate::clock::Clock as _;

/// How often the settings are read again.
const VERIFY_EVERY: Duration = Duration::from_secs(30);
/// Every second time endings are forgotten.
const SWEEP_EVERY_ROUNDS: u32 = 2;
/// Names that are locked in one step of the sweep, in one transaction. It looks at ten times as many rows.
const NAMES_PER_STEP: i32 = 200;
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

    /// Forgets what is over, in short steps, over a connection of its own: nobody waits behind it. How many rows went.
    async fn sweep_all(&self) -> Result<u64, SqlFailure> {
        let connection = self.connector.open(ConnectionRoute::Statements, None).await?;
        let memory = to_bigint(u64::try_from(self.options().memory.as_millis()).unwrap_or(u64::MAX));
        let mut place = SweepPlace::start();
        let mut removed = 0;
        while !place.is_end() && !self.stopped.is_cancelled() {
            let parameters = [
                (&place.name as _, Type::TEXT),
                (&place.token as _, Type::INT8),
                (&place.handle as _, Type::UUID),
                (&NAMES_PER_STEP as _, Type::INT4),
                (&memory as _, Type::INT8),
            ];
            let rows = connection.query(Sql::Sweep, &parameters).await?;
            let read = |row: &Row| -> Result<_, SqlError> {
                let next = SweepPlace { name: row.try_get(0)?, token: row.try_get(1)?, handle: row.try_get(2)? };
                Ok((next, row.try_get::<_, i32>(3)?))
            };
            let odd = || SqlFailure::Away(Cause::new("the server does not say what it swept"));
            let (next, gone) = rows.first().and_then(|row| read(row).ok()).ok_or_else(odd)?;
            removed += u64::try_from(gone).unwrap_or(0);
            place = next;
        }
        Ok(removed)
    }

    /// A sweep, if no other process made one a moment ago. What came of it is kept for `examine`.
    pub(super) async fn sweep_if_due(&self) {
        let due = self.control.query(Sql::BeginSweep, &[]).await;
        let due = due.map(|rows| rows.first().is_some_and(|row| row.try_get(0).unwrap_or(false)));
        let swept = match due {
            Ok(false) => return,
            Ok(true) => self.sweep_all().await.map(drop),
            Err(failure) => Err(failure),
        };
        self.sweeps.note(swept.err().map(|failure| failure.cause()));
    }
}

/// Where the next step of a sweep begins in each table. None: that table is done.
struct SweepPlace {
    name: Option<String>,
    token: Option<i64>,
    handle: Option<Bits>,
}

impl SweepPlace {
    fn start() -> Self {
        Self { name: Some(String::new()), token: Some(0), handle: Some(Bits([0; 16])) }
    }

    fn is_end(&self) -> bool {
        self.name.is_none() && self.token.is_none() && self.handle.is_none()
    }
}

/// Why the last sweep of this process failed, if it did. Without sweeps the tables grow for ever.
#[derive(Default)]
pub(super) struct SweepReport(Mutex<Option<Cause>>);

impl SweepReport {
    fn note(&self, failure: Option<Cause>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = failure;
    }

    pub fn last_failure(&self) -> Option<Cause> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
            shared.sweep_if_due().await;
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
