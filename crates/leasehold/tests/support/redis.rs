//! What tests of the Redis engine share.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::sync::Arc;
use std::time::Duration;

use leasehold::engine::redis::{RedisEngine, RedisOptions};
use leasehold::engine::{Claim, Want};

/// An engine on the server at this address.
pub async fn open(url: &str) -> Arc<RedisEngine> {
    RedisEngine::open(RedisOptions::from_url(url).expect("a url")).await.expect("it opens")
}

/// Half a minute for one name.
pub fn claim(name: &str, holder: &str) -> Claim {
    Claim::new(vec![Want::exclusive(name)], Duration::from_secs(30), holder)
}

/// The same, with patience.
pub fn patient(name: &str, holder: &str, wait: Duration) -> Claim {
    Claim { wait, ..claim(name, holder) }
}

pub async fn pause(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}
