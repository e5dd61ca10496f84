//! Recipes over a real server: the store `leasehold://`, asked over HTTP.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stdout)] // real servers live in real time

#[path = "../common/mod.rs"]
mod common;
#[path = "../served/mod.rs"]
mod served;
mod storm;
// The suite of queues, as the library runs it on the other stores.
#[path = "../../../leasehold/tests/recipe_queue/suite.rs"]
mod suite;
#[path = "../../../leasehold/tests/recipe_queue/suite_edges.rs"]
mod suite_edges;
#[path = "../../../leasehold/tests/recipe_queue/suite_keys.rs"]
mod suite_keys;
#[allow(dead_code, reason = "the tests of the library use the rest")]
#[path = "../../../leasehold/tests/recipe_queue/support.rs"]
mod support;

use std::time::{Duration, SystemTime};

use common::Site;
use common::server::Server as SiteServer;
use leasehold::Token;
use leasehold::recipe::cron::{CronBegun, CronRecorded, CronStart, MissedTicks, RunState};
use leasehold::recipe::once::{Answer, Begun, OnceEnd, OnceRequest};
use leasehold::recipe::{RecipeError, RecipeRefusal, Store};
use leasehold_harness::postgres::Cluster;
use served::Server;

/// Goal: a queue behind a server does what a queue does, by the same suite: sleeping and waking, keys, dead letters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suite_of_queues_on_a_server() {
    let server = Server::start();
    let store = Store::open(&server.url()).await.unwrap();
    assert_eq!(store.kind(), "server");
    store.ping().await.unwrap();
    suite::run_suite(&store).await;
    // More slots than one answer of a server has jobs.
    let queue = store.queue("wide").open().await.unwrap();
    for number in 0..150_i64 {
        queue.push(&number).await.unwrap();
    }
    let (report, seen) = support::work_off(&queue, 150, 150).await;
    assert_eq!((report.acked, seen.len()), (150, 150));
}

