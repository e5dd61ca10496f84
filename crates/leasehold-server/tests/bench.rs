//! `leasehold bench`: the shape of its figures, and that it leaves nothing behind.

mod common;

use std::path::Path;

use common::figures::{FIGURES, number, positive};
use common::{Site, end_of, signal, wait_until};
use rustix::process::Signal;

/// What the bench left in its directory.
fn leftovers(site: &Site) -> Vec<String> {
    let entries = std::fs::read_dir(site.path(".")).expect("it is there").flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).filter(|name| name != "data").collect()
}

/// Goal: the object of the contract, and the ratios follow from its other figures.
#[test]
fn bench_prints_the_object_of_the_contract() {
    let site = Site::new();
    let answer = site.ask(&["bench", "--for", "1s", "--clients", "4", "--json"]).with_code(0);
    let steady = answer.err.is_empty() || answer.err.contains("the disk changed its pace");
    assert!(steady, "nothing but results in a pipe: {answer:?}");
    let found = answer.json();
    positive(&found, FIGURES);
    positive(&found, &["/ratio_pairs_to_bound", "/ratio_acquire_to_fdatasync"]);
    assert_eq!(found["clients"], 4);
    assert!(common::text(&found, "url").starts_with("embedded:"), "{found}");
    assert!(!common::text(&found, "fs").is_empty());
    let sync = number(&found, "/fdatasync_us/p50");
    let bound = 4.0 / (2.0 * sync / 1e6);
    let ratio = number(&found, "/pairs_per_s") / bound;
    assert!((ratio - number(&found, "/ratio_pairs_to_bound")).abs() < 0.01, "{found}");
    assert!(number(&found, "/pair_us/p50") >= number(&found, "/acquire_us/p50"), "{found}");
    assert_eq!(leftovers(&site), Vec::<String>::new());
}

#[test]
fn bench_prints_a_table_and_a_picture_for_people() {
    let site = Site::new();
    let answer = site.ask(&["bench", "--for", "500ms", "--clients", "2", "--plot", "latency.svg"]).with_code(0);
    assert!(answer.out.contains("PAIRS/S") && answer.out.contains("x one fdatasync"), "{answer:?}");
    let picture = std::fs::read_to_string(site.path("latency.svg")).expect("it was drawn");
    assert!(picture.starts_with("<svg") && picture.matches("<polyline").count() == 2);
    assert_eq!(leftovers(&site), ["latency.svg"]);
}

/// Goal: a directory in use for real work can be measured, and keeps its leases and nothing else.
#[test]
fn a_named_directory_keeps_its_leases() {
    let site = Site::new();
    site.acquire(&["precious", "--ttl", "1h"]);
    let url = site.url();
    let arguments = ["bench", "--url", &url, "--url", &url, "--for", "500ms", "--clients", "2", "--json"];
    let answer = site.ask(&arguments).with_code(0);
    assert_eq!(answer.out.lines().count(), 2, "one object per target: {answer:?}");
    let listed = site.ask(&["ls", "--json"]).with_code(0);
    assert_eq!(listed.out.lines().count(), 1, "{listed:?}");
    assert!(site.is_held("precious"));
    let probes = std::fs::read_dir(site.path("data")).expect("it is there").flatten();
    assert!(probes.into_iter().all(|entry| !entry.file_name().to_string_lossy().contains("probe")));
}

#[test]
fn an_interrupted_bench_cleans_up_and_says_what_it_has() {
    let site = Site::new();
    let bench = site.start(&mut site.command(&["bench", "--for", "10m", "--clients", "2", "--json"]));
    let has_journal = |dir: &Path| std::fs::read_dir(dir.join("data")).is_ok_and(|mut files| files.next().is_some());
    wait_until("it is at work", || leftovers(&site).iter().any(|name| has_journal(&site.path(name))));
    signal(i32::try_from(bench.id()).expect("a pid"), Signal::INT);
    end_of(bench).with_code(130);
    assert_eq!(leftovers(&site), Vec::<String>::new());
}

#[test]
fn a_file_system_in_memory_is_refused() {
    let memory = Path::new("/dev/shm");
    let in_memory = std::fs::read_to_string("/proc/mounts")
        .is_ok_and(|mounts| mounts.lines().any(|line| line.contains(" /dev/shm tmpfs ")));
    if !in_memory {
        return; // Nothing here to refuse.
    }
    let site = Site::new();
    let dir = memory.join(format!("leasehold-test-{}", std::process::id()));
    let answer = site.ask(&["bench", "--url", &format!("embedded:{}", dir.display())]).with_code(2);
    answer.says_one_sentence();
    assert!(answer.err.contains("tmpfs"), "{answer:?}");
    assert!(!dir.exists());
}

