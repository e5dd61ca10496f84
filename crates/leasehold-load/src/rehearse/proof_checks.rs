//! The checks: compares what buyers were told with what the event says of itself. Pure: no clock, no network.
//!
//! # Laws
//!
//! 1. No seat is in two orders: of the report, of the buyer log, of the audit replayed from its start.
//! 2. Every order that a buyer was told of exists, with its seats and tokens. No order exists that its buyer was not
//!    told of, unless the response was lost.
//! 3. The audit has no gap, and its result agrees with the report.
//! 4. No two holds on one seat were live at once, and later ones have higher tokens.
//! 5. Every cent of every order has a source: a provider or a key reported the payment, it is not less than the price,
//!    and no payment bought two orders.
//! 6. The tokens of a seat rise from one hold to the next, over the whole audit.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde::Serialize;

use super::api_types::ApiAuditEntry;
use super::buyer_log::{BuyerLog, ConfirmedOrder, HoldSpan};
use super::evidence::{Evidence, ReportLine};

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProofCheck {
    pub name: String,
    pub ok: bool,
    pub detail: String,
}

/// Faults shown per check.
const MAX_FAULTS_SHOWN: usize = 5;

impl ProofCheck {
    /// The check is ok if there are no faults. `fine` is the detail in that case.
    pub fn new(name: &str, faults: &[String], fine: String) -> Self {
        let shown = faults.iter().take(MAX_FAULTS_SHOWN).cloned().collect::<Vec<_>>().join("; ");
        let more = if faults.len() > MAX_FAULTS_SHOWN {
            format!("; and {} more", faults.len() - MAX_FAULTS_SHOWN)
        } else {
            String::new()
        };
        let ok = faults.is_empty();
        Self { name: name.into(), ok, detail: if ok { fine } else { format!("{shown}{more}") } }
    }
}

/// Runs all checks. `run` is the prefix of our buyers' names. `areas` maps each area to its capacity.
pub fn run_checks(run: &str, areas: &HashMap<&str, u32>, log: &BuyerLog, evidence: &Evidence) -> Vec<ProofCheck> {
    let mut checks = vec![
        sold_once(areas, log, evidence),
        areas_not_oversold(areas, log, evidence),
        confirmed_is_there(log, evidence),
        no_unreported_order(run, log, evidence),
        audit_agrees(areas, evidence),
        one_hold_at_a_time(&log.spans),
        every_cent_has_a_source(evidence),
        tokens_of_a_seat_rise(evidence),
        ProofCheck::new(
            "no_buyer_was_wronged",
            &log.violations,
            "every hold lasted as long as was said, and sold as held".into(),
        ),
    ];
    checks.push(server_invariants(evidence));
    checks
}

/// Law 1, by the report and by the buyer log.
fn sold_once(areas: &HashMap<&str, u32>, log: &BuyerLog, evidence: &Evidence) -> ProofCheck {
    let mut owners: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut faults = Vec::new();
    let mut lines = HashSet::new();
    for line in evidence.lines.iter().filter(|line| !areas.contains_key(line.piece.as_str())) {
        owners.entry(&line.piece).or_default().insert(&line.order_id);
        if !lines.insert((&line.order_id, &line.piece)) {
            faults.push(format!("{} is twice in {}", line.piece, line.order_id));
        }
    }
    for order in &log.orders {
        for seat in &order.seats {
            owners.entry(&seat.id).or_default().insert(&order.order_id);
        }
    }
    for (seat, orders) in owners.iter().filter(|(_, orders)| orders.len() > 1) {
        let orders: Vec<&str> = orders.iter().copied().collect();
        faults.push(format!("{seat} was sold {} times: {}", orders.len(), orders.join(", ")));
    }
    ProofCheck::new("no_seat_sold_twice", &faults, format!("{} sold seats, each in one order", owners.len()))
}

/// Areas: places sold against the capacity, by the report and by the buyer log.
fn areas_not_oversold(areas: &HashMap<&str, u32>, log: &BuyerLog, evidence: &Evidence) -> ProofCheck {
    let mut faults = Vec::new();
    let mut sum = 0;
    for (area, capacity) in areas {
        let lines =
            evidence.lines.iter().filter(|line| line.piece == *area).map(|line| u64::from(line.qty)).sum::<u64>();
        let pieces = log.orders.iter().flat_map(|order| &order.areas).filter(|piece| piece.id == *area);
        let places = lines.max(pieces.map(|piece| u64::from(piece.qty)).sum());
        sum += places;
        if places > u64::from(*capacity) {
            faults.push(format!("{area}: {places} places were sold, of {capacity}"));
        }
    }
    ProofCheck::new("no_area_oversold", &faults, format!("{sum} places of {} areas", areas.len()))
}

