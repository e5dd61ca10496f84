//! The leases that this process minds: those it granted or renewed last, and those of processes that are gone.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::Time;
use crate::engine::Token;
use crate::engine::consensus::lease_id::{ModeLetter, PublicId};

use super::node_set::NodeData;
use super::record::{NodeRecord, NodeState};

/// What is added to a span that another machine counts too: its clock may run slower by this.
const RATE_PARTS: u32 = 2000;
const TIMER_MARGIN: Duration = Duration::from_millis(5);

/// One lease.
pub(super) struct MindedLease {
    pub public: PublicId,
    pub first: String,
    pub letter: ModeLetter,
    pub token: Token,
    /// For looks: when it ends. Zero when it is over.
    end_nanos: AtomicU64,
    /// Whoever changes its nodes holds this.
    pub nodes: tokio::sync::Mutex<LeaseNodes>,
}

/// Its nodes, as this process knows them.
pub(super) struct LeaseNodes {
    /// Of the first resource first.
    pub paths: Vec<String>,
    /// Of the first node.
    pub record: NodeRecord,
    /// Of the first node: all are written together with it.
    pub version: i32,
    /// The session that they end with.
    pub session: Option<i64>,
    /// When the lease ends, or the delay after it.
    pub end: Time,
    /// What was counted to `end`.
    pub span: Duration,
    pub cap: Option<Time>,
    pub over: bool,
}

impl MindedLease {
    pub fn new(public: PublicId, first: String, letter: ModeLetter, token: Token, nodes: LeaseNodes) -> Arc<Self> {
        let end_nanos = AtomicU64::new(shown_end(&nodes));
        Arc::new(Self { public, first, letter, token, end_nanos, nodes: tokio::sync::Mutex::new(nodes) })
    }

    /// When it ends; none when it is over.
    pub fn end(&self) -> Option<Time> {
        Some(self.end_nanos.load(Ordering::SeqCst)).filter(|nanos| *nanos > 0).map(Time::from_nanos)
    }

    /// After every change of `nodes`.
    pub fn note(&self, nodes: &LeaseNodes) {
        self.end_nanos.store(shown_end(nodes), Ordering::SeqCst);
    }
}

const fn shown_end(nodes: &LeaseNodes) -> u64 {
    match nodes.record.state {
        NodeState::Closed | NodeState::Waiting => 0,
        _ if nodes.over => 0,
        _ => nodes.end.as_nanos(),
    }
}

impl LeaseNodes {
    /// When this process ends it: a little later than anybody who counts could think that it ends.
    pub fn end_at(&self) -> Time {
        self.end.plus(self.span / RATE_PARTS + TIMER_MARGIN)
    }

    /// What each node is to hold.
    pub fn data(&self, record: &NodeRecord) -> Vec<NodeData> {
        node_data(&self.paths, record)
    }
}

/// The record for each node: the names are in the first only, because 64 long names in each would be too much.
pub(super) fn node_data(paths: &[String], record: &NodeRecord) -> Vec<NodeData> {
    let Some(first) = record.names.first() else {
        let bytes = record.to_bytes();
        return paths.iter().map(|path| (path.clone(), bytes.clone())).collect();
    };
    let other = NodeRecord { names: Vec::new(), first: Some(first.clone()), ..record.clone() }.to_bytes();
    let mut all: Vec<NodeData> = paths.iter().map(|path| (path.clone(), other.clone())).collect();
    if let Some(first) = all.first_mut() {
        first.1 = record.to_bytes();
    }
    all
}

/// See the module.
#[derive(Default)]
pub(super) struct LeaseTable {
    inner: Mutex<TimedLeases>,
    /// Something is due earlier than before.
    pub sooner: Notify,
}

#[derive(Default)]
struct TimedLeases {
    /// With the time of its timer.
    by_id: HashMap<PublicId, (Arc<MindedLease>, Time)>,
    timers: BTreeSet<(Time, PublicId)>,
    /// Nodes of requests whose leases are over: when they are forgotten, and the lease that each was of.
    requests: BTreeSet<(Time, String, PublicId)>,
}

impl LeaseTable {
    fn lock(&self) -> MutexGuard<'_, TimedLeases> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Minds it from here on. An older entry of the same lease is replaced.
    pub fn insert(&self, lease: Arc<MindedLease>, end_at: Time) {
        let id = lease.public;
        let mut inner = self.lock();
        if let Some((_, before)) = inner.by_id.insert(id, (lease, end_at)) {
            inner.timers.remove(&(before, id));
        }
        self.set_timer(inner, id, end_at);
    }

    /// Looks at a lease then, if it is still minded.
    pub fn look_at(&self, id: PublicId, at: Time) {
        let mut inner = self.lock();
        let Some((_, timer)) = inner.by_id.get_mut(&id) else { return };
        let before = std::mem::replace(timer, at);
        inner.timers.remove(&(before, id));
        self.set_timer(inner, id, at);
    }

    fn set_timer(&self, mut inner: MutexGuard<'_, TimedLeases>, id: PublicId, at: Time) {
        let earliest = inner.timers.first().is_none_or(|(first, _)| at < *first);
        inner.timers.insert((at, id));
        drop(inner);
        if earliest {
            self.sooner.notify_one();
        }
    }

    /// Forgets the node of a request then, if it is still of this lease.
    pub fn forget_request_at(&self, path: String, lease: PublicId, at: Time) {
        self.lock().requests.insert((at, path, lease));
        self.sooner.notify_one();
    }

    pub fn get(&self, id: &PublicId) -> Option<Arc<MindedLease>> {
        self.lock().by_id.get(id).map(|(lease, _)| lease.clone())
    }

    /// Takes this lease away, if it is still the one that is minded.
    pub fn remove(&self, lease: &Arc<MindedLease>) {
        let mut inner = self.lock();
        if inner.by_id.get(&lease.public).is_some_and(|(known, _)| Arc::ptr_eq(known, lease))
            && let Some((_, timer)) = inner.by_id.remove(&lease.public)
        {
            inner.timers.remove(&(timer, lease.public));
        }
    }

    pub fn next(&self) -> Option<Time> {
        let inner = self.lock();
        let lease = inner.timers.first().map(|(at, _)| *at);
        let request = inner.requests.first().map(|(at, ..)| *at);
        lease.into_iter().chain(request).min()
    }

    /// Those whose time has come.
    pub fn due(&self, now: Time) -> (Vec<Arc<MindedLease>>, Vec<(String, PublicId)>) {
        let mut inner = self.lock();
        let mut due = Vec::new();
        while let Some((at, id)) = inner.timers.first().copied().filter(|(at, _)| *at <= now) {
            inner.timers.remove(&(at, id));
            due.extend(inner.by_id.get(&id).map(|(lease, _)| lease.clone()));
        }
        let mut requests = Vec::new();
        while inner.requests.first().is_some_and(|(at, ..)| *at <= now) {
            requests.extend(inner.requests.pop_first().map(|(_, path, lease)| (path, lease)));
        }
        (due, requests)
    }

    pub fn all(&self) -> Vec<Arc<MindedLease>> {
        self.lock().by_id.values().map(|(lease, _)| lease.clone()).collect()
    }
}
