//! What the owner of a lease does with it: renew and release, each on every node.
//!
//! # Laws
//!
//! 1. A renewal counts only if a majority renewed. Without one nothing is released: the lease lives until its validity ends.
//! 2. A node that lost the lease gets it again after a majority renewed it, and never otherwise: that would revive it.
//! 3. Renewals are numbered: a node that gets an earlier one late leaves the lease as the later one set it.
//! 4. A release goes to every node, and is repeated in the background until each has answered.

use std::sync::Arc;
use std::time::Duration;

use super::coordinator::{Coordinator, Round};
use super::node::{ChangeId, LeaseKeys, NodeReply, NodeRequest, Standing};
use super::vote::{Decision, Tally, Vote, node_limit};
use super::{indeterminate, unavailable};
use crate::clock::Time;
use crate::engine::Renewal;
use crate::error::{Error, Refusal};

/// How long nodes are waited for where the ttl of the lease is not known.
pub(super) const OWNER_LIMIT: Duration = Duration::from_secs(1);
/// How long a release is repeated where the ttl of the lease is not known.
const RELEASE_FOR: Duration = Duration::from_secs(600);
/// How long an acquire that is still on its way runs into a release.
const RELEASE_BAN_MS: u64 = 60_000;

impl Coordinator {
    pub async fn renew(self: &Arc<Self>, lease: LeaseKeys, ttl_ms: Option<u64>) -> Result<Renewal, Error> {
        let (began, change) = (self.clock.now(), self.next_change());
        let deadline = began.plus(ttl_ms.map_or(OWNER_LIMIT, node_limit));
        let request = NodeRequest::Renew { lease: lease.clone(), ttl_ms, change: change.clone() };
        let mut round = self.ask_nodes(&self.everybody(), &request);
        let mut renewal = RenewalVotes::new(self);
        while renewal.tally.decision() != Decision::Won && !renewal.tally.is_blocked() {
            let Some((at, answer)) = round.next(&*self.clock, deadline).await else { break };
            match answer {
                Ok(reply) => renewal.count(self, at, &reply),
                Err(error) => renewal.miss(error.to_string(), error.may_have_happened()),
            }
        }
        if renewal.tally.decision() == Decision::Won {
            let elapsed = self.clock.now().since(began);
            let life = self.rules.common_end(renewal.lives.iter().map(|(_, left)| *left).collect()).unwrap_or(0);
            let renewable = self.rules.common_end(renewal.caps.clone());
            if let Some(remaining) = self.rules.validity(life, elapsed) {
                self.repair_later(lease, renewal, round, (deadline, life, change));
                let renewable = renewable.map(|cap| Duration::from_millis(cap).saturating_sub(elapsed));
                return Ok(Renewal { remaining, renewable });
            }
            return Err(indeterminate(
                "renew a lease".into(),
                "a majority renewed it, but too slowly to be of use".into(),
            ));
        }
        renewal.refusal()
    }

    /// Law 2, after the answer: whoever renewed does not wait for it.
    fn repair_later(
        self: &Arc<Self>,
        lease: LeaseKeys,
        mut renewal: RenewalVotes,
        mut round: Round,
        (deadline, life_ms, change): (Time, u64, ChangeId),
    ) {
        let coordinator = self.clone();
        let renewed = self.clock.now();
        let task = async move {
            while let Some((at, answer)) = round.next(&*coordinator.clock, deadline).await {
                if let Ok(reply) = answer {
                    renewal.count(&coordinator, at, &reply);
                }
            }
            if renewal.lost_by.is_empty() {
                return;
            }
            let Some((source, _)) = renewal.lives.first() else { return };
            let mut read = coordinator.ask_nodes(&[*source], &NodeRequest::ReadRecord(lease.clone()));
            let until = coordinator.clock.now().plus(OWNER_LIMIT);
            let Some((_, Ok(NodeReply::Record(record)))) = read.next(&*coordinator.clock, until).await else { return };
            // The lease on the other nodes ends no later than this one.
            let passed = coordinator.clock.now().since(renewed);
            let Some(life) = coordinator.rules.validity(life_ms, passed) else { return };
            let life_ms = u64::try_from(life.as_millis()).unwrap_or(0);
            coordinator.ask_nodes(&renewal.lost_by, &NodeRequest::Repair { lease, record, life_ms, change });
        };
        self.tasks.spawn_on(task, &self.runtime);
    }

    /// `known_life`: how long the release is worth repeating.
    pub async fn release(self: &Arc<Self>, lease: LeaseKeys, known_life: Option<Duration>) -> Result<bool, Error> {
        let deadline = self.clock.now().plus(OWNER_LIMIT);
        let request = NodeRequest::Release { lease: lease.clone(), ban_ms: None };
        let mut round = self.ask_nodes(&self.everybody(), &request);
        let mut votes = ReleaseVotes::new(self.nodes.len());
        while !votes.is_decided(self.rules.quorum) {
            let Some((at, answer)) = round.next(&*self.clock, deadline).await else { break };
            votes.count(at, answer.map_err(|error| (error.to_string(), error.may_have_happened())));
        }
        let result = votes.result(self.rules.quorum);
        let worth_repeating = matches!(result, Ok(true) | Err(Error::Indeterminate { .. } | Error::Unavailable { .. }));
        if worth_repeating {
            self.release_the_rest(lease, votes, round, deadline, known_life.unwrap_or(RELEASE_FOR));
        }
        result
    }

