//! An acquire that found others in its queues: refused, tried again with what was read, or waiting for its turn.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::Time;

use super::attempt::{AttemptTry, EtcdAttempt, HeldTerms, TryOutcome};
use super::failure::{CLOSED, EtcdFailure, indeterminate, unavailable};
use super::messages::{RangeCall, TxnCall, TxnPart, TxnReply};
use super::mirror::TurnOutcome;
use super::plan::MAX_GUARDED;
use super::queue_line::{QueueContender, QueueLine};
use super::shared::EtcdShared;
use super::values::ContenderState;
use crate::clock::Clock as _;
use crate::engine::Mode;
use crate::error::{Error, Refusal};

/// Tries with what was read before others came between.
const OPTIMISTIC_TRIES: usize = 3;
/// Holders of one resource that are looked at for being over.
const MAX_LOOKS: usize = 64;
/// Keys of a queue that are looked at to count those who wait: deeper names beyond them are counted too.
const FEW_KEYS: i64 = 32;
/// How often the rest of a lost place is deleted in the background. It ends with the session at the latest.
const MAX_CLEANUP_ROUNDS: u32 = 40;
/// How long a promotion is tried.
const PROMOTE_FOR: Duration = Duration::from_secs(6);

impl EtcdShared {
    /// Who is in the way of an exclusive claim, if it is the one who was there a moment ago. None: nobody knows.
    async fn look_at_holder(self: &Arc<Self>, name: &str) -> Option<Refusal> {
        let (_, key) = self.held_a_moment_ago(std::iter::once(name))?;
        let look = vec![
            TxnPart::range(RangeCall::one(key.clone())),
            TxnPart::range(RangeCall::keys(self.layout.queue(name), FEW_KEYS)),
        ];
        let reply = self.txn_again(TxnCall { success: look, ..TxnCall::default() }).await.ok()?;
        let contender = QueueContender::parse(&self.layout, name, reply.range(0).first()?).ok()??;
        let held = matches!(contender.state(), None | Some(ContenderState::Held));
        let waits_for_all = contender.mode == Mode::Exclusive;
        if !held || !waits_for_all {
            return None;
        }
        if let Ok(Some(over_at)) = self.over_at(&contender).await
            && self.clock.now() >= over_at
        {
            return None;
        }
        self.note_held(name, &key);
        let remaining = self.shown_remaining(&contender).await;
        // Keys of deeper names are in the range too.
        let deeper = reply.range(1).iter().filter(|kv| self.layout.parse_contender(name, kv).is_none()).count();
        Some(Refusal::Held {
            resource: name.to_owned(),
            holder: Some(contender.label().to_owned()),
            remaining,
            queue_len: reply.count(1).saturating_sub(1 + deeper),
        })
    }
}

impl EtcdAttempt {
    /// A name that was seen held a moment ago is asked by a read: a transaction that fails is a write for etcd. Those who ask
    /// at the same time share one. None: it has to be tried.
    pub(super) async fn refuse_by_read(&self, name: &str) -> Option<TryOutcome> {
        let alone = self.claim.wants.len() == 1 && self.request_key.is_none();
        if !alone {
            return None;
        }
        let (from, is_first) = self.shared.looks.join(name);
        if is_first {
            let (shared, name) = (self.shared.clone(), name.to_owned());
            self.shared.spawn_task(async move {
                while let Some(callers) = shared.looks.take(&name) {
                    callers.answer(&shared.look_at_holder(&name).await);
                }
            });
        }
        from.await.ok().flatten().map(|refusal| self.refused(refusal))
    }

