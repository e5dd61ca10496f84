//! The ZooKeeper engine: what it refuses, and how it says so; what it finds; and who else is in a directory.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)] // real servers live in real time

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::engine::zookeeper::{ZookeeperEngine, ZookeeperEngineOptions};
use leasehold::engine::{Claim, Engine, FindingKind, Promise, Token, Want};
use leasehold::{Error, Refusal};
use leasehold_harness::proxy::Proxy;
use leasehold_harness::zookeeper::ZookeeperEnsemble;
use zookeeper_client::{Acls, Client, CreateMode};

fn claim(name: &str) -> Claim {
    Claim::new(vec![Want::exclusive(name)], Duration::from_secs(10), "ada")
}

async fn open(url: &str) -> Result<Arc<ZookeeperEngine>, Error> {
    ZookeeperEngine::open(ZookeeperEngineOptions::from_url(url)?).await
}

fn sentence(error: &Error) -> String {
    let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    format!("{error}: {cause}")
}

/// Goal: an ensemble that is not there is Unavailable, at once where all servers refuse, in one sentence that names them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ensemble_that_is_dead_is_unavailable() {
    let began = Instant::now();
    let error = open("zk://127.0.0.1:1,127.0.0.1:2/locks").await.expect_err("nobody is there");
    let took = began.elapsed();
    assert!(matches!(error, Error::Unavailable { engine: "zookeeper", .. }), "{error:?}");
    let said = sentence(&error);
    let reason =
        "no server of the ensemble answers: 127.0.0.1:1 refuses the connection, 127.0.0.1:2 refuses the connection";
    assert!(said.ends_with(reason), "{said}");
    assert!(took < Duration::from_millis(1500), "{took:?}");
    // One that takes connections and says nothing.
    let ensemble = ZookeeperEnsemble::start(1);
    let proxy = Proxy::start(ensemble.client_ports()[0]);
    proxy.black_hole(true);
    let began = Instant::now();
    let url = format!("zk://127.0.0.1:{}/locks", proxy.port());
    let error = open(&url).await.expect_err("it is silent");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(
        sentence(&error).contains(&format!("127.0.0.1:{} takes connections", proxy.port())),
        "{}",
        sentence(&error)
    );
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    // One that is slow, beside one that is down, is waited for.
    let both = url.replace("zk://", "zk://127.0.0.1:1,");
    let opening = tokio::spawn(async move { open(&both).await.map(drop) });
    tokio::time::sleep(Duration::from_secs(1)).await;
    proxy.black_hole(false);
    opening.await.unwrap().expect("it is only slow");
}

/// Goal: a server without a majority is Unavailable in time, and is named; with a majority again it is used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ensemble_without_a_majority_is_unavailable() {
    let ensemble = ZookeeperEnsemble::start(3);
    let url = ensemble.url("locks");
    let engine = open(&url).await.expect("it opens");
    for server in [1, 2] {
        ensemble.kill(server);
    }
    let began = Instant::now();
    let error = open(&url).await.expect_err("there is no majority");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let (said, hosts) = (sentence(&error), ensemble.hosts());
    assert!(said.contains(&format!("{} takes connections", hosts[0])) && said.contains("majority"), "{said}");
    assert!(said.contains(&format!("{} refuses the connection", hosts[1])), "{said}");
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    // One that was opened before says so too, beyond its patience by no more than a little.
    let began = Instant::now();
    let error = engine.acquire(Claim { wait: Duration::from_secs(1), ..claim("seat") }).await.expect_err("no majority");
    assert!(matches!(error, Error::Unavailable { .. } | Error::Indeterminate { .. }), "{error:?}");
    assert!(began.elapsed() < Duration::from_secs(9), "{:?}", began.elapsed());
    ensemble.restart(1);
    open(&url).await.expect("there is a majority");
}

/// Goal: a path that cannot be had is Invalid, in one sentence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_that_can_have_no_children_is_invalid() {
    let ensemble = ZookeeperEnsemble::start(1);
    let client = raw(&ensemble).await;
    let ephemeral = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
    client.create("/of-a-session", b"", &ephemeral).await.unwrap();
    for chroot in ["of-a-session", "of-a-session/locks"] {
        let error = open(&ensemble.url(chroot)).await.expect_err("such nodes have no children");
        assert!(matches!(&error, Error::Invalid(said) if said.contains("ephemeral")), "{error:?}");
    }
}