    /// Law 4. A node that knew nothing of the lease may learn of it by an acquire that is still on its way.
    fn release_the_rest(
        self: &Arc<Self>,
        lease: LeaseKeys,
        mut votes: ReleaseVotes,
        mut round: Round,
        deadline: Time,
        life: Duration,
    ) {
        let coordinator = self.clone();
        let until = self.clock.now().plus(life);
        let owe_the_rest = move |votes: &ReleaseVotes| {
            for (at, reply) in votes.replies.iter().enumerate() {
                if matches!(reply, None | Some(NodeReply::NotHeld)) {
                    let request = NodeRequest::Release { lease: lease.clone(), ban_ms: Some(RELEASE_BAN_MS) };
                    coordinator.owe(at, &lease, request, until);
                }
            }
        };
        if votes.answered() < self.rules.quorum {
            // Its owner may ask again at once, and must not be told that the lease is live.
            owe_the_rest(&votes);
            return;
        }
        let clock = self.clock.clone();
        let task = async move {
            while let Some((at, answer)) = round.next(&*clock, deadline).await {
                votes.count(at, answer.map_err(|error| (error.to_string(), error.may_have_happened())));
            }
            owe_the_rest(&votes);
        };
        self.tasks.spawn_on(task, &self.runtime);
    }
}

struct RenewalVotes {
    tally: Tally,
    /// Nodes that renewed it, and how long it lives there.
    lives: Vec<(usize, u64)>,
    caps: Vec<u64>,
    /// Nodes that know nothing of it.
    lost_by: Vec<usize>,
    stale: bool,
    reasons: Vec<String>,
    may_have_happened: bool,
}

impl RenewalVotes {
    fn new(coordinator: &Coordinator) -> Self {
        Self {
            tally: coordinator.rules.begin(coordinator.nodes.len()),
            lives: Vec::new(),
            caps: Vec::new(),
            lost_by: Vec::new(),
            stale: false,
            reasons: Vec::new(),
            may_have_happened: false,
        }
    }

    fn count(&mut self, coordinator: &Coordinator, at: usize, reply: &NodeReply) {
        let vote = match reply {
            NodeReply::Lives { left_ms, cap_left_ms } => {
                self.may_have_happened = true;
                let standing = coordinator.nodes[at].standing(*left_ms);
                if standing == Standing::NotDurable {
                    // It may forget the lease and come back before the lease ends.
                    Vote::Missing
                } else {
                    self.lives.push((at, *left_ms));
                    self.caps.extend(*cap_left_ms);
                    Vote::Yes
                }
            }
            NodeReply::Stale => {
                self.stale = true;
                Vote::No
            }
            NodeReply::NotHeld => {
                self.lost_by.push(at);
                // A node that lost its memory does not know whether the lease is live.
                let forgot = matches!(coordinator.nodes[at].standing(0), Standing::Quarantined { .. });
                if forgot { Vote::Missing } else { Vote::No }
            }
            _ => Vote::Missing,
        };
        self.tally.count(vote);
    }

    fn miss(&mut self, why: String, may_have_happened: bool) {
        self.reasons.push(why);
        self.may_have_happened |= may_have_happened;
        self.tally.count(Vote::Missing);
    }

    fn refusal<T>(&self) -> Result<T, Error> {
        if self.tally.is_blocked() {
            return Err(if self.stale { Refusal::Stale } else { Refusal::NotHeld }.into());
        }
        let source = format!("no majority renewed it: {}", self.reasons.join("; ")).into();
        let attempt = "renew a lease".to_owned();
        Err(if self.may_have_happened || self.reasons.is_empty() {
            indeterminate(attempt, source)
        } else {
            unavailable(attempt, source)
        })
    }
}

struct ReleaseVotes {
    /// By node; none where no answer came.
    replies: Vec<Option<NodeReply>>,
    reasons: Vec<String>,
    /// A node may have done it without saying so.
    may_have_happened: bool,
    missing: usize,
}

impl ReleaseVotes {
    fn new(nodes: usize) -> Self {
        Self { replies: vec![None; nodes], reasons: Vec::new(), may_have_happened: false, missing: 0 }
    }

    fn count(&mut self, at: usize, answer: Result<NodeReply, (String, bool)>) {
        match answer {
            Ok(reply) => self.replies[at] = Some(reply),
            Err((why, may_have_happened)) => {
                self.missing += 1;
                self.reasons.push(why);
                self.may_have_happened |= may_have_happened;
            }
        }
    }

    fn said(&self, reply: &NodeReply) -> usize {
        self.replies.iter().flatten().filter(|said| *said == reply).count()
    }

    fn answered(&self) -> usize {
        self.replies.iter().flatten().count()
    }

    fn is_decided(&self, quorum: usize) -> bool {
        let ended = self.said(&NodeReply::Released(true)) > 0 && self.answered() >= quorum;
        let agreed = [NodeReply::Released(false), NodeReply::Stale, NodeReply::NotHeld];
        ended
            || agreed.iter().any(|reply| self.said(reply) >= quorum)
            || self.answered() + self.missing == self.replies.len()
    }

    fn result(&self, quorum: usize) -> Result<bool, Error> {
        let attempt = || "release a lease".to_owned();
        if self.answered() < quorum {
            let source = format!("too few nodes answered: {}", self.reasons.join("; ")).into();
            // Nodes that did not answer in time may have done it, and so may those that answered.
            let silent = self.replies.len() - self.answered() - self.missing;
            let changed = self.said(&NodeReply::Released(true)) > 0 || self.may_have_happened || silent > 0;
            return Err(if changed { indeterminate(attempt(), source) } else { unavailable(attempt(), source) });
        }
        let said = |reply| self.said(&reply) > 0;
        if said(NodeReply::Released(true)) {
            Ok(true)
        } else if said(NodeReply::Released(false)) {
            Ok(false)
        } else if said(NodeReply::Stale) {
            Err(Refusal::Stale.into())
        } else {
            Err(Refusal::NotHeld.into())
        }
    }
}
