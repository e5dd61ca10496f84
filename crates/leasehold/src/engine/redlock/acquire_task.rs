//! One acquire, from its first attempt to its reply, even if its caller goes away.
//!
//! ```text
//!   Engine::acquire ──▶ AcquireTask (a tokio task) ──▶ attempts, one after the other ──▶ oneshot ──▶ AcquireFuture
//! ```
//!
//! # Laws
//!
//! 1. A grant that nobody will see is released on every node, unless it has a request id: then a retry may come for it.
//! 2. Nobody waits longer than it asked. A claim that does not wait is tried again for a moment if the votes were split,
//!    because then nobody has it.
//!
//! There is no queue: whoever waits tries again after a random pause, which grows.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::attempt::{AskOrder, AttemptOutcome};
use super::coordinator::Coordinator;
use super::node::{LeaseKeys, NodeHeld, PreparedClaim};
use super::request::FoundRequest;
use super::{CLOSED, ENGINE, unavailable};
use crate::clock::Time;
use crate::engine::acquire_future::{AcquireFuture, EndsUnseen};
use crate::engine::from_book::millis;
use crate::engine::redis::claim_text::ClaimText;
use crate::engine::redis::scripts::Layout;
use crate::engine::{Claim, Grant, LeaseId};
use crate::error::{Error, Refusal};

/// The pause after the first attempt, and the longest one.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(400);
/// How long votes that were split are tried again by a claim that does not wait.
const SPLIT_RETRY_FOR: Duration = Duration::from_secs(2);
/// How long an acquire that waits tries on while too few nodes answer.
const MAX_OUTAGE: Duration = Duration::from_secs(30);
/// Every so many attempts all nodes are asked at once: the arbiter may have been left locked by somebody who died.
const ALL_AT_ONCE_EVERY: u32 = 4;

type AcquireResult = Result<Grant, Error>;

/// See the module.
pub(super) struct AcquireTask {
    coordinator: Arc<Coordinator>,
    claim: Claim,
    layout: Layout,
}

impl AcquireTask {
    /// Spawns the task. The claim is within bounds, and exclusive.
    pub fn start(coordinator: &Arc<Coordinator>, layout: &Layout, claim: Claim) -> AcquireFuture<UnseenLease> {
        let (to, from) = oneshot::channel();
        let unseen = UnseenLease { coordinator: coordinator.clone(), keys_live_ms: keys_live_ms(&claim) };
        let ends = claim.request.is_none().then_some(unseen);
        let future = AcquireFuture::new(from, ENGINE, attempt_text(&claim), ends);
        let task = Self { coordinator: coordinator.clone(), claim, layout: layout.clone() };
        coordinator.tasks.spawn_on(task.run(to), &coordinator.runtime);
        future
    }

    async fn run(self, mut to: oneshot::Sender<AcquireResult>) {
        let Some(answer) = self.try_until_answered(&mut to).await else { return };
        if let Err(Ok(grant)) = to.send(answer)
            && self.claim.request.is_none()
        {
            release_unseen(&self.coordinator, &grant, keys_live_ms(&self.claim));
        }
    }

    /// The result; none when nobody waits for it any more.
    async fn try_until_answered(&self, to: &mut oneshot::Sender<AcquireResult>) -> Option<AcquireResult> {
        let clock = &self.coordinator.clock;
        let began = clock.now();
        let patience = began.plus(self.claim.wait);
        let mut away_since: Option<Time> = None;
        for round in 0_u32.. {
            let prepared = self.prepare();
            let outcome = tokio::select! {
                biased;
                () = to.closed(), if self.claim.request.is_none() => {
                    // What was sent may still be carried out: the nodes are told to forget it.
                    self.coordinator.abandon(&prepared.lease(), &self.coordinator.everybody(), prepared.keys_live_ms);
                    return None;
                }
                outcome = self.try_once(round, &prepared) => outcome,
            };
            let now = clock.now();
            let (end, error) = match outcome {
                Ok(outcome) => match outcome {
                    AttemptOutcome::Granted { validity } => return Some(Ok(self.grant(&prepared, validity))),
                    AttemptOutcome::Mismatch => return Some(Err(Refusal::Mismatch.into())),
                    AttemptOutcome::Broken(error) => return Some(Err(error)),
                    AttemptOutcome::Held { held, split } => {
                        away_since = None;
                        let end = if split { patience.max(began.plus(SPLIT_RETRY_FOR)) } else { patience };
                        (end, self.held(held))
                    }
                    AttemptOutcome::SameRequest => {
                        away_since = None;
                        let source = "another call with this request id is under way".into();
                        (patience.max(began.plus(SPLIT_RETRY_FOR)), unavailable(attempt_text(&self.claim), source))
                    }
                    // It ends by itself, however long it is.
                    AttemptOutcome::Quarantined(why) => {
                        away_since = None;
                        (patience, unavailable(attempt_text(&self.claim), why.into()))
                    }
                    AttemptOutcome::Unavailable(why) => {
                        let end = patience.min(away_since.get_or_insert(now).plus(MAX_OUTAGE));
                        (end, unavailable(attempt_text(&self.claim), why.into()))
                    }
                },
                Err(found) => return Some(found),
            };
            if now >= end {
                return Some(Err(error));
            }
            tokio::select! {
                biased;
                () = to.closed() => return None,
                () = self.coordinator.closed.cancelled() => {
                    return Some(Err(unavailable(attempt_text(&self.claim), CLOSED.into())));
                }
                () = clock.sleep_until(now.plus(self.pause(round)).min(end)) => {}
            }
        }
        None
    }

