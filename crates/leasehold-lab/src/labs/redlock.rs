//! Two majorities of five nodes: after a restart of one node, and after a step of its clock.
//!
//! Redlock asks every node with `SET NX PX` and holds the lock if a majority said yes. That is right as long as no node
//! forgets and no clock steps.

use std::time::Duration;

use leasehold_harness::frozen_clock::FrozenClock;
use leasehold_harness::proxy::Proxy;
use leasehold_harness::redis::RedisServer;
use leasehold_support::time::wall_ms;

use super::steps::{
    HOLDS_SEAT, LOCK_KEY, WriterStanding, acquire_order, outcome_text, record_write, restart_embedded, write_order,
    write_seat,
};
use crate::order::{AcquireOrder, ActorOrder, ActorOutcome};
use crate::seat::{SEAT, SeatStore};
use crate::stage::{ActorProcess, LabLine, Stage, blocking};
use crate::timeline::ActKind;

const NODES: usize = 5;
const MAJORITY: usize = 3;
const TTL_MS: u64 = 30_000;
/// How long our engine does not count a node that was started; no lease is longer.
const QUARANTINE: Duration = Duration::from_secs(2);
const PLAIN_TTL_MS: u64 = 1_500;
/// Until the nodes of an act have been up for that long.
const NODES_SETTLE: Duration = Duration::from_millis(4_200);
const CLOCK_STEP_MS: u64 = 60_000;

/// Which nodes ada and bob cannot reach, counted from 1.
const ADA_CUT_OFF: [usize; 2] = [4, 5];

pub async fn play(stage: &mut Stage) -> anyhow::Result<String> {
    stage.record.begin_act(ActKind::Failure, "a node restarts without its memory")?;
    after_restart(stage).await?;
    let stepped = after_clock_step(stage).await?;

    stage
        .record
        .begin_act(ActKind::Cure, "redlock:// gives no token, and does not ask a node that may have forgotten")?;
    our_redlock(stage).await?;

    stage
        .record
        .begin_act(ActKind::Cure, "the embedded engine: what was answered is on disk, and no wall clock is asked")?;
    restart_embedded(stage).await?;
    let clock = if stepped { " and once after a clock stepped" } else { "" };
    Ok(format!(
        "Seen: ada and bob each had a majority of the nodes at the same time, once after a restart{clock}, without an error \
         anywhere; redlock:// gives no token to be trusted with data, and the embedded engine still knew ada after kill -9."
    ))
}

/// Five nodes, and the ways of ada and bob to each.
struct RedlockNodes {
    servers: Vec<RedisServer>,
    ada_proxies: Vec<Proxy>,
    bob_proxies: Vec<Proxy>,
}

impl RedlockNodes {
    async fn start(stage: &Stage, bob_cut_off: &[usize], clock: Option<(usize, FrozenClock)>) -> anyhow::Result<Self> {
        let mut servers = Vec::new();
        for node in 1..=NODES {
            let own = clock.as_ref().filter(|(of, _)| *of == node).map(|(_, clock)| clock.clone());
            servers.push(stage.start_redis_under(&[], own).await?);
        }
        let proxies = |cut_off: &[usize]| {
            let made = servers.iter().enumerate().map(|(index, server)| {
                let proxy = stage.start_proxy(server.port())?;
                proxy.refuse(cut_off.contains(&(index + 1)));
                anyhow::Ok(proxy)
            });
            made.collect::<anyhow::Result<Vec<_>>>()
        };
        let (ada_proxies, bob_proxies) = (proxies(&ADA_CUT_OFF)?, proxies(bob_cut_off)?);
        Ok(Self { servers, ada_proxies, bob_proxies })
    }

    async fn restart_empty(&mut self, node: usize) -> anyhow::Result<()> {
        let server = self.servers.remove(node - 1);
        server.kill();
        let server = blocking("restart a node", move || server.try_start_server().map(|()| server)).await?;
        self.servers.insert(node - 1, server);
        Ok(())
    }
}

async fn after_restart(stage: &mut Stage) -> anyhow::Result<()> {
    let store = stage.seat_store("restart").await?;
    store.create_seats(false).await?;
    let mut nodes = RedlockNodes::start(stage, &[1, 3], None).await?;
    let (mut ada, mut bob) = (stage.start_actor("ada")?, stage.start_actor("bob")?);
    stage.record.add(LabLine::new("lab", "cuts ada off from nodes 4 and 5, bob from 1 and 3"))?;
    let hers = ask_majority(stage, &mut ada, &nodes.ada_proxies, None).await?;
    nodes.restart_empty(2).await?;
    stage.record.add(LabLine::new("lab", "kills node 2, and starts it again: it is empty"))?;
    let his = ask_majority(stage, &mut bob, &nodes.bob_proxies, Some("ada")).await?;
    stage.record.expect(hers == [1, 2, 3] && his == [2, 4, 5], "ada has nodes 1, 2, 3 and bob has 2, 4, 5");
    both_write(stage, &mut ada, &mut bob, &store).await
}

