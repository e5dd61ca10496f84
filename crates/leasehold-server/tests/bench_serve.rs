//! `leasehold bench` against the real server: every measurement of a server, each for a moment.

mod common;

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Stdio};

use common::{Site, wait_until};
use serde_json::Value;

/// A server of our own, gone with the test.
struct Server {
    child: Child,
    url: String,
    site: Site,
}

impl Server {
    fn start() -> Self {
        let site = Site::new();
        let free = || TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port");
        let (http, resp) = (free().to_string(), free().to_string());
        let mut serve = site.command(&["serve", "--data", "served", "--http", &http, "--resp", &resp]);
        let child = serve.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary starts");
        wait_until("the server listens", || TcpStream::connect(&resp).is_ok());
        Self { child, url: format!("leasehold://{resp}"), site }
    }

    #[track_caller]
    fn bench(&self, arguments: &[&str]) -> Value {
        let bench = ["bench", "--url", &self.url, "--for", "300ms", "--json"];
        self.site.ask(&[&bench, arguments].concat()).with_code(0).json()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Goal: the server of this build can be measured in every way that its figures need.
#[test]
fn the_server_is_measured_in_every_way() {
    let server = Server::start();
    let pairs = server.bench(&["--clients", "8"]);
    assert!(pairs["pairs"].as_u64().is_some_and(|pairs| pairs > 8), "{pairs}");
    assert_eq!(pairs["url"], server.url);

    let handoff = server.bench(&["--handoff", "16"]);
    assert!(handoff["handoffs"].as_u64().is_some_and(|handoffs| handoffs > 0), "{handoff}");
    assert!(handoff["ratio_p50"].as_f64().is_some_and(|ratio| ratio > 0.0), "{handoff}");

    let idle = server.bench(&["--idle", "200", "--pid", &server.child.id().to_string()]);
    assert_eq!(idle["idle"], 200);
    assert!(idle["ratio_p99"].as_f64().is_some_and(|ratio| ratio > 0.0), "{idle}");

    // Another run right after: what the last one left in line or held would be in its way.
    let again = server.bench(&["--handoff", "16"]);
    assert!(again["handoffs"].as_u64().is_some_and(|handoffs| handoffs > 0), "{again}");
}
