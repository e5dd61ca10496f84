//! A holder is cut off from the engine and works on.
//!
//! ada's connection to the engine goes through a proxy, which then passes nothing. Her way to the seat is open. A client
//! that does not look at its guard goes on; `leasehold run` ends the work in time.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};
use leasehold_harness::proxy::Proxy;
use leasehold_support::exit;

use super::steps::{
    HOLDS_SEAT, WriterStanding, acquire_order, judge_owner, learn_of_loss, outcome_text, read_seat, record_write,
    release_lease, take_lease, write_order, write_seat,
};
use crate::actor::ACTOR_COMMAND;
use crate::order::ActorOutcome;
use crate::seat::SEAT;
use crate::stage::{LabLine, LabProcess, LeaseServer, Stage, url_at};
use crate::timeline::ActKind;

const TTL: Duration = Duration::from_secs(2);
const GRACE: &str = "300ms";
const BOB_WAITS: Duration = Duration::from_secs(10);
/// When the cut comes, and how long it lasts after bob has written.
const CUT_AFTER: Duration = Duration::from_millis(300);
const CUT_GOES_ON: Duration = Duration::from_millis(500);
/// How long a process may take to start or to end.
const PROCESS_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_EVERY: Duration = Duration::from_millis(5);

pub async fn play(stage: &mut Stage) -> anyhow::Result<String> {
    let server = stage.start_server().await?;
    stage
        .record
        .begin_act(ActKind::Failure, "a client that does not look at its guard, a seat that takes any write")?;
    let unfenced = play_without_guard(stage, &server, false).await?;
    stage.record.expect(unfenced == (true, "ada".to_owned()), "ada's late write is admitted, and bob's sale is lost");

    stage.record.begin_act(ActKind::Cure, "leasehold run ends the work before the lease can pass on")?;
    let margin = play_under_run(stage, &server).await?;

    stage.record.begin_act(ActKind::Cure, "the same careless client, and a fenced seat")?;
    let fenced = play_without_guard(stage, &server, true).await?;
    stage.record.expect(fenced == (false, "bob".to_owned()), "ada's late write is refused, and bob's sale stands");
    Ok(format!(
        "Seen: ada, cut off, overwrote bob's sale; under leasehold run her work was dead {} ms before bob was granted the \
         seat; and with the fence the seat refused her write.",
        margin.as_millis()
    ))
}

/// ada goes on without looking. Whether her late write was admitted, and who owns the seat in the end.
async fn play_without_guard(stage: &mut Stage, server: &LeaseServer, fenced: bool) -> anyhow::Result<(bool, String)> {
    let store = stage.seat_store(if fenced { "fenced" } else { "seats" }).await?;
    store.create_seats(fenced).await?;
    let proxy = stage.start_proxy(server.port())?;
    let (mut ada, mut bob) = (stage.start_actor("ada")?, stage.start_actor("bob")?);
    let hers = take_lease(stage, &mut ada, &url_at(proxy.port()), TTL, Duration::ZERO).await?;
    read_seat(stage, &mut ada, &store).await?;
    cut_off(stage, &proxy).await?;

    let his = take_lease(stage, &mut bob, &server.url(), TTL, BOB_WAITS).await?;
    stage.record.expect(his.token > hers.token, "bob's token is higher than ada's");
    write_seat(stage, &mut bob, &store, Some(&his.shown)).await?;
    stage.wait(CUT_GOES_ON).await;

    proxy.black_hole(false);
    stage.record.end_pause("ada");
    stage.record.add(LabLine::new("lab", "heals the connection"))?;
    let late = ada.ask(write_order(&ada, &store, Some(&hers.shown))).await?;
    let late_write = record_write(stage, &ada, &late, WriterStanding::TooLate)?;
    let learned = learn_of_loss(stage, &mut ada).await?;
    stage.record.expect(learned, "ada learns of her loss, after her write");
    release_lease(stage, &mut bob).await?;
    let owner = judge_owner(stage, &store, "bob", "bob's sale is lost, without an error").await?;
    Ok((late_write, owner))
}