    /// Tries without a place in the queues. `patience`: it may take one afterwards.
    pub(super) async fn try_at_once(
        &self,
        tried: &AttemptTry,
        terms: &HeldTerms,
        mut txn: TxnCall,
        patience: Option<Time>,
    ) -> TryOutcome {
        let shared = &self.shared;
        for _ in 0..OPTIMISTIC_TRIES {
            let grants = !txn.compare.is_empty();
            let reply = match shared.txn(txn).await {
                Ok(reply) if reply.succeeded && grants => return self.granted(tried, terms, reply.revision()),
                Ok(reply) => reply,
                Err(failure) => return self.recover(tried, terms, failure, patience).await,
            };
            if let Some(outcome) = self.not_fresh(tried, &reply).await {
                return outcome;
            }
            match self.judge_queues(tried, &reply).await {
                Ok(QueueVerdict::Free(revision)) => {
                    let free = tried.plan.nobody_came_since(&shared.layout, revision);
                    let look = tried.plan.look(&shared.layout, &tried.session.marker);
                    txn = tried.plan.acquire(&tried.session.marker, free, &terms.put(), look);
                }
                Ok(QueueVerdict::Changed) => return TryOutcome::Again,
                Ok(QueueVerdict::Refused(refusal)) => {
                    return match (patience, refusal) {
                        (Some(patience), Refusal::Held { .. }) => self.line_up(tried, terms, patience).await,
                        (_, refusal) => self.refused(refusal),
                    };
                }
                Ok(QueueVerdict::OtherCapacity(name, used)) => return other_capacity(&name, used),
                Err(failure) => return self.failed(without_effect(failure)),
            }
        }
        TryOutcome::Again
    }

    /// Whether the queues, as they were read after a try, admit the claim.
    async fn judge_queues(&self, tried: &AttemptTry, reply: &TxnReply) -> Result<QueueVerdict, EtcdFailure> {
        let shared = &self.shared;
        let before = tried.plan.parts_before_queues();
        let (mut refused, mut revision) = (None, reply.revision());
        for (at, want) in tried.plan.wants.iter().enumerate() {
            let (kvs, count) = (reply.range(before + at), reply.count(before + at));
            let mut line = QueueLine::parse(&shared.layout, &want.name, kvs, count, reply.revision())?;
            let first_alone = line.contenders.first().is_some_and(|one| one.mode == Mode::Exclusive);
            if line.unread > 0 && !first_alone {
                line = shared.read_line(&want.name, None).await?;
                // Nobody came to any queue since the older of the two reads.
                revision = revision.min(line.revision);
            }
            if line.admits(want.mode) {
                continue;
            }
            if self.end_those_over(&want.name, &line).await? {
                return Ok(QueueVerdict::Changed);
            }
            if let Some(used) = line.other_capacity(want.mode) {
                return Ok(QueueVerdict::OtherCapacity(want.name.clone(), used));
            }
            if refused.is_none() {
                refused = Some(self.held_by(&want.name, &line).await);
            }
        }
        Ok(refused.map_or(QueueVerdict::Free(revision), QueueVerdict::Refused))
    }

    /// Ends leases whose time is certainly over. Whether there were any.
    async fn end_those_over(&self, name: &str, line: &QueueLine) -> Result<bool, EtcdFailure> {
        let mut any = false;
        for contender in line.contenders.iter().filter(|one| one.state().is_some()).take(MAX_LOOKS) {
            any |= self.shared.lapse_if_over(name, contender).await?;
        }
        Ok(any)
    }

    /// What a refusal says is in the way.
    async fn held_by(&self, name: &str, line: &QueueLine) -> Refusal {
        let (holders, waiters) = line.split();
        let first = holders.first().copied();
        if let Some(first) = line.contenders.first() {
            self.shared.note_held(name, &first.key);
        }
        // As every engine: without a holder, only a queue or a closing delay is in the way, and there is nothing to renew.
        let remaining = match first {
            Some(contender) => self.shared.shown_remaining(contender).await,
            None => None,
        };
        Refusal::Held {
            resource: name.to_owned(),
            holder: first.map(|one| one.label().to_owned()),
            remaining,
            queue_len: waiters.len() + line.unread,
        }
    }

