//! Servers of other kinds under the same load, each through its native Rust client: `bare+redis://…`. For comparison only.
//!
//! # Laws
//!
//! 1. Fair to the peer: one connection per client, the client library's defaults, prepared statements, scripts and
//!    leases in place before the load, and no more round trips than a correct lock needs there.
//! 2. A correct lock: acquired only if free, with an owner, and released only by that owner.
//! 3. What the bench created on the peer is removed afterwards.
//!
//! # Not here
//!
//! Engines. Nothing here is used outside the bench, and the default build has none of it (feature `peers`).

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

/// The kind of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerKind {
    /// `bare+redis://`
    Redis,
    /// `bare+etcd://`
    Etcd,
    /// `bare+zk://`
    ZooKeeper,
    /// `bare+postgres://`
    Postgres,
    /// `bare+postgres://` with `--seats`
    Seats,
}

impl PeerKind {
    /// The kind for a URL scheme.
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

/// A server of another kind.
#[derive(Clone, PartialEq, Eq)]
pub struct PeerServer {
    pub kind: PeerKind,
    /// The URL as the peer's own client takes it, with its secrets.
    pub url: String,
    /// Host, port and path, without secrets.
    pub location: String,
    /// The URL as it was given, without its secrets.
    pub display_url: String,
}

impl fmt::Debug for PeerServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.display_url)
    }
}

/// Refuses a peer if this build has no clients for peers.
pub fn require_built(kind: PeerKind) -> anyhow::Result<()> {
    if cfg!(feature = "peers") {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "this build cannot drive {kind:?}: build one that can with \
         cargo build --release --package leasehold-server --features peers"
    )))
}

/// Runs `clients` clients of the peer for `time`, or until the stop signal.
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

/// Never reached: a build without peers refuses the URL when it is parsed.
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

/// The error when a peer does not answer.
#[cfg(feature = "peers")]
fn unavailable(peer: &PeerServer, cause: &impl fmt::Display) -> anyhow::Error {
    Failure::coded(leasehold_support::exit::UNAVAILABLE, format!("no answer from {}: {cause}", peer.display_url))
}

/// A value that no other client uses as the owner of a lock.
#[cfg(feature = "peers")]
fn unique_owner(number: usize) -> String {
    use std::hash::{BuildHasher, RandomState};
    format!("{:016x}{number:04x}", RandomState::new().hash_one(number))
}
