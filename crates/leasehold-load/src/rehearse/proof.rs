//! The proof: waits until what was abandoned must be free, takes it to see that it is, reads the evidence, and judges.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::json;

use super::api_types::ApiHold;
use super::buyer_log::BuyerLog;
use super::evidence::{self, Evidence};
use super::http_client::{HttpClient, HttpRequest, HttpResponse, RehearsalContext};
use super::plan::RehearsalPlan;
use super::proof_checks::{ProofCheck, judge};
use super::rehearsal_event::{RehearsalEvent, escape};
use crate::bench::progress;
use leasehold_support::{exit, output, time};

/// Holds that last longer than this are not waited for.
const LONGEST_WAIT: Duration = Duration::from_mins(2);
/// Seats that are taken to see that they can be, at most; and in one request, and for how long each is tried.
const PROBED: usize = 2_000;
const AT_ONCE: usize = 8;
const PROBE_PATIENCE: Duration = Duration::from_secs(10);

/// What was found.
#[derive(Debug)]
pub struct RehearsalProof {
    pub checks: Vec<ProofCheck>,
    /// Confirms of which nobody knows what became.
    pub unknown: usize,
    pub entries: usize,
    /// Seats and places that buyers were told are theirs.
    pub told: usize,
}

impl RehearsalProof {
    /// The exit code it comes to.
    pub fn verdict(&self) -> u8 {
        match (self.checks.iter().all(|check| check.ok), self.unknown) {
            (false, _) => exit::CORRUPT,
            (true, 0) => exit::DONE,
            (true, _) => exit::UNKNOWN,
        }
    }
}

/// Proves what a rehearsal was.
///
/// # Errors
///
/// The evidence cannot be read.
pub async fn prove(
    plan: &RehearsalPlan,
    venue: &RehearsalEvent,
    counter: &RehearsalContext,
    diary: BuyerLog,
) -> anyhow::Result<RehearsalProof> {
    let bar = progress::spinner("reading what the event says of itself");
    bar.enable_steady_tick(Duration::from_millis(100));
    let mut desk = HttpClient::new(counter.clone());
    let mut checks = Vec::new();
    if venue.own && !counter.stop.is_asked() {
        bar.set_message("waiting until what was abandoned is over");
        checks.extend(freed(&mut desk, plan, venue, counter, &diary).await?);
        bar.set_message("reading what the event says of itself");
    }
    let found = Evidence::read(&mut desk, venue, &diary).await?;
    bar.finish_and_clear();
    let areas = venue.areas.iter().map(|area| (area.id.as_str(), area.capacity)).collect();
    checks.extend(judge(&plan.run, &areas, &diary, &found));
    Ok(RehearsalProof { checks, unknown: diary.open.len(), entries: found.entries.len(), told: diary.orders.len() })
}

/// What was abandoned is free when its time is over, whoever sweeps or does not.
async fn freed(
    desk: &mut HttpClient,
    plan: &RehearsalPlan,
    venue: &RehearsalEvent,
    counter: &RehearsalContext,
    diary: &BuyerLog,
) -> anyhow::Result<Vec<ProofCheck>> {
    let now = time::stopwatch();
    let last = diary.left.iter().map(|(_, over)| *over).chain(diary.dark_until).max().unwrap_or(now);
    if last.saturating_duration_since(now) > LONGEST_WAIT {
        output::say("what was abandoned lasts too long to wait for it: whether it becomes free was not looked at");
        return Ok(Vec::new());
    }
    counter.stop.within(last.saturating_duration_since(now)).await;
    if counter.stop.is_asked() {
        return Ok(Vec::new());
    }
    let (mut free, late) = look(desk, venue, counter, diary).await?;
    let over =
        ProofCheck::new("holds_end_on_time", &late, format!("{} abandoned holds ended on time", diary.left.len()));
    free.truncate(PROBED);
    let mut stuck = Vec::new();
    for (number, seats) in free.chunks(AT_ONCE.min(venue.per_buyer)).enumerate() {
        stuck.extend(probe(desk, plan, venue, counter, seats, number).await);
    }
    Ok(vec![
        over,
        ProofCheck::new("what_is_free_can_be_held", &stuck, format!("{} free seats were held again", free.len())),
    ])
}

/// Free seats, and seats that are not but should be. Holds nobody was told of (an offer whose maker died) have their time.
async fn look(
    desk: &mut HttpClient,
    venue: &RehearsalEvent,
    counter: &RehearsalContext,
    diary: &BuyerLog,
) -> anyhow::Result<(Vec<String>, Vec<String>)> {
    let ends: HashMap<&str, Instant> = diary.left.iter().map(|(hold, over)| (hold.as_str(), *over)).collect();
    let patience = time::stopwatch() + venue.ttl + venue.pay + Duration::from_secs(1);
    loop {
        let asked = time::stopwatch();
        let seats = evidence::seats(desk, venue).await?;
        let live = seats.iter().filter(|seat| matches!(seat.state.as_str(), "held" | "paying"));
        let mut unknown = false;
        let mut late = Vec::new();
        for seat in live {
            let hold = seat.hold_id.as_deref().unwrap_or_default();
            match ends.get(hold) {
                Some(over) if *over < asked => {
                    late.push(format!("{} is {} by {hold}, which is over", seat.id, seat.state))
                }
                _ if asked > patience => late.push(format!("{} is still {} by {hold}", seat.id, seat.state)),
                _ => unknown = true,
            }
        }
        if !unknown || !late.is_empty() || counter.stop.is_asked() {
            let free = seats.into_iter().filter(|seat| seat.state == "free").map(|seat| seat.id).collect();
            return Ok((free, late));
        }
        counter.stop.within(Duration::from_millis(200)).await;
    }
}

/// Takes free seats and gives them back. A lease outlives its row by a few seconds where nobody tidies: that long it may
/// take.
async fn probe(
    desk: &mut HttpClient,
    plan: &RehearsalPlan,
    venue: &RehearsalEvent,
    counter: &RehearsalContext,
    seats: &[String],
    number: usize,
) -> Option<String> {
    let until = time::stopwatch() + PROBE_PATIENCE;
    let (path, body) = (venue.path("/holds"), json!({"seats": seats, "buyer": format!("{}-probe-{number}", plan.run)}));
    let body = body.to_string();
    for nth in 0.. {
        let idem = format!("{}-probe-{number}-{nth}", plan.run);
        let ask = HttpRequest { method: "POST", path: &path, idem: Some(&idem), body: &body, ..HttpRequest::default() };
        match desk.ask(ask).await {
            Ok(answer) if answer.status == 201 => {
                give_back(desk, &answer).await;
                return None;
            }
            // It is there, or will be over by itself.
            Err(_) => return None,
            Ok(_) if counter.stop.is_asked() => return None,
            Ok(answer) if answer.status != 409 || time::stopwatch() > until => {
                return Some(format!("{} are free and cannot be held: {}", seats.join(" "), answer.status));
            }
            Ok(_) => counter.stop.within(Duration::from_millis(250)).await,
        }
    }
    None
}

async fn give_back(desk: &mut HttpClient, answer: &HttpResponse) {
    let Ok(held) = serde_json::from_slice::<ApiHold>(&answer.body) else { return };
    let path = format!("/v1/holds/{}/release", escape(&held.hold_id));
    let hold_key = Some(held.hold_key.as_str());
    // What is not given back is over by itself.
    let _ = desk.ask(HttpRequest { method: "POST", path: &path, hold_key, body: "{}", ..HttpRequest::default() }).await;
}
