//! The settings without which an acknowledged COMMIT may be lost.

use tokio_postgres::{Client, Error};

/// The settings that make a COMMIT durable, and what they must be.
const DURABLE_SETTINGS: [(&str, &[&str]); 3] =
    [("synchronous_commit", &["on", "remote_apply"]), ("fsync", &["on"]), ("full_page_writes", &["on"])];

/// What a session commits: for good, or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The primary, with settings that keep what is acknowledged.
    Durable,
    /// The server is a standby: nothing can be written there.
    Standby,
    /// A setting that lets a crash undo what was acknowledged.
    Weak {
        /// Its name.
        setting: &'static str,
        /// What it is.
        found: String,
        /// What it must be.
        wanted: &'static str,
    },
}

impl Durability {
    /// Reads the settings of a session.
    ///
    /// # Errors
    ///
    /// The server could not be asked.
    pub async fn read_from(client: &Client) -> Result<Self, Error> {
        let sql = "SELECT current_setting('synchronous_commit'), current_setting('fsync'),
                   current_setting('full_page_writes'), pg_is_in_recovery()";
        let row = client.query_one(sql, &[]).await?;
        if row.try_get(3)? {
            return Ok(Self::Standby);
        }
        for (at, (setting, good)) in DURABLE_SETTINGS.iter().enumerate() {
            let found: String = row.try_get(at)?;
            if !good.contains(&found.as_str()) {
                return Ok(Self::Weak { setting, found, wanted: good[0] });
            }
        }
        Ok(Self::Durable)
    }
}
