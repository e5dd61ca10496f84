//! `leasehold serve`: opens an engine, puts the service over it, and lets both protocols in.
//!
//! ```text
//!   config ──▶ engine ──▶ Service ──▶ resp (own threads) and http (tokio)
//! ```

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use leasehold::clock::SystemClock;
use leasehold::engine::embedded::{Embedded, Options};
use tokio_util::sync::CancellationToken;

use crate::service::audit::Audit;
use crate::service::keys::KeyRing;
use crate::service::{Opened, Service};
use crate::{http, resp};

const EXAMPLE: &str = "\
Example:
  leasehold serve --data ./leasehold-data
  redis-cli -p 7401 SET seat-14 ada NX PX 30000
  curl -s localhost:7400/v1/resources/seat-14";

/// Makes the embedded engine available to a fleet, by HTTP and RESP.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub struct Serve {
    /// Where the embedded engine keeps its journal
    #[arg(long, value_name = "DIR", default_value = "./leasehold-data")]
    data: PathBuf,
    /// Where HTTP listens
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7400")]
    http: SocketAddr,
    /// Where RESP listens
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7401")]
    resp: SocketAddr,
}

impl Serve {
    /// Serves until it is asked to stop.
    ///
    /// # Errors
    ///
    /// What could not be opened or listened on.
    pub fn execute(self) -> anyhow::Result<u8> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .context("start the runtime")?;
        let handle = runtime.handle().clone();
        runtime.block_on(async move {
            let engine = Embedded::open(&self.data, Options::default()).await?;
            let clock = SystemClock::shared();
            let service = Service::new(Opened::Embedded(engine), KeyRing::open(), Audit, clock);
            let listener =
                std::net::TcpListener::bind(self.resp).with_context(|| format!("listen on {}", self.resp))?;
            let web = std::net::TcpListener::bind(self.http).with_context(|| format!("listen on {}", self.http))?;
            let resp = resp::Server::start(listener, service.clone(), resp::Config::default(), handle)?;
            let stop = CancellationToken::new();
            let web = tokio::spawn(http::serve(web, service.clone(), http::Config::default(), stop.clone()));
            tokio::signal::ctrl_c().await.context("wait for a signal")?;
            stop.cancel();
            resp.stop();
            let _ = web.await;
            service.close().await?;
            Ok(0)
        })
    }
}
