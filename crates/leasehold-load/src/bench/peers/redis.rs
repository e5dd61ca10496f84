//! Redis: `SET name owner NX PX ttl`, and the usual compare-and-delete script.

use std::time::Duration;

use anyhow::{Context, ensure};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Script};

use super::{PeerServer, unavailable, unique_owner};
use crate::bench::pair_load::{self, LEASE_TTL};

/// The default of 500 ms would end the bench at the first slow sync.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// The script of the Redis documentation.
const RELEASE_SCRIPT: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

/// One connection with its script.
pub struct RedisClient {
    connection: MultiplexedConnection,
    release: Script,
    owner: String,
    round: u64,
    /// Name and value of the held lock.
    held: (String, String),
}

/// Connects the clients and loads the script.
pub async fn connect(peer: &PeerServer, count: usize) -> anyhow::Result<Vec<RedisClient>> {
    let client = redis::Client::open(peer.url.as_str()).map_err(|cause| unavailable(peer, &cause))?;
    let mut clients = Vec::with_capacity(count);
    for number in 0..count {
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(RESPONSE_TIMEOUT));
        let connected = client.get_multiplexed_async_connection_with_config(&config).await;
        let mut connection = connected.map_err(|cause| unavailable(peer, &cause))?;
        let release = Script::new(RELEASE_SCRIPT);
        release.load_async(&mut connection).await.map_err(|cause| unavailable(peer, &cause))?;
        clients.push(RedisClient {
            connection,
            release,
            owner: unique_owner(number),
            round: 0,
            held: Default::default(),
        });
    }
    Ok(clients)
}

impl pair_load::LockClient for RedisClient {
    async fn acquire(&mut self, name: &str) -> anyhow::Result<()> {
        self.round += 1;
        self.held = (name.to_owned(), format!("{}{:x}", self.owner, self.round));
        let ttl_ms = u64::try_from(LEASE_TTL.as_millis())?;
        let mut set = redis::cmd("SET");
        set.arg(&self.held.0).arg(&self.held.1).arg("NX").arg("PX").arg(ttl_ms);
        let set: Option<String> = set.query_async(&mut self.connection).await.context("SET NX PX")?;
        ensure!(set.is_some(), "somebody else holds a name of the bench");
        Ok(())
    }

    async fn release(&mut self) -> anyhow::Result<()> {
        let mut script = self.release.prepare_invoke();
        let asked = script.key(&self.held.0).arg(&self.held.1).invoke_async(&mut self.connection);
        let deleted: i64 = asked.await.context("compare and delete")?;
        ensure!(deleted == 1, "a lock of the bench was lost");
        Ok(())
    }
}