/// False where there is no C compiler to make a clock with.
async fn after_clock_step(stage: &mut Stage) -> anyhow::Result<bool> {
    let now_ms = wall_ms();
    stage.record.begin_act(ActKind::Failure, "the clock of a node steps forward by 60 s")?;
    let Some(clock) = stage.frozen_clock(now_ms).await? else {
        let line = LabLine::new("lab", "leaves this act out: it needs a C compiler");
        stage.record.add(line.verdict("apt-get install gcc"))?;
        return Ok(false);
    };
    let store = stage.seat_store("clock").await?;
    store.create_seats(false).await?;
    let nodes = RedlockNodes::start(stage, &[1, 2], Some((3, clock.clone()))).await?;
    let (mut ada, mut bob) = (stage.start_actor("ada")?, stage.start_actor("bob")?);
    stage.record.add(LabLine::new("lab", "cuts ada off from nodes 4 and 5, bob from 1 and 2"))?;
    let hers = ask_majority(stage, &mut ada, &nodes.ada_proxies, None).await?;
    clock.try_set_micros(now_ms.saturating_add(CLOCK_STEP_MS).saturating_mul(1_000))?;
    stage.record.add(LabLine::new("lab", "steps the clock of node 3 by 60 s"))?;
    let his = ask_majority(stage, &mut bob, &nodes.bob_proxies, Some("ada")).await?;
    stage.record.expect(hers == [1, 2, 3] && his == [3, 4, 5], "ada has nodes 1, 2, 3 and bob has 3, 4, 5");
    both_write(stage, &mut ada, &mut bob, &store).await?;
    Ok(true)
}

/// The nodes that granted the lock.
async fn ask_majority(
    stage: &mut Stage,
    actor: &mut ActorProcess,
    proxies: &[Proxy],
    beside: Option<&str>,
) -> anyhow::Result<Vec<usize>> {
    let order = ActorOrder::Majority {
        ports: proxies.iter().map(Proxy::port).collect(),
        name: LOCK_KEY.into(),
        value: actor.name().into(),
        ttl_ms: TTL_MS,
    };
    let reply = actor.ask(order).await?;
    let ActorOutcome::Votes { nodes } = reply.outcome else {
        anyhow::bail!("{} could not ask the nodes: {}", actor.name(), outcome_text(&reply.outcome));
    };
    let names = nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let line = LabLine::new(actor.name(), "asks 5 nodes: SET NX PX 30000").at(reply.at_ns);
    let granted = nodes.len() >= MAJORITY;
    let line = match (granted, beside) {
        (true, None) => line.believes(HOLDS_SEAT).good(format!("granted by nodes {names}")),
        (true, Some(other)) => {
            line.believes(HOLDS_SEAT).bad(format!("granted by nodes {names}, and {other} holds it too"))
        }
        (false, _) => line.verdict(format!("refused: only nodes {names}")),
    };
    stage.record.add(line)?;
    if granted {
        stage.record.begin_belief(actor.name(), reply.at_ns);
    }
    Ok(nodes)
}

/// Both sell the seat, and nobody objects.
async fn both_write(
    stage: &mut Stage,
    ada: &mut ActorProcess,
    bob: &mut ActorProcess,
    store: &SeatStore,
) -> anyhow::Result<()> {
    write_seat(stage, ada, store, None).await?;
    let reply = bob.ask(write_order(bob, store, None)).await?;
    let wrote = record_write(stage, bob, &reply, WriterStanding::SecondHolder)?;
    stage.record.expect(wrote, "both sell the seat");
    Ok(())
}

async fn our_redlock(stage: &mut Stage) -> anyhow::Result<()> {
    let mut nodes = RedlockNodes::start(stage, &[1, 3], None).await?;
    let (mut ada, mut bob) = (stage.start_actor("ada")?, stage.start_actor("bob")?);
    let url = |proxies: &[Proxy]| {
        let places: Vec<String> = proxies.iter().map(|proxy| format!("127.0.0.1:{}", proxy.port())).collect();
        format!("redlock://{}?quarantine={}s", places.join(","), QUARANTINE.as_secs())
    };
    let (her_url, his_url) = (url(&nodes.ada_proxies), url(&nodes.bob_proxies));
    let reply = ada.ask(acquire_order(&her_url, QUARANTINE, Duration::ZERO)).await?;
    let refused = matches!(&reply.outcome, ActorOutcome::Refused { .. });
    let line = LabLine::new("ada", format!("asks for {SEAT} with a token")).at(reply.at_ns);
    let why = outcome_text(&reply.outcome);
    stage.record.add(if refused { line.good("refused: Redlock has no tokens") } else { line.bad(why.as_str()) })?;
    stage.record.expect(refused && why.contains("fencing"), "redlock:// refuses a lease with a token");

    stage.wait(NODES_SETTLE).await;
    let reply = ada.ask(plain_order(&her_url)).await?;
    let granted = matches!(&reply.outcome, ActorOutcome::Granted { .. });
    let line = LabLine::new("ada", format!("asks for {SEAT} without one")).believes(HOLDS_SEAT).at(reply.at_ns);
    stage.record.add(if granted { line.good("granted") } else { line.bad(outcome_text(&reply.outcome)) })?;
    stage.record.expect(granted, "redlock:// grants a lease without a token");
    stage.record.begin_belief("ada", reply.at_ns);
    nodes.restart_empty(2).await?;
    stage.record.add(LabLine::new("lab", "kills node 2, and starts it again: it is empty"))?;
    let reply = bob.ask(plain_order(&his_url)).await?;
    let refused = !matches!(&reply.outcome, ActorOutcome::Granted { .. });
    let line = LabLine::new("bob", format!("asks for {SEAT} without one")).at(reply.at_ns);
    let why = outcome_text(&reply.outcome);
    stage.record.add(if refused {
        line.good("not granted: no majority that remembers")
    } else {
        line.bad("granted")
    })?;
    stage.record.add(LabLine::new("engine", "says why").verdict(why.as_str()).at(reply.at_ns))?;
    stage.record.expect(refused, "redlock:// does not count a node that was restarted");
    Ok(())
}

/// The order for a lease without a token on the seat.
fn plain_order(url: &str) -> ActorOrder {
    ActorOrder::Acquire(AcquireOrder {
        url: url.to_owned(),
        name: SEAT.to_owned(),
        ttl_ms: PLAIN_TTL_MS,
        wait_ms: 0,
        fenced: false,
    })
}
