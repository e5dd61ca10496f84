//! Breaks every law once.

use std::time::{Duration, Instant};

use super::super::api_types::{ApiCheck, ApiPiece, ApiSeatChange};
use super::super::buyer_log::UnansweredConfirm;
use super::*;
use leasehold_support::time;

struct Case {
    log: BuyerLog,
    evidence: Evidence,
    zero: Instant,
}

fn piece(id: &str, token: u64, qty: u32) -> ApiPiece {
    ApiPiece { id: id.into(), token, qty }
}

fn change(id: &str, state: &str, token: u64) -> ApiSeatChange {
    ApiSeatChange { id: id.into(), state: state.into(), token: (token > 0).then_some(token) }
}

fn entry(seq: u64, kind: &str, order: Option<&str>, seats: Vec<ApiSeatChange>) -> ApiAuditEntry {
    let sale = kind == "sold";
    ApiAuditEntry {
        seq,
        kind: kind.into(),
        hold_id: seats.first().and_then(|seat| seat.token).map(|token| format!("h_{token}")),
        order_id: order.map(Into::into),
        payment_ref: order.map(|order| format!("pi {order}")),
        seats,
        amount: sale.then_some(100),
        paid: sale.then_some(100),
        source: sale.then(|| "provider".into()),
    }
}

fn line(order: &str, buyer: &str, piece: &str, qty: u32, token: u64) -> ReportLine {
    ReportLine { order_id: order.into(), buyer: buyer.into(), piece: piece.into(), qty, token }
}

/// Two buyers: one has A-1 and two places on the floor, the other A-2, which somebody held before.
fn fine() -> Case {
    let zero = time::stopwatch();
    let at = |ms: u64| zero + Duration::from_millis(ms);
    let span = |seat: &str, token: u64, hold: &str, sent_at: u64, until: u64| HoldSpan {
        seat: seat.into(),
        token,
        hold_id: hold.into(),
        sent_at: at(sent_at),
        from: at(sent_at + 5),
        until: at(until),
    };
    let confirmed = |order: &str, buyer: &str, seats: Vec<ApiPiece>, areas: Vec<ApiPiece>| ConfirmedOrder {
        order_id: order.into(),
        buyer: buyer.into(),
        seats,
        areas,
    };
    Case {
        log: BuyerLog {
            orders: vec![
                confirmed("o_1", "r-0", vec![piece("A-1", 3, 0)], vec![piece("floor", 3, 2)]),
                confirmed("o_2", "r-1", vec![piece("A-2", 4, 0)], vec![]),
            ],
            spans: vec![span("A-1", 3, "h_1", 0, 100), span("A-2", 2, "h_0", 0, 50), span("A-2", 4, "h_2", 50, 100)],
            ..BuyerLog::default()
        },
        evidence: Evidence {
            lines: vec![
                line("o_1", "r-0", "A-1", 1, 3),
                line("o_1", "r-0", "floor", 2, 3),
                line("o_2", "r-1", "A-2", 1, 4),
                line("o_9", "somebody else", "B-1", 1, 1),
            ],
            entries: vec![
                entry(1, "sold", Some("o_9"), vec![change("B-1", "sold", 1)]),
                entry(2, "held", None, vec![change("A-2", "held", 2)]),
                entry(3, "held", None, vec![change("A-1", "held", 3)]),
                entry(4, "lapsed", None, vec![change("A-2", "free", 0)]),
                entry(5, "held", None, vec![change("A-2", "held", 4)]),
                entry(6, "sold", Some("o_1"), vec![change("A-1", "sold", 3)]),
                entry(7, "sold", Some("o_2"), vec![change("A-2", "sold", 4)]),
            ],
            invariants: vec![ApiCheck { name: "x".into(), ok: true, detail: String::new() }],
        },
        zero,
    }
}

/// The names of the checks that do not hold.
fn broken(case: &Case) -> Vec<String> {
    let areas = HashMap::from([("floor", 2)]);
    let checks = run_checks("r", &areas, &case.log, &case.evidence);
    checks.into_iter().filter(|check| !check.ok).map(|check| check.name).collect()
}

#[test]
fn what_is_fine_is_found_fine() {
    assert_eq!(broken(&fine()), Vec::<String>::new());
}

