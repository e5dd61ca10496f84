//! An acquire whose transaction failed or whose reply was lost, and one that repeats an earlier request.

use std::time::Duration;

use leasehold_core::Time;

use super::attempt::{AttemptTry, EtcdAttempt, HeldTerms, TryOutcome};
use super::attempt_queue::without_effect;
use super::ending::MEMORY;
use super::failure::{EtcdFailure, indeterminate, unavailable};
use super::messages::{StoredKey, TxnCall, WatchCreateCall};
use super::owner::RETRY_FOR;
use super::plan::LeasePlan;
use super::queue_line::minus;
use super::shared::{EtcdShared, draw_call_name};
use super::values::{ContenderState, ContenderValue, EndedValue, RequestValue, StoredEnd};
use crate::clock::Clock as _;
use crate::engine::consensus::lease_id::NamedLease;
use crate::engine::{Grant, Token};
use crate::error::Refusal;

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
            EtcdFailure::Unknown(cause) => match self.resolve(tried).await {
                Some(ResolvedTry::Never) => TryOutcome::Again,
                Some(ResolvedTry::Held(first)) => match self.adopted_terms(tried, &first).await {
                    Ok(terms) => self.granted(tried, &terms, first.mod_revision),
                    Err(failure) => self.failed(failure),
                },
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
        self.shared.spawn_background(async move {
            let mut round = 0;
            loop {
                let cleaned = match resolve_once(&shared, &plan).await {
                    Ok(ResolvedTry::Never) => Ok(()),
                    Ok(ResolvedTry::Held(_)) if keeps => Ok(()),
                    Ok(ResolvedTry::Held(_)) => {
                        let call = draw_call_name();
                        let ending = EndedValue::new(StoredEnd::Released, "", &call, shared.wall_millis());
                        shared.put_ending(&plan, &ending).await.map(|_| shared.freed(&plan))
                    }
                    Ok(ResolvedTry::Waiting(_)) => shared.txn_again(plan.leave(&shared.layout)).await.map(drop),
                    Err(failure) => Err(failure),
                };
                if cleaned.is_ok() {
                    return;
                }
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
        match self.repeated_grant(kv, &request).await {
            Ok(grant) => TryOutcome::Done(Ok(grant)),
            Err(failure) => self.failed(without_effect(failure)),
        }
    }

    /// The lease of an earlier request, with what is left of it.
    async fn repeated_grant(&self, kv: &StoredKey, request: &RequestValue) -> Result<Grant, EtcdFailure> {
        let shared = &self.shared;
        let (secret, letter, first) = request.parse_lease().ok_or_else(|| EtcdFailure::Corrupt {
            law: "a request names its lease",
            at: String::from_utf8_lossy(&kv.key).escape_default().to_string(),
        })?;
        let token = match request.token {
            Some(number) => Token::new(number).ok_or_else(|| EtcdFailure::Never("a token is not zero".into()))?,
            None => shared.token(u64::try_from(kv.mod_revision).unwrap_or(0))?,
        };
        let public = shared.public_id(&secret);
        let lease = NamedLease { token, letter, several: request.several, first: first.to_owned(), secret };
        let mut grant =
            Grant { lease_id: lease.to_lease_id(), token: Some(token), remaining: Duration::ZERO, renewable: None };
        let key = shared.layout.contender_by_letter(first, letter, public);
        let bare = LeasePlan::by_key(&shared.layout, public, first, key);
        let reply = shared.txn_again(TxnCall { success: bare.look_at_lease(), ..TxnCall::default() }).await?;
        let Some(held) = reply.range(0).first().filter(|_| reply.range(1).is_empty()) else { return Ok(grant) };
        let value = ContenderValue::parse(&held.value, &held.key)?;
        let now = shared.clock.now();
        let own = shared.own.get(public).filter(|own| own.written == held.mod_revision);
        // Never more than there is: whoever asks counts on it.
        let early = Duration::from_millis(value.early);
        let deadline = match &own {
            Some(own) => own.deadline,
            None => match shared.bounds(held.lease).await {
                Ok(bounds) => minus(bounds.lower, early),
                // It ended a moment ago.
                Err(EtcdFailure::LeaseGone) => return Ok(grant),
                Err(failure) => return Err(failure),
            },
        };
        grant.remaining = deadline.since(now);
        grant.renewable = match (own, value.cap) {
            (Some(own), _) => own.cap_at.map(|cap| cap.since(now)),
            (None, Some((lease, early))) => {
                let cap = match shared.bounds(lease).await {
                    Err(EtcdFailure::LeaseGone) => now,
                    bounds => minus(bounds?.lower, Duration::from_millis(early)),
                };
                Some(cap.since(now))
            }
            (None, None) => None,
        };
        Ok(grant)
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

/// One try to find out. An ending that is put makes sure that nothing happens later.
async fn resolve_once(shared: &std::sync::Arc<EtcdShared>, plan: &LeasePlan) -> Result<ResolvedTry, EtcdFailure> {
    let session = shared.session().await?;
    let ending = EndedValue::new(StoredEnd::Cancelled, "", &draw_call_name(), shared.wall_millis());
    let bucket = session.take_bucket(shared, MEMORY, 1).await?;
    let txn = plan.resolve((ending.to_bytes(), bucket.lease));
    let reply = shared.end_txn(txn, &[bucket.lease]).await?;
    let Some(first) = reply.range(0).first().filter(|_| !reply.succeeded) else { return Ok(ResolvedTry::Never) };
    if !reply.range(1).is_empty() {
        return Ok(ResolvedTry::Never);
    }
    let value = ContenderValue::parse(&first.value, &first.key)?;
    Ok(match value.state {
        ContenderState::Waiting => ResolvedTry::Waiting(first.create_revision),
        ContenderState::Held => ResolvedTry::Held(first.clone()),
        ContenderState::Closed => ResolvedTry::Never,
    })
}
