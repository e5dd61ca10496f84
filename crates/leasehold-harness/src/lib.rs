//! Real servers for tests. Each has a free port and a directory of its own, and ends with the test that started it.
//!
//! A server that is not installed makes a test fail, with the name of the package: a test that is skipped in silence
//! says nothing.
//!
//! - [`pgbouncer`]: PgBouncer, a pooler in front of PostgreSQL.
//! - [`postgres`]: PostgreSQL.
//! - [`proxy`]: a TCP proxy that loses, delays and cuts on order.

#![forbid(unsafe_code)]

pub mod pgbouncer;
pub mod postgres;
pub mod proxy;

use std::net::TcpListener;

/// A port of the loopback interface that nobody listened on a moment ago.
///
/// # Panics
///
/// If there is none.
#[must_use]
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port()
}
