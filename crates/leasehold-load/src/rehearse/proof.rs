//! The proof: waits until abandoned holds must have ended, holds their seats again, reads the evidence, and runs the
//! checks.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::json;

use super::api_types::ApiHold;
use super::buyer_log::BuyerLog;
use super::context::RehearsalContext;
use super::evidence::{self, Evidence};
use super::http_client::{HttpClient, HttpRequest, HttpResponse, escape_path};
use super::plan::RehearsalPlan;
use super::proof_checks::{ProofCheck, run_checks};
use super::rehearsal_event::RehearsalEvent;
use crate::bench::progress;
use leasehold_support::{exit, output, time};

/// Abandoned holds that last longer are not waited for.
const MAX_WAIT_FOR_ABANDONED: Duration = Duration::from_mins(2);
/// Limits of the probe: free seats that are held again, seats per request, and how long each request is retried.
const MAX_PROBED_SEATS: usize = 2_000;
const SEATS_PER_PROBE: usize = 8;
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// Result of the proof.
#[derive(Debug)]
pub struct RehearsalProof {
    pub checks: Vec<ProofCheck>,
    /// Confirms whose outcome is unknown.
    pub unknown: usize,
    pub entries: usize,
    /// Orders that were confirmed to buyers.
    pub confirmed_orders: usize,
}

impl RehearsalProof {
    pub fn exit_code(&self) -> u8 {
        match (self.checks.iter().all(|check| check.ok), self.unknown) {
            (false, _) => exit::CORRUPT,
            (true, 0) => exit::DONE,
            (true, _) => exit::UNKNOWN,
        }
    }
}

/// Proves the result of a rehearsal.
///
/// # Errors
///
/// The evidence cannot be read.
pub async fn prove(
    plan: &RehearsalPlan,
    event: &RehearsalEvent,
    context: &RehearsalContext,
    log: BuyerLog,
) -> anyhow::Result<RehearsalProof> {
    let bar = progress::spinner("reading what the event says of itself");
    bar.enable_steady_tick(Duration::from_millis(100));
    let mut client = HttpClient::new(context.clone());
    let mut checks = Vec::new();
    if event.is_own && !context.stop.is_requested() {
        bar.set_message("waiting until what was abandoned is over");
        checks.extend(check_abandoned_freed(&mut client, plan, event, context, &log).await?);
        bar.set_message("reading what the event says of itself");
    }
    let evidence = Evidence::read(&mut client, event, &log).await?;
    bar.finish_and_clear();
    let areas = event.areas.iter().map(|area| (area.id.as_str(), area.capacity)).collect();
    checks.extend(run_checks(&plan.run, &areas, &log, &evidence));
    Ok(RehearsalProof {
        checks,
        unknown: log.unanswered.len(),
        entries: evidence.entries.len(),
        confirmed_orders: log.orders.len(),
    })
}

/// Checks that abandoned holds end on time, even if no process sweeps them, and that free seats can be held.
async fn check_abandoned_freed(
    client: &mut HttpClient,
    plan: &RehearsalPlan,
    event: &RehearsalEvent,
    context: &RehearsalContext,
    log: &BuyerLog,
) -> anyhow::Result<Vec<ProofCheck>> {
    let now = time::stopwatch();
    let last = log.abandoned_holds.iter().map(|(_, over)| *over).chain(log.unknown_until).max().unwrap_or(now);
    if last.saturating_duration_since(now) > MAX_WAIT_FOR_ABANDONED {
        output::say("what was abandoned lasts too long to wait for it: whether it becomes free was not looked at");
        return Ok(Vec::new());
    }
    context.stop.sleep_or_stop(last.saturating_duration_since(now)).await;
    if context.stop.is_requested() {
        return Ok(Vec::new());
    }
    let (mut free, late) = read_settled_seats(client, event, context, log).await?;
    let over = ProofCheck::new(
        "holds_end_on_time",
        &late,
        format!("{} abandoned holds ended on time", log.abandoned_holds.len()),
    );
    free.truncate(MAX_PROBED_SEATS);
    let mut stuck = Vec::new();
    for (number, seats) in free.chunks(SEATS_PER_PROBE.min(event.per_buyer)).enumerate() {
        stuck.extend(hold_free_seats(client, plan, event, context, seats, number).await);
    }
    Ok(vec![
        over,
        ProofCheck::new("what_is_free_can_be_held", &stuck, format!("{} free seats were held again", free.len())),
    ])
}

