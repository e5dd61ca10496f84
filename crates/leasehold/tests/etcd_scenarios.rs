//! Every script in `tests/scenarios/` against the etcd engine, in real time: the clock of a cluster cannot be set.
#![cfg(feature = "etcd")]
#![allow(clippy::print_stderr, reason = "how much was tried is worth a line")]

#[path = "support/real_time.rs"]
mod real_time;

use std::sync::Arc;

use leasehold::engine::Engine;
use leasehold::engine::etcd::{EtcdEngine, EtcdEngineOptions};
use leasehold_harness::etcd::EtcdCluster;

/// Goal: etcd answers as the book does.
/// Method: all scripts at once on one cluster, each below a prefix of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_plays_every_scenario() {
    let cluster = EtcdCluster::start(1);
    let url = cluster.url();
    real_time::play_all(move |name, limits| {
        let mut options = EtcdEngineOptions::from_url(&format!("{url}?prefix={name}/")).expect("a url");
        options.limits = limits;
        async move { EtcdEngine::open(options).await.expect("it opens") as Arc<dyn Engine> }
    })
    .await;
}
