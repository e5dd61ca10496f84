//! Checks the invariants of an event on its rows as stored, and on its entries.
//!
//! No constraint, counter or decision is trusted: the rows are counted again.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::event::EventRow;
use super::facts::AreaFact;
use super::hold::{HoldRow, HoldState};
use super::ids::{Buyer, HoldId, Moment, OrderId};
use super::order::{MoneyRow, OrderRow, PaymentSource};

/// Every row of an event, read in one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dump {
    /// The moment.
    pub now: Moment,
    /// The event.
    pub event: EventRow,
    /// Ids of all seats.
    pub seats: Vec<String>,
    /// Areas with their counters.
    pub areas: Vec<AreaFact>,
    /// Seats under holds: seat, hold, token.
    pub held: Vec<(String, HoldId, u64)>,
    /// Sold seats: seat, order, token.
    pub sold: Vec<(String, OrderId, u64)>,
    /// Blocked seats.
    pub blocked: Vec<String>,
    /// Holds that are not ended, due ones too.
    pub holds: Vec<HoldRow>,
    /// All orders.
    pub orders: Vec<OrderRow>,
    /// Buyers with their counters: held, sold.
    pub buyers: Vec<(Buyer, u32, u32)>,
    /// Money that has no order, or was too much for one.
    pub money: Vec<MoneyRow>,
    /// How many entries are numbered, and the highest number.
    pub numbered: (u64, u64),
    /// Entries in which a seat has a lower token than in the one before, or the same under another hold.
    pub tokens_back: Vec<TokenBack>,
}

/// A seat whose token did not rise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenBack {
    /// Which.
    pub seat: String,
    /// The number of the entry.
    pub seq: u64,
    /// The token it had.
    pub before: u64,
    /// The token it came to.
    pub after: u64,
}

/// The result of checking one invariant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvariantCheck {
    /// Which.
    pub name: String,
    /// Whether it holds.
    pub ok: bool,
    /// What was counted, or what is wrong.
    pub detail: String,
}

/// Checks every invariant.
#[must_use]
pub fn invariants(dump: &Dump) -> Vec<InvariantCheck> {
    vec![
        no_seat_sold_twice(dump),
        each_seat_in_one_state(dump),
        seats_sum_to_capacity(dump),
        areas_sum_to_capacity(dump),
        no_hold_beyond_its_cap(dump),
        no_buyer_beyond_the_limit(dump),
        no_sale_without_its_token(dump),
        holds_and_seats_agree(dump),
        orders_and_sales_agree(dump),
        money_is_accounted_for(dump),
        every_cent_has_a_source(dump),
        tokens_of_a_seat_rise(dump),
        sequence_without_gap(dump),
    ]
}

/// Makes a check of its faults: none, and it holds.
fn make_check(name: &str, faults: &[String], fine: String) -> InvariantCheck {
    let shown = faults.iter().take(5).cloned().collect::<Vec<_>>().join("; ");
    let more = if faults.len() > 5 { format!("; and {} more", faults.len() - 5) } else { String::new() };
    let ok = faults.is_empty();
    InvariantCheck { name: name.into(), ok, detail: if ok { fine } else { format!("{shown}{more}") } }
}

fn no_seat_sold_twice(dump: &Dump) -> InvariantCheck {
    let mut owners: BTreeMap<&str, Vec<&OrderId>> = BTreeMap::new();
    dump.sold.iter().for_each(|(seat, order, _)| owners.entry(seat).or_default().push(order));
    // The orders are a second witness: a seat that two orders claim was sold twice, whatever the table says.
    for order in &dump.orders {
        for seat in &order.seats {
            let known = owners.entry(&seat.id).or_default();
            if !known.contains(&&order.order_id) {
                known.push(&order.order_id);
            }
        }
    }
    let twice = owners.iter().filter(|(_, orders)| orders.len() > 1);
    let faults: Vec<String> = twice.map(|(seat, orders)| format!("{seat} is in {} orders", orders.len())).collect();
    make_check("no_seat_sold_twice", &faults, format!("{} sold seats, each in one order", owners.len()))
}

