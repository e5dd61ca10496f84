//! Several engines on one store, used as one: what a fleet of processes does.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::engine::{
    Answer, Claim, Engine, EventId, Finding, Grant, Keys, LeaseId, Promises, Query, Renewal, Resource, Token, Watch,
};

/// An engine whose calls go to the next of several clients of one store, in turn: a lease that one of them took is
/// renewed by the second and released by the third. An engine without it passes the suite with what it remembers in its
/// own process.
pub struct Fleet {
    members: Vec<Arc<dyn Engine>>,
    calls: AtomicUsize,
}

impl Fleet {
    /// A fleet of these, which are clients of one store.
    ///
    /// # Panics
    ///
    /// If there are fewer than two, or they do not promise the same.
    #[must_use]
    pub fn new(members: Vec<Arc<dyn Engine>>) -> Arc<Self> {
        assert!(members.len() > 1, "a fleet has several members");
        assert!(members.iter().all(|member| member.promises() == members[0].promises()), "members promise the same");
        Arc::new(Self { members, calls: AtomicUsize::new(0) })
    }

    fn next(&self) -> &dyn Engine {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        self.members[call % self.members.len()].as_ref()
    }
}

impl fmt::Debug for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fleet").field("members", &self.members.len()).finish_non_exhaustive()
    }
}

impl Engine for Fleet {
    fn promises(&self) -> Promises {
        self.members[0].promises()
    }

    fn acquire(&self, claim: Claim) -> Answer<'_, Grant> {
        self.next().acquire(claim)
    }

    fn renew<'a>(&'a self, lease: &'a LeaseId, ttl: Option<Duration>) -> Answer<'a, Renewal> {
        self.next().renew(lease, ttl)
    }

    fn relabel<'a>(&'a self, lease: &'a LeaseId, holder: &'a str) -> Answer<'a, ()> {
        self.next().relabel(lease, holder)
    }

    fn release<'a>(&'a self, lease: &'a LeaseId) -> Answer<'a, bool> {
        self.next().release(lease)
    }

    fn revoke<'a>(&'a self, name: &'a str, reason: &'a str) -> Answer<'a, usize> {
        self.next().revoke(name, reason)
    }

    fn inspect<'a>(&'a self, name: &'a str) -> Answer<'a, Option<Resource>> {
        self.next().inspect(name)
    }

    fn list(&self, query: Query) -> Answer<'_, Vec<Resource>> {
        self.next().list(query)
    }

    fn raise_floor(&self, floor: Option<Token>) -> Answer<'_, Token> {
        self.next().raise_floor(floor)
    }

    fn identity(&self) -> Answer<'_, Option<String>> {
        self.next().identity()
    }

    fn examine(&self) -> Answer<'_, Vec<Finding>> {
        self.next().examine()
    }

    fn watch(&self, since: Option<EventId>) -> Answer<'_, Watch> {
        self.next().watch(since)
    }

    fn keys(&self) -> Option<&dyn Keys> {
        None
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            for member in &self.members {
                member.close().await?;
            }
            Ok(())
        })
    }
}
