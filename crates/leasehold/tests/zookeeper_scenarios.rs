//! Every script in `tests/scenarios/` against the ZooKeeper engine, in real time: the clock of an ensemble cannot be set.
#![cfg(feature = "zookeeper")]
#![allow(clippy::print_stderr, reason = "how much was tried is worth a line")]

#[path = "support/real_time.rs"]
mod real_time;

use std::sync::Arc;

use leasehold::conformance::BoxFuture;
use leasehold::engine::Engine;
use leasehold::engine::zookeeper::{ZookeeperEngine, ZookeeperEngineOptions};
use leasehold_core::Limits;
use leasehold_harness::zookeeper::ZookeeperEnsemble;

/// Opens an engine for each script, below a chroot of its own.
fn opener(
    ensemble: &ZookeeperEnsemble,
    query: &'static str,
) -> impl Fn(String, Limits) -> BoxFuture<'static, Arc<dyn Engine>> {
    let url = ensemble.url("");
    move |name, limits| {
        let options = ZookeeperEngineOptions::from_url(&format!("{url}{name}{query}")).expect("a url");
        let options = ZookeeperEngineOptions { limits, ..options };
        Box::pin(async move { ZookeeperEngine::open(options).await.expect("it opens") as Arc<dyn Engine> })
    }
}

/// Goal: ZooKeeper answers as the book does, with leases that a server minds.
/// Method: all scripts at once on one ensemble, each below a chroot of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn minded_leases_play_every_scenario() {
    let ensemble = ZookeeperEnsemble::start(1);
    real_time::play_all(opener(&ensemble, "?lease=minded")).await;
}

/// Goal: the same with leases that end with their session. These have no delays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_of_sessions_play_every_scenario() {
    let ensemble = ZookeeperEnsemble::start(1);
    let has_no_delay = |script: &str| !script.contains("delay=");
    real_time::play_chosen(has_no_delay, opener(&ensemble, "?lease=session")).await;
}

/// Goal: the same in both layouts at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_layouts_play_every_scenario() {
    let ensemble = ZookeeperEnsemble::start(1);
    real_time::play_all(opener(&ensemble, "?lease=minded&layout=both")).await;
}
