//! A repeated request id: finds the lease of an earlier call on a majority, and takes part in it.
//!
//! # Laws
//!
//! 1. The lease of an earlier call is the answer only if a majority has it under one secret.
//! 2. Whoever takes part in the lease of another call marks it on each node first: the other call may be about to
//!    abandon it, and a node that was marked refuses that.

use std::time::Duration;

use super::attempt::AttemptOutcome;
use super::coordinator::Coordinator;
use super::node::{LeaseKeys, NodeReply, NodeRequest, PeekedLease, PreparedClaim};
use super::vote::{Decision, Vote, node_limit};

/// What is known of a request id.
#[derive(Debug)]
pub(super) enum FoundRequest {
    /// No majority knows it: it can be tried.
    Nothing,
    /// An earlier call has a lease.
    Live { secret: String, validity: Duration, renewable: Option<Duration> },
    /// It had one, which has ended.
    Ended { secret: String },
    /// It cannot be said, or the id belongs to another claim.
    Undecided(AttemptOutcome),
}

impl Coordinator {
    /// Looks for the lease of an earlier call.
    pub async fn find_request(&self, claim: &PreparedClaim) -> FoundRequest {
        let text = &claim.text;
        let deadline = self.clock.now().plus(node_limit(text.life_ms));
        let (voters, others) = self.voters(claim.keys_live_ms);
        if voters.len() < self.rules.quorum {
            return FoundRequest::Undecided(self.too_few_voters(&others));
        }
        let asked = self.without_suspects(voters);
        let mut round = self.ask_nodes(&asked, &NodeRequest::Peek { handle: text.handle.clone() });
        let (mut found, mut nothing, mut reasons) = (Vec::<PeekedLease>::new(), 0, Vec::new());
        // With so many that know nothing there is no majority that does.
        while nothing < self.rules.blocking() {
            match round.next(&*self.clock, deadline).await {
                None => break,
                Some((_, Ok(NodeReply::Peeked(Some(peeked))))) => found.push(peeked),
                Some((_, Ok(NodeReply::Peeked(None)))) => nothing += 1,
                Some((_, Ok(_))) => {}
                Some((_, Err(error))) => reasons.push(error.to_string()),
            }
        }
        let quorum = self.rules.quorum;
        let known = found.iter().find(|peeked| count(&found, |other| other.secret == peeked.secret) >= quorum);
        match known {
            Some(known) if known.fingerprint != text.fingerprint => FoundRequest::Undecided(AttemptOutcome::Mismatch),
            Some(known) if count(&found, |other| other.secret == known.secret && other.live) >= quorum => {
                self.join_request(claim, known.secret.clone()).await
            }
            Some(known) => FoundRequest::Ended { secret: known.secret.clone() },
            None if nothing >= self.rules.blocking() || found.len() + nothing >= quorum => FoundRequest::Nothing,
            None => {
                reasons.push("too few nodes said whether this request id is known".into());
                FoundRequest::Undecided(AttemptOutcome::Unavailable(reasons.join("; ")))
            }
        }
    }

    /// Law 2.
    async fn join_request(&self, claim: &PreparedClaim, secret: String) -> FoundRequest {
        let began = self.clock.now();
        let deadline = began.plus(node_limit(claim.text.life_ms));
        let asked = self.without_suspects(self.voters(claim.keys_live_ms).0);
        let lease = LeaseKeys { handle: claim.text.handle.clone(), secret: secret.clone() };
        if self.is_being_released(&lease) {
            return FoundRequest::Ended { secret };
        }
        let mut round = self.ask_nodes(&asked, &NodeRequest::Join(lease));
        let mut tally = self.rules.begin(asked.len());
        let (mut lives, mut caps) = (Vec::new(), Vec::new());
        while tally.decision() == Decision::Open {
            let Some((_, answer)) = round.next(&*self.clock, deadline).await else { break };
            tally.count(match answer {
                Ok(NodeReply::Lives { left_ms, cap_left_ms }) => {
                    lives.push(left_ms);
                    caps.extend(cap_left_ms);
                    Vote::Yes
                }
                Ok(_) => Vote::No,
                Err(_) => Vote::Missing,
            });
        }
        match tally.closed() {
            Decision::Won => {
                let elapsed = self.clock.now().since(began);
                let life = self.rules.common_end(lives).unwrap_or(0);
                let renewable = self.rules.common_end(caps).map(Duration::from_millis);
                match self.rules.validity(life, elapsed) {
                    Some(validity) => FoundRequest::Live { secret, validity, renewable },
                    None => FoundRequest::Ended { secret },
                }
            }
            // It ended, or was abandoned, between the two questions.
            _ => FoundRequest::Undecided(AttemptOutcome::SameRequest),
        }
    }
}

fn count(found: &[PeekedLease], is: impl Fn(&PeekedLease) -> bool) -> usize {
    found.iter().filter(|peeked| is(peeked)).count()
}
