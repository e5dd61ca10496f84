//! Every command but `run` and `bench`, on the real binary: what it prints, and how it ends.

mod common;

use common::{Site, text};
use serde_json::{Value, json};

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

/// Goal: `acquire --json` prints what HTTP's 201 prints, with the token as text.
#[test]
fn acquire_prints_the_lease() {
    let site = Site::new();
    let lease = site.acquire(&["seat-14", "seat-15", "--ttl", "10s", "--max-hold", "1m"]);
    let mut expected = ["lease_id", "token", "mark", "resources", "remaining_ms", "expires_at", "renewable_ms"];
    expected.sort_unstable();
    assert_eq!(keys(&lease), expected);
    assert_eq!(lease["resources"], json!(["seat-14", "seat-15"]));
    assert!(text(&lease, "token").parse::<u64>().is_ok(), "{lease}");
    assert_eq!(lease["remaining_ms"], 10_000);
    assert_eq!(lease["renewable_ms"], 60_000);
    let expires_at = text(&lease, "expires_at");
    assert!(expires_at.len() == 24 && expires_at.ends_with('Z') && &expires_at[10..11] == "T", "{expires_at}");
    let without_cap = site.acquire(&["seat-16"]);
    assert!(without_cap.get("renewable_ms").is_none(), "{without_cap}");
}

#[test]
fn acquire_prints_for_people_too() {
    let site = Site::new();
    let answer = site.ask(&["acquire", "seat-14"]).with_code(0);
    let words: Vec<&str> = answer.out.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(words, ["lease_id", "token", "remaining"]);
    assert_eq!(answer.err, "");
}

/// Goal: `--id-only` prints a lease_id that renew and release take, and nothing else.
#[test]
fn acquire_prints_only_the_id_for_scripts() {
    let site = Site::new();
    let answer = site.ask(&["acquire", "seat-14", "--id-only"]).with_code(0);
    assert_eq!(answer.out.lines().count(), 1, "{answer:?}");
    assert_eq!(site.ask_with(&["release", "-"], &answer.out).with_code(0).out, "released\n");
    site.ask(&["acquire", "seat-14", "--id-only", "--json"]).with_code(2);
}

/// Goal: a no is exit code 3 and says who, for how long; after the release the token rises.
#[test]
fn a_held_resource_is_refused_until_it_is_released() {
    let site = Site::new();
    let first = site.acquire(&["seat-14", "--holder", "ada"]);
    let refused = site.ask(&["acquire", "seat-14"]).with_code(3);
    refused.says_one_sentence();
    assert!(refused.err.contains("seat-14 is held by ada"), "{refused:?}");

    let id = text(&first, "lease_id");
    assert_eq!(site.ask_with(&["release", "-"], &format!("  {id}\n")).with_code(0).out, "released\n");
    assert_eq!(site.ask(&["release", id]).with_code(0).out, "had been released before\n");
    let second = site.acquire(&["seat-14"]);
    let token = |lease: &Value| text(lease, "token").parse::<u64>().expect("a number");
    assert!(token(&second) > token(&first), "{first} {second}");
}

#[test]
fn a_lapsed_lease_is_stale_and_an_unknown_one_is_not_held() {
    let site = Site::new();
    let lease = site.acquire(&["seat-14", "--ttl", "50ms"]);
    common::wait_until("it lapses", || !site.is_held("seat-14"));
    for command in ["renew", "release"] {
        let stale = site.ask(&[command, text(&lease, "lease_id")]).with_code(7);
        stale.says_one_sentence();
        let unknown = site.ask(&[command, "ffff-00000000000000000000000000000000"]).with_code(7);
        unknown.says_one_sentence();
        let nonsense = site.ask(&[command, "nonsense"]);
        assert!(matches!(nonsense.code, 2 | 7), "{nonsense:?}");
    }
}

#[test]
fn renew_pushes_the_end_and_prints_no_secret() {
    let site = Site::new();
    let lease = site.acquire(&["seat-14", "--ttl", "20s", "--max-hold", "10m"]);
    let id = text(&lease, "lease_id");
    let renewed = site.ask_with(&["renew", "-", "--ttl", "5m", "--json"], id).with_code(0);
    assert!(!renewed.out.contains(id), "{renewed:?}");
    let renewed = renewed.json();
    assert_eq!(keys(&renewed), ["expires_at", "remaining_ms", "renewable_ms"]);
    assert_eq!(renewed["remaining_ms"], 300_000);
    let again = site.ask(&["renew", id]).with_code(0);
    assert_eq!(again.out, "remaining  5m\n", "the last ttl counts when none is given");
}

/// Goal: the same request id gives the same lease; another claim under it is bad usage.
#[test]
fn a_request_id_makes_a_retry_harmless() {
    let site = Site::new();
    let claim = ["seat-14", "--request-id", "order-7"];
    let (first, retry) = (site.acquire(&claim), site.acquire(&claim));
    assert_eq!(first["lease_id"], retry["lease_id"]);
    assert_eq!(first["token"], retry["token"]);
    let other = site.ask(&["acquire", "seat-15", "--request-id", "order-7"]).with_code(2);
    other.says_one_sentence();
}

