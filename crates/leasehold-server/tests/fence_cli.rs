//! `leasehold fence` on a real PostgreSQL and on SQLite files: what is printed, and the exit codes.

mod common;

use common::{Answer, Site, text};
use leasehold_harness::postgres::Cluster;
use leasehold_harness::redis::{DURABLE, RedisServer};

const SELL: &str = "UPDATE seats SET owner = 'ada' WHERE seat_id = 14";

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(work)
}

/// A database with 20 seats, its name and its URL.
fn shop(cluster: &Cluster) -> (String, String) {
    let name = block_on(cluster.database());
    let sql = "CREATE TABLE seats (seat_id int PRIMARY KEY, owner text); INSERT INTO seats SELECT n, 'free' FROM generate_series(1, 20) n";
    block_on(cluster.execute(&name, sql));
    let url = cluster.url(&name);
    (name, url)
}

fn install(site: &Site, url: &str) -> Answer {
    let arguments = ["fence", "install", "--url", url, "--table", "seats", "--key", "seat_id", "--resource", "seat/{}"];
    site.ask(&arguments)
}

fn exec(site: &Site, url: &str, token: &str, sql: &str) -> Answer {
    site.ask(&["fence", "exec", "--url", url, "--token", token, "--sql", sql])
}

fn sqlite_shop(site: &Site) -> String {
    let path = site.path("shop.sqlite");
    let connection = rusqlite::Connection::open(&path).expect("a file");
    let sql = "CREATE TABLE seats (seat_id INTEGER PRIMARY KEY, owner TEXT); INSERT INTO seats VALUES (14, 'free'), (15, 'free')";
    connection.execute_batch(sql).expect("SQL runs");
    format!("sqlite:{}", path.display())
}

/// Goal: install, exec, check and remove work, with the exit codes of the contract, on both databases.
fn the_life_of_a_fence(site: &Site, url: &str, table: &str) {
    let dry =
        site.ask(&["fence", "install", "--url", url, "--table", "seats", "--key", "seat_id", "--dry-run"]).with_code(0);
    assert!(dry.out.contains("CREATE TRIGGER") && dry.out.contains("COMMIT;"), "{dry:?}");
    assert_eq!(site.ask(&["fence", "check", "--url", url]).with_code(0).out, "no table is fenced\n");
    let installed = install(site, url).with_code(0);
    assert!(installed.out.starts_with(&format!("{table} is fenced as seat/{{}}")), "{installed:?}");
    assert!(install(site, url).with_code(0).out.contains("nothing to do"));

    exec(site, url, "42:bbbbbbbbbbbbbbbb", SELL).with_code(0);
    let refused = exec(site, url, "41:aaaaaaaaaaaaaaaa", SELL).with_code(7);
    refused.says_one_sentence();
    assert!(refused.err.contains("token 41 is stale: seat/14 has seen token 42"), "{refused:?}");
    exec(site, url, "42:cccccccccccccccc", SELL).with_code(7).says_one_sentence();
    exec(site, url, "42:bbbbbbbbbbbbbbbb\tseat/15", SELL).with_code(7).says_one_sentence();
    exec(site, url, "forty", SELL).with_code(2).says_one_sentence();
    exec(site, url, "42:bbbbbbbbbbbbbbbb", "UPDATE nowhere SET x = 1").with_code(1).says_one_sentence();
    site.ask(&["fence", "exec", "--url", url, "--sql", SELL]).with_code(2).says_one_sentence();
    let read = exec(site, url, "42:bbbbbbbbbbbbbbbb", "SELECT seat_id, owner, NULL FROM seats WHERE seat_id = 14")
        .with_code(0);
    assert_eq!(read.out, "14\tada\t\n");

    let checked = site.ask(&["fence", "check", "--url", url]).with_code(0);
    assert!(checked.out.contains("seat/{}") && checked.out.contains("42"), "{checked:?}");
    let metrics = site.ask(&["fence", "check", "--url", url, "--prometheus"]).with_code(0).out;
    assert!(metrics.contains("# TYPE leasehold_fence_holes gauge") && metrics.contains("} 0\n"), "{metrics}");

    let removed = site.ask(&["fence", "remove", "--url", url, "--table", "seats"]).with_code(0);
    assert!(removed.out.contains("what it remembers stays"), "{removed:?}");
    site.ask(&["fence", "remove", "--url", url, "--table", "seats"]).with_code(2).says_one_sentence();
    install(site, url).with_code(0);
    exec(site, url, "41:aaaaaaaaaaaaaaaa", SELL).with_code(7);
    site.ask(&["fence", "remove", "--url", url, "--table", "seats", "--forget"]).with_code(0);
    install(site, url).with_code(0);
    exec(site, url, "41:aaaaaaaaaaaaaaaa", SELL).with_code(0);
}

#[test]
fn a_fence_on_postgres_from_the_shell() {
    let (cluster, site) = (Cluster::start(&[]), Site::new());
    let (name, url) = shop(&cluster);
    the_life_of_a_fence(&site, &url, "public.seats");
    let metrics = site.ask(&["fence", "check", "--url", &url, "--prometheus"]).with_code(0).out;
    assert!(
        metrics.contains("leasehold_fence_rejected_total{kind=\"postgres\",table=\"public.seats\"} 0"),
        "{metrics}"
    );
    block_on(cluster.execute(&name, "ALTER TABLE seats DISABLE TRIGGER zz_leasehold_fence"));
    let hole = site.ask(&["fence", "check", "--url", &url]).with_code(1);
    assert!(hole.out.contains("hole (trigger_disabled): public.seats"), "{hole:?}");
    site.ask(&["fence", "check", "--url", &url, "--prometheus"]).with_code(1);
}

