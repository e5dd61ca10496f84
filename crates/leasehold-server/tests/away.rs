//! Commands asked of systems that are silent, loading, copies of another, or not there: one sentence in time, and the right code.

mod common;

use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use common::{Site, now, wait_until};
use leasehold_harness::etcd::EtcdCluster;
use leasehold_harness::redis::{DURABLE, RedisServer};
use leasehold_harness::redlock::RedisNodes;
use leasehold_harness::zookeeper::ZookeeperEnsemble;

/// No command without patience of its own takes longer, even on a busy machine.
const IN_TIME: Duration = Duration::from_secs(20);

/// Every command that opens an engine.
const COMMANDS: [&[&str]; 4] =
    [&["doctor", "--url"], &["acquire", "seat", "--url"], &["ls", "--url"], &["run", "job", "--url"]];

/// Asks each command of the system at once, and compares the code.
fn all_say(url: &str, code: i32, word: &str) {
    thread::scope(|scope| {
        for words in COMMANDS {
            scope.spawn(move || {
                let site = Site::new();
                let rest: &[&str] = if words[0] == "run" { &[url, "--", "true"] } else { &[url] };
                let began = now();
                let answer = site.ask(&[words, rest].concat()).with_code(code);
                let took = began.elapsed();
                answer.says_one_sentence();
                assert!(answer.err.contains(word), "{url} {words:?}: {answer:?}");
                assert!(!answer.err.contains("s3cret"), "{answer:?}");
                assert!(took < IN_TIME, "{url} {words:?} took {took:?}");
            });
        }
    });
}

/// Goal: a port that takes connections and never answers.
#[test]
fn a_silent_port_is_given_up() {
    let ports: Vec<TcpListener> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port")).collect();
    let places: Vec<String> = ports.iter().map(|port| port.local_addr().expect("bound").to_string()).collect();
    for url in [
        format!("leasehold://{}", places[0]),
        format!("redis://:s3cret@{}", places[0]),
        format!("redlock://:s3cret@{}", places.join(",")),
        format!("postgres://ada:s3cret@{}/x", places[0]),
        format!("etcd://ada:s3cret@{}", places[0]),
        format!("zk://ada:s3cret@{}/locks", places[0]),
    ] {
        all_say(&url, 4, "");
    }
}

/// Goal: nobody is there at all.
#[test]
fn a_dead_port_is_given_up() {
    let port = || leasehold_harness::free_port();
    for url in [
        format!("leasehold://127.0.0.1:{}", port()),
        format!("redis://127.0.0.1:{}", port()),
        format!("redlock://127.0.0.1:{},127.0.0.1:{},127.0.0.1:{}", port(), port(), port()),
        format!("postgres://ada:s3cret@127.0.0.1:{}/x", port()),
        format!("etcd://ada:s3cret@127.0.0.1:{}", port()),
    ] {
        all_say(&url, 4, "");
    }
    let (one, two) = (port(), port());
    let began = now();
    all_say(&format!("zk://ada:s3cret@127.0.0.1:{one},127.0.0.1:{two}/locks"), 4, &format!("127.0.0.1:{one} refuses"));
    let took = began.elapsed();
    assert!(took < Duration::from_secs(3), "servers that refuse are not waited for: {took:?}");
}

/// Goal: a server whose ensemble has no majority is named.
#[test]
fn an_ensemble_without_a_majority_is_away() {
    let ensemble = ZookeeperEnsemble::start(3);
    (1..3).for_each(|server| ensemble.kill(server));
    all_say(&ensemble.url("/locks"), 4, &format!("{} takes connections and opens no session", ensemble.hosts()[0]));
}

/// Goal: a wrong password is bad usage, and is not repeated.
#[test]
fn a_wrong_password_is_bad_usage() {
    let nodes = RedisNodes::start(3, &["--requirepass right"]);
    all_say(&nodes.url("").replace("redlock://", "redlock://:s3cret@"), 2, "password");
    all_say(&nodes.servers[0].url().replace("redis://", "redis://:s3cret@"), 2, "password");
    let ensemble = ZookeeperEnsemble::start(1);
    let closed = ensemble.url("/closed").replace("zk://", "zk://ada:right@");
    Site::new().ask(&["run", "job", "--url", &closed, "--", "true"]).with_code(0);
    all_say(&closed.replace("right", "s3cret"), 2, "ACL");
    let cluster = EtcdCluster::start(1);
    for words in ["user add root:right", "user grant-role root root", "auth enable"] {
        cluster.etcdctl(&words.split(' ').collect::<Vec<_>>());
    }
    all_say(&cluster.url().replace("etcd://", "etcd://root:s3cret@"), 2, "password");
    all_say(&cluster.url().replace("etcd://", "etcd://s3cret:right@"), 2, "user");
    all_say(&cluster.url(), 2, "login");
}

/// Goal: a replica decides nothing, and says so.
#[test]
fn a_replica_is_refused() {
    let master = RedisServer::start(DURABLE);
    let replica = RedisServer::start_replica(&master);
    all_say(&replica.url(), 4, "replica");
}

/// Goal: a server that reads its data after a restart is away for as long.
/// Method: many keys, each of which takes a moment longer than it must.
#[test]
fn a_loading_server_is_away() {
    let slow: Vec<&str> = DURABLE.iter().copied().chain(["--key-load-delay 30"]).collect();
    let server = RedisServer::start(&slow);
    server.command(&["EVAL", "for i = 1, 150000 do redis.call('SET', 'k' .. i, 'v') end", "0"]);
    server.kill();
    server.spawn_server();
    wait_until("it is loading", || server.command(&["PING"]).contains("LOADING"));
    all_say(&server.url(), 4, "loading");
}