/// Seats under live holds. What is due counts as free.
fn live_seats(dump: &Dump) -> impl Iterator<Item = (&str, &HoldRow)> {
    let rows: BTreeMap<&HoldId, &HoldRow> = dump.holds.iter().map(|hold| (&hold.hold_id, hold)).collect();
    let seats = dump.held.iter().filter_map(move |(seat, hold, _)| Some((seat.as_str(), *rows.get(hold)?)));
    seats.filter(|(_, hold)| hold.is_live(dump.now))
}

fn each_seat_in_one_state(dump: &Dump) -> InvariantCheck {
    let mut states: BTreeMap<&str, Vec<&str>> = dump.seats.iter().map(|seat| (seat.as_str(), Vec::new())).collect();
    let mut faults = Vec::new();
    let held = live_seats(dump).map(|(seat, _)| (seat, "held"));
    let sold = dump.sold.iter().map(|(seat, ..)| (seat.as_str(), "sold"));
    let blocked = dump.blocked.iter().map(|seat| (seat.as_str(), "blocked"));
    for (seat, state) in held.chain(sold).chain(blocked) {
        match states.get_mut(seat) {
            Some(known) => known.push(state),
            None => faults.push(format!("{seat} is {state} and not in the layout")),
        }
    }
    let several = states.iter().filter(|(_, states)| states.len() > 1);
    faults.extend(several.map(|(seat, states)| format!("{seat} is {}", states.join(" and "))));
    make_check("each_seat_in_one_state", &faults, format!("{} seats, each in one state", states.len()))
}

fn seats_sum_to_capacity(dump: &Dump) -> InvariantCheck {
    let used: BTreeSet<&str> = live_seats(dump)
        .map(|(seat, _)| seat)
        .chain(dump.sold.iter().map(|(seat, ..)| seat.as_str()))
        .chain(dump.blocked.iter().map(String::as_str))
        .collect();
    let paying = live_seats(dump).filter(|(_, hold)| hold.state == HoldState::Paying).count();
    let held = live_seats(dump).count() - paying;
    let all = dump.seats.len();
    let free = dump.seats.iter().filter(|seat| !used.contains(seat.as_str())).count();
    let sum = free + held + paying + dump.sold.len() + dump.blocked.len();
    let parts = format!(
        "free {free} + held {held} + paying {paying} + sold {} + blocked {} = {sum}, of {all}",
        dump.sold.len(),
        dump.blocked.len()
    );
    let known = usize::try_from(dump.event.seats).unwrap_or(usize::MAX);
    let wrong = sum != all || known != all;
    make_check("seats_sum_to_capacity", &if wrong { vec![parts.clone()] } else { vec![] }, parts)
}

fn areas_sum_to_capacity(dump: &Dump) -> InvariantCheck {
    let mut faults = Vec::new();
    for area in &dump.areas {
        let of_hold =
            |hold: &HoldRow| hold.areas.iter().filter(|held| held.id == area.id).map(|held| held.qty).sum::<u32>();
        let rows: u32 = dump.holds.iter().map(of_hold).sum();
        let sold: u32 = dump
            .orders
            .iter()
            .flat_map(|order| &order.areas)
            .filter(|sold| sold.id == area.id)
            .map(|sold| sold.qty)
            .sum();
        let live: u32 = dump.holds.iter().filter(|hold| hold.is_live(dump.now)).map(of_hold).sum();
        if (area.held, area.sold) != (rows, sold) {
            faults
                .push(format!("{}: counters say {} held, {} sold; rows {rows}, {sold}", area.id, area.held, area.sold));
        }
        if live + sold + area.blocked > area.capacity {
            faults
                .push(format!("{}: {live} held + {sold} sold + {} blocked > {}", area.id, area.blocked, area.capacity));
        }
    }
    make_check("areas_sum_to_capacity", &faults, format!("{} areas, none oversold", dump.areas.len()))
}

fn no_hold_beyond_its_cap(dump: &Dump) -> InvariantCheck {
    let mut faults = Vec::new();
    for hold in dump.holds.iter().filter(|hold| hold.is_live(dump.now)) {
        if hold.active_until > hold.cap_at {
            faults.push(format!("{} runs past its cap", hold.hold_id));
        }
        if hold.state == HoldState::Active && hold.expires_at > hold.cap_at {
            faults.push(format!("{} is active past its cap", hold.hold_id));
        }
    }
    make_check("no_hold_beyond_its_cap", &faults, format!("{} live holds within their caps", live_count(dump)))
}