/// Goal: a check that cannot fail is a defect: each of them fails for what it is there for.
#[test]
fn each_law_is_seen_broken() {
    type Break = fn(&mut Case);
    let table: [(&str, &str, Break); 23] = [
        ("a seat in two orders of the report", "no_seat_sold_twice", |case| {
            case.evidence.lines.push(line("o_8", "x", "A-1", 1, 9));
        }),
        ("a seat twice in one order", "no_seat_sold_twice", |case| {
            case.evidence.lines.push(line("o_1", "r-0", "A-1", 1, 3));
        }),
        ("two buyers were told the same seat", "no_seat_sold_twice", |case| {
            case.log.orders[1].seats[0].id = "A-1".into();
        }),
        ("more places than there are", "no_area_oversold", |case| {
            case.evidence.lines.push(line("o_2", "r-1", "floor", 1, 4));
        }),
        ("an order is gone", "every_confirmed_order_is_there", |case| {
            case.evidence.lines.retain(|line| line.order_id != "o_2");
        }),
        ("an order is another's", "every_confirmed_order_is_there", |case| {
            case.evidence.lines[0].buyer = "r-1".into();
        }),
        ("a token changed", "every_confirmed_order_is_there", |case| case.evidence.lines[0].token = 8),
        ("fewer places than confirmed", "every_confirmed_order_is_there", |case| case.evidence.lines[1].qty = 1),
        ("sold to who was told no", "no_order_without_its_buyer", |case| {
            case.log.orders.retain(|order| order.order_id != "o_2");
        }),
        ("a gap", "audit_and_report_agree", |case| drop(case.evidence.entries.remove(3))),
        ("sold twice by the audit", "audit_and_report_agree", |case| {
            case.evidence.entries.push(entry(8, "sold", Some("o_7"), vec![change("A-1", "sold", 9)]));
        }),
        ("a sold seat became free", "audit_and_report_agree", |case| {
            case.evidence.entries.push(entry(8, "lapsed", None, vec![change("A-1", "free", 0)]));
        }),
        ("a sale that the report does not know", "audit_and_report_agree", |case| {
            case.evidence.entries.push(entry(8, "sold", Some("o_7"), vec![change("C-1", "sold", 9)]));
        }),
        ("an older token sold", "tokens_of_a_seat_rise", |case| {
            case.evidence.entries[6].seats[0].token = Some(2);
        }),
        ("one token, two holds", "tokens_of_a_seat_rise", |case| {
            case.evidence.entries[6].hold_id = Some("h_other".into());
        }),
        ("sold for less than it cost", "every_cent_has_a_source", |case| case.evidence.entries[5].paid = Some(99)),
        ("sold by nobody's word", "every_cent_has_a_source", |case| case.evidence.entries[5].source = None),
        ("one payment for two orders", "every_cent_has_a_source", |case| {
            case.evidence.entries[6].payment_ref = case.evidence.entries[5].payment_ref.clone();
        }),
        ("two holds at once", "one_hold_at_a_time", |case| {
            case.log.spans[1].until = case.zero + Duration::from_millis(90);
        }),
        ("a lower token later", "one_hold_at_a_time", |case| case.log.spans[1].token = 5),
        ("a hold that ended early", "no_buyer_was_wronged", |case| case.log.violations.push("early".into())),
        ("the server says so itself", "invariants_of_the_server", |case| case.evidence.invariants[0].ok = false),
        ("the server says nothing", "invariants_of_the_server", |case| case.evidence.invariants.clear()),
    ];
    for (what, name, break_it) in table {
        let mut case = fine();
        break_it(&mut case);
        let found = broken(&case);
        assert!(found.iter().any(|check| check == name), "{what}: {found:?}");
    }
}

/// Goal: what staff undoes is no double sale, and a lost answer is not held against the server.
#[test]
fn what_has_a_reason_is_not_broken() {
    let mut voided = fine();
    voided.evidence.entries.push(entry(8, "voided", Some("o_9"), vec![change("B-1", "free", 0)]));
    voided.evidence.lines.retain(|line| line.order_id != "o_9");
    assert_eq!(broken(&voided), Vec::<String>::new());
    let mut lost = fine();
    lost.log.orders.retain(|order| order.order_id != "o_2");
    lost.log.unanswered.push(UnansweredConfirm {
        buyer: "r-1".into(),
        hold_id: "h_2".into(),
        hold_key: "k".into(),
        payment_ref: "p".into(),
        idempotency_key: "i".into(),
    });
    assert_eq!(broken(&lost), Vec::<String>::new());
}
