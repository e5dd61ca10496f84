//! PostgreSQL's advisory locks, as they are: for fleets that use them already. Feature `postgres`.
//!
//! # Promises
//!
//! Exclusion with every other user of the same key in the same database: it is PostgreSQL's own. Waiters are served by the
//! server. A [`AdvisoryLock::token`] rises with every holder that asks for one, even over a crash and a failover.
//!
//! # Does not promise
//!
//! A ttl: a holder that hangs holds for ever. A list by name. Anything through a pooler in transaction mode: the lock would
//! stay with a connection that somebody else gets. It is found out and refused.
//!
//! # Clock
//!
//! None, but for tokens: see [`crate::engine::postgres`].
//!
//! # Token
//!
//! From the sequence of the engine's schema, in a transaction that flushes it. A bare `nextval` can come again after a
//! crash.
//!
//! # On lost connection
//!
//! The lock is gone, and [`AdvisoryLock::lost`] says so: stop. The server may give the key to another before you notice.

mod keys;

use std::fmt;
use std::future::poll_fn;
use std::time::Duration;

use leasehold_postgres::tokio_postgres::types::ToSql;
use leasehold_postgres::tokio_postgres::{AsyncMessage, Client, Error as SqlError, Transaction};
use leasehold_postgres::{ConnectTimes, DatabaseAddress, with_causes};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::engine::Token;
use crate::engine::postgres::SchemaName;
use crate::error::{Error, Refusal};
pub use keys::AdvisoryKey;

const ENGINE: &str = "advisory";

/// How long a message may take to be believed lost: over a pooler it never comes.
const SELF_TEST_TIMEOUT: Duration = Duration::from_secs(1);
const CONNECT_TIMES: ConnectTimes = ConnectTimes {
    connect_timeout: Duration::from_secs(3),
    tcp_user_timeout: Duration::from_secs(10),
    keepalives_idle: Duration::from_secs(15),
};

const POOLER: &str = "this address is a transaction pooler: give the server's own address, or use transaction scope";

/// Alone, or together with others that share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdvisoryMode {
    /// One holder.
    Exclusive,
    /// Any number of holders that share, and no exclusive one.
    Shared,
}

/// Where advisory locks are taken.
#[derive(Clone, Debug)]
pub struct AdvisoryLocks {
    address: DatabaseAddress,
    schema: SchemaName,
}

/// A lock of a session: held until it is released, dropped or lost. It has a connection of its own.
pub struct AdvisoryLock {
    client: Client,
    key: AdvisoryKey,
    mode: AdvisoryMode,
    schema: SchemaName,
    lost: CancellationToken,
}

impl fmt::Debug for AdvisoryLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdvisoryLock").field("key", &self.key).field("mode", &self.mode).finish_non_exhaustive()
    }
}

impl AdvisoryLocks {
    /// Reads a URL of PostgreSQL, with the options of libpq. Tokens come from the engine's schema of this name.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`], without anything of the URL in it.
    pub fn new(url: &str, schema: SchemaName) -> Result<Self, Error> {
        let mut address =
            DatabaseAddress::from_url(url, "leasehold advisory", CONNECT_TIMES).map_err(Error::Invalid)?;
        address.want_primary();
        Ok(Self { address, schema })
    }

    /// Takes a lock for as long as the guard lives, waiting for it at most so long.
    ///
    /// # Errors
    ///
    /// Refused (`Held`) when somebody else has it; Invalid for a key of the engine's own, or a pooler; Unavailable when
    /// the server cannot be asked. Nothing is held then.
    pub async fn lock(&self, key: AdvisoryKey, mode: AdvisoryMode, wait: Duration) -> Result<AdvisoryLock, Error> {
        refuse_own_keys(&key, &self.schema)?;
        let (client, lost) = self.connect_directly().await?;
        let attempt = || format!("take {}", key.describe());
        let failed = |error: SqlError| read_error(attempt(), &error);
        let taken = if wait.is_zero() {
            let function = lock_function("pg_try_advisory_lock", mode);
            query_key(&client, &function, &key).await.map_err(failed)?
        } else {
            let set = format!("SET lock_timeout = {}", wait_millis(wait));
            client.batch_execute(&set).await.map_err(failed)?;
            let taken = query_key(&client, &lock_function("pg_advisory_lock", mode), &key).await;
            let taken = match taken {
                Ok(_) => true,
                Err(error) if is_lock_timeout(&error) => false,
                Err(error) => return Err(failed(error)),
            };
            if taken {
                client.batch_execute("SET lock_timeout = 0").await.map_err(failed)?;
            }
            taken
        };
        // Dropping the connection frees whatever it holds.
        if !taken {
            return Err(held(&key));
        }
        Ok(AdvisoryLock { client, key, mode, schema: self.schema.clone(), lost })
    }

