//! Four ways in which `SET NX` fails as a lock, and two cures: a check beside the data, and an engine that keeps its word.

use std::time::Duration;

use leasehold::fence::redis::RedisFence;
use leasehold_harness::redis::{DURABLE, RedisServer};

use super::steps::{
    HOLDS_SEAT, LOCK_KEY, RedisLock, acquire_order, ask_redis, freeze_actor, is_refused, outcome_text, set_lock,
    take_lease, thaw_actor,
};
use crate::order::{ActorOrder, ActorOutcome};
use crate::seat::SEAT;
use crate::stage::{ActorProcess, LabLine, Stage, blocking};
use crate::timeline::{ActKind, WriteFate};

const ADA_TTL_MS: u64 = 300;
const OTHERS_TTL_MS: u64 = 10_000;
const BOB_COMES: Duration = Duration::from_millis(350);
const LEASE_TTL: Duration = Duration::from_secs(2);
const BOB_WAITS: Duration = Duration::from_secs(10);

const OWNER_KEY: &str = "seat:14:owner";
const TOKEN_KEY: &str = "token:seat/14";

pub async fn play(stage: &mut Stage) -> anyhow::Result<String> {
    without_expiry(stage).await?;
    late_delete(stage).await?;
    restart_without_memory(stage).await?;
    late_write(stage, false).await?;
    late_write(stage, true).await?;
    durable_engine(stage).await?;
    Ok("Seen: a lock without expiry was held for ever by the dead, a late DEL and an empty restart each made two holders, and \
        a late write overwrote a newer one; the script refused the late write, and the engine on durable settings kept its \
        lease over kill -9 and passed it on when its holder died."
        .into())
}

/// ada dies, and nobody gets the lock any more.
async fn without_expiry(stage: &mut Stage) -> anyhow::Result<()> {
    stage.record.begin_act(ActKind::Failure, "no expiry, and the holder dies")?;
    let redis = stage.start_redis(&[]).await?;
    let port = redis.port();
    let (mut ada, mut bob) = (stage.start_actor("ada")?, stage.start_actor("bob")?);
    set_lock(stage, &mut ada, &RedisLock { port, value: "ada", ttl_ms: None }, None).await?;
    ada.kill();
    stage.record.end_belief("ada", None);
    stage.record.add(LabLine::new("ada", "dies (kill -9)"))?;
    stage.wait(BOB_COMES).await;
    let (left, at_ns) = ask_redis(&mut bob, port, &["PTTL", LOCK_KEY]).await?;
    let verdict = if left == "-1" { "-1: it never ends" } else { left.as_str() };
    stage.record.add(LabLine::new("bob", "PTTL lock:seat/14").bad(verdict).at(at_ns))?;
    let bobs = set_lock(stage, &mut bob, &RedisLock { port, value: "bob", ttl_ms: None }, None).await?;
    stage.record.expect(left == "-1" && !bobs, "the lock of the dead has no end");
    Ok(())
}

/// ada is late, and deletes the lock of bob.
async fn late_delete(stage: &mut Stage) -> anyhow::Result<()> {
    stage.record.begin_act(ActKind::Failure, "the holder sleeps, and deletes the lock of the next")?;
    let redis = stage.start_redis(&[]).await?;
    let port = redis.port();
    let mut ada = stage.start_actor("ada")?;
    let (mut bob, mut cleo) = (stage.start_actor("bob")?, stage.start_actor("cleo")?);
    set_lock(stage, &mut ada, &RedisLock { port, value: "ada", ttl_ms: Some(ADA_TTL_MS) }, None).await?;
    freeze_actor(stage, &ada, "releases")?;
    let order = ActorOrder::Redis { port, words: vec!["DEL".into(), LOCK_KEY.into()] };
    ada.send(&order).await?;
    stage.wait(BOB_COMES).await;
    set_lock(stage, &mut bob, &RedisLock { port, value: "bob", ttl_ms: Some(OTHERS_TTL_MS) }, None).await?;
    thaw_actor(stage, &ada)?;
    let reply = ada.reply().await?;
    let deleted = outcome_text(&reply.outcome) == "1";
    let line = LabLine::new("ada", "releases: DEL lock:seat/14").believes("it releases its own");
    let verdict = if deleted { "1: bob's lock is gone" } else { "not deleted" };
    stage.record.add(line.bad(verdict).at(reply.at_ns))?;
    stage.record.end_belief("ada", Some(reply.at_ns));
    let lock = RedisLock { port, value: "cleo", ttl_ms: Some(OTHERS_TTL_MS) };
    let cleos = set_lock(stage, &mut cleo, &lock, Some("bob")).await?;
    stage.record.expect(deleted && cleos, "bob and cleo hold the lock at once");
    stage.wait(Duration::from_millis(100)).await;
    Ok(())
}

