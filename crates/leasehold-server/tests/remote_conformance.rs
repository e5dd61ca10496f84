//! The conformance suite against the remote engine, with a real server at the other end: each law a test of its own.

mod served;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::conformance::{BoxFuture, Fleet, Subject};
use leasehold::engine::Engine;
use leasehold::engine::remote::{Options, Remote};
use served::Server;

/// How far an answer may be off on a busy machine, and the unit of the laws. Time passes for real here.
const SLACK: Duration = Duration::from_millis(300);
const UNIT: Duration = Duration::from_millis(1000);

mod remote {
    leasehold::conformance_tests!(super::OverTheWire::default());
}

mod remote_fleet {
    leasehold::conformance_tests!(super::OverTheWire { fleet: true, ..Default::default() });
}

/// A server for each law; what it left behind is opened again by killing it and starting another.
#[derive(Default)]
struct OverTheWire {
    server: Mutex<Option<Server>>,
    /// Each call goes to the next of three clients.
    fleet: bool,
}

impl OverTheWire {
    fn open(&self) -> BoxFuture<'_, Arc<dyn Engine>> {
        let url = self.server.lock().expect("nobody panicked").as_ref().expect("it was started").url();
        Box::pin(async move {
            let open = async || {
                Remote::open(Options::from_url(&url).expect("a url")).await.expect("it listens") as Arc<dyn Engine>
            };
            if self.fleet { Fleet::new(vec![open().await, open().await, open().await]) } else { open().await }
        })
    }
}

impl Subject for OverTheWire {
    fn fresh(&self) -> BoxFuture<'_, Arc<dyn Engine>> {
        *self.server.lock().expect("nobody panicked") = Some(Server::start());
        self.open()
    }

    #[allow(clippy::disallowed_methods, reason = "a real server lives in real time")]
    fn pass(&self, span: Duration) -> BoxFuture<'_, ()> {
        Box::pin(tokio::time::sleep(span))
    }

    fn unit(&self) -> Duration {
        UNIT
    }

    fn slack(&self) -> Duration {
        SLACK
    }

    fn beside(&self) -> BoxFuture<'_, Option<Arc<dyn Engine>>> {
        let opened = self.open();
        Box::pin(async move { Some(opened.await) })
    }

    fn reopen(&self) -> BoxFuture<'_, Option<Arc<dyn Engine>>> {
        if let Some(server) = self.server.lock().expect("nobody panicked").as_mut() {
            server.kill();
            server.start_again();
        }
        let opened = self.open();
        Box::pin(async move { Some(opened.await) })
    }
}
