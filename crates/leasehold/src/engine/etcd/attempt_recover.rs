//! An acquire whose transaction failed or whose reply was lost, and one that repeats an earlier request.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::Time;

use super::ENGINE;
use super::attempt::{AttemptTry, EtcdAttempt, HeldTerms, TryOutcome};
use super::attempt_queue::without_effect;
use super::ending::MEMORY;
use super::failure::{EtcdFailure, indeterminate, unavailable};
use super::joining::AcquireResult;
use super::messages::{StoredKey, TxnCall, TxnReply, WatchCreateCall};
use super::owner::{LeaseChange, RETRY_FOR};
use super::plan::LeasePlan;
use super::shared::{EtcdShared, draw_call_name};
use super::values::{ContenderState, ContenderValue, EndedValue, RequestValue, StoredEnd};
use crate::clock::Clock as _;
use crate::engine::consensus::lease_id::NamedLease;
use crate::engine::{Grant, Renewal, Token};
use crate::error::{Error, Refusal};

/// How long a request that waits through another process is followed before it is looked at again.
const FOLLOW_FOR: Duration = Duration::from_secs(10);

/// What became of a transaction whose reply was lost.
enum ResolvedTry {
    /// It had no effect, and never will.
    Never,
    Held(StoredKey),
    Waiting(i64),
}

impl EtcdAttempt {
    /// After a transaction that failed: what happened, and how to go on.
    pub(super) async fn recover(
        &self,
        tried: &AttemptTry,
        terms: &HeldTerms,
        failure: EtcdFailure,
        patience: Option<Time>,
    ) -> TryOutcome {
        match failure {
            EtcdFailure::LeaseGone => {
                // A bucket or the session is gone; nothing was put.
                tried.session.buckets.forget(terms.bucket);
                if let Some((_, lease, _)) = &terms.request {
                    tried.session.buckets.forget(*lease);
                }
                if self.shared.read_key(tried.session.marker.clone()).await == Ok(None) {
                    tried.session.lost.cancel();
                }
                TryOutcome::Again
            }
            EtcdFailure::Unknown(cause) => match self.shared.count_as_cleanup(self.resolve(tried)).await {
                Some(ResolvedTry::Never) => TryOutcome::Again,
                Some(ResolvedTry::Held(first)) => {
                    tried.note_unanswered(terms.clone());
                    self.adopt(tried, &first)
                }
                Some(ResolvedTry::Waiting(arrival)) => {
                    let patience = patience.unwrap_or_else(|| self.callers.patience());
                    TryOutcome::Waiting { arrival, patience }
                }
                None => {
                    self.clean_up_later(tried);
                    TryOutcome::Done(Err(indeterminate(self.text(), cause)))
                }
            },
            other => self.failed(other),
        }
    }

    /// Somebody wrote the first key after it came, or there is one though no reply told so: which of those that were sent?
    pub(super) fn adopt(&self, tried: &AttemptTry, first: &StoredKey) -> TryOutcome {
        let value = match ContenderValue::parse(&first.value, &first.key) {
            Ok(value) => value,
            Err(failure) => return self.failed(failure),
        };
        if value.state == ContenderState::Closed {
            let cause = "it was granted, and its time was over before etcd answered";
            return TryOutcome::Done(Err(unavailable(self.text(), cause)));
        }
        let as_granted = |terms: &HeldTerms| {
            value.token.is_none() && (terms.bucket, terms.value.early) == (first.lease, value.early)
        };
        match tried.find_unanswered(as_granted) {
            Some(terms) => {
                let remaining = terms.deadline.since(self.shared.clock.now());
                self.granted(tried, &HeldTerms { remaining, ..terms }, first.mod_revision)
            }
            // Its request was repeated through another process, which wrote it again. So this one asks as a repeat too.
            None => TryOutcome::Again,
        }
    }

    /// Finds out what became of it, for a few seconds.
    async fn resolve(&self, tried: &AttemptTry) -> Option<ResolvedTry> {
        let give_up = self.shared.clock.now().plus(RETRY_FOR);
        let mut round = 0;
        while self.shared.clock.now() < give_up {
            if let Ok(resolved) = resolve_once(&self.shared, &tried.plan).await {
                return Some(resolved);
            }
            self.shared.backoff(round).await;
            round += 1;
        }
        None
    }

    /// Goes on resolving in the background, and removes what was left, until etcd answers. A grant with a request id
    /// stays for its ttl: a retry may come for it.
    pub(super) fn clean_up_later(&self, tried: &AttemptTry) {
        let (shared, plan, keeps) = (self.shared.clone(), tried.plan.clone(), self.request_key.is_some());
        self.shared.spawn_cleanup(async move {
            let mut round = 0;
            while shared.clean_up_once(&plan, keeps).await.is_err() {
                shared.backoff(round).await;
                round += 1;
            }
        });
    }

    /// The request id was used before: its lease, its mismatch, or a claim that waits through another process.
    pub(super) async fn repeat_request(&self, kv: &StoredKey, revision: i64) -> TryOutcome {
        let request = match RequestValue::parse(&kv.value, &kv.key) {
            Ok(request) => request,
            Err(failure) => return self.failed(failure),
        };
        if request.fp != format!("{:016x}", self.callers.fingerprint) {
            return self.refused(Refusal::Mismatch);
        }
        if request.state == ContenderState::Waiting {
            return self.follow_request(kv, revision).await;
        }
        TryOutcome::Done(self.repeated_grant(kv, &request).await)
    }

