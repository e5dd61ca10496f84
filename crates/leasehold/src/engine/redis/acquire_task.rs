//! One acquire, from its first try to its reply, even if its caller or the connection goes away.
//!
//! ```text
//!   acquire ─ waiting ──▶ message "granted" ──▶ done
//!                │  ├─ time to look ──▶ beat ──▶ granted | still waiting | forgotten: acquire again, same handle
//!                │  └─ heartbeat, or the connection came back ──▶ the same
//!                ├─ patience is over ──▶ leave ──▶ held | granted in the last moment | others wait longer
//!                └─ the caller is gone ──▶ leave
//! ```
//!
//! # Laws
//!
//! 1. Every try has the same handle and secret, so that all of them together have one effect.
//! 2. A grant that nobody will see is ended, and a try that is still on its way takes nothing. With a request id it stays
//!    for its ttl: a retry may come for it.
//! 3. The error is Indeterminate if any try may have taken effect, and Unavailable if none can have.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::Time;
use tokio::sync::oneshot;

use super::claim_text::{ClaimText, record_key};
use super::decode::{ClaimReply, GrantedReply, HeldReply, NextLook, WaitingReply, claim_reply};
use super::errors::{CLOSED, CallError, ENGINE, indeterminate, unavailable};
use super::node::{RETRY_FOR, RetryPolicy, ScriptCall, random_bits, slot_of, spread};
use super::scripts::Script;
use super::shared::RedisShared;
use super::waiting::{WaitSignal, WaitTicket, beat};
use crate::engine::acquire_future::{AcquireFuture, EndsUnseen};
use crate::engine::from_book::millis;
use crate::engine::{Claim, Grant};
use crate::error::{BoxError, Error, Refusal};

/// How long a claim that does not wait is retried while the server is busy.
const BUSY_FOR: Duration = Duration::from_secs(1);
/// How long a server may be unreachable before a waiting claim fails.
const MAX_OUTAGE: Duration = Duration::from_secs(30);
/// How often the head of a queue looks at a name that a stranger holds: half of this to one and a half.
const POLL_EVERY: Duration = Duration::from_millis(50);

type AcquireResult = Result<Grant, Error>;

/// See the module.
pub(super) struct AcquireTask {
    shared: Arc<RedisShared>,
    claim: Claim,
    text: ClaimText,
    /// No request id: no retry of the caller can come for the lease.
    anonymous: bool,
    /// A try may still be on its way.
    repeated: bool,
}

/// How a try or a wait ended.
enum Step {
    /// With this reply; none when nobody waits for it any more.
    Done(Option<AcquireResult>),
    /// It is to be tried again at once.
    Again,
}

/// What is known of earlier tries.
#[derive(Default)]
struct Tries {
    /// One of them may have taken effect.
    maybe: bool,
    /// When a reply was first missed.
    missed: Option<Time>,
    /// Since when the server has been unreachable.
    away: Option<Time>,
}

impl AcquireTask {
    /// Spawns the task. The claim is within its limits.
    pub fn start(shared: &Arc<RedisShared>, claim: Claim) -> AcquireFuture<Arc<RedisShared>> {
        let anonymous = claim.request.is_none();
        let text = ClaimText::new(&claim, &shared.node.layout, random_bits());
        let task = Self { shared: shared.clone(), claim, text, anonymous, repeated: false };
        let (to, from) = oneshot::channel();
        let attempt = task.attempt();
        shared.tasks.spawn_on(task.run(to), &shared.runtime);
        AcquireFuture::new(from, ENGINE, attempt, anonymous.then(|| shared.clone()))
    }

    async fn run(mut self, mut to: oneshot::Sender<AcquireResult>) {
        let Some(answer) = self.run_tries(&mut to).await else { return };
        if let Err(Ok(grant)) = to.send(answer)
            && self.anonymous
        {
            self.shared.release_unseen(&grant.lease_id).await;
        }
    }