/// The server forgets.
async fn restart_without_memory(stage: &mut Stage) -> anyhow::Result<()> {
    stage.record.begin_act(ActKind::Failure, "the server restarts without its memory")?;
    let redis = stage.start_redis(&[]).await?;
    let port = redis.port();
    let (mut ada, mut bob) = (stage.start_actor("ada")?, stage.start_actor("bob")?);
    set_lock(stage, &mut ada, &RedisLock { port, value: "ada", ttl_ms: Some(OTHERS_TTL_MS) }, None).await?;
    redis.kill();
    stage.record.add(LabLine::new("lab", "kills Redis (kill -9)"))?;
    let lock = RedisLock { port, value: "bob", ttl_ms: Some(OTHERS_TTL_MS) };
    let unreachable = !set_lock(stage, &mut bob, &lock, None).await?;
    let redis = start_again(redis).await?;
    stage.record.add(LabLine::new("lab", "starts it again: it is empty"))?;
    let bobs = set_lock(stage, &mut bob, &lock, Some("ada")).await?;
    stage.record.expect(unreachable, "a dead Redis gives no lock");
    stage.record.expect(bobs, "ada and bob hold the lock at once");
    stage.wait(Duration::from_millis(100)).await;
    drop(redis);
    Ok(())
}

/// ada is late with her write; with the script, the data refuses it.
async fn late_write(stage: &mut Stage, fenced: bool) -> anyhow::Result<()> {
    if fenced {
        stage
            .record
            .begin_act(ActKind::Cure, "the same, and each write goes through the script that compares tokens")?;
    } else {
        stage.record.begin_act(ActKind::Failure, "the holder sleeps, and writes over the next")?;
    }
    let redis = stage.start_redis(&[]).await?;
    let port = redis.port();
    let (mut ada, mut bob) = (stage.start_actor("ada")?, stage.start_actor("bob")?);
    set_lock(stage, &mut ada, &RedisLock { port, value: "ada", ttl_ms: Some(ADA_TTL_MS) }, None).await?;
    let hers = draw_token(stage, &mut ada, port).await?;
    freeze_actor(stage, &ada, "writes")?;
    let write = |name: &str, token: &str| ActorOrder::Redis { port, words: write_words(name, token, fenced) };
    ada.send(&write("ada", &hers)).await?;
    stage.wait(BOB_COMES).await;
    set_lock(stage, &mut bob, &RedisLock { port, value: "bob", ttl_ms: Some(OTHERS_TTL_MS) }, None).await?;
    let his = draw_token(stage, &mut bob, port).await?;
    let written = bob.ask(write("bob", &his)).await?;
    record_redis_write(stage, "bob", &written.outcome, written.at_ns, true)?;
    thaw_actor(stage, &ada)?;
    let late = ada.reply().await?;
    record_redis_write(stage, "ada", &late.outcome, late.at_ns, false)?;
    let (owner, at_ns) = ask_redis(&mut bob, port, &["GET", OWNER_KEY]).await?;
    let line = LabLine::new("bob", format!("GET {OWNER_KEY}: {owner}")).at(at_ns);
    let stands = owner == "bob";
    stage.record.add(if stands {
        line.good("as it should be")
    } else {
        line.bad("bob's write is lost, without an error")
    })?;
    if fenced {
        stage.record.expect(stands, "bob's write stands");
        let stale = format!("STALE presented={hers} highest={his}");
        stage.record.expect(outcome_text(&late.outcome).contains(&stale), "the script refuses ada's token");
    } else {
        stage.record.expect(owner == "ada", "ada's late write takes the place of bob's");
    }
    Ok(())
}

