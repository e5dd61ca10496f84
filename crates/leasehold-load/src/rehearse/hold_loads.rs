//! Loads for figures: holds with their release, and refusals, as fast as the server answers.
//!
//! Closed loops: each buyer waits for its answer before it asks again. What counts was asked after the warm-up and
//! answered before the end.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, bail};
use serde_json::json;
use tokio::task::JoinSet;

use super::api_types::{ApiHold, ApiHoldHandle, ApiOrder, ApiProblem};
use super::buyer_log::{BuyerLog, ConfirmedOrder};
use super::http_client::{HttpClient, HttpRequest, HttpResponse, RehearsalContext};
use super::plan::RehearsalPlan;
use super::random::SplitMix64;
use super::rehearsal_event::{RehearsalEvent, escape, reach};
use crate::bench::{pair_load, progress};
use leasehold_support::time;

/// How often the bar moves.
const TICK: std::time::Duration = std::time::Duration::from_millis(100);
/// Seats that somebody has before losers come, and in one hold of those.
const OWNED: usize = 2_000;
const BLOCK: usize = 50;

/// Everything one of them needs.
struct HoldLoadClient {
    name: String,
    desk: HttpClient,
    dice: SplitMix64,
    plan: Arc<RehearsalPlan>,
    counter: RehearsalContext,
    seats: Arc<Vec<String>>,
    path: String,
    end: Instant,
    asked: u64,
    body: String,
    wrongs: Vec<String>,
}

/// Holds of two neighbours, released at once.
///
/// # Errors
///
/// A task broke down.
pub async fn holds(
    plan: &Arc<RehearsalPlan>,
    venue: &Arc<RehearsalEvent>,
    counter: &RehearsalContext,
) -> anyhow::Result<BuyerLog> {
    // The first request at a new event makes the server read all of its hall: that is not what is measured.
    let mut first = HttpClient::new(counter.clone());
    let hold = own(&mut first, plan, venue, &venue.seats[..1], 0).await?;
    give_back(&mut first, &hold).await?;
    let seats = Arc::new(venue.seats.clone());
    run(plan, venue, counter, seats, "holds of two seats", |one| one.hold_and_release()).await
}

/// Requests for what others have.
///
/// # Errors
///
/// Nothing could be taken to be lost, or a task broke down.
pub async fn losers(
    plan: &Arc<RehearsalPlan>,
    venue: &Arc<RehearsalEvent>,
    counter: &RehearsalContext,
) -> anyhow::Result<BuyerLog> {
    let mut owner = HttpClient::new(counter.clone());
    let many = OWNED.min(venue.seats.len() / 2).max(2);
    let owned = Arc::new(venue.seats[..many].to_vec());
    let (mut held, mut told) = (Vec::new(), Vec::new());
    for (number, block) in owned.chunks(BLOCK).enumerate() {
        let hold = own(&mut owner, plan, venue, block, number).await?;
        // Every other block is sold, the rest stays held.
        if number % 2 == 0 {
            let path = format!("/v1/holds/{}/confirm", escape(&hold.hold_id));
            let body = json!({"payment_ref": format!("pi_{}_{number}", plan.run)}).to_string();
            let hold_key = Some(hold.hold_key.as_str());
            let ask = HttpRequest { method: "POST", path: &path, hold_key, body: &body, ..HttpRequest::default() };
            let answer = reach(&mut owner, ask, "sell what others shall lose").await?;
            let sold: ApiOrder = serde_json::from_slice(&answer.body).context("read the answer to a confirm")?;
            let ApiOrder { order_id, seats, areas, .. } = sold;
            told.push(ConfirmedOrder { order_id, buyer: owner_of(plan), seats, areas });
        } else {
            held.push(hold);
        }
    }
    let diary = run(plan, venue, counter, owned, "refusals", |one| one.lose()).await;
    for hold in held {
        give_back(&mut owner, &hold).await?;
    }
    let mut diary = diary?;
    diary.orders.extend(told);
    Ok(diary)
}

async fn give_back(desk: &mut HttpClient, hold: &ApiHold) -> anyhow::Result<()> {
    let path = format!("/v1/holds/{}/release", escape(&hold.hold_id));
    let hold_key = Some(hold.hold_key.as_str());
    let ask = HttpRequest { method: "POST", path: &path, hold_key, body: "{}", ..HttpRequest::default() };
    reach(desk, ask, "release what was held").await.map(drop)
}

fn owner_of(plan: &RehearsalPlan) -> String {
    format!("{}-owner", plan.run)
}

async fn own(
    desk: &mut HttpClient,
    plan: &RehearsalPlan,
    venue: &RehearsalEvent,
    seats: &[String],
    number: usize,
) -> anyhow::Result<ApiHold> {
    let body = json!({"seats": seats, "buyer": owner_of(plan)}).to_string();
    let idem = format!("{}-own-{number}", plan.run);
    let path = venue.path("/holds");
    let ask = HttpRequest { method: "POST", path: &path, idem: Some(&idem), body: &body, ..HttpRequest::default() };
    let answer = reach(desk, ask, "hold what others shall lose").await?;
    serde_json::from_slice(&answer.body).context("read the answer to a hold")
}

