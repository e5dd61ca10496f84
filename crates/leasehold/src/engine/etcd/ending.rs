//! How leases end other than by their owners' order: their time is over, or an operator revokes them.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::Time;

use super::failure::EtcdFailure;
use super::messages::{TxnCall, TxnCondition, TxnPart, TxnReply};
use super::own_leases::OwnLease;
use super::plan::{LeasePlan, closed_value, stored_wants};
use super::queue_line::{QueueContender, grant_token};
use super::session::with_margin;
use super::shared::{EtcdShared, draw_call_name};
use super::values::{ContenderState, ContenderValue, EndedValue, StoredEnd, parse_first};
use crate::clock::Clock as _;
use crate::engine::consensus::ended::HowEnded;
use crate::error::Refusal;

/// How long an ending is remembered in etcd.
pub(super) const MEMORY: Duration = Duration::from_secs(60);

/// What is known of a lease that its owner asks about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LeaseFate {
    /// It has not ended.
    Live,
    Ended(EndedValue),
    /// Neither the lease nor its ending is there.
    Unknown,
}

impl EtcdShared {
    /// Ends a lease, or reopens what is closed, because its time is over. `deadline`: never before the real one.
    ///
    /// Whether it was so: otherwise it had been written again or had ended before.
    pub async fn lapse_lease(
        self: &Arc<Self>,
        plan: &Arc<LeasePlan>,
        value: &ContenderValue,
        written: i64,
        deadline: Time,
    ) -> Result<bool, EtcdFailure> {
        if value.state == ContenderState::Closed {
            let reply = self.txn_again(plan.reopen(written)).await?;
            self.forget_lease(plan, written);
            return Ok(reply.succeeded);
        }
        let (reply, closed) = match self.put_lapse(plan, value, written, deadline).await {
            // Nothing can be put, so nothing can be kept closed either.
            Err(EtcdFailure::NoSpace) if value.delay == 0 => (self.txn(plan.lapse_unremembered(written)).await?, None),
            put => put?,
        };
        self.forget_lease(plan, written);
        if !reply.succeeded {
            // etcd itself may have ended it, with its bucket: then nothing else tells its owner.
            if self.read_fate(plan, &reply)? == LeaseFate::Unknown {
                self.ended.insert(plan.public, HowEnded::Stale);
                self.delete_rest(plan).await?;
            }
            return Ok(false);
        }
        self.ended.insert(plan.public, HowEnded::Stale);
        if let Some(closed) = closed {
            self.own.put(OwnLease { written: reply.revision(), ..closed });
        }
        Ok(true)
    }

    /// Sends the lapse. With it what keeps the resources closed, if anything does.
    async fn put_lapse(
        self: &Arc<Self>,
        plan: &Arc<LeasePlan>,
        value: &ContenderValue,
        written: i64,
        deadline: Time,
    ) -> Result<(TxnReply, Option<OwnLease>), EtcdFailure> {
        let delay = Duration::from_millis(value.delay);
        let session = self.session().await?;
        let ending = EndedValue::new(StoredEnd::Lapsed, "", &draw_call_name(), self.wall_millis());
        let memory = session.take_bucket(self, MEMORY + delay, 1).await?;
        let token = grant_token(self, value, written)?.get();
        let until = deadline.plus(delay);
        let left = until.since(self.clock.now());
        let ending = || (ending.to_bytes(), memory.lease);
        if !delay.is_zero() && !left.is_zero() {
            let bucket = session.take_bucket(self, with_margin(left), plan.wants.len()).await?;
            let early = u64::try_from(bucket.end.since(until).as_millis()).unwrap_or(0);
            let closed = closed_value(value, token, early);
            let txn = plan.lapse(written, ending(), Some((&closed, bucket.lease)));
            let reply = self.end_txn(txn, &[memory.lease, bucket.lease]).await?;
            let first_is_as_seen = reply.range(0).first().is_some_and(|kv| kv.mod_revision == written);
            // Otherwise another of its keys is gone: it is not closed, but ended.
            if reply.succeeded || !first_is_as_seen || !reply.range(1).is_empty() {
                let closed = OwnLease {
                    plan: plan.clone(),
                    value: closed,
                    deadline: until,
                    life: left,
                    written,
                    bucket: bucket.lease,
                    cap_at: None,
                    request: None,
                };
                return Ok((reply, Some(closed)));
            }
        }
        Ok((self.end_txn(plan.lapse(written, ending(), None), &[memory.lease]).await?, None))
    }

