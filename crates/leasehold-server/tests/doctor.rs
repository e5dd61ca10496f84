//! `leasehold doctor` and `leasehold engines`: what an engine promises, and why not more.

mod common;

use std::process::Command;

use common::server::Server;
use common::{Answer, Site, text};
use leasehold_harness::postgres::Cluster;
use leasehold_harness::redis::{DURABLE, RedisServer};
use leasehold_harness::redlock::RedisNodes;
use serde_json::Value;

const PROMISES: [&str; 5] = ["durable", "fencing", "fair", "never_early", "outlives_process"];

/// Every promise is made or denied by a finding, and `missing` is what of the need is not made.
fn assert_explained(report: &Value, need: &[&str]) {
    let denied = |promise: &str| {
        let findings = report["findings"].as_array().expect("a list").iter();
        findings
            .filter(|f| f["kind"] == "denies")
            .any(|f| f["promises"].as_array().expect("a list").contains(&promise.into()))
    };
    for promise in PROMISES {
        assert_ne!(report["promises"][promise].as_bool().expect("yes or no"), denied(promise), "{promise}: {report}");
    }
    let missing: Vec<&str> = need.iter().copied().filter(|need| report["promises"][need] == false).collect();
    assert_eq!(report["missing"], serde_json::json!(missing));
}

/// Goal: a directory that processes open in turn is not fair, and doctor says so; with a need for it the code is 1.
#[test]
fn a_directory_is_examined() {
    let site = Site::new();
    let text = site.ask(&["doctor"]).with_code(0).out;
    assert!(text.contains("fair              no    opened by") && text.contains("durable           yes"), "{text}");
    assert!(text.contains("(opened by: several processes, wanted a server)"), "{text}");
    for (need, code) in [("durable", 0), ("durable,fencing,never_early", 0), ("fair", 1), ("durable,fair", 1)] {
        let answer = site.ask(&["doctor", "--json", "--need", need]).with_code(code);
        assert_explained(&answer.json(), &need.split(',').collect::<Vec<_>>());
    }
    let answer = site.ask(&["doctor", "--need", "fair"]).with_code(1);
    assert_eq!(answer.err, "leasehold: fair is needed, and not promised\n");
}

/// Goal: a server says what its own engine promises, also through another server before it.
#[test]
fn a_server_is_examined() {
    let (site, front_site) = (Site::new(), Site::new());
    let server = Server::start(&site, &[]);
    let url = format!("leasehold://{}", server.resp);
    let front = Server::start(&front_site, &["--engine", &url]);
    let mut reports = Vec::new();
    for at in [server.resp, front.resp] {
        let url = format!("leasehold://{at}");
        let need = PROMISES.join(",");
        let report = site.ask(&["doctor", "--json", "--need", &need, "--url", &url]).with_code(0).json();
        assert_explained(&report, &PROMISES);
        reports.push(report);
    }
    // Each has its own clock finding, about the server that was asked.
    for report in &mut reports {
        report["findings"].as_array_mut().expect("a list").retain(|f| !text(f, "setting").starts_with("clock of"));
    }
    assert_eq!(reports[0], reports[1]);
    assert!(reports[0]["identity"].as_str().is_some_and(|identity| identity.len() == 32));
}

fn database(cluster: &Cluster) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    cluster.url(&runtime.block_on(cluster.database()))
}

/// What doctor says under a wall clock that is off by so much.
fn doctor_at(offset: &str, url: &str) -> Value {
    let output = Command::new("faketime")
        .args(["-f", offset, env!("CARGO_BIN_EXE_leasehold"), "doctor", "--json", "--url", url])
        .output()
        .expect("faketime is installed: apt-get install faketime");
    Answer::of(&output).with_code(0).json()
}

/// The clocks that were compared, and whether each comparison is a warning.
fn clock_warnings(report: &Value) -> Vec<bool> {
    let findings = report["findings"].as_array().expect("a list").iter();
    findings.filter(|f| text(f, "setting").starts_with("clock of ")).map(|f| f["kind"] == "warning").collect()
}

/// Goal: on every engine with another machine in it the two clocks are compared, and a difference is a warning.
/// Method: doctor itself runs under a wall clock that is right, and under one that is two minutes ahead.
#[test]
fn clocks_are_compared_on_every_engine() {
    let site = Site::new();
    let server = Server::start(&site, &[]);
    let (redis, nodes, cluster) = (RedisServer::start(DURABLE), RedisNodes::start(3, DURABLE), Cluster::start(&[]));
    for (url, clocks) in
        [(format!("leasehold://{}", server.resp), 1), (redis.url(), 1), (nodes.url(""), 3), (database(&cluster), 1)]
    {
        let right = doctor_at("+0s", &url);
        assert_explained(&right, &[]);
        assert_eq!(clock_warnings(&right), vec![false; clocks], "{right}");
        let off = doctor_at("+120s", &url);
        assert_explained(&off, &[]);
        assert_eq!(clock_warnings(&off), vec![true; clocks], "{off}");
        let found =
            off["findings"].as_array().expect("a list").iter().find(|f| text(f, "setting").starts_with("clock of"));
        let found = text(found.expect("it is compared"), "found");
        let millis: f64 = found.split(' ').next().and_then(|number| number.parse().ok()).expect("a number");
        assert!((-121_000.0..-119_000.0).contains(&millis), "{found}");
    }
    // A directory needs no other clock, and says so.
    let report = Site::new().ask(&["doctor", "--json"]).with_code(0).json();
    let clock =
        report["findings"].as_array().expect("a list").iter().find(|f| f["setting"] == "clock").expect("a note");
    assert_eq!((&clock["kind"], text(clock, "found")), (&"note".into(), "CLOCK_BOOTTIME of this machine"));
}

/// Goal: bad usage is 2, nobody there is 4, and each says one sentence.
#[test]
fn what_cannot_be_examined_says_so() {
    let site = Site::new();
    let dead = "leasehold://127.0.0.1:1";
    for (arguments, code) in [
        (&["doctor", "--need", "speed"][..], 2),
        (&["doctor", "--need", ""], 2),
        (&["doctor", "--url", "zk://127.0.0.1:1/locks"], 4),
        (&["doctor", "--url", "etcd://127.0.0.1:1"], 4),
        (&["doctor", "--url", dead], 4),
    ] {
        site.ask(arguments).with_code(code).says_one_sentence();
    }
}

/// Goal: the table of promises in the README is the one that the code prints.
#[test]
fn the_readme_shows_the_promise_table() {
    let printed = Site::new().ask(&["engines"]).with_code(0).out;
    let table = printed.split("\n\n").next().expect("a table");
    assert!(table.lines().count() > 4, "{table}");
    let readme = include_str!("../../../README.md");
    assert!(readme.contains(&format!("\n{table}\n")), "README shows another table than:\n{table}");
}