    /// Waits until every queue admits it, and is promoted then.
    pub(super) async fn wait_for_turn(&self, tried: &AttemptTry, arrival: i64, patience: Time) -> TryOutcome {
        let shared = &self.shared;
        let enlisted = shared.enlist(&tried.plan, arrival);
        loop {
            // Whoever joined meanwhile may have more patience.
            let until = patience.max(self.callers.patience());
            tokio::select! {
                biased;
                outcome = enlisted.ticket.wait() => return self.end_wait(tried, arrival, outcome).await,
                () = self.callers.wait_until_gone() => {
                    self.leave_queues(tried).await;
                    return TryOutcome::Done(Err(unavailable(self.text(), "its caller is gone")));
                }
                () = shared.closed.cancelled() => {
                    return TryOutcome::Done(Err(unavailable(self.text(), CLOSED)));
                }
                () = tried.session.lost.cancelled() => return self.place_lost(tried, arrival).await,
                () = self.callers.changed.notified() => {}
                () = shared.clock.sleep_until(until) => {
                    drop(enlisted);
                    return self.run_out(tried).await;
                }
            }
        }
    }

    /// One of its keys is gone. Those that are left must not keep others out: the session that has them lives on.
    async fn place_lost(&self, tried: &AttemptTry, arrival: i64) -> TryOutcome {
        if tried.plan.wants.len() > 1 || tried.plan.request.is_some() {
            let rest = tried.plan.delete_place(arrival);
            if self.shared.txn_again(rest.clone()).await.is_err() {
                let shared = self.shared.clone();
                self.shared.spawn_background(async move {
                    for round in 0..MAX_CLEANUP_ROUNDS {
                        shared.backoff(round).await;
                        if shared.txn_again(rest.clone()).await.is_ok() {
                            return;
                        }
                    }
                });
            }
        }
        TryOutcome::Done(Err(unavailable(self.text(), "the place in the queue was lost")))
    }

    pub(super) async fn end_wait(&self, tried: &AttemptTry, arrival: i64, outcome: TurnOutcome) -> TryOutcome {
        match outcome {
            TurnOutcome::Admitted { short } => self.promote(tried, arrival, short).await,
            TurnOutcome::Lost => self.place_lost(tried, arrival).await,
            TurnOutcome::OtherCapacity(name, used) => {
                self.leave_queues(tried).await;
                other_capacity(&name, used)
            }
            TurnOutcome::Failed(failure) => {
                self.leave_queues(tried).await;
                self.failed(without_effect(failure))
            }
        }
    }

    /// Its turn has come: a transaction grants it.
    async fn promote(&self, tried: &AttemptTry, arrival: i64, short: bool) -> TryOutcome {
        let shared = &self.shared;
        let give_up = shared.clock.now().plus(PROMOTE_FOR);
        let (mut guard, mut round) = (short, 0);
        loop {
            let terms = match self.held_terms(tried).await {
                Ok(terms) => terms,
                Err(failure) => match self.promote_later(tried, failure, give_up, &mut round).await {
                    Some(outcome) => return outcome,
                    None => continue,
                },
            };
            let marker = &tried.session.marker;
            let txn = tried.plan.promote(&shared.layout, marker, arrival, &terms.put(), guard);
            let failure = match shared.end_txn(txn, &terms.buckets()).await {
                Ok(reply) if reply.succeeded => return self.granted(tried, &terms, reply.revision()),
                Ok(reply) => {
                    let Some(first) = reply.range(0).first() else {
                        return self.place_lost(tried, arrival).await;
                    };
                    if first.mod_revision != arrival {
                        return self.adopt(tried, first);
                    }
                    if reply.range(1).is_empty() {
                        tried.session.lost.cancel();
                        return self.place_lost(tried, arrival).await;
                    }
                    if !guard || tried.plan.wants.len() > MAX_GUARDED {
                        // All that was compared but the other keys is as it should be.
                        return self.place_lost(tried, arrival).await;
                    }
                    // Keys of deeper names count for a condition on a range. Ours do not: they are read and told apart.
                    match self.is_first_by_read(tried, arrival).await {
                        Ok(true) => {
                            guard = false;
                            continue;
                        }
                        Ok(false) => return TryOutcome::Waiting { arrival, patience: self.callers.patience() },
                        Err(failure) => failure,
                    }
                }
                Err(failure) => {
                    if matches!(failure, EtcdFailure::Unknown(_)) {
                        tried.note_unanswered(terms);
                    }
                    failure
                }
            };
            if let Some(outcome) = self.promote_later(tried, failure, give_up, &mut round).await {
                return outcome;
            }
        }
    }