    /// The lease of an earlier request, with what is left of it. Only the process that wrote it last knows that: another one
    /// writes it again with an end that it knows, and so is asked and answered as its owner is.
    async fn repeated_grant(&self, kv: &StoredKey, request: &RequestValue) -> AcquireResult {
        let shared = &self.shared;
        let failed = |failure: EtcdFailure| without_effect(failure).into_error(false, self.text());
        let (secret, letter, first) = request.parse_lease().ok_or_else(|| Error::Corrupt {
            engine: ENGINE,
            law: "a request names its lease".into(),
            at: String::from_utf8_lossy(&kv.key).escape_default().to_string(),
        })?;
        let token = match request.token {
            Some(number) => Token::new(number).ok_or_else(|| Error::Invalid("a token is not zero".into()))?,
            None => shared.token(u64::try_from(kv.mod_revision).unwrap_or(0)).map_err(failed)?,
        };
        let public = shared.public_id(&secret);
        let lease = NamedLease { token, letter, several: request.several, first: first.to_owned(), secret };
        let mut grant =
            Grant { lease_id: lease.to_lease_id(), token: Some(token), remaining: Duration::ZERO, renewable: None };
        if let Some(own) = shared.own.get(public) {
            if own.value.state == ContenderState::Closed {
                return Ok(grant);
            }
            let key = shared.layout.contender_by_letter(first, letter, public);
            let written = shared.read_key(key).await.map_err(failed)?.map(|kv| kv.mod_revision);
            if written == Some(own.written) {
                let now = shared.clock.now();
                grant.remaining = own.deadline.since(now);
                grant.renewable = own.cap_at.map(|cap| cap.since(now));
                return Ok(grant);
            }
            shared.own.remove(public, own.written);
        }
        match shared.change_lease(&grant.lease_id, LeaseChange::Keep, &self.text()).await {
            Ok(Renewal { remaining, renewable }) => Ok(Grant { remaining, renewable, ..grant }),
            // It is over.
            Err(Error::Refused(_)) => Ok(grant),
            Err(other) => Err(other),
        }
    }

    /// The same request waits through another process: this one waits until that one is decided or gone.
    async fn follow_request(&self, kv: &StoredKey, revision: i64) -> TryOutcome {
        let shared = &self.shared;
        let patience = self.callers.patience();
        if patience <= shared.clock.now() {
            let cause = "the same request waits through another process";
            return TryOutcome::Done(Err(unavailable(self.text(), cause)));
        }
        let create =
            WatchCreateCall { key: kv.key.clone(), start_revision: revision + 1, ..WatchCreateCall::default() };
        let Ok(mut events) = shared.members.open_watch(create).await else { return TryOutcome::Again };
        loop {
            let until = patience.min(shared.clock.now().plus(FOLLOW_FOR));
            tokio::select! {
                reply = events.message() => match reply {
                    Ok(Some(reply)) if reply.events.is_empty() && !reply.canceled => {}
                    _ => return TryOutcome::Again,
                },
                () = self.callers.wait_until_gone() => return TryOutcome::Again,
                () = shared.closed.cancelled() => return TryOutcome::Again,
                () = shared.clock.sleep_until(until) => {
                    let still = matches!(shared.read_key(kv.key.clone()).await, Ok(Some(found)) if found.value == kv.value);
                    if !still || shared.clock.now() >= patience {
                        return TryOutcome::Again;
                    }
                }
            }
        }
    }
}

impl EtcdShared {
    async fn clean_up_once(self: &Arc<Self>, plan: &LeasePlan, keeps: bool) -> Result<(), EtcdFailure> {
        let resolved = match resolve_once(self, plan).await {
            // Nothing can be put. What is there can be deleted all the same: it is in the way of others.
            Err(EtcdFailure::NoSpace) => {
                let look = TxnCall { success: plan.look_at_lease(), ..TxnCall::default() };
                match read_resolved(&self.txn_again(look).await?)? {
                    // It may come yet, when there is space.
                    ResolvedTry::Never => return Err(EtcdFailure::NoSpace),
                    there => there,
                }
            }
            resolved => resolved?,
        };
        match resolved {
            ResolvedTry::Never => {}
            ResolvedTry::Held(_) if keeps => {}
            ResolvedTry::Held(_) => {
                let ending = EndedValue::new(StoredEnd::Released, "", &draw_call_name(), self.wall_millis());
                self.put_ending(plan, &ending).await?;
                self.freed(plan);
            }
            ResolvedTry::Waiting(_) => drop(self.txn_again(plan.leave(&self.layout)).await?),
        }
        Ok(())
    }
}

/// One try to find out. An ending that is put makes sure that nothing happens later.
async fn resolve_once(shared: &Arc<EtcdShared>, plan: &LeasePlan) -> Result<ResolvedTry, EtcdFailure> {
    let session = shared.session().await?;
    let ending = EndedValue::new(StoredEnd::Cancelled, "", &draw_call_name(), shared.wall_millis());
    let bucket = session.take_bucket(shared, MEMORY, 1).await?;
    let txn = plan.resolve((ending.to_bytes(), bucket.lease));
    let reply = shared.end_txn(txn, &[bucket.lease]).await?;
    if reply.succeeded { Ok(ResolvedTry::Never) } else { read_resolved(&reply) }
}

/// What first key and ending say, at the beginning of a reply.
fn read_resolved(reply: &TxnReply) -> Result<ResolvedTry, EtcdFailure> {
    let Some(first) = reply.range(0).first().filter(|_| reply.range(1).is_empty()) else {
        return Ok(ResolvedTry::Never);
    };
    let value = ContenderValue::parse(&first.value, &first.key)?;
    Ok(match value.state {
        ContenderState::Waiting => ResolvedTry::Waiting(first.create_revision),
        ContenderState::Held => ResolvedTry::Held(first.clone()),
        ContenderState::Closed => ResolvedTry::Never,
    })
}
