//! Law 17: A request id has one effect: every try that is granted gets the same lease, also across restarts; another
//! body under the same id is refused.

use std::collections::HashMap;

use crate::history::{Ask, History, Kind, Outcome, Recorded};

/// The engine's memory of endings in a run; a retry that comes later than that is a new request.
const REMEMBERED: usize = 64;

/// Groups by request id.
pub fn check(history: &History) -> Result<(), String> {
    let mut endings = 0usize;
    let mut granted: HashMap<&str, (u64, Option<usize>)> = HashMap::new();
    let mut of_token: HashMap<u64, &str> = HashMap::new();
    for fact in &history.facts {
        match fact {
            Recorded::Granted { token, request: Some(request), .. } => {
                if let Some((first, ended)) = granted.insert(request, (*token, None))
                    && ended.is_none_or(|at| endings - at < REMEMBERED)
                {
                    return Err(format!("request {request} has two leases, {first} and {token}"));
                }
                of_token.insert(*token, request);
            }
            Recorded::Ended { token, .. } => {
                endings += 1;
                if let Some(entry) = of_token.get(token).and_then(|request| granted.get_mut(request)) {
                    entry.1 = Some(endings);
                }
            }
            _ => {}
        }
    }
    let mut bodies: HashMap<u64, &Ask> = HashMap::new();
    for op in &history.ops {
        let (Kind::Acquire(ask), Outcome::Granted { token, .. }) = (&op.kind, op.outcome) else { continue };
        if let Some(first) = bodies.insert(token.get(), ask)
            && (first.ttl != ask.ttl || first.wants != ask.wants)
        {
            return Err(format!("lease {token} answers two different claims under request {:?}", ask.request));
        }
    }
    Ok(())
}