/// Goal: with a login nobody else can end, change or forge what is ours, or read secrets. Everybody may see who holds.
/// Method: clients without a login and with another one try everything with the nodes of a lease, its directory, and what is
/// private. Each layout and kind of lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_cannot_touch_nodes_of_a_login() {
    use zookeeper_client::Error::{NoAuth, NotEmpty};
    let ensemble = ZookeeperEnsemble::start(1);
    let hosts = ensemble.hosts().join(",");
    let other_login = Client::connector().with_auth("digest", b"eve:guess").connect(&hosts).await.unwrap();
    for query in ["lease=minded", "lease=session", "lease=minded&layout=both"] {
        let chroot = format!("closed-{}", query.replace(['=', '&'], "-"));
        let ours = open(&format!("zk://ada:s3cret@{hosts}/{chroot}?{query}")).await.expect("it opens");
        let held = ours.acquire(Claim { request: Some("order-7".into()), ..claim("seat") }).await.expect("granted");
        let waiter = tokio::spawn({
            let ours = ours.clone();
            async move { ours.acquire(Claim { wait: Duration::from_secs(20), ..claim("seat") }).await }
        });
        while ours.inspect("seat").await.unwrap().is_none_or(|seen| seen.queue_len == 0) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        for stranger in [raw(&ensemble).await, other_login.clone()] {
            let private = format!("/{chroot}/.leasehold");
            let mut paths = vec![format!("/{chroot}/seat")];
            for directory in [format!("/{chroot}/seat"), format!("{private}/servers")] {
                let children = stranger.list_children(&directory).await.expect("everybody may look");
                paths.extend(children.iter().map(|child| format!("{directory}/{child}")));
            }
            assert!(paths.len() >= 3, "a directory, a holder, a waiter: {paths:?}");
            for path in &paths {
                let is_denied = |error: &zookeeper_client::Error| *error == NoAuth || *error == NotEmpty;
                assert!(stranger.delete(path, None).await.is_err_and(|error| is_denied(&error)), "{path}");
                assert_eq!(stranger.set_data(path, b"", None).await.err(), Some(NoAuth), "{path}");
                assert_eq!(stranger.set_acl(path, &Acls::anyone_all(), None).await.err(), Some(NoAuth), "{path}");
            }
            let node = CreateMode::PersistentSequential.with_acls(Acls::anyone_all());
            for directory in [format!("/{chroot}/seat"), format!("/{chroot}"), format!("{private}/servers")] {
                let forged = stranger.create(&format!("{directory}/lock-"), b"", &node).await;
                assert_eq!(forged.err(), Some(NoAuth), "{directory}");
            }
            let secrets = stranger.list_children(&format!("{private}/requests")).await;
            assert_eq!(secrets.err(), Some(NoAuth), "secrets of leases");
        }
        let repeated =
            ours.acquire(Claim { request: Some("order-7".into()), ..claim("seat") }).await.expect("a repeat");
        assert_eq!(repeated.lease_id, held.lease_id);
        assert!(ours.release(&held.lease_id).await.expect("it is still there"));
        let next = waiter.await.unwrap().expect("its turn");
        assert!(ours.release(&next.lease_id).await.expect("live"));
    }
}

