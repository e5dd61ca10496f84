//! The Redlock engine: a lease on a majority of independent Redis servers. `redlock://h1:p,h2:p,h3:p`.
//!
//! Every node is an own Redis, without replication between them. A claim is granted when a majority of the nodes grants it
//! and something of its time is left. The keys are those of other Redlock clients (node-redlock, redsync, redlock-rs, and
//! with a preset RedLock.net), so they and we exclude each other.
//!
//! Use it to save work, not to protect data: `redis://` with safe settings, or any engine that promises fencing, is for that.
//!
//! # Promises
//!
//! A lease outlives the process that took it. Fewer than half of the nodes may be dead, slow or unreachable, and nobody
//! notices. As long as clocks differ by less than one percent, no clock steps, no data is deleted by hand, and a node that
//! comes back without its memory is quarantined, no two holders believe at once that they have a lease.
//!
//! # Does not promise
//!
//! Durable, fencing, fair, never early. There is no token, and so no fence: the nodes are independent, nothing orders their
//! grants. No shared leases and no permits: a majority of a count is no count. No watch: there is no order of events. Not the
//! relabelling of leases. Not even exclusion when a wall clock steps, when somebody runs FLUSHALL, or when a holder is
//! paused for longer than its lease: without a token nobody can refuse what it does then.
//!
//! A list reads every record of every node, and shows no locks of other clients. A ttl below 4 ms is nothing but clock drift, and is
//! Invalid. A lease of which a minority of nodes is left is shown while the other nodes do not answer.
//!
//! # Clock
//!
//! Each node's `TIME` ends the keys there. This side's clock (which counts suspend) says how much of a lease is used up: from before the
//! first node was asked. One percent of the life and 2 ms are taken off for clocks that differ.
//!
//! # Token
//!
//! None.
//!
//! # On lost connection
//!
//! A node that does not answer has no vote, and is asked again when it is back. An acquire that a majority did not grant is
//! released on every node that may have granted it, with a ban that keeps commands still on their way from taking effect, and
//! repeatedly until the node confirms it or the lease would have lapsed. A renewal without a majority is Indeterminate and
//! releases nothing. A node that lost a lease gets it back with the next renewal.
//!
//! A node that started less than the quarantine ago, and whose settings do not keep every lease over a restart, does not
//! vote: it may have forgotten leases. `quarantine=` in the URL is how long, and no lease may be longer than it, unless a
//! majority of nodes forgets nothing.
//!
//! # Files, in reading order
//!
//! `options` (the URL), `vote` (the arithmetic), `node` (what is asked of a node), `coordinator` (asks all of them), `owed`
//! (releases that are repeated), `attempt` (one try), `request` (request ids), `acquire_task` (one acquire), `owner` (renew and
//! release), `view` (inspect, list, revoke), `scripts` and `lua/`, `node_reply`, `redis_node` (a real node),
//! `quarantine` (what all processes agree on), `examine`, `engine`.

mod acquire_task;
mod attempt;
mod coordinator;
mod engine;
mod examine;
mod node;
mod node_reply;
mod options;
mod owed;
mod owner;
mod quarantine;
mod redis_node;
mod request;
mod scripts;
#[cfg(test)]
mod simulated_node;
#[cfg(test)]
mod simulation;
mod view;
mod vote;

use crate::error::{BoxError, Error};

pub use engine::{PROFILE, Redlock};
pub use options::RedlockOptions;

const ENGINE: &str = "redlock";

/// The cause in errors of a closed engine.
const CLOSED: &str = "the engine was closed";

fn unavailable(attempt: String, source: BoxError) -> Error {
    Error::Unavailable { engine: ENGINE, attempt, source }
}

fn indeterminate(attempt: String, source: BoxError) -> Error {
    Error::Indeterminate { engine: ENGINE, attempt, source }
}
