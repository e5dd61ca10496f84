//! The wall clock is never asked: the same story, told on clocks ten years apart, has the same outcomes.

use std::process::Command;

const LEASEHOLD: &str = env!("CARGO_BIN_EXE_leasehold");

/// Runs one command under a wall clock that is off by so much. Says the exit code and the JSON.
fn at(offset: &str, url: &str, arguments: &[&str]) -> (Option<i32>, serde_json::Value) {
    let output = Command::new("faketime")
        .args(["-f", offset, LEASEHOLD, "--url", url])
        .args(arguments)
        .output()
        .expect("faketime is installed: apt-get install faketime");
    let json = serde_json::from_slice(&output.stdout).unwrap_or(serde_json::Value::Null);
    (output.status.code(), json)
}

/// A lease is taken at one wall clock, and looked at, contended and released at another.
fn story(offsets: [&str; 4]) -> Vec<Option<i32>> {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let url = format!("embedded:{}", dir.path().display());
    let (taken, grant) = at(offsets[0], &url, &["acquire", "seat", "--ttl", "10m", "--json"]);
    let lease = grant["lease_id"].as_str().expect("a lease id").to_owned();
    let (refused, _) = at(offsets[1], &url, &["acquire", "seat", "--json"]);
    let (seen, shown) = at(offsets[2], &url, &["inspect", "seat", "--json"]);
    let remaining = shown["holders"][0]["remaining_ms"].as_u64().expect("held");
    assert!((500_000..=600_000).contains(&remaining), "ten minutes less a moment, not {remaining} ms");
    let (renewed, renewal) = at(offsets[3], &url, &["renew", &lease, "--ttl", "5m", "--json"]);
    let remaining = renewal["remaining_ms"].as_u64().expect("renewed");
    assert!((290_000..=300_000).contains(&remaining), "five minutes, not {remaining} ms");
    let (released, _) = at(offsets[0], &url, &["release", &lease]);
    let (again, _) = at(offsets[2], &url, &["acquire", "seat", "--json"]);
    vec![taken, refused, seen, renewed, released, again]
}

#[test]
fn a_stepped_wall_clock_changes_nothing() {
    let plain = story(["+0s", "+0s", "+0s", "+0s"]);
    assert_eq!(plain, [Some(0), Some(3), Some(0), Some(0), Some(0), Some(0)]);
    for offsets in [["+1h", "-1h", "+1h", "-1h"], ["+0s", "+10y", "+10y", "+0s"], ["+0s", "-10y", "+10y", "-10y"]] {
        assert_eq!(story(offsets), plain, "{offsets:?}");
    }
}

/// The test above would pass with a faketime that does nothing: it must move what people are shown.
#[test]
fn the_wall_clock_was_really_moved() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let url = format!("embedded:{}", dir.path().display());
    let year = |offset: &str, name: &str| {
        let (_, grant) = at(offset, &url, &["acquire", name, "--json"]);
        grant["expires_at"].as_str().and_then(|text| text.get(..4)?.parse::<u32>().ok()).expect("a date")
    };
    assert!(year("+10y", "a") >= year("+0s", "b") + 9);
}