    /// After a promotion that failed: None to try it again.
    async fn promote_later(
        &self,
        tried: &AttemptTry,
        failure: EtcdFailure,
        give_up: Time,
        round: &mut u32,
    ) -> Option<TryOutcome> {
        let again = matches!(failure, EtcdFailure::Unknown(_) | EtcdFailure::NoEffect(_) | EtcdFailure::LeaseGone);
        if again && self.shared.clock.now() < give_up && !self.shared.stopped.is_cancelled() {
            self.shared.backoff(*round).await;
            *round += 1;
            return None;
        }
        self.clean_up_later(tried);
        Some(match failure {
            EtcdFailure::Unknown(cause) => TryOutcome::Done(Err(indeterminate(self.text(), cause))),
            other => TryOutcome::Done(Err(other.into_error(tried.has_unanswered(), self.text()))),
        })
    }

    async fn is_first_by_read(&self, tried: &AttemptTry, arrival: i64) -> Result<bool, EtcdFailure> {
        for want in tried.plan.wants.iter() {
            let mut line = self.shared.read_line(&want.name, None).await?;
            if line.revision < arrival {
                return Ok(false);
            }
            line.contenders.retain(|one| one.arrival < arrival);
            if !line.admits(want.mode) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The patience is over: out of the queues, and what is in the way is told.
    async fn run_out(&self, tried: &AttemptTry) -> TryOutcome {
        let Some(reply) = self.leave_queues(tried).await else {
            let cause = "etcd did not confirm that the queue was left";
            return TryOutcome::Done(Err(indeterminate(self.text(), cause)));
        };
        let before = tried.plan.parts_before_left_queues(reply.succeeded);
        for (at, want) in tried.plan.wants.iter().enumerate() {
            let (kvs, count) = (reply.range(before + at), reply.count(before + at));
            let parsed = QueueLine::parse(&self.shared.layout, &want.name, kvs, count, reply.revision());
            match parsed {
                Ok(line) if line.contenders.is_empty() || line.admits(want.mode) => {}
                Ok(line) => return self.refused(self.held_by(&want.name, &line).await),
                Err(failure) => return self.failed(without_effect(failure)),
            }
        }
        // It became free in the last moment: one more try, which does not wait.
        TryOutcome::Again
    }

    /// Takes the keys out of the queues. None: not confirmed, and done in the background.
    pub(super) async fn leave_queues(&self, tried: &AttemptTry) -> Option<TxnReply> {
        match self.shared.txn_again(tried.plan.leave(&self.shared.layout)).await {
            Ok(reply) => {
                for want in tried.plan.wants.iter() {
                    self.shared.mirrors.remove_key(&want.name, &want.key);
                }
                Some(reply)
            }
            Err(_) => {
                self.clean_up_later(tried);
                None
            }
        }
    }
}

/// What queues say to a claim that came to none of them.
enum QueueVerdict {
    /// They admit it, as they were at this revision.
    Free(i64),
    /// Somebody was over and was ended.
    Changed,
    Refused(Refusal),
    OtherCapacity(String, u32),
}

fn other_capacity(name: &str, used: u32) -> TryOutcome {
    let sentence = format!("{name} is in use with a capacity of {used}: another one has to wait until it is free");
    TryOutcome::Done(Err(Error::Invalid(sentence)))
}

/// A read that failed took no effect.
pub(super) fn without_effect(failure: EtcdFailure) -> EtcdFailure {
    match failure {
        EtcdFailure::Unknown(cause) => EtcdFailure::NoEffect(cause),
        other => other,
    }
}
