//! What the lab tells the process of an actor to do, and what comes back. One JSON object per line, over pipes.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::seat::SeatStore;

/// One step of an actor.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum ActorOrder {
    /// Take a lease, and keep its guard.
    Acquire(AcquireOrder),
    /// Ask the guard, not the engine, whether the lease is still held.
    Check,
    /// Release the lease.
    Release,
    /// Read who owns the seat.
    ReadSeat { store: SeatStore },
    /// Write an owner into the seat. `shown` is `token:mark`; without a fence it is not looked at.
    WriteSeat { store: SeatStore, owner: String, shown: Option<String> },
    /// Send one command to a Redis.
    Redis { port: u16, words: Vec<String> },
    /// Take a lock as Redlock clients do: `SET NX PX` on every node, held if a majority said yes.
    Majority { ports: Vec<u16>, name: String, value: String, ttl_ms: u64 },
    /// Buy the last unit, from this moment on.
    Buy(BuyOrder),
}

/// A lease that an actor is to take.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AcquireOrder {
    pub url: String,
    pub name: String,
    pub ttl_ms: u64,
    pub wait_ms: u64,
    /// With a token: refused by an engine that promises none.
    pub fenced: bool,
}

/// A purchase of the last unit.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BuyOrder {
    pub file: PathBuf,
    pub url: String,
    pub way: BuyWay,
    /// The barrier: all buyers begin at this moment of `CLOCK_BOOTTIME`.
    pub begin_ns: u64,
}

/// How a buyer protects the read and the write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BuyWay {
    /// Not at all.
    Naive,
    /// Under a lease.
    Lease,
    /// Under a lease, and the table is fenced.
    FencedLease,
    /// The write names the version that was read, and begins again if it is another one now.
    Optimistic,
    /// A unique constraint: one row per unit can be sold.
    Unique,
    /// The database's own write lock is held from the read to the write.
    WriteLock,
}

/// What came of an order, and when.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ActorReply {
    /// `CLOCK_BOOTTIME` when it was done: one clock for all processes of a machine.
    pub at_ns: u64,
    pub outcome: ActorOutcome,
}

/// What came of an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum ActorOutcome {
    Granted {
        token: Option<u64>,
        mark: String,
    },
    /// The engine said no.
    Refused {
        why: String,
    },
    /// The guard says that the lease is held.
    Holds {
        remaining_ms: u64,
    },
    /// The guard says that it is lost.
    Lost,
    Released {
        ended: bool,
    },
    Seat {
        owner: String,
    },
    /// The write took effect.
    Admitted,
    /// The fence refused the write.
    Fenced {
        code: String,
        why: String,
    },
    /// What Redis answered, as redis-cli prints it.
    Value {
        text: String,
    },
    /// Which nodes said yes, counted from 1.
    Votes {
        nodes: Vec<usize>,
    },
    Bought {
        sold: bool,
        read_ns: u64,
        tries: u32,
    },
    /// It could not be done: nobody answered, or the order makes no sense.
    Failed {
        why: String,
    },
}