/// Returns free seats, and seats that should be free and are not. Holds that no buyer was told of (an offer from a
/// server that died) get time to end.
async fn read_settled_seats(
    client: &mut HttpClient,
    event: &RehearsalEvent,
    context: &RehearsalContext,
    log: &BuyerLog,
) -> anyhow::Result<(Vec<String>, Vec<String>)> {
    let ends: HashMap<&str, Instant> = log.abandoned_holds.iter().map(|(hold, over)| (hold.as_str(), *over)).collect();
    let patience = time::stopwatch() + event.ttl + event.pay + Duration::from_secs(1);
    loop {
        let sent_at = time::stopwatch();
        let seats = evidence::read_seat_states(client, event).await?;
        let live = seats.iter().filter(|seat| matches!(seat.state.as_str(), "held" | "paying"));
        let mut unknown = false;
        let mut late = Vec::new();
        for seat in live {
            let hold = seat.hold_id.as_deref().unwrap_or_default();
            match ends.get(hold) {
                Some(over) if *over < sent_at => {
                    late.push(format!("{} is {} by {hold}, which is over", seat.id, seat.state))
                }
                _ if sent_at > patience => late.push(format!("{} is still {} by {hold}", seat.id, seat.state)),
                _ => unknown = true,
            }
        }
        if !unknown || !late.is_empty() || context.stop.is_requested() {
            let free = seats.into_iter().filter(|seat| seat.state == "free").map(|seat| seat.id).collect();
            return Ok((free, late));
        }
        context.stop.sleep_or_stop(Duration::from_millis(200)).await;
    }
}

/// Holds free seats and releases them. A lease may outlive its database row by a few seconds, so refusals are retried.
async fn hold_free_seats(
    client: &mut HttpClient,
    plan: &RehearsalPlan,
    event: &RehearsalEvent,
    context: &RehearsalContext,
    seats: &[String],
    number: usize,
) -> Option<String> {
    let until = time::stopwatch() + PROBE_TIMEOUT;
    let (path, body) = (event.path("/holds"), json!({"seats": seats, "buyer": format!("{}-probe-{number}", plan.run)}));
    let body = body.to_string();
    for nth in 0.. {
        let idempotency_key = format!("{}-probe-{number}-{nth}", plan.run);
        let request = HttpRequest { idempotency_key: Some(&idempotency_key), ..HttpRequest::post(&path, &body) };
        match client.send(request).await {
            Ok(response) if response.status == 201 => {
                release_hold(client, &response).await;
                return None;
            }
            // No response: the hold, if there is one, ends by itself.
            Err(_) => return None,
            Ok(_) if context.stop.is_requested() => return None,
            Ok(response) if response.status != 409 || time::stopwatch() > until => {
                return Some(format!("{} are free and cannot be held: {}", seats.join(" "), response.status));
            }
            Ok(_) => context.stop.sleep_or_stop(Duration::from_millis(250)).await,
        }
    }
    None
}

async fn release_hold(client: &mut HttpClient, response: &HttpResponse) {
    let Ok(held) = serde_json::from_slice::<ApiHold>(&response.body) else { return };
    let path = format!("/v1/holds/{}/release", escape_path(&held.hold_id));
    let hold_key = Some(held.hold_key.as_str());
    // Without a release the hold ends by itself.
    let _ = client.send(HttpRequest { hold_key, ..HttpRequest::post(&path, "{}") }).await;
}