async fn run<F>(
    plan: &Arc<RehearsalPlan>,
    venue: &Arc<RehearsalEvent>,
    counter: &RehearsalContext,
    seats: Arc<Vec<String>>,
    what: &str,
    work: impl Fn(HoldLoadClient) -> F,
) -> anyhow::Result<BuyerLog>
where
    F: Future<Output = anyhow::Result<Vec<String>>> + Send + 'static,
{
    let from = time::stopwatch() + pair_load::WARM_UP;
    let end = from + plan.time;
    counter.tally.change(|tally| tally.counting_from = Some(from));
    let mut tasks = JoinSet::new();
    for number in 0..plan.buyers {
        let one = HoldLoadClient {
            name: format!("{}-{number}", plan.run),
            desk: HttpClient::new(counter.clone()),
            dice: SplitMix64::new(plan.seed, number as u64),
            plan: plan.clone(),
            counter: counter.clone(),
            seats: seats.clone(),
            path: venue.path("/holds"),
            end,
            asked: 0,
            body: String::new(),
            wrongs: Vec::new(),
        };
        tasks.spawn(work(one));
    }
    let bar = progress::time(plan.time, what);
    loop {
        let now = time::stopwatch();
        bar.set_position(u64::try_from(now.saturating_duration_since(from).as_millis()).unwrap_or(u64::MAX));
        if now >= end || counter.stop.is_asked() {
            counter.tally.change(|tally| tally.counted = now.min(end).saturating_duration_since(from));
            break;
        }
        counter.stop.within(TICK.min(end - now)).await;
    }
    let mut diary = BuyerLog::default();
    while let Some(done) = tasks.join_next().await {
        diary.wrongs.extend(done.context("run a buyer")??);
    }
    bar.finish_and_clear();
    Ok(diary)
}

impl HoldLoadClient {
    fn goes_on(&self) -> bool {
        time::stopwatch() < self.end && !self.counter.stop.is_asked()
    }

    /// Two neighbours, written as the body of a request.
    fn wish(&mut self) {
        let first = self.dice.below(self.seats.len() / 2) * 2;
        self.body.clear();
        let (one, two, name) = (&self.seats[first], &self.seats[first + 1], &self.name);
        // Writing to a String cannot fail; ids of our own hall need no escapes.
        let _ = write!(self.body, "{{\"seats\":[\"{one}\",\"{two}\"],\"buyer\":\"{name}\"}}");
    }

    async fn take(&mut self) -> anyhow::Result<HttpResponse> {
        self.wish();
        self.asked += 1;
        let key = self.plan.keyed.then(|| format!("{}-{}", self.name, self.asked));
        let ask = HttpRequest {
            method: "POST",
            path: &self.path,
            idem: key.as_deref(),
            body: &self.body,
            ..HttpRequest::default()
        };
        match self.desk.ask(ask).await {
            Ok(answer) => Ok(answer),
            Err(_) => bail!("the server does not answer any more"),
        }
    }

    fn odd(&self, answer: &HttpResponse) {
        let no: ApiProblem = serde_json::from_slice(&answer.body).unwrap_or_default();
        self.counter.tally.change(|tally| tally.error(answer.status, &no.code));
    }

    async fn hold_and_release(mut self) -> anyhow::Result<Vec<String>> {
        while self.goes_on() {
            let answer = self.take().await?;
            let took = answer.heard.saturating_duration_since(answer.asked);
            let (granted, in_time) = (answer.status == 201, answer.heard <= self.end);
            self.counter.tally.change(|tally| {
                if tally.counts(answer.asked) && in_time {
                    match answer.status {
                        201 => tally.hold.record(took),
                        409 => tally.refusal.record(took),
                        _ => {}
                    }
                }
            });
            if granted {
                self.release(&answer).await?;
            } else if answer.status != 409 {
                self.odd(&answer);
            }
        }
        Ok(self.wrongs)
    }

    async fn release(&mut self, answer: &HttpResponse) -> anyhow::Result<()> {
        let handle: ApiHoldHandle<'_> = serde_json::from_slice(&answer.body).context("read the answer to a hold")?;
        let path = format!("/v1/holds/{}/release", handle.hold_id);
        let key = self.plan.keyed.then(|| format!("{}-{}r", self.name, self.asked));
        let hold_key = Some(handle.hold_key);
        let ask = HttpRequest {
            method: "POST",
            path: &path,
            idem: key.as_deref(),
            hold_key,
            body: "{}",
            ..HttpRequest::default()
        };
        let Ok(answer) = self.desk.ask(ask).await else { bail!("the server does not answer any more") };
        if answer.status != 200 {
            self.odd(&answer);
        }
        let took = answer.heard.saturating_duration_since(answer.asked);
        self.counter.tally.change(|tally| {
            if tally.counts(answer.asked) {
                tally.released += 1;
                tally.release.record(took);
            }
        });
        Ok(())
    }

    async fn lose(mut self) -> anyhow::Result<Vec<String>> {
        while self.goes_on() {
            let answer = self.take().await?;
            let took = answer.heard.saturating_duration_since(answer.asked);
            let in_time = answer.heard <= self.end;
            match answer.status {
                409 => self.counter.tally.change(|tally| {
                    if tally.counts(answer.asked) && in_time {
                        tally.refusal.record(took);
                    }
                }),
                201 => self.wrongs.push(format!("seats of somebody else were granted: {}", self.body)),
                _ => self.odd(&answer),
            }
        }
        Ok(self.wrongs)
    }
}
