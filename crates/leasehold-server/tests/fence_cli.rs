//! `leasehold fence` on a real PostgreSQL and on SQLite files: what is printed, and the exit codes.

mod common;

use common::{Answer, Site, text};
use leasehold_harness::etcd::EtcdCluster;
use leasehold_harness::postgres::Cluster;
use leasehold_harness::redis::{DURABLE, RedisServer};
use leasehold_harness::zookeeper::ZookeeperEnsemble;

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
    // Of text that ended its transaction itself a part is done.
    for end in ["COMMIT", "COMMIT; SELECT 1/0 FROM nowhere", "COMMIT; BEGIN; SELECT * FROM nowhere"] {
        let ended = exec(site, url, "42:bbbbbbbbbbbbbbbb", &format!("{SELL}; {end}")).with_code(5);
        ended.says_one_sentence();
        assert!(ended.err.contains("ended its transaction itself"), "{ended:?}");
    }
    exec(site, url, "42:bbbbbbbbbbbbbbbb", &format!("{SELL}; SELECT * FROM nowhere")).with_code(1).says_one_sentence();
    let other =
        format!("ROLLBACK; BEGIN; {}; COMMIT; SELECT * FROM nowhere", "CREATE TABLE IF NOT EXISTS made (x int)");
    exec(site, url, "42:bbbbbbbbbbbbbbbb", &other).with_code(5).says_one_sentence();
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
    let forgotten = site.ask(&["fence", "remove", "--url", url, "--table", "seats", "--forget"]).with_code(0);
    assert!(forgotten.out.contains("its memory is gone"), "{forgotten:?}");
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

/// The labels of a sample, in their order.
type MetricLabels = Vec<(String, String)>;

/// Every sample of a text in the format of Prometheus: name, labels, value.
fn parse_metrics(text: &str) -> Vec<(String, MetricLabels, f64)> {
    let mut declared = std::collections::BTreeMap::new();
    let mut samples = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a name and a kind");
            assert!(["counter", "gauge"].contains(&kind), "{line}");
            assert_eq!(declared.insert(name.to_owned(), kind.to_owned()), None, "declared twice: {line}");
            continue;
        }
        if line.starts_with("# HELP ") {
            continue;
        }
        let (series, value) = line.rsplit_once(' ').expect("a series and a value");
        let (name, labels) = series.split_once('{').expect("labels");
        assert!(declared.contains_key(name), "not declared: {line}");
        let labels = parse_labels(labels.strip_suffix('}').expect("the end of the labels"));
        samples.push((name.to_owned(), labels, value.parse().expect("a number")));
    }
    samples
}

fn parse_labels(text: &str) -> MetricLabels {
    let (mut labels, mut letters) = (Vec::new(), text.chars().peekable());
    while letters.peek().is_some() {
        let name: String = letters.by_ref().take_while(|letter| *letter != '=').collect();
        assert_eq!(letters.next(), Some('"'), "{text}");
        let mut value = String::new();
        loop {
            match letters.next().expect("the end of a value") {
                '"' => break,
                '\\' => value.push(match letters.next().expect("an escaped letter") {
                    'n' => '\n',
                    other => other,
                }),
                letter => value.push(letter),
            }
        }
        labels.push((name, value));
        assert!(matches!(letters.next(), None | Some(',')), "{text}");
    }
    labels
}

/// Goal: what `--prometheus` prints can be scraped, whatever a table is called.
#[test]
fn metrics_can_be_scraped() {
    let (cluster, site) = (Cluster::start(&[]), Site::new());
    let (name, url) = shop(&cluster);
    install(&site, &url).with_code(0);
    let strange = "CREATE TABLE \"we\"\"ird\\ {na=me}, \n\" (id int PRIMARY KEY)";
    block_on(cluster.execute(&name, strange));
    let table = "we\"ird\\ {na=me}, \n";
    site.ask(&["fence", "install", "--url", &url, "--table", table, "--key", "id", "--resource", "x/{}"]).with_code(0);
    exec(&site, &url, "42:bbbbbbbbbbbbbbbb", SELL).with_code(0);
    exec(&site, &url, "41:aaaaaaaaaaaaaaaa", SELL).with_code(7);
    let samples = parse_metrics(&site.ask(&["fence", "check", "--url", &url, "--prometheus"]).with_code(0).out);
    let value = |name: &str, table: &str| {
        let wanted = [("kind".to_owned(), "postgres".to_owned()), ("table".to_owned(), table.to_owned())];
        samples.iter().find(|sample| sample.0 == name && sample.1 == wanted).map(|sample| sample.2)
    };
    assert_eq!(value("leasehold_fence_rejected_total", "public.seats"), Some(1.0), "{samples:?}");
    assert!(value("leasehold_fence_admitted_total", "public.seats").is_some(), "{samples:?}");
    let quoted = format!("public.\"{}\"", table.replace('"', "\"\""));
    assert_eq!(value("leasehold_fence_rejected_total", &quoted), Some(0.0), "{samples:?}");
    assert!(samples.contains(&("leasehold_fence_holes".into(), vec![("kind".into(), "postgres".into())], 0.0)));
    let sqlite = sqlite_shop(&site);
    install(&site, &sqlite).with_code(0);
    let samples = parse_metrics(&site.ask(&["fence", "check", "--url", &sqlite, "--prometheus"]).with_code(0).out);
    assert_eq!(samples, [("leasehold_fence_holes".into(), vec![("kind".into(), "sqlite".into())], 0.0)]);
}

