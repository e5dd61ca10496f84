//! HTTP on port 7400: translates requests for the service, and its answers back.

use std::net::TcpListener;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::service::Service;

/// How HTTP is served.
#[derive(Clone, Debug, Default)]
pub struct Config {}

/// Serves until `stop`.
pub async fn serve(_listener: TcpListener, _service: Arc<Service>, _config: Config, stop: CancellationToken) {
    stop.cancelled().await;
}