    async fn run_tries(&mut self, to: &mut oneshot::Sender<AcquireResult>) -> Option<AcquireResult> {
        let began = self.now();
        let patience = began.plus(self.claim.wait);
        let mut tries = Tries::default();
        for round in 0_u32.. {
            if to.is_closed() {
                return self.clean_up(tries.maybe, "it was given up".into()).await;
            }
            if let Some(sentence) = self.shared.node.weakness() {
                return Some(Err(self.too_weak(tries.maybe, sentence).await));
            }
            let wait_ms = if round == 0 { self.text.wait_ms } else { millis(patience.since(self.now())) };
            // A claim that does not wait may still join an earlier try of its request that does.
            let waits = wait_ms > 0 || !self.anonymous;
            let ticket = waits.then(|| self.shared.registry.register(&self.text.handle, &self.text.fingerprint));
            let tried = self.try_once(wait_ms, round == 0).await;
            let failed = match tried {
                Ok(reply) => match self.act_on(reply, ticket, patience, to).await {
                    Step::Done(answer) => return answer,
                    Step::Again => {
                        tries = Tries { maybe: false, ..Tries::default() };
                        continue;
                    }
                },
                Err(failed) => failed,
            };
            let (source, give_up) = match self.note_failure(failed, began, patience, &mut tries) {
                Ok(again) => again,
                Err(error) => return Some(Err(error)),
            };
            if to.is_closed() || self.is_closing() {
                return self.clean_up(tries.maybe, source).await;
            }
            if self.now() >= give_up {
                return Some(Err(self.final_error(tries.maybe, source)));
            }
            tokio::select! {
                () = self.shared.node.backoff(round) => {}
                () = to.closed() => return self.clean_up(tries.maybe, source).await,
                () = self.shared.node.closed.cancelled() => return self.clean_up(tries.maybe, source).await,
            }
        }
        unreachable!("the rounds end by time")
    }

    /// The first try may share its call with other callers.
    async fn try_once(&self, wait_ms: u64, first: bool) -> Result<ClaimReply, CallError> {
        let limit = self.shared.node.options.limits.waiters_per_resource;
        let (keys, args) = self.text.acquire(wait_ms, &self.shared.node.instance, limit);
        let call = ScriptCall { script: Script::Acquire, slot: slot_of(&self.text.handle), keys, args };
        let value =
            if first { self.shared.gatherer.run_script(&call).await } else { self.shared.node.run_script(&call).await };
        claim_reply(&value?).map_err(|odd| CallError::Unknown(Box::new(odd)))
    }

    /// Why it failed, and until when it is tried again; or the error, if it is final.
    fn note_failure(
        &mut self,
        failed: CallError,
        began: Time,
        patience: Time,
        tries: &mut Tries,
    ) -> Result<(BoxError, Time), Error> {
        let now = self.now();
        let after_miss = |tries: &Tries| tries.missed.map_or(Time::ZERO, |missed| missed.plus(RETRY_FOR));
        match failed {
            // A refusal of access says nothing of an earlier try whose reply was lost.
            CallError::Decided(error @ Error::Invalid(_)) if tries.maybe => {
                Err(self.final_error(true, Box::new(error)))
            }
            CallError::Decided(error) => Err(error),
            CallError::Unknown(source) => {
                (tries.maybe, tries.away, self.repeated) = (true, None, true);
                tries.missed.get_or_insert(now);
                Ok((source, patience.max(after_miss(tries))))
            }
            CallError::Busy(source) => {
                let since = *tries.away.get_or_insert(now);
                let last = patience.max(after_miss(tries)).max(began.plus(BUSY_FOR));
                Ok((source, last.min(since.plus(MAX_OUTAGE))))
            }
            CallError::NoEffect(source) => {
                let since = *tries.away.get_or_insert(now);
                Ok((source, patience.max(after_miss(tries)).min(since.plus(MAX_OUTAGE))))
            }
        }
    }