fn live_count(dump: &Dump) -> usize {
    dump.holds.iter().filter(|hold| hold.is_live(dump.now)).count()
}

fn no_buyer_beyond_the_limit(dump: &Dump) -> InvariantCheck {
    let mut have: BTreeMap<&Buyer, (u32, u32, u32)> = BTreeMap::new();
    for hold in &dump.holds {
        let entry = have.entry(&hold.buyer).or_default();
        entry.0 += hold.count();
        entry.1 += if hold.is_live(dump.now) { hold.count() } else { 0 };
    }
    for order in &dump.orders {
        let places: u32 = order.areas.iter().map(|area| area.qty).sum();
        have.entry(&order.buyer).or_default().2 += u32::try_from(order.seats.len()).unwrap_or(u32::MAX) + places;
    }
    // Rules that are stricter than they were take nothing away from anybody.
    let limit = dump.event.settings.per_buyer.max(dump.event.most_per_buyer);
    let mut faults: Vec<String> = Vec::new();
    for (buyer, (_, live, sold)) in &have {
        if live + sold > limit {
            faults.push(format!("{buyer} has {live} held and {sold} sold, of {limit}"));
        }
    }
    for (buyer, held, sold) in &dump.buyers {
        let rows = have.get(buyer).copied().unwrap_or_default();
        if (*held, *sold) != (rows.0, rows.2) {
            faults.push(format!("{buyer}: counters say {held} held, {sold} sold; rows {}, {}", rows.0, rows.2));
        }
    }
    make_check("no_buyer_beyond_the_limit", &faults, format!("{} buyers within {limit}", have.len()))
}

fn no_sale_without_its_token(dump: &Dump) -> InvariantCheck {
    let tokens: BTreeMap<(&OrderId, &str), u64> = dump
        .orders
        .iter()
        .flat_map(|order| order.seats.iter().map(|seat| ((&order.order_id, seat.id.as_str()), seat.token)))
        .collect();
    let mut faults = Vec::new();
    for (seat, order, token) in &dump.sold {
        match tokens.get(&(order, seat.as_str())) {
            Some(known) if known == token && *token > 0 => {}
            Some(known) => faults.push(format!("{seat} was sold with token {token}, its order says {known}")),
            None => faults.push(format!("{seat} was sold in {order}, which does not have it")),
        }
    }
    make_check("no_sale_without_its_token", &faults, format!("{} sales carry their token", dump.sold.len()))
}

fn holds_and_seats_agree(dump: &Dump) -> InvariantCheck {
    let says: BTreeSet<(&str, &HoldId, u64)> = dump
        .holds
        .iter()
        .flat_map(|hold| hold.seats.iter().map(|seat| (seat.id.as_str(), &hold.hold_id, seat.token)))
        .collect();
    let lies: BTreeSet<(&str, &HoldId, u64)> =
        dump.held.iter().map(|(seat, hold, token)| (seat.as_str(), hold, *token)).collect();
    let differ = says.symmetric_difference(&lies);
    let faults: Vec<String> = differ.map(|(seat, hold, token)| format!("{seat} under {hold}, token {token}")).collect();
    make_check("holds_and_seats_agree", &faults, format!("{} seats under {} holds", lies.len(), dump.holds.len()))
}

fn orders_and_sales_agree(dump: &Dump) -> InvariantCheck {
    let says: BTreeSet<(&str, &OrderId)> = dump
        .orders
        .iter()
        .flat_map(|order| order.seats.iter().map(|seat| (seat.id.as_str(), &order.order_id)))
        .collect();
    let lies: BTreeSet<(&str, &OrderId)> = dump.sold.iter().map(|(seat, order, _)| (seat.as_str(), order)).collect();
    let mut faults: Vec<String> =
        says.symmetric_difference(&lies).map(|(seat, order)| format!("{seat} in {order}")).collect();
    let wrong = dump.orders.iter().filter(|order| order.total != order.sum());
    faults.extend(wrong.map(|order| format!("{} says {} and sums to {}", order.order_id, order.total, order.sum())));
    make_check("orders_and_sales_agree", &faults, format!("{} orders have what was sold", dump.orders.len()))
}