#[test]
fn a_fence_on_sqlite_from_the_shell() {
    let site = Site::new();
    let url = sqlite_shop(&site);
    the_life_of_a_fence(&site, &url, "seats");
    let observe = ["fence", "install", "--url", &url, "--table", "seats", "--mode", "observe"];
    site.ask(&observe).with_code(2).says_one_sentence();
    site.ask(&["fence", "check", "--url", "sqlite:nowhere.sqlite"]).with_code(4).says_one_sentence();
}

/// Goal: `run` gives its command what a fence wants, by SQL and by a client of libpq; the late one is refused.
#[test]
fn a_command_under_run_writes_to_a_fenced_table() {
    let (cluster, site) = (Cluster::start(&[]), Site::new());
    let (_, url) = shop(&cluster);
    install(&site, &url).with_code(0);
    let program = env!("CARGO_BIN_EXE_leasehold");
    let old = site.acquire(&["seat/14", "--ttl", "1m"]);
    site.ask(&["release", text(&old, "lease_id")]).with_code(0);
    site.ask(&["run", "seat/14", "--", program, "fence", "exec", "--url", &url, "--sql", SELL]).with_code(0);
    let psql = [
        "run",
        "seat/14",
        "--",
        program,
        "fence",
        "exec",
        "--",
        "psql",
        "--quiet",
        "--set=ON_ERROR_STOP=1",
        &url,
        "-c",
        SELL,
    ];
    site.ask(&psql).with_code(0);
    let other = "UPDATE seats SET owner = 'x' WHERE seat_id = 15";
    let uncovered =
        site.ask(&["run", "seat/14", "--", program, "fence", "exec", "--url", &url, "--sql", other]).with_code(7);
    assert!(uncovered.err.contains("no lease shown covers seat/15"), "{uncovered:?}");
    let late = format!("{}:{}", text(&old, "token"), text(&old, "mark"));
    exec(&site, &url, &late, SELL).with_code(7);
    site.ask(&["fence", "exec", "--token", "42", "--", "no-such-command"]).with_code(127).says_one_sentence();
    site.ask(&["fence", "exec", "--token", "42", "--url", &url, "--", "true"]).with_code(2).says_one_sentence();
}

/// Goal: an engine below the fence is found, and raised above it, on every engine that there is.
#[test]
fn an_engine_is_raised_above_the_fence() {
    let (cluster, site, redis) = (Cluster::start(&[]), Site::new(), RedisServer::start(DURABLE));
    let (_, url) = shop(&cluster);
    install(&site, &url).with_code(0);
    let seen = 8_000_000_000_000_000_000_u64;
    exec(&site, &url, &seen.to_string(), SELL).with_code(0);
    let engine_database = cluster.url(&block_on(cluster.database()));
    for engine in [site.url(), redis.url(), engine_database] {
        let below = site.ask(&["fence", "check", "--url", &url, "--engine", &engine]).with_code(1);
        assert!(below.out.contains("engine_below"), "{below:?}");
        let raised = site.ask(&["fence", "floor", "--url", &url, "--engine", &engine]).with_code(0);
        assert!(raised.out.contains("public.seats"), "{raised:?}");
        site.ask(&["fence", "check", "--url", &url, "--engine", &engine]).with_code(0);
        let lease = site.ask(&["acquire", "seat/14", "--json", "--url", &engine]).with_code(0).json();
        assert!(text(&lease, "token").parse::<u64>().expect("a number") > seen, "{lease}");
    }
    let above = (seen + 5_000_000_000).to_string();
    site.ask(&["fence", "floor", "--above", &above, "--engine", &site.url()]).with_code(0);
    assert!(
        site.acquire(&["seat/15"])["token"].as_str().expect("text").parse::<u64>().expect("a number")
            > seen + 5_000_000_000
    );
    site.ask(&["fence", "floor", "--engine", &site.url()]).with_code(2).says_one_sentence();
    site.ask(&["fence", "floor", "--above", "0", "--engine", &site.url()]).with_code(2).says_one_sentence();
    let redlock = redis.url().replace("redis://", "redlock://");
    assert!(site.ask(&["fence", "floor", "--above", "7", "--engine", &redlock]).code != 0);
}

/// Goal: bad usage gets one sentence and exit code 2, an absent server 4, and no password is repeated.
#[test]
fn bad_usage_gets_one_sentence() {
    let site = Site::new();
    let away = "postgres://u:secret@127.0.0.1:1/db";
    site.ask(&["fence", "check"]).with_code(2).says_one_sentence();
    site.ask(&["fence", "check", "--url", "mysql://u:secret@h"]).with_code(2).says_one_sentence();
    let unreachable = site.ask(&["fence", "check", "--url", away]).with_code(4);
    unreachable.says_one_sentence();
    assert!(!unreachable.err.contains("secret"), "{unreachable:?}");
    site.ask(&["fence", "check", "--url", away, "--url", away]).with_code(2).says_one_sentence();
    let (cluster, install) = (Cluster::start(&[]), ["fence", "install", "--table", "nowhere", "--key", "id", "--url"]);
    let (_, url) = shop(&cluster);
    site.ask(&[&install[..], &[&url]].concat()).with_code(2).says_one_sentence();
}
