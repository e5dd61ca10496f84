//! One buyer of the last unit: reads that there is one, thinks for two milliseconds, and sells.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use leasehold::Time;
use rusqlite::{Connection, ErrorCode, TransactionBehavior};

use super::Actor;
use crate::order::{ActorOutcome, BuyOrder, BuyWay};
use crate::seat::{STOCK, SeatWrite, sqlite};

/// Between the read and the write.
const THINKING_TIME: Duration = Duration::from_millis(2);
/// How long a buyer waits for the lease.
const LEASE_WAIT: Duration = Duration::from_secs(20);
const LEASE_TTL: Duration = Duration::from_secs(5);

const READ_UNITS: &str = "SELECT units FROM stock WHERE item = 'last'";
const WRITE_UNITS: &str = "UPDATE stock SET units = ?1, version = version + 1 WHERE item = 'last'";
const WRITE_SALE: &str = "INSERT INTO sales (unit, buyer) VALUES (1, 'buyer')";

impl Actor {
    /// Buys in the way of the order, once the barrier opens.
    pub async fn buy(&mut self, order: &BuyOrder) -> anyhow::Result<ActorOutcome> {
        let engine = self.engine(&order.url).await?;
        self.clock.sleep_until(Time::from_nanos(order.begin_ns)).await;
        let file = order.file.as_path();
        match order.way {
            BuyWay::Naive => self.buy_under(file, None).await,
            BuyWay::Optimistic => self.buy_by_version(file).await,
            BuyWay::Unique => self.buy_by_constraint(file),
            BuyWay::WriteLock => self.buy_under_write_lock(file),
            BuyWay::Lease => {
                let lease = engine.acquire(STOCK).ttl(LEASE_TTL).wait(LEASE_WAIT).await?;
                let done = self.buy_under(file, None).await;
                lease.release().await?;
                done
            }
            BuyWay::FencedLease => {
                let lease = engine.acquire(STOCK).ttl(LEASE_TTL).wait(LEASE_WAIT).fenced().await?;
                let shown = format!("{}:{}", lease.token(), lease.lease_id().mark());
                let done = self.buy_under(file, Some(&shown)).await;
                lease.release().await?;
                done
            }
        }
    }

    /// Reads, thinks, writes what it thought. What is around it decides whether that is safe.
    async fn buy_under(&self, file: &Path, shown: Option<&str>) -> anyhow::Result<ActorOutcome> {
        let mut connection = sqlite::open_file(file)?;
        let read_ns = self.clock.now().as_nanos();
        let units = read_units(&connection)?;
        if units < 1 {
            return Ok(ActorOutcome::Bought { sold: false, read_ns, tries: 1 });
        }
        self.think().await;
        let written = sqlite::fenced_write(&mut connection, shown, |connection| {
            connection.execute(WRITE_UNITS, [units - 1])?;
            connection.execute(WRITE_SALE, []).map(drop)
        })?;
        Ok(ActorOutcome::Bought { sold: written == SeatWrite::Admitted, read_ns, tries: 1 })
    }

    /// The write names the version that was read: if it is another one now, begin again.
    async fn buy_by_version(&self, file: &Path) -> anyhow::Result<ActorOutcome> {
        let mut connection = sqlite::open_file(file)?;
        for tries in 1.. {
            let read_ns = self.clock.now().as_nanos();
            let sql = "SELECT units, version FROM stock WHERE item = 'last'";
            let (units, version): (i64, i64) =
                connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?))).context("read the stock")?;
            if units < 1 {
                return Ok(ActorOutcome::Bought { sold: false, read_ns, tries });
            }
            self.think().await;
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let compared = format!("{WRITE_UNITS} AND version = ?2");
            if transaction.execute(&compared, [units - 1, version])? == 1 {
                transaction.execute(WRITE_SALE, [])?;
                transaction.commit()?;
                return Ok(ActorOutcome::Bought { sold: true, read_ns, tries });
            }
        }
        anyhow::bail!("a buyer never came to an end")
    }

    /// Nobody reads first: the constraint decides.
    fn buy_by_constraint(&self, file: &Path) -> anyhow::Result<ActorOutcome> {
        let connection = sqlite::open_file(file)?;
        let read_ns = self.clock.now().as_nanos();
        match connection.execute(WRITE_SALE, []) {
            Ok(_) => Ok(ActorOutcome::Bought { sold: true, read_ns, tries: 1 }),
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) => {
                Ok(ActorOutcome::Bought { sold: false, read_ns, tries: 1 })
            }
            Err(error) => Err(error).context("sell"),
        }
    }

    /// The write lock of the database is held from the read to the write, as `SELECT … FOR UPDATE` does on PostgreSQL.
    fn buy_under_write_lock(&self, file: &Path) -> anyhow::Result<ActorOutcome> {
        let mut connection = sqlite::open_file(file)?;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let read_ns = self.clock.now().as_nanos();
        let units = read_units(&transaction)?;
        if units > 0 {
            transaction.execute(WRITE_UNITS, [units - 1])?;
            transaction.execute(WRITE_SALE, [])?;
        }
        transaction.commit()?;
        Ok(ActorOutcome::Bought { sold: units > 0, read_ns, tries: 1 })
    }

    async fn think(&self) {
        self.clock.sleep_until(self.clock.now().plus(THINKING_TIME)).await;
    }
}

fn read_units(connection: &Connection) -> anyhow::Result<i64> {
    connection.query_row(READ_UNITS, [], |row| row.get(0)).context("read the stock")
}
