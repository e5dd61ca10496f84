//! A Redis fails over to a replica that has not heard of the lock.
//!
//! Replication is asynchronous: what the master answered may be lost with it. Then two actors hold the lock with the *same*
//! token, and a fence can only tell that they differ, not who is newer.

use std::time::Duration;

use leasehold::LeaseId;
use leasehold_harness::proxy::Proxy;
use leasehold_harness::redis::{DURABLE, RedisServer};

use super::steps::{
    HOLDS_SEAT, RedisLock, WriterStanding, acquire_order, ask_redis, judge_owner, outcome_text, record_write,
    restart_embedded, set_lock, write_order, write_seat,
};
use crate::order::ActorOutcome;
use crate::seat::SEAT;
use crate::stage::{ActorProcess, LabLine, Stage, blocking};
use crate::timeline::ActKind;

const TTL_MS: u64 = 30_000;
const LEASE_TTL: Duration = Duration::from_secs(10);
const TOKEN_KEY: &str = "token:seat/14";

pub async fn play(stage: &mut Stage) -> anyhow::Result<String> {
    stage.record.begin_act(ActKind::Failure, "the lock is lost with the master, and the seat takes any write")?;
    let unfenced = fail_over(stage, false).await?;
    stage.record.expect(unfenced.bob_wrote, "both writes are admitted");

    stage.record.begin_act(ActKind::Failure, "with a fence: both have the same token, and only the mark differs")?;
    let fenced = fail_over(stage, true).await?;
    stage.record.expect(!fenced.bob_wrote, "the fence refuses the second lease under one token");
    stage.record.expect(fenced.tokens.0 == fenced.tokens.1, "both have the same token");

    stage.record.begin_act(ActKind::Cure, "the redis:// engine gives no token where a replica could take over")?;
    refuse_beside_replica(stage).await?;

    stage.record.begin_act(ActKind::Cure, "the embedded engine: what was answered is on disk")?;
    restart_embedded(stage).await?;
    Ok(format!(
        "Seen: after the failover ada and bob both held the lock, both with token {}, and bob's write took the place of \
         ada's; a fence can only tell that they differ; the redis:// engine refuses to give tokens beside a replica, and the \
         embedded engine still knew ada after kill -9.",
        unfenced.tokens.0
    ))
}

/// What a failover came to.
struct FailoverResult {
    bob_wrote: bool,
    tokens: (String, String),
}

async fn fail_over(stage: &mut Stage, fenced: bool) -> anyhow::Result<FailoverResult> {
    let store = stage.seat_store(if fenced { "fenced" } else { "seats" }).await?;
    store.create_seats(fenced).await?;
    let (mut ada, mut bob) = (stage.start_actor("ada")?, stage.start_actor("bob")?);
    let (master, replica, proxy) = start_pair(stage).await?;
    proxy.black_hole(true);
    stage.record.add(LabLine::new("lab", "cuts the replica off from its master"))?;

    set_lock(stage, &mut ada, &RedisLock { port: master.port(), value: "ada", ttl_ms: Some(TTL_MS) }, None).await?;
    let hers = draw_token(stage, &mut ada, master.port()).await?;
    master.kill();
    stage.record.add(LabLine::new("lab", "kills the master (kill -9)"))?;
    let promoted = replica.try_command(&["REPLICAOF", "NO", "ONE"])?;
    stage.record.add(LabLine::new("lab", "makes the replica the master").verdict(promoted.trim()))?;
    let lock = RedisLock { port: replica.port(), value: "bob", ttl_ms: Some(TTL_MS) };
    let bobs = set_lock(stage, &mut bob, &lock, Some("ada")).await?;
    stage.record.expect(bobs, "the promoted replica grants the lock again");
    let his = draw_token(stage, &mut bob, replica.port()).await?;

    let shown = |token: &str, value: &str| format!("{token}:{}", LeaseId::new(value).mark());
    write_seat(stage, &mut ada, &store, Some(&shown(&hers, "ada"))).await?;
    // Neither writer is right: nobody can say who of the two holds it.
    let reply = bob.ask(write_order(&bob, &store, Some(&shown(&his, "bob")))).await?;
    let bob_wrote = record_write(stage, &bob, &reply, WriterStanding::SecondHolder)?;
    let code = matches!(&reply.outcome, ActorOutcome::Fenced { code, .. } if code == "LH003");
    stage.record.expect(code == fenced, "a fence says that it is another lease");
    judge_owner(stage, &store, "ada", "ada's sale is lost, without an error").await?;
    Ok(FailoverResult { bob_wrote, tokens: (hers, his) })
}

/// A master, and a replica that copies from it through a proxy.
async fn start_pair(stage: &Stage) -> anyhow::Result<(RedisServer, RedisServer, Proxy)> {
    // Durable: what is lost is lost by the failover alone.
    let master = stage.start_redis(&[DURABLE, &["--repl-diskless-sync-delay 0"]].concat()).await?;
    let proxy = stage.start_proxy(master.port())?;
    let replica = stage.start_redis(&[&format!("--replicaof 127.0.0.1 {}", proxy.port())]).await?;
    let replica = blocking("let the replica copy", move || replica.wait_until_following().map(|()| replica)).await?;
    Ok((master, replica, proxy))
}

async fn draw_token(stage: &mut Stage, actor: &mut ActorProcess, port: u16) -> anyhow::Result<String> {
    let (token, at_ns) = ask_redis(actor, port, &["INCR", TOKEN_KEY]).await?;
    let line = LabLine::new(actor.name(), format!("INCR {TOKEN_KEY}")).believes(HOLDS_SEAT);
    stage.record.add(line.verdict(format!("token {token}")).at(at_ns))?;
    Ok(token)
}

/// Our engine looks at the settings before it promises anything.
async fn refuse_beside_replica(stage: &mut Stage) -> anyhow::Result<()> {
    let (master, _replica, _proxy) = start_pair(stage).await?;
    let mut ada = stage.start_actor("ada")?;
    let reply = ada.ask(acquire_order(&master.url(), LEASE_TTL, Duration::ZERO)).await?;
    let why = outcome_text(&reply.outcome);
    let refused = matches!(reply.outcome, ActorOutcome::Refused { .. });
    let line = LabLine::new("ada", format!("asks for {SEAT} with a token")).at(reply.at_ns);
    stage.record.add(if refused { line.good("refused before anything was taken") } else { line.bad(why.as_str()) })?;
    stage.record.add(LabLine::new("engine", "says why").verdict(why.as_str()))?;
    stage.record.expect(refused && why.contains("replica"), "the engine refuses, and names the replica");
    Ok(())
}