/// Goal: every kind of hole ends `fence check` with exit code 1 and its word, and a second install mends what it can.
#[test]
fn every_hole_has_its_word_and_exit_code_1() {
    let (cluster, site) = (Cluster::start(&[]), Site::new());
    let holes = [
        ("trigger_missing", "DROP TRIGGER zz_leasehold_fence ON seats"),
        ("trigger_disabled", "ALTER TABLE seats DISABLE TRIGGER ALL"),
        ("trigger_disabled", "ALTER TABLE seats DISABLE TRIGGER USER; ALTER TABLE seats ENABLE TRIGGER USER"),
        (
            "trigger_changed",
            "DROP TRIGGER zz_leasehold_new ON seats; CREATE TRIGGER zz_leasehold_new BEFORE INSERT ON seats
             FOR EACH STATEMENT EXECUTE FUNCTION leasehold_fence.no_truncate('')",
        ),
        ("truncate_open", "DROP TRIGGER zz_leasehold_truncate ON seats"),
        ("child_unfenced", "CREATE TABLE boxes (n int) INHERITS (seats)"),
        (
            "later_trigger",
            "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;
             CREATE TRIGGER zzz BEFORE UPDATE ON seats FOR EACH ROW EXECUTE FUNCTION f()",
        ),
        ("key_missing", "ALTER TABLE seats RENAME seat_id TO chair"),
        ("column_missing", "ALTER TABLE seats DROP leasehold_fence CASCADE"),
        ("keys_not_unique", "ALTER TABLE seats DROP CONSTRAINT seats_pkey"),
        ("unfenced", "CREATE TABLE copy (LIKE seats INCLUDING ALL)"),
        (
            "function_changed",
            "CREATE OR REPLACE FUNCTION leasehold_fence.no_truncate() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RETURN NULL; END $$",
        ),
        ("other_version", "UPDATE leasehold_fence.fenced SET version = 0"),
        ("observing", "UPDATE leasehold_fence.fenced SET mode = 'observe'"),
        ("table_gone", "DROP TABLE seats"),
        ("setting_fixed", "ALTER DATABASE @NAME SET leasehold.token = '99'"),
    ];
    for (word, sql) in holes {
        let (name, url) = shop(&cluster);
        install(&site, &url).with_code(0);
        site.ask(&["fence", "check", "--url", &url]).with_code(0);
        block_on(cluster.execute(&name, &sql.replace("@NAME", &name)));
        let found = site.ask(&["fence", "check", "--url", &url]).with_code(1);
        assert!(found.out.contains(&format!("hole ({word}): ")), "{word}: {found:?}");
        site.ask(&["fence", "check", "--url", &url, "--prometheus"]).with_code(1);
    }
}

/// Goal: an install that is interrupted while it waits for a lock leaves the table as it was.
#[test]
fn an_interrupted_install_leaves_nothing() {
    let (cluster, site) = (Cluster::start(&[]), Site::new());
    let (name, url) = shop(&cluster);
    let holder = block_on_forever(&cluster, &name, "BEGIN; UPDATE seats SET owner = 'h' WHERE seat_id = 1");
    let mut installing = std::process::Command::new(env!("CARGO_BIN_EXE_leasehold"))
        .args(["fence", "install", "--url", &url, "--table", "seats", "--key", "seat_id"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("started");
    wait_until(&cluster, "SELECT count(*) > 0 FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND NOT granted");
    leasehold_harness::send_signal(installing.id(), leasehold_harness::Signal::INT);
    assert!(!installing.wait().expect("it ends").success());
    drop(holder);
    assert_eq!(site.ask(&["fence", "check", "--url", &url]).with_code(0).out, "no table is fenced\n");
    install(&site, &url).with_code(0);
}

/// A connection that runs this and is kept until it is dropped.
fn block_on_forever(cluster: &Cluster, name: &str, sql: &str) -> (tokio::runtime::Runtime, impl Sized) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let client = runtime.block_on(async {
        let client = cluster.client(name).await;
        client.batch_execute(sql).await.expect("it runs");
        client
    });
    (runtime, client)
}

/// Waits until a question is answered with yes.
#[allow(clippy::disallowed_methods, reason = "a real server lives in real time")]
fn wait_until(cluster: &Cluster, sql: &str) {
    let yes = block_on(async {
        let client = cluster.client("postgres").await;
        for _ in 0..3000 {
            if client.query_one(sql, &[]).await.expect("an answer").get(0) {
                return true;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        false
    });
    assert!(yes, "{sql}");
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
    let (etcd, ensemble) = (EtcdCluster::start(1), ZookeeperEnsemble::start(1));
    for engine in [etcd.url(), ensemble.url("")] {
        site.ask(&["fence", "check", "--url", &url, "--engine", &engine]).with_code(1);
        let floor = |engine: &str| site.ask(&["fence", "floor", "--url", &url, "--engine", engine]).with_code(0);
        let printed = floor(&engine);
        let option = printed.out.trim();
        assert!(option.starts_with("token_base=") && option.lines().count() == 1, "{printed:?}");
        let raised = format!("{engine}?{option}");
        site.ask(&["fence", "check", "--url", &url, "--engine", &raised]).with_code(0);
        assert!(floor(&raised).out.contains("public.seats"), "nothing is left to do");
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
