//! Pools of connections that are checked when they are made, with a bound on every wait.

use std::time::Duration;

pub use deadpool_postgres::{ClientWrapper, Hook, HookError, Object, Pool, PoolError};
use deadpool_postgres::{Manager, ManagerConfig, RecyclingMethod, Runtime};

use crate::address::DatabaseAddress;

/// A pool of at most so many connections. None is opened yet. `prepare` runs on each when it is made, and may refuse it.
///
/// # Errors
///
/// The sentence of the pool.
pub fn checked_pool(
    address: &DatabaseAddress,
    size: usize,
    connect_timeout: Duration,
    prepare: Hook,
) -> Result<Pool, String> {
    let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let patience = Some(connect_timeout);
    Pool::builder(Manager::from_config(address.config.clone(), address.tls.clone(), recycling))
        .max_size(size)
        .wait_timeout(patience)
        .create_timeout(patience)
        .recycle_timeout(patience)
        .runtime(Runtime::Tokio1)
        .post_create(prepare)
        .build()
        .map_err(|error| error.to_string())
}