/// ada works under `leasehold run`. How long she was dead before bob was granted the seat.
async fn play_under_run(stage: &mut Stage, server: &LeaseServer) -> anyhow::Result<Duration> {
    let proxy = stage.start_proxy(server.port())?;
    let beats = stage.path("beats");
    let mut bob = stage.start_actor("bob")?;
    let mut run = LabProcess::start(&mut run_command(stage, &proxy)?).context("start leasehold run")?;
    let began = wait_for_beat(stage, &mut run).await?;
    let does = format!("works under leasehold run --ttl {}s", TTL.as_secs());
    stage.record.add(LabLine::new("ada", does).believes(HOLDS_SEAT).good("granted").at(began))?;
    stage.record.begin_belief("ada", began);
    cut_off(stage, &proxy).await?;

    // Asked before the last sign of life is read, and recorded after it: that is the order in which they happened.
    let granted = bob.ask(acquire_order(&server.url(), TTL, BOB_WAITS)).await?;
    if !matches!(granted.outcome, ActorOutcome::Granted { .. }) {
        bail!("bob did not get the seat: {}", outcome_text(&granted.outcome));
    }
    let last = last_beat(&beats).context("ada's work left no sign of life")?;
    let margin = Duration::from_nanos(granted.at_ns.saturating_sub(last));
    let in_time = last < granted.at_ns;
    let line = LabLine::new("ada", "leaves its last sign of life").believes("nothing").at(last);
    let verdict = format!("ended by run, {} ms before bob", margin.as_millis());
    stage.record.add(if in_time { line.good(verdict) } else { line.bad("still works") })?;
    stage.record.end_belief("ada", Some(last));
    let line = LabLine::new("bob", format!("takes {SEAT}")).believes(HOLDS_SEAT).at(granted.at_ns);
    stage.record.add(if in_time { line.good("granted, and alone") } else { line.bad("granted beside ada") })?;
    stage.record.begin_belief("bob", granted.at_ns);
    stage.record.expect(in_time, "the work was ended before bob was granted the seat");

    proxy.black_hole(false);
    stage.record.end_pause("ada");
    let code = wait_for_end(stage, &mut run).await?;
    let line = LabLine::new("ada", format!("leasehold run ends with exit code {code}"));
    let lost = code == i32::from(exit::LOST);
    stage.record.add(if lost { line.good("6: the lease was lost") } else { line.bad("not 6") })?;
    stage.record.expect(lost, "leasehold run says that the lease was lost");
    release_lease(stage, &mut bob).await?;
    Ok(margin)
}

async fn cut_off(stage: &mut Stage, proxy: &Proxy) -> anyhow::Result<()> {
    stage.wait(CUT_AFTER).await;
    proxy.black_hole(true);
    stage.record.begin_pause("ada", "cut off");
    stage.record.add(LabLine::new("lab", "cuts ada's connection to the engine"))
}

fn run_command(stage: &Stage, proxy: &Proxy) -> anyhow::Result<Command> {
    let (url, ttl) = (url_at(proxy.port()), format!("{}s", TTL.as_secs()));
    let own = stage.own_program().to_str().context("the path of this program is no text")?;
    let beats = stage.path("beats");
    let beats = beats.to_str().context("the path of the temporary directory is no text")?;
    let arguments =
        ["--url", &url, "run", SEAT, "--ttl", &ttl, "--grace", GRACE, "--", own, ACTOR_COMMAND, "beat", beats];
    Ok(stage.own_process(&arguments))
}

async fn wait_for_beat(stage: &Stage, run: &mut LabProcess) -> anyhow::Result<u64> {
    let deadline = stage.clock().now().plus(PROCESS_TIMEOUT);
    loop {
        if let Some(at_ns) = last_beat(&stage.path("beats")) {
            return Ok(at_ns);
        }
        if run.try_wait().context("ask about leasehold run")?.is_some() || stage.clock().now() > deadline {
            bail!("leasehold run did not start its work");
        }
        stage.wait(POLL_EVERY).await;
    }
}

async fn wait_for_end(stage: &Stage, run: &mut LabProcess) -> anyhow::Result<i32> {
    let deadline = stage.clock().now().plus(PROCESS_TIMEOUT);
    loop {
        if let Some(status) = run.try_wait().context("ask about leasehold run")? {
            return Ok(status.code().unwrap_or(-1));
        }
        if stage.clock().now() > deadline {
            bail!("leasehold run did not end");
        }
        stage.wait(POLL_EVERY).await;
    }
}

fn last_beat(file: &std::path::Path) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}
