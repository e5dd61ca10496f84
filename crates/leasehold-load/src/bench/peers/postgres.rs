//! PostgreSQL: a table of locks. One upsert acquires a lock that is free or has lapsed, one delete releases it.

use anyhow::{Context, ensure};
use tokio_postgres::{NoTls, Statement};

use super::{PeerServer, unavailable, unique_owner};
use crate::bench::pair_load::{self, LEASE_TTL};

/// The table of this run, and the connection that creates and drops it.
pub struct LockTable {
    connection: tokio_postgres::Client,
    name: String,
}

/// One connection, with its prepared statements.
pub struct PostgresClient {
    connection: tokio_postgres::Client,
    acquire: Statement,
    release: Statement,
    owner: String,
    held: String,
}

impl LockTable {
    pub async fn create(peer: &PeerServer) -> anyhow::Result<Self> {
        let connection = connect_postgres(peer).await?;
        let name = format!("leasehold_bench_{}", std::process::id());
        let create = format!(
            "create table {name} (name text primary key, owner text not null, token bigint not null, \
             expires_at timestamptz not null); create sequence {name}_token"
        );
        connection.batch_execute(&create).await.context("make the table of the bench")?;
        Ok(Self { connection, name })
    }

    /// Connects the clients and prepares their statements.
    pub async fn connect(&self, peer: &PeerServer, count: usize) -> anyhow::Result<Vec<PostgresClient>> {
        let table = &self.name;
        let seconds = LEASE_TTL.as_secs();
        let acquire = format!(
            "insert into {table} as held (name, owner, token, expires_at) \
             values ($1, $2, nextval('{table}_token'), clock_timestamp() + interval '{seconds} s') \
             on conflict (name) do update \
             set owner = excluded.owner, token = excluded.token, expires_at = excluded.expires_at \
             where held.expires_at <= clock_timestamp() returning token"
        );
        let release = format!("delete from {table} where name = $1 and owner = $2");
        let mut clients = Vec::with_capacity(count);
        for number in 0..count {
            let connection = connect_postgres(peer).await?;
            let acquire = connection.prepare(&acquire).await.context("prepare the acquire")?;
            let release = connection.prepare(&release).await.context("prepare the release")?;
            clients.push(PostgresClient {
                connection,
                acquire,
                release,
                owner: unique_owner(number),
                held: String::new(),
            });
        }
        Ok(clients)
    }

    pub async fn drop_table(self) -> anyhow::Result<()> {
        let drop = format!("drop table {0}; drop sequence {0}_token", self.name);
        self.connection.batch_execute(&drop).await.context("drop the table of the bench")
    }
}

pub async fn connect_postgres(peer: &PeerServer) -> anyhow::Result<tokio_postgres::Client> {
    let (client, connection) =
        tokio_postgres::connect(&peer.url, NoTls).await.map_err(|cause| unavailable(peer, &error_chain(&cause)))?;
    // The task ends with its client. An error on the connection also fails the query that waits for a reply.
    tokio::spawn(async move { drop(connection.await) });
    Ok(client)
}

/// An error with its causes: the error alone says only where it happened.
fn error_chain(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {}", error_chain(cause)))
}

impl pair_load::LockClient for PostgresClient {
    async fn acquire(&mut self, name: &str) -> anyhow::Result<()> {
        name.clone_into(&mut self.held);
        let taken = self.connection.query_opt(&self.acquire, &[&self.held, &self.owner]).await.context("upsert")?;
        ensure!(taken.is_some(), "somebody else holds a name of the bench");
        Ok(())
    }

    async fn release(&mut self) -> anyhow::Result<()> {
        let deleted = self.connection.execute(&self.release, &[&self.held, &self.owner]).await.context("delete")?;
        ensure!(deleted == 1, "a lock of the bench was lost");
        Ok(())
    }
}