/// With durable settings and our engine, the first three do not happen.
async fn durable_engine(stage: &mut Stage) -> anyhow::Result<()> {
    stage
        .record
        .begin_act(ActKind::Cure, "the redis:// engine on durable settings: nothing forgotten, nothing for ever")?;
    let redis = stage.start_redis(DURABLE).await?;
    let url = redis.url();
    let (mut ada, mut bob) = (stage.start_actor("ada")?, stage.start_actor("bob")?);
    let hers = take_lease(stage, &mut ada, &url, LEASE_TTL, Duration::ZERO).await?;
    redis.kill();
    stage.record.add(LabLine::new("lab", "kills Redis (kill -9)"))?;
    let redis = start_again(redis).await?;
    stage.record.add(LabLine::new("lab", "starts it again: it remembers"))?;
    let refused = is_refused(stage, &mut bob, &url).await?;
    stage.record.expect(refused, "after the restart ada still holds the lease");
    ada.kill();
    stage.record.end_belief("ada", None);
    stage.record.add(LabLine::new("ada", "dies (kill -9)"))?;
    let reply = bob.ask(acquire_order(&url, LEASE_TTL, BOB_WAITS)).await?;
    let token = match &reply.outcome {
        ActorOutcome::Granted { token: Some(token), .. } => *token,
        other => anyhow::bail!("bob did not get the lease of the dead: {}", outcome_text(other)),
    };
    stage.record.begin_belief("bob", reply.at_ns);
    let line = LabLine::new("bob", format!("waits for {SEAT}, until ada's lease lapses")).believes(HOLDS_SEAT);
    stage.record.add(line.good("granted, with a higher token").at(reply.at_ns))?;
    stage.record.expect(token > hers.token, "bob's token is higher than ada's");
    drop(redis);
    Ok(())
}

async fn start_again(redis: RedisServer) -> anyhow::Result<RedisServer> {
    blocking("start Redis again", move || redis.try_start_server().map(|()| redis)).await
}

async fn draw_token(stage: &mut Stage, actor: &mut ActorProcess, port: u16) -> anyhow::Result<String> {
    let (token, at_ns) = ask_redis(actor, port, &["INCR", TOKEN_KEY]).await?;
    let line = LabLine::new(actor.name(), format!("INCR {TOKEN_KEY}")).believes(HOLDS_SEAT);
    stage.record.add(line.verdict(format!("token {token}")).at(at_ns))?;
    Ok(token)
}

fn write_words(name: &str, token: &str, fenced: bool) -> Vec<String> {
    let (script, fence) = (RedisFence::script_text(), RedisFence::fence_key(SEAT));
    let words: &[&str] = if fenced {
        &["EVAL", &script, "2", &fence, OWNER_KEY, "1", token, "", "SET", name]
    } else {
        &["SET", OWNER_KEY, name]
    };
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn record_redis_write(
    stage: &mut Stage,
    name: &str,
    outcome: &ActorOutcome,
    at_ns: u64,
    rightful: bool,
) -> anyhow::Result<()> {
    let text = outcome_text(outcome);
    let line = LabLine::new(name, format!("writes: {OWNER_KEY} = {name}")).believes(HOLDS_SEAT).at(at_ns);
    let (line, fate) = match (text == "OK", rightful) {
        (true, true) => (line.good("OK"), WriteFate::Admitted),
        (true, false) => (line.bad("OK, though it is too late"), WriteFate::WronglyAdmitted),
        (false, _) => (line.good(format!("fenced: {text}")), WriteFate::Fenced),
    };
    stage.record.mark_write(name, at_ns, fate);
    stage.record.add(line)
}
