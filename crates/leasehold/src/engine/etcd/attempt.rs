//! One acquire, from its first transaction to its answer, even if its caller goes away.
//!
//! ```text
//! New ──acquire──▶ Granted
//!  │├────────────▶ Waiting(arrival) ── every queue admits it ──promote──▶ Granted
//!  ││                 ├─ patience over, or the caller is gone ──leave──▶ Refused
//!  ││                 └─ own key gone ──▶ Unavailable
//!  │├────────────▶ Refused: nothing was put
//!  │└─ reply lost ─resolve─▶ it never was, and never will be | Granted | Waiting(arrival)
//! ```
//!
//! # Laws
//!
//! 1. Every try has a secret of its own. What is unknown is resolved before the next try, or the answer is Indeterminate.
//! 2. A grant that nobody will see is ended. With a request id it stays for its ttl: a retry may come for it.
//! 3. Only transactions grant: never an event, a keepalive or a plain read.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_core::{Secret, Time};

use super::failure::{CLOSED, EtcdFailure, unavailable};
use super::joining::{AcquireResult, AttemptCallers};
use super::keys::KeyLayout;
use super::messages::{StoredKey, TxnCall, TxnReply};
use super::own_leases::OwnLease;
use super::plan::{LeasePlan, PutLease};
use super::session::{EtcdSession, with_margin};
use super::shared::EtcdShared;
use super::values::{ContenderState, ContenderValue, RequestValue, layout_version};
use crate::clock::Clock as _;
use crate::engine::consensus::lease_id::{ModeLetter, NamedLease, draw_secret};
use crate::engine::from_book::millis;
use crate::engine::{Claim, Grant, Mode, Token};
use crate::error::{Error, Refusal};

/// Tries of one acquire that found that something had changed meanwhile.
const MAX_ROUNDS: u32 = 40;
/// After so many tries that others came between, a claim that does not wait takes a place in the queue for a moment.
const ROUNDS_BEFORE_QUEUE: u32 = 3;
/// That moment.
const BRIEF_WAIT: Duration = Duration::from_millis(400);

const BEHIND: &str = "etcd has not answered many acquires before this one: what became of them is found out first";

/// One acquire. See the module.
pub(super) struct EtcdAttempt {
    pub(super) shared: Arc<EtcdShared>,
    pub(super) claim: Claim,
    pub(super) callers: Arc<AttemptCallers>,
    pub(super) request_key: Option<Vec<u8>>,
}

/// The keys of one try, and its secret.
pub(super) struct AttemptTry {
    pub plan: Arc<LeasePlan>,
    pub secret: Secret,
    pub session: Arc<EtcdSession>,
    pub request: Option<RequestValue>,
    /// What may have been granted by transactions whose replies were lost.
    unanswered: Mutex<Vec<HeldTerms>>,
}

/// A lease as a transaction grants it.
#[derive(Clone)]
pub(super) struct HeldTerms {
    pub value: ContenderValue,
    pub bucket: i64,
    pub deadline: Time,
    pub remaining: Duration,
    pub cap_at: Option<Time>,
    pub request: Option<(RequestValue, i64, Time)>,
}

/// What a try came to.
pub(super) enum TryOutcome {
    Done(AcquireResult),
    /// It has a place in its queues.
    Waiting {
        arrival: i64,
        patience: Time,
    },
    /// Something changed meanwhile: again.
    Again,
}

impl AttemptTry {
    pub fn note_unanswered(&self, terms: HeldTerms) {
        self.unanswered.lock().unwrap_or_else(PoisonError::into_inner).push(terms);
    }

    /// Whether anything may have been granted without a reply.
    pub fn has_unanswered(&self) -> bool {
        !self.unanswered.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    pub fn find_unanswered(&self, is_this: impl Fn(&HeldTerms) -> bool) -> Option<HeldTerms> {
        let unanswered = self.unanswered.lock().unwrap_or_else(PoisonError::into_inner);
        unanswered.iter().find(|terms| is_this(terms)).cloned()
    }
}

impl HeldTerms {
    /// The etcd leases that it puts keys into.
    pub fn buckets(&self) -> Vec<i64> {
        std::iter::once(self.bucket).chain(self.request.as_ref().map(|(_, lease, _)| *lease)).collect()
    }