/// Goal: the same suite, where the server keeps its rows in PostgreSQL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suite_of_queues_on_a_server_with_postgres() {
    let cluster = Cluster::start(&["max_connections=100"]);
    let site = Site::new();
    let server = SiteServer::start(&site, &["--store", &cluster.url("postgres")]);
    let store = Store::open(&format!("leasehold://{}", server.resp)).await.unwrap();
    suite::run_suite(&store).await;
    once_is_answered_once(&store).await;
    runs_are_recorded(&store).await;
    let client = cluster.client("postgres").await;
    let rows = client.query_one("SELECT count(*) FROM leasehold.once", &[]).await.unwrap();
    assert!(rows.get::<_, i64>(0) > 0, "the rows are in the database");
    drop(store);
    server.stop().with_code(0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn once_and_cron_on_a_server() {
    let server = Server::start();
    let store = Store::open(&server.url()).await.unwrap();
    once_is_answered_once(&store).await;
    runs_are_recorded(&store).await;
}

/// Goal: the four outcomes of a begin and the ends of a try come through; answers of any bytes come back as they were.
async fn once_is_answered_once(store: &Store) {
    let request = OnceRequest::new("payments", "order-7", "14 EUR").ttl(Duration::from_secs(60));
    let Begun::First(first) = store.once_begin(&request).await.unwrap() else { panic!("nobody was there before") };
    match store.once_begin(&request).await.unwrap() {
        Begun::InFlight { remaining } => assert!(remaining > Duration::ZERO && remaining <= Duration::from_secs(60)),
        other => panic!("{other:?}"),
    }
    let other = OnceRequest::new("payments", "order-7", "15 EUR");
    assert_eq!(store.once_begin(&other).await.unwrap(), Begun::Mismatch);
    assert!(store.once_end(&first, OnceEnd::Renew { ttl: Duration::from_secs(50) }).await.unwrap());
    assert!(!store.once_is_stored(&first).await.unwrap());
    assert!(store.once_end(&first, OnceEnd::Finish { status: -1, body: &[0, 255, 7] }).await.unwrap());
    assert!(!store.once_end(&first, OnceEnd::Finish { status: 2, body: b"late" }).await.unwrap(), "one answer");
    assert!(store.once_is_stored(&first).await.unwrap());
    let stored = Answer { status: -1, body: vec![0, 255, 7], replayed: true };
    assert_eq!(store.once_begin(&request).await.unwrap(), Begun::Replay(stored));
    for body in [vec![0; 1 << 20], vec![0xff; 1 << 20], "\"é\n".repeat((1 << 20) / 4).into_bytes(), Vec::new()] {
        let key = format!("{}-{:?}", body.len(), body.first());
        let answer = async || {
            let work = async |_: &_| Ok(Answer::new(200, body.clone()));
            store.once("bodies", &key, "x").run(work).await.unwrap()
        };
        let (first, again) = (answer().await, answer().await);
        assert_eq!((first.body == body, again.body == body, again.replayed), (true, true, true), "{key}");
    }
    let failed = store.once("payments", "order-8", "x").run(async |_| Err("no money".into())).await.unwrap_err();
    assert!(matches!(failed, RecipeError::Work(_)));
    let answer = store.once("payments", "order-8", "x").run(async |_| Ok(Answer::new(1, "now"))).await.unwrap();
    assert!(!answer.replayed, "it was abandoned, so it runs");
    let too_long = store.once_begin(&OnceRequest::new("s".repeat(129), "k", "x")).await.unwrap_err();
    assert!(matches!(too_long, RecipeError::Invalid(_)), "{too_long:?}");
}

/// Goal: the ledger of runs comes through.
async fn runs_are_recorded(store: &Store) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let tick = |n: u64| SystemTime::UNIX_EPOCH + Duration::from_secs((now / 86_400 - 1) * 86_400 + n * 60);
    let start = |at, token, seen: Option<u64>, missed| CronStart {
        name: "nightly/report".into(),
        tick: tick(at),
        token: Token::new(token),
        machine: "m1".into(),
        spec: "* * * * * UTC".into(),
        seen: seen.map(tick),
        missed,
    };
    assert_eq!(store.cron_schedule("nightly/report").await.unwrap(), None);
    assert_eq!(
        store.cron_begin(&start(1, 5, None, vec![])).await.unwrap(),
        CronBegun::First { token: 5, recorded: CronRecorded::default() }
    );
    assert_eq!(store.cron_begin(&start(1, 6, None, vec![])).await.unwrap(), CronBegun::Done);
    assert!(!store.cron_finish("nightly/report", tick(1), 6, 0, "").await.unwrap());
    assert!(store.cron_finish("nightly/report", tick(1), 5, 3, "no space").await.unwrap());
    assert_eq!(store.cron_begin(&start(5, 7, Some(0), vec![])).await.unwrap(), CronBegun::Again);
    assert_eq!(store.cron_begin(&start(5, 4, Some(1), vec![])).await.unwrap(), CronBegun::Stale);
    // It ended today, after those ticks.
    let skipped = MissedTicks { from: tick(2), upto: tick(4), count: 3 };
    let begun = store.cron_begin(&start(5, 7, Some(1), vec![skipped])).await.unwrap();
    let recorded = CronRecorded { skipped: 3, ..CronRecorded::default() };
    assert_eq!(begun, CronBegun::First { token: 7, recorded });
    let far = start(200_000, 8, Some(5), vec![]);
    assert_eq!(store.cron_begin(&far).await.unwrap(), CronBegun::Early);
    let runs = store.cron_runs("nightly/report", 10).await.unwrap();
    let states: Vec<_> = runs.iter().map(|run| (run.tick, run.ticks, run.state, run.token)).collect();
    let wanted =
        [(tick(5), 1, RunState::Running, 7), (tick(2), 3, RunState::Skipped, 7), (tick(1), 1, RunState::Failed, 5)];
    assert_eq!(states, wanted);
    assert_eq!((runs[2].code, runs[2].tail.as_deref()), (Some(3), Some("no space")));
    let schedule = store.cron_schedule("nightly/report").await.unwrap().unwrap();
    assert_eq!((schedule.last_tick, schedule.token), (tick(5), 7));
    assert_eq!(store.cron_schedules(10).await.unwrap(), [schedule]);
    // The run of tick 5 has no end, and nobody began what came after it. The counts come through, too.
    let missed = MissedTicks { from: tick(6), upto: tick(6), count: 1 };
    let other = |start: CronStart| CronStart { name: "dead".into(), ..start };
    let first = store.cron_begin(&other(start(5, 7, None, vec![]))).await.unwrap();
    assert_eq!(first, CronBegun::First { token: 7, recorded: CronRecorded::default() });
    let begun = store.cron_begin(&other(start(7, 8, Some(5), vec![missed]))).await.unwrap();
    assert_eq!(begun, CronBegun::First { token: 8, recorded: CronRecorded { skipped: 0, missed: 1, lost: 1 } });
}

