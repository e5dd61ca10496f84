//! One attempt to take a claim on a majority, and what follows when it fails.
//!
//! # Laws
//!
//! 1. A grant is one that a majority gave, and its validity counts from before the first node was asked.
//! 2. An attempt that fails leaves nothing: every node that may have granted it, or still may, is owed a release with a
//!    ban.
//! 3. Every attempt has a secret of its own, so that the release of one never ends another.

use std::time::Duration;

use sha2::{Digest, Sha256};

use super::coordinator::{Coordinator, NodeVote};
use super::node::{Ballot, LeaseKeys, NodeError, NodeHeld, NodeReply, NodeRequest, Occupant, PreparedClaim, Standing};
use super::vote::{Decision, Tally, Vote, node_limit};
use crate::error::Error;

/// A ban is never shorter: commands may lie in buffers for longer than a short lease lives.
const SHORTEST_BAN_MS: u64 = 10_000;

/// What an attempt came to. Only of `Granted` is anything left on the nodes.
#[derive(Debug)]
pub(super) enum AttemptOutcome {
    Granted {
        validity: Duration,
    },
    /// A majority answered and did not agree. `split`: nobody else can have a majority either.
    Held {
        held: Option<NodeHeld>,
        split: bool,
    },
    /// Another call with the same request id is under way.
    SameRequest,
    /// The request id was used for another claim.
    Mismatch,
    /// Too few answered, or too slowly.
    Unavailable(String),
    /// Too few may vote yet: some started a moment ago. That passes by itself.
    Quarantined(String),
    /// Too few nodes can ever do it.
    Broken(Error),
}

/// How the nodes are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AskOrder {
    AllAtOnce,
    /// One node decides among those who try again, so that they do not split the votes once more.
    ArbiterFirst,
}

/// One attempt, while its votes come in.
struct Attempt<'c> {
    coordinator: &'c Coordinator,
    claim: &'c PreparedClaim,
    tally: Tally,
    /// Nodes that may have granted it, or still may.
    touched: Vec<usize>,
    held: Vec<NodeHeld>,
    same_request: usize,
    mismatch: usize,
    reasons: Vec<String>,
    broken: Option<Error>,
}

impl Coordinator {
    /// Tries once. The claim has not been tried before.
    pub async fn attempt(&self, claim: &PreparedClaim, order: AskOrder) -> AttemptOutcome {
        let began = self.clock.now();
        let (voters, others) = self.voters(claim.keys_live_ms);
        if voters.len() < self.rules.quorum {
            return self.too_few_voters(&others);
        }
        let asked = self.without_suspects(voters);
        let mut attempt = Attempt {
            coordinator: self,
            claim,
            tally: self.rules.begin(asked.len()),
            touched: Vec::new(),
            held: Vec::new(),
            same_request: 0,
            mismatch: 0,
            reasons: self.absence_reasons(&others),
            broken: None,
        };
        let decision = attempt.collect(asked, order).await;
        let elapsed = self.clock.now().since(began);
        let validity = self.rules.validity(claim.text.life_ms, elapsed);
        if let (Decision::Won, Some(validity)) = (decision, validity) {
            return AttemptOutcome::Granted { validity };
        }
        self.abandon(&claim.lease(), &attempt.touched, claim.keys_live_ms);
        match attempt.outcome(decision) {
            AttemptOutcome::Unavailable(why) if others.iter().any(is_quarantined) => AttemptOutcome::Quarantined(why),
            outcome => outcome,
        }
    }

    /// Owes these nodes the end of a try.
    pub fn abandon(&self, lease: &LeaseKeys, touched: &[usize], keys_live_ms: u64) {
        let until = self.clock.now().plus_millis(keys_live_ms);
        for at in touched.iter().copied() {
            let request = NodeRequest::Abandon { lease: lease.clone(), ban_ms: keys_live_ms.max(SHORTEST_BAN_MS) };
            self.owe(at, lease, request, until);
        }
    }

    /// What comes of a claim that no majority may vote on.
    pub fn too_few_voters(&self, others: &[(usize, Standing)]) -> AttemptOutcome {
        let not_durable = others.iter().filter(|(_, standing)| *standing == Standing::NotDurable).count();
        if not_durable >= self.rules.blocking() {
            return AttemptOutcome::Broken(Error::Invalid(
                "so long a lease needs a majority of nodes that keep their leases over a restart (appendonly yes, \
                 appendfsync always): ask for a shorter ttl and delay, or set quarantine= in the url to at least that long"
                    .into(),
            ));
        }
        AttemptOutcome::Quarantined(self.absence_reasons(others).join("; "))
    }

    fn absence_reasons(&self, others: &[(usize, Standing)]) -> Vec<String> {
        let reason = |(at, standing): &(usize, Standing)| {
            let address = self.nodes[*at].address();
            match standing {
                Standing::Quarantined { left } => format!(
                    "{address} started a moment ago and may have forgotten leases: it votes again in {} ms",
                    left.as_millis()
                ),
                _ => format!("{address} keeps no lease over a restart, and this one is longer than the quarantine"),
            }
        };
        others.iter().map(reason).collect()
    }

