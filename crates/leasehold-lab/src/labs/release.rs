//! A late holder releases the lock of another.
//!
//! ada's lock lapses, bob takes it, then ada releases. `DEL` does not ask whose lock it is. A release that compares the
//! value first does no harm.

use std::time::Duration;

use super::steps::{LOCK_KEY, RedisLock, ask_redis, set_lock};
use crate::stage::{LabLine, Stage};
use crate::timeline::ActKind;

const ADA_TTL_MS: u64 = 300;
const OTHERS_TTL_MS: u64 = 10_000;
/// When bob comes: ada's lock has lapsed.
const BOB_COMES: Duration = Duration::from_millis(350);

/// The release that every text on Redis locks prints.
const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

pub async fn play(stage: &mut Stage) -> anyhow::Result<String> {
    stage.record.begin_act(ActKind::Failure, "release by DEL")?;
    let (deleted, cleo) = play_act(stage, false).await?;
    stage.record.expect(deleted == "1", "ada's DEL removes bob's lock");
    stage.record.expect(cleo, "cleo gets the lock beside bob");

    stage.record.begin_act(ActKind::Cure, "release by a script that compares the value first")?;
    let (compared, refused) = play_act(stage, true).await?;
    stage.record.expect(compared == "0", "ada's release changes nothing");
    stage.record.expect(!refused, "cleo is refused while bob holds");
    Ok("Seen: ada's late DEL removed bob's lock, and bob and cleo held it at once; the release that compares first removed \
        nothing, and cleo was refused."
        .into())
}

/// What ada's release answered, and whether cleo got the lock.
async fn play_act(stage: &mut Stage, compare: bool) -> anyhow::Result<(String, bool)> {
    let redis = stage.start_redis(&[]).await?;
    let port = redis.port();
    let mut ada = stage.start_actor("ada")?;
    let (mut bob, mut cleo) = (stage.start_actor("bob")?, stage.start_actor("cleo")?);
    set_lock(stage, &mut ada, &RedisLock { port, value: "ada", ttl_ms: Some(ADA_TTL_MS) }, None).await?;
    stage.wait(BOB_COMES).await;
    let bobs = set_lock(stage, &mut bob, &RedisLock { port, value: "bob", ttl_ms: Some(OTHERS_TTL_MS) }, None).await?;
    stage.record.expect(bobs, "bob gets the lock after ada's has lapsed");

    let words: &[&str] = if compare { &["EVAL", COMPARE_AND_DELETE, "1", LOCK_KEY, "ada"] } else { &["DEL", LOCK_KEY] };
    let (text, at_ns) = ask_redis(&mut ada, port, words).await?;
    let does = if compare { "releases: compare with \"ada\", then DEL" } else { "releases: DEL lock:seat/14" };
    let line = LabLine::new("ada", does).believes("it releases its own").at(at_ns);
    let removed = text == "1";
    stage.record.add(if removed {
        line.bad("1: bob's lock is gone")
    } else {
        line.good(format!("{text}: not hers"))
    })?;
    stage.record.end_belief("ada", Some(at_ns));

    let beside = removed.then_some("bob");
    let cleos = RedisLock { port, value: "cleo", ttl_ms: Some(OTHERS_TTL_MS) };
    let granted = set_lock(stage, &mut cleo, &cleos, beside).await?;
    stage.wait(Duration::from_millis(100)).await;
    Ok((text, granted))
}