    async fn act_on(
        &mut self,
        reply: ClaimReply,
        ticket: Option<WaitTicket>,
        patience: Time,
        to: &mut oneshot::Sender<AcquireResult>,
    ) -> Step {
        match reply {
            ClaimReply::Granted(granted) => {
                // An earlier try was granted, its reply was lost, and the lease is over: try with a new handle.
                if self.anonymous && !granted.fresh && granted.remaining_ms == Some(0) && self.now() < patience {
                    self.draw_again();
                    return Step::Again;
                }
                self.grant(granted, to).await
            }
            ClaimReply::Waiting(waiting) => match ticket {
                Some(ticket) => self.wait(waiting, ticket, patience, to).await,
                None => Step::Done(Some(Err(self.unexpected()))),
            },
            ClaimReply::Collision => {
                self.draw_again();
                Step::Again
            }
            ClaimReply::Held(held) => self.refuse(self.held(held)).await,
            ClaimReply::QueueFull { key } => {
                self.refuse(Refusal::QueueFull { resource: self.shared.name_of(&key) }.into()).await
            }
            ClaimReply::OtherCapacity { key, known, asked } => {
                let name = self.shared.name_of(&key);
                let sentence = format!("{name} has a capacity of {known} while it is in use, not {asked}");
                self.refuse(Error::Invalid(sentence)).await
            }
            ClaimReply::Mismatch => Step::Done(Some(Err(Refusal::Mismatch.into()))),
            ClaimReply::Banned => {
                Step::Done(Some(Err(unavailable(self.attempt(), "this try was given up before".into()))))
            }
            ClaimReply::OthersWait { .. } | ClaimReply::Ended | ClaimReply::Forgotten => {
                Step::Done(Some(Err(self.unexpected())))
            }
        }
    }

    /// Waits in the queue.
    async fn wait(
        &mut self,
        mut waiting: WaitingReply,
        mut ticket: WaitTicket,
        patience: Time,
        to: &mut oneshot::Sender<AcquireResult>,
    ) -> Step {
        let clock = self.shared.node.clock.clone();
        let mut end = self.after(waiting.patience_ms);
        let mut look = self.look_time(&waiting);
        let mut failures: u32 = 0;
        loop {
            if let Some(sentence) = self.shared.node.weakness() {
                return Step::Done(Some(Err(self.too_weak(true, sentence).await)));
            }
            let reply = tokio::select! {
                biased;
                signal = ticket.signals.recv() => match signal {
                    Some(WaitSignal::Granted(granted)) if self.anonymous => {
                        return self.grant(GrantedReply { secret: Some(waiting.secret), ..granted }, to).await;
                    }
                    // Another call of the request may have made the record anew, with a secret of its own: the server is
                    // asked for it, because a message does not show it.
                    Some(WaitSignal::Granted(_)) => {
                        look = self.now();
                        continue;
                    }
                    Some(WaitSignal::Look(next)) => {
                        waiting.look = next;
                        waiting.head = true;
                        look = look.min(self.look_time(&waiting));
                        continue;
                    }
                    Some(WaitSignal::Beat(reply)) => Ok(reply),
                    None => return Step::Done(Some(Err(self.unexpected()))),
                },
                () = to.closed() => {
                    self.cancel(&ticket).await;
                    return Step::Done(None);
                }
                () = self.shared.node.closed.cancelled() => {
                    self.cancel(&ticket).await;
                    return Step::Done(Some(Err(unavailable(self.attempt(), CLOSED.into()))));
                }
                () = clock.sleep_until(look.min(end)) => self.look_or_leave(end).await,
            };
            match reply {
                Ok(ClaimReply::Waiting(next)) => {
                    failures = 0;
                    end = self.after(next.patience_ms);
                    look = self.look_time(&next);
                    waiting = next;
                }
                Ok(ClaimReply::OthersWait { patience_ms }) => end = self.after(patience_ms),
                Ok(ClaimReply::Granted(granted)) => return self.grant(granted, to).await,
                Ok(ClaimReply::Held(held)) => return self.refuse(self.held(held)).await,
                // A restart forgot it: come again, behind the others.
                Ok(ClaimReply::Forgotten) if self.now() < patience => return Step::Again,
                Ok(ClaimReply::Forgotten) => look = end,
                Ok(_) => return Step::Done(Some(Err(self.unexpected()))),
                Err(failed) => {
                    failures += 1;
                    if let Some(step) = self.note_wait_failure(failed, end, failures).await {
                        return step;
                    }
                    look = self.now();
                }
            }
        }
    }

