//! Who waits here, by resource: one task for each resource looks for all of them.
//!
//! ```text
//!   list children ─▶ tell those who have their turn ─▶ the first without: watch what is in its way
//!        ▲                                                              │
//!        └── the watch fired · the first one left · an earlier one came · a session changed · it is time to look
//! ```
//!
//! # Laws
//!
//! 1. A waiter has its turn only by a list that has its own node in it: a list from before its arrival says nothing.
//! 2. Whoever stands behind a waiter without its turn has none either. So one watch is enough, and one release wakes one.
//! 3. Nothing is missed between a list and its watch: the watch is set by a read of the node that is in the way. If that
//!    node is gone, or has changed its name, the read says so, and the list is read again.
//! 4. A watch belongs to a session. Whenever a session changes, the list is read again, from a session that is connected.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use zookeeper_client::{self as zk, Client, OneshotWatcher};

use crate::clock::until;

use super::node_name::{NodeKey, Obstacle, QueueNode, blind_client, contenders, has_turn, obstacle, position};
use super::shared::{ZookeeperShared, or_empty};

/// How long after a failed read it is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(50);
/// How long the others wait for one that is about to become a holder, before they look all the same.
const MAX_MOVE: Duration = Duration::from_millis(500);
/// How long a task waits for a connected session before it asks again who waits.
const SESSION_WAIT: Duration = Duration::from_secs(1);

/// What a waiter is told of one of its resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueNews {
    /// It has its turn there, and keeps it.
    Turn,
    /// Its node is not there any more.
    Lost,
    /// A client is in the directory that does not see our nodes: the sentence says which.
    Blind(&'static str),
}

/// See the module.
#[derive(Default)]
pub(super) struct WaitQueues {
    by_name: Mutex<HashMap<String, QueueEntry>>,
}

struct QueueEntry {
    /// In order of their numbers.
    waiters: Vec<QueuedWaiter>,
    /// Those who have their turn, and are about to become holders: their nodes change their names in a moment.
    moving: Vec<NodeKey>,
    /// The first waiter is another one.
    changed: Arc<Notify>,
}

#[derive(Clone)]
struct QueuedWaiter {
    key: NodeKey,
    number: i32,
    /// It waits for this resource only, so that its turn is a grant.
    alone: bool,
    to: UnboundedSender<QueueNews>,
}

/// Who waits for a resource here.
struct QueueView {
    waiters: Vec<QueuedWaiter>,
    is_moving: bool,
    changed: Arc<Notify>,
}

/// How a look ended.
enum LookResult {
    /// Nobody waits here any more.
    Nobody,
    /// Look again at once.
    Again,
    /// Look again when this fires.
    Watch(OneshotWatcher),
}

impl WaitQueues {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, QueueEntry>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place in a queue, whose node is there. `true`: nobody looks after this resource yet.
    fn add(&self, name: &str, waiter: QueuedWaiter) -> bool {
        let mut all = self.lock();
        let is_new = !all.contains_key(name);
        let entry = all.entry(name.to_owned()).or_insert_with(|| QueueEntry {
            waiters: Vec::new(),
            moving: Vec::new(),
            changed: Arc::new(Notify::new()),
        });
        let at = entry.waiters.partition_point(|other| other.number.wrapping_sub(waiter.number) < 0);
        entry.waiters.insert(at, waiter);
        if at == 0 {
            entry.changed.notify_one();
        }
        is_new
    }

    /// The waiter leaves, or is a holder now.
    fn remove(&self, name: &str, key: &NodeKey) {
        if let Some(entry) = self.lock().get_mut(name) {
            let first = entry.waiters.first().is_some_and(|waiter| waiter.key == *key);
            let was_moving = entry.moving.contains(key);
            entry.waiters.retain(|waiter| waiter.key != *key);
            entry.moving.retain(|moving| moving != key);
            if first || (was_moving && entry.moving.is_empty()) {
                entry.changed.notify_one();
            }
        }
    }

    /// The waiter was told of its turn.
    fn note_told(&self, name: &str, waiter: &QueuedWaiter) {
        if let Some(entry) = self.lock().get_mut(name) {
            let before = entry.waiters.len();
            entry.waiters.retain(|other| other.key != waiter.key);
            // One that left meanwhile moves nowhere.
            if waiter.alone && entry.waiters.len() < before {
                entry.moving.push(waiter.key.clone());
            }
        }
    }

    fn view(&self, name: &str) -> Option<QueueView> {
        let mut all = self.lock();
        let entry = all.get(name)?;
        if entry.waiters.is_empty() {
            all.remove(name);
            return None;
        }
        let is_moving = !entry.moving.is_empty();
        Some(QueueView { waiters: entry.waiters.clone(), is_moving, changed: entry.changed.clone() })
    }
}

