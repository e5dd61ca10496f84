//! Thousands of random schedules: several clients, several servers, a network that delays, loses and repeats, servers that
//! stop, die and come back with or without their memory, and clocks that differ within the drift.
//!
//! Time is virtual, and every schedule follows from its seed. `LEASEHOLD_SIM_SEEDS` says how many are tried. Each rule that
//! keeps holders apart is broken once on purpose, and the simulation must notice.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime::Handle;

use super::acquire_task::AcquireTask;
use super::coordinator::Coordinator;
use super::node::{LeaseKeys, Node};
use super::simulated_node::{Dice, NodeFlaws, SimulatedConnection, SimulatedServer};
use super::vote::VoteRules;
use crate::clock::{Clock, Time};
use crate::engine::redis::scripts::Layout;
use crate::engine::{Claim, Grant, Want};
use crate::error::{Error, Refusal};

const KEY: &str = "seat";
const QUARANTINE: Duration = Duration::from_secs(3);
/// How far a clock may be off, in millionths: two of them differ by less than one percent.
const MAX_RATE_PPM: u64 = 4500;

/// A clock over tokio's virtual time, a little fast or slow.
struct VirtualClock {
    start: tokio::time::Instant,
    rate_ppm: i64,
}

impl VirtualClock {
    fn shared(start: tokio::time::Instant, rate_ppm: i64) -> Arc<dyn Clock> {
        Arc::new(Self { start, rate_ppm })
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Time {
        let nanos = i128::try_from(self.start.elapsed().as_nanos()).expect("a short test");
        let shown = nanos + nanos * i128::from(self.rate_ppm) / 1_000_000;
        Time::from_nanos(u64::try_from(shown).expect("time goes forward"))
    }

    fn boot(&self) -> [u8; 16] {
        [0; 16]
    }

    fn sleep_until(&self, at: Time) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let nanos = i128::from(at.as_nanos()) * 1_000_000 / (1_000_000 + i128::from(self.rate_ppm));
        let at = self.start + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX / 4).min(u64::MAX / 4) + 1);
        Box::pin(tokio::time::sleep_until(at))
    }

    fn on_step(&self, _wake: Box<dyn Fn() + Send + Sync>) {}
}

/// Rules that may be wrong, on purpose.
#[derive(Clone, Copy, Default)]
struct Plant {
    flaws: NodeFlaws,
    no_drift: bool,
    small_quorum: bool,
    /// No server keeps anything over a restart.
    all_forget: bool,
}

/// Servers, clients, and who believes that it has the lease.
struct World {
    true_clock: Arc<dyn Clock>,
    servers: Vec<Arc<SimulatedServer>>,
    clients: Vec<Arc<Coordinator>>,
    beliefs: Mutex<Beliefs>,
}

#[derive(Default)]
struct Beliefs {
    /// Who, which call of it, and until when in true time.
    current: Vec<(String, Time)>,
    overlaps: Vec<String>,
    grants: usize,
}

impl World {
    fn new(seed: u64, servers: usize, clients: usize, plant: Plant) -> Arc<Self> {
        Self::with_quarantine(seed, servers, clients, plant, QUARANTINE)
    }

    fn with_quarantine(seed: u64, servers: usize, clients: usize, plant: Plant, quarantine: Duration) -> Arc<Self> {
        let mut dice = Dice::new(seed);
        let start = tokio::time::Instant::now();
        let true_clock = VirtualClock::shared(start, 0);
        let servers: Vec<_> = (0..servers)
            .map(|n| {
                let (rate, durable) = (rate_ppm(&mut dice), dice.chance(200) && !plant.all_forget);
                let (name, node_seed) = (format!("node {n}"), dice.next());
                let clock = true_clock.clone();
                SimulatedServer::new(&name, clock, node_seed, rate, durable, quarantine, plant.flaws)
            })
            .collect();
        let mut rules = VoteRules::new(servers.len());
        if plant.small_quorum {
            rules.quorum = servers.len() / 2;
        }
        if plant.no_drift {
            rules.drift_ms = |_| 0;
        }
        let clients = (0..clients)
            .map(|_| {
                let nodes = servers.iter().map(|s| Arc::new(SimulatedConnection(s.clone())) as Arc<dyn Node>).collect();
                let random = Mutex::new(Dice::new(dice.next()));
                let fill = move |bits: &mut [u8]| {
                    let mut dice = random.lock().expect("nobody panics with it");
                    bits.iter_mut().for_each(|byte| *byte = (dice.next() >> 32) as u8);
                };
                let clock = VirtualClock::shared(start, rate_ppm(&mut dice));
                Coordinator::start(nodes, rules, clock, Handle::current(), Arc::new(fill))
            })
            .collect();
        Arc::new(Self { true_clock, servers, clients, beliefs: Mutex::default() })
    }

