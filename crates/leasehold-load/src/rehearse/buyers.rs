//! Runs all buyers concurrently, each as a task, on one thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::task::JoinSet;

use super::api_types::ApiOrder;
use super::buyer::Buyer;
use super::buyer_log::{BuyerLog, ConfirmedOrder, UnansweredConfirm};
use super::context::RehearsalContext;
use super::http_client::{HttpClient, HttpRequest, escape_path};
use super::plan::{RehearsalMode, RehearsalPlan};
use super::rehearsal_event::RehearsalEvent;
use crate::bench::{pair_load, progress};
use leasehold_support::exit::Failure;
use leasehold_support::time;

/// File descriptors that this process needs besides.
const SPARE_FILE_DESCRIPTORS: u64 = 64;

/// Raises the limit of open files: each buyer has a connection.
///
/// # Errors
///
/// Bad usage if the system does not allow it.
pub fn raise_file_limit(buyers: usize) -> anyhow::Result<()> {
    let wanted = u64::try_from(buyers).unwrap_or(u64::MAX).saturating_add(SPARE_FILE_DESCRIPTORS);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).map_err(|_| {
        Failure::usage(format!(
            "{buyers} buyers need {wanted} open files, more than this process may have: see ulimit -n"
        ))
    })
}

/// Start of the measured part of a rehearsal.
pub struct RunTimer {
    at: Instant,
    cpu: Duration,
}

/// Times of the measured part.
#[derive(Clone, Copy, Debug)]
pub struct RunMeasurement {
    pub elapsed: Duration,
    pub cpu: Duration,
    /// The longest time to a response. The second one counts only requests without a retry.
    pub longest_wait: Duration,
    pub longest_wait_first_try: Duration,
}

/// Starts the measured part. Creating the event is not part of it.
pub fn start_timer(context: &RehearsalContext) -> RunTimer {
    context.counters.update(|counters| (counters.longest_wait, counters.longest_wait_first_try) = Default::default());
    RunTimer { at: time::stopwatch(), cpu: pair_load::cpu_time() }
}

impl RunTimer {
    /// Ends the measured part. Loads set the counted time themselves.
    pub fn stop(self, plan: &RehearsalPlan, context: &RehearsalContext) -> RunMeasurement {
        let now = time::stopwatch();
        let cpu = pair_load::cpu_time().saturating_sub(self.cpu);
        let (counted, longest_wait, longest_wait_first_try) = context
            .counters
            .update(|counters| (counters.counted, counters.longest_wait, counters.longest_wait_first_try));
        let elapsed = match plan.mode {
            RehearsalMode::Holds | RehearsalMode::Losers => counted,
            RehearsalMode::Sale | RehearsalMode::Flash => now.saturating_duration_since(self.at),
        };
        RunMeasurement { elapsed, cpu, longest_wait, longest_wait_first_try }
    }
}

/// Runs all buyers to their end, then resolves the confirms without a response.
///
/// # Errors
///
/// A buyer task panicked.
pub async fn run(
    plan: &Arc<RehearsalPlan>,
    event: &Arc<RehearsalEvent>,
    context: &RehearsalContext,
) -> anyhow::Result<BuyerLog> {
    let bar = progress::count_bar(plan.buyers as u64, "buyers");
    let mut buyers: Vec<Buyer> = (0..plan.buyers).map(|number| Buyer::new(number, plan, event, context)).collect();
    if plan.mode == RehearsalMode::Flash {
        // All buyers connect before the first request is sent.
        bar.set_message("buyers at the door");
        for buyer in &mut buyers {
            buyer.connect().await;
        }
        bar.set_message("buyers");
    }
    let mut tasks = JoinSet::new();
    buyers.into_iter().for_each(|buyer| drop(tasks.spawn(buyer.run())));
    let mut log = BuyerLog::default();
    while let Some(done) = tasks.join_next().await {
        log.merge(done.context("run a buyer")?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    resolve_unanswered(context, &mut log).await;
    Ok(log)
}

/// Sends each unanswered confirm again, even after the stop signal (which only ends retries).
async fn resolve_unanswered(context: &RehearsalContext, log: &mut BuyerLog) {
    let mut client = HttpClient::new(context.clone());
    for confirm in std::mem::take(&mut log.unanswered) {
        let UnansweredConfirm { buyer, hold_id, hold_key, payment_ref, idempotency_key } = &confirm;
        let path = format!("/v1/holds/{}/confirm", escape_path(hold_id));
        let body = serde_json::json!({"payment_ref": payment_ref}).to_string();
        let (idempotency_key, hold_key) = (Some(idempotency_key.as_str()), Some(hold_key.as_str()));
        let request = HttpRequest { idempotency_key, hold_key, ..HttpRequest::post(&path, &body) };
        let Ok(response) = client.send(request).await else {
            log.unanswered.push(confirm);
            continue;
        };
        context.counters.update(|counters| counters.unknown = counters.unknown.saturating_sub(1));
        if response.status == 201
            && let Ok(sold) = serde_json::from_slice::<ApiOrder>(&response.body)
        {
            let places = sold.areas.iter().map(|area| u64::from(area.qty)).sum::<u64>();
            context.counters.update(|counters| {
                counters.sold += 1;
                counters.sold_seats += sold.seats.len() as u64 + places;
            });
            let ApiOrder { order_id, seats, areas, .. } = sold;
            log.orders.push(ConfirmedOrder { order_id, buyer: buyer.clone(), seats, areas });
        }
    }
}