    pub fn put(&self) -> PutLease<'_> {
        let request = self.request.as_ref().map(|(value, lease, _)| (value, *lease));
        PutLease { value: &self.value, lease: self.bucket, request }
    }
}

impl EtcdAttempt {
    /// Runs to the end, and answers all callers.
    pub async fn run(self) {
        let result = self.work().await;
        if let Some(key) = &self.request_key {
            self.shared.requests.remove(key, &self.callers);
        }
        let grant = result.as_ref().ok().map(|grant| grant.lease_id.clone());
        let heard = self.callers.answer(result);
        if let (false, None, Some(lease_id)) = (heard, &self.request_key, grant) {
            // Failed: it lapses by its ttl.
            let _ = self.shared.release_lease(&lease_id, "end a lease that nobody saw").await;
        }
    }

    pub(super) fn text(&self) -> String {
        let names: Vec<&str> = self.claim.wants.iter().map(|want| want.name.as_str()).collect();
        format!("acquire {}", names.join(", "))
    }

    pub(super) fn failed(&self, failure: EtcdFailure) -> TryOutcome {
        TryOutcome::Done(Err(failure.into_error(false, self.text())))
    }

    async fn work(&self) -> AcquireResult {
        for round in 0..MAX_ROUNDS {
            if self.shared.closed.is_cancelled() {
                return Err(unavailable(self.text(), CLOSED));
            }
            if self.shared.is_behind() {
                return Err(unavailable(self.text(), BEHIND));
            }
            if self.callers.are_gone() {
                return Err(unavailable(self.text(), "its caller is gone"));
            }
            let tried = match self.shared.session().await {
                Ok(session) => self.new_try(session),
                Err(failure) => return Err(failure.into_error(false, self.text())),
            };
            let mut outcome = self.begin(&tried, round).await;
            while let TryOutcome::Waiting { arrival, patience } = outcome {
                outcome = self.wait_for_turn(&tried, arrival, patience).await;
            }
            match outcome {
                TryOutcome::Done(result) => return result,
                _ if round > 1 => self.shared.backoff(round / 2).await,
                _ => {}
            }
        }
        Err(unavailable(self.text(), "others come between all the time"))
    }

    pub(super) fn new_try(&self, session: Arc<EtcdSession>) -> AttemptTry {
        let secret = draw_secret();
        let public = self.shared.public_id(&secret);
        let wants = self.claim.wants.iter().map(|want| (want.name.clone(), want.mode));
        let plan = LeasePlan::new(&self.shared.layout, public, wants, self.request_key.clone());
        let first = &self.claim.wants[0];
        let request = self.request_key.as_ref().map(|_| {
            let letter = ModeLetter::from_mode(first.mode);
            RequestValue::new(self.callers.fingerprint, &secret, letter, &first.name, self.claim.wants.len() > 1)
        });
        AttemptTry { plan: Arc::new(plan), secret, session, request, unanswered: Mutex::default() }
    }

    /// The first transaction: it grants, refuses or takes a place.
    async fn begin(&self, tried: &AttemptTry, round: u32) -> TryOutcome {
        let shared = &self.shared;
        let patience = self.callers.patience();
        let waits = patience > shared.clock.now();
        let busy = round >= ROUNDS_BEFORE_QUEUE;
        let known = shared.held_a_moment_ago(tried.plan.names());
        if let (Some((name, _)), false) = (&known, waits || busy)
            && let Some(refused) = self.refuse_by_read(name).await
        {
            return refused;
        }
        let terms = match self.held_terms(tried).await {
            Ok(terms) => terms,
            Err(failure) => return self.failed(failure),
        };
        let outcome = self.begin_with(tried, &terms, busy, known.is_some()).await;
        if !matches!(outcome, TryOutcome::Done(Ok(_))) {
            tried.session.buckets.give_back(terms.bucket, tried.plan.wants.len());
            if let Some((_, bucket, _)) = &terms.request {
                tried.session.buckets.give_back(*bucket, 1);
            }
        }
        outcome
    }

