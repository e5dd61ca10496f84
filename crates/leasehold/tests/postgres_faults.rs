//! The PostgreSQL engine under faults: ended backends, crashes, lost replies, a full server, kept locks, a clock that is
//! set. Who holds what is checked at every grant.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stdout)] // a real server lives in real time

mod support;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leasehold::engine::postgres::{PostgresEngine, PostgresEngineOptions};
use leasehold::engine::{Claim, Engine, Grant, Mode, Want};
use leasehold::{Error, Refusal};
use leasehold_harness::postgres::Cluster;
use leasehold_harness::proxy::Proxy;
use support::{Dice, Witness};

const TTL: Duration = Duration::from_secs(30);

async fn open(url: &str) -> Arc<PostgresEngine> {
    PostgresEngine::open(PostgresEngineOptions::from_url(url).unwrap()).await.expect("the engine opens")
}

async fn sleep(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

fn draw_claim(dice: &mut Dice) -> Claim {
    let mut names = vec!["a", "b", "c"];
    for _ in 0..[2, 2, 2, 1, 0][dice.below(5) as usize] {
        let gone = dice.below(names.len() as u64) as usize;
        names.remove(gone);
    }
    if dice.below(2) == 0 {
        names.reverse();
    }
    let mode = match dice.below(4) {
        0 | 1 => Mode::Exclusive,
        2 => Mode::Shared,
        _ => Mode::Permits { count: 1 + dice.below(2) as u32, capacity: 3 },
    };
    let wants = names.into_iter().map(|name| Want { name: name.into(), mode }).collect();
    let wait = if dice.below(4) == 0 { Duration::ZERO } else { Duration::from_secs(8) };
    Claim { wait, ..Claim::new(wants, TTL, "racer") }
}

struct Race {
    witness: Witness,
    stop: AtomicBool,
    grants: AtomicUsize,
    refusals: AtomicUsize,
    errors: AtomicUsize,
}

/// Takes and releases until it is told to stop.
async fn run_racer(engine: Arc<PostgresEngine>, race: Arc<Race>, seed: u64) {
    let mut dice = Dice(seed | 1);
    while !race.stop.load(Ordering::SeqCst) {
        let claim = draw_claim(&mut dice);
        match engine.acquire(claim.clone()).await {
            Ok(grant) => {
                race.grants.fetch_add(1, Ordering::SeqCst);
                claim.wants.iter().for_each(|want| race.witness.granted(&want.name, want.mode, grant.token));
                if dice.below(3) == 0 {
                    tokio::time::sleep(Duration::from_micros(dice.below(3000))).await;
                }
                claim.wants.iter().for_each(|want| race.witness.releasing(&want.name, want.mode));
                if let Err(error) = engine.release(&grant.lease_id).await {
                    race.errors.fetch_add(1, Ordering::SeqCst);
                    assert!(
                        matches!(error, Error::Indeterminate { .. } | Error::Unavailable { .. }),
                        "a live lease is released, or it is not known: {error:?}"
                    );
                    // It must not stay in everybody's way.
                    while engine.release(&grant.lease_id).await.is_err() {
                        sleep(50).await;
                    }
                }
            }
            Err(Error::Refused(Refusal::Held { .. } | Refusal::QueueFull { .. })) => {
                race.refusals.fetch_add(1, Ordering::SeqCst);
            }
            Err(Error::Invalid(sentence)) if sentence.contains("capacity") => {}
            Err(Error::Indeterminate { .. } | Error::Unavailable { .. }) => {
                race.errors.fetch_add(1, Ordering::SeqCst);
            }
            Err(other) => panic!("{other:?}"),
        }
    }
}

/// Racers on several engines for a while; `fault` runs meanwhile.
async fn run_race(cluster: &Cluster, seconds: u64, fault: impl AsyncFn(&str)) -> Arc<Race> {
    let database = cluster.database().await;
    let race = Arc::new(Race {
        witness: Witness::default(),
        stop: AtomicBool::new(false),
        grants: AtomicUsize::new(0),
        refusals: AtomicUsize::new(0),
        errors: AtomicUsize::new(0),
    });
    let mut racers = Vec::new();
    for engine in 0..3 {
        let opened = open(&cluster.url(&database)).await;
        for task in 0..4 {
            let seed = 7919 * (1 + engine * 4 + task);
            racers.push(tokio::spawn(run_racer(opened.clone(), race.clone(), seed)));
        }
    }
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        fault(&database).await;
    }
    race.stop.store(true, Ordering::SeqCst);
    for racer in racers {
        tokio::time::timeout(Duration::from_secs(60), racer).await.expect("racers come to an end").unwrap();
    }
    let client = cluster.client(&database).await;
    let row = client.query_one("SELECT count(*) FROM leasehold_engine.queue", &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 0, "nobody waits any more");
    println!(
        "{:?} grants, {:?} refusals, {:?} errors, {} violations",
        race.grants,
        race.refusals,
        race.errors,
        race.witness.violations().len()
    );
    assert_eq!(race.witness.violations(), Vec::<String>::new());
    race
}

