//! What the etcd engine is told at open, and what it says of it: users and roles, TLS, dead clusters, findings.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)] // a real server lives in real time

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::engine::etcd::{EtcdEngine, EtcdEngineOptions};
use leasehold::engine::{Claim, Engine, FindingKind, Token, Want};
use leasehold::{Error, Refusal};
use leasehold_harness::etcd::{EtcdCluster, EtcdSettings, EtcdTls};
use leasehold_harness::free_port;
use leasehold_harness::proxy::Proxy;

async fn try_open(url: &str) -> Result<Arc<EtcdEngine>, Error> {
    EtcdEngine::open(EtcdEngineOptions::from_url(url)?).await
}

fn seat(who: &str) -> Claim {
    Claim::new(vec![Want::exclusive("seat")], Duration::from_secs(30), who)
}

/// Goal: a cluster that is not there, or is silent, is Unavailable with one sentence, within the patience of a caller.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_cluster_is_unavailable_soon() {
    let began = Instant::now();
    let dead = format!("etcd://127.0.0.1:{},127.0.0.1:{}", free_port(), free_port());
    let error = try_open(&dead).await.expect_err("nobody is there");
    assert!(matches!(error, Error::Unavailable { engine: "etcd", .. }), "{error:?}");
    assert!(error.to_string().contains("open etcd://127.0.0.1"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    let cluster = EtcdCluster::start(1);
    let proxy = Proxy::start(cluster.client_ports()[0]);
    proxy.black_hole(true);
    let began = Instant::now();
    let error = try_open(&format!("etcd://127.0.0.1:{}", proxy.port())).await.expect_err("it is silent");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(began.elapsed() < Duration::from_secs(11), "{:?}", began.elapsed());
}

/// Goal: a cluster that goes away is Unavailable for what was not sent, and each call is answered in time.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_went_away_is_unavailable() {
    let cluster = EtcdCluster::start(1);
    let engine = try_open(&cluster.url()).await.unwrap();
    let grant = engine.acquire(seat("ada")).await.unwrap();
    cluster.kill(0);
    let began = Instant::now();
    for answer in [
        engine.acquire(Claim::new(vec![Want::exclusive("row")], Duration::from_secs(9), "bob")).await.map(drop),
        engine.release(&grant.lease_id).await.map(drop),
        engine.inspect("seat").await.map(drop),
    ] {
        let error = answer.expect_err("nobody is there");
        assert!(matches!(error, Error::Unavailable { .. } | Error::Indeterminate { .. }), "{error:?}");
    }
    assert!(began.elapsed() < Duration::from_secs(27), "{:?}", began.elapsed());
    cluster.restart(0);
    assert!(engine.release(&grant.lease_id).await.expect("it is back"), "the lease outlived the crash");
}

/// Goal: users and roles work: one role with readwrite on the prefix is enough, and what is wrong is said in a sentence
/// without the password.
#[tokio::test(flavor = "multi_thread")]
async fn a_login_is_used_and_refused() {
    let cluster = EtcdCluster::start(1);
    for words in [
        &["user", "add", "root:rootpw"][..],
        &["user", "grant-role", "root", "root"],
        &["role", "add", "locks"],
        &["role", "grant-permission", "--prefix=true", "locks", "readwrite", "locks/"],
        &["user", "add", "ada:s3cret"],
        &["user", "grant-role", "ada", "locks"],
        &["auth", "enable"],
    ] {
        cluster.etcdctl(words);
    }
    let at = cluster.endpoints()[0].clone();
    let engine = try_open(&format!("etcd://ada:s3cret@{at}?prefix=locks/")).await.expect("the login is right");
    let grant = engine.acquire(seat("ada")).await.expect("granted");
    engine.renew(&grant.lease_id, None).await.expect("renewed");
    assert!(engine.release(&grant.lease_id).await.expect("released"));
    for (url, says) in [
        (format!("etcd://ada:wr0ng@{at}?prefix=locks/"), "the user or the password"),
        (format!("etcd://ada:s3cret@{at}?prefix=other/"), "readwrite"),
        (format!("etcd://{at}?prefix=locks/"), "wants a login"),
    ] {
        let error = try_open(&url).await.err().unwrap_or_else(|| panic!("{says}: it opened"));
        let said = error.to_string();
        assert!(matches!(error, Error::Invalid(_)) && said.contains(says), "{said}");
        assert!(!said.contains("wr0ng") && !said.contains("s3cret"), "{said}");
    }
}