#[test]
fn readers_share_and_permits_run_out() {
    let site = Site::new();
    site.acquire(&["catalogue", "--shared"]);
    site.acquire(&["catalogue", "--shared"]);
    site.ask(&["acquire", "catalogue"]).with_code(3);
    let permits = |n: &str| site.ask(&["acquire", "slots", "--permits", n, "--capacity", "3"]);
    permits("2").with_code(0);
    permits("2").with_code(3);
    permits("1").with_code(0);
    let seen = site.ask(&["inspect", "slots", "--json"]).with_code(0).json();
    assert_eq!((&seen["mode"], &seen["permits_used"], &seen["capacity"]), (&json!("permits"), &json!(3), &json!(3)));
    assert_eq!(seen["holders"].as_array().map(Vec::len), Some(2));
}

/// Goal: listings have the shape of the contract, one object per line in order of name, and no secret.
#[test]
fn ls_and_inspect_show_what_everybody_may_see() {
    let site = Site::new();
    let lease = site.acquire(&["seat-2", "--holder", "ada"]);
    site.acquire(&["seat-1", "other"]);
    let listed = site.ask(&["ls", "seat-", "--json"]).with_code(0);
    assert!(!listed.out.contains(text(&lease, "lease_id")), "{listed:?}");
    let rows: Vec<Value> = listed.out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let names: Vec<&str> = rows.iter().map(|row| text(row, "name")).collect();
    assert_eq!(names, ["seat-1", "seat-2"]);

    let seen = &rows[1];
    assert_eq!(keys(seen), ["holders", "holders_total", "mode", "name", "queue_len", "waiters"]);
    assert_eq!(keys(&seen["holders"][0]), ["holder", "remaining_ms", "since_ms", "token"]);
    assert_eq!(seen["holders"][0]["holder"], "ada");
    assert_eq!(seen["holders"][0]["token"], lease["token"]);
    let inspected = site.ask(&["inspect", "seat-2", "--json"]).with_code(0).json();
    assert_eq!(keys(&inspected), keys(seen));
    assert_eq!((&inspected["name"], &inspected["mode"]), (&json!("seat-2"), &json!("exclusive")));

    let table = site.ask(&["ls"]).with_code(0).out;
    assert_eq!(table.lines().count(), 4, "{table}");
    assert!(site.ask(&["inspect", "seat-2"]).with_code(0).out.contains("held by ada"));
}

#[test]
fn a_free_resource_is_an_answer() {
    let site = Site::new();
    let free = site.ask(&["inspect", "nobody", "--json"]).with_code(0).json();
    assert_eq!(
        free,
        json!({"name": "nobody", "mode": null, "holders": [], "holders_total": 0, "waiters": [], "queue_len": 0})
    );
    assert_eq!(site.ask(&["inspect", "nobody"]).with_code(0).out, "nobody is free\n");
    assert_eq!(site.ask(&["ls", "--json"]).with_code(0).out, "");
    assert_eq!(site.ask(&["ls"]).with_code(0).out, "");
}

#[test]
fn an_operator_can_revoke_with_a_reason() {
    let site = Site::new();
    let lease = site.acquire(&["seat-14"]);
    site.ask(&["revoke", "seat-14"]).with_code(2);
    site.ask(&["revoke", "seat-14", "--reason", " "]).with_code(2).says_one_sentence();
    let revoked = site.ask(&["revoke", "seat-14", "--reason", "host is gone"]).with_code(0);
    assert_eq!(revoked.out, "revoked 1 lease on seat-14\n");
    site.ask(&["renew", text(&lease, "lease_id")]).with_code(7);
    site.acquire(&["seat-14"]);
    let nothing = site.ask(&["revoke", "other", "--reason", "x"]).with_code(0);
    assert_eq!(nothing.out, "nothing to revoke: other is free\n");
}

#[test]
fn engines_shows_the_promises_of_this_build() {
    let site = Site::new();
    let rows = site.ask(&["engines", "--json"]).with_code(0).out;
    let rows: Vec<serde_json::Value> = rows.lines().map(|row| serde_json::from_str(row).expect("a row")).collect();
    assert_eq!(
        rows.iter().map(|row| text(row, "engine")).collect::<Vec<_>>(),
        ["embedded", "remote", "redis", "redlock", "postgres", "etcd", "zookeeper"]
    );
    for promise in ["durable", "fencing", "fair", "never_early", "outlives_process"] {
        assert!(rows[..2].iter().all(|row| row[promise] == true), "{promise}");
        assert!(rows[2..5].iter().all(|row| row["never_early"] == false), "they live by a wall clock");
        assert!(rows[5..].iter().all(|row| row[promise] == true), "{promise}");
        assert_eq!(rows[3][promise], promise == "outlives_process", "a majority promises {promise}");
    }
    let table = site.ask(&["engines"]).with_code(0).out;
    assert!(
        table.contains("FENCING") && table.contains("embedded:DIR") && table.contains("leasehold://HOST:PORT"),
        "{table}"
    );
}

#[test]
fn help_shows_how_to_begin_and_every_command_an_example() {
    let site = Site::new();
    assert!(site.ask(&["--help"]).with_code(0).out.contains("Thirty seconds"));
    for command in
        ["acquire", "renew", "release", "run", "ls", "inspect", "revoke", "engines", "doctor", "migrate", "bench"]
    {
        assert!(site.ask(&[command, "--help"]).with_code(0).out.contains("Example:"), "{command}");
    }
}

/// Goal: a lease whose id nobody could read is not left behind.
#[test]
fn a_lease_that_cannot_be_printed_is_released() {
    let site = Site::new();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
    let status = site.command(&["acquire", "seat-14"]).stdout(full).status().expect("the binary starts");
    assert_eq!(status.code(), Some(1));
    assert!(!site.is_held("seat-14"));
}
