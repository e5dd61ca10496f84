//! The binary over engines on real systems: Redis, PostgreSQL, etcd and ZooKeeper. What the command line, doctor, migrate and several
//! servers make of them.

mod common;

use std::time::Duration;

use common::server::Server;
use common::{Site, now, text, wait_until};
use leasehold_harness::etcd::EtcdCluster;
use leasehold_harness::postgres::Cluster;
use leasehold_harness::redis::{DURABLE, RedisServer};
use leasehold_harness::zookeeper::ZookeeperEnsemble;
use rustix::process::Signal;
use serde_json::{Value, json};

fn database(cluster: &Cluster) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    cluster.url(&runtime.block_on(cluster.database()))
}

fn doctor(site: &Site, url: &str, need: &str, code: i32) -> Value {
    site.ask(&["doctor", "--json", "--need", need, "--url", url]).with_code(code).json()
}

/// The settings that deny a promise.
fn denying<'r>(report: &'r Value, promise: &str) -> Vec<&'r str> {
    let findings = report["findings"].as_array().expect("a list").iter();
    let denies = |f: &&Value| f["promises"].as_array().expect("a list").contains(&promise.into());
    findings.filter(denies).map(|finding| text(finding, "setting")).collect()
}

/// Goal: every command on leases works on an engine by its URL, as on a server.
/// Method: take, be refused, renew, list, look, relabel by run, wait in another process, release, revoke.
/// An engine that keeps no memory of endings for other processes says that it knows no such lease.
fn commands_work(url: &str, has_tokens: bool, remembers: bool) {
    let site = Site::new();
    let ask = |arguments: &[&str]| site.ask(&[arguments, &["--url", url]].concat());
    let lease = ask(&["acquire", "seat-14", "--ttl", "1m", "--holder", "ada", "--json"]).with_code(0).json();
    assert_eq!(lease["token"].is_string(), has_tokens, "{lease}");
    assert_eq!(text(&lease, "mark").len(), 16);
    let id = text(&lease, "lease_id");
    let refused = ask(&["acquire", "seat-14"]).with_code(3);
    assert!(refused.err.contains("held by ada"), "{refused:?}");
    ask(&["renew", id, "--ttl", "2m"]).with_code(0);
    let listed = ask(&["ls", "--json"]).with_code(0).json();
    assert_eq!((text(&listed, "name"), &listed["holders"][0]["holder"]), ("seat-14", &json!("ada")));
    assert!(ask(&["inspect", "seat-14"]).with_code(0).out.contains("held by ada"));
    ask(&["run", "job", "--", "sh", "-c", "test -n \"$LEASEHOLD_MARK\""]).with_code(0);
    ask(&["release", id]).with_code(0);
    ask(&["release", id]).with_code(if remembers { 0 } else { 7 });
    ask(&["renew", id]).with_code(7);
    ask(&["acquire", "seat-14", "--ttl", "1m"]).with_code(0);
    ask(&["revoke", "seat-14", "--reason", "a drill"]).with_code(0);
    ask(&["acquire", "seat-14", "--ttl", "1s"]).with_code(0);
    ask(&["acquire", "seat-14", "--wait", "20s"]).with_code(0);
}

#[test]
fn commands_work_on_redis() {
    let weak = RedisServer::start(&[]);
    commands_work(&weak.url(), false, true);
    let durable = RedisServer::start(DURABLE);
    commands_work(&durable.url(), true, true);
}

#[test]
fn commands_work_on_postgres() {
    let cluster = Cluster::start(&[]);
    commands_work(&database(&cluster), true, true);
}

#[test]
fn commands_work_on_etcd() {
    commands_work(&EtcdCluster::start(1).url(), true, true);
}

#[test]
fn commands_work_on_zookeeper() {
    let ensemble = ZookeeperEnsemble::start(1);
    commands_work(&format!("{}?lease=minded", ensemble.url("/locks")), true, false);
}

