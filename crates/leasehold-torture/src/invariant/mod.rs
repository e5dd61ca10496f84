//! The laws, one per file. Each reads a history and says what breaks it.
//!
//! The numbers are those of the catalogue in `docs/internals/torture.md`. Laws that only a white box can see
//! (the order of the queue, a lost wake-up) are looked at while the run goes on, by the simulator and the
//! reference model, and reported as observations under the names of the files ([`seen`]).

pub mod all_or_nothing;
pub mod believed;
pub mod cap;
pub mod exclusion;
pub mod fence;
pub mod fifo;
pub mod idempotent_retry;
pub mod keys_owner;
pub mod liveness;
pub mod never_early;
pub mod no_false_fencing;
pub mod no_ghost_grant;
pub mod no_lost_wake_up;
pub mod no_ok_after_failure;
pub mod no_resurrection;
pub mod non_owner;
pub mod not_late;
pub mod nothing_lost;
pub mod one_place_per_request;
pub mod principal_quota;
pub mod readers_and_permits;
pub mod reads_linearizable;
pub mod release_once;
pub mod replay;
pub mod token_order;
pub mod token_over_restart;
pub mod token_unique;
pub mod watch_stream;

use leasehold_core::Push;

use crate::history::{AcquireRequest, History, Op, OpKind, OpOutcome};
use crate::model::ReferenceModel;

/// One law.
pub struct Invariant {
    /// Its file.
    pub name: &'static str,
    /// Looks for what breaks it.
    pub check: fn(&History) -> Result<(), String>,
}

/// All of them.
pub const ALL: &[Invariant] = &[
    Invariant { name: "token_unique", check: token_unique::check },
    Invariant { name: "token_order", check: token_order::check },
    Invariant { name: "token_over_restart", check: token_over_restart::check },
    Invariant { name: "exclusion", check: exclusion::check },
    Invariant { name: "believed", check: believed::check },
    Invariant { name: "fence", check: fence::check },
    Invariant { name: "no_false_fencing", check: no_false_fencing::check },
    Invariant { name: "nothing_lost", check: nothing_lost::check },
    Invariant { name: "all_or_nothing", check: all_or_nothing::check },
    Invariant { name: "never_early", check: never_early::check },
    Invariant { name: "not_late", check: not_late::check },
    Invariant { name: "no_resurrection", check: no_resurrection::check },
    Invariant { name: "non_owner", check: non_owner::check },
    Invariant { name: "release_once", check: release_once::check },
    Invariant { name: "idempotent_retry", check: idempotent_retry::check },
    Invariant { name: "fifo", check: fifo::check },
    Invariant { name: "no_lost_wake_up", check: no_lost_wake_up::check },
    Invariant { name: "no_ghost_grant", check: no_ghost_grant::check },
    Invariant { name: "one_place_per_request", check: one_place_per_request::check },
    Invariant { name: "readers_and_permits", check: readers_and_permits::check },
    Invariant { name: "cap", check: cap::check },
    Invariant { name: "replay", check: replay::check },
    Invariant { name: "no_ok_after_failure", check: no_ok_after_failure::check },
    Invariant { name: "liveness", check: liveness::check },
    Invariant { name: "reads_linearizable", check: reads_linearizable::check },
    Invariant { name: "watch_stream", check: watch_stream::check },
    Invariant { name: "keys_owner", check: keys_owner::check },
    Invariant { name: "principal_quota", check: principal_quota::check },
];

/// What a white box saw of a law: while the run went on, or when the reference model follows the facts that survived.
///
/// # Errors
///
/// The first sight of it broken.
pub fn seen(history: &History, law: &str) -> Result<(), String> {
    if let Some(observation) = history.observations.iter().find(|observation| observation.invariant == law) {
        return Err(observation.what.clone());
    }
    let mut model = ReferenceModel::default();
    for fact in &history.facts {
        if let Err((broken, what)) = model.follow(fact)
            && broken == law
        {
            return Err(what);
        }
    }
    Ok(())
}

/// Until when a holder of keys may believe in them, after somebody asked to push their end. `asked` is when it asked for
/// the lease. Whoever asks for less time may have got it, answer or not; more time is sure only with the answer.
fn pushed(ask: &AcquireRequest, asked: u64, until: u64, op: &Op) -> u64 {
    let (OpKind::Extend { keys, push, .. }, Some(value)) = (&op.kind, &ask.value) else { return until };
    if !keys.may_touch(value, &ask.wants) {
        return until;
    }
    let cap = ask.max_hold.map_or(u64::MAX, |cap| asked.saturating_add(cap.as_nanos() as u64));
    let sure = matches!(op.outcome, OpOutcome::Extended(1..)) && keys.value.is_some();
    match push {
        Push::Set(ms) if sure => op.invoke.saturating_add(ms * 1_000_000).min(cap),
        Push::Set(ms) => until.min(op.invoke.saturating_add(ms * 1_000_000)),
        Push::Add(ms) if sure => until.saturating_add(ms * 1_000_000).min(cap),
        Push::Add(_) => until,
    }
}

/// Checks all of them; the first violation, with its name.
///
/// # Errors
///
/// The name of the law and what breaks it.
pub fn check_all(history: &History) -> Result<(), (&'static str, String)> {
    ALL.iter().try_for_each(|invariant| (invariant.check)(history).map_err(|why| (invariant.name, why)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Observation;

    /// A misspelt name would make an observation nobody's: each that the simulator can make has its file.
    #[test]
    fn every_observation_is_some_laws() {
        let sources = [
            include_str!("../sim/mod.rs"),
            include_str!("../sim/machine.rs"),
            include_str!("../sim/clients.rs"),
            include_str!("../sim/keys.rs"),
            include_str!("../sim/watch.rs"),
        ];
        let mut names: Vec<&str> = Vec::new();
        for source in sources {
            for piece in source.split("observe(").skip(1).chain(source.split("invariant: ").skip(1)) {
                names.extend(piece.trim_start().strip_prefix('"').and_then(|rest| rest.split('"').next()));
            }
        }
        let model = include_str!("../model.rs");
        names.extend(model.split("((\"").skip(1).filter_map(|piece| piece.split('"').next()));
        assert!(names.len() > 12, "the search finds nothing: {names:?}");
        for name in names {
            let observations = vec![Observation { invariant: "", what: "seen".into() }];
            let mut history = History { observations, ..History::default() };
            let law = ALL.iter().find(|law| law.name == name).unwrap_or_else(|| panic!("no law is called {name}"));
            history.observations[0].invariant = law.name;
            assert_eq!((law.check)(&history), Err("seen".to_owned()), "{name}");
        }
    }
}
