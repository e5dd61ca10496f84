//! The store on PostgreSQL: every recipe is a function of the schema `leasehold`, called on a connection of a small pool.
//!
//! # Laws
//!
//! 1. Every connection is checked when it is made: it is the primary, and what it commits is durable. A token that was lost
//!    in a crash could be given twice.
//! 2. Every call is a transaction of its own, with a deadline.

pub(crate) mod schema;
pub(crate) mod sql_error;

use std::time::Duration;

use leasehold_postgres::pool::{ClientWrapper, Hook, HookError, Object, Pool, PoolError, checked_pool};
use leasehold_postgres::tokio_postgres::types::{ToSql, Type};
use leasehold_postgres::tokio_postgres::{Client, Row};
use leasehold_postgres::{ConnectTimes, DatabaseAddress, Durability};

use crate::engine::postgres::split_engine_options;
use crate::recipe::error::RecipeError;
use sql_error::{SqlEffect, connect_error, recipe_error};

/// What errors call this store.
pub(crate) const STORE_NAME: &str = "postgres";

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(10);
const KEEPALIVES_IDLE: Duration = Duration::from_secs(15);
/// Another process may be migrating: it is waited for, but not for ever.
const OPEN_TIMEOUT: Duration = Duration::from_secs(40);
/// The longest that an answer may take. Longer than `statement_timeout`.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(12);
const DEFAULT_CONNECTIONS: usize = 4;
const MAX_CONNECTIONS: usize = 64;

/// Settings of every session, so that those of the role or the database do not weaken it.
const SESSION_SETTINGS: &str = "SET synchronous_commit TO on; SET default_transaction_isolation TO 'read committed'; \
                                SET statement_timeout TO 10000; SET lock_timeout TO 5000; \
                                SET idle_in_transaction_session_timeout TO 20000; SET jit TO off";

/// A parameter of a call, with its type: the server need not be asked for it.
pub(crate) type SqlParameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// The database of a store. See the module.
pub(crate) struct PostgresDatabase {
    pool: Pool,
    address: DatabaseAddress,
}

impl PostgresDatabase {
    /// Connects, refuses a server that is not durable, and migrates.
    pub async fn open(url: &str) -> Result<Self, RecipeError> {
        let (address, connections) = read_url(url)?;
        let attempt = format!("open the store at {}", address.places());
        let prepare = async {
            let mut client = address.connect().await.map_err(|error| connect_error(&error, &attempt))?;
            check_durability(&client, &attempt).await?;
            schema::migrate(&mut client, &attempt).await
        };
        match tokio::time::timeout(OPEN_TIMEOUT, prepare).await {
            Ok(prepared) => prepared?,
            Err(_) => return Err(RecipeError::unavailable(STORE_NAME, &attempt, NO_ANSWER)),
        }
        let hook = Hook::async_fn(move |client: &mut ClientWrapper, _| {
            Box::pin(async move {
                let checked = check_durability(client, "connect to the store").await;
                checked.map_err(|error| HookError::message(sentence_of(&error)))?;
                client.batch_execute(SESSION_SETTINGS).await.map_err(HookError::Backend)
            })
        });
        let pool = checked_pool(&address, connections, CONNECT_TIMEOUT, hook);
        let pool = pool.map_err(|why| RecipeError::unavailable(STORE_NAME, &attempt, why))?;
        Ok(Self { pool, address })
    }

    /// Where it is, for connections of other kinds, such as one that listens.
    pub fn address(&self) -> &DatabaseAddress {
        &self.address
    }

    /// A connection of the pool, between transactions.
    pub async fn client(&self, attempt: &str) -> Result<Object, RecipeError> {
        self.pool.get().await.map_err(|error| match error {
            PoolError::Backend(error) => connect_error(&error, attempt),
            other => RecipeError::unavailable(STORE_NAME, attempt, other.to_string()),
        })
    }

