//! `leasehold bench` against the real server: every measurement of a server, each for a moment.

mod common;
mod served;

use common::Site;
use serde_json::Value;
use served::Server;

#[track_caller]
fn bench(server: &Server, arguments: &[&str]) -> Value {
    let bench = ["bench", "--url", &server.url(), "--for", "1s", "--json"];
    Site::new().ask(&[&bench, arguments].concat()).with_code(0).json()
}

/// Goal: the server of this build can be measured in every way that its figures need.
#[test]
fn the_server_is_measured_in_every_way() {
    let server = Server::start();
    let pairs = bench(&server, &["--clients", "8"]);
    assert!(pairs["pairs"].as_u64().is_some_and(|pairs| pairs > 8), "{pairs}");
    assert_eq!(pairs["url"], server.url());

    let handoff = bench(&server, &["--handoff", "16"]);
    assert!(handoff["handoffs"].as_u64().is_some_and(|handoffs| handoffs > 0), "{handoff}");
    assert!(handoff["ratio_p50"].as_f64().is_some_and(|ratio| ratio > 0.0), "{handoff}");

    let idle = bench(&server, &["--idle", "200", "--pid", &server.pid().to_string()]);
    assert_eq!(idle["idle"], 200);
    assert!(idle["ratio_p99"].as_f64().is_some_and(|ratio| ratio > 0.0), "{idle}");

    // Another run right after: what the last one left in line or held would be in its way.
    let again = bench(&server, &["--handoff", "16"]);
    assert!(again["handoffs"].as_u64().is_some_and(|handoffs| handoffs > 0), "{again}");
}
