//! What `once` costs beside the statements that people write by hand, on this machine, now. Run by hand:
//! `cargo test --release -p leasehold --features postgres,sqlite --test once_figures -- --ignored --nocapture`.
//!
//! pgbench, 8 clients: a key that is new, one UPDATE as the work, the answer, COMMIT, all in one transaction. The designs
//! take turns within a round, and a round compares only with itself. *Bare again* is a placebo: what it differs from 1 by is
//! the noise. The figures are medians over all rounds, and the quartiles.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stdout)] // a real server lives in real time

use std::path::{Path, PathBuf};
use std::process::Command;

use leasehold::recipe::Store;
use leasehold_harness::postgres::Cluster;

/// Transactions of a client in a slice: about half a second, so that what else the machine does meets all designs.
const TRANSACTIONS: &str = "150";
const ROUNDS: usize = 31;
/// The figure that is promised: `once` takes at most so much of the time of the bare flow.
const MOST: f64 = 1.3;

const BARE: &str = "BEGIN;
INSERT INTO keys (scope, key, asked) VALUES ('s', :key, '\\x01') ON CONFLICT DO NOTHING RETURNING key;
UPDATE stock SET sold = sold + 1 WHERE id = :id;
UPDATE keys SET status = 201, answer = '\\x736f6c64' WHERE scope = 's' AND key = :key;
COMMIT;";
const ONCE: &str = "BEGIN;
SELECT outcome, token FROM leasehold.once_begin('s', :key, '\\x01') \\gset
UPDATE stock SET sold = sold + 1 WHERE id = :id;
SELECT leasehold.once_end('finish', 's', :key, :token, 201, '\\x736f6c64');
COMMIT;";
const DESIGNS: [(&str, &str); 3] = [("bare", BARE), ("bare again", BARE), ("once", ONCE)];

/// Transactions per second.
fn run_pgbench(url: &str, script: &Path) -> f64 {
    let versions = std::fs::read_dir("/usr/lib/postgresql").unwrap().flatten();
    let program: PathBuf =
        versions.map(|version| version.path().join("bin/pgbench")).find(|path| path.exists()).unwrap();
    let output = Command::new(program)
        .args([
            "--no-vacuum",
            "--client=8",
            "--jobs=2",
            "--protocol=prepared",
            "--transactions",
            TRANSACTIONS,
            "--file",
        ])
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
async fn what_once_costs_beside_the_bare_flow() {
    let cluster = Cluster::start_on_disk(&["max_connections=60", "shared_buffers=256MB"]);
    let database = cluster.database().await;
    let url = cluster.url(&database);
    Store::open(&url).await.unwrap().close().await;
    let tables = "CREATE TABLE keys (scope text COLLATE \"C\", key text COLLATE \"C\", asked bytea NOT NULL,
            made_at timestamptz NOT NULL DEFAULT now(), status int, answer bytea, PRIMARY KEY (scope, key))
            WITH (fillfactor = 70);
        CREATE INDEX keys_age ON keys (made_at);
        CREATE TABLE stock (id int PRIMARY KEY, sold int NOT NULL DEFAULT 0) WITH (fillfactor = 50);
        INSERT INTO stock SELECT n FROM generate_series(1, 16000) n; ANALYZE stock";
    cluster.execute(&database, tables).await;
    let dir = tempfile::tempdir().unwrap();
    let mut times = vec![Vec::new(); DESIGNS.len()];
    for round in 0..ROUNDS {
        let mut pace = [0.0; DESIGNS.len()];
        // Another order in every round: what comes first after a checkpoint is not always the same.
        for step in 0..DESIGNS.len() {
            let at = (step + round) % DESIGNS.len();
            let script = dir.path().join("script.sql");
            let head = format!(
                "\\set id random(1, 16000)\n\\set n random(1, 9000000000000000)\n\\set key {round} * 10 + {at} + 100 * :n"
            );
            std::fs::write(&script, format!("{head}\n{}\n", DESIGNS[at].1)).unwrap();
            pace[at] = run_pgbench(&url, &script);
        }
        for (at, time) in times.iter_mut().enumerate() {
            // Both slices of the bare flow: half of the noise.
            time.push((pace[0] + pace[1]) / 2.0 / pace[at]);
        }
    }
    for (at, (name, _)) in DESIGNS.iter().enumerate() {
        times[at].sort_by(f64::total_cmp);
        let values = &times[at];
        println!("{name:>12}: {:.2} ({:.2}..{:.2})", values[ROUNDS / 2], values[ROUNDS / 4], values[ROUNDS * 3 / 4]);
    }
    let median = times[2][ROUNDS / 2];
    assert!(median <= MOST, "once takes {median:.2} of the time of the bare flow");
}