    async fn begin_with(&self, tried: &AttemptTry, terms: &HeldTerms, busy: bool, is_held: bool) -> TryOutcome {
        let shared = &self.shared;
        let patience = self.callers.patience();
        let waits = patience > shared.clock.now();
        if busy && !waits {
            return self.line_up(tried, terms, shared.clock.now().plus(BRIEF_WAIT)).await;
        }
        if waits && is_held {
            return self.line_up(tried, terms, patience).await;
        }
        let (layout, marker) = (&shared.layout, &tried.session.marker);
        if waits {
            let waiting = self.waiting_value(tried);
            let lined_up =
                PutLease { value: &waiting, lease: tried.session.lease, request: self.waiting_request(tried) };
            if let Some(txn) = tried.plan.acquire_or_line_up(layout, marker, &terms.put(), &lined_up) {
                return self.try_or_line_up(tried, terms, txn, patience).await;
            }
        }
        let txn = tried.plan.acquire_or_look(layout, marker, &terms.put());
        // Too many conditions: the queues are read first, and the transaction demands that nobody came since.
        let txn = txn.unwrap_or_else(|| TxnCall { success: tried.plan.look(layout, marker), ..TxnCall::default() });
        self.try_at_once(tried, terms, txn, waits.then_some(patience)).await
    }

    /// Tries, or takes a place, in one transaction.
    async fn try_or_line_up(&self, tried: &AttemptTry, terms: &HeldTerms, txn: TxnCall, patience: Time) -> TryOutcome {
        match self.shared.txn(txn).await {
            Ok(reply) if reply.succeeded => self.granted(tried, terms, reply.revision()),
            Ok(mut reply) => {
                let nested = reply.responses.first_mut().and_then(|part| part.txn.take());
                let Some(mut nested) = nested else {
                    return self.failed(EtcdFailure::Unknown("etcd did not answer the inner transaction".into()));
                };
                nested.header = reply.header;
                self.lined_up(tried, &nested, patience).await
            }
            Err(failure) => self.recover(tried, terms, failure, Some(patience)).await,
        }
    }

    /// Takes a place in every queue.
    pub(super) async fn line_up(&self, tried: &AttemptTry, terms: &HeldTerms, patience: Time) -> TryOutcome {
        let waiting = self.waiting_value(tried);
        let put = PutLease { value: &waiting, lease: tried.session.lease, request: self.waiting_request(tried) };
        let txn = tried.plan.line_up(&self.shared.layout, &tried.session.marker, &put);
        match self.shared.txn(txn).await {
            Ok(reply) => self.lined_up(tried, &reply, patience).await,
            Err(failure) => self.recover(tried, terms, failure, Some(patience)).await,
        }
    }

    async fn lined_up(&self, tried: &AttemptTry, reply: &TxnReply, patience: Time) -> TryOutcome {
        if !reply.succeeded {
            return self.not_fresh(tried, reply).await.unwrap_or(TryOutcome::Again);
        }
        let arrival = reply.revision();
        let puts = tried.plan.wants.len() + usize::from(tried.request.is_some());
        let most = self.shared.options.limits.waiters_per_resource;
        for (at, want) in tried.plan.wants.iter().enumerate() {
            if reply.count(puts + at) > most + 1
                && let Some(full) = self.refuse_full(tried, &want.name, most, arrival).await
            {
                return full;
            }
        }
        TryOutcome::Waiting { arrival, patience }
    }

    /// The queue is long: how long was it when this one came? Who came later finds it full, not this one.
    async fn refuse_full(&self, tried: &AttemptTry, name: &str, most: usize, arrival: i64) -> Option<TryOutcome> {
        let line = self.shared.read_line(name, None).await.ok()?;
        if line.split().1.iter().filter(|waiter| waiter.arrival <= arrival).count() <= most {
            return None;
        }
        self.leave_queues(tried).await;
        let refusal = Refusal::QueueFull { resource: name.to_owned() };
        Some(TryOutcome::Done(Err(refusal.into())))
    }

    /// Why a try had no effect that found its queues free, if it was not because of them: marker, ending, request.
    pub(super) async fn not_fresh(&self, tried: &AttemptTry, reply: &TxnReply) -> Option<TryOutcome> {
        if reply.range(0).is_empty() {
            tried.session.lost.cancel();
            return Some(TryOutcome::Again);
        }
        if !reply.range(1).is_empty() {
            return Some(TryOutcome::Again);
        }
        let request: Option<&StoredKey> = tried.request.as_ref().and_then(|_| reply.range(2).first());
        match request {
            Some(kv) => Some(self.repeat_request(kv, reply.revision()).await),
            None => None,
        }
    }

