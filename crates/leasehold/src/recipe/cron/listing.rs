//! All schedules of a ledger.

use super::CronSchedule;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
use super::from_unix_millis;
use crate::recipe::error::RecipeError;
use crate::recipe::store::{Store, StoreDatabase};

#[cfg(feature = "postgres")]
const POSTGRES: &str = "SELECT name, spec, (extract(epoch FROM last_tick) * 1000)::bigint, token
    FROM leasehold.schedule ORDER BY name LIMIT $1";
#[cfg(feature = "sqlite")]
const SQLITE: &str = "SELECT name, spec, last_tick, token FROM leasehold_schedule ORDER BY name LIMIT ?1";

impl Store {
    /// The schedules of which a tick was ever begun, by name, at most so many.
    ///
    /// # Errors
    ///
    /// What the store says when it cannot be asked.
    pub async fn cron_schedules(&self, most: u32) -> Result<Vec<CronSchedule>, RecipeError> {
        #[cfg(any(feature = "postgres", feature = "sqlite"))]
        const ATTEMPT: &str = "list the schedules";
        match &self.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(database) => {
                use crate::recipe::store::postgres::STORE_NAME;
                use leasehold_postgres::tokio_postgres::{Row, types::Type};

                let rows = database.call(ATTEMPT, POSTGRES, &[(&i64::from(most), Type::INT8)]).await?;
                let read = |row: &Row| {
                    let schedule = CronSchedule {
                        name: row.try_get(0)?,
                        spec: row.try_get(1)?,
                        last_tick: from_unix_millis(row.try_get(2)?),
                        token: row.try_get(3)?,
                    };
                    Ok(schedule)
                };
                let odd = |error: leasehold_postgres::tokio_postgres::Error| {
                    RecipeError::corrupt(STORE_NAME, "a schedule has the columns of this version", error.to_string())
                };
                rows.iter().map(|row| read(row).map_err(odd)).collect()
            }
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(database) => {
                use crate::recipe::store::sqlite::sqlite_error;

                let read = |row: &rusqlite::Row<'_>| {
                    let last_tick = from_unix_millis(row.get(2)?);
                    Ok(CronSchedule { name: row.get(0)?, spec: row.get(1)?, last_tick, token: row.get(3)? })
                };
                let work = move |db: &rusqlite::Connection, _| {
                    let listed = db.prepare_cached(SQLITE).and_then(|mut sql| sql.query_map([most], read)?.collect());
                    listed.map_err(|error| sqlite_error(&error, ATTEMPT))
                };
                database.read(ATTEMPT, work).await
            }
            #[cfg(feature = "http")]
            StoreDatabase::Server(database) => database.cron_schedules(most).await,
        }
    }
}
