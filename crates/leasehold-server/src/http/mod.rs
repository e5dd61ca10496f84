//! HTTP on port 7400: translates requests for the service, and its answers back.
//!
//! ```text
//!   accept ─▶ connection (limits of time and size) ─▶ guard (Host, Origin) ─▶ ROUTES ─▶ Service
//! ```
//!
//! Read in this order:
//!
//! - [`routes`]: the one table of what can be asked; the router is built from it.
//! - [`leases`], [`resources`], [`watch`], [`status`]: what each route takes and answers.
//! - [`boxoffice`]: the routes of the box office.
//! - [`fields`], [`text`], [`shape`], [`problem`]: JSON and names in, JSON and problems out.
//! - [`guard`]: who may ask from where: Host, Origin, and the headers that keep browsers in line.
//! - [`accept`], [`io`], [`socket`]: connections, how long they may dawdle, and whether they are cut. How many: `service::connection_limit`.
//! - [`openapi`], [`pages`]: the description of all this, and the pages.
//!
//! # Laws
//!
//! 1. Handlers reach the engine through [`Service`] alone, and only for a caller that [`Service::authenticate`] let in.
//! 2. What changes state runs detached from its connection: a hang-up cannot strand half of it.
//! 3. Nothing is read into memory before its size was checked, and nothing is waited for without a limit.
//! 4. No secret is in a path, a query, a log line or an error text; a query is never logged.
//!
//! # Not here
//!
//! Who may do what (the service), decisions about leases (the engine), certificates (whoever fills [`HttpConfig::tls`]).

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

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::service::Service;
use crate::service::connection_limit::ConnectionLimiter;

/// How HTTP is served. The defaults are the contract.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    /// Speak TLS with these certificates; none for plain HTTP.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Names this server answers to, beside loopback and the address it was reached at. `*` is any name: then only the
    /// Origin check stands between a page that rebinds its name and a server without keys.
    pub hosts: Vec<String>,
    /// A new connection says something within this.
    pub first_byte: Duration,
    /// The head of a request is whole within this of its first byte.
    pub header: Duration,
    /// The body of a request is whole within this.
    pub body: Duration,
    /// A client that takes nothing of an answer for this long is cut off.
    pub write_stall: Duration,
    /// A connection between two requests is kept this long.
    pub idle: Duration,
    /// A quiet watch says this often that it is alive.
    pub heartbeat: Duration,
    /// What is under way at the end may take this long.
    pub drain: Duration,
    /// Places for connections.
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
            // No single address can take the last quarter of the places.
            connection_limiter: ConnectionLimiter::new(20_000, 15_000),
            header_bytes: 16 * 1024,
            body_bytes: 64 * 1024,
        }
    }
}

/// What every handler knows.
#[derive(Clone)]
pub struct App {
    service: Arc<Service>,
    config: Arc<HttpConfig>,
    stop: CancellationToken,
}

/// Serves until `stop`; then finishes what is under way, tells those who wait, and ends every watch.
pub async fn serve(listener: TcpListener, service: Arc<Service>, config: HttpConfig, stop: CancellationToken) {
    let app = App { service, config: Arc::new(config), stop };
    if let Err(error) = accept::run(listener, app).await {
        tracing::error!(target: "leasehold::http", %error, "cannot accept connections");
    }
}