    /// A connection that is the server's and nobody else's: messages come through it.
    async fn connect_directly(&self) -> Result<(Client, CancellationToken), Error> {
        let attempt = || "connect for an advisory lock".to_owned();
        let failed = |error: SqlError| read_error(attempt(), &error);
        let (client, mut connection) = self.address.connect_with_messages().await.map_err(failed)?;
        let lost = CancellationToken::new();
        let (to, messages) = unbounded_channel();
        let ended = lost.clone();
        tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
                if let AsyncMessage::Notification(_) = message {
                    let _ = to.send(());
                }
            }
            ended.cancel();
        });
        // What the role prefers must not make a token come again after a crash.
        client.batch_execute("SET synchronous_commit = on").await.map_err(failed)?;
        self.test_messages(&client, messages).await?;
        Ok((client, lost))
    }

    /// Over a pooler in transaction mode a LISTEN hears nothing. (Comparing `pg_backend_pid()` does not find it out.)
    async fn test_messages(&self, client: &Client, mut messages: UnboundedReceiver<()>) -> Result<(), Error> {
        let failed = |error: SqlError| read_error("connect for an advisory lock".into(), &error);
        let bits = u128::from_le_bytes(crate::engine::postgres::random_bytes());
        let channel = format!("leasehold_test_{bits:032x}");
        client.batch_execute(&format!("LISTEN {channel}")).await.map_err(failed)?;
        let other = self.address.connect().await.map_err(failed)?;
        other.batch_execute(&format!("NOTIFY {channel}")).await.map_err(failed)?;
        if !matches!(timeout(SELF_TEST_TIMEOUT, messages.recv()).await, Ok(Some(()))) {
            return Err(Error::Invalid(POOLER.into()));
        }
        client.batch_execute(&format!("UNLISTEN {channel}")).await.map_err(failed)
    }
}

impl AdvisoryLock {
    /// A fencing token of this holder: above that of every earlier holder that asked for one.
    ///
    /// # Errors
    ///
    /// Unavailable when the lock is lost; Invalid when the engine's schema is not installed.
    pub async fn token(&self) -> Result<Token, Error> {
        let attempt = || format!("mint a token for {}", self.key.describe());
        let sql = self.schema.in_sql("SELECT @.advisory_token()");
        let row = self.client.query_one(&sql, &[]).await.map_err(|error| read_error(attempt(), &error))?;
        read_token(&row, attempt)
    }

    /// Frees the lock.
    ///
    /// # Errors
    ///
    /// Unavailable when the connection was lost, which freed it; Corrupt when the server says that it was not held.
    pub async fn release(self) -> Result<(), Error> {
        let function = lock_function("pg_advisory_unlock", self.mode);
        let attempt = format!("free {}", self.key.describe());
        match query_key(&self.client, &function, &self.key).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::Corrupt {
                engine: ENGINE,
                law: "a session holds the advisory lock that it took".into(),
                at: self.key.describe(),
            }),
            Err(error) => Err(read_error(attempt, &error)),
        }
    }

    /// Completes when the connection has ended: the lock is gone.
    pub async fn lost(&self) {
        self.lost.cancelled().await;
    }

    /// Whether the connection has ended, as far as is known.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.lost.is_cancelled() || self.client.is_closed()
    }
}

/// Takes a lock until the end of a transaction, waiting for it at most so long. Works through any pooler. After a
/// refusal the transaction goes on.
///
/// # Errors
///
/// As [`AdvisoryLocks::lock`].
pub async fn lock_in_transaction(
    transaction: &Transaction<'_>,
    key: &AdvisoryKey,
    mode: AdvisoryMode,
    wait: Duration,
) -> Result<(), Error> {
    let failed = |error: SqlError| read_error(format!("take {}", key.describe()), &error);
    if wait.is_zero() {
        let function = lock_function("pg_try_advisory_xact_lock", mode);
        return if query_key(transaction.client(), &function, key).await.map_err(failed)? {
            Ok(())
        } else {
            Err(held(key))
        };
    }
    // A timeout is an error, and an error ends a transaction, unless there is a savepoint.
    let row = transaction.query_one("SELECT current_setting('lock_timeout')", &[]).await.map_err(failed)?;
    let before: String = row.try_get(0).map_err(failed)?;
    let set = format!("SAVEPOINT leasehold_advisory; SET LOCAL lock_timeout = {}", wait_millis(wait));
    transaction.batch_execute(&set).await.map_err(failed)?;
    match query_key(transaction.client(), &lock_function("pg_advisory_xact_lock", mode), key).await {
        Ok(_) => {
            let reset = format!("SET LOCAL lock_timeout = '{before}'; RELEASE SAVEPOINT leasehold_advisory");
            transaction.batch_execute(&reset).await.map_err(failed)
        }
        Err(error) if is_lock_timeout(&error) => {
            let back = "ROLLBACK TO SAVEPOINT leasehold_advisory; RELEASE SAVEPOINT leasehold_advisory";
            transaction.batch_execute(back).await.map_err(failed)?;
            Err(held(key))
        }
        Err(error) => Err(failed(error)),
    }
}

