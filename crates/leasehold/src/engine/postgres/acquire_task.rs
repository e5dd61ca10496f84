//! One acquire, from its first try to its reply, even if its caller or the connection goes away.
//!
//! ```text
//!   Engine::acquire ──▶ PostgresAcquireTask (a tokio task) ──▶ tries, one after the other ──▶ oneshot ──▶ PostgresAcquireFuture
//! ```
//!
//! # Laws
//!
//! 1. Every try of one acquire has the same handle, so that all of them together have one effect.
//! 2. A grant that nobody will see is released, unless the caller gave a request id: then a retry may come for it.
//! 3. If a try may have taken effect and the result is not its grant, the handle is banned: the try may still be on its way,
//!    and would take what nobody knows of.
//! 4. The error is Indeterminate if any try may have taken effect, and Unavailable if none can have.
//!
//! It is a task of its own because it must go on while nobody polls the caller's future, and clean up after that future
//! is dropped.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use leasehold_core::Time;
use tokio::sync::oneshot;

use super::batch::{OperationKind, ServerClaim, Verdict, WriteOperation};
use super::ids::{Bits, lease_id};
use super::shared::{CLOSED, MAX_OUTAGE, PostgresShared, RETRY_FOR};
use super::sql_error::{Cause, SqlFailure};
use super::wait_registry::{Subscription, WaitAnswer};
use super::wait_task::patience_ms;
use super::{indeterminate, read_token, unavailable};
use crate::clock::Clock as _;
use crate::engine::{Claim, Grant};
use crate::error::{Error, Refusal};

type PostgresAcquireResult = Result<Grant, Error>;

/// See the module.
pub(super) struct PostgresAcquireTask {
    shared: Arc<PostgresShared>,
    claim: Arc<ServerClaim>,
    wait: Duration,
    handle: Bits,
    secret: Bits,
    /// The handle was drawn here: no retry of the caller can have it.
    drawn: bool,
    with_tokens: bool,
    gone: Arc<AtomicBool>,
    sent: Arc<AtomicBool>,
}

/// The caller's future. Dropping it gives the acquire up.
pub(super) struct PostgresAcquireFuture {
    shared: Arc<PostgresShared>,
    from: oneshot::Receiver<PostgresAcquireResult>,
    drawn: bool,
    attempt: String,
    /// Set when it is dropped.
    gone: Arc<AtomicBool>,
    /// A try may have taken effect.
    sent: Arc<AtomicBool>,
}

/// Why an acquire was abandoned before it was decided.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AbandonedBy {
    CallerGone,
    Closing,
}

/// What comes after a verdict.
enum Next {
    /// The result.
    Done(PostgresAcquireResult),
    /// The claim waits in its queues; its secret is the one that the server has.
    Wait(Bits),
    /// Another try: as it is, or with waiting, or with a new handle.
    Again,
    StartWaiting,
    Redraw,
}

/// What is known of earlier tries.
#[derive(Default)]
struct TriesSoFar {
    round: u32,
    /// One of them may have taken effect.
    maybe: bool,
    /// Waiting was made possible for the next try: if that cannot wait either, something pauses.
    started_waiting: bool,
    /// When a reply was first missed, and since when the server has been away. Real time.
    missed: Option<Time>,
    away: Option<Time>,
}

impl PostgresAcquireTask {
    /// Spawns the task. The claim was checked.
    pub fn start(shared: &Arc<PostgresShared>, claim: &Claim, with_tokens: bool) -> PostgresAcquireFuture {
        let handle = match &claim.request {
            Some(request) => Bits::from_request(&claim.principal, request),
            None => Bits::draw_random(),
        };
        let drawn = claim.request.is_none();
        let task = Self {
            shared: shared.clone(),
            claim: Arc::new(ServerClaim::new(claim)),
            wait: claim.wait,
            handle,
            secret: Bits::draw_random(),
            drawn,
            with_tokens,
            gone: Arc::default(),
            sent: Arc::default(),
        };
        let (to, from) = oneshot::channel();
        let (attempt, gone, sent) = (task.attempt(), task.gone.clone(), task.sent.clone());
        shared.spawn_task(task.run(to));
        PostgresAcquireFuture { shared: shared.clone(), from, drawn, attempt, gone, sent }
    }

