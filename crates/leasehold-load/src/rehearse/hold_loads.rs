//! The loads `--holds` and `--losers`: holds with their release, and refusals, as fast as the server answers.
//!
//! Closed loops: each client waits for a response before it sends again. A request counts if it was sent after the
//! warm-up and answered before the end.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, bail};
use serde_json::json;
use tokio::task::JoinSet;

use super::api_types::{ApiHold, ApiHoldHandle, ApiOrder, ApiProblem};
use super::buyer_log::{BuyerLog, ConfirmedOrder};
use super::context::RehearsalContext;
use super::http_client::{HttpClient, HttpRequest, HttpResponse, escape_path};
use super::plan::RehearsalPlan;
use super::random::SplitMix64;
use super::rehearsal_event::RehearsalEvent;
use crate::bench::{pair_load, progress};
use leasehold_support::time;

/// How often the progress bar moves.
const PROGRESS_EVERY: std::time::Duration = std::time::Duration::from_millis(100);
/// Seats that are held or sold before `--losers` starts, and seats in each of those holds.
const MAX_OWNED_SEATS: usize = 2_000;
const SEATS_PER_OWNED_HOLD: usize = 50;

/// One client of a load.
struct HoldLoadClient {
    name: String,
    client: HttpClient,
    random: SplitMix64,
    plan: Arc<RehearsalPlan>,
    context: RehearsalContext,
    seats: Arc<Vec<String>>,
    path: String,
    end: Instant,
    requests_sent: u64,
    body: String,
    violations: Vec<String>,
}

/// Runs `--holds`: each client holds two adjacent seats and releases them at once.
///
/// # Errors
///
/// A client failed.
pub async fn run_holds(
    plan: &Arc<RehearsalPlan>,
    event: &Arc<RehearsalEvent>,
    context: &RehearsalContext,
) -> anyhow::Result<BuyerLog> {
    // The first request at a new event makes the server load the seat map, which is not to be measured.
    let mut first = HttpClient::new(context.clone());
    let hold = hold_as_owner(&mut first, plan, event, &event.seats[..1], 0).await?;
    release_hold(&mut first, &hold).await?;
    let seats = Arc::new(event.seats.clone());
    run_clients(plan, event, context, seats, "holds of two seats", |client| client.hold_and_release()).await
}

/// Runs `--losers`: each client requests seats that are held or sold.
///
/// # Errors
///
/// The seats could not be held or sold, or a client failed.
pub async fn run_losers(
    plan: &Arc<RehearsalPlan>,
    event: &Arc<RehearsalEvent>,
    context: &RehearsalContext,
) -> anyhow::Result<BuyerLog> {
    let mut owner = HttpClient::new(context.clone());
    let count = MAX_OWNED_SEATS.min(event.seats.len() / 2).max(2);
    let owned = Arc::new(event.seats[..count].to_vec());
    let (mut held, mut sold_orders) = (Vec::new(), Vec::new());
    for (number, block) in owned.chunks(SEATS_PER_OWNED_HOLD).enumerate() {
        let hold = hold_as_owner(&mut owner, plan, event, block, number).await?;
        // Every other hold is sold, the rest stays held.
        if number % 2 == 0 {
            let path = format!("/v1/holds/{}/confirm", escape_path(&hold.hold_id));
            let body = json!({"payment_ref": format!("pi_{}_{number}", plan.run)}).to_string();
            let hold_key = Some(hold.hold_key.as_str());
            let request = HttpRequest { hold_key, ..HttpRequest::post(&path, &body) };
            let response = owner.send_required(request, "sell what others shall lose").await?;
            let sold: ApiOrder = serde_json::from_slice(&response.body).context("read the answer to a confirm")?;
            let ApiOrder { order_id, seats, areas, .. } = sold;
            sold_orders.push(ConfirmedOrder { order_id, buyer: owner_name(plan), seats, areas });
        } else {
            held.push(hold);
        }
    }
    let log = run_clients(plan, event, context, owned, "refusals", |client| client.request_taken_seats()).await;
    for hold in held {
        release_hold(&mut owner, &hold).await?;
    }
    let mut log = log?;
    log.orders.extend(sold_orders);
    Ok(log)
}

async fn release_hold(client: &mut HttpClient, hold: &ApiHold) -> anyhow::Result<()> {
    let path = format!("/v1/holds/{}/release", escape_path(&hold.hold_id));
    let hold_key = Some(hold.hold_key.as_str());
    let request = HttpRequest { hold_key, ..HttpRequest::post(&path, "{}") };
    client.send_required(request, "release what was held").await.map(drop)
}

fn owner_name(plan: &RehearsalPlan) -> String {
    format!("{}-owner", plan.run)
}

async fn hold_as_owner(
    client: &mut HttpClient,
    plan: &RehearsalPlan,
    event: &RehearsalEvent,
    seats: &[String],
    number: usize,
) -> anyhow::Result<ApiHold> {
    let body = json!({"seats": seats, "buyer": owner_name(plan)}).to_string();
    let idempotency_key = format!("{}-own-{number}", plan.run);
    let path = event.path("/holds");
    let request = HttpRequest { idempotency_key: Some(&idempotency_key), ..HttpRequest::post(&path, &body) };
    let response = client.send_required(request, "hold what others shall lose").await?;
    serde_json::from_slice(&response.body).context("read the answer to a hold")
}

