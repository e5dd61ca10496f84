//! What a fence costs an UPDATE, beside the same table without one, on this machine, now. Run by hand:
//! `cargo test --release -p leasehold --features postgres,testkit --test fence_figures -- --ignored --nocapture`.
//!
//! pgbench, 16 clients: BEGIN and the setting in one message, UPDATE of one random row of 16,000, COMMIT. The designs take
//! turns within a round, and a round compares only with itself. *Plain again* is a placebo: what it differs from 1 by is the
//! noise.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stdout)] // a real server lives in real time

use std::path::PathBuf;
use std::process::Command;

use leasehold::fence::postgres::{FenceMode, InstallOptions, Remember, install};
use leasehold_harness::postgres::Cluster;

const ROWS: u32 = 16_000;
const SECONDS: &str = "3";
const ROUNDS: usize = 8;

/// Name, and the script of pgbench. `:token` rises with every transaction of a client, and each client has rows of its own:
/// no write is refused.
const DESIGNS: [(&str, &str); 8] = [
    ("plain", "BEGIN; UPDATE plain SET owner = owner + 1 WHERE id = :id; COMMIT;"),
    ("plain again", "BEGIN; UPDATE plain SET owner = owner + 1 WHERE id = :id; COMMIT;"),
    (
        "setting, no trigger",
        "BEGIN\\; SET LOCAL leasehold.token = '7:aaaaaaaaaaaaaaaa'; UPDATE plain SET owner = owner + 1 WHERE id = :id; COMMIT;",
    ),
    (
        "row, equal",
        "BEGIN\\; SET LOCAL leasehold.token = '7:aaaaaaaaaaaaaaaa'; UPDATE in_row SET owner = owner + 1 WHERE id = :id; COMMIT;",
    ),
    (
        "row, rising",
        "BEGIN\\; SET LOCAL leasehold.token = ':token'; UPDATE in_row_rising SET owner = owner + 1 WHERE id = :id; COMMIT;",
    ),
    (
        "name, equal",
        "BEGIN\\; SET LOCAL leasehold.token = '7:aaaaaaaaaaaaaaaa'; UPDATE by_name SET owner = owner + 1 WHERE id = :id; COMMIT;",
    ),
    (
        "one name, equal",
        "BEGIN\\; SET LOCAL leasehold.token = '7:aaaaaaaaaaaaaaaa'; UPDATE one_name SET owner = owner + 1 WHERE id = :id; COMMIT;",
    ),
    (
        "condition, rising",
        "BEGIN; UPDATE conditional SET owner = owner + 1, fence = :token WHERE id = :id AND fence <= :token; COMMIT;",
    ),
];

async fn prepare(cluster: &Cluster) -> String {
    let database = cluster.database().await;
    let mut client = cluster.client(&database).await;
    for table in ["plain", "in_row", "in_row_rising", "by_name", "one_name", "conditional"] {
        let sql = format!(
            "CREATE TABLE {table} (id int PRIMARY KEY, owner int, fence bigint NOT NULL DEFAULT 0) WITH (fillfactor = 70);
             INSERT INTO {table} SELECT n, 0 FROM generate_series(1, {ROWS}) n; ANALYZE {table}"
        );
        client.batch_execute(&sql).await.unwrap();
    }
    for (table, resource, remember) in [
        ("in_row", "row/{}", Remember::Row),
        ("in_row_rising", "rising/{}", Remember::Row),
        ("by_name", "name/{}", Remember::Name),
        ("one_name", "one", Remember::Name),
    ] {
        let keys = if resource == "one" { Vec::new() } else { vec!["id".to_owned()] };
        let (resource, remember) = (Some(resource.to_owned()), Some(remember));
        let options = InstallOptions { table: table.into(), keys, resource, remember, mode: FenceMode::Enforce };
        install(&mut client, &options).await.unwrap();
    }
    database
}

/// Transactions per second.
fn run_pgbench(url: &str, script: &std::path::Path, first_token: u64) -> f64 {
    let versions = std::fs::read_dir("/usr/lib/postgresql").unwrap().flatten();
    let program: PathBuf =
        versions.map(|version| version.path().join("bin/pgbench")).find(|path| path.exists()).unwrap();
    let output = Command::new(program)
        .args(["--no-vacuum", "--client=16", "--jobs=2", "--time", SECONDS])
        .arg(format!("--define=token={first_token}"))
        .arg("--file")
        .arg(script)
        .arg(url)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let line = text.lines().find(|line| line.starts_with("tps = ")).unwrap();
    line.split_whitespace().nth(2).unwrap().parse().unwrap()
}

#[tokio::test]
#[ignore = "a measurement for a quiet machine"]
async fn what_a_fence_costs_an_update() {
    let cluster = Cluster::start_on_disk(&["max_connections=60", "shared_buffers=256MB"]);
    let database = prepare(&cluster).await;
    let url = cluster.url(&database);
    let dir = tempfile::tempdir().unwrap();
    let mut ratios = vec![Vec::new(); DESIGNS.len()];
    for round in 0..ROUNDS {
        let mut pace = [0.0; DESIGNS.len()];
        // Another order in every round: what comes first after a checkpoint is not always the same.
        for step in 0..DESIGNS.len() {
            let at = (step * 3 + round) % DESIGNS.len();
            let script = dir.path().join("script.sql");
            let head = "\\set id :client_id * 1000 + random(1, 1000)\n\\set token :token + 1";
            std::fs::write(&script, format!("{head}\n{}\n", DESIGNS[at].1.replace("; ", ";\n"))).unwrap();
            pace[at] = run_pgbench(&url, &script, 1_000_000_000 * (round as u64 + 1));
        }
        for (at, ratio) in ratios.iter_mut().enumerate() {
            ratio.push(pace[at] / pace[0]);
        }
    }
    for (at, (name, _)) in DESIGNS.iter().enumerate() {
        ratios[at].sort_by(f64::total_cmp);
        let values = &ratios[at];
        println!("{name:>22}: {:.2} ({:.2}..{:.2})", values[values.len() / 2], values[0], values[values.len() - 1]);
    }
}
