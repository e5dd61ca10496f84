//! What the owner of a lease does with it: renew, relabel, release. Through any process.
//!
//! # Laws
//!
//! 1. A renewal compares the revision that it saw. One that arrives late, after a newer one, has no effect: it would put
//!    the key back into an earlier bucket.
//! 2. What is promised to an owner is counted from an end that this process wrote, never from what etcd says of another
//!    process's bucket: a new leader moves that. A longest hold is known elsewhere only under the leader that it began under.
//! 3. An ending carries the name of the call that made it. A release that is sent again knows its own.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::Time;

use super::ending::{LeaseFate, MEMORY, refusal_after};
use super::events::DELETED;
use super::failure::EtcdFailure;
use super::messages::{TxnCall, TxnReply};
use super::own_leases::OwnLease;
use super::plan::{LeasePlan, PutLease, stored_wants};
use super::queue_line::{grant_token, minus};
use super::session::{EtcdSession, with_margin};
use super::shared::{EtcdShared, draw_call_name};
use super::values::{ContenderState, ContenderValue, EndedValue, RequestValue, StoredEnd};
use crate::clock::Clock as _;
use crate::engine::consensus::ended::HowEnded;
use crate::engine::consensus::lease_id::{NamedLease, PublicId};
use crate::engine::{LeaseId, Renewal};
use crate::error::{Error, Refusal};

/// How long a call whose outcome is unknown is sent again.
pub(super) const RETRY_FOR: Duration = Duration::from_secs(4);
const CAP_UNKNOWN: &str = "etcd has another leader than when this lease was granted, so only the process that wrote it last knows its longest hold";

/// What a renewal changes.
#[derive(Clone, Copy)]
pub(super) enum LeaseChange<'a> {
    /// The end, by this ttl or the last one.
    Renew(Option<Duration>),
    /// The label; the end stays.
    Relabel(&'a str),
    /// Nothing. The end is one that this process knows from then on.
    Keep,
}

/// A lease as a call finds it.
struct FoundLease {
    own: OwnLease,
    /// This process wrote it last. Otherwise its deadline is an upper bound, and its cap a lower one.
    is_own: bool,
    /// The longest hold, if there is one, ends at `own.cap_at` or later.
    cap_is_known: bool,
}

impl FoundLease {
    /// How long it may be kept as it is: not shorter than its deadline, not beyond its cap. None: that cannot be told here.
    fn kept_until(&self, now: Time) -> Option<Time> {
        if self.is_own {
            return Some(self.own.deadline);
        }
        // It was written before now, for a ttl at most.
        let until = self.own.deadline.min(now.plus(Duration::from_millis(self.own.value.ttl)));
        (self.cap_is_known && self.own.cap_at.is_none_or(|cap| until <= cap)).then_some(until)
    }
}

/// The tries of one call.
pub(super) struct CallTries {
    round: u32,
    maybe: bool,
    give_up: Option<Time>,
}

impl CallTries {
    pub const fn new() -> Self {
        Self { round: 0, maybe: false, give_up: None }
    }

    /// Sleeps before the next try, or says that there is none.
    pub async fn next(&mut self, shared: &EtcdShared, failure: EtcdFailure, attempt: &str) -> Result<(), Error> {
        let again = match &failure {
            EtcdFailure::Unknown(_) => {
                self.maybe = true;
                true
            }
            EtcdFailure::LeaseGone => true,
            EtcdFailure::NoEffect(_) => self.maybe,
            _ => false,
        };
        let now = shared.clock.now();
        let give_up = *self.give_up.get_or_insert(now.plus(RETRY_FOR));
        if !again || now >= give_up || shared.stopped.is_cancelled() {
            return Err(failure.into_error(self.maybe, attempt.to_owned()));
        }
        shared.backoff(self.round).await;
        self.round += 1;
        Ok(())
    }
}