/// Goal: a command that ends at once is refused a lease that would end with it; one that stays is not.
#[test]
fn a_lease_of_a_session_is_for_a_command_that_stays() {
    let ensemble = ZookeeperEnsemble::start(1);
    let (site, url) = (Site::new(), ensemble.url("/locks"));
    let refused = site.ask(&["acquire", "job", "--url", &url]).with_code(2);
    refused.says_one_sentence();
    assert!(refused.err.contains("leasehold run"), "{refused:?}");
    site.ask(&[
        "run",
        "job",
        "--ttl",
        "10s",
        "--grace",
        "1s",
        "--url",
        &url,
        "--",
        "sh",
        "-c",
        "test -n \"$LEASEHOLD_TOKEN\"",
    ])
    .with_code(0);
    site.ask(&["inspect", "job", "--url", &url]).with_code(0);
    assert_eq!(doctor(&site, &url, "outlives_process", 1)["missing"], json!(["outlives_process"]));
    doctor(&site, &url, "durable,fencing,fair,never_early", 0);
    doctor(&site, &format!("{url}?lease=minded"), "durable,fencing,fair,never_early,outlives_process", 0);
}

/// Goal: where tokens are those of the system itself, the floor is a number in every URL, and the command says which.
#[test]
fn the_floor_of_a_consensus_engine_is_an_option() {
    let (cluster, ensemble, site) = (EtcdCluster::start(1), ZookeeperEnsemble::start(1), Site::new());
    doctor(&site, &cluster.url(), "durable,fencing,fair,never_early,outlives_process", 0);
    for url in [cluster.url(), ensemble.url("/locks")] {
        let told = site.ask(&["fence", "floor", "--engine", &url, "--above", "4000000000000"]).with_code(0);
        assert_eq!(told.err.lines().count(), 1, "{told:?}");
        let base = told.out.trim().strip_prefix("token_base=").expect("the option, for a script");
        assert!(base.parse::<u64>().is_ok_and(|base| base > 0), "{told:?}");
        let above = format!("{url}?token_base={base}");
        let run = [
            "run",
            "job",
            "--ttl",
            "10s",
            "--grace",
            "1s",
            "--url",
            &above,
            "--",
            "sh",
            "-c",
            "test $LEASEHOLD_TOKEN -gt 4000000000000",
        ];
        site.ask(&run).with_code(0);
    }
}

/// Goal: doctor names the setting behind each *no*, and the code says whether the need is met.
#[test]
fn doctor_tells_a_weak_redis_from_a_durable_one() {
    let site = Site::new();
    let durable = RedisServer::start(DURABLE);
    let report = doctor(&site, &durable.url(), "durable,fencing,fair,outlives_process", 0);
    assert_eq!(denying(&report, "never_early"), ["clock"], "{report}");
    let report = doctor(&site, &durable.url(), "never_early", 1);
    assert_eq!(report["missing"], json!(["never_early"]));
    durable.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let report = doctor(&site, &durable.url(), "fencing", 1);
    assert_eq!(denying(&report, "fencing"), ["maxmemory-policy"], "{report}");
    let weak = RedisServer::start(&[]);
    let report = doctor(&site, &weak.url(), "durable", 1);
    assert!(denying(&report, "durable").contains(&"appendonly"), "{report}");
}

#[test]
fn doctor_tells_a_weak_postgres_from_a_durable_one() {
    let site = Site::new();
    let cluster = Cluster::start(&[]);
    let report = doctor(&site, &database(&cluster), "durable,fencing,fair,outlives_process", 0);
    assert_eq!(denying(&report, "never_early"), ["clock"], "{report}");
    assert!(report["identity"].is_string(), "{report}");
    let weak = Cluster::start(&["fsync=off"]);
    let report = doctor(&site, &database(&weak), "fencing", 1);
    assert_eq!(denying(&report, "fencing"), ["fsync"], "{report}");
}