    async fn acquire(&self, client: usize, claim: Claim) -> Result<Grant, Error> {
        AcquireTask::start(&self.clients[client], &Layout::default(), claim).await
    }

    /// From now on this call believes that it has the lease for so long, by its client's clock.
    fn believe(&self, who: &str, client: usize, remaining: Duration) {
        let now = self.true_clock.now();
        let shown = self.clients[client].clock.now().since(Time::ZERO).as_nanos().max(1);
        let rate = self.true_clock.now().since(Time::ZERO).as_nanos() as f64 / shown as f64;
        let until = now.plus(remaining.mul_f64(rate));
        let mut beliefs = self.beliefs.lock().expect("nobody panics with it");
        beliefs.current.retain(|(other, end)| other != who && *end > now);
        let others: Vec<String> = beliefs.current.iter().map(|(other, end)| format!("{other} until {end:?}")).collect();
        if !others.is_empty() {
            beliefs.overlaps.push(format!("at {now:?} {who} believes until {until:?}, beside {}", others.join(", ")));
        }
        beliefs.current.push((who.to_owned(), until));
    }

    /// From now on it believes in no more than this, if in anything.
    fn believe_at_most(&self, who: &str, remaining: Duration) {
        // Less the drift and what the node's rounding takes, as every holder counts.
        let until = self.true_clock.now().plus(remaining.mul_f64(0.98).saturating_sub(Duration::from_millis(3)));
        let mut beliefs = self.beliefs.lock().expect("nobody panics with it");
        beliefs.current.iter_mut().filter(|(other, _)| other == who).for_each(|(_, end)| *end = (*end).min(until));
    }

    fn stop_believing(&self, who: &str) {
        self.beliefs.lock().expect("nobody panics with it").current.retain(|(other, _)| other != who);
    }

    /// Everything works again.
    fn heal(&self) {
        for server in &self.servers {
            server.freeze_until(Time::ZERO);
            server.start();
            server.set_network(5, 0, 0);
        }
    }

    async fn pass(&self, millis: u64) {
        self.true_clock.sleep_until(self.true_clock.now().plus_millis(millis)).await;
    }
}

fn rate_ppm(dice: &mut Dice) -> i64 {
    i64::try_from(dice.below(2 * MAX_RATE_PPM)).expect("small") - i64::try_from(MAX_RATE_PPM).expect("small")
}

/// Runs on virtual time.
fn simulate<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime starts").block_on(work)
}