/// A waiter's places in its queues. Dropping it leaves them, here; its nodes are another matter.
pub(super) struct QueuePlaces {
    shared: Arc<ZookeeperShared>,
    names: Vec<String>,
    key: NodeKey,
}

impl QueuePlaces {
    /// Stands in all queues: `numbers` are those of the waiter's nodes. News come by `to`.
    pub fn enter(
        shared: &Arc<ZookeeperShared>,
        places: &[(String, i32)],
        key: &NodeKey,
        to: &UnboundedSender<QueueNews>,
    ) -> Self {
        let names = places.iter().map(|(name, _)| name.clone()).collect();
        let entered = Self { shared: shared.clone(), names, key: key.clone() };
        for (name, number) in places {
            let waiter = QueuedWaiter { key: key.clone(), number: *number, alone: places.len() == 1, to: to.clone() };
            if shared.queues.add(name, waiter) {
                shared.runtime.spawn(look_after(shared.clone(), name.clone()));
            }
        }
        entered
    }
}

impl Drop for QueuePlaces {
    fn drop(&mut self) {
        for name in &self.names {
            self.shared.queues.remove(name, &self.key);
        }
    }
}

/// Looks after one resource while somebody waits for it here.
async fn look_after(shared: Arc<ZookeeperShared>, name: String) {
    let mut sessions = shared.pool.changes();
    let slot = shared.slot(&name);
    loop {
        let Some(QueueView { is_moving, changed, .. }) = shared.queues.view(&name) else { return };
        sessions.mark_unchanged();
        let clock = shared.options.clock.clone();
        if is_moving {
            // A look now would set a watch on a node that is about to go.
            let moved = clock.now().plus(MAX_MOVE);
            if until(&*clock, moved, changed.notified()).await.is_some() {
                continue;
            }
        }
        let Ok(client) = shared.pool.connected_by(slot, clock.now().plus(SESSION_WAIT)).await else {
            if shared.closed.is_cancelled() {
                clock.sleep_until(clock.now().plus(RETRY_AFTER)).await;
            }
            continue;
        };
        match look(&shared, &client, &name).await {
            Ok(LookResult::Nobody) => return,
            Ok(LookResult::Again) => {}
            Ok(LookResult::Watch(watcher)) => {
                let net = clock.sleep_until(clock.now().plus(shared.options.look_every));
                tokio::select! {
                    _ = watcher.changed() => {
                        shared.wakes.fetch_add(1, Ordering::Relaxed);
                    }
                    () = changed.notified() => {}
                    _ = sessions.changed() => {}
                    () = net => {}
                }
            }
            Err(_) => clock.sleep_until(clock.now().plus(RETRY_AFTER)).await,
        }
    }
}

/// One look at the queue of a resource.
async fn look(shared: &ZookeeperShared, client: &Client, name: &str) -> Result<LookResult, zk::Error> {
    let directory = shared.paths.directory(name);
    let mut queue = contenders(&or_empty(client.list_children(&directory).await)?);
    let Some(QueueView { waiters, .. }) = shared.queues.view(name) else { return Ok(LookResult::Nobody) };
    if waiters.iter().any(|waiter| position(&queue, &waiter.key).is_none()) {
        // This session may be behind the one that made the node.
        queue = shared.fresh_queue(client, name).await?;
    }
    let (told, first) = tell_turns(shared, name, &waiters, &queue);
    // Whoever was told changes the names of its nodes in a moment: a watch on them would fire for nothing.
    let Some(first) = first.filter(|_| !told) else { return Ok(LookResult::Again) };
    let watcher = match obstacle(&queue, first) {
        Obstacle::Node(node) => match client.get_and_watch_data(&format!("{directory}/{node}")).await {
            Ok((_, _, watcher)) => watcher,
            Err(zk::Error::NoNode) => return Ok(LookResult::Again),
            Err(error) => return Err(error),
        },
        Obstacle::AnyChild => {
            let (children, watcher) = client.list_and_watch_children(&directory).await?;
            if contenders(&children) != queue {
                return Ok(LookResult::Again);
            }
            watcher
        }
    };
    Ok(LookResult::Watch(watcher))
}

/// Tells those who have their turn, or have lost their node: whether there was one, and the place of the first who has
/// to wait on.
fn tell_turns(
    shared: &ZookeeperShared,
    name: &str,
    waiters: &[QueuedWaiter],
    queue: &[QueueNode],
) -> (bool, Option<usize>) {
    for (told, waiter) in waiters.iter().enumerate() {
        let news = match position(queue, &waiter.key) {
            Some(at) if has_turn(queue, at) => {
                blind_client(queue, shared.options.layout).map_or(QueueNews::Turn, QueueNews::Blind)
            }
            Some(at) => return (told > 0, Some(at)),
            None => QueueNews::Lost,
        };
        shared.queues.note_told(name, waiter);
        // A waiter that is gone has left the queue itself.
        let _ = waiter.to.send(news);
    }
    (true, None)
}