/// Goal: a system that is away, or lets nobody in, is one sentence and the right code.
#[test]
fn dead_and_locked_systems_say_so() {
    let site = Site::new();
    let locked = RedisServer::start(&[]);
    locked.command(&["CONFIG", "SET", "requirepass", "s3cret"]);
    let cluster = Cluster::start(&[]);
    let no_database = cluster.url("nobody_made_this");
    let port = leasehold_harness::free_port();
    for (url, code) in [
        (format!("etcd://ada:s3cret@127.0.0.1:{port}"), 4),
        (format!("zk://127.0.0.1:{port}/locks"), 4),
        (format!("etcd://127.0.0.1:{port}?pace=fast"), 2),
        (format!("zk://127.0.0.1:{port}/locks?pace=fast"), 2),
        (format!("redis://127.0.0.1:{port}"), 4),
        (format!("postgres://ada:s3cret@127.0.0.1:{port}/x"), 4),
        (locked.url(), 2),
        (locked.url().replace("redis://", "redis://:hunter2@"), 2),
        ("redis://127.0.0.1:1?preset=nobody".to_owned(), 2),
        ("postgres://127.0.0.1:1/x?pace=fast".to_owned(), 2),
        ("postgres://".to_owned(), 2),
        (no_database, 2),
    ] {
        let answer = site.ask(&["acquire", "seat-14", "--url", &url]).with_code(code);
        answer.says_one_sentence();
        assert!(!answer.err.contains("s3cret") && !answer.err.contains("hunter2"), "{answer:?}");
    }
}

/// Goal: several servers on one engine are one service: what one grants another renews and releases, and a lease
/// outlives the server through which it was taken.
fn servers_share(engine: &str) {
    let sites = [Site::new(), Site::new()];
    let servers = sites.each_ref().map(|site| Server::start(site, &["--engine", engine, "--ledger", "none"]));
    let ask = |at: usize, path: &str, body: &Value| servers[at].ask("POST", path, None, &body.to_string());
    let claim = json!({"resources": ["seat"], "ttl_ms": 60_000, "holder": "ada"});
    let (status, answer) = ask(0, "/v1/leases", &claim);
    assert_eq!(status, 201, "{answer}");
    let grant: Value = serde_json::from_str(answer.split_once("\r\n\r\n").expect("a body").1).expect("JSON");
    let lease = json!({"lease_id": grant["lease_id"]});
    assert_eq!(ask(1, "/v1/leases", &claim).0, 409);
    assert_eq!(ask(1, "/v1/leases/renew", &lease).0, 200);
    servers[0].signal(Signal::KILL);
    assert_eq!(ask(1, "/v1/leases", &claim).0, 409, "it lives for its ttl");
    let relabel = json!({"lease_id": grant["lease_id"], "holder": "ada at 10.0.0.7"});
    assert_eq!(ask(1, "/v1/leases/relabel", &relabel).0, 204);
    assert_eq!(servers[1].ask("GET", "/readyz", None, "").0, 200);
    assert_eq!(ask(1, "/v1/leases/release", &lease).0, 204);
    assert_eq!(ask(1, "/v1/leases", &claim).0, 201);
}

#[test]
fn servers_share_a_redis() {
    servers_share(&RedisServer::start(&[]).url());
}

#[test]
fn servers_share_a_database() {
    let cluster = Cluster::start(&[]);
    servers_share(&database(&cluster));
}

#[test]
fn servers_share_an_etcd() {
    servers_share(&EtcdCluster::start(1).url());
}

/// A server minds its leases without being told.
#[test]
fn servers_share_a_zookeeper() {
    servers_share(&ZookeeperEnsemble::start(1).url("/locks"));
}

