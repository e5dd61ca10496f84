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
mod postgres_seats;
#[cfg(feature = "peers")]
mod redis;
#[cfg(feature = "peers")]
mod zookeeper;

use std::fmt;
use std::time::Duration;

use indicatif::ProgressBar;

use super::pair_load::PairMeasurement;
use super::stop_signal::StopSignal;
use leasehold_support::exit::Failure;

/// What somebody else's server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerKind {
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

impl PeerKind {
    /// The kind of a URL scheme.
    pub fn from_scheme(scheme: &str) -> Option<Self> {
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
pub struct PeerServer {
    /// What it is.
    pub kind: PeerKind,
    /// The URL as it was given, secrets and all.
    pub url: String,
    /// The URL without its secrets.
    pub display_url: String,
}

impl fmt::Debug for PeerServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.display_url)
    }
}

/// Refuses a peer that this build cannot drive.
pub fn require_built(kind: PeerKind) -> anyhow::Result<()> {
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
    peer: &PeerServer,
    clients: usize,
    time: Duration,
    stop: &StopSignal,
    bar: &ProgressBar,
) -> anyhow::Result<PairMeasurement> {
    use super::pair_load;
    match peer.kind {
        PeerKind::Redis => pair_load::run(redis::connect(peer, clients).await?, time, stop, bar).await,
        PeerKind::Etcd => pair_load::run(etcd::connect(peer, clients).await?, time, stop, bar).await,
        PeerKind::ZooKeeper => pair_load::run(zookeeper::connect(peer, clients).await?, time, stop, bar).await,
        PeerKind::Postgres => {
            let table = postgres::LockTable::create(peer).await?;
            let measured = match table.connect(peer, clients).await {
                Ok(clients) => pair_load::run(clients, time, stop, bar).await,
                Err(error) => Err(error),
            };
            table.drop_table().await?;
            measured
        }
        PeerKind::Seats => {
            let table = postgres_seats::SeatTable::create(peer).await?;
            let measured = match table.connect(peer, clients).await {
                Ok(buyers) => pair_load::run(buyers, time, stop, bar).await,
                Err(error) => Err(error),
            };
            table.drop_table().await?;
            measured
        }
    }
}

/// Never asked: such a peer was refused when its URL was read.
#[cfg(not(feature = "peers"))]
pub async fn run(
    peer: &PeerServer,
    _clients: usize,
    _time: Duration,
    _stop: &StopSignal,
    _bar: &ProgressBar,
) -> anyhow::Result<PairMeasurement> {
    require_built(peer.kind)?;
    anyhow::bail!("this build cannot drive {}", peer.display_url)
}

/// Nobody could be asked.
#[cfg(feature = "peers")]
fn unavailable(peer: &PeerServer, cause: &impl fmt::Display) -> anyhow::Error {
    Failure::coded(leasehold_support::exit::UNAVAILABLE, format!("no answer from {}: {cause}", peer.display_url))
}

/// Text that no other client has: what tells owners apart.
#[cfg(feature = "peers")]
fn unique_owner(number: usize) -> String {
    use std::hash::{BuildHasher, RandomState};
    format!("{:016x}{number:04x}", RandomState::new().hash_one(number))
}