async fn run_clients<F>(
    plan: &Arc<RehearsalPlan>,
    event: &Arc<RehearsalEvent>,
    context: &RehearsalContext,
    seats: Arc<Vec<String>>,
    what: &str,
    work: impl Fn(HoldLoadClient) -> F,
) -> anyhow::Result<BuyerLog>
where
    F: Future<Output = anyhow::Result<Vec<String>>> + Send + 'static,
{
    let from = time::stopwatch() + pair_load::WARM_UP_TIME;
    let end = from + plan.time;
    context.counters.update(|counters| counters.counting_from = Some(from));
    let mut tasks = JoinSet::new();
    for number in 0..plan.buyers {
        let load_client = HoldLoadClient {
            name: format!("{}-{number}", plan.run),
            client: HttpClient::new(context.clone()),
            random: SplitMix64::new(plan.seed, number as u64),
            plan: plan.clone(),
            context: context.clone(),
            seats: seats.clone(),
            path: event.path("/holds"),
            end,
            requests_sent: 0,
            body: String::new(),
            violations: Vec::new(),
        };
        tasks.spawn(work(load_client));
    }
    let bar = progress::time_bar(plan.time, what);
    loop {
        let now = time::stopwatch();
        bar.set_position(u64::try_from(now.saturating_duration_since(from).as_millis()).unwrap_or(u64::MAX));
        if now >= end || context.stop.is_requested() {
            context.counters.update(|counters| counters.counted = now.min(end).saturating_duration_since(from));
            break;
        }
        context.stop.sleep_or_stop(PROGRESS_EVERY.min(end - now)).await;
    }
    let mut log = BuyerLog::default();
    while let Some(done) = tasks.join_next().await {
        log.violations.extend(done.context("run a buyer")??);
    }
    bar.finish_and_clear();
    Ok(log)
}

impl HoldLoadClient {
    fn is_running(&self) -> bool {
        time::stopwatch() < self.end && !self.context.stop.is_requested()
    }

    /// Writes the body of a request for two adjacent seats.
    fn write_hold_body(&mut self) {
        let first = self.random.below(self.seats.len() / 2) * 2;
        self.body.clear();
        let (one, two, name) = (&self.seats[first], &self.seats[first + 1], &self.name);
        // Writing to a String cannot fail. Ids of our own event need no escapes.
        let _ = write!(self.body, "{{\"seats\":[\"{one}\",\"{two}\"],\"buyer\":\"{name}\"}}");
    }

    async fn request_hold(&mut self) -> anyhow::Result<HttpResponse> {
        self.write_hold_body();
        self.requests_sent += 1;
        let key = self.plan.keyed.then(|| format!("{}-{}", self.name, self.requests_sent));
        let request = HttpRequest { idempotency_key: key.as_deref(), ..HttpRequest::post(&self.path, &self.body) };
        match self.client.send(request).await {
            Ok(response) => Ok(response),
            Err(_) => bail!("the server does not answer any more"),
        }
    }

    fn count_unexpected(&self, response: &HttpResponse) {
        let problem: ApiProblem = serde_json::from_slice(&response.body).unwrap_or_default();
        self.context.counters.update(|counters| counters.count_error(response.status, &problem.code));
    }

    async fn hold_and_release(mut self) -> anyhow::Result<Vec<String>> {
        while self.is_running() {
            let response = self.request_hold().await?;
            let took = response.received_at.saturating_duration_since(response.sent_at);
            let (granted, in_time) = (response.status == 201, response.received_at <= self.end);
            self.context.counters.update(|counters| {
                if counters.is_counted(response.sent_at) && in_time {
                    match response.status {
                        201 => counters.hold.record(took),
                        409 => counters.refusal.record(took),
                        _ => {}
                    }
                }
            });
            if granted {
                self.release(&response).await?;
            } else if response.status != 409 {
                self.count_unexpected(&response);
            }
        }
        Ok(self.violations)
    }

    async fn release(&mut self, response: &HttpResponse) -> anyhow::Result<()> {
        let handle: ApiHoldHandle<'_> = serde_json::from_slice(&response.body).context("read the answer to a hold")?;
        let path = format!("/v1/holds/{}/release", handle.hold_id);
        let key = self.plan.keyed.then(|| format!("{}-{}r", self.name, self.requests_sent));
        let hold_key = Some(handle.hold_key);
        let request = HttpRequest { idempotency_key: key.as_deref(), hold_key, ..HttpRequest::post(&path, "{}") };
        let Ok(response) = self.client.send(request).await else { bail!("the server does not answer any more") };
        if response.status != 200 {
            self.count_unexpected(&response);
        }
        let took = response.received_at.saturating_duration_since(response.sent_at);
        self.context.counters.update(|counters| {
            if counters.is_counted(response.sent_at) {
                counters.released += 1;
                counters.release.record(took);
            }
        });
        Ok(())
    }

    async fn request_taken_seats(mut self) -> anyhow::Result<Vec<String>> {
        while self.is_running() {
            let response = self.request_hold().await?;
            let took = response.received_at.saturating_duration_since(response.sent_at);
            let in_time = response.received_at <= self.end;
            match response.status {
                409 => self.context.counters.update(|counters| {
                    if counters.is_counted(response.sent_at) && in_time {
                        counters.refusal.record(took);
                    }
                }),
                201 => self.violations.push(format!("seats of somebody else were granted: {}", self.body)),
                _ => self.count_unexpected(&response),
            }
        }
        Ok(self.violations)
    }
}