    async fn run(mut self, mut to: oneshot::Sender<PostgresAcquireResult>) {
        let shared = self.shared.clone();
        let counted = shared.count_in_flight();
        let mut tries = TriesSoFar::default();
        let answer = self.run_tries(&mut tries, &mut to, counted).await;
        let granted = matches!(answer, Some(Ok(_)));
        if let Some(answer) = answer
            && let Err(Ok(grant)) = to.send(answer)
            && self.drawn
        {
            shared.release_unseen(&grant).await;
        }
        if tries.maybe && self.drawn && !granted {
            self.ban().await;
        }
    }

    /// The result; none when nobody waits for it any more.
    async fn run_tries<'s>(
        &mut self,
        tries: &mut TriesSoFar,
        to: &mut oneshot::Sender<PostgresAcquireResult>,
        counted: super::shared::InFlight<'s>,
    ) -> Option<PostgresAcquireResult> {
        let shared = self.shared.clone();
        let patience = shared.clock().now().plus(self.wait);
        let mut counted = Some(counted);
        loop {
            if let Some(cause) = shared.connector.check.weaker_setting() {
                return Some(Err(SqlFailure::Refused(cause).into_error(tries.maybe, self.attempt())));
            }
            let left = patience.since(shared.clock().now());
            let may_wait = !left.is_zero() && shared.can_wait();
            let mut place = shared.waiting.subscribe(self.handle, &self.claim.names[0], self.claim.fingerprint);
            let kind = OperationKind::Acquire {
                claim: self.claim.clone(),
                wait_ms: if may_wait { patience_ms(left) } else { 0 },
                gone: self.gone.clone(),
                sent: self.sent.clone(),
            };
            let operation = WriteOperation { handle: self.handle, secret: self.secret, kind };
            let failure = match shared.write_once(operation).await {
                Ok(verdict) => match self.after_verdict(&verdict, tries, may_wait, left) {
                    Next::Wait(secret) => {
                        shared.note_waiting(self.handle, &verdict);
                        if let Err(failure) = self.listen_if_needed(may_wait).await {
                            // The claim waits; the regular checks come when the server does.
                            drop(failure);
                        }
                        drop(counted.take());
                        match self.wait_for_answer(&mut place, secret, patience, to).await {
                            Some(Next::Done(result)) => return Some(result),
                            Some(Next::Redraw) => self.redraw(tries),
                            Some(_) => {}
                            None => return None,
                        }
                        counted = Some(shared.count_in_flight());
                        continue;
                    }
                    Next::Done(result) => {
                        self.drop_place(&place).await;
                        return Some(result);
                    }
                    next => {
                        self.drop_place(&place).await;
                        match next {
                            Next::Redraw => self.redraw(tries),
                            Next::StartWaiting => {
                                if let Some(done) = self.start_waiting(tries, patience, to).await {
                                    return done;
                                }
                            }
                            _ => {}
                        }
                        continue;
                    }
                },
                Err(failure) => failure,
            };
            self.drop_place(&place).await;
            if let Some(done) = self.after_failure(failure, tries, patience, to).await {
                return done;
            }
        }
    }

    /// Makes waiting possible for the next try. Some: there is none, as in [`Self::after_failure`].
    async fn start_waiting(
        &self,
        tries: &mut TriesSoFar,
        patience: Time,
        to: &mut oneshot::Sender<PostgresAcquireResult>,
    ) -> Option<Option<PostgresAcquireResult>> {
        let failure = match self.shared.start_waiting().await {
            Ok(()) if !tries.started_waiting => {
                tries.started_waiting = true;
                return None;
            }
            Ok(()) => SqlFailure::Away(Cause::new("this process could not wait, although the server heard of it")),
            Err(failure) => failure,
        };
        self.after_failure(failure, tries, patience, to).await
    }

    /// A handle that was used up: by a grant whose reply was lost and that is over, or by a ban.
    fn redraw(&mut self, tries: &mut TriesSoFar) {
        (self.handle, self.secret) = (Bits::draw_random(), Bits::draw_random());
        (tries.maybe, tries.missed) = (false, None);
        tries.round += 1;
    }

    /// A claim with wait 0 may join one that waits in another process.
    async fn listen_if_needed(&self, may_wait: bool) -> Result<(), SqlFailure> {
        if may_wait { Ok(()) } else { self.shared.start_waiting().await }
    }

    /// This call does not wait. If it was the last that did, under another body, the claim leaves.
    async fn drop_place(&self, place: &Subscription) {
        if let Some(claim) = self.shared.waiting.unsubscribe(place) {
            let ban = Some(self.claim.ttl_ms);
            let left = self.shared.leave_queue(self.handle, self.secret, claim.fingerprint, &claim.first, ban).await;
            // If that fails, the claim leaves when its patience is over.
            drop(left);
        }
    }

    fn after_verdict(&self, verdict: &Verdict, tries: &TriesSoFar, may_wait: bool, left: Duration) -> Next {
        match verdict.word {
            b'G' | b'g' => {
                let over = verdict.remaining.unwrap_or(0) <= 0;
                if verdict.word == b'g' && self.drawn && tries.round > 0 && over && !left.is_zero() {
                    return Next::Redraw;
                }
                let secret = verdict.proof.unwrap_or(self.secret);
                Next::Done(Ok(self.grant(secret, verdict.token, verdict.remaining, verdict.renewable)))
            }
            b'W' => Next::Wait(verdict.proof.unwrap_or(self.secret)),
            b'H' if !left.is_zero() && !may_wait => Next::StartWaiting,
            b'H' => Next::Done(Err(self.held(verdict))),
            b'F' => {
                let resource = verdict.name.clone().unwrap_or_default();
                Next::Done(Err(Refusal::QueueFull { resource }.into()))
            }
            b'M' => Next::Done(Err(Refusal::Mismatch.into())),
            b'I' => {
                let (name, known) = (verdict.name.as_deref().unwrap_or_default(), verdict.queue.unwrap_or(0));
                Next::Done(Err(Error::Invalid(format!("{name} has a capacity of {known} while it is in use"))))
            }
            b'C' | b'X' if self.drawn => Next::Redraw,
            other => {
                let cause = Cause::new(format!("the server answered with the verdict {}", char::from(other)));
                Next::Done(Err(indeterminate(self.attempt(), cause)))
            }
        }
    }

    /// None: another try. Else the result, or that nobody waits for it.
    async fn after_failure(
        &self,
        failure: SqlFailure,
        tries: &mut TriesSoFar,
        patience: Time,
        to: &mut oneshot::Sender<PostgresAcquireResult>,
    ) -> Option<Option<PostgresAcquireResult>> {
        let now = self.shared.real_clock.now();
        let unknown = tries.maybe || matches!(failure, SqlFailure::Unknown(_));
        self.sent.store(unknown, Ordering::SeqCst);
        let give_up = match &failure {
            SqlFailure::Never(_) | SqlFailure::Refused(_) => true,
            SqlFailure::Unknown(_) => {
                tries.maybe = true;
                tries.away = None;
                tries.missed.get_or_insert(now);
                false
            }
            SqlFailure::Away(_) => now >= tries.away.get_or_insert(now).plus(MAX_OUTAGE),
            SqlFailure::Again { .. } => false,
        };
        let patient = self.shared.clock().now() < patience;
        let resolving = tries.missed.is_some_and(|missed| now < missed.plus(RETRY_FOR));
        // An idle connection may have been cut by the server: the first failure says little.
        let first = tries.round == 0 && matches!(failure, SqlFailure::Away(_));
        if give_up || !(patient || resolving || first) {
            return Some(Some(Err(failure.into_error(tries.maybe, self.attempt()))));
        }
        let abandoned = tokio::select! {
            biased;
            abandoned = self.abandoned(to) => abandoned,
            () = self.shared.backoff(tries.round) => {
                tries.round += 1;
                return None;
            }
        };
        if abandoned == AbandonedBy::CallerGone {
            return Some(None);
        }
        let failure = SqlFailure::Away(Cause::new(CLOSED));
        Some(Some(Err(failure.into_error(tries.maybe, self.attempt()))))
    }

    /// The claim waits in its queues. None: nobody waits for the result.
    async fn wait_for_answer(
        &self,
        place: &mut Subscription,
        secret: Bits,
        patience: Time,
        to: &mut oneshot::Sender<PostgresAcquireResult>,
    ) -> Option<Next> {
        let answer = tokio::select! {
            biased;
            answer = &mut place.answer => answer,
            abandoned = self.abandoned(to) => return self.leave(abandoned, place, secret).await.map(Next::Done),
        };
        Some(match answer {
            Ok(WaitAnswer::Granted { remaining, .. })
                if self.drawn && remaining <= 0 && self.shared.clock().now() < patience =>
            {
                Next::Redraw
            }
            Ok(WaitAnswer::Granted { token, remaining, renewable }) => {
                Next::Done(Ok(self.grant(secret, Some(token), Some(remaining), renewable)))
            }
            Ok(WaitAnswer::Held(verdict)) => Next::Done(Err(self.held(&verdict))),
            Ok(WaitAnswer::Failed(failure)) => {
                if self.drawn {
                    self.ban_in_background();
                }
                Next::Done(Err(failure.into_error(true, self.attempt())))
            }
            Ok(WaitAnswer::Forgotten) | Err(_) => Next::Again,
        })
    }

    /// Nobody waits for a claim that waits in its queues: it leaves them.
    async fn leave(
        &self,
        abandoned: AbandonedBy,
        place: &mut Subscription,
        secret: Bits,
    ) -> Option<PostgresAcquireResult> {
        let _counted = self.shared.count_in_flight();
        let closing = abandoned == AbandonedBy::Closing;
        let last = self.shared.waiting.unsubscribe(place);
        let mut kept = None;
        if let Ok(WaitAnswer::Granted { token, remaining, renewable }) = place.answer.try_recv() {
            // The grant came at the same moment.
            let grant = self.grant(secret, Some(token), Some(remaining), renewable);
            if self.drawn {
                self.shared.release_unseen(&grant).await;
            } else {
                kept = Some(grant);
            }
        } else if let Some(claim) = last {
            let (fingerprint, first) = (claim.fingerprint, claim.first);
            if let Some(verdict) =
                self.shared.leave_with_retry(self.handle, secret, fingerprint, &first, &self.claim).await
                && verdict.word == b'G'
            {
                kept = Some(self.grant(secret, verdict.token, verdict.remaining, verdict.renewable));
            }
        }
        match kept {
            _ if !closing => None,
            Some(grant) => Some(Ok(grant)),
            None => Some(Err(unavailable(self.attempt(), Cause::new(CLOSED)))),
        }
    }

    /// Ends a grant that may have been decided, and keeps a late duplicate of the claim from taking anything.
    async fn ban(&self) {
        let first = &self.claim.names[0];
        self.shared.leave_with_retry(self.handle, self.secret, None, first, &self.claim).await;
    }

    fn ban_in_background(&self) {
        let (shared, handle, secret, claim) = (self.shared.clone(), self.handle, self.secret, self.claim.clone());
        self.shared.spawn_task(async move {
            shared.leave_with_retry(handle, secret, None, &claim.names[0], &claim).await;
        });
    }

    /// Completes when nobody waits for the result any more.
    async fn abandoned(&self, to: &mut oneshot::Sender<PostgresAcquireResult>) -> AbandonedBy {
        tokio::select! {
            () = to.closed() => AbandonedBy::CallerGone,
            () = self.shared.closed.cancelled() => AbandonedBy::Closing,
        }
    }

    fn grant(&self, secret: Bits, token: Option<i64>, remaining: Option<i64>, renewable: Option<i64>) -> Grant {
        Grant {
            lease_id: lease_id(self.handle, secret),
            token: token.and_then(read_token).filter(|_| self.with_tokens),
            remaining: self.shared.without_slew(remaining.unwrap_or(0)),
            renewable: renewable.map(|micros| self.shared.without_slew(micros)),
        }
    }

    fn held(&self, verdict: &Verdict) -> Error {
        Error::Refused(Refusal::Held {
            resource: verdict.name.clone().unwrap_or_else(|| self.claim.names[0].clone()),
            holder: verdict.holder.clone(),
            remaining: verdict.remaining.map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or(0))),
            queue_len: usize::try_from(verdict.queue.unwrap_or(0)).unwrap_or(0),
        })
    }

    fn attempt(&self) -> String {
        format!("acquire {}", self.claim.names[0])
    }
}

