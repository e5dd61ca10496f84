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
    /// Without it the law says nothing.
    pub needs: Evidence,
}

/// What a law reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// What clients asked and were told. A lease has a number of its own there, token or not.
    Answers,
    /// That the numbers of leases are fencing tokens.
    Tokens,
    /// The facts that the engine stored, or what a white box saw of it.
    Record,
}

/// What there is of a history, and so which laws can be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckerProfile {
    /// The engine has tokens.
    pub tokens: bool,
    /// The engine keeps a record of the past.
    pub record: bool,
}

impl CheckerProfile {
    /// Everything.
    pub const COMPLETE: Self = Self { tokens: true, record: true };
    /// Clients are told tokens; nothing is known of the past but what they were told.
    pub const ANSWERS: Self = Self { tokens: true, record: false };
    /// There are no tokens either: the number of a lease only names it.
    pub const NO_TOKENS: Self = Self { tokens: false, record: false };

    const fn has(self, evidence: Evidence) -> bool {
        match evidence {
            Evidence::Answers => true,
            Evidence::Tokens => self.tokens,
            Evidence::Record => self.record,
        }
    }
}

/// All of them.
pub const ALL: &[Invariant] = &[
    Invariant { name: "token_unique", check: token_unique::check, needs: Evidence::Tokens },
    Invariant { name: "token_order", check: token_order::check, needs: Evidence::Tokens },
    Invariant { name: "token_over_restart", check: token_over_restart::check, needs: Evidence::Tokens },
    Invariant { name: "exclusion", check: exclusion::check, needs: Evidence::Record },
    Invariant { name: "believed", check: believed::check, needs: Evidence::Answers },
    Invariant { name: "fence", check: fence::check, needs: Evidence::Tokens },
    Invariant { name: "no_false_fencing", check: no_false_fencing::check, needs: Evidence::Tokens },
    Invariant { name: "nothing_lost", check: nothing_lost::check, needs: Evidence::Record },
    Invariant { name: "all_or_nothing", check: all_or_nothing::check, needs: Evidence::Record },
    Invariant { name: "never_early", check: never_early::check, needs: Evidence::Record },
    Invariant { name: "not_late", check: not_late::check, needs: Evidence::Record },
    Invariant { name: "no_resurrection", check: no_resurrection::check, needs: Evidence::Answers },
    Invariant { name: "non_owner", check: non_owner::check, needs: Evidence::Answers },
    Invariant { name: "release_once", check: release_once::check, needs: Evidence::Answers },
    Invariant { name: "idempotent_retry", check: idempotent_retry::check, needs: Evidence::Answers },
    Invariant { name: "fifo", check: fifo::check, needs: Evidence::Record },
    Invariant { name: "no_lost_wake_up", check: no_lost_wake_up::check, needs: Evidence::Record },
    Invariant { name: "no_ghost_grant", check: no_ghost_grant::check, needs: Evidence::Record },
    Invariant { name: "one_place_per_request", check: one_place_per_request::check, needs: Evidence::Record },
    Invariant { name: "readers_and_permits", check: readers_and_permits::check, needs: Evidence::Record },
    Invariant { name: "cap", check: cap::check, needs: Evidence::Record },
    Invariant { name: "replay", check: replay::check, needs: Evidence::Record },
    Invariant { name: "no_ok_after_failure", check: no_ok_after_failure::check, needs: Evidence::Answers },
    Invariant { name: "liveness", check: liveness::check, needs: Evidence::Record },
    Invariant { name: "reads_linearizable", check: reads_linearizable::check, needs: Evidence::Record },
    Invariant { name: "watch_stream", check: watch_stream::check, needs: Evidence::Record },
    Invariant { name: "keys_owner", check: keys_owner::check, needs: Evidence::Record },
    Invariant { name: "principal_quota", check: principal_quota::check, needs: Evidence::Record },
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
    check_profile(history, CheckerProfile::COMPLETE)
}

/// Checks those for which there is evidence; the first violation, with its name.
///
/// # Errors
///
/// The name of the law and what breaks it.
pub fn check_profile(history: &History, profile: CheckerProfile) -> Result<(), (&'static str, String)> {
    let laws = ALL.iter().filter(|law| profile.has(law.needs));
    laws.into_iter().try_for_each(|law| (law.check)(history).map_err(|why| (law.name, why)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold_core::{Mode, Secret, Token};

    use super::*;
    use crate::history::Observation;

    /// A grant of this name, answered at once.
    fn granted(at: u64, name: &str, number: u64) -> Op {
        let ask = AcquireRequest {
            wants: vec![(name.to_owned(), Mode::Exclusive)],
            ttl: Duration::from_nanos(100),
            wait: Duration::ZERO,
            max_hold: None,
            delay: Duration::ZERO,
            request: None,
            principal: String::new(),
            value: None,
        };
        let (token, secret) = (Token::new(number).expect("not zero"), Secret::new([0; 16]));
        Op {
            client: number,
            kind: OpKind::Acquire(ask),
            invoke: at,
            ret: Some(at + 1),
            outcome: OpOutcome::Granted { token, secret, remaining: Duration::from_nanos(100), repeated: false },
            epoch: 0,
            untouched: true,
            full: false,
        }
    }

    /// Goal: where there are no tokens, numbers that fall break nothing; two holders at once still do.
    #[test]
    fn without_tokens_only_their_laws_are_left_out() {
        let falling = History { ops: vec![granted(0, "a", 9), granted(200, "a", 8)], ..History::default() };
        let law = |history: &History, profile| check_profile(history, profile).map_err(|(law, _)| law);
        assert_eq!(law(&falling, CheckerProfile::ANSWERS), Err("token_order"));
        assert_eq!(law(&falling, CheckerProfile::NO_TOKENS), Ok(()));
        let overlap = History { ops: vec![granted(0, "a", 8), granted(50, "a", 9)], ..History::default() };
        assert_eq!(law(&overlap, CheckerProfile::NO_TOKENS), Err("believed"));
        assert_eq!(law(&overlap, CheckerProfile::ANSWERS), Err("believed"));
    }

    /// Goal: laws of the record are not taken for kept where there is none.
    #[test]
    fn without_a_record_its_laws_are_left_out() {
        let observations = vec![Observation { invariant: "exclusion", what: "seen".into() }];
        let history = History { observations, ..History::default() };
        assert_eq!(check_profile(&history, CheckerProfile::ANSWERS), Ok(()));
        assert_eq!(check_all(&history), Err(("exclusion", "seen".to_owned())));
    }

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