/// A fencing token in a transaction that holds the lock. It counts when the transaction is committed.
///
/// # Errors
///
/// Invalid when the engine's schema is not installed, or `synchronous_commit` is off or local; Unavailable when the server
/// cannot be asked.
pub async fn token_in_transaction(transaction: &Transaction<'_>, schema: &SchemaName) -> Result<Token, Error> {
    let attempt = || "mint a token".to_owned();
    let sql = schema.in_sql("SELECT @.advisory_token()");
    let row = transaction.query_one(&sql, &[]).await.map_err(|error| read_error(attempt(), &error))?;
    read_token(&row, attempt)
}

fn read_token(row: &leasehold_postgres::tokio_postgres::Row, attempt: impl Fn() -> String) -> Result<Token, Error> {
    let number = row.try_get::<_, i64>(0).ok().and_then(|number| u64::try_from(number).ok());
    number.and_then(Token::new).ok_or_else(|| unavailable(attempt(), "the server gave no token".into()))
}

/// The engine locks names by pairs of its own two classes: nobody else may.
fn refuse_own_keys(key: &AdvisoryKey, schema: &SchemaName) -> Result<(), Error> {
    let class = schema.lock_class();
    match key {
        AdvisoryKey::Pair(first, _) if *first == class || *first == class ^ 1 => {
            Err(Error::Invalid(format!("pairs that begin with {first} are the engine's own locks: choose another")))
        }
        _ => Ok(()),
    }
}

fn lock_function(name: &str, mode: AdvisoryMode) -> String {
    match mode {
        AdvisoryMode::Exclusive => name.to_owned(),
        AdvisoryMode::Shared => format!("{name}_shared"),
    }
}

/// Calls a lock function. Functions that return nothing count as true.
async fn query_key(client: &Client, function: &str, key: &AdvisoryKey) -> Result<bool, SqlError> {
    let sql = format!("SELECT {function}({})::text", key.argument());
    let parameters: Vec<&(dyn ToSql + Sync)> = match key {
        AdvisoryKey::Single(number) => vec![number],
        AdvisoryKey::Pair(class, number) => vec![class, number],
        AdvisoryKey::Hashtext(name) | AdvisoryKey::HashtextExtended(name) => vec![name],
    };
    let row = client.query_one(&sql, &parameters).await?;
    Ok(row.try_get::<_, Option<String>>(0)?.as_deref() != Some("false"))
}

fn wait_millis(wait: Duration) -> i32 {
    i32::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX).max(1)
}

fn is_lock_timeout(error: &SqlError) -> bool {
    error.code().is_some_and(|code| code.code() == "55P03")
}

fn held(key: &AdvisoryKey) -> Error {
    Error::Refused(Refusal::Held { resource: key.describe(), holder: None, remaining: None, queue_len: 0 })
}

fn read_error(attempt: String, error: &SqlError) -> Error {
    match error.code().map(|code| code.code()) {
        Some("28P01" | "28000") => Error::Invalid("PostgreSQL does not accept this user and password".into()),
        Some("3D000") => Error::Invalid("there is no such database".into()),
        Some("3F000" | "42883" | "42P01") => Error::Invalid(
            "tokens come from the schema of the engine, which is not installed in this database: run `leasehold migrate`"
                .into(),
        ),
        Some("LH102") => Error::Invalid(
            "synchronous_commit is off or local here: a token could come again after a crash. Set it to on".into(),
        ),
        Some("42501") => Error::Invalid("the role may not use the schema of the engine".into()),
        _ => unavailable(attempt, with_causes(error)),
    }
}

fn unavailable(attempt: String, why: String) -> Error {
    Error::Unavailable { engine: ENGINE, attempt, source: why.into() }
}