/// Law 2: every confirmed order exists.
fn confirmed_is_there(log: &BuyerLog, evidence: &Evidence) -> ProofCheck {
    let lines: HashMap<(&str, &str), &ReportLine> =
        evidence.lines.iter().map(|line| ((line.order_id.as_str(), line.piece.as_str()), line)).collect();
    let mut faults = Vec::new();
    for ConfirmedOrder { order_id, buyer, seats, areas } in &log.orders {
        for piece in seats.iter().chain(areas) {
            match lines.get(&(order_id.as_str(), piece.id.as_str())) {
                None => faults.push(format!("{} of {order_id} was confirmed to {buyer}, and is not there", piece.id)),
                Some(line) if line.buyer != *buyer => {
                    faults
                        .push(format!("{} of {order_id} was confirmed to {buyer}, and is {}'s", piece.id, line.buyer));
                }
                Some(line) if line.token != piece.token || line.qty != piece.qty.max(1) => faults.push(format!(
                    "{} of {order_id} was confirmed with token {}, and has {}",
                    piece.id, piece.token, line.token
                )),
                Some(_) => {}
            }
        }
    }
    ProofCheck::new(
        "every_confirmed_order_is_there",
        &faults,
        format!("{} confirmed orders, all there", log.orders.len()),
    )
}

/// Law 2: every order of our buyers was confirmed to its buyer.
fn no_unreported_order(run: &str, log: &BuyerLog, evidence: &Evidence) -> ProofCheck {
    let known: HashSet<&str> = log.orders.iter().map(|order| order.order_id.as_str()).collect();
    let unanswered: HashSet<&str> = log.unanswered.iter().map(|confirm| confirm.buyer.as_str()).collect();
    let ours = format!("{run}-");
    let unreported = |line: &&ReportLine| line.buyer.starts_with(&ours) && !known.contains(line.order_id.as_str());
    let unexplained = evidence.lines.iter().filter(unreported).filter(|line| !unanswered.contains(line.buyer.as_str()));
    let faults: BTreeSet<String> =
        unexplained.map(|line| format!("{} was sold to {}, who was not told so", line.order_id, line.buyer)).collect();
    let faults: Vec<String> = faults.into_iter().collect();
    ProofCheck::new("no_order_without_its_buyer", &faults, "every order was told to its buyer".into())
}

/// Laws 1 and 3, by the audit.
fn audit_agrees(areas: &HashMap<&str, u32>, evidence: &Evidence) -> ProofCheck {
    let mut faults = Vec::new();
    let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
    for (position, entry) in evidence.entries.iter().enumerate() {
        if entry.seq != position as u64 + 1 {
            faults.push(format!("entry {} stands in place {}", entry.seq, position + 1));
            break;
        }
        replay_entry(entry, &mut owners, &mut faults);
    }
    let from_audit: BTreeSet<(&str, &str)> = owners.into_iter().collect();
    let seats = evidence.lines.iter().filter(|line| !areas.contains_key(line.piece.as_str()));
    let from_report: BTreeSet<(&str, &str)> = seats.map(|line| (line.piece.as_str(), line.order_id.as_str())).collect();
    for (seat, order) in from_audit.symmetric_difference(&from_report) {
        let whose = if from_audit.contains(&(*seat, *order)) { "the audit alone" } else { "the report alone" };
        faults.push(format!("{seat} is in {order} by {whose}"));
    }
    ProofCheck::new("audit_and_report_agree", &faults, format!("{} entries without a gap", evidence.entries.len()))
}

fn replay_entry<'a>(entry: &'a ApiAuditEntry, owners: &mut BTreeMap<&'a str, &'a str>, faults: &mut Vec<String>) {
    let undoes = matches!(entry.kind.as_str(), "voided" | "moved" | "layout_changed");
    for seat in &entry.seats {
        let owner = owners.get(seat.id.as_str()).copied();
        let (seq, id, state) = (entry.seq, &seat.id, &seat.state);
        match (state.as_str(), owner, entry.order_id.as_deref()) {
            ("sold", Some(owner), Some(order)) if owner != order => {
                faults.push(format!("entry {seq}: {id} was sold to {order}, and was {owner}'s"));
            }
            ("sold", _, Some(order)) => drop(owners.insert(id, order)),
            ("sold", _, None) => faults.push(format!("entry {seq}: {id} was sold in no order")),
            (_, Some(_), _) if undoes => drop(owners.remove(id.as_str())),
            (_, Some(owner), _) => faults.push(format!("entry {seq}: {id} became {state}, and was {owner}'s")),
            _ => {}
        }
    }
}

