//! Seats on PostgreSQL without a box office: one conditional upsert holds two adjacent seats, one delete releases them.
//!
//! It is the baseline for `leasehold rehearse --holds`: the same number of seats, the same choice of seats, one
//! connection per buyer. It has no audit, no limit per buyer, no idempotency key and no notification.

use std::hash::{BuildHasher, RandomState};

use anyhow::{Context, ensure};
use tokio_postgres::Statement;

use super::postgres::connect_postgres;
use super::{PeerServer, unique_owner};
use crate::bench::pair_load::{self, LEASE_TTL};

/// As many seats as `rehearse --holds` creates.
const SEATS_IN_TABLE: u64 = 20_000;

/// The table of this run, and the connection that creates and drops it.
pub struct SeatTable {
    connection: tokio_postgres::Client,
    name: String,
}

/// One buyer: a connection with its prepared statements.
pub struct SeatClient {
    connection: tokio_postgres::Client,
    hold: Statement,
    release: Statement,
    buyer: String,
    random_state: RandomState,
    attempts: u64,
    seats: Vec<String>,
}

impl SeatTable {
    pub async fn create(peer: &PeerServer) -> anyhow::Result<Self> {
        let connection = connect_postgres(peer).await?;
        let name = format!("leasehold_bench_seats_{}", std::process::id());
        let create = format!(
            "create table {name} (event_id text not null, seat_id text not null, buyer text not null, \
             token bigint not null, expires_at timestamptz not null, primary key (event_id, seat_id)); \
             create sequence {name}_token"
        );
        connection.batch_execute(&create).await.context("make the table of the bench")?;
        Ok(Self { connection, name })
    }

    /// Connects the buyers and prepares their statements.
    pub async fn connect(&self, peer: &PeerServer, count: usize) -> anyhow::Result<Vec<SeatClient>> {
        let (table, seconds) = (&self.name, LEASE_TTL.as_secs());
        let hold = format!(
            "insert into {table} as held (event_id, seat_id, buyer, token, expires_at) \
             select 'ev', seat, $2, nextval('{table}_token'), clock_timestamp() + interval '{seconds} s' \
             from unnest($1::text[]) seat \
             on conflict (event_id, seat_id) do update \
             set buyer = excluded.buyer, token = excluded.token, expires_at = excluded.expires_at \
             where held.expires_at <= clock_timestamp() returning token"
        );
        let release = format!("delete from {table} where event_id = 'ev' and seat_id = any($1) and buyer = $2");
        let mut buyers = Vec::with_capacity(count);
        for number in 0..count {
            let connection = connect_postgres(peer).await?;
            let hold = connection.prepare(&hold).await.context("prepare the hold")?;
            let release = connection.prepare(&release).await.context("prepare the release")?;
            let (buyer, random_state) = (unique_owner(number), RandomState::new());
            buyers.push(SeatClient { connection, hold, release, buyer, random_state, attempts: 0, seats: Vec::new() });
        }
        Ok(buyers)
    }

    pub async fn drop_table(self) -> anyhow::Result<()> {
        let drop = format!("drop table {0}; drop sequence {0}_token", self.name);
        self.connection.batch_execute(&drop).await.context("drop the table of the bench")
    }
}

impl pair_load::LockClient for SeatClient {
    /// Holds two adjacent seats. If another buyer has one of them, it tries two others.
    async fn acquire(&mut self, _: &str) -> anyhow::Result<()> {
        loop {
            self.attempts += 1;
            let first = self.random_state.hash_one(self.attempts) % (SEATS_IN_TABLE / 2) * 2;
            self.seats = vec![format!("S-{first:05}"), format!("S-{:05}", first + 1)];
            let held = self.connection.query(&self.hold, &[&self.seats, &self.buyer]).await.context("upsert")?;
            match held.len() {
                2 => return Ok(()),
                0 => {}
                // All or nothing: release the one seat that was held.
                _ => drop(self.connection.execute(&self.release, &[&self.seats, &self.buyer]).await.context("delete")?),
            }
        }
    }

    async fn release(&mut self) -> anyhow::Result<()> {
        let deleted = self.connection.execute(&self.release, &[&self.seats, &self.buyer]).await.context("delete")?;
        ensure!(deleted == 2, "a seat of the bench was lost");
        Ok(())
    }
}
