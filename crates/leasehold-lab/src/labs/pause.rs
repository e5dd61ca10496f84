//! A holder sleeps longer than its lease, wakes up and writes.
//!
//! ada checks that she holds the seat, and is stopped before she writes. No check in her program can help: the pause comes
//! after the last one.

use std::time::Duration;

use super::steps::{
    WriterStanding, freeze_actor, judge_owner, learn_of_loss, read_seat, record_write, release_lease, take_lease,
    thaw_actor, write_order, write_seat,
};
use crate::order::{ActorOrder, ActorOutcome};
use crate::stage::{ActorProcess, LabLine, LeaseServer, Stage};
use crate::timeline::ActKind;

const TTL: Duration = Duration::from_secs(2);
const BOB_WAITS: Duration = Duration::from_secs(10);
/// How long ada sleeps on after bob has written.
const SLEEPS_ON: Duration = Duration::from_millis(500);

pub async fn play(stage: &mut Stage) -> anyhow::Result<String> {
    let server = stage.start_server().await?;
    stage.record.begin_act(ActKind::Failure, "the seat takes any write")?;
    let unfenced = play_act(stage, &server, false).await?;
    stage.record.expect(unfenced.late_write, "ada's late write is admitted");
    stage.record.expect(unfenced.owner == "ada", "bob's sale is lost");

    stage.record.begin_act(ActKind::Cure, "the seat remembers the highest token, and refuses a lower one")?;
    let fenced = play_act(stage, &server, true).await?;
    stage.record.expect(!fenced.late_write, "ada's late write is refused");
    stage.record.expect(fenced.owner == "bob", "bob's sale stands");
    Ok(format!(
        "Seen: ada slept through the end of her lease and overwrote bob's sale, and nobody noticed; with the fence the seat \
         refused her token {}, because it had seen {}.",
        fenced.tokens.0, fenced.tokens.1
    ))
}

/// What an act came to.
struct PauseResult {
    late_write: bool,
    owner: String,
    /// Of ada and of bob.
    tokens: (u64, u64),
}

async fn play_act(stage: &mut Stage, server: &LeaseServer, fenced: bool) -> anyhow::Result<PauseResult> {
    let store = stage.seat_store(if fenced { "fenced" } else { "seats" }).await?;
    store.create_seats(fenced).await?;
    let (mut ada, mut bob) = (stage.start_actor("ada")?, stage.start_actor("bob")?);
    let hers = take_lease(stage, &mut ada, &server.url(), TTL, Duration::ZERO).await?;
    read_seat(stage, &mut ada, &store).await?;
    check_before_write(stage, &mut ada).await?;
    freeze_actor(stage, &ada, "writes")?;
    // The write is her next step: it waits in her pipe, and she follows it when she goes on.
    ada.send(&write_order(&ada, &store, Some(&hers.shown))).await?;

    let his = take_lease(stage, &mut bob, &server.url(), TTL, BOB_WAITS).await?;
    let waited = Duration::from_nanos(his.at_ns.saturating_sub(hers.asked_ns));
    stage.record.expect(waited >= TTL, "bob is granted the seat only after ada's ttl");
    stage.record.expect(his.token > hers.token, "bob's token is higher than ada's");
    write_seat(stage, &mut bob, &store, Some(&his.shown)).await?;
    stage.wait(SLEEPS_ON).await;

    thaw_actor(stage, &ada)?;
    let late = ada.reply().await?;
    let late_write = record_write(stage, &ada, &late, WriterStanding::TooLate)?;
    let learned = learn_of_loss(stage, &mut ada).await?;
    stage.record.expect(learned, "ada learns of her loss, after her write");
    release_lease(stage, &mut bob).await?;
    let owner = judge_owner(stage, &store, "bob", "bob's sale is lost, without an error").await?;
    Ok(PauseResult { late_write, owner, tokens: (hers.token, his.token) })
}

async fn check_before_write(stage: &mut Stage, ada: &mut ActorProcess) -> anyhow::Result<()> {
    let reply = ada.ask(ActorOrder::Check).await?;
    let ActorOutcome::Holds { remaining_ms } = reply.outcome else {
        anyhow::bail!("ada lost the lease before she was stopped: this machine is too busy for this lab");
    };
    let line = LabLine::new("ada", "asks its guard about the lease").believes("holds seat/14");
    stage.record.add(line.good(format!("held, {remaining_ms} ms left")).at(reply.at_ns))
}
