//! The report of a rehearsal, as text and as JSON.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::buyers::RunMeasurement;
use super::context::RehearsalContext;
use super::plan::{RehearsalMode, RehearsalPlan};
use super::proof::RehearsalProof;
use super::proof_checks::ProofCheck;
use super::rehearsal_event::RehearsalEvent;
use crate::bench::latency::LatencySummary;
use crate::bench::pairs_report::format_micros;
use leasehold_support::output::{self, Table};

/// The JSON object of `--json`. Latencies are in microseconds.
#[derive(Debug, Serialize)]
pub struct RehearsalReport {
    url: String,
    event_id: String,
    mode: RehearsalMode,
    seed: u64,
    buyers: usize,
    seats: usize,
    seconds: f64,
    holds: u64,
    holds_per_s: f64,
    /// Holds refused because the seats were taken.
    refusals: u64,
    refusals_per_s: f64,
    conflict_rate: f64,
    reasons: BTreeMap<String, u64>,
    hold_us: LatencySummary,
    refusal_us: LatencySummary,
    confirm_us: LatencySummary,
    release_us: LatencySummary,
    arrived: u64,
    sold: u64,
    sold_seats: u64,
    sold_late: u64,
    sold_other_seats: u64,
    abandoned: u64,
    released: u64,
    declined: u64,
    never_paid: u64,
    refunded: u64,
    expired: u64,
    went_without: u64,
    longest_wait_ms: u64,
    longest_wait_first_try_ms: u64,
    /// Requests without a response that were retried, and responses that ask to retry later.
    lost_answers: u64,
    not_now: BTreeMap<u16, u64>,
    unknown: usize,
    /// Unexpected responses.
    errors: BTreeMap<String, u64>,
    /// CPU time of this process per request, in microseconds.
    cpu_us_per_request: f64,
    proof: ProofReport,
}

#[derive(Debug, Serialize)]
struct ProofReport {
    ok: bool,
    audit_entries: usize,
    confirmed_orders: usize,
    checks: Vec<ProofCheck>,
}

#[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn rate_per_s(count: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { (count as f64 / time.as_secs_f64() * 10.0).round() / 10.0 }
}