    /// How the wait ends because of this; none if it goes on.
    async fn note_wait_failure(&self, failed: CallError, end: Time, failures: u32) -> Option<Step> {
        let source = match failed {
            // A refusal of access says nothing of the place in the queue: it may have been granted meanwhile.
            CallError::Decided(error @ Error::Invalid(_)) => {
                return Some(Step::Done(Some(Err(self.final_error(true, Box::new(error))))));
            }
            CallError::Decided(error) => return Some(Step::Done(Some(Err(error)))),
            CallError::Busy(source) | CallError::NoEffect(source) | CallError::Unknown(source) => source,
        };
        if self.now() >= end.plus(RETRY_FOR) {
            return Some(Step::Done(Some(Err(self.final_error(true, source)))));
        }
        self.shared.node.backoff(failures).await;
        None
    }

    /// Asks the server how the wait stands; ends it when patience is over.
    async fn look_or_leave(&self, end: Time) -> Result<ClaimReply, CallError> {
        if self.now() >= end {
            return self.leave("patience", if self.repeated { self.text.life_ms } else { 0 }).await;
        }
        let record = (self.text.handle.clone(), self.text.fingerprint.clone());
        let mut replies = beat(&self.shared.node, slot_of(&self.text.handle), &[record]).await?;
        replies.pop().ok_or_else(|| CallError::Unknown("a beat was not answered".into()))
    }

    /// When the server should be asked again.
    fn look_time(&self, waiting: &WaitingReply) -> Time {
        match waiting.look {
            NextLook::In(ms) => self.after(ms),
            NextLook::Poll if waiting.head => self.now().plus(spread(POLL_EVERY, 0.5, 1.5)),
            NextLook::Poll | NextLook::WhenTold => Time::NEVER,
        }
    }

    /// A little later than asked for: the server's clock must have passed the moment.
    fn after(&self, ms: u64) -> Time {
        self.now().plus_millis(ms).plus(self.shared.node.options.timer_margin)
    }

    /// Hands a grant out, or ends it if nobody will see it or the server may forget it.
    async fn grant(&mut self, granted: GrantedReply, to: &oneshot::Sender<AcquireResult>) -> Step {
        if let Some(sentence) = self.shared.node.weakness() {
            return Step::Done(Some(Err(self.too_weak(true, sentence).await)));
        }
        let grant = self.shared.note_grant(&self.text, granted, self.repeated);
        if to.is_closed() && self.anonymous {
            self.shared.release_unseen(&grant.lease_id).await;
            return Step::Done(None);
        }
        Step::Done(Some(Ok(grant)))
    }

    async fn leave(&self, why: &str, ban_ms: u64) -> Result<ClaimReply, CallError> {
        let args = vec![
            self.shared.node.instance.clone(),
            why.to_owned(),
            self.text.fingerprint.clone(),
            self.text.keys[0].clone(),
            self.text.secret.clone(),
            ban_ms.to_string(),
        ];
        let keys = vec![record_key(&self.text.handle)];
        let call = ScriptCall { script: Script::Leave, slot: slot_of(&self.text.handle), keys, args };
        let value = self.shared.node.run_script(&call).await?;
        claim_reply(&value).map_err(|odd| CallError::Unknown(Box::new(odd)))
    }

    /// The caller of a waiting claim is gone.
    async fn cancel(&self, ticket: &WaitTicket) {
        // Another call of this process waits for the same request.
        if !self.anonymous && !ticket.is_last() {
            return;
        }
        self.leave_for_good().await;
    }