#[test]
fn held_leases_are_weighed_and_the_restart_is_timed() {
    let site = Site::new();
    let found = site.ask(&["bench", "--held", "2000", "--json"]).with_code(0).json();
    assert_eq!(found["held"], 2000);
    for path in ["/seconds", "/leases_per_s", "/restart_ms"] {
        assert!(number(&found, path) > 0.0, "{path} in {found}");
    }
    assert!(number(&found, "/resident_bytes_per_lease") >= 0.0, "{found}");
    assert_eq!(leftovers(&site), Vec::<String>::new());
}

#[test]
fn lapses_are_timed_while_others_acquire() {
    let site = Site::new();
    let found = site.ask(&["bench", "--lapse", "2000", "--clients", "8", "--json"]).with_code(0).json();
    assert_eq!(found["lapsed"], 2000);
    assert!(number(&found, "/lapse_ms") >= 0.0, "{found}");
    assert!(number(&found, "/others") > 0.0 && number(&found, "/others_acquire_us/p99") > 0.0, "{found}");
    assert_eq!(leftovers(&site), Vec::<String>::new());
}

/// Goal: options that make no sense together, and URLs that cannot be driven so, are one sentence with exit code 2,
/// and nothing is made.
#[test]
fn wrong_combinations_are_refused_in_one_sentence() {
    let site = Site::new();
    let (server, here) = ("leasehold://127.0.0.1:1", "embedded:there");
    let table: &[(&[&str], &str)] = &[
        (&["--held", "5", "--lapse", "5"], "only one of"),
        (&["--held", "5", "--book", "5000"], "only one of"),
        (&["--url", server, "--handoff", "8", "--idle", "8"], "only one of"),
        (&["--held", "5", "--plot", "x.svg"], "--plot"),
        (&["--url", server, "--handoff", "8", "--plot", "x.svg"], "--plot"),
        (&["--url", server, "--held", "5"], "--held"),
        (&["--url", here, "--url", server, "--lapse", "5"], "--lapse"),
        (&["--url", here, "--book", "5000"], "without --url"),
        (&["--handoff", "8"], "--url leasehold://"),
        (&["--url", here, "--handoff", "8"], "--url leasehold://"),
        (&["--url", server, "--handoff", "1"], "--handoff"),
        (&["--url", server, "--handoff", "8", "--for", "0s"], "--for"),
        (&["--idle", "8", "--pid", "1"], "--url leasehold://"),
        (&["--url", server, "--idle", "8"], "--pid"),
        (&["--url", server, "--pid", "8"], "--idle"),
        (&["--url", server, "--idle", "8", "--pid", "0"], "--pid"),
        (&["--url", server, "--url", server, "--idle", "8", "--pid", "1"], "--url once"),
        (&["--url", server, "--idle", "8", "--pid", "4294967295"], "--pid 4294967295"),
        (&["--dir", "."], "--dir"),
        (&["--url", here, "--dir", "."], "--dir"),
        (&["--url", server, "--idle", "8", "--pid", "1", "--dir", "."], "--dir"),
        (&["--url", "leasehold://"], "host:port"),
        (&["--url", "mysql://a,b,c"], "cannot drive"),
        (&["--url", "bare+redlock://a,b,c"], "cannot drive"),
        (&["--url", "there"], "scheme"),
    ];
    for (arguments, part) in table {
        let answer = site.ask(&[&["bench"], *arguments].concat()).with_code(2);
        answer.says_one_sentence();
        assert!(answer.err.contains(part), "{arguments:?} should speak of {part:?}: {}", answer.err);
    }
    assert_eq!(leftovers(&site), Vec::<String>::new());
}

/// Goal: a build without the peers says how to get one that has them.
#[cfg(not(feature = "peers"))]
#[test]
fn a_build_without_peers_says_how_to_build_one_with() {
    for scheme in ["bare+redis", "bare+etcd", "bare+zk", "bare+postgres"] {
        let answer = Site::new().ask(&["bench", "--url", &format!("{scheme}://ada:s3cret@127.0.0.1:1")]).with_code(2);
        answer.says_one_sentence();
        assert!(answer.err.contains("cargo build --release --package leasehold-server --features peers"), "{answer:?}");
        assert!(!answer.err.contains("s3cret"), "{answer:?}");
    }
}