/// What a server says that refuses to start, with exit code 2.
#[track_caller]
fn refused_start(arguments: &[&str]) -> String {
    let site = Site::new();
    let mut child = common::server::serve(&site, arguments).spawn().expect("the binary starts");
    let mut code = None;
    wait_until("the server ends", || {
        code = child.try_wait().expect("it is ours");
        code.is_some()
    });
    let said = std::fs::read_to_string(site.path("stderr")).expect("stderr");
    assert_eq!(code.and_then(|code| code.code()), Some(2), "{said}");
    said
}

/// Goal: seats are sold only where tokens are promised; otherwise the server names the setting at the start. A server
/// for locks alone starts.
#[test]
fn the_box_office_needs_tokens() {
    let weak = RedisServer::start(&[]);
    let site = Site::new();
    let ledger = format!("sqlite:{}", site.path("ledger.db").display());
    let said = refused_start(&["--engine", &weak.url(), "--ledger", &ledger]);
    assert!(said.contains("fencing") && said.contains("appendonly is no"), "{said}");
    let server = Server::start(&site, &["--engine", &weak.url()]);
    server.wait_for("there is no box office on this server");
}

/// Goal: a hold is sold over each engine that promises tokens, and the books are right.
fn seats_are_sold(engine: &str) {
    let site = Site::new();
    let ledger = format!("sqlite:{}", site.path("ledger.db").display());
    let server = Server::start(&site, &["--engine", engine, "--ledger", &ledger]);
    let body = |(status, answer): (u16, String), wanted: u16| -> Value {
        assert_eq!(status, wanted, "{answer}");
        serde_json::from_str(answer.split_once("\r\n\r\n").expect("a body").1).unwrap_or(Value::Null)
    };
    let seat = json!({"id": "A-1", "section": "S", "row": "A", "number": 1, "price": 0});
    let hall = json!({"name": "Gala", "on_sale": true, "seats": [seat]}).to_string();
    let event = body(server.ask("POST", "/v1/events", None, &hall), 201);
    let holds = format!("/v1/events/{}/holds", text(&event, "event_id"));
    let wanted = json!({"seats": ["A-1"], "buyer": "ada"}).to_string();
    let hold = body(server.ask("POST", &holds, None, &wanted), 201);
    assert!(hold["hold_id"].is_string(), "{hold}");
    assert_eq!(server.ask("POST", &holds, None, &wanted.replace("ada", "bob")).0, 409);
    let laws = format!("/v1/events/{}/invariants", text(&event, "event_id"));
    assert_eq!(body(server.ask("GET", &laws, None, ""), 200)["ok"], true);
}

#[test]
fn seats_are_sold_over_redis() {
    seats_are_sold(&RedisServer::start(DURABLE).url());
}

#[test]
fn seats_are_sold_over_postgres() {
    let cluster = Cluster::start(&[]);
    seats_are_sold(&database(&cluster));
}

#[test]
fn seats_are_sold_over_etcd() {
    seats_are_sold(&EtcdCluster::start(1).url());
}

#[test]
fn seats_are_sold_over_zookeeper() {
    seats_are_sold(&ZookeeperEnsemble::start(1).url("/locks"));
}

/// Goal: a lease outlives its server for its ttl, and no longer than another server needs to find out.
/// Method: kill the server that granted; the other one is asked until it grants.
fn a_lease_lives_for_its_ttl(engine: &str) {
    let sites = [Site::new(), Site::new()];
    let servers = sites.each_ref().map(|site| Server::start(site, &["--engine", engine, "--ledger", "none"]));
    let claim = json!({"resources": ["seat"], "ttl_ms": 4_000, "holder": "ada"}).to_string();
    let granted = common::now();
    assert_eq!(servers[0].ask("POST", "/v1/leases", None, &claim).0, 201);
    servers[0].signal(Signal::KILL);
    wait_until("the lease lapses", || servers[1].ask("POST", "/v1/leases", None, &claim).0 == 201);
    let lived = common::now() - granted;
    assert!(lived >= std::time::Duration::from_millis(3_990), "it lapsed early, after {lived:?}");
    // The janitor of ZooKeeper first has to see that the server is gone, and then counts a whole ttl.
    assert!(lived < std::time::Duration::from_secs(25), "it lapsed after {lived:?}");
}