fn seeds() -> u64 {
    std::env::var("LEASEHOLD_SIM_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(400)
}

/// One of the clients: takes the lease again and again, in every way there is.
async fn use_lease(world: Arc<World>, client: usize, number: usize, seed: u64, end: Time) {
    let mut dice = Dice::new(seed);
    let mut request = 0;
    for round in 0.. {
        if world.true_clock.now() >= end {
            return;
        }
        let who = format!("client {client} task {number} round {round}");
        let ttl = Duration::from_millis(200 + dice.below(2300));
        let wait = Duration::from_millis(if dice.chance(500) { 0 } else { dice.below(1500) });
        let mut claim = Claim { wait, ..Claim::new(vec![Want::exclusive(KEY)], ttl, "ada") };
        if dice.chance(300) {
            // Half of them repeat the last one, with a body that may differ.
            request += dice.below(2);
            claim.request = Some(format!("{number} {request}"));
            claim.ttl = Duration::from_millis(2000 + request % 3);
        }
        let call = world.acquire(client, claim.clone());
        let grant = if dice.chance(100) {
            let patience = world.true_clock.now().plus_millis(dice.below(100));
            match crate::clock::until(&*world.true_clock, patience, call).await {
                Some(answer) => answer,
                None => continue, // the caller went away
            }
        } else {
            call.await
        };
        let Ok(grant) = grant else {
            world.pass(dice.below(50)).await;
            continue;
        };
        if grant.remaining.is_zero() {
            continue; // a repeated request whose lease has ended
        }
        world.beliefs.lock().expect("nobody panics with it").grants += 1;
        // Two calls of one request are one holder.
        let who = claim.request.as_ref().map_or(who, |id| format!("request {id}"));
        world.believe(&who, client, grant.remaining);
        hold_lease(&world, client, &who, &grant, &mut dice).await;
    }
}

async fn hold_lease(world: &World, client: usize, who: &str, grant: &Grant, dice: &mut Dice) {
    let lease = LeaseKeys::from_id(&grant.lease_id).expect("an id of ours");
    let held_since = world.true_clock.now();
    // Only the one holder that it has may make it shorter: of two calls of one request neither knows of the other's.
    let may_shorten = !who.starts_with("request");
    let mut ttl_ms = 2600;
    while world.true_clock.now().since(held_since) < Duration::from_secs(6) {
        world.pass(dice.below(1200)).await;
        match dice.below(4) {
            // A lease of a request may be that of two calls, and neither ends it for the other.
            0 if !who.starts_with("request") => {
                world.stop_believing(who);
                let _ = world.clients[client].release(lease, None).await;
                return;
            }
            // It goes away without a word, and believes until the end.
            0 | 1 => return,
            _ => {
                ttl_ms += dice.below(30);
                let short = may_shorten && dice.chance(300);
                let ttl = match dice.below(2) {
                    _ if short => Some(300 + dice.below(600)),
                    0 => None,
                    _ => Some(ttl_ms),
                };
                if let Some(ttl) = ttl.filter(|_| short) {
                    // Whoever makes it shorter counts on no more from here on, whatever comes of it.
                    world.believe_at_most(who, Duration::from_millis(ttl));
                }
                match world.clients[client].renew(lease.clone(), ttl).await {
                    Ok(renewal) => world.believe(who, client, renewal.remaining),
                    Err(Error::Refused(_)) => {
                        world.stop_believing(who);
                        return;
                    }
                    // Nobody knows: what was believed before still ends when it did.
                    Err(_) => {}
                }
            }
        }
    }
    world.stop_believing(who);
}

/// Slows, stops and kills servers, within what the protocol bears: any number of them. Some schedules have little of it,
/// so that many leases are granted, and some a lot.
async fn make_trouble(world: Arc<World>, seed: u64, end: Time) {
    let mut dice = Dice::new(seed);
    let pause = [400, 1500, 5000, 60_000][usize::try_from(dice.below(4)).expect("small")];
    while world.true_clock.now() < end {
        world.pass(20 + dice.below(pause)).await;
        let at = usize::try_from(dice.below(world.servers.len() as u64)).expect("small");
        let server = world.servers[at].clone();
        match dice.below(8) {
            0..=2 => server.set_network(5, 0, 0),
            7 => server.set_network(100, 50, 50),
            3 => server.set_network(1500, 300, 200),
            4 => server.freeze_until(world.true_clock.now().plus_millis(dice.below(2500))),
            _ => {
                server.kill();
                let (world, pause) = (world.clone(), dice.below(800));
                tokio::spawn(async move {
                    world.pass(pause).await;
                    server.start();
                });
            }
        }
    }
}

/// What one schedule came to: how many grants, and who overlapped.
fn run_schedule(seed: u64, plant: Plant) -> (usize, Vec<String>) {
    simulate(async move {
        let mut dice = Dice::new(seed ^ 0xa5a5);
        let servers = if dice.chance(700) { 5 } else { 3 };
        let world = World::new(seed, servers, 3, plant);
        let end = Time::from_millis(15_000);
        let mut tasks = vec![tokio::spawn(make_trouble(world.clone(), dice.next(), end))];
        for client in 0..3 {
            for number in 0..2 {
                tasks.push(tokio::spawn(use_lease(world.clone(), client, number, dice.next(), end)));
            }
        }
        for task in tasks {
            task.await.expect("nobody panics");
        }
        let beliefs = world.beliefs.lock().expect("nobody panics with it");
        (beliefs.grants, beliefs.overlaps.clone())
    })
}

/// Goal: what holders may believe never overlaps. Method: random schedules.
#[test]
fn no_two_holders_believe_at_once() {
    let mut grants = 0;
    for seed in 1..=seeds() {
        let (more, overlaps) = run_schedule(seed, Plant::default());
        assert!(overlaps.is_empty(), "seed {seed}: {overlaps:#?}");
        grants += more;
    }
    println!("{} schedules, {grants} grants, no overlap", seeds());
    assert!(grants as u64 > 5 * seeds(), "the simulation grants something: {grants}");
}

/// Goal: the simulation notices each rule that is missing. Method: leave each of them out.
#[test]
fn every_missing_rule_is_noticed() {
    let flaws = NodeFlaws::default();
    let plants = [
        ("no drift", Plant { no_drift: true, ..Plant::default() }),
        ("a majority that is none", Plant { small_quorum: true, ..Plant::default() }),
        ("no quarantine", Plant { flaws: NodeFlaws { no_quarantine: true, ..flaws }, ..Plant::default() }),
        (
            "a quarantine of the own ttl",
            Plant { flaws: NodeFlaws { quarantine_by_own_ttl: true, ..flaws }, ..Plant::default() },
        ),
    ];
    for (name, plant) in plants {
        let caught = (1..=4000).find(|seed| !run_schedule(*seed, plant).1.is_empty());
        let seed = caught.unwrap_or_else(|| panic!("{name} was not noticed"));
        println!("{name}: noticed with seed {seed}");
    }
}

/// Whether a second call of a request still has the lease after the first call gave it up.
fn keeps_a_joined_lease(seed: u64, plant: Plant) -> bool {
    simulate(async move {
        let world = World::new(seed, 5, 3, plant);
        let claim = Claim::new(vec![Want::exclusive(KEY)], Duration::from_secs(2), "ada");
        let by_request = Claim { request: Some("r1".into()), ..claim.clone() };
        let first = world.acquire(0, by_request.clone()).await.expect("it is granted");
        let second = world.acquire(1, by_request).await.expect("it is the same lease");
        assert_eq!(first.lease_id, second.lease_id);
        // As if the first call had seen too few of its votes in time.
        let lease = LeaseKeys::from_id(&first.lease_id).expect("an id of ours");
        world.clients[0].abandon(&lease, &world.clients[0].everybody(), 2000);
        world.pass(300).await;
        world.acquire(2, claim).await.is_err()
    })
}

/// Goal: whoever joined the lease of another call keeps it when that call gives up. Method: with the mark, and without.
#[test]
fn a_joined_lease_cannot_be_abandoned() {
    let plant = Plant { flaws: NodeFlaws { no_join_mark: true, ..NodeFlaws::default() }, ..Plant::default() };
    for seed in 1..=100 {
        assert!(keeps_a_joined_lease(seed, Plant::default()), "seed {seed}");
        assert!(!keeps_a_joined_lease(seed, plant), "seed {seed}: the missing mark was not noticed");
    }
}

/// Whether a lease is still held after an earlier renewal, for a shorter time, has arrived late.
fn survives_a_late_renewal(seed: u64, plant: Plant) -> bool {
    simulate(async move {
        let world = World::new(seed, 5, 2, plant);
        let claim = Claim::new(vec![Want::exclusive(KEY)], Duration::from_secs(2), "ada");
        let grant = world.acquire(0, claim.clone()).await.expect("it is granted");
        let lease = LeaseKeys::from_id(&grant.lease_id).expect("an id of ours");
        world.servers.iter().for_each(|server| server.set_network(1500, 0, 0));
        // Nobody knows what came of it.
        let _ = world.clients[0].renew(lease.clone(), Some(300)).await;
        world.servers.iter().for_each(|server| server.set_network(5, 0, 0));
        world.clients[0].renew(lease, Some(2900)).await.expect("a majority answers");
        world.pass(2000).await;
        world.acquire(1, claim).await.is_err()
    })
}

/// Goal: a renewal that arrives late does not end the lease under its holder. Method: with numbers, and without.
#[test]
fn a_late_renewal_ends_no_lease() {
    let plant = Plant { flaws: NodeFlaws { no_change_numbers: true, ..NodeFlaws::default() }, ..Plant::default() };
    for seed in 1..=100 {
        assert!(survives_a_late_renewal(seed, Plant::default()), "seed {seed}");
    }
    let noticed = (1..=100).filter(|seed| !survives_a_late_renewal(*seed, plant)).count();
    assert!(noticed > 90, "missing numbers are noticed with {noticed} of 100 seeds");
}

/// How many nodes are still locked when a failed acquire of a long lease should have been undone.
fn left_locked(seed: u64, plant: Plant) -> usize {
    simulate(async move {
        let world = World::new(seed, 5, 1, plant);
        let mut dice = Dice::new(seed);
        let frozen = Time::from_millis(100 + dice.below(1500));
        for server in &world.servers[..3] {
            server.freeze_until(frozen);
            server.set_network(50, 0, 0);
        }
        // Ten seconds: longer than the time that is allowed for undoing it.
        let claim = Claim::new(vec![Want::exclusive(KEY)], Duration::from_secs(10), "ada");
        let answer = world.acquire(0, claim).await;
        world.heal();
        match answer {
            Ok(grant) => {
                let lease = LeaseKeys::from_id(&grant.lease_id).expect("an id of ours");
                world.clients[0].release(lease, None).await.expect("a majority answers");
            }
            Err(error) => assert!(matches!(error, Error::Unavailable { .. }), "{error:?}"),
        }
        world.pass(6000).await;
        world.servers.iter().filter(|server| server.is_locked(KEY)).count()
    })
}

/// Goal: a failed acquire leaves no node locked, even those that carry it out after it was given up.
/// Method: three of five are stopped while it is sent, and go on after it failed.
#[test]
fn a_failed_acquire_leaves_no_node_locked() {
    for seed in 1..=seeds() {
        assert_eq!(left_locked(seed, Plant::default()), 0, "seed {seed}");
    }
    let plant = Plant { flaws: NodeFlaws { no_ban: true, ..NodeFlaws::default() }, ..Plant::default() };
    let caught = (1..=500).find(|seed| left_locked(*seed, plant) > 0);
    println!("without the ban: noticed with seed {}", caught.expect("without the ban it is noticed"));
}

/// Goal: one node of five that is dead, slow, stopped or black-holed is never an error and hardly a delay.
/// Method: each kind of trouble at each node; acquire, renew, release; repeat a request.
#[test]
fn one_bad_node_of_five_is_never_an_error() {
    for seed in 1..=60 {
        for bad in 0..5 {
            for kind in 0..5 {
                simulate(async move {
                    let world = World::new(seed, 5, 2, Plant::default());
                    let server = &world.servers[bad];
                    match kind {
                        0 => server.kill(),
                        1 => server.set_network(1900, 0, 0),
                        2 => server.set_network(5, 1000, 0),
                        3 => server.freeze_until(Time::from_millis(3_600_000)),
                        _ => {
                            server.kill();
                            server.start();
                        }
                    }
                    for round in 0..5 {
                        let request = (round % 2 == 0).then(|| format!("r{round}"));
                        let claim = Claim::new(vec![Want::exclusive(KEY)], Duration::from_secs(2), "ada");
                        let claim = Claim { request, ..claim };
                        let began = world.true_clock.now();
                        let grant = world.acquire(round % 2, claim.clone()).await.expect("it is granted");
                        if claim.request.is_some() {
                            let again = world.acquire((round + 1) % 2, claim).await.expect("it is granted");
                            assert_eq!(again.lease_id, grant.lease_id);
                        }
                        let lease = LeaseKeys::from_id(&grant.lease_id).expect("an id of ours");
                        world.clients[round % 2].renew(lease.clone(), None).await.expect("it is renewed");
                        let taken = world.clients[(round + 1) % 2].renew(lease.clone(), None).await;
                        taken.expect("it is renewed from elsewhere");
                        assert!(world.clients[round % 2].release(lease, None).await.expect("it is released"));
                        let took = world.true_clock.now().since(began);
                        assert!(took < Duration::from_millis(600), "seed {seed}, node {bad}, kind {kind}: {took:?}");
                    }
                });
            }
        }
    }
}

/// Goal: whoever waits is as patient as it said while nodes are in quarantine, and no longer; an outage is given up earlier.
/// Method: all nodes that may forget are restarted, with a quarantine of two minutes.
#[test]
fn a_wait_outlasts_the_quarantine() {
    for seed in 1..=20 {
        simulate(async move {
            let plant = Plant { all_forget: true, ..Plant::default() };
            let world = World::with_quarantine(seed, 5, 1, plant, Duration::from_secs(120));
            world.pass(100).await;
            world.servers.iter().for_each(|server| server.kill());
            world.servers.iter().for_each(|server| server.start());
            let claim = Claim::new(vec![Want::exclusive(KEY)], Duration::from_secs(20), "ada");
            let began = world.true_clock.now();
            let waiting = |seconds: u64, request: Option<&str>| Claim {
                wait: Duration::from_secs(seconds),
                request: request.map(Into::into),
                ..claim.clone()
            };
            let early = world.acquire(0, waiting(50, None)).await;
            let took = world.true_clock.now().since(began);
            assert!(matches!(early, Err(Error::Unavailable { .. })), "{early:?}");
            assert!((Duration::from_secs(49)..Duration::from_secs(52)).contains(&took), "seed {seed}: {took:?}");
            let granted = world.acquire(0, waiting(300, (seed % 2 == 0).then_some("r1"))).await;
            granted.unwrap_or_else(|error| panic!("seed {seed}: {error:?}"));
            let took = world.true_clock.now().since(began);
            assert!((Duration::from_secs(118)..Duration::from_secs(123)).contains(&took), "seed {seed}: {took:?}");
            // Servers that are gone are given up after half a minute.
            world.servers.iter().for_each(|server| server.kill());
            let began = world.true_clock.now();
            world.acquire(0, waiting(300, None)).await.expect_err("nobody is there");
            let took = world.true_clock.now().since(began);
            assert!(took < Duration::from_secs(33), "seed {seed}: {took:?}");
        });
    }
}

/// Goal: many who try at once do not split the votes for ever. Method: crowds without patience; one of them has it.
#[test]
fn a_crowd_gets_one_holder() {
    for seed in 1..=100 {
        for crowd in [2, 8, 24] {
            let granted = simulate(async move {
                let world = World::new(seed, 5, 3, Plant::default());
                let tasks: Vec<_> = (0..crowd)
                    .map(|n| {
                        let world = world.clone();
                        let claim = Claim::new(vec![Want::exclusive(KEY)], Duration::from_secs(20), "ada");
                        tokio::spawn(async move { world.acquire(n % 3, claim).await })
                    })
                    .collect();
                let mut granted = 0;
                for task in tasks {
                    match task.await.expect("nobody panics") {
                        Ok(_) => granted += 1,
                        Err(Error::Refused(Refusal::Held { .. })) => {}
                        Err(other) => panic!("{other:?}"),
                    }
                }
                granted
            });
            assert_eq!(granted, 1, "seed {seed}, {crowd} of them");
        }
    }
}

/// Goal: a node that lost a lease has it again after a renewal. Method: forget it on two nodes, renew once.
#[test]
fn a_renewal_repairs_nodes_that_lost_the_lease() {
    simulate(async {
        let world = World::new(7, 5, 1, Plant::default());
        let claim = Claim::new(vec![Want::exclusive(KEY)], Duration::from_secs(2), "ada");
        let grant = world.acquire(0, claim).await.expect("it is granted");
        world.pass(100).await;
        world.servers[1].flush();
        world.servers[3].flush();
        let lease = LeaseKeys::from_id(&grant.lease_id).expect("an id of ours");
        world.clients[0].renew(lease.clone(), None).await.expect("three of five have it");
        world.pass(100).await;
        assert_eq!(world.servers.iter().filter(|server| server.is_locked(KEY)).count(), 5);
        // Three of five is what it takes: with fewer it is not revived.
        [0, 2, 4].iter().for_each(|at: &usize| world.servers[*at].flush());
        let refused = world.clients[0].renew(lease, None).await;
        assert!(matches!(refused, Err(Error::Refused(Refusal::NotHeld | Refusal::Stale))), "{refused:?}");
        world.pass(100).await;
        assert_eq!(world.servers.iter().filter(|server| server.is_locked(KEY)).count(), 2);
    });
}

/// Expected failure, kept: three of five forget everything inside the ttl without being restarted, and there are two
/// holders. Nothing here can tell. That is why Redlock promises no fencing.
#[test]
fn a_majority_that_is_flushed_makes_two_holders() {
    simulate(async {
        let world = World::new(3, 5, 2, Plant::default());
        let claim = Claim::new(vec![Want::exclusive(KEY)], Duration::from_secs(2), "ada");
        world.acquire(0, claim.clone()).await.expect("ada has it");
        world.pass(100).await;
        world.servers[..3].iter().for_each(|server| server.flush());
        world.acquire(1, claim).await.expect("and so has bob");
    });
}