/// Goal: no two holders, tokens in order, and nobody stays in a queue, whoever races.
/// Method: three engines with four callers each, three names, all modes, claims on one to three of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn races_keep_exclusion_and_order() {
    let cluster = Cluster::start(&[]);
    let race = run_race(&cluster, from_environment("LEASEHOLD_RACE_SECONDS", 6), async |_| sleep(100).await).await;
    assert!(race.grants.load(Ordering::SeqCst) > 100, "the race was one");
    assert_eq!(race.errors.load(Ordering::SeqCst), 0, "there was no fault");
}

/// Goal: the same while connections are ended all the time.
/// Method: pg_terminate_backend for every connection of the engines, every 150 ms.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ended_backends_break_nothing() {
    let cluster = Cluster::start(&[]);
    let ended = AtomicUsize::new(0);
    let race = run_race(&cluster, from_environment("LEASEHOLD_RACE_SECONDS", 6), async |database: &str| {
        sleep(150).await;
        let count = cluster.terminate_backends(database, "leasehold engine").await;
        ended.fetch_add(count as usize, Ordering::SeqCst);
    })
    .await;
    println!("{ended:?} backends ended");
    assert!(ended.load(Ordering::SeqCst) > 20 && race.grants.load(Ordering::SeqCst) > 10);
}

/// Goal: what was acknowledged survives a crash, and no token comes twice.
/// Method: callers acquire and release as fast as they can; the server is stopped at once or its postmaster is killed;
/// afterwards every lease that was granted is renewed, and every release is asked for again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_grants_survive_crashes() {
    let cluster = Arc::new(Cluster::start(&[]));
    let database = cluster.database().await;
    let engine = open(&cluster.url(&database)).await;
    let mut tokens = HashSet::new();
    let (mut acknowledged, mut ended) = (0, 0);
    for round in 0..4_u64 {
        let stop = Arc::new(AtomicBool::new(false));
        let callers: Vec<_> = (0..16)
            .map(|caller| {
                let (engine, stop) = (engine.clone(), stop.clone());
                tokio::spawn(async move {
                    let (mut kept, mut released): (Vec<Grant>, Vec<Grant>) = (vec![], vec![]);
                    for number in 0.. {
                        let name = format!("{round}/{caller}/{number}");
                        let ttl = Duration::from_secs(3600);
                        match engine.acquire(Claim::new(vec![Want::exclusive(name)], ttl, "crasher")).await {
                            Ok(grant) if number % 4 == 3 => match engine.release(&grant.lease_id).await {
                                Ok(true) => released.push(grant),
                                _ => return (kept, released),
                            },
                            Ok(grant) => kept.push(grant),
                            Err(_) => return (kept, released),
                        }
                        if stop.load(Ordering::SeqCst) {
                            return (kept, released);
                        }
                    }
                    (kept, released)
                })
            })
            .collect();
        sleep(700).await;
        let crashing = cluster.clone();
        tokio::task::spawn_blocking(move || {
            if round.is_multiple_of(2) {
                crashing.crash()
            } else {
                crashing.kill()
            }
            crashing.start_server();
        })
        .await
        .unwrap();
        stop.store(true, Ordering::SeqCst);
        for caller in callers {
            let (kept, released) = caller.await.unwrap();
            acknowledged += kept.len() + released.len();
            ended += released.len();
            for grant in kept.iter().chain(&released) {
                assert!(tokens.insert(grant.token.unwrap()), "a token came twice");
            }
            for grant in kept {
                renew_patiently(&engine, &grant).await.expect("an acknowledged lease is there");
            }
            for grant in released {
                assert!(matches!(engine.release(&grant.lease_id).await, Ok(false)), "an acknowledged release stays");
            }
        }
    }
    println!("{acknowledged} grants and {ended} releases acknowledged over 4 crashes, none lost");
    assert!(acknowledged > 200);
}

