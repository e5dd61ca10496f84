//! Real servers for tests and for `leasehold lab`. Each has a free port and a directory of its own, and ends with the process
//! that started it.
//!
//! A server that is not installed makes a test fail, with the name of the package: a test that is skipped in silence
//! says nothing. The lab uses the functions whose names begin with `try_`: these return errors and do not panic.
//!
//! - [`etcd`]: etcd clusters of one member or several.
//! - [`frozen_clock`]: a wall clock set by hand, for a server that is a process of its own.
//! - [`pgbouncer`]: PgBouncer, a pooler in front of PostgreSQL.
//! - [`postgres`]: PostgreSQL, and its standbys.
//! - [`proxy`]: a TCP proxy that loses, delays and cuts on order.
//! - [`redis`]: Redis servers.
//! - [`redlock`]: several independent Redis servers.
//! - [`zookeeper`]: ZooKeeper ensembles of one server or several.

#![forbid(unsafe_code)]

pub mod etcd;
pub mod frozen_clock;
pub mod pgbouncer;
pub mod postgres;
mod process;
pub mod proxy;
pub mod redis;
pub mod redlock;
pub mod zookeeper;
mod zookeeper_snapshot;

use std::io;
use std::net::TcpListener;

pub use process::root_of_tests;
pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process, set_parent_process_death_signal};

/// A port of the loopback interface that nobody listened on a moment ago.
///
/// # Panics
///
/// If there is none.
#[must_use]
pub fn free_port() -> u16 {
    try_free_port().expect("a free port")
}

/// As [`free_port`].
///
/// # Errors
///
/// If there is none.
pub fn try_free_port() -> io::Result<u16> {
    // Below those that the system gives to connections: such a port may be taken before its server starts, or while it is down.
    for _ in 0..1_000 {
        let port = u16::try_from(20_000 + random_number()? % 12_000).map_err(io::Error::other)?;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Sends a signal to a process. A program for it is not everywhere: `kill` is a package of its own.
///
/// # Panics
///
/// If there is no such process.
pub fn send_signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("the number of a process");
    kill_process(pid, signal).expect("the process takes the signal");
}

/// Makes this process end with the thread that started it, even while it is stopped.
///
/// # Errors
///
/// If the system cannot do that.
pub fn end_with_parent() -> io::Result<()> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// A number that no other test has.
fn random_number() -> io::Result<u64> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    Ok(u64::from_be_bytes(random))
}
