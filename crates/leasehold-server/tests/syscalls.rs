//! Faults at the n-th system call, by strace, on the real binary: EIO, ENOSPC, and a kill in the middle.
//!
//! `LEASEHOLD_SYSCALLS=1` stops at every call of a first open too (it writes 16 MiB of zeros); CI at every few.

use std::collections::HashSet;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};

const LEASEHOLD: &str = env!("CARGO_BIN_EXE_leasehold");

fn leasehold(dir: &Path, arguments: &[&str]) -> Output {
    let url = format!("embedded:{}", dir.display());
    Command::new(LEASEHOLD).args(["--url", &url]).args(arguments).output().expect("the binary runs")
}

/// The token in a JSON answer: `"token":"42"`.
fn token(json: &str) -> Option<u64> {
    let rest = json.split("\"token\":\"").nth(1)?;
    rest.split('"').next()?.parse().ok()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Acquires under strace with a fault at the n-th call. `None` when there was no n-th call.
fn acquire_with_fault(dir: &Path, name: &str, calls: &str, fault: &str, n: u64) -> Option<Output> {
    let trace = tempfile::NamedTempFile::new().expect("a file for the trace");
    let url = format!("embedded:{}", dir.display());
    let output = Command::new("strace")
        .args(["-f", "-qq", "-o", trace.path().to_str().expect("UTF-8")])
        .args(["-e", &format!("trace={calls}"), "-e", &format!("inject={calls}:{fault}:when={n}")])
        .args([LEASEHOLD, "--url", &url, "acquire", name, "--ttl", "1h", "--json"])
        .output()
        .expect("strace is installed: apt-get install strace");
    let traced = std::fs::read_to_string(trace.path()).expect("the trace");
    (traced.contains("(INJECTED)") || traced.contains("killed by SIGKILL")).then_some(output)
}

struct Tally {
    faults: u64,
    unknown: u64,
    killed: u64,
    tokens: HashSet<u64>,
}

/// Whatever the binary said is so, and the directory goes on working with a higher token.
fn judge(dir: &Path, name: &str, output: &Output, what: &str, tally: &mut Tally) {
    tally.faults += 1;
    let shown = leasehold(dir, &["inspect", name, "--json"]);
    assert!(shown.status.success(), "{what}: inspect afterwards: {}", text(&shown.stderr));
    let found = token(&text(&shown.stdout));
    let complaint = text(&output.stderr);
    match output.status.code() {
        Some(0) => {
            let told = token(&text(&output.stdout));
            assert!(told.is_some() && told == found, "{what}: told {told:?}, found {found:?}");
        }
        Some(4) => assert_eq!(found, None, "{what}: said that nothing was changed: {complaint}"),
        Some(5) => tally.unknown += 1,
        None if output.status.signal() == Some(9) => tally.killed += 1,
        other => panic!("{what}: exit {other:?}: {complaint}"),
    }
    if !output.status.success() && output.status.code().is_some() {
        assert_eq!(complaint.trim().lines().count(), 1, "{what}: one sentence, not: {complaint}");
    }
    let next = leasehold(dir, &["acquire", &format!("{name}-next"), "--json"]);
    assert!(next.status.success(), "{what}: acquire afterwards: {}", text(&next.stderr));
    let next = token(&text(&next.stdout)).expect("a token");
    for token in found.into_iter().chain([next]) {
        assert!(tally.tokens.insert(token), "{what}: token {token} came twice");
    }
    assert!(found.is_none_or(|found| found < next), "{what}: token {next} after {found:?}");
}

const FAULTS: &[(&str, &str)] = &[
    ("pwrite64", "error=EIO"),
    ("pwrite64", "error=ENOSPC"),
    ("pwrite64", "signal=SIGKILL"),
    ("fdatasync", "error=EIO"),
    ("fdatasync", "signal=SIGKILL"),
    ("fsync", "error=EIO"),
    ("fsync", "signal=SIGKILL"),
    ("rename,renameat,renameat2", "error=EIO"),
    ("rename,renameat,renameat2", "signal=SIGKILL"),
];

/// Goal: at whatever call the disk fails or the process dies, the exit code tells the truth and nothing is lost.
/// Method: a directory in use; each fault at the first call, the second, and so on until there is none left.
#[test]
fn a_fault_at_any_call_of_an_acquire_is_told_truly() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    assert!(leasehold(dir.path(), &["acquire", "first"]).status.success());
    let mut tally = Tally { faults: 0, unknown: 0, killed: 0, tokens: HashSet::new() };
    for (calls, fault) in FAULTS {
        for n in 1..10_000 {
            let name = format!("{}-{}-{n}", &calls[..5], &fault[6..9]);
            let what = format!("{fault} at {calls} {n}");
            let Some(output) = acquire_with_fault(dir.path(), &name, calls, fault, n) else { break };
            judge(dir.path(), &name, &output, &what, &mut tally);
        }
    }
    println!("{} faults, {} unknown, {} killed", tally.faults, tally.unknown, tally.killed);
    assert!(tally.faults >= 20 && tally.unknown >= 1 && tally.killed >= 5, "too little happened");
}

/// Goal: the same for the very first open, which makes the directory.
/// Method: a fresh directory for every fault.
#[test]
fn a_fault_at_any_call_of_a_first_open_leaves_a_usable_directory() {
    let step = std::env::var("LEASEHOLD_SYSCALLS").map_or(17, |text| text.parse().expect("a number"));
    let mut faults = 0;
    for (calls, fault) in FAULTS {
        let step = if calls.starts_with("pwrite") { step } else { 1 };
        for n in (1..10_000).step_by(step) {
            let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
            let what = format!("first open, {fault} at {calls} {n}");
            let Some(output) = acquire_with_fault(dir.path(), "first", calls, fault, n) else { break };
            let mut tally = Tally { faults: 0, unknown: 0, killed: 0, tokens: HashSet::new() };
            judge(dir.path(), "first", &output, &what, &mut tally);
            faults += 1;
        }
    }
    println!("{faults} faults");
    assert!(faults >= 20, "too little happened: {faults}");
}