async fn renew_patiently(engine: &PostgresEngine, grant: &Grant) -> Result<(), Error> {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        match engine.renew(&grant.lease_id, None).await {
            Ok(_) => return Ok(()),
            Err(error @ Error::Refused(_)) => return Err(error),
            Err(error) if Instant::now() > end => return Err(error),
            Err(_) => sleep(50).await,
        }
    }
}

/// Goal: an acquire and a release whose replies are lost have one effect, and the caller learns it.
/// Method: a proxy passes requests on and swallows the replies, then cuts; some requests are swallowed instead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_replies_have_one_effect() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let proxy = Arc::new(Proxy::start(cluster.port()));
    let engine = open(&cluster.url_through(proxy.port(), "postgres", &database)).await;
    let direct = open(&cluster.url(&database)).await;
    let rounds = from_environment("LEASEHOLD_LOST_REPLIES", 60);
    let (mut last, mut lost) = (None, 0);
    for round in 0..rounds {
        let name = format!("seat-{}", round % 5);
        let lose = |requests: bool| {
            let proxy = proxy.clone();
            if requests {
                proxy.swallow_requests(true)
            } else {
                proxy.swallow_replies(true)
            }
            tokio::spawn(async move {
                sleep(25).await;
                proxy.cut_all();
                proxy.swallow_requests(false);
                proxy.swallow_replies(false);
            })
        };
        let losing = lose(round % 3 == 0);
        let began = Instant::now();
        let grant = engine.acquire(Claim::new(vec![Want::exclusive(&name)], TTL, "ada")).await.expect("granted");
        // The proxy cuts after 25 ms: whoever had to wait for that had lost something.
        lost += u32::from(began.elapsed() > Duration::from_millis(20));
        losing.await.unwrap();
        assert!(grant.token > last, "tokens rise");
        last = grant.token;
        let seen = direct.inspect(&name).await.unwrap().expect("it is held");
        assert_eq!((seen.holders.len(), seen.holders[0].token), (1, grant.token));
        let losing = lose(round % 4 == 0);
        let began = Instant::now();
        engine.release(&grant.lease_id).await.expect("released now, or by the try whose reply was lost");
        lost += u32::from(began.elapsed() > Duration::from_millis(20));
        losing.await.unwrap();
        assert_eq!(direct.inspect(&name).await.unwrap(), None);
    }
    println!("{rounds} pairs, {lost} requests or replies lost");
    assert!(u64::from(lost) > rounds, "most of them were lost");
}

/// Goal: a full server goes on serving those who are connected, and says to others what is the matter.
/// Method: fill max_connections with idle connections; use an open engine; open another one.
#[tokio::test]
async fn a_full_server_says_so() {
    let cluster = Cluster::start(&["max_connections=16", "superuser_reserved_connections=0"]);
    let database = cluster.database().await;
    let engine = open(&cluster.url(&database)).await;
    let claim = || Claim::new(vec![Want::exclusive("seat")], TTL, "ada");
    let first = engine.acquire(claim()).await.unwrap();
    engine.release(&first.lease_id).await.unwrap();
    let mut idle = Vec::new();
    while let Ok((client, connection)) = tokio_postgres::connect(&cluster.url(&database), tokio_postgres::NoTls).await {
        idle.push((client, tokio::spawn(connection)));
    }
    let second = engine.acquire(claim()).await.expect("connections that are there go on");
    assert!(second.token > first.token);
    let error =
        PostgresEngine::open(PostgresEngineOptions::from_url(&cluster.url(&database)).unwrap()).await.unwrap_err();
    let Error::Unavailable { source, .. } = &error else { panic!("{error:?}") };
    assert!(source.to_string().contains("max_connections"), "{source}");
}

