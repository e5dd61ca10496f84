//! Somebody else's servers under the same load, each by its native Rust client. For comparison only.
//!
//! # Laws
//!
//! 1. Fair to the peer: one connection per client, its client's defaults, statements prepared, scripts and leases
//!    in place before the load, and no more round trips than a correct lock needs there.
//! 2. A correct lock: taken only if free, with an owner, and released only by that owner.
//! 3. What was made there is removed afterwards.
//!
//! # Not here
//!
//! Engines: nothing here is used outside the bench, and the default build has none of it (feature `peers`).

#[cfg(feature = "peers")]
mod etcd;
#[cfg(feature = "peers")]
mod postgres;
#[cfg(feature = "peers")]
mod redis;
#[cfg(feature = "peers")]
mod seats;
#[cfg(feature = "peers")]
mod zookeeper;

use std::fmt;
use std::time::Duration;

use indicatif::ProgressBar;

use super::load::Measured;
use super::stop::Stop;
use leasehold_support::exit::Failure;

/// What somebody else's server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `redis://`
    Redis,
    /// `etcd://`
    Etcd,
    /// `zk://`
    ZooKeeper,
    /// `postgres://`
    Postgres,
    /// `postgres://` with `--seats`
    Seats,
}

impl Kind {
    /// The kind of a URL scheme.
    pub fn named(scheme: &str) -> Option<Self> {
        match scheme {
            "redis" => Some(Self::Redis),
            "etcd" => Some(Self::Etcd),
            "zk" => Some(Self::ZooKeeper),
            "postgres" | "postgresql" => Some(Self::Postgres),
            _ => None,
        }
    }
}

/// One of somebody else's servers.
#[derive(Clone, PartialEq, Eq)]
pub struct Peer {
    /// What it is.
    pub kind: Kind,
    /// The URL as it was given, secrets and all.
    pub url: String,
    /// The URL without its secrets.
    pub shown: String,
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

/// Refuses a peer that this build cannot drive.
pub fn require_built(kind: Kind) -> anyhow::Result<()> {
    if cfg!(feature = "peers") {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "this build cannot drive {kind:?}: build one that can with \
         cargo build --release --package leasehold-server --features peers"
    )))
}

/// Lets `clients` clients of the peer work for `time`, or until somebody stops it.
#[cfg(feature = "peers")]
pub async fn run(
    peer: &Peer,
    clients: usize,
    time: Duration,
    stop: &Stop,
    bar: &ProgressBar,
) -> anyhow::Result<Measured> {
    use super::load;
    match peer.kind {
        Kind::Redis => load::run(redis::connect(peer, clients).await?, time, stop, bar).await,
        Kind::Etcd => load::run(etcd::connect(peer, clients).await?, time, stop, bar).await,
        Kind::ZooKeeper => load::run(zookeeper::connect(peer, clients).await?, time, stop, bar).await,
        Kind::Postgres => {
            let table = postgres::Table::make(peer).await?;
            let measured = match table.connect(peer, clients).await {
                Ok(clients) => load::run(clients, time, stop, bar).await,
                Err(error) => Err(error),
            };
            table.remove().await?;
            measured
        }
        Kind::Seats => {
            let hall = seats::Hall::make(peer).await?;
            let measured = match hall.connect(peer, clients).await {
                Ok(buyers) => load::run(buyers, time, stop, bar).await,
                Err(error) => Err(error),
            };
            hall.remove().await?;
            measured
        }
    }
}

/// Never asked: such a peer was refused when its URL was read.
#[cfg(not(feature = "peers"))]
pub async fn run(
    peer: &Peer,
    _clients: usize,
    _time: Duration,
    _stop: &Stop,
    _bar: &ProgressBar,
) -> anyhow::Result<Measured> {
    require_built(peer.kind)?;
    anyhow::bail!("this build cannot drive {}", peer.shown)
}

/// Nobody could be asked.
#[cfg(feature = "peers")]
fn silent(peer: &Peer, cause: &impl fmt::Display) -> anyhow::Error {
    Failure::coded(leasehold_support::exit::UNAVAILABLE, format!("no answer from {}: {cause}", peer.shown))
}

/// Text that no other client has: what tells owners apart.
#[cfg(feature = "peers")]
fn owner(number: usize) -> String {
    use std::hash::{BuildHasher, RandomState};
    format!("{:016x}{number:04x}", RandomState::new().hash_one(number))
}