/// Goal: an ensemble that dies is Unavailable or Indeterminate within the caller's patience and a little, never a "no".
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ensemble_that_dies_is_not_a_refusal() {
    let ensemble = ZookeeperEnsemble::start(1);
    for (lease, freeze) in [("minded", false), ("session", false), ("minded", true)] {
        let engine = open(&format!("{}?lease={lease}", ensemble.url("dying"))).await.expect("it opens");
        let held = engine.acquire(claim(&format!("held-{lease}-{freeze}"))).await.expect("granted");
        if freeze {
            ensemble.freeze(0);
        } else {
            ensemble.kill(0);
        }
        let began = Instant::now();
        let (acquired, renewed, released) =
            tokio::join!(engine.acquire(claim("seat")), engine.renew(&held.lease_id, None), engine.inspect("seat"));
        let began = began.elapsed();
        for error in [acquired.err(), renewed.err(), released.err()] {
            let error = error.expect("nobody answers");
            assert!(matches!(error, Error::Unavailable { .. } | Error::Indeterminate { .. }), "{error:?}");
        }
        assert!(began < Duration::from_secs(10), "{began:?}");
        if freeze {
            ensemble.thaw(0);
        } else {
            ensemble.restart(0);
        }
        let limit = Instant::now() + Duration::from_secs(20);
        while engine.acquire(claim(&format!("again-{lease}-{freeze}"))).await.is_err() {
            assert!(Instant::now() < limit, "it works again by itself");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Goal: a login without permission is Invalid, in one sentence without the password.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_login_is_invalid() {
    let ensemble = ZookeeperEnsemble::start(1);
    let hosts = ensemble.hosts().join(",");
    let right = open(&format!("zk://ada:s3cret@{hosts}/closed?lease=minded")).await.expect("it opens");
    let grant = right.acquire(claim("seat")).await.expect("granted");
    right.renew(&grant.lease_id, None).await.expect("renewed");
    for login in ["ada:hunter2@", ""] {
        for lease in ["minded", "session"] {
            let error = match open(&format!("zk://{login}{hosts}/closed?lease={lease}")).await {
                Err(error) => error,
                Ok(engine) => engine.acquire(claim("other seat")).await.expect_err("it is not permitted"),
            };
            assert!(matches!(error, Error::Invalid(_)), "{error:?}");
            assert!(error.to_string().contains("ACL") && !error.to_string().contains("hunter2"), "{error}");
        }
    }
    assert!(right.release(&grant.lease_id).await.expect("released"));
}

/// Goal: what ZooKeeper cannot do is Invalid, with what to do instead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_is_invalid() {
    let ensemble = ZookeeperEnsemble::start(1);
    let session = open(&format!("{}?lease=session", ensemble.url("bounds"))).await.expect("it opens");
    let long = Claim { ttl: Duration::from_secs(37), ..claim("seat") };
    let error = session.acquire(long.clone()).await.expect_err("too long for a session");
    assert_eq!(
        error.to_string(),
        "a lease on this ensemble lives at most 36 s without renewal: renew more often, or raise maxSessionTimeout"
    );
    let minded = open(&format!("{}?lease=minded", ensemble.url("bounds"))).await.expect("it opens");
    minded.acquire(long).await.expect("as long as it likes");
    let delayed = Claim { delay: Duration::from_secs(1), ..claim("delayed") };
    let error = session.acquire(delayed.clone()).await.expect_err("nobody would be left to keep it closed");
    assert!(matches!(&error, Error::Invalid(said) if said.starts_with("a delay on zk:// needs")), "{error:?}");
    minded.acquire(delayed).await.expect("its server keeps it closed");
    assert!((minded.promises().outlives_process, session.promises().outlives_process) == (true, false));
    let error = minded.watch(None).await.err().expect("it is refused");
    assert!(error.to_string().contains("ZooKeeper keeps no history"), "{error}");
    let token = minded.acquire(claim("row")).await.expect("granted").token.expect("a token");
    let told = minded.raise_floor(None).await.expect("the floor as it is");
    assert!(told > token && told < minded.acquire(claim("aisle")).await.expect("granted").token.expect("a token"));
    let floor = Token::new(token.get() + 1_000_000).unwrap();
    let error = minded.raise_floor(Some(floor)).await.expect_err("it is refused");
    let base =
        error.to_string().split("token_base=").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
    let base = base.unwrap_or_else(|| panic!("{error}"));
    let raised = open(&format!("{}?token_base={base}", ensemble.url("bounds"))).await.expect("it opens");
    let token = raised.acquire(claim("raised")).await.expect("granted").token;
    assert!(token > Some(floor), "{token:?} with token_base={base}");
    assert!(raised.raise_floor(None).await.expect("the floor as it is") > floor);
    assert_eq!(minded.identity().await.unwrap(), None);
    assert!(minded.keys().is_none());
}

async fn raw(ensemble: &ZookeeperEnsemble) -> Client {
    Client::connect(&ensemble.hosts()[0]).await.expect("a client")
}

/// Goal: a directory whose other clients cannot see us is refused, and nothing is left in it; with both layouts we wait.
/// Method: a node as kazoo makes it, one as Curator makes it, and one of Curator's lock for readers and writers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_of_clients_that_cannot_see_us_is_refused() {
    let ensemble = ZookeeperEnsemble::start(1);
    let client = raw(&ensemble).await;
    let open_as = async |layout: &str| open(&format!("{}?layout={layout}", ensemble.url("mixed"))).await.unwrap();
    let (curator, kazoo, both) = (open_as("curator").await, open_as("kazoo").await, open_as("both").await);
    let make = async |name: &str, prefix: &str| {
        let directory = format!("/mixed/{name}");
        let parent = CreateMode::Persistent.with_acls(Acls::anyone_all());
        client.mkdir(&directory, &parent).await.unwrap();
        let node = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        client.create(&format!("{directory}/{prefix}"), b"", &node).await.unwrap();
    };
    make("of-kazoo", "4a55b0e47d8f4a559d070d9a6f0f3a77__lock__").await;
    make("of-curator", "_c_0f6f5a0e-7d8f-4a55-9d07-0d9a6f0f3a77-lock-").await;
    make("of-writers", "_c_0f6f5a0e-7d8f-4a55-9d07-0d9a6f0f3a77-__WRIT__").await;
    let table = [
        ("of-kazoo", &curator, Some("layout=both")),
        ("of-kazoo", &kazoo, None),
        ("of-kazoo", &both, None),
        ("of-curator", &curator, None),
        ("of-curator", &kazoo, Some("layout=both")),
        ("of-curator", &both, None),
        ("of-writers", &curator, Some("InterProcessReadWriteLock")),
        ("of-writers", &kazoo, Some("InterProcessReadWriteLock")),
        ("of-writers", &both, Some("InterProcessReadWriteLock")),
    ];
    for wait in [Duration::ZERO, Duration::from_millis(200)] {
        for (name, engine, refused) in &table {
            let error = engine.acquire(Claim { wait, ..claim(name) }).await.expect_err("somebody is there");
            match refused {
                Some(word) => {
                    assert!(matches!(&error, Error::Invalid(text) if text.contains(word)), "{name}: {error:?}")
                }
                None => assert!(matches!(error, Error::Refused(Refusal::Held { .. })), "{name}: {error:?}"),
            }
            assert_eq!(client.list_children(&format!("/mixed/{name}")).await.unwrap().len(), 1, "nothing is left");
        }
    }
    let findings = curator.examine().await.unwrap();
    let warns = |name: &str| findings.iter().any(|f| f.kind == FindingKind::Warning && f.setting.ends_with(name));
    assert!(warns("of-kazoo") && warns("of-writers") && !warns("of-curator"), "{findings:?}");
    let denies = FindingKind::Denies(vec![Promise::OutlivesProcess]);
    assert!(findings.iter().any(|finding| finding.kind == denies));
    let seen = both.inspect("of-kazoo").await.unwrap().expect("held");
    assert_eq!((seen.holders[0].holder.as_str(), seen.holders[0].token), ("(a kazoo client)", None));
    assert_eq!(curator.revoke("of-curator", "left over").await.unwrap(), 1);
    curator.acquire(claim("of-curator")).await.expect("it is free");
}

/// Goal: a foreign client before us in the queue is awaited, one behind us waits for us, by the numbers of the nodes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_nodes_are_awaited_in_order() {
    let ensemble = ZookeeperEnsemble::start(1);
    let client = raw(&ensemble).await;
    for lease in ["minded", "session"] {
        let engine = open(&format!("{}?lease={lease}&layout=both", ensemble.url("order"))).await.unwrap();
        let name = format!("seat-{lease}");
        let grant = engine.acquire(claim(&name)).await.expect("granted");
        let node = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let prefix = format!("/order/{name}/4a55b0e47d8f4a559d070d9a6f0f3a77__lock__");
        let (_, number) = client.create(&prefix, b"", &node).await.unwrap();
        let waiting = tokio::spawn({
            let (engine, asked) = (engine.clone(), Claim { wait: Duration::from_secs(20), ..claim(&name) });
            async move { engine.acquire(asked).await }
        });
        while engine.inspect(&name).await.unwrap().map_or(0, |seen| seen.queue_len) < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(engine.release(&grant.lease_id).await.unwrap());
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!waiting.is_finished(), "the foreign client has its turn first");
        client.delete(&format!("{prefix}{number}"), None).await.unwrap();
        let next = tokio::time::timeout(Duration::from_secs(5), waiting).await.expect("in time").unwrap();
        assert!(next.expect("granted").token > grant.token);
    }
}