    /// The nodes in the order in which they are arbiters of this claim.
    fn arbiters(&self, claim: &PreparedClaim, asked: &[usize]) -> Vec<usize> {
        let first = claim.text.keys.first().map_or("", String::as_str);
        let digest = Sha256::digest(first.as_bytes());
        let number = digest.iter().take(8).fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
        let nodes = self.nodes.len() as u64;
        let start = usize::try_from(number % nodes.max(1)).unwrap_or(0);
        let turned = (0..self.nodes.len()).map(|step| (start + step) % self.nodes.len());
        turned.filter(|at| asked.contains(at)).collect()
    }
}

fn is_quarantined((_, standing): &(usize, Standing)) -> bool {
    matches!(standing, Standing::Quarantined { .. })
}

impl Attempt<'_> {
    async fn collect(&mut self, asked: Vec<usize>, order: AskOrder) -> Decision {
        let mut rest = asked;
        if order == AskOrder::ArbiterFirst {
            for arbiter in self.coordinator.arbiters(self.claim, &rest) {
                rest.retain(|at| *at != arbiter);
                let before = (self.tally.answered(), self.held.len() + self.same_request + self.mismatch);
                self.collect_from(&[arbiter]).await;
                if self.tally.decision() != Decision::Open {
                    return self.tally.decision();
                }
                if self.held.len() + self.same_request + self.mismatch > before.1 {
                    return Decision::Refused;
                }
                // The next node is the arbiter where this one does not answer.
                if self.tally.answered() > before.0 {
                    break;
                }
            }
        }
        self.collect_from(&rest).await;
        self.tally.decision()
    }

    /// Asks these at once, and counts until it is decided or their time is over.
    async fn collect_from(&mut self, asked: &[usize]) {
        let (coordinator, claim) = (self.coordinator, self.claim);
        let deadline = coordinator.clock.now().plus(node_limit(claim.text.life_ms));
        let mut round = coordinator.ask_nodes(asked, &NodeRequest::Acquire(claim.clone()));
        self.touched.extend(asked);
        let mut waiting = asked.to_vec();
        while self.is_worth_waiting() {
            let Some(vote) = round.next(&*coordinator.clock, deadline).await else { break };
            waiting.retain(|at| *at != vote.0);
            self.count(vote);
        }
        if self.tally.decision() != Decision::Open {
            return;
        }
        // Those who did not answer in time: their part is over.
        for at in waiting {
            self.tally.count(Vote::Missing);
            self.reasons.push(format!("{} did not answer in time", coordinator.nodes[at].address()));
        }
    }

    /// Until it is decided; and if it was refused, until it is known who has it. Perhaps nobody has: then it is tried again.
    fn is_worth_waiting(&self) -> bool {
        match self.tally.decision() {
            Decision::Open => true,
            Decision::Refused => {
                !self.held.iter().any(|held| self.count_of(&held.who) >= self.coordinator.rules.quorum)
            }
            Decision::Won | Decision::Unanswered => false,
        }
    }

    fn count_of(&self, who: &Occupant) -> usize {
        self.held.iter().filter(|held| held.who == *who).count()
    }

    fn count(&mut self, (at, answer): NodeVote) {
        let vote = match answer {
            Ok(NodeReply::Ballot(Ballot::Granted)) => Vote::Yes,
            Ok(NodeReply::Ballot(refused)) => {
                // It decided, and took nothing.
                self.touched.retain(|touched| *touched != at);
                match refused {
                    Ballot::Held(held) => self.held.push(held),
                    Ballot::SameRequest => self.same_request += 1,
                    Ballot::Mismatch => self.mismatch += 1,
                    Ballot::Banned | Ballot::Granted => {}
                }
                Vote::No
            }
            Ok(_) => Vote::Missing,
            Err(error) => {
                if !error.may_have_happened() {
                    self.touched.retain(|touched| *touched != at);
                }
                self.reasons.push(error.to_string());
                if let NodeError::Broken(error) = error {
                    self.broken = Some(error);
                }
                Vote::Missing
            }
        };
        self.tally.count(vote);
    }

    fn outcome(self, decision: Decision) -> AttemptOutcome {
        match decision {
            Decision::Won => AttemptOutcome::Unavailable("a majority granted it, but too slowly to be of use".into()),
            Decision::Refused if self.mismatch > 0 && self.held.is_empty() => AttemptOutcome::Mismatch,
            Decision::Refused if self.same_request > 0 && self.held.is_empty() => AttemptOutcome::SameRequest,
            Decision::Refused => {
                let split = self.is_split();
                let held = self.held.into_iter().max_by_key(|held| held.left_ms);
                AttemptOutcome::Held { held, split }
            }
            Decision::Open | Decision::Unanswered => match self.broken {
                Some(error) => AttemptOutcome::Broken(error),
                None => AttemptOutcome::Unavailable(self.reasons.join("; ")),
            },
        }
    }

    /// Whether nobody who was seen can have a majority, even with all the nodes that did not answer.
    fn is_split(&self) -> bool {
        let rules = self.coordinator.rules;
        let silent = rules.nodes.saturating_sub(self.tally.answered());
        self.held.iter().all(|held| self.count_of(&held.who) + silent < rules.quorum)
    }
}