    /// The claim with a handle and a secret of its own.
    fn prepare(&self) -> PreparedClaim {
        let text = Arc::new(ClaimText::new(&self.claim, &self.layout, self.coordinator.draw()));
        PreparedClaim { text, keys_live_ms: keys_live_ms(&self.claim) }
    }

    /// One attempt; an error is the answer of an earlier call with the same request id.
    async fn try_once(&self, round: u32, prepared: &PreparedClaim) -> Result<AttemptOutcome, AcquireResult> {
        if self.claim.request.is_some() {
            match self.coordinator.find_request(prepared).await {
                FoundRequest::Nothing => {}
                FoundRequest::Live { secret, validity, renewable } => {
                    let lease_id = LeaseId::new(prepared.text.lease_id(&secret));
                    return Err(Ok(Grant { lease_id, token: None, remaining: validity, renewable }));
                }
                FoundRequest::Ended { secret } => {
                    let lease_id = LeaseId::new(prepared.text.lease_id(&secret));
                    let grant = Grant { lease_id, token: None, remaining: Duration::ZERO, renewable: None };
                    return Err(Ok(grant));
                }
                FoundRequest::Undecided(outcome) => return Ok(outcome),
            }
        }
        let all = round.is_multiple_of(ALL_AT_ONCE_EVERY);
        let order = if all { AskOrder::AllAtOnce } else { AskOrder::ArbiterFirst };
        Ok(self.coordinator.attempt(prepared, order).await)
    }

    fn grant(&self, prepared: &PreparedClaim, validity: Duration) -> Grant {
        let text = &prepared.text;
        let renewable = text.cap_ms.map(Duration::from_millis);
        Grant { lease_id: LeaseId::new(text.lease_id(&text.secret)), token: None, remaining: validity, renewable }
    }

    fn held(&self, held: Option<NodeHeld>) -> Error {
        let name = |key: &str| key.strip_prefix(&self.layout.key_prefix).unwrap_or(key).to_owned();
        let first = || self.claim.wants.first().map_or_else(String::new, |want| want.name.clone());
        let refusal = match held {
            Some(held) => Refusal::Held {
                resource: name(&held.key),
                holder: held.holder,
                remaining: held.left_ms.map(Duration::from_millis),
                queue_len: held.queue_len,
            },
            None => Refusal::Held { resource: first(), holder: None, remaining: None, queue_len: 0 },
        };
        refusal.into()
    }

    /// Between a quarter of the longest pause of this round and all of it.
    fn pause(&self, round: u32) -> Duration {
        let longest = FIRST_PAUSE.saturating_mul(1 << round.min(8)).min(LONGEST_PAUSE);
        let fraction = f64::from(u32::from_le_bytes(self.coordinator.draw())) / f64::from(u32::MAX);
        longest.mul_f64(0.25 + 0.75 * fraction)
    }
}

/// How long the keys of a claim live.
pub(super) fn keys_live_ms(claim: &Claim) -> u64 {
    life_ms(claim).saturating_add(millis(claim.delay))
}

/// How long its lease lives.
pub(super) fn life_ms(claim: &Claim) -> u64 {
    millis(claim.ttl).min(claim.max_hold.map_or(u64::MAX, millis))
}

fn attempt_text(claim: &Claim) -> String {
    format!("acquire {}", claim.wants.first().map_or("", |want| &want.name))
}

/// Law 1.
fn release_unseen(coordinator: &Coordinator, grant: &Grant, keys_live_ms: u64) {
    if let Some(lease) = LeaseKeys::from_id(&grant.lease_id) {
        coordinator.abandon(&lease, &coordinator.everybody(), keys_live_ms);
    }
}

/// What ends a grant that came after its caller was gone.
pub(super) struct UnseenLease {
    coordinator: Arc<Coordinator>,
    keys_live_ms: u64,
}

impl EndsUnseen for UnseenLease {
    fn end_unseen(&self, grant: Grant) {
        release_unseen(&self.coordinator, &grant, self.keys_live_ms);
    }
}