/// Goal: whoever comes while we wait, and does not see us, keeps us out: their turn is no reason to hold beside them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blind_client_that_comes_later_is_noticed_before_the_grant() {
    let ensemble = ZookeeperEnsemble::start(1);
    let client = raw(&ensemble).await;
    let engine = open(&format!("{}?lease=minded", ensemble.url("later"))).await.unwrap();
    let grant = engine.acquire(claim("seat")).await.expect("granted");
    let waiting = tokio::spawn({
        let (engine, asked) = (engine.clone(), Claim { wait: Duration::from_secs(20), ..claim("seat") });
        async move { engine.acquire(asked).await }
    });
    while engine.inspect("seat").await.unwrap().map_or(0, |seen| seen.queue_len) < 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let node = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    client.create("/later/seat/4a55b0e47d8f4a559d070d9a6f0f3a77__lock__", b"", &node).await.unwrap();
    assert!(engine.release(&grant.lease_id).await.unwrap());
    let answer = waiting.await.unwrap();
    assert!(matches!(&answer, Err(Error::Invalid(text)) if text.contains("layout=both")), "{answer:?}");
    assert_eq!(client.list_children("/later/seat").await.unwrap().len(), 1, "nothing of ours is left");
}

/// Goal: as many wait for a resource as may, whichever process they came through; the next one is told so and leaves nothing.
/// Without patience that one is only told who holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_is_full_takes_nobody() {
    let ensemble = ZookeeperEnsemble::start(1);
    let client = raw(&ensemble).await;
    for lease in ["minded", "session"] {
        let mut engines = Vec::new();
        for _ in 0..3 {
            let mut options =
                ZookeeperEngineOptions::from_url(&format!("{}?lease={lease}", ensemble.url("full"))).unwrap();
            options.limits.waiters_per_resource = 2;
            engines.push(ZookeeperEngine::open(options).await.expect("it opens"));
        }
        let name = format!("seat-{lease}");
        let patient = Claim { wait: Duration::from_secs(20), ..claim(&name) };
        let holder = engines[0].acquire(claim(&name)).await.expect("granted");
        let mut waiting = Vec::new();
        for (at, engine) in engines[..2].iter().enumerate() {
            let (engine, asked) = (engine.clone(), patient.clone());
            waiting.push(tokio::spawn(async move { engine.acquire(asked).await }));
            while engines[2].inspect(&name).await.unwrap().map_or(0, |seen| seen.queue_len) <= at {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        let refused = engines[2].acquire(patient.clone()).await;
        let is_full = |refusal: &Refusal| matches!(refusal, Refusal::QueueFull { resource } if *resource == name);
        assert!(matches!(&refused, Err(Error::Refused(refusal)) if is_full(refusal)), "{refused:?}");
        let refused = engines[2].acquire(claim(&name)).await;
        assert!(matches!(refused, Err(Error::Refused(Refusal::Held { queue_len: 2, .. }))), "{refused:?}");
        assert_eq!(client.list_children(&format!("/full/{name}")).await.unwrap().len(), 3, "nothing is left");
        assert!(engines[0].release(&holder.lease_id).await.unwrap());
        let first = waiting.remove(0).await.unwrap().expect("his turn");
        let next = tokio::spawn({
            let engine = engines[2].clone();
            async move { engine.acquire(patient).await }
        });
        assert!(engines[0].release(&first.lease_id).await.unwrap());
        let second = waiting.remove(0).await.unwrap().expect("her turn");
        assert!(engines[1].release(&second.lease_id).await.unwrap());
        next.await.unwrap().expect("there was room again");
    }
}

/// Goal: a revoke goes on when its caller does not: what was begun is not left half-way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoke_outlives_its_caller() {
    let ensemble = ZookeeperEnsemble::start(1);
    let proxy = Proxy::start(ensemble.client_ports()[0]);
    let owner = open(&format!("{}?lease=minded", ensemble.url("locks"))).await.expect("it opens");
    owner.acquire(claim("seat")).await.expect("granted");
    let operator = open(&format!("zk://127.0.0.1:{}/locks?lease=minded", proxy.port())).await.expect("it opens");
    proxy.delay(Duration::from_millis(300));
    let revoke = operator.revoke("seat", "a test");
    assert!(tokio::time::timeout(Duration::from_millis(100), revoke).await.is_err(), "the caller has left");
    let began = Instant::now();
    while owner.inspect("seat").await.unwrap().is_some() {
        assert!(began.elapsed() < Duration::from_secs(5), "it is not revoked");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