    /// A refusal is final: a try that is still on its way must not take what this one was refused.
    async fn refuse(&self, error: Error) -> Step {
        if self.anonymous && self.repeated && !self.leave_for_good().await {
            return Step::Done(Some(Err(indeterminate(self.attempt(), Box::new(error)))));
        }
        Step::Done(Some(Err(error)))
    }

    /// The engine was opened with promises that the server keeps no more: no lease is handed out.
    async fn too_weak(&self, maybe: bool, sentence: String) -> Error {
        let left = !(maybe || self.repeated) || self.leave_for_good().await;
        // A lease with a request id stays: another call of the request may have got it before.
        if left && (self.anonymous || !maybe) {
            unavailable(self.attempt(), sentence.into())
        } else {
            indeterminate(self.attempt(), sentence.into())
        }
    }

    /// Leaves the queue, or ends the lease; and a try that is still on its way takes nothing. Says whether that is certain.
    async fn leave_for_good(&self) -> bool {
        let args = vec![
            self.shared.node.instance.clone(),
            "cancel".to_owned(),
            self.text.fingerprint.clone(),
            self.text.keys[0].clone(),
            self.text.secret.clone(),
            self.text.life_ms.to_string(),
        ];
        let call = ScriptCall {
            script: Script::Leave,
            slot: slot_of(&self.text.handle),
            keys: vec![record_key(&self.text.handle)],
            args,
        };
        // If it fails, the waiter is forgotten after 10 s, and a lease lapses.
        self.shared.node.call_with_retry(&|| self.attempt(), &call, RetryPolicy::Cleanup).await.is_ok()
    }

    /// Keeps law 2 for a claim that was given up between two tries.
    async fn clean_up(&self, maybe: bool, source: BoxError) -> Option<AcquireResult> {
        if maybe {
            self.leave_for_good().await;
        }
        if !self.is_closing() {
            return None;
        }
        // Without a request id it was ended just now.
        let error =
            if maybe && !self.anonymous { self.final_error(true, source) } else { self.final_error(false, source) };
        Some(Err(error))
    }

    fn final_error(&self, maybe: bool, source: BoxError) -> Error {
        if !maybe {
            return unavailable(self.attempt(), source);
        }
        if self.anonymous {
            // Nobody will learn of the lease, if there is one.
            let task = self.copy();
            self.shared.tasks.spawn_on(
                async move {
                    task.leave_for_good().await;
                },
                &self.shared.runtime,
            );
        }
        indeterminate(self.attempt(), source)
    }

    fn copy(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            claim: self.claim.clone(),
            text: self.text.clone(),
            anonymous: self.anonymous,
            repeated: self.repeated,
        }
    }

    fn draw_again(&mut self) {
        self.text = ClaimText::new(&self.claim, &self.shared.node.layout, random_bits());
        self.repeated = false;
    }

    fn held(&self, held: HeldReply) -> Error {
        let holder = if held.foreign { Some(super::shared::FOREIGN_HOLDER.to_owned()) } else { held.holder };
        Error::Refused(Refusal::Held {
            resource: self.shared.name_of(&held.key),
            holder,
            remaining: held.remaining_ms.map(Duration::from_millis),
            queue_len: held.queue_len,
        })
    }

    fn unexpected(&self) -> Error {
        indeterminate(self.attempt(), Box::new(super::decode::UnexpectedReply))
    }

    fn is_closing(&self) -> bool {
        self.shared.node.closed.is_cancelled()
    }

    fn now(&self) -> Time {
        self.shared.node.clock.now()
    }

    fn attempt(&self) -> String {
        format!("acquire {}", self.claim.wants.first().map_or("", |want| &want.name))
    }
}

impl EndsUnseen for Arc<RedisShared> {
    fn end_unseen(&self, grant: Grant) {
        let shared = self.clone();
        self.tasks.spawn_on(async move { shared.release_unseen(&grant.lease_id).await }, &self.runtime);
    }
}