impl RehearsalReport {
    #[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    pub fn new(
        plan: &RehearsalPlan,
        event: &RehearsalEvent,
        context: &RehearsalContext,
        measured: &RunMeasurement,
        proof: &RehearsalProof,
    ) -> Self {
        context.counters.update(|counters| {
            let (holds, refusals) = (counters.hold.count(), counters.refusal.count());
            let requests = holds + refusals + counters.confirm.count() + counters.release.count();
            let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
            Self {
                url: context.deployment.display_url.clone(),
                event_id: event.event_id.clone(),
                mode: plan.mode,
                seed: plan.seed,
                buyers: plan.buyers,
                seats: event.seats.len(),
                seconds: (measured.elapsed.as_secs_f64() * 1000.0).round() / 1000.0,
                holds,
                holds_per_s: rate_per_s(holds, measured.elapsed),
                refusals,
                refusals_per_s: rate_per_s(refusals, measured.elapsed),
                conflict_rate: counters.conflict_rate(),
                reasons: counters.reasons.clone(),
                hold_us: counters.hold.summary(),
                refusal_us: counters.refusal.summary(),
                confirm_us: counters.confirm.summary(),
                release_us: counters.release.summary(),
                arrived: counters.arrived,
                sold: counters.sold,
                sold_seats: counters.sold_seats,
                sold_late: counters.sold_late,
                sold_other_seats: counters.sold_other_seats,
                abandoned: counters.walked_away,
                released: counters.released,
                declined: counters.declined,
                never_paid: counters.never_paid,
                refunded: counters.refunded,
                expired: counters.expired,
                went_without: counters.went_without,
                longest_wait_ms: millis(measured.longest_wait),
                longest_wait_first_try_ms: millis(measured.longest_wait_first_try),
                lost_answers: counters.lost,
                not_now: counters.not_now.clone(),
                unknown: proof.unknown,
                errors: counters.errors.clone(),
                cpu_us_per_request: (measured.cpu.as_micros() as f64 / (requests.max(1) as f64) * 10.0).round() / 10.0,
                proof: ProofReport {
                    ok: proof.checks.iter().all(|check| check.ok),
                    audit_entries: proof.entries,
                    confirmed_orders: proof.confirmed_orders,
                    checks: proof.checks.clone(),
                },
            }
        })
    }

    /// Whether a response was unexpected, or there was none at all: an empty run proves nothing.
    pub fn failed(&self) -> bool {
        !self.errors.is_empty() || self.holds + self.refusals == 0
    }

    /// Prints the report as text.
    pub fn print(&self) -> anyhow::Result<()> {
        self.print_latencies()?;
        self.print_buyers()?;
        self.print_troubles()?;
        let mut table = Table::new(&["PROOF", "", ""]);
        for check in &self.proof.checks {
            table.row([check.name.clone(), if check.ok { "holds" } else { "BROKEN" }.into(), check.detail.clone()]);
        }
        table.print()?;
        let verdict = if self.proof.ok { "nothing was sold twice" } else { "BROKEN: see above" };
        output::line(format!("{verdict} (event {}, seed {})", output::plain(&self.event_id), self.seed))
    }

    fn print_latencies(&self) -> anyhow::Result<()> {
        let mut table = Table::new(&["", "COUNT", "PER S", "P50", "P99", "MAX"]);
        let per_s = |count: u64| format!("{:.0}", rate_per_s(count, Duration::from_secs_f64(self.seconds.max(0.0))));
        let rows = [
            ("hold", self.holds, self.hold_us),
            ("refusal", self.refusals, self.refusal_us),
            ("confirm", self.sold, self.confirm_us),
            ("release", self.released, self.release_us),
        ];
        for (what, count, summary) in rows.into_iter().filter(|(_, count, _)| *count > 0) {
            let LatencySummary { p50, p99, max } = summary;
            table.row([
                what.into(),
                count.to_string(),
                per_s(count),
                format_micros(p50),
                format_micros(p99),
                format_micros(max),
            ]);
        }
        table.print()?;
        let reasons: Vec<String> = self.reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        let reasons = if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join(", ")) };
        output::line(format!(
            "conflict rate {:.1} %{}; longest wait for an answer {} ms; {:.0} us of CPU per request for the load itself",
            self.conflict_rate * 100.0,
            output::plain(&reasons),
            self.longest_wait_ms,
            self.cpu_us_per_request,
        ))
    }

    fn print_buyers(&self) -> anyhow::Result<()> {
        if matches!(self.mode, RehearsalMode::Holds | RehearsalMode::Losers) {
            return Ok(());
        }
        output::line(format!(
            "{} buyers in {:.1} s: {} orders sold ({} seats and places; {} late, {} other seats), {} abandoned, {} released, \
             {} declined, {} never paid, {} refunded, {} too late, {} went without",
            self.arrived,
            self.seconds,
            self.sold,
            self.sold_seats,
            self.sold_late,
            self.sold_other_seats,
            self.abandoned,
            self.released,
            self.declined,
            self.never_paid,
            self.refunded,
            self.expired,
            self.went_without,
        ))
    }

    fn print_troubles(&self) -> anyhow::Result<()> {
        if self.lost_answers > 0 || !self.not_now.is_empty() {
            let not_now: Vec<String> =
                self.not_now.iter().map(|(status, count)| format!("{count} x {status}")).collect();
            output::line(format!(
                "{} answers were lost and asked for again{}{}; {} outcomes are unknown",
                self.lost_answers,
                if not_now.is_empty() { "" } else { ", not now: " },
                not_now.join(", "),
                self.unknown,
            ))?;
        }
        for (what, count) in &self.errors {
            output::line(format!("{count} x unexpected: {}", output::plain(what)))?;
        }
        if self.holds + self.refusals == 0 {
            output::line("nobody asked for anything: nothing is proven")?;
        }
        Ok(())
    }
}