#[test]
fn a_lease_on_etcd_lives_for_its_ttl_without_its_server() {
    a_lease_lives_for_its_ttl(&EtcdCluster::start(1).url());
}

#[test]
fn a_lease_on_zookeeper_lives_for_its_ttl_without_its_server() {
    a_lease_lives_for_its_ttl(&ZookeeperEnsemble::start(1).url("/locks"));
}

/// Goal: a database whose owner runs the printed SQL serves a role that may create nothing.
#[tokio::test]
async fn a_printed_migration_serves_a_role_without_rights() {
    let cluster = Cluster::start(&[]);
    let name = cluster.database().await;
    let site = Site::new();
    cluster.execute(&name, "CREATE ROLE app LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC").await;
    cluster.execute("postgres", &format!("REVOKE CREATE ON DATABASE {name} FROM PUBLIC")).await;
    let as_app = cluster.url(&name).replace("postgres@", "app@");
    let answer = site.ask(&["acquire", "seat", "--url", &as_app]).with_code(2);
    assert!(answer.err.contains("leasehold migrate"), "{answer:?}");
    let printed = site.ask(&["migrate", "--print", "--role", "app", "--engine", &as_app]).with_code(0);
    cluster.execute(&name, &printed.out).await;
    site.ask(&["acquire", "seat", "--url", &as_app]).with_code(0);
    site.ask(&["migrate", "--engine", &cluster.url(&name)]).with_code(0);
    let ledger = site.ask(&["migrate", "--print", "--ledger", &as_app]).with_code(0);
    cluster.execute(&name, &ledger.out).await;
    site.ask(&["migrate", "--ledger", &cluster.url(&name)]).with_code(0);
    for wrong in [&["migrate"][..], &["migrate", "--engine", "redis://h"], &["migrate", "--ledger", "none"]] {
        site.ask(wrong).with_code(2).says_one_sentence();
    }
}

/// Goal: when every process of ours is dead, another client of etcd that waits for a lease gets it: never early, and not much
/// later than the engine says.
/// Method: a server is killed, with a lease that was taken through it; etcdctl waits for that lease and for one of a command
/// that ended long before.
#[test]
fn a_waiting_etcdctl_outlives_every_process_of_ours() {
    const TTL: Duration = Duration::from_secs(4);
    // Its key lives eight seconds longer than the lease; a second for rounding, one for its bucket, and a busy machine.
    const AT_MOST: Duration = Duration::from_secs(20);
    let cluster = EtcdCluster::start(1);
    let site = Site::new();
    let server = Server::start(&site, &["--engine", &cluster.url(), "--ledger", "none"]);
    let began = now();
    for (name, url) in [("seat", format!("leasehold://{}", server.resp)), ("row", cluster.url())] {
        site.acquire(&[name, "--ttl", "4s", "--url", &url]);
    }
    let mut waiting = ["seat", "row"].map(|name| {
        let etcdctl = cluster.etcdctl_command(&["lock", name, "true"]).spawn().expect("etcdctl starts");
        (etcdctl, None)
    });
    server.signal(Signal::KILL);
    wait_until("etcdctl has both", || {
        for (etcdctl, took) in &mut waiting {
            if let (None, Some(status)) = (&took, etcdctl.try_wait().expect("it is ours")) {
                assert!(status.success(), "{status:?}");
                *took = Some(began.elapsed());
            }
        }
        waiting.iter().all(|(_, took)| took.is_some())
    });
    for (_, took) in waiting {
        let took = took.expect("it has ended");
        assert!(took >= TTL && took < AT_MOST, "{took:?}");
    }
}
