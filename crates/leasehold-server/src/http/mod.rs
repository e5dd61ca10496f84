//! HTTP on port 7400: translates requests into calls of the service, and results into responses.
//!
//! ```text
//!   accept ─▶ connection (limits of time and size) ─▶ guard (Host, Origin) ─▶ ROUTES ─▶ Service
//! ```
//!
//! Read in this order:
//!
//! - [`routes`]: the table of routes; the router is built from it. [`call`]: one request on its way to its handler.
//! - [`leases`], [`resources`], [`watch`], [`status`]: the handlers. [`sse`]: what both event streams have in common.
//! - [`boxoffice`]: the handlers of the box office. [`recipes`]: those of queues, once, schedules and elections.
//! - [`fields`], [`text`], [`problem`]: JSON bodies, paths and queries, errors.
//! - [`guard`]: checks of Host and Origin, and the security headers of responses.
//! - [`accept`], [`io`], [`socket`]: the accept loop, timeouts of connections, detection of hang-ups. Limits of their
//!   number: `service::connection_limit`.
//! - [`openapi`], [`pages`]: the OpenAPI description, and the web pages.
//!
//! # Laws
//!
//! 1. Handlers reach the engine through [`Service`] alone, and only for a caller from [`Service::authenticate`].
//! 2. A state change runs on a task of its own: a hang-up cannot leave it half done.
//! 3. Nothing is read into memory before its size was checked, and every wait has a timeout.
//! 4. No secret is in a path, a query, a log line or an error text. Queries are never logged.
//!
//! # Not here
//!
//! Authorisation (the service), decisions about leases (the engine), certificates (the caller sets
//! [`HttpConfig::tls`]).

mod accept;
pub mod boxoffice;
mod call;
mod fields;
mod guard;
mod io;
mod leases;
mod openapi;
mod pages;
mod problem;
mod recipes;
mod resources;
mod respond;
mod routes;
mod socket;
mod sse;
mod status;
#[cfg(test)]
mod tests;
mod text;
mod watch;

pub use accept::{RequestHandler, accept_connections};
pub use guard::Arrival;
pub use io::PhaseTracker;
pub use problem::Problem;
pub use socket::SharedSocket;
pub use text::percent_decode;

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::service::Service;
use crate::service::connection_limit::ConnectionLimiter;

/// The settings of the HTTP server. The defaults are the contract.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    /// The TLS configuration; none for plain HTTP.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Names this server answers to, beside loopback and the address it was reached at. `*` is any name: then only the
    /// Origin check stands between a page that rebinds its name and a server without keys.
    pub hosts: Vec<String>,
    /// Timeout for the first byte of a new connection.
    pub first_byte: Duration,
    /// Timeout for the head of a request, from its first byte.
    pub header: Duration,
    /// Timeout for the body of a request.
    pub body: Duration,
    /// A connection whose client reads nothing for this long is closed.
    pub write_stall: Duration,
    /// An idle connection is closed after this.
    pub idle: Duration,
    /// The interval of heartbeats on a quiet event stream.
    pub heartbeat: Duration,
    /// Timeout for open connections when the server stops.
    pub drain: Duration,
    /// Limits the connections of both ports.
    pub connection_limiter: Arc<ConnectionLimiter>,
    /// Bytes of the head of a request; at least 8 KiB.
    pub header_bytes: usize,
    /// Bytes of the body of a request.
    pub body_bytes: usize,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            tls: None,
            hosts: Vec::new(),
            first_byte: Duration::from_secs(5),
            header: Duration::from_secs(5),
            body: Duration::from_secs(10),
            write_stall: Duration::from_secs(10),
            idle: Duration::from_secs(60),
            heartbeat: Duration::from_secs(15),
            drain: Duration::from_secs(10),
            // No single address can use the last quarter of the connections.
            connection_limiter: ConnectionLimiter::new(20_000, 15_000),
            header_bytes: 16 * 1024,
            body_bytes: 64 * 1024,
        }
    }
}

/// Shared by all handlers.
#[derive(Clone)]
pub struct App {
    service: Arc<Service>,
    config: Arc<HttpConfig>,
    stop: CancellationToken,
}

/// Serves until `stop`; then finishes open requests, answers waiting claims, and ends every stream.
pub async fn serve(listener: TcpListener, service: Arc<Service>, config: HttpConfig, stop: CancellationToken) {
    let app = App { service, config: Arc::new(config), stop };
    if let Err(error) = accept::accept_for_app(listener, app).await {
        tracing::error!(target: "leasehold::http", %error, "cannot accept connections");
    }
}