impl EtcdShared {
    /// Changes a live lease.
    pub async fn change_lease(
        self: &Arc<Self>,
        id: &LeaseId,
        change: LeaseChange<'_>,
        attempt: &str,
    ) -> Result<Renewal, Error> {
        let named = NamedLease::parse(id).ok_or(Refusal::NotHeld)?;
        let public = self.public_id(&named.secret);
        let mut tries = CallTries::new();
        loop {
            match self.try_change(&named, public, change).await {
                Ok(Ok(Some(renewal))) => return Ok(renewal),
                Ok(Ok(None)) => {}
                Ok(Err(refusal)) => return Err(refusal.into()),
                Err(failure) => {
                    // What was put, if it was, has another revision than is known here.
                    if let Some(own) = self.own.get(public)
                        && matches!(failure, EtcdFailure::Unknown(_))
                    {
                        self.own.remove(public, own.written);
                    }
                    tries.next(self, failure, attempt).await?;
                }
            }
        }
    }

    /// One try. `None`: it is to be tried again at once.
    async fn try_change(
        self: &Arc<Self>,
        named: &NamedLease,
        public: PublicId,
        change: LeaseChange<'_>,
    ) -> Result<Result<Option<Renewal>, Refusal>, EtcdFailure> {
        let session = self.session().await?;
        let found = match self.find_lease(named, public).await? {
            Ok(found) => found,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let own = &found.own;
        let over_at = self.own.over_at(public, own.written).unwrap_or(own.deadline);
        let now = self.clock.now();
        if own.value.state == ContenderState::Closed {
            return Ok(Err(Refusal::Stale));
        }
        if now >= over_at {
            let ended = self.lapse_lease(&own.plan, &own.value, own.written, over_at).await?;
            return Ok(if ended { Err(Refusal::Stale) } else { Ok(None) });
        }
        if own.cap_at.is_some_and(|cap| now >= cap) {
            // Its deadline is not after its cap. It is ended a moment later.
            return Ok(Err(Refusal::Stale));
        }
        let until = found.kept_until(now);
        match change {
            LeaseChange::Renew(_) | LeaseChange::Relabel(_) if !found.cap_is_known => {
                return Err(EtcdFailure::NoEffect(CAP_UNKNOWN.into()));
            }
            LeaseChange::Keep if until.is_none() => {
                let renewable = own.cap_at.map_or(Duration::ZERO, |cap| cap.since(now));
                let remaining = self.sure_remaining(&own.value).await?;
                return Ok(Ok(Some(Renewal { remaining, renewable: Some(renewable) })));
            }
            _ => {}
        }
        let changed = self.changed_lease(&session, &found, change, until).await?;
        let put = PutLease {
            value: &changed.value,
            lease: changed.bucket,
            request: changed.request.as_ref().zip(changed.request_bucket).map(|((value, _), lease)| (value, lease)),
        };
        let reply = self.end_txn(own.plan.rewrite(&session.marker, own.written, &put), &changed.buckets()).await?;
        if reply.succeeded {
            let renewal = Renewal { remaining: changed.remaining, renewable: changed.renewable };
            self.renewed(&session, found.own, changed, reply.revision());
            return Ok(Ok(Some(renewal)));
        }
        if reply.range(2).is_empty() {
            session.lost.cancel();
            return Ok(Ok(None));
        }
        self.own.remove(public, own.written);
        let first_is_as_seen = reply.range(0).first().is_some_and(|kv| kv.mod_revision == own.written);
        match self.read_fate(&own.plan, &reply)? {
            LeaseFate::Live if first_is_as_seen => {
                self.end_broken_lease(&own.plan).await?;
                Ok(Err(Refusal::Stale))
            }
            LeaseFate::Live => Ok(Ok(None)),
            fate => {
                if fate == LeaseFate::Unknown {
                    self.delete_rest(&own.plan).await?;
                }
                Ok(Err(self.refusal_of(public, &fate)))
            }
        }
    }

    /// Ends a lease of which somebody deleted a key, not the first: what is left of it must not keep others out.
    async fn end_broken_lease(self: &Arc<Self>, plan: &Arc<LeasePlan>) -> Result<(), EtcdFailure> {
        let ending = EndedValue::new(StoredEnd::Revoked, DELETED, &draw_call_name(), self.wall_millis());
        let reply = self.put_ending(plan, &ending).await?;
        self.ended.insert(plan.public, HowEnded::Stale);
        if reply.succeeded {
            self.freed(plan);
        } else if self.read_fate(plan, &reply)? == LeaseFate::Unknown {
            self.delete_rest(plan).await?;
        }
        Ok(())
    }

    /// Deletes what is left of a lease whose first key is gone without an ending.
    pub async fn delete_rest(&self, plan: &LeasePlan) -> Result<(), EtcdFailure> {
        if plan.wants.len() > 1 {
            self.txn_again(plan.delete_rest()).await?;
        }
        Ok(())
    }

    async fn find_lease(
        self: &Arc<Self>,
        named: &NamedLease,
        public: PublicId,
    ) -> Result<Result<FoundLease, Refusal>, EtcdFailure> {
        if let Some(own) = self.own.get(public) {
            return Ok(Ok(FoundLease { own, is_own: true, cap_is_known: true }));
        }
        let mut own = match self.look_up(named, public).await? {
            Ok(own) => own,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if let Some(cap) = own.value.cap {
            own.cap_at = self.earliest_cap(cap).await?;
        }
        let cap_is_known = own.value.cap.is_none() || own.cap_at.is_some();
        Ok(Ok(FoundLease { own, is_own: false, cap_is_known }))
    }

    /// What is certainly left of a lease of another process that is too close to its cap to be written again.
    async fn sure_remaining(&self, value: &ContenderValue) -> Result<Duration, EtcdFailure> {
        let Some(sure) = value.sure else { return Ok(Duration::ZERO) };
        let until = self.earliest_cap(sure).await?;
        Ok(until.map_or(Duration::ZERO, |until| until.since(self.clock.now())))
    }

    /// A lease that this process did not grant or renew last. Its deadline is an upper bound; its cap is not looked for.
    async fn look_up(
        self: &Arc<Self>,
        named: &NamedLease,
        public: PublicId,
    ) -> Result<Result<OwnLease, Refusal>, EtcdFailure> {
        let key = self.layout.contender_by_letter(&named.first, named.letter, public);
        let bare = LeasePlan::by_key(&self.layout, public, &named.first, key);
        let look = TxnCall { success: bare.look_at_lease(), ..TxnCall::default() };
        let reply = self.txn_again(look).await?;
        let fate = self.read_fate(&bare, &reply)?;
        if fate != LeaseFate::Live {
            return Ok(Err(self.refusal_of(public, &fate)));
        }
        let kv = &reply.range(0)[0];
        let value = ContenderValue::parse(&kv.value, &kv.key)?;
        let token = grant_token(self, &value, kv.mod_revision)?;
        if value.state == ContenderState::Waiting || token != named.token {
            return Ok(Err(Refusal::NotHeld));
        }
        let request_key = value.request.as_deref().map(|digits| self.layout.request_by_digits(digits));
        let request = match &request_key {
            None => None,
            Some(key) => match self.read_key(key.clone()).await? {
                None => None,
                // Its bucket is not known: it is put anew.
                Some(kv) => Some((RequestValue::parse(&kv.value, &kv.key)?, Time::ZERO)),
            },
        };
        let upper = self.bounds(kv.lease).await?.upper;
        let deadline = minus(upper, Duration::from_millis(value.early));
        let plan = LeasePlan::new(&self.layout, public, stored_wants(&named.first, &value), request_key);
        let value = ContenderValue { token: Some(token.get()), ..value };
        let (plan, written, bucket) = (Arc::new(plan), kv.mod_revision, kv.lease);
        let life = deadline.since(self.clock.now());
        Ok(Ok(OwnLease { plan, value, deadline, life, written, bucket, cap_at: None, request }))
    }

    /// The lease as it is after a change. `until`: its end, where that stays.
    async fn changed_lease(
        self: &Arc<Self>,
        session: &Arc<EtcdSession>,
        found: &FoundLease,
        change: LeaseChange<'_>,
        until: Option<Time>,
    ) -> Result<ChangedLease, EtcdFailure> {
        let own = &found.own;
        let mut value = own.value.clone();
        if let LeaseChange::Relabel(holder) = change {
            value.holder = holder.to_owned();
        }
        let renewed = match change {
            LeaseChange::Renew(ttl) => Some(ttl.unwrap_or(Duration::from_millis(value.ttl))),
            LeaseChange::Relabel(_) | LeaseChange::Keep => None,
        };
        let now = self.clock.now();
        let renewable = |now| own.cap_at.map(|cap| cap.since(now));
        if renewed.is_none() && (found.is_own || until.is_none()) {
            return Ok(ChangedLease {
                value,
                bucket: own.bucket,
                deadline: own.deadline,
                is_exact: found.is_own,
                remaining: own.deadline.since(now),
                renewable: renewable(now),
                request: own.request.clone(),
                request_bucket: None,
            });
        }
        let left = |now: Time| match (renewed, until) {
            (Some(ttl), _) => own.cap_at.map_or(ttl, |cap| ttl.min(cap.since(now))),
            (None, until) => until.map_or(Duration::ZERO, |until| until.since(now)),
        };
        let delay = Duration::from_millis(value.delay);
        let taken = session.take_bucket(self, with_margin(left(now) + delay), own.plan.wants.len()).await?;
        // Counted from here on: opening a bucket may have taken a while.
        let now = self.clock.now();
        let remaining = left(now);
        let deadline = now.plus(remaining);
        value.early = u64::try_from(taken.end.since(deadline).as_millis()).unwrap_or(0);
        value.sure = value.cap.map(|_| taken.as_clock(deadline));
        if let Some(ttl) = renewed {
            (value.ttl, value.renewed) = (crate::engine::from_book::millis(ttl), self.wall_millis());
        }
        let mut changed = ChangedLease {
            value,
            bucket: taken.lease,
            deadline,
            is_exact: true,
            remaining,
            renewable: renewable(now),
            request: own.request.clone(),
            request_bucket: None,
        };
        if let Some((request, end)) = &mut changed.request
            && *end < deadline.plus(MEMORY)
        {
            let bucket = session.take_bucket(self, with_margin(remaining + MEMORY), 1).await?;
            (request.state, request.token) = (ContenderState::Held, changed.value.token);
            *end = bucket.end;
            changed.request_bucket = Some(bucket.lease);
        }
        Ok(changed)
    }

    fn renewed(&self, session: &EtcdSession, own: OwnLease, changed: ChangedLease, revision: i64) {
        if own.bucket != changed.bucket {
            session.buckets.give_back(own.bucket, own.plan.wants.len());
        }
        if !changed.is_exact {
            // What is not known exactly is looked up again.
            self.own.remove(own.plan.public, own.written);
            return;
        }
        self.own.put(OwnLease {
            plan: own.plan,
            value: changed.value,
            deadline: changed.deadline,
            life: changed.remaining,
            written: revision,
            bucket: changed.bucket,
            cap_at: own.cap_at,
            request: changed.request,
        });
    }

    /// What an owner is told of a lease that is not live.
    fn refusal_of(&self, public: PublicId, fate: &LeaseFate) -> Refusal {
        match fate {
            LeaseFate::Ended(ending) => refusal_after(ending),
            LeaseFate::Live | LeaseFate::Unknown => match self.ended.get(&public) {
                Some(HowEnded::Released | HowEnded::Stale) => Refusal::Stale,
                None => Refusal::NotHeld,
            },
        }
    }

    /// Ends a lease by its owner's order. `false`: it had been released before.
    pub async fn release_lease(self: &Arc<Self>, id: &LeaseId, attempt: &str) -> Result<bool, Error> {
        let named = NamedLease::parse(id).ok_or(Refusal::NotHeld)?;
        let public = self.public_id(&named.secret);
        let call = draw_call_name();
        let mut tries = CallTries::new();
        loop {
            match self.try_release(&named, public, &call).await {
                Ok(Ok(first)) => return Ok(first),
                // Where the ending could not be put, a second try finds nothing.
                Ok(Err(Refusal::NotHeld)) if tries.maybe => {
                    let gone = EtcdFailure::Unknown("the lease is gone, and nothing tells who ended it".into());
                    return Err(gone.into_error(true, attempt.to_owned()));
                }
                Ok(Err(refusal)) => return Err(refusal.into()),
                Err(failure) => tries.next(self, failure, attempt).await?,
            }
        }
    }

    async fn try_release(
        self: &Arc<Self>,
        named: &NamedLease,
        public: PublicId,
        call: &str,
    ) -> Result<Result<bool, Refusal>, EtcdFailure> {
        let plan = match self.own.get(public) {
            Some(own) => {
                let over_at = self.own.over_at(public, own.written);
                if over_at.is_some_and(|over_at| self.clock.now() >= over_at) {
                    self.lapse_lease(&own.plan, &own.value, own.written, over_at.unwrap_or(own.deadline)).await?;
                }
                own.plan
            }
            None if named.several => match self.look_up(named, public).await? {
                Ok(own) => own.plan,
                Err(Refusal::NotHeld) => return Ok(Err(Refusal::NotHeld)),
                Err(_) => self.single_plan(named, public),
            },
            None => self.single_plan(named, public),
        };
        let ending = EndedValue::new(StoredEnd::Released, "", call, self.wall_millis());
        let reply = self.put_ending(&plan, &ending).await?;
        if reply.succeeded {
            self.ended.insert(public, HowEnded::Released);
            self.freed(&plan);
            return Ok(Ok(true));
        }
        let fate = self.read_fate(&plan, &reply)?;
        if fate == LeaseFate::Unknown {
            self.delete_rest(&plan).await?;
        }
        match fate {
            LeaseFate::Ended(ending) if ending.by == call => Ok(Ok(true)),
            LeaseFate::Ended(ending) if ending.end == StoredEnd::Released => Ok(Ok(false)),
            LeaseFate::Unknown if self.ended.get(&public) == Some(HowEnded::Released) => Ok(Ok(false)),
            fate => Ok(Err(self.refusal_of(public, &fate))),
        }
    }

    fn single_plan(&self, named: &NamedLease, public: PublicId) -> Arc<LeasePlan> {
        let key = self.layout.contender_by_letter(&named.first, named.letter, public);
        Arc::new(LeasePlan::by_key(&self.layout, public, &named.first, key))
    }

    /// Ends a lease by an order. etcd without space takes no puts, but deletes: then the ending is not remembered.
    pub async fn put_ending(self: &Arc<Self>, plan: &LeasePlan, ending: &EndedValue) -> Result<TxnReply, EtcdFailure> {
        let bucket = match self.session().await {
            Ok(session) => session.take_bucket(self, MEMORY, 1).await,
            Err(failure) => Err(failure),
        };
        let reply = match bucket {
            Ok(bucket) => self.end_txn(plan.end(Some((ending.to_bytes(), bucket.lease))), &[bucket.lease]).await,
            Err(failure) => Err(failure),
        };
        match reply {
            Err(EtcdFailure::NoSpace) => self.txn(plan.end(None)).await,
            other => other,
        }
    }

    /// The resources of a lease that was ended by this process are free.
    pub fn freed(self: &Arc<Self>, plan: &LeasePlan) {
        if let Some(own) = self.own.get(plan.public) {
            self.forget_lease(plan, own.written);
        }
        for want in plan.wants.iter() {
            self.note_free(&want.name);
            self.mirrors.remove_key(&want.name, &want.key);
        }
    }
}

/// A lease as it is to be put.
struct ChangedLease {
    value: ContenderValue,
    bucket: i64,
    deadline: Time,
    /// Otherwise the deadline is an upper bound.
    is_exact: bool,
    remaining: Duration,
    renewable: Option<Duration>,
    request: Option<(RequestValue, Time)>,
    /// The bucket for the request id, when that is put too.
    request_bucket: Option<i64>,
}

impl ChangedLease {
    /// The etcd leases that it puts keys into.
    fn buckets(&self) -> Vec<i64> {
        std::iter::once(self.bucket).chain(self.request_bucket).collect()
    }
}