impl PostgresShared {
    /// Releases a lease that nobody will use. If that fails, it lapses.
    pub async fn release_unseen(&self, grant: &Grant) {
        if let Some((handle, secret)) = super::ids::parse_lease_id(&grant.lease_id) {
            let attempt = || "give back a lease".to_owned();
            drop(self.write_with_retry(&attempt, handle, secret, OperationKind::Release).await);
        }
    }

    /// Gives a claim up for a caller that is gone, for a few seconds.
    async fn leave_with_retry(
        &self,
        handle: Bits,
        secret: Bits,
        fingerprint: Option<i64>,
        first: &str,
        claim: &ServerClaim,
    ) -> Option<Verdict> {
        let _counted = self.count_in_flight();
        let give_up = self.real_clock.now().plus(RETRY_FOR);
        for round in 0.. {
            match self.leave_queue(handle, secret, fingerprint, first, Some(claim.ttl_ms)).await {
                Ok(verdict) => return Some(verdict),
                Err(SqlFailure::Never(_) | SqlFailure::Refused(_)) => return None,
                Err(_) if self.real_clock.now() >= give_up || self.stopped.is_cancelled() => return None,
                Err(_) => self.backoff(round).await,
            }
        }
        None
    }
}

impl PostgresAcquireFuture {
    /// The error for a caller that waits no longer. The task cleans up when this is dropped.
    pub fn give_up(&self) -> Error {
        self.gone.store(true, Ordering::SeqCst);
        let cause = Cause::new(super::TOO_LATE);
        if self.sent.load(Ordering::SeqCst) {
            indeterminate(self.attempt.clone(), cause)
        } else {
            unavailable(self.attempt.clone(), cause)
        }
    }
}

impl Future for PostgresAcquireFuture {
    type Output = PostgresAcquireResult;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<PostgresAcquireResult> {
        Pin::new(&mut self.from).poll(context).map(|answer| {
            // The task always sends a result, unless its runtime was shut down.
            answer.unwrap_or_else(|_| {
                let why = "the runtime that the engine was opened on is gone";
                Err(indeterminate(self.attempt.clone(), Cause::new(why)))
            })
        })
    }
}

impl Drop for PostgresAcquireFuture {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::SeqCst);
        self.from.close();
        // The result may have come after the last poll.
        if let Ok(Ok(grant)) = self.from.try_recv()
            && self.drawn
        {
            let shared = self.shared.clone();
            self.shared.spawn_task(async move { shared.release_unseen(&grant).await });
        }
    }
}