    /// The lease as it would be from now on.
    pub(super) async fn held_terms(&self, tried: &AttemptTry) -> Result<HeldTerms, EtcdFailure> {
        let (shared, claim, session) = (&self.shared, &self.claim, &tried.session);
        let life = claim.max_hold.map_or(claim.ttl, |cap| claim.ttl.min(cap));
        let keys = claim.wants.len();
        let bucket = session.take_bucket(shared, with_margin(life + claim.delay), keys).await?;
        let cap_bucket = match claim.max_hold {
            None => None,
            Some(cap) => Some((cap, session.take_bucket(shared, cap, 0).await?)),
        };
        let memory = super::ending::MEMORY;
        let request = match &tried.request {
            None => None,
            Some(value) => {
                let bucket = session.take_bucket(shared, with_margin(life + memory), 1).await?;
                let value = RequestValue { state: ContenderState::Held, ..value.clone() };
                Some((value, bucket.lease, bucket.end))
            }
        };
        // Counted from here on: opening a bucket may have taken a while.
        let now = shared.clock.now();
        let deadline = now.plus(Duration::from_millis(millis(life)));
        let early = |end: Time, at: Time| u64::try_from(end.since(at).as_millis()).unwrap_or(0);
        let cap_at = cap_bucket.map(|(cap, _)| now.plus(cap));
        let cap = cap_bucket.map(|(cap, bucket)| bucket.as_clock(now.plus(cap)));
        let wall = shared.wall_millis();
        let value = ContenderValue {
            cap,
            sure: cap.map(|_| bucket.as_clock(deadline)),
            state: ContenderState::Held,
            early: early(bucket.end, deadline),
            at: wall,
            renewed: wall,
            ..self.waiting_value(tried)
        };
        let remaining = deadline.since(now);
        Ok(HeldTerms { value, bucket: bucket.lease, deadline, remaining, cap_at, request })
    }

    fn waiting_value(&self, tried: &AttemptTry) -> ContenderValue {
        ContenderValue {
            v: layout_version(),
            holder: self.claim.holder.clone(),
            state: ContenderState::Waiting,
            mode: Mode::Exclusive.into(),
            ttl: millis(self.claim.ttl),
            early: 0,
            delay: millis(self.claim.delay),
            cap: None,
            sure: None,
            token: None,
            names: None,
            first: None,
            request: tried.plan.request.as_deref().map(KeyLayout::request_digits),
            at: self.shared.wall_millis(),
            renewed: 0,
        }
    }

    fn waiting_request<'a>(&self, tried: &'a AttemptTry) -> Option<(&'a RequestValue, i64)> {
        tried.request.as_ref().map(|value| (value, tried.session.lease))
    }

    /// A transaction granted at this revision.
    pub(super) fn granted(&self, tried: &AttemptTry, terms: &HeldTerms, revision: i64) -> TryOutcome {
        let token = match self.shared.token(u64::try_from(revision).unwrap_or(0)) {
            Ok(token) => token,
            Err(failure) => return self.failed(failure),
        };
        let value = ContenderValue { token: Some(token.get()), ..terms.value.clone() };
        let request = terms.request.clone().map(|(value, _, end)| (value, end));
        self.shared.own.put(OwnLease {
            plan: tried.plan.clone(),
            value,
            deadline: terms.deadline,
            life: terms.remaining,
            written: revision,
            bucket: terms.bucket,
            cap_at: terms.cap_at,
            request,
        });
        for want in tried.plan.wants.iter().filter(|want| want.mode == Mode::Exclusive) {
            self.shared.note_held(&want.name, &want.key);
        }
        let lease_id = lease_id(&tried.plan, token, tried.secret);
        let renewable = terms.cap_at.map(|cap| cap.since(self.shared.clock.now()));
        TryOutcome::Done(Ok(Grant { lease_id, token: Some(token), remaining: terms.remaining, renewable }))
    }

    /// The claim is refused.
    pub(super) fn refused(&self, refusal: Refusal) -> TryOutcome {
        TryOutcome::Done(Err(Error::Refused(refusal)))
    }
}

/// The id of a lease.
fn lease_id(plan: &LeasePlan, token: Token, secret: Secret) -> crate::engine::LeaseId {
    let first = plan.first();
    NamedLease {
        token,
        letter: ModeLetter::from_mode(first.mode),
        several: plan.wants.len() > 1,
        first: first.name.clone(),
        secret,
    }
    .to_lease_id()
}
