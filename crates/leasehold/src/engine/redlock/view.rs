//! What an operator sees and does: inspect, list and revoke, each by a majority.
//!
//! A lease counts if a majority has it. Where nodes do not answer, it counts if they could make the majority: to show a
//! lease that is not there does less harm than to hide one that is.

use std::collections::BTreeMap;
use std::time::Duration;

use super::coordinator::Coordinator;
use super::node::{NodeHolding, NodeReply, NodeRequest, Occupant};
use super::owner::OWNER_LIMIT;
use super::{indeterminate, unavailable};
use crate::engine::{Holding, Mode, Query, Resource};
use crate::error::Error;

/// How a client that is not ours is called.
pub(super) const STRANGER: &str = "(a Redis client)";
/// A list reads every record of a node.
const LIST_LIMIT: Duration = Duration::from_secs(10);

impl Coordinator {
    pub async fn inspect(&self, name: &str, key: String) -> Result<Option<Resource>, Error> {
        let deadline = self.clock.now().plus(OWNER_LIMIT);
        let asked = self.without_suspects(self.voters(0).0);
        let mut round = self.ask_nodes(&asked, &NodeRequest::Look { key });
        let (mut found, mut free, mut reasons) = (Vec::new(), 0, Vec::new());
        while free < self.rules.blocking() && self.common_holding(&found, 0).is_none() {
            match round.next(&*self.clock, deadline).await {
                None => break,
                Some((_, Ok(NodeReply::Looked(Some(holding))))) => found.push(holding),
                Some((_, Ok(NodeReply::Looked(None)))) => free += 1,
                Some((_, Ok(_))) => {}
                Some((_, Err(error))) => reasons.push(error.to_string()),
            }
        }
        if free >= self.rules.blocking() {
            return Ok(None);
        }
        let answered = found.len() + free;
        if answered < self.rules.quorum {
            let source = format!("too few nodes answered: {}", reasons.join("; ")).into();
            return Err(unavailable(format!("inspect {name}"), source));
        }
        let silent = self.rules.nodes - answered;
        Ok(self.common_holding(&found, silent).map(|holding| show(name, &holding)))
    }

    /// What a majority shows, if `silent` nodes may agree. Its end is the one that the majority has in common.
    fn common_holding(&self, found: &[NodeHolding], silent: usize) -> Option<NodeHolding> {
        found.iter().find_map(|holding| {
            let same: Vec<&NodeHolding> =
                found.iter().filter(|other| other.who == holding.who && other.live == holding.live).collect();
            if same.len() + silent < self.rules.quorum {
                return None;
            }
            let ends: Vec<u64> = same.iter().map(|other| other.left_ms).collect();
            let least = ends.iter().copied().min().unwrap_or(0);
            let left = self.rules.common_end(ends).unwrap_or(least);
            let left_ms = left.saturating_sub((self.rules.drift_ms)(left));
            Some(NodeHolding { left_ms, ..holding.clone() })
        })
    }

    /// `key_prefix`: what is not part of names.
    pub async fn list(&self, query: &Query, key_prefix: &str) -> Result<Vec<Resource>, Error> {
        let deadline = self.clock.now().plus(LIST_LIMIT);
        let asked = self.without_suspects(self.voters(0).0);
        let mut round = self.ask_nodes(&asked, &NodeRequest::List);
        let mut by_name: BTreeMap<String, Vec<NodeHolding>> = BTreeMap::new();
        let (mut answered, mut reasons) = (0, Vec::new());
        while let Some((_, answer)) = round.next(&*self.clock, deadline).await {
            match answer {
                Ok(NodeReply::Listed(all)) => {
                    answered += 1;
                    for (key, holding) in all {
                        let Some(name) = key.strip_prefix(key_prefix) else { continue };
                        if name.starts_with(&query.prefix) && query.after.as_deref().is_none_or(|after| name > after) {
                            by_name.entry(name.to_owned()).or_default().push(holding);
                        }
                    }
                }
                Ok(_) => {}
                Err(error) => reasons.push(error.to_string()),
            }
        }
        if answered < self.rules.quorum {
            let source = format!("too few nodes answered: {}", reasons.join("; ")).into();
            return Err(unavailable(format!("list {}", query.prefix), source));
        }
        let silent = self.rules.nodes - answered;
        let common = |(name, found): (String, Vec<NodeHolding>)| {
            self.common_holding(&found, silent).map(|holding| show(&name, &holding))
        };
        Ok(by_name.into_iter().filter_map(common).take(query.limit).collect())
    }

    /// Never repeated: the second could hit a successor.
    pub async fn revoke(&self, name: &str, key: String, reason: &str) -> Result<usize, Error> {
        let deadline = self.clock.now().plus(OWNER_LIMIT);
        let mut round = self.ask_nodes(&self.everybody(), &NodeRequest::Revoke { key, reason: reason.to_owned() });
        let (mut answered, mut ended, mut strangers) = (0, 0, 0);
        let (mut reasons, mut missing, mut changed) = (Vec::new(), 0, false);
        while let Some((_, answer)) = round.next(&*self.clock, deadline).await {
            match answer {
                Ok(NodeReply::Revoked(count)) => {
                    answered += 1;
                    strangers += usize::from(count.is_none());
                    ended += usize::from(count.is_some_and(|count| count > 0));
                    changed |= ended > 0;
                }
                Ok(_) => {}
                Err(error) => {
                    missing += 1;
                    changed |= error.may_have_happened();
                    reasons.push(error.to_string());
                }
            }
        }
        let silent = self.rules.nodes - answered;
        if answered < self.rules.quorum {
            let source = format!("too few nodes answered: {}", reasons.join("; ")).into();
            let attempt = format!("revoke {name}");
            let unknown = changed || silent > missing;
            return Err(if unknown { indeterminate(attempt, source) } else { unavailable(attempt, source) });
        }
        if strangers >= self.rules.blocking() {
            return Err(Error::Invalid(format!(
                "{name} is held by another Redis client, not by a lease; delete its key yourself if you are sure"
            )));
        }
        // What a minority had was no lease: it was left by a try that failed.
        Ok(usize::from(ended > 0 && ended + silent >= self.rules.quorum))
    }
}

fn show(name: &str, holding: &NodeHolding) -> Resource {
    let holder = if holding.who == Occupant::Stranger { STRANGER.to_owned() } else { holding.holder.clone() };
    let since = Duration::from_millis(holding.since_ms);
    let remaining = Duration::from_millis(holding.left_ms);
    let holders = if holding.live { vec![Holding { holder, token: None, since, remaining }] } else { Vec::new() };
    Resource {
        name: name.to_owned(),
        mode: Mode::Exclusive,
        holders_total: holders.len(),
        holders,
        waiters: Vec::new(),
        queue_len: 0,
    }
}
