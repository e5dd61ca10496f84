//! Law 17: A request id has one effect: every try that is granted gets the same lease, also across restarts; another
//! body under the same id is refused.

use std::collections::HashMap;

use crate::history::{AcquireRequest, History, OpKind, OpOutcome, Recorded};

/// The engine's memory of endings in a run; a retry that comes later than that is a new request.
const REMEMBERED_REQUESTS: usize = 64;

/// Groups by request id.
pub fn check(history: &History) -> Result<(), String> {
    let mut endings = 0usize;
    let mut granted: HashMap<&str, (u64, Option<usize>)> = HashMap::new();
    let note = |token: u64, endings: &mut usize, granted: &mut HashMap<&str, (u64, Option<usize>)>| {
        *endings += 1;
        if let Some(entry) = granted.values_mut().find(|(of, _)| *of == token) {
            entry.1 = Some(*endings);
        }
    };
    for fact in &history.facts {
        match fact {
            Recorded::Granted { token, request: Some(request), .. } => {
                if let Some((first, ended)) = granted.insert(request, (*token, None))
                    && ended.is_none_or(|at| endings - at < REMEMBERED_REQUESTS)
                {
                    return Err(format!("request {request} has two leases, {first} and {token}"));
                }
            }
            // An ending is remembered when its resources are free: after a closing delay, if there is one.
            Recorded::Ended { token, at, closed_until, .. } if closed_until <= at => {
                note(*token, &mut endings, &mut granted)
            }
            Recorded::Reopened { token } => note(*token, &mut endings, &mut granted),
            _ => {}
        }
    }
    let mut bodies: HashMap<u64, &AcquireRequest> = HashMap::new();
    for op in &history.ops {
        let (OpKind::Acquire(ask), OpOutcome::Granted { token, .. }) = (&op.kind, op.outcome) else { continue };
        if let Some(first) = bodies.insert(token.get(), ask)
            && (first.ttl != ask.ttl || first.wants != ask.wants)
        {
            return Err(format!("lease {token} answers two different claims under request {:?}", ask.request));
        }
    }
    Ok(())
}