/// Goal: what is told about a server that is away, refuses, or does not answer is what the caller should do next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_say_what_to_do() {
    let mut server = Server::start();
    let store = Store::open(&server.url()).await.unwrap();
    let queue = store.queue("mail").open().await.unwrap();
    server.kill();
    let away = queue.push(&1).await.unwrap_err();
    // The connection that was kept is closed, and a new one is refused: nothing was sent.
    assert!(matches!(away, RecipeError::Unavailable { store: "server's", .. }), "{away:?}");
    let gone = Store::open(&server.url()).await.unwrap_err();
    assert!(matches!(gone, RecipeError::Unavailable { .. }), "{gone:?}");
    server.start_again();
    queue.push(&2).await.unwrap();
    assert_eq!(queue.status().await.unwrap().ready, 1);
    // Somebody who takes requests and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = silent.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in silent.incoming() {
            let mut stream = stream.unwrap();
            let mut byte = [0];
            std::io::Read::read_exact(&mut stream, &mut byte).unwrap();
        }
    });
    let store = Store::open(&format!("leasehold://127.0.0.1:1?http={at}")).await.unwrap();
    let unknown = store.once_begin(&OnceRequest::new("s", "k", "x")).await.unwrap_err();
    assert!(matches!(unknown, RecipeError::Indeterminate { .. }), "it was sent: {unknown:?}");
    let read = store.queues().await.unwrap_err();
    assert!(matches!(read, RecipeError::Unavailable { .. }), "a question changes nothing: {read:?}");
    let closed = Store::open(&server.url()).await.unwrap();
    closed.close().await;
    assert!(matches!(closed.queues().await.unwrap_err(), RecipeError::Unavailable { .. }));
}

/// Goal: with `--url leasehold://…` and nothing else, the commands of recipes use the store of the server, with the key of
/// the environment; a wrong key and a wrong prefix are told.
#[test]
fn commands_use_the_store_of_their_server() {
    let site = Site::new();
    let key = |arguments: &[&str]| {
        let made = site.command(arguments).env("LEASEHOLD_DATA", site.path("data")).output().unwrap();
        String::from_utf8(made.stdout).unwrap().lines().last().unwrap_or_default().trim().to_owned()
    };
    let data = site.path("data").display().to_string();
    let whole = key(&["key", "create", "--role", "admin", "--data", &data]);
    let bound = key(&["key", "create", "--role", "lease", "--prefix", "queue/mine", "--data", &data]);
    let server = SiteServer::start(&site, &[]);
    let url = format!("leasehold://{}", server.resp);
    let ask = |key: &str, arguments: &[&str]| {
        let mut all = vec!["--url", url.as_str()];
        all.extend(arguments);
        let output = site.command(&all).env("LEASEHOLD_API_KEY", key).output().unwrap();
        common::Answer::of(&output)
    };
    ask(&whole, &["queue", "push", "mail", "{\"to\":\"ada\"}"]).with_code(0);
    let work =
        ask(&whole, &["queue", "work", "mail", "--drain", "--json", "--", "sh", "-c", "cat >> log"]).with_code(0);
    assert_eq!(work.json()["acked"], 1);
    let once = ["once", "order-7", "--", "sh", "-c", "echo run >> runs; echo done; exit 5"];
    for _ in 0..2 {
        assert_eq!(ask(&whole, &once).with_code(5).out, "done\n");
    }
    assert_eq!(std::fs::read_to_string(site.path("runs")).unwrap(), "run\n");
    ask(&bound, &["queue", "push", "mine", "1"]).with_code(0);
    let outside = ask(&bound, &["queue", "push", "mail", "1"]).with_code(2);
    outside.says_one_sentence();
    assert!(outside.err.contains("outside its prefixes"), "{outside:?}");
    let wrong = ask("nonsense", &["queue", "push", "mail", "1"]);
    assert!(wrong.code == 2 && !wrong.err.contains("nonsense"), "{wrong:?}");
    server.stop().with_code(0);
}