fn write_certificates(dir: &std::path::Path) -> EtcdTls {
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let ca = params.self_signed(&ca_key).unwrap();
    let issuer = rcgen::Issuer::new(params, ca_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
    let mut leaf = rcgen::CertificateParams::new(names).unwrap();
    leaf.extended_key_usages =
        vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth, rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let leaf = leaf.signed_by(&key, &issuer).unwrap();
    let file = |name: &str, text: String| {
        let path = dir.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    EtcdTls {
        ca: file("ca.pem", ca.pem()),
        cert: file("cert.pem", leaf.pem()),
        key: file("key.pem", key.serialize_pem()),
        client_auth: true,
    }
}

/// Goal: TLS with an authority and a client certificate of one's own; without them nothing opens.
#[cfg(feature = "tls")]
#[tokio::test(flavor = "multi_thread")]
async fn tls_shows_and_demands_certificates() {
    let dir = tempfile::tempdir().unwrap();
    let tls = write_certificates(dir.path());
    let cluster = EtcdCluster::start_with(EtcdSettings { tls: Some(tls.clone()), ..EtcdSettings::new(1) });
    let (ca, cert, key) = (tls.ca.display(), tls.cert.display(), tls.key.display());
    let url = format!("{}?ca={ca}&cert={cert}&key={key}", cluster.url());
    let engine = try_open(&url).await.expect("it opens over TLS");
    engine.acquire(seat("ada")).await.expect("granted");
    for url in [format!("{}?ca={ca}", cluster.url()), cluster.url(), cluster.url().replace("etcds", "etcd")] {
        let error = try_open(&url).await.expect_err("certificates are missing");
        assert!(matches!(error, Error::Unavailable { .. }), "{url}: {error:?}");
    }
    let missing = try_open(&format!("{}?ca=/no/such/file", cluster.url())).await.err().unwrap();
    assert!(matches!(&missing, Error::Invalid(sentence) if sentence.contains("/no/such/file")), "{missing:?}");
}

/// Goal: tokens are revisions above `token_base`; a floor cannot be raised, and the answer says what to write.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_base_moves_every_token() {
    let cluster = EtcdCluster::start(1);
    let plain = try_open(&cluster.url()).await.unwrap();
    let low = plain.acquire(seat("ada")).await.unwrap();
    plain.release(&low.lease_id).await.unwrap();
    let floor = Token::new(5_000_000).unwrap();
    let Err(Error::Invalid(said)) = plain.raise_floor(Some(floor)).await else { panic!("a floor is not raised") };
    let base = said.split_once("token_base=").unwrap().1.split(' ').next().unwrap().to_owned();
    let raised = try_open(&format!("{}?token_base={base}", cluster.url())).await.unwrap();
    let high = raised.acquire(seat("ada")).await.unwrap();
    assert!(high.token > Some(floor) && low.token < Some(floor), "{:?} and {:?}", low.token, high.token);
    assert_eq!(raised.inspect("seat").await.unwrap().unwrap().holders[0].token, high.token);
    assert!(raised.raise_floor(None).await.unwrap() >= floor);
    assert_eq!(raised.identity().await.unwrap(), plain.identity().await.unwrap());
}

/// Goal: the doctor sees one member, a missing one, history that grows and other clients; nothing of it denies a promise.
#[tokio::test(flavor = "multi_thread")]
async fn an_examination_finds_what_an_operator_should_know() {
    let cluster = EtcdCluster::start(1);
    let url = format!("{},127.0.0.1:{}", cluster.url(), free_port());
    let engine = try_open(&url).await.unwrap();
    let grant = engine.acquire(seat("ada")).await.unwrap();
    let lease = cluster.etcdctl(&["lease", "grant", "60"]);
    // etcdctl pads the number, keys do not.
    let lease = lease.split_whitespace().nth(1).unwrap().trim_start_matches('0').to_owned();
    cluster.etcdctl(&["put", &format!("their-lock/{lease}"), "", &format!("--lease={lease}")]);
    let findings = engine.examine().await.expect("it can be examined");
    let found = |setting: &str| findings.iter().find(|finding| finding.setting == setting);
    assert_eq!(found("members").unwrap().found, "1");
    assert_eq!(found("member").unwrap().kind, FindingKind::Warning);
    assert_eq!(found("other clients").unwrap().found, "1");
    assert!(found("auto-compaction").is_none(), "there is little history yet");
    assert!(!findings.iter().any(|finding| matches!(finding.kind, FindingKind::Denies(_))));
    for _ in 0..1250 {
        let renewals = (0..8).map(|_| engine.renew(&grant.lease_id, None));
        for renewal in renewals {
            renewal.await.expect("renewed");
        }
    }
    let findings = engine.examine().await.expect("it can be examined");
    let history = findings.iter().find(|finding| finding.setting == "auto-compaction").expect("nobody compacts");
    assert!(history.found.contains("never"), "{history:?}");
}

/// Goal: what another client of etcd holds keeps us out, is shown and is revoked; and ours keeps it out.
#[tokio::test(flavor = "multi_thread")]
async fn other_clients_are_excluded_shown_and_revoked() {
    let cluster = EtcdCluster::start(1);
    let engine = try_open(&cluster.url()).await.unwrap();
    let lease = cluster.etcdctl(&["lease", "grant", "60"]);
    // etcdctl pads the number, keys do not.
    let lease = lease.split_whitespace().nth(1).unwrap().trim_start_matches('0').to_owned();
    cluster.etcdctl(&["put", &format!("seat/{lease}"), "node-7", &format!("--lease={lease}")]);
    let Err(Error::Refused(Refusal::Held { holder, remaining, .. })) = engine.acquire(seat("ada")).await else {
        panic!("another client holds it")
    };
    assert_eq!(holder.as_deref(), Some("node-7"));
    assert!(remaining.unwrap() > Duration::from_secs(50));
    let shown = engine.inspect("seat").await.unwrap().unwrap();
    assert_eq!((shown.holders[0].holder.as_str(), shown.holders[0].token), ("node-7", None));
    // A deeper name of another client is not in the way.
    cluster.etcdctl(&["put", &format!("row/1/{lease}"), "", &format!("--lease={lease}")]);
    let deep = Claim::new(vec![Want::exclusive("row")], Duration::from_secs(30), "ada");
    engine.acquire(deep).await.expect("a deeper name is another name");
    assert_eq!(engine.revoke("seat", "a burst pipe").await.unwrap(), 1);
    let ada = engine.acquire(seat("ada")).await.expect("it is free");
    let mut waits = cluster.etcdctl_command(&["lock", "seat", "true"]).spawn().unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(engine.inspect("seat").await.unwrap().unwrap().queue_len, 1, "etcdctl is in the queue");
    assert!(waits.try_wait().unwrap().is_none(), "etcdctl waits for ours");
    engine.release(&ada.lease_id).await.expect("released");
    assert!(waits.wait().unwrap().success(), "and is served then");
}

/// Goal: a queue that is full takes nobody else, and says so; whoever leaves makes room. What waits for a deeper name does
/// not count.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_takes_nobody_else() {
    const MOST: usize = 3;
    let cluster = EtcdCluster::start(1);
    let mut options = EtcdEngineOptions::from_url(&cluster.url()).unwrap();
    options.limits.waiters_per_resource = MOST;
    let engine = EtcdEngine::open(options).await.unwrap();
    let patient = |who: &str, name: &str| {
        let (engine, wait) = (engine.clone(), Duration::from_secs(60));
        let claim = Claim { wait, ..Claim::new(vec![Want::exclusive(name)], Duration::from_secs(30), who) };
        tokio::spawn(async move { engine.acquire(claim).await })
    };
    let waits = async |name: &str, count: usize| {
        while engine.inspect(name).await.unwrap().is_none_or(|seen| seen.queue_len != count) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    engine.acquire(seat("ada")).await.unwrap();
    engine.acquire(Claim::new(vec![Want::exclusive("seat/deep")], Duration::from_secs(30), "ada")).await.unwrap();
    let _deep = [patient("bob", "seat/deep"), patient("cy", "seat/deep")];
    waits("seat/deep", 2).await;
    let mut waiting = Vec::new();
    for n in 0..MOST {
        waiting.push(patient(&format!("waiter {n}"), "seat"));
        waits("seat", n + 1).await;
    }
    let full = patient("one too many", "seat").await.unwrap();
    assert!(matches!(&full, Err(Error::Refused(Refusal::QueueFull { resource })) if resource == "seat"), "{full:?}");
    waits("seat", MOST).await;
    waiting.pop().unwrap().abort();
    waits("seat", MOST - 1).await;
    let _fits = patient("who comes then", "seat");
    waits("seat", MOST).await;
}