/// Law 5.
fn every_cent_has_a_source(evidence: &Evidence) -> ProofCheck {
    let mut faults = Vec::new();
    let mut bought: HashMap<&str, &str> = HashMap::new();
    let mut sum: u64 = 0;
    for entry in evidence.entries.iter().filter(|entry| matches!(entry.kind.as_str(), "sold" | "sold_late")) {
        let Some(order) = entry.order_id.as_deref() else { continue };
        let (price, paid) = (entry.amount.unwrap_or(0), entry.paid.unwrap_or(0));
        sum = sum.saturating_add(paid);
        if paid < price || (price > 0 && entry.source.is_none()) {
            faults.push(format!("{order} was sold for {price}, and {paid} came by anybody's word"));
        }
        let payment = entry.payment_ref.as_deref().filter(|_| price > 0);
        if let Some(other) = payment.and_then(|payment| bought.insert(payment, order)).filter(|other| *other != order) {
            faults.push(format!("one payment bought {other} and {order}"));
        }
    }
    ProofCheck::new("every_cent_has_a_source", &faults, format!("{sum} came, by the word of a provider or a key"))
}

/// Law 6.
fn tokens_of_a_seat_rise(evidence: &Evidence) -> ProofCheck {
    let mut faults = Vec::new();
    let mut newest: HashMap<&str, (u64, Option<&str>)> = HashMap::new();
    for entry in &evidence.entries {
        let hold = entry.hold_id.as_deref();
        for (seat, token) in entry.seats.iter().filter_map(|seat| Some((seat.id.as_str(), seat.token?))) {
            let Some((before, held)) = newest.insert(seat, (token, hold)) else { continue };
            if token < before || (token == before && hold != held) {
                faults.push(format!("entry {}: {seat} came to token {token}, after {before}", entry.seq));
            }
        }
    }
    ProofCheck::new(
        "tokens_of_a_seat_rise",
        &faults,
        format!("{} seats, none went back to an older token", newest.len()),
    )
}

/// Law 4.
fn one_hold_at_a_time(spans: &[HoldSpan]) -> ProofCheck {
    let mut seats: BTreeMap<&str, Vec<&HoldSpan>> = BTreeMap::new();
    spans.iter().for_each(|span| seats.entry(&span.seat).or_default().push(span));
    let mut faults = Vec::new();
    for (seat, spans) in &mut seats {
        spans.sort_by_key(|span| span.from);
        // The span that ends last so far. A span that starts before that end overlaps it.
        let mut longest: Option<&HoldSpan> = None;
        for span in spans.iter().filter(|span| span.until > span.from) {
            if let Some(before) = longest.filter(|before| before.hold_id != span.hold_id && before.until > span.from) {
                faults.push(format!("{seat} was held by {} and {} at once", before.hold_id, span.hold_id));
            }
            longest = longest.filter(|before| before.until > span.until).or(Some(span));
        }
        spans.sort_by_key(|span| span.token);
        for pair in spans.windows(2).filter(|pair| pair[0].hold_id != pair[1].hold_id) {
            // The higher token was granted before the lower one was requested, or both are equal.
            if pair[1].from < pair[0].sent_at || pair[0].token == pair[1].token {
                let (low, high) = (pair[0], pair[1]);
                faults.push(format!("{seat}: token {} was granted after {}", low.token, high.token));
            }
        }
    }
    ProofCheck::new("one_hold_at_a_time", &faults, format!("{} holds of {} seats", spans.len(), seats.len()))
}

/// The invariants that the server checked itself.
fn server_invariants(evidence: &Evidence) -> ProofCheck {
    let bad = evidence.invariants.iter().filter(|check| !check.ok);
    let mut faults: Vec<String> = bad.map(|check| format!("{}: {}", check.name, check.detail)).collect();
    if evidence.invariants.is_empty() {
        faults.push("the server looked at no invariant".into());
    }
    ProofCheck::new("invariants_of_the_server", &faults, format!("{} looked at, all hold", evidence.invariants.len()))
}

#[cfg(test)]
mod tests;
