//! The Redis engine: leases on a Redis server, where each verb is one Lua script. `redis://host:port`, with TLS
//! `rediss://…`.
//!
//! The key of a name holds a string, so whoever takes the same name with `SET NX` is excluded, and excludes us: redis-py,
//! node-redlock, redsync and most others. Everything else is in keys that begin with `leasehold:`.
//!
//! # Promises
//!
//! Fair, and leases outlive their process. With `appendonly yes`, `appendfsync always`, `no-appendfsync-on-rewrite no`,
//! `aof-load-truncated no`, `maxmemory-policy noeviction` and no replicas also durable and fencing. That is read on every
//! connection and every half minute. A server that gets weaker gets no more acquires; leases that exist go on.
//!
//! # Does not promise
//!
//! Never early: Redis ends keys by its wall clock. Order against clients that are not ours: they stand in no queue. Against
//! the embedded engine: a capacity is forgotten with the last lease or waiter *for permits*; the number of waiters in a
//! refusal may count one whose patience has just ended; a crowd of holders is in order of their ends; there are no quotas
//! per principal and no limit on all waiters; a waiter that a restart forgot comes again instead of being Unavailable; behind
//! 256 who wait and cannot be served, nobody is served who could be. An
//! ending is remembered for ten minutes, or until a later one takes its place of 65,536. MONITOR and SLOWLOG show secrets.
//!
//! # Clock
//!
//! The server's `TIME`, read once in each script. `slew` (500 parts per million) is taken off remaining times, because a
//! wall clock may be slewed meanwhile. This side's clock says when to look and when an answer is overdue.
//!
//! # Token
//!
//! One counter for the whole server, which is never behind the server's clock in microseconds: each token is the next
//! number, or the clock if that is higher. So it rises also when the data are lost or replaced by older ones (a restart, a
//! failover, FLUSHALL, REPLICAOF). A token can come twice only if the counter is lost and the clock is behind at once.
//!
//! # On lost connection
//!
//! Acquire, renew and release are asked again for four seconds with the same handle, so that all tries have one effect; an
//! acquire that waits comes again as long as its wait lasts. Revoke is not asked twice: the second could hit a successor.
//! When it cannot be known whether it happened: Indeterminate; a release that was asked for twice is, when the server does
//! not know the lease. Renewals and labels are numbered: a copy that comes late does not undo a later one. A lease that was asked for more than once is released with a
//! ban, so that a try that comes late takes nothing. A watch goes on after the last event, or reports a gap.
//!
//! # Files, in reading order
//!
//! `options` (the URL), `scripts` and `lua/` (what the server runs), `claim_text` (what a script gets), `decode` (what it
//! answers), `verify` (settings and promises), `connect` and `node` (one server), `errors`, `gather` (several callers in one
//! call), `waiting` (who waits), `acquire_task` (one acquire), `watch`, `shared`, `engine`; and `bare_connection`, for the fence.

mod acquire_task;
pub(crate) mod bare_connection;
pub(in crate::engine) mod claim_text;
pub(in crate::engine) mod connect;
pub(in crate::engine) mod decode;
mod engine;
pub(in crate::engine) mod errors;
pub(in crate::engine) mod examine;
mod foreign_locks;
#[cfg(test)]
mod fuzz_support;
#[cfg(test)]
mod fuzz_tests;
mod gather;
#[cfg(test)]
mod gather_tests;
pub(in crate::engine) mod node;
pub(in crate::engine) mod options;
#[cfg(test)]
mod queue_tests;
#[cfg(test)]
mod script_tests;
pub(in crate::engine) mod scripts;
mod shared;
pub(in crate::engine) mod verify;
mod waiting;
mod watch;

pub use engine::{PROFILE, RedisEngine};
pub use options::{RedisOptions, RedisPreset};
