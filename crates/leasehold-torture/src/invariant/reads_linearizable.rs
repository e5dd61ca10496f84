//! Law 23: A look is answered with what was durable at some moment between its question and its answer.

use crate::history::{History, OpId, OpKind, OpOutcome};
use crate::model::ReferenceModel;

struct Look<'h> {
    op: OpId,
    name: &'h str,
    saw: &'h [u64],
    at: u64,
    from: usize,
    to: usize,
}

/// Follows the record in commit order, and asks at each point between question and answer whether it shows the same.
pub fn check(history: &History) -> Result<(), String> {
    let looks = history.ops.iter().enumerate().filter_map(|(op, record)| match (&record.kind, record.outcome) {
        (OpKind::Read { name, saw, at, durable }, OpOutcome::Read { durable: to }) => {
            Some(Look { op, name, saw, at: *at, from: *durable, to })
        }
        _ => None,
    });
    let mut looks: Vec<Look<'_>> = looks.collect();
    looks.sort_by_key(|look| look.from);
    let mut coming = looks.into_iter().peekable();
    let mut open: Vec<Look<'_>> = Vec::new();
    let mut model = ReferenceModel::default();
    for point in 0..=history.facts.len() {
        if let Some(fact) = point.checked_sub(1).map(|at| &history.facts[at]) {
            // Facts that break a law are told by the laws they break.
            let _ = model.follow(fact);
        }
        while let Some(look) = coming.next_if(|look| look.from == point) {
            open.push(look);
        }
        open.retain(|look| model.tokens_on(look.name, look.at) != look.saw);
        if let Some(look) = open.iter().find(|look| look.to == point) {
            return Err(format!(
                "operation {} saw {:?} on {}, which no moment between facts {} and {} shows",
                look.op, look.saw, look.name, look.from, look.to
            ));
        }
    }
    match open.first().or(coming.peek()) {
        Some(look) => Err(format!("operation {} was answered from a record that is not there", look.op)),
        None => Ok(()),
    }
}