    /// Calls one function: one statement, one transaction.
    ///
    /// An error says whether it may have happened.
    pub async fn call(
        &self,
        attempt: &str,
        sql: &'static str,
        parameters: &[SqlParameter<'_>],
    ) -> Result<Vec<Row>, RecipeError> {
        let client = self.client(attempt).await?;
        let types: Vec<Type> = parameters.iter().map(|(_, kind)| kind.clone()).collect();
        let values: Vec<&(dyn ToSql + Sync)> = parameters.iter().map(|(value, _)| *value).collect();
        let work = async {
            // Prepared once for each connection; afterwards this is local.
            let statement = client.prepare_typed_cached(sql, &types).await;
            let statement = statement.map_err(|error| recipe_error(&error, attempt, SqlEffect::None))?;
            let rows = client.query(&statement, &values).await;
            rows.map_err(|error| recipe_error(&error, attempt, SqlEffect::Unknown))
        };
        if let Ok(done) = tokio::time::timeout(ANSWER_TIMEOUT, work).await {
            return done;
        }
        // The answer may still come: the connection is not used again.
        drop(Object::take(client));
        Err(RecipeError::indeterminate(STORE_NAME, attempt, NO_ANSWER))
    }

    /// Closes the connections that are idle, and those in use when they are given back.
    pub fn close(&self) {
        self.pool.close();
    }
}

const NO_ANSWER: &str = "PostgreSQL did not answer in time";

/// Reads the URL. Options of the engine are for the engine: the same URL may name both.
fn read_url(url: &str) -> Result<(DatabaseAddress, usize), RecipeError> {
    let (place, options) = split_engine_options(url);
    let mut connections = DEFAULT_CONNECTIONS;
    for (name, value) in options {
        match name {
            "connections" => {
                let count = value.parse().ok().filter(|count| (1..=MAX_CONNECTIONS).contains(count));
                let sentence = "connections= is a number from 1 to 64";
                connections = count.ok_or_else(|| RecipeError::Invalid(sentence.into()))?;
            }
            "pooler" if value == "1" => {
                let sentence = "a store needs the server's own address, not that of a transaction pooler";
                return Err(RecipeError::Invalid(sentence.into()));
            }
            _ => {}
        }
    }
    let times = ConnectTimes {
        connect_timeout: CONNECT_TIMEOUT,
        tcp_user_timeout: TCP_USER_TIMEOUT,
        keepalives_idle: KEEPALIVES_IDLE,
    };
    let mut address = DatabaseAddress::from_url(&place, "leasehold recipes", times).map_err(RecipeError::Invalid)?;
    address.want_primary();
    Ok((address, connections))
}

async fn check_durability(client: &Client, attempt: &str) -> Result<(), RecipeError> {
    let found = Durability::read_from(client).await;
    let why = match found.map_err(|error| recipe_error(&error, attempt, SqlEffect::None))? {
        // Each session sets synchronous_commit itself.
        Durability::Durable | Durability::Weak { setting: "synchronous_commit", .. } => return Ok(()),
        Durability::Standby => "it is a standby: name the primary in the address".to_owned(),
        Durability::Weak { setting, found, wanted } => {
            format!("{setting} is {found}, so an answer that was given could be lost: set {setting} = {wanted}")
        }
    };
    Err(RecipeError::unavailable(STORE_NAME, attempt, why))
}

/// The error with its cause, for the text of a pool.
fn sentence_of(error: &RecipeError) -> String {
    leasehold_postgres::with_causes(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_of_an_engine_names_a_store_too() {
        let url = "postgres://ada:hunter2@db:5999/app?schema=locks&memory=10m&connections=9&application_name=x";
        let (address, connections) = read_url(url).unwrap();
        assert_eq!((address.places().as_str(), connections), ("db:5999", 9));
        for (query, sentence) in [
            ("?connections=0", "from 1 to 64"),
            ("?pooler=1", "not that of a transaction pooler"),
            ("?colour=red", "no address of PostgreSQL"),
        ] {
            let said = read_url(&format!("postgres://ada:hunter2@db/app{query}")).unwrap_err().to_string();
            assert!(said.contains(sentence) && !said.contains("hunter2"), "{said}");
        }
    }
}
