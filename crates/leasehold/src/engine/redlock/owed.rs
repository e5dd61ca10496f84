//! Releases that a node has not confirmed yet. They are repeated until it does, or until the lease would have lapsed.
//!
//! A failed acquire may have locked some nodes, or may still lock them: its commands lie in the buffers of a node that
//! does not answer. So what is owed to a node is a release *with a ban*, which an acquire that comes later runs into.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::node::{Node, NodeError, NodeRequest};
use crate::clock::{Clock, Time};

/// More than this are not remembered: their ttl ends them.
const MAX_OWED: usize = 65_536;
/// How many are sent before the first is answered.
const SENT_AT_ONCE: usize = 64;
/// Between two tries while the node does not answer.
const RETRY_AFTER: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// How long a closed engine goes on.
const MAX_AFTER_CLOSE: Duration = Duration::from_secs(4);

/// What one node is owed. See the module.
#[derive(Default)]
pub(super) struct OwedReleases {
    /// By handle and secret.
    entries: Mutex<HashMap<String, OwedRelease>>,
    added: Notify,
    changed: Notify,
}

#[derive(Clone)]
struct OwedRelease {
    request: NodeRequest,
    until: Time,
}

impl OwedReleases {
    /// The request is an Abandon, or a Release with a ban. It is not sent after `until`.
    pub fn add(&self, key: String, request: NodeRequest, until: Time) {
        let mut entries = self.lock();
        if entries.len() < MAX_OWED {
            entries.insert(key, OwedRelease { request, until });
            drop(entries);
            self.added.notify_one();
        }
    }

    /// Whether this is among them, and is the release of an owner.
    pub fn has_release(&self, key: &str) -> bool {
        self.lock().get(key).is_some_and(|owed| matches!(owed.request, NodeRequest::Release { .. }))
    }

    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Completes when nothing is owed.
    pub async fn wait_until_paid(&self) {
        loop {
            let changed = self.changed.notified();
            if self.lock().is_empty() {
                return;
            }
            changed.await;
        }
    }

    /// Sends what is owed, until the engine is closed.
    pub async fn run(self: Arc<Self>, node: Arc<dyn Node>, clock: Arc<dyn Clock>, closed: CancellationToken) {
        let mut pause = RETRY_AFTER.0;
        let mut last_moment = Time::NEVER;
        loop {
            if closed.is_cancelled() {
                last_moment = last_moment.min(clock.now().plus(MAX_AFTER_CLOSE));
                if self.lock().is_empty() || clock.now() >= last_moment {
                    return;
                }
            }
            let batch = self.next_batch(clock.now());
            if batch.is_empty() {
                tokio::select! {
                    biased;
                    () = self.added.notified() => {}
                    () = closed.cancelled() => {}
                }
                continue;
            }
            if self.send(&*node, batch).await {
                pause = RETRY_AFTER.0;
            } else {
                clock.sleep_until(clock.now().plus(pause)).await;
                pause = (pause * 2).min(RETRY_AFTER.1);
            }
        }
    }

    /// Some of what is owed. What has lapsed meanwhile is forgotten.
    fn next_batch(&self, now: Time) -> Vec<(String, OwedRelease)> {
        let mut entries = self.lock();
        let before = entries.len();
        entries.retain(|_, owed| now < owed.until);
        if entries.len() < before {
            self.changed.notify_waiters();
        }
        entries.iter().take(SENT_AT_ONCE).map(|(key, owed)| (key.clone(), owed.clone())).collect()
    }

    /// Whether all of them were answered.
    async fn send(&self, node: &dyn Node, batch: Vec<(String, OwedRelease)>) -> bool {
        let mut sent = JoinSet::new();
        for (key, owed) in batch {
            let answer = node.ask(owed.request);
            sent.spawn(async move { (key, answer.await) });
        }
        let mut all = true;
        while let Some(done) = sent.join_next().await {
            match done {
                // A node that can never do it is not asked again: the ttl ends the lease.
                Ok((key, Ok(_) | Err(NodeError::Broken(_)))) => {
                    self.lock().remove(&key);
                    self.changed.notify_waiters();
                }
                _ => all = false,
            }
        }
        all
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, OwedRelease>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