/// Goal: a lock that somebody keeps delays only those who want that name, and is an error without an effect.
/// Method: a session holds the key of one name; others are acquired beside it; with patience it is granted afterwards.
#[tokio::test]
async fn a_kept_lock_stops_only_its_name() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let engine = open(&cluster.url(&database)).await;
    let other = cluster.client(&database).await;
    // The class stands in the text of the functions.
    let row = other.query_one("SELECT (regexp_match(prosrc, 'lock\\(\\((-?\\d+)\\), h\\)'))[1] FROM pg_proc WHERE proname = 'begin_write'", &[]).await.unwrap();
    let class: String = row.get(0);
    other.batch_execute(&format!("SELECT pg_advisory_lock({class}, hashtext('kept'))")).await.unwrap();
    let claim = |name: &str, wait| Claim { wait, ..Claim::new(vec![Want::exclusive(name)], TTL, "ada") };
    let began = Instant::now();
    let stuck = {
        let (engine, claim) = (engine.clone(), claim("kept", Duration::ZERO));
        tokio::spawn(async move { engine.acquire(claim).await })
    };
    for number in 0..50 {
        engine.acquire(claim(&format!("free-{number}"), Duration::ZERO)).await.expect("other names are free");
    }
    let error = stuck.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    let patient = {
        let (engine, claim) = (engine.clone(), claim("kept", Duration::from_secs(20)));
        tokio::spawn(async move { engine.acquire(claim).await })
    };
    sleep(300).await;
    let findings = engine.examine().await.unwrap();
    assert!(findings.iter().any(|finding| finding.setting == "advisory locks"), "{findings:?}");
    other.batch_execute("SELECT pg_advisory_unlock_all()").await.unwrap();
    patient.await.unwrap().expect("granted when the lock is free");
}

/// Goal: a clock that is set forward and back ends leases early, and still tokens rise and nobody is revived.
/// Method: `now_us()` with an offset in a table; ada holds, +60 s, bob is granted, -60 s, ada's renewal.
#[tokio::test]
async fn tokens_rise_over_a_clock_that_is_set() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let engine = open(&cluster.url(&database)).await;
    let step = "CREATE TABLE public.step (us bigint); INSERT INTO public.step VALUES (0);
        CREATE OR REPLACE FUNCTION leasehold_engine.now_us() RETURNS bigint LANGUAGE sql VOLATILE AS
        $$ SELECT (date_part('epoch', clock_timestamp()) * 1e6)::bigint + (SELECT us FROM public.step) $$";
    cluster.execute(&database, step).await;
    let claim = |who: &str| Claim::new(vec![Want::exclusive("seat")], TTL, who);
    let ada = engine.acquire(claim("ada")).await.unwrap();
    cluster.execute(&database, "UPDATE public.step SET us = 60000000").await;
    let bob = engine.acquire(claim("bob")).await.expect("ada's lease is over, early");
    cluster.execute(&database, "UPDATE public.step SET us = 0").await;
    let renewed = engine.renew(&ada.lease_id, None).await;
    assert!(matches!(renewed, Err(Error::Refused(Refusal::Stale))), "nobody is revived: {renewed:?}");
    engine.release(&bob.lease_id).await.unwrap();
    cluster.execute(&database, "UPDATE public.step SET us = -60000000").await;
    let cy = engine.acquire(claim("cy")).await.unwrap();
    assert!(ada.token < bob.token && bob.token < cy.token, "{:?} {:?} {:?}", ada.token, bob.token, cy.token);
}
