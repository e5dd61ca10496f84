//! Law 4b: What holders may believe never overlaps: from the answer to the grant until its ttl, counted from before
//! the last request that extended it was sent, or until the holder asked for its release.

use std::collections::HashMap;

use leasehold_core::Mode;

use super::pushed;
use crate::history::{AcquireRequest, History, OpKind, OpOutcome};

struct Belief {
    token: u64,
    from: u64,
    until: u64,
}

/// Believed spans by token: from, until, the acquire, and when it was sent.
type Spans<'h> = HashMap<u64, (u64, u64, &'h AcquireRequest, u64)>;

/// Sweeps the believed spans of exclusive leases, resource by resource.
pub fn check(history: &History) -> Result<(), String> {
    let mut spans = granted_spans(history);
    cut_at_endings(&mut spans, history);
    let mut by_name: HashMap<&str, Vec<Belief>> = HashMap::new();
    for (token, (from, until, ask, _)) in spans {
        for (name, _) in ask.wants.iter().filter(|(_, mode)| *mode == Mode::Exclusive) {
            by_name.entry(name).or_default().push(Belief { token, from, until });
        }
    }
    by_name.into_iter().try_for_each(|(name, beliefs)| check_resource(name, beliefs))
}

/// What holders believe after their grants and renewals.
fn granted_spans(history: &History) -> Spans<'_> {
    let mut spans: Spans<'_> = HashMap::new();
    for op in &history.ops {
        match (&op.kind, op.outcome) {
            (OpKind::Acquire(ask), OpOutcome::Granted { token, remaining, repeated, .. }) => {
                let Some(ret) = op.ret else { continue };
                let until = op.invoke.saturating_add(remaining.as_nanos() as u64);
                // A repeated answer is the first one that its holder sees, if the first try was never answered.
                if !repeated || !spans.contains_key(&token.get()) {
                    spans.insert(token.get(), (ret, until, ask, op.invoke));
                }
            }
            (OpKind::Renew { token, .. }, OpOutcome::Renewed { remaining }) => {
                if let Some((_, until, ..)) = spans.get_mut(&token.get()) {
                    // Renewing may shorten too.
                    *until = op.invoke.saturating_add(remaining.as_nanos() as u64);
                }
            }
            (OpKind::Extend { .. }, _) => {
                for (_, until, ask, asked) in spans.values_mut() {
                    *until = pushed(ask, *asked, *until, op);
                }
            }
            // Whoever asks for less time may have got it, answer or not.
            (OpKind::Renew { token, ttl: Some(ttl) }, OpOutcome::Unknown) => {
                if let Some((_, until, ..)) = spans.get_mut(&token.get()) {
                    *until = (*until).min(op.invoke.saturating_add(ttl.as_nanos() as u64));
                }
            }
            _ => {}
        }
    }
    spans
}

/// Ends beliefs where somebody asked for the end of the lease.
fn cut_at_endings(spans: &mut Spans<'_>, history: &History) {
    for op in &history.ops {
        if let OpKind::Release { token } = &op.kind
            && let Some((_, until, ..)) = spans.get_mut(&token.get())
        {
            *until = (*until).min(op.invoke);
        }
        if let OpKind::Free { keys, .. } = &op.kind {
            // Whoever shows the value, or an operator who needs none, may have ended it.
            for (_, until, ask, _) in spans.values_mut() {
                if ask.value.as_ref().is_some_and(|value| keys.may_touch(value, &ask.wants)) {
                    *until = (*until).min(op.invoke);
                }
            }
        }
        if let OpKind::Revoke { name } = &op.kind {
            // An operator's order ends beliefs, and no client is asked.
            for (_, until, ask, _) in spans.values_mut() {
                if ask.wants.iter().any(|(covered, _)| covered == name) {
                    *until = (*until).min(op.invoke);
                }
            }
        }
    }
}

/// No two beliefs on one resource overlap.
fn check_resource(name: &str, mut beliefs: Vec<Belief>) -> Result<(), String> {
    beliefs.sort_by_key(|belief| (belief.from, belief.token));
    let mut latest: Option<&Belief> = None;
    for belief in &beliefs {
        if belief.from >= belief.until {
            continue;
        }
        if let Some(earlier) = latest.filter(|earlier| earlier.until > belief.from) {
            return Err(format!(
                "leases {} and {} on {name} are both believed in between {} and {}",
                earlier.token, belief.token, belief.from, earlier.until
            ));
        }
        if latest.is_none_or(|latest| latest.until < belief.until) {
            latest = Some(belief);
        }
    }
    Ok(())
}
