//! The harness itself: real clusters of etcd and ZooKeeper start, lose members and get them back.

use std::process::Command;

use leasehold_harness::etcd::{EtcdCluster, EtcdSettings};
use leasehold_harness::zookeeper::{ZookeeperEnsemble, ZookeeperSettings};

/// Goal: a cluster answers while its leader is killed or stopped, has its data after all members were killed, and leaves
/// nothing behind.
#[test]
fn an_etcd_cluster_loses_members_and_gets_them_back() {
    let cluster = EtcdCluster::start(3);
    let dir = cluster.dir().to_owned();
    assert!(cluster.url().starts_with("etcd://127.0.0.1:"), "{}", cluster.url());
    cluster.etcdctl(&["put", "a", "1"]);
    let first = cluster.leader();
    cluster.kill(first);
    let second = cluster.leader();
    assert_ne!(first, second);
    cluster.etcdctl(&["put", "a", "2"]);
    cluster.restart(first);
    cluster.freeze(second);
    assert_ne!(cluster.leader(), second);
    cluster.thaw(second);
    (0..3).for_each(|number| cluster.kill(number));
    (0..3).for_each(|number| cluster.restart(number));
    let _ = cluster.leader();
    assert_eq!(cluster.etcdctl(&["get", "a", "--print-value-only"]), "2\n");
    drop(cluster);
    assert!(!dir.exists());
}

/// Goal: a member that is cut off is without a leader, and writes nothing; the others go on; it catches up afterwards. Clients
/// reach it all the time.
/// Method: the leader, then a follower, and once a restart meanwhile. What each says of itself, and a write through each.
#[test]
fn an_etcd_member_is_cut_off_and_connected_again() {
    let cluster = EtcdCluster::start_with(EtcdSettings { proxied_peers: true, ..EtcdSettings::new(3) });
    let put = |member: usize, value: &str| {
        let words = ["--endpoints", &cluster.endpoints()[member], "--command-timeout=1s", "put", "a", value];
        let ran = Command::new("etcdctl").env("ETCDCTL_API", "3").args(words).output();
        ran.expect("etcdctl runs").status.success()
    };
    for (round, leads) in [true, false, true].into_iter().enumerate() {
        let leader = cluster.leader();
        let cut = if leads { leader } else { (leader + 1) % 3 };
        assert!((0..3).all(|member| put(member, "before")), "all are connected");
        cluster.cut_off(cut);
        wait_until("it misses its leader", || cluster.misses_leader(cut));
        let others = cluster.leader();
        assert_eq!(others == leader, !leads, "the majority has a leader: {leader}, then {others}");
        if round == 2 {
            cluster.restart(cut);
            wait_until("it is alone after a restart", || cluster.misses_leader(cut));
        }
        assert!(!put(cut, "by the one that is cut off"), "it writes nothing");
        assert!((0..3).filter(|member| *member != cut).all(|member| put(member, "by others")), "the others write");
        cluster.reconnect(cut);
        wait_until("it catches up", || put(cut, "after"));
    }
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..600 {
        if done() {
            return;
        }
        #[expect(clippy::disallowed_methods, reason = "a real cluster lives in real time")]
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("{what}: not within half a minute");
}

#[test]
fn an_etcd_member_takes_further_flags() {
    let settings = EtcdSettings { flags: vec!["--quota-backend-bytes=8388608".to_owned()], ..EtcdSettings::new(1) };
    let cluster = EtcdCluster::start_with(settings);
    assert!((cluster.metric(0, "etcd_server_quota_backend_bytes") - 8_388_608.0).abs() < 1.0);
    assert!(cluster.etcdctl_command(&["put", "a", "1"]).output().expect("etcdctl runs").status.success());
}

/// Goal: an ensemble answers while its leader is killed or stopped, and after all servers were killed.
#[test]
fn a_zookeeper_ensemble_loses_servers_and_gets_them_back() {
    let ensemble = ZookeeperEnsemble::start(3);
    assert!(ensemble.url("/locks").ends_with("/locks"), "{}", ensemble.url("/locks"));
    let first = ensemble.leader();
    ensemble.kill(first);
    let second = ensemble.leader();
    assert_ne!(first, second);
    ensemble.restart(first);
    assert!(ensemble.four_letter_word(first, "mntr").contains("zk_server_state\tfollower"));
    ensemble.freeze(second);
    assert_ne!(ensemble.leader(), second);
    ensemble.thaw(second);
    (0..3).for_each(|number| ensemble.kill(number));
    (0..3).for_each(|number| ensemble.restart(number));
    let _ = ensemble.leader();
}

#[test]
fn a_zookeeper_server_takes_further_settings() {
    let settings = ZookeeperSettings { lines: vec!["maxSessionTimeout=7000".to_owned()], ..ZookeeperSettings::new(1) };
    let ensemble = ZookeeperEnsemble::start_with(settings);
    assert!(ensemble.four_letter_word(0, "conf").contains("maxSessionTimeout=7000"));
    assert_eq!(ensemble.leader(), 0);
}

/// Goal: a machine without the server gets the name of the package, not a skipped test.
#[test]
fn a_missing_server_is_named_with_its_package() {
    if std::env::var_os("LEASEHOLD_TEST_EMPTY_PATH").is_some() {
        let etcd = EtcdCluster::try_start_with(EtcdSettings::new(1)).expect_err("there is none");
        let zookeeper = ZookeeperEnsemble::try_start_with(ZookeeperSettings::new(1)).expect_err("there is none");
        assert!(etcd.to_string().contains("apt-get install etcd-server etcd-client"), "{etcd}");
        assert!(zookeeper.to_string().contains("apt-get install libzookeeper-java"), "{zookeeper}");
        return;
    }
    let again = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "a_missing_server_is_named_with_its_package"])
        .env("LEASEHOLD_TEST_EMPTY_PATH", "1")
        .env("PATH", "/nowhere")
        .status()
        .expect("this test runs");
    assert!(again.success());
}