fn money_is_accounted_for(dump: &Dump) -> InvariantCheck {
    let mut parts: BTreeMap<&OrderId, (u32, u64)> = BTreeMap::new();
    for (order, amount) in dump.money.iter().filter_map(|row| Some((row.order_id.as_ref()?, row.amount))) {
        let known = parts.entry(order).or_default();
        *known = (known.0 + 1, known.1.saturating_add(amount));
    }
    let mut faults = Vec::new();
    for order in &dump.orders {
        let (many, sum) = parts.remove(&order.order_id).unwrap_or_default();
        if (order.refunds, order.back) != (many, sum) {
            let (refunds, back) = (order.refunds, order.back);
            faults.push(format!("{}: {back} go back in {refunds} parts; rows say {sum} in {many}", order.order_id));
        }
        if order.owed() > 0 {
            faults.push(format!("{}: {} are kept beyond its price", order.order_id, order.owed()));
        }
        if order.back > order.came() {
            faults.push(format!("{}: {} go back of {} that came", order.order_id, order.back, order.came()));
        }
    }
    faults.extend(parts.keys().map(|order| format!("money goes back for {order}, which there is not")));
    make_check("money_is_accounted_for", &faults, format!("{} orders, and what goes back of them", dump.orders.len()))
}

/// What a source says counts for an order when it is for its own hold, or for one whose late money was offered this.
fn is_for(source: &PaymentSource, order: &OrderRow, dump: &Dump) -> bool {
    let offered = |money: &MoneyRow| {
        money.offer.as_ref() == Some(&order.hold_id)
            && money.payment_ref == source.payment_ref
            && money.hold_id == source.hold_id
    };
    source.payment_ref == order.payment_ref && (source.hold_id == order.hold_id || dump.money.iter().any(offered))
}

/// Every order was sold for money that a provider or a key said had come: for this very order, and not less than it cost.
fn every_cent_has_a_source(dump: &Dump) -> InvariantCheck {
    let mut faults = Vec::new();
    let mut payments: BTreeMap<&str, &OrderId> = BTreeMap::new();
    // Orders of a version that did not record sources say nothing of them.
    let known = dump.orders.iter().filter_map(|order| Some((order, order.sold_for?)));
    let mut sum: u64 = 0;
    for (order, cost) in known {
        let id = &order.order_id;
        for stranger in order.sources.iter().filter(|source| !is_for(source, order, dump)) {
            faults.push(format!("{id} was bought with money for {}", stranger.hold_id));
        }
        // Each time it is said, it is said of all that came.
        let came = order.sources.iter().filter(|source| is_for(source, order, dump)).map(|source| source.amount).max();
        let came = came.unwrap_or(0);
        if came < cost {
            faults.push(format!("{id} was sold for {cost}, and {came} came by anybody's word"));
        }
        if order.paid.is_some_and(|paid| paid > came) {
            faults.push(format!("{id} counts {} as paid, of which {came} have a source", order.came()));
        }
        if came > 0
            && let Some(other) = payments.insert(&order.payment_ref, id)
        {
            faults.push(format!("one payment bought {other} and {id}"));
        }
        sum = sum.saturating_add(came);
    }
    make_check("every_cent_has_a_source", &faults, format!("{sum} came, by the word of a provider or a key"))
}

fn tokens_of_a_seat_rise(dump: &Dump) -> InvariantCheck {
    let back = |step: &TokenBack| {
        let TokenBack { seat, seq, before, after } = step;
        format!("entry {seq}: {seat} came to token {after}, after {before}")
    };
    let faults: Vec<String> = dump.tokens_back.iter().map(back).collect();
    make_check("tokens_of_a_seat_rise", &faults, "no seat went back to an older token".into())
}

fn sequence_without_gap(dump: &Dump) -> InvariantCheck {
    let (count, highest) = dump.numbered;
    let faults = if count == highest { vec![] } else { vec![format!("{count} entries, the highest is {highest}")] };
    make_check("sequence_without_gap", &faults, format!("{count} entries, 1 to {highest}"))
}