/// Goal: a server without a store says so and what to give; one whose store cannot be opened does not start; a front server
/// uses the store of the server behind it.
#[test]
fn servers_choose_their_store() {
    let site = Site::new();
    let engine = SiteServer::start(&site, &["--ledger", "none"]);
    let front_site = Site::new();
    let url = format!("leasehold://{}", engine.resp);
    let front = SiteServer::start(&front_site, &["--engine", &url, "--ledger", "none"]);
    let (status, _) = front.ask("POST", "/v1/queues/mail/make", None, "{}");
    assert_eq!(status, 200);
    let (status, said) = front.ask("POST", "/v1/queues/mail/push", None, "{\"body\":1}");
    assert_eq!(status, 201, "{said}");
    let (_, seen) = engine.ask("GET", "/v1/queues", None, "");
    assert!(seen.contains("\"name\":\"mail\"") && seen.contains("\"ready\":1"), "{seen}");
    assert!(!front_site.path("data").join("recipes.db").exists(), "a front server has no file of its own");
    assert!(site.path("data").join("recipes.db").exists());
    assert_eq!(front.ask("GET", "/readyz", None, "").0, 200);
    front.stop().with_code(0);
    engine.stop().with_code(0);
    let none = SiteServer::start(&site, &["--store", "none", "--ledger", "none"]);
    let (status, said) = none.ask("POST", "/v1/queues/mail/push", None, "{\"body\":1}");
    assert_eq!(status, 503);
    assert!(said.contains("\"code\":\"unavailable\"") && said.contains("--store"), "{said}");
    assert_eq!(none.ask("GET", "/readyz", None, "").0, 200);
    none.stop().with_code(0);
    for (store, code, sentence) in [
        ("mysql://ada:hunter2@db/x", 2, "a store is"),
        ("sqlite:/no/such/place/recipes.db", 4, "the store sqlite:/no/such/place/recipes.db"),
        ("postgres://ada:hunter2@127.0.0.1:1/x", 4, "the store postgres://"),
    ] {
        let output = common::server::serve(&site, &["--store", store, "--ledger", "none"]).output().unwrap();
        let said = std::fs::read_to_string(site.path("stderr")).unwrap();
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(sentence) && !said.contains("hunter2"), "{said}");
    }
}

/// Goal: there is no form in a transaction: who is refused is told by the database that they opened, not by a server.
#[tokio::test]
async fn a_refusal_of_a_server_is_the_same_as_at_home() {
    let server = Server::start();
    let store = Store::open(&server.url()).await.unwrap();
    let missing = store.queue("none").open_existing().await.unwrap_err();
    assert_eq!(missing.refusal(), Some(&RecipeRefusal::NoQueue { name: "none".into() }));
    let calls = store.queue_calls("none").unwrap();
    let missing = calls.ack(vec![1], 1).await.unwrap_err();
    assert_eq!(missing.refusal(), Some(&RecipeRefusal::NoQueue { name: "none".into() }));
}
