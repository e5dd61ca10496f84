//! Bad input gets one clear sentence that says what to do, the right exit code, and loses nothing.

mod common;

use common::{Site, binary, text};

/// Goal: every bad argument is one sentence with exit code 2, and the lease that was there stays.
#[test]
fn bad_arguments_are_refused_in_one_sentence() {
    let site = Site::new();
    site.acquire(&["precious", "--ttl", "1h"]);
    let too_long = "n".repeat(513);
    let too_many: Vec<String> = (0..65).map(|n| format!("r{n}")).collect();
    let too_many: Vec<&str> = ["acquire"].into_iter().chain(too_many.iter().map(String::as_str)).collect();
    let table: &[(&[&str], &str)] = &[
        (&["acquire", "x", "--ttl", "0s"], "ttl"),
        (&["acquire", "x", "--ttl", "-5s"], "negative"),
        (&["acquire", "x", "--ttl=-5s"], "negative"),
        (&["acquire", "x", "--ttl", "99999h"], "24h"),
        (&["acquire", "x", "--ttl", "99999999999999999999h"], "--ttl"),
        (&["acquire", "x", "--ttl", "30"], "say the unit, e.g. 30s"),
        (&["acquire", "x", "--ttl", "soon"], "500ms"),
        (&["acquire", "x", "--wait", "2h"], "wait"),
        (&["acquire", "x", "--wait", "-1s"], "negative"),
        (&["acquire", "x", "--delay", "99h"], "delay"),
        (&["acquire", "x", "--max-hold", "0s"], "max_hold"),
        (&["acquire", ""], "name"),
        (&["acquire", &too_long], "512"),
        (&["acquire", "a\nb"], "control"),
        (&["acquire", "x", "x"], "twice"),
        (&too_many, "64"),
        (&["acquire", "x", "--holder", "a\tb"], "control"),
        (&["acquire", "x", "--permits", "0", "--capacity", "3"], "permits"),
        (&["acquire", "x", "--permits", "4", "--capacity", "3"], "capacity"),
        (&["acquire", "x", "--request-id", ""], "request id"),
        (&["renew", ""], "lease_id"),
        (&["renew", "-"], "lease_id"),
        (&["run", "", "--", "true"], "name"),
        (&["run", "x", "--ttl", "0s", "--", "true"], "ttl"),
        (&["run", "x", "--ttl", "5s", "--", "true"], "--grace"),
        (&["run", "x", "--ttl", "99999h", "--", "true"], "24h"),
        (&["run", "x", "--max-hold", "2s", "--", "true"], "--max-hold"),
        (&["ls", "--url", "embedded:a", "--url", "embedded:b"], "--url once"),
        (&["bench", "--for", "0s"], "--for"),
    ];
    for (arguments, part) in table {
        let answer = site.ask(arguments).with_code(2);
        answer.says_one_sentence();
        assert!(answer.err.contains(part), "{arguments:?} should speak of {part:?}: {}", answer.err);
    }
    assert!(site.is_held("precious"));
    assert!(!site.is_held("x"));
}

/// Goal: what clap refuses by itself is exit code 2 too.
#[test]
fn an_unreadable_command_line_is_bad_usage() {
    let site = Site::new();
    let table: &[&[&str]] = &[
        &[],
        &["serve", "--nonsense"],
        &["key"],
        &["key", "create"],
        &["acquire"],
        &["acquire", "x", "--permits", "1"],
        &["acquire", "x", "--shared", "--permits", "1", "--capacity", "2"],
        &["run", "x"],
        &["run", "x", "--"],
        &["inspect"],
        &["bench", "--clients", "0"],
        &["bench", "--held", "5", "--lapse", "5"],
    ];
    for arguments in table {
        let answer = site.ask(arguments).with_code(2);
        assert_eq!(answer.out, "", "{arguments:?}");
    }
}

/// Goal: an engine that is not in this version, or a URL that is none, is bad usage and says what to type.
#[test]
fn engines_of_other_versions_say_what_to_type() {
    let table = [
        ("carrier-pigeon://coop", 2),
        ("leasehold://ada:hunter2@h", 2),
        ("leasehold://", 2),
        ("embedded:", 2),
        ("data", 2),
    ];
    for (url, code) in table {
        for command in [&["acquire", "x"][..], &["ls"], &["run", "x", "--", "true"]] {
            let output = binary().args(["--url", url]).args(command).output().expect("the binary starts");
            let err = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{url} {command:?}: {err}");
            assert!(err.starts_with("leasehold: ") && err.lines().count() == 1, "{err}");
            assert!(err.contains("embedded:./my-leases"), "{err}");
            assert!(!err.contains("hunter2"), "a password is not repeated: {err}");
        }
    }
}

/// Goal: a directory that cannot be made is exit code 4 and says where.
/// Method: a directory below a file: not even root can make it.
#[test]
fn a_directory_that_cannot_be_made_is_unavailable() {
    let site = Site::new();
    std::fs::write(site.path("file"), "").expect("the file is written");
    let url = format!("embedded:{}/data", site.path("file").display());
    let answer = site.ask(&["acquire", "x", "--url", &url]).with_code(4);
    answer.says_one_sentence();
    assert!(answer.err.contains("file/data"), "{answer:?}");
}

/// Goal: damage is exit code 8 and names file and offset; nothing is overwritten.
/// Method: take leases, flip a byte at the beginning of the journal's facts, ask again.
#[test]
fn a_damaged_journal_is_refused_with_file_and_offset() {
    let site = Site::new();
    for seat in 1..=5 {
        site.acquire(&[&format!("seat-{seat}"), "--ttl", "1h"]);
    }
    let entries = std::fs::read_dir(site.path("data")).expect("the directory is there").flatten();
    let mut segments: Vec<_> =
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("journal-")).map(|e| e.path()).collect();
    segments.sort();
    let segment = segments.pop().expect("there is a journal");
    let mut bytes = std::fs::read(&segment).expect("it can be read");
    // Where a name stands is inside a fact; the first one was proven durable long ago.
    let name = b"seat-1";
    let at = bytes.windows(name.len()).position(|window| window == name).expect("names are in the facts");
    bytes[at] ^= 1;
    std::fs::write(&segment, &bytes).expect("it can be written");

    let answer = site.ask(&["ls"]).with_code(8);
    answer.says_one_sentence();
    assert!(answer.err.contains("journal-") && answer.err.contains("offset"), "{answer:?}");
    assert!(std::fs::read(&segment).expect("it can be read") == bytes, "evidence is kept");

    bytes[at] ^= 1;
    std::fs::write(&segment, &bytes).expect("it can be written");
    assert!(site.is_held("seat-1"), "nothing was lost");
}

/// Goal: a directory in use by another process is exit code 4, after a moment of patience.
#[test]
fn a_directory_in_use_is_unavailable() {
    let site = Site::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let engine = runtime.block_on(leasehold::Leasehold::open(&site.url())).expect("it opens");
    let answer = site.ask(&["acquire", "x"]).with_code(4);
    answer.says_one_sentence();
    assert!(answer.err.contains("in use"), "{answer:?}");
    runtime.block_on(engine.close()).expect("it closes");
    let lease = site.acquire(&["x"]);
    assert_ne!(text(&lease, "token"), "");
}