    /// A transaction that puts into buckets. Those that are gone are forgotten: the next try opens others.
    pub async fn end_txn(&self, txn: TxnCall, buckets: &[i64]) -> Result<TxnReply, EtcdFailure> {
        let reply = self.txn(txn).await;
        if reply == Err(EtcdFailure::LeaseGone)
            && let Some(session) = self.sessions.current()
        {
            buckets.iter().for_each(|bucket| session.buckets.forget(*bucket));
        }
        reply
    }

    /// Forgets what was known of a lease as it was written at this revision.
    pub fn forget_lease(&self, plan: &LeasePlan, written: i64) {
        if let Some(old) = self.own.remove(plan.public, written)
            && let Some(session) = self.sessions.current()
        {
            session.buckets.give_back(old.bucket, plan.wants.len());
        }
        plan.names().for_each(|name| self.note_free(name));
    }

    /// The keys of the lease that a contender belongs to, and the value of its first key.
    pub async fn plan_of(
        &self,
        name: &str,
        contender: &QueueContender,
    ) -> Result<Option<(Arc<LeasePlan>, ContenderValue)>, EtcdFailure> {
        let Some((public, value)) = contender.value() else { return Ok(None) };
        let (first, value) = match value.first.as_deref().and_then(parse_first) {
            None => (name.to_owned(), value.clone()),
            Some((letter, first)) => {
                let key = self.layout.contender_by_letter(first, letter, public);
                let Some(kv) = self.read_key(key).await? else { return Ok(None) };
                (first.to_owned(), ContenderValue::parse(&kv.value, &kv.key)?)
            }
        };
        let request = value.request.as_deref().map(|digits| self.layout.request_by_digits(digits));
        let plan = LeasePlan::new(&self.layout, public, stored_wants(&first, &value), request);
        Ok(Some((Arc::new(plan), value)))
    }

    /// Ends a contender of ours if its time is certainly over. Whether it was.
    pub async fn lapse_if_over(self: &Arc<Self>, name: &str, contender: &QueueContender) -> Result<bool, EtcdFailure> {
        let over_at = match self.over_at(contender).await {
            Ok(Some(over_at)) => over_at,
            Ok(None) => return Ok(false),
            // Its key went with it, or that is not so.
            Err(EtcdFailure::LeaseGone) => return Ok(self.read_key(contender.key.clone()).await?.is_none()),
            Err(failure) => return Err(failure),
        };
        if self.clock.now() < over_at {
            return Ok(false);
        }
        let Some((plan, value)) = self.plan_of(name, contender).await? else {
            self.delete_orphan(name, contender).await?;
            return Ok(true);
        };
        self.lapse_lease(&plan, &value, contender.written, over_at).await?;
        Ok(true)
    }

    /// Deletes a key of ours whose first key is gone: it is what is left of a lease that is over. Whether it was there.
    pub async fn delete_orphan(&self, name: &str, contender: &QueueContender) -> Result<bool, EtcdFailure> {
        let compare = vec![TxnCondition::written_at(contender.key.clone(), contender.written)];
        let success = vec![TxnPart::delete(contender.key.clone())];
        let reply = self.txn_again(TxnCall { compare, success, failure: Vec::new() }).await?;
        self.mirrors.remove_key(name, &contender.key);
        Ok(reply.succeeded)
    }

    /// Reads first key and ending from a reply that begins with them.
    pub fn read_fate(&self, plan: &LeasePlan, reply: &TxnReply) -> Result<LeaseFate, EtcdFailure> {
        if let Some(kv) = reply.range(1).first() {
            let ending = EndedValue::parse(&kv.value, &kv.key)?;
            match ending.end {
                StoredEnd::Released => self.ended.insert(plan.public, HowEnded::Released),
                StoredEnd::Lapsed | StoredEnd::Revoked => self.ended.insert(plan.public, HowEnded::Stale),
                StoredEnd::Cancelled => {}
            }
            return Ok(LeaseFate::Ended(ending));
        }
        Ok(if reply.range(0).is_empty() { LeaseFate::Unknown } else { LeaseFate::Live })
    }
}

/// What an owner is told of a lease that ended.
pub(super) fn refusal_after(ending: &EndedValue) -> Refusal {
    match ending.end {
        StoredEnd::Released | StoredEnd::Lapsed | StoredEnd::Revoked => Refusal::Stale,
        StoredEnd::Cancelled => Refusal::NotHeld,
    }
}
