//! What is asked of one node, and what it answers. The real node is in `redis_node`, a simulated one in the tests.
//!
//! # What a node promises
//!
//! 1. Each request has its whole effect or none, at one moment.
//! 2. `NoEffect`: the request had no effect and will have none. `Unknown`: it may have one, even later.
//! 3. Requests over one connection take effect in the order in which they were sent.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::LeaseId;
use crate::engine::redis::claim_text::{ClaimText, split_lease_id};
use crate::error::Error;

/// The reply to come. It is driven to its end whether or not anybody waits for it.
pub(super) type NodeAnswer = Pin<Box<dyn Future<Output = Result<NodeReply, NodeError>> + Send>>;

/// One of the servers.
pub(super) trait Node: Send + Sync + 'static {
    /// Asks it. The future is given up by the node's own time limit, never by the caller.
    fn ask(&self, request: NodeRequest) -> NodeAnswer;

    /// Whether its vote counts for a lease that keeps keys for so many milliseconds.
    fn standing(&self, keys_live_ms: u64) -> Standing;

    /// It missed an answer a moment ago, and is not waited for while there are enough others.
    fn is_suspect(&self) -> bool;

    /// There is a connection to it.
    fn is_reachable(&self) -> bool;

    /// `host:port`, for people.
    fn address(&self) -> &str;
}

/// Whether a node's vote counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Votes,
    /// It started a moment ago and may have forgotten leases.
    Quarantined {
        left: Duration,
    },
    /// It keeps nothing over a restart, and the lease is longer than any quarantine.
    NotDurable,
}

#[derive(Clone, Debug)]
pub(super) enum NodeRequest {
    /// Takes all names of the claim, or none.
    Acquire(PreparedClaim),
    /// Ends a try of ours, wherever it got, and keeps its acquire from having an effect later. Leaves a lease that
    /// another call of the same request id has joined.
    Abandon {
        lease: LeaseKeys,
        ban_ms: u64,
    },
    /// Without a ttl: as long as last time.
    Renew {
        lease: LeaseKeys,
        ttl_ms: Option<u64>,
        change: ChangeId,
    },
    /// With a ban: an acquire that is still on its way has no effect.
    Release {
        lease: LeaseKeys,
        ban_ms: Option<u64>,
    },
    /// What is known of the handle of a request id.
    Peek {
        handle: String,
    },
    /// Takes part in the lease of another call with the same request id.
    Join(LeaseKeys),
    /// The record of a lease, for [`NodeRequest::Repair`].
    ReadRecord(LeaseKeys),
    /// Gives a node that lost a lease the lease again.
    Repair {
        lease: LeaseKeys,
        record: LeaseRecord,
        life_ms: u64,
        /// The renewal that it belongs to.
        change: ChangeId,
    },
    /// Who has the key, and until when.
    Look {
        key: String,
    },
    /// All leases.
    List,
    Revoke {
        key: String,
        reason: String,
    },
}

/// Which change of a lease: a copy of an earlier one of the same process that arrives late does nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChangeId {
    /// The process, in hexadecimal digits.
    pub process: Arc<str>,
    /// Above those of all its earlier changes.
    pub number: u64,
}

/// A claim as it is sent to every node.
#[derive(Clone, Debug)]
pub(super) struct PreparedClaim {
    pub text: Arc<ClaimText>,
    /// How long its keys live: the life of the lease, and the delay after it.
    pub keys_live_ms: u64,
}

impl PreparedClaim {
    pub fn lease(&self) -> LeaseKeys {
        LeaseKeys { handle: self.text.handle.clone(), secret: self.text.secret.clone() }
    }
}

/// Handle and secret of a lease. `Debug` hides the secret.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct LeaseKeys {
    pub handle: String,
    pub secret: String,
}

impl LeaseKeys {
    /// None for text that is no lease id of ours.
    pub fn from_id(lease: &LeaseId) -> Option<Self> {
        let (handle, secret) = split_lease_id(lease.expose())?;
        Some(Self { handle: handle.to_owned(), secret: secret.to_owned() })
    }
}

impl fmt::Debug for LeaseKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseKeys").field("handle", &self.handle).finish_non_exhaustive()
    }
}

/// What a record says, and how old it is.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct LeaseRecord {
    /// The part that clients make. It holds the secret.
    pub static_part: String,
    /// How long ago it was granted.
    pub age_ms: u64,
}

impl fmt::Debug for LeaseRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseRecord").field("age_ms", &self.age_ms).finish_non_exhaustive()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NodeReply {
    /// To Acquire.
    Ballot(Ballot),
    /// To Abandon, Repair.
    Done,
    /// To Renew and Join: how long it lives still, and how far renewals can push it.
    Lives { left_ms: u64, cap_left_ms: Option<u64> },
    /// To Renew, Join and ReadRecord: it has ended.
    Stale,
    /// To Renew, Release, Join and ReadRecord: nothing is known of it.
    NotHeld,
    /// To Release: whether this call ended it.
    Released(bool),
    /// To Peek.
    Peeked(Option<PeekedLease>),
    /// To ReadRecord.
    Record(LeaseRecord),
    /// To Look; none when it is free.
    Looked(Option<NodeHolding>),
    /// To List.
    Listed(Vec<(String, NodeHolding)>),
    /// To Revoke: how many; none when another kind of client has it.
    Revoked(Option<usize>),
}

/// A node's vote on a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ballot {
    Granted,
    Held(NodeHeld),
    /// Another call with the same request id is here, under another secret.
    SameRequest,
    /// The request id was used for another claim.
    Mismatch,
    /// The try was abandoned before.
    Banned,
}

/// What is in the way on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeHeld {
    pub key: String,
    pub who: Occupant,
    /// None when nobody is known, only a delay or a queue.
    pub holder: Option<String>,
    pub left_ms: Option<u64>,
    pub queue_len: usize,
}

/// Who keeps a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Occupant {
    /// The lease of this handle, or the delay after it.
    Lease(String),
    /// Another kind of client.
    Stranger,
    /// A queue, or a key whose record is lost.
    Other,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) struct PeekedLease {
    pub secret: String,
    pub fingerprint: String,
    pub live: bool,
}

impl fmt::Debug for PeekedLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeekedLease").field("live", &self.live).finish_non_exhaustive()
    }
}

/// Who has a key on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeHolding {
    pub who: Occupant,
    /// Whether a lease is live; otherwise the key is only closed.
    pub live: bool,
    pub holder: String,
    pub since_ms: u64,
    pub left_ms: u64,
}

/// Why a node gave no answer.
#[derive(Debug)]
pub(super) enum NodeError {
    /// Nothing happened, and nothing will.
    NoEffect(String),
    /// It may have happened, or may happen later.
    Unknown(String),
    /// The node can never do it: wrong password, a damaged record. Nothing happened.
    Broken(Error),
}

impl NodeError {
    pub const fn may_have_happened(&self) -> bool {
        matches!(self, Self::Unknown(_))
    }
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoEffect(why) | Self::Unknown(why) => f.write_str(why),
            Self::Broken(error) => error.fmt(f),
        }
    }
}
