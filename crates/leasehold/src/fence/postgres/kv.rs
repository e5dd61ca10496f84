//! A table of keys and values that is fenced from the start: the key is the resource that is leased.

use leasehold_postgres::DatabaseAddress;
use leasehold_postgres::tokio_postgres::Client;
use tokio::sync::{Mutex, MutexGuard};

use super::install::{FenceMode, InstallOptions, install};
use super::sql_refusal::{failure_before_commit, unavailable};
use super::transaction::FencedWrite;
use crate::fence::refusal::FenceError;
use crate::lease::FencedLease;

const TABLE: &str = "leasehold_fence.kv";

/// Keys and values in `leasehold_fence.kv`. See the module.
///
/// ```no_run
/// use leasehold::{Leasehold, fence::postgres::Kv};
///
/// # async fn publish(leasehold: Leasehold) -> Result<(), Box<dyn std::error::Error>> {
/// let kv = Kv::open("postgres://app@localhost/shop").await?;
/// let lease = leasehold.acquire("config/primary").fenced().await?;
/// kv.put(&lease, b"db-2").await?; // refused when a later holder has written
/// assert_eq!(kv.get("config/primary").await?.as_deref(), Some(&b"db-2"[..]));
/// # Ok(())
/// # }
/// ```
///
/// A lease for efficiency has no token, and opens no fenced write:
///
/// ```compile_fail,E0308
/// use leasehold::{Lease, fence::postgres::Kv};
///
/// async fn publish(kv: &Kv, lease: &Lease) {
///     let _ = kv.put(lease, b"db-2").await; // expected `&FencedLease`, found `&Lease`
/// }
/// ```
#[derive(Debug)]
pub struct Kv {
    address: DatabaseAddress,
    /// One connection: writes of one process stand in a queue.
    client: Mutex<Client>,
}

impl Kv {
    /// Connects, and makes the table with its fence if it is not there.
    ///
    /// # Errors
    ///
    /// [`FenceError::Invalid`] for a URL that is none, [`FenceError::Unavailable`] when nobody answers there.
    pub async fn open(url: &str) -> Result<Self, FenceError> {
        let address = super::address_of(url)?;
        let mut client = super::connect_to(&address).await?;
        let sql = "SELECT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = to_regclass('leasehold_fence.kv')
                   AND tgname = 'zz_leasehold_fence' AND tgenabled = 'A')";
        let row = client.query_one(sql, &[]).await.map_err(|error| unavailable(&error, "look for the table"))?;
        if !row.get::<_, bool>(0) {
            Self::make_table(&mut client).await?;
        }
        Ok(Self { address, client: Mutex::new(client) })
    }

    /// The connection, opened again if it is lost.
    async fn client(&self) -> Result<MutexGuard<'_, Client>, FenceError> {
        let mut client = self.client.lock().await;
        if client.is_closed() {
            *client = super::connect_to(&self.address).await?;
        }
        Ok(client)
    }

    async fn make_table(client: &mut Client) -> Result<(), FenceError> {
        let sql = "CREATE SCHEMA IF NOT EXISTS leasehold_fence;
            CREATE TABLE IF NOT EXISTS leasehold_fence.kv (
                resource text COLLATE \"C\" PRIMARY KEY, value bytea NOT NULL, leasehold_fence text)";
        // Two processes that make it at once: the second one meets what the first has made.
        if let Err(error) = client.batch_execute(sql).await
            && !matches!(error.code().map(|code| code.code()), Some("23505" | "42P06" | "42P07"))
        {
            return Err(failure_before_commit(error, "make the table"));
        }
        let options = InstallOptions {
            table: TABLE.into(),
            keys: vec!["resource".into()],
            resource: Some("{}".into()),
            remember: None,
            mode: FenceMode::Enforce,
        };
        install(client, &options).await.map(|_| ())
    }

    /// Writes the value of the one resource of a lease.
    ///
    /// # Errors
    ///
    /// As [`FencedWrite::run`]; [`FenceError::Invalid`] for a lease over several resources.
    pub async fn put(&self, lease: &FencedLease, value: &[u8]) -> Result<(), FenceError> {
        let sql = "INSERT INTO leasehold_fence.kv AS x (resource, value) VALUES ($1, $2)
                   ON CONFLICT (resource) DO UPDATE SET value = excluded.value";
        let resource = only_resource(lease)?;
        let mut client = self.client().await?;
        FencedWrite::under(lease)?
            .run(&mut client, async |tx| {
                tx.execute(sql, &[&resource, &value]).await?;
                Ok(())
            })
            .await
    }

    /// Removes the value of the one resource of a lease. The fence of the resource stays.
    ///
    /// # Errors
    ///
    /// As [`Kv::put`].
    pub async fn delete(&self, lease: &FencedLease) -> Result<bool, FenceError> {
        let sql = "DELETE FROM leasehold_fence.kv WHERE resource = $1";
        let resource = only_resource(lease)?;
        let mut client = self.client().await?;
        FencedWrite::under(lease)?.run(&mut client, async |tx| Ok(tx.execute(sql, &[&resource]).await? == 1)).await
    }

    /// The value of a resource. Reading needs no lease.
    ///
    /// # Errors
    ///
    /// [`FenceError::Unavailable`] when the database cannot be asked.
    pub async fn get(&self, resource: &str) -> Result<Option<Vec<u8>>, FenceError> {
        let client = self.client().await?;
        let row = client.query_opt("SELECT value FROM leasehold_fence.kv WHERE resource = $1", &[&resource]).await;
        let row = row.map_err(|error| unavailable(&error, "read a value"))?;
        Ok(row.map(|row| row.get(0)))
    }
}

fn only_resource(lease: &FencedLease) -> Result<&str, FenceError> {
    match lease.resources() {
        [resource] => Ok(resource),
        _ => Err(FenceError::Invalid("a value belongs to one resource, and the lease is over several".into())),
    }
}
