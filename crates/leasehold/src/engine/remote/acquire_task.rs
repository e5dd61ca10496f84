//! One acquire, from its first try to its reply, even if its caller or the connection goes away.
//!
//! ```text
//!   Engine::acquire ──▶ AcquireTask (a tokio task) ──▶ tries, one after the other ──▶ oneshot ──▶ AcquireFuture
//! ```
//!
//! # Laws
//!
//! 1. Every try of one acquire has the same request id, so that all of them together have one effect.
//! 2. The id is the caller's, or generated for this acquire. A grant under a generated id that nobody will see is
//!    released; one under the caller's id stays for its ttl, because a retry may come for it.
//! 3. The error is Indeterminate if any try may have taken effect, and Unavailable if none can have.
//!
//! It is a task of its own because it must go on while nobody polls the caller's future, and clean up after that future
//! is dropped.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::Time;
use tokio::sync::{Semaphore, SemaphorePermit, oneshot};

use super::connection::REPLY_TIMEOUT;
use super::connection_pool::{CLOSED, ConnectionPool, MAX_OUTAGE, RETRY_FOR, RetryPolicy, TryResult, random};
use super::{ENGINE, command, decode, indeterminate, unavailable};
use crate::engine::acquire_future::{AcquireFuture, EndsUnseen};
use crate::engine::{Claim, Grant, Resource};
use crate::error::{BoxError, Error, Refusal};

type AcquireResult = Result<Grant, Error>;

/// See the module.
pub(super) struct AcquireTask {
    pool: Arc<ConnectionPool>,
    claim: Claim,
    request: String,
    /// The request id was generated here: no retry of the caller can have it.
    generated_id: bool,
}

/// Why a try was abandoned before its reply came.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Abandoned {
    /// The caller is gone.
    CallerGone,
    /// The engine is being closed.
    Closing,
}

impl AcquireTask {
    /// Spawns the task.
    pub fn start(pool: &Arc<ConnectionPool>, claim: Claim) -> AcquireFuture<Arc<ConnectionPool>> {
        let generated_id = claim.request.is_none();
        let request = match &claim.request {
            Some(id) => command::request(&claim.principal, id),
            None => new_request_id(),
        };
        let task = Self { pool: pool.clone(), claim, request, generated_id };
        let (to, from) = oneshot::channel();
        let attempt = task.attempt();
        pool.tasks.spawn_on(task.run(to), &pool.runtime);
        AcquireFuture::new(from, ENGINE, attempt, generated_id.then(|| pool.clone()))
    }

    async fn run(mut self, mut to: oneshot::Sender<AcquireResult>) {
        let Some(answer) = self.run_tries(&mut to).await else { return };
        if let Err(Ok(grant)) = to.send(answer)
            && self.generated_id
        {
            self.pool.release_lease(&grant.lease_id).await;
        }
    }

    /// The result; none when nobody waits for it any more.
    async fn run_tries(&mut self, to: &mut oneshot::Sender<AcquireResult>) -> Option<AcquireResult> {
        let began = self.pool.clock.now();
        let patience = began.plus(self.claim.wait);
        let mut maybe = false;
        // When a reply was first missed, and since when the server has been unreachable.
        let (mut missed, mut away) = (None::<Time>, None::<Time>);
        for round in 0_u32.. {
            let tried = match self.try_once(round, patience, to).await {
                Ok(tried) => tried,
                // This try had no effect, but an earlier one may have had.
                Err((abandoned, TryResult::NoEffect(source))) if maybe => {
                    return self.clean_up(abandoned, TryResult::Unknown(source)).await;
                }
                Err((abandoned, TryResult::Decided(error))) if maybe && TryResult::is_from_access_check(&error) => {
                    return self.clean_up(abandoned, TryResult::Unknown(Box::new(error))).await;
                }
                Err((abandoned, tried)) => return self.clean_up(abandoned, tried).await,
            };
            let now = self.pool.clock.now();
            let (source, give_up) = match tried {
                TryResult::Replied(value) => match decode::grant(value) {
                    // An earlier try was granted, its reply was lost, and the lease is over: try with a new id.
                    Ok(grant) if self.generated_id && round > 0 && grant.remaining.is_zero() && now < patience => {
                        (self.request, maybe, missed) = (new_request_id(), false, None);
                        continue;
                    }
                    Ok(grant) => return Some(Ok(grant)),
                    Err(odd) => return Some(Err(indeterminate(self.attempt(), Box::new(odd)))),
                },
                TryResult::Decided(error) if maybe && TryResult::is_from_access_check(&error) => {
                    return Some(Err(self.final_error(maybe, Box::new(error))));
                }
                TryResult::Decided(error) => return Some(Err(error)),
                TryResult::Unknown(source) => {
                    maybe = true;
                    away = None;
                    (source, patience.max(missed.get_or_insert(now).plus(RETRY_FOR)))
                }
                TryResult::NoEffect(source) => {
                    let since = *away.get_or_insert(now);
                    let last = missed.map_or(patience, |missed| patience.max(missed.plus(RETRY_FOR)));
                    (source, last.min(since.plus(MAX_OUTAGE)))
                }
            };
            self.pool.drop_idle();
            // The connection broke before anything was sent, on the first try: it was an old one.
            let old = round == 0 && source.is::<Arc<std::io::Error>>();
            if now >= give_up && !old {
                return Some(Err(self.final_error(maybe, source)));
            }
            if let Some(abandoned) = self.backoff_or_abandoned(round, to).await {
                let tried = if maybe { TryResult::Unknown(source) } else { TryResult::NoEffect(source) };
                return self.clean_up(abandoned, tried).await;
            }
        }
        unreachable!("the rounds end by time")
    }

    async fn backoff_or_abandoned(&self, round: u32, to: &mut oneshot::Sender<AcquireResult>) -> Option<Abandoned> {
        tokio::select! {
            abandoned = self.abandoned(to) => Some(abandoned),
            () = self.pool.backoff(round) => None,
        }
    }

    /// One try. The error is a try that was abandoned: why, and what came of it.
    async fn try_once(
        &self,
        round: u32,
        patience: Time,
        to: &mut oneshot::Sender<AcquireResult>,
    ) -> Result<TryResult, (Abandoned, TryResult)> {
        // The first try sends the wait unchanged: the server checks its bounds.
        let wait = if round == 0 { self.claim.wait } else { patience.since(self.pool.clock.now()) };
        // A repeat may join an earlier try that still waits on the server, and block with it. So may a claim with the
        // caller's id: it may be a retry itself.
        if wait.is_zero() && round == 0 && self.generated_id {
            return self.try_shared(to).await;
        }
        // Claims that do not wait have connections of their own, which waiting claims cannot use up.
        let places = if wait.is_zero() { &self.pool.asking } else { &self.pool.waiting };
        let (permit, wait) = match places.try_acquire() {
            Ok(permit) => (permit, wait),
            Err(_) => match self.wait_for_permit(places, round, patience, to).await? {
                Ok(permit) => (permit, patience.since(self.pool.clock.now())),
                Err(tried) => return Ok(tried),
            },
        };
        let tried = self.try_exclusive(wait, to).await;
        drop(permit);
        tried
    }

    /// All connections for waiting claims are in use. A free resource is still granted at once, over the shared
    /// connection, and no claim waits longer than it asked. Only with a connection does it enter the server's queue.
    async fn wait_for_permit<'p>(
        &self,
        places: &'p Semaphore,
        round: u32,
        patience: Time,
        to: &mut oneshot::Sender<AcquireResult>,
    ) -> Result<Result<SemaphorePermit<'p>, TryResult>, (Abandoned, TryResult)> {
        let mut last = TryResult::NoEffect("too many claims wait through this engine".into());
        if self.generated_id && round == 0 {
            match self.try_shared(to).await? {
                refused @ TryResult::Decided(Error::Refused(Refusal::Held { .. })) => last = refused,
                other => return Ok(Err(other)),
            }
        }
        // A connection of claims that do not wait is free again within the time of a reply.
        let now = self.pool.clock.now();
        let end = if patience > now { patience } else { now.plus(REPLY_TIMEOUT) };
        tokio::select! {
            biased;
            abandoned = self.abandoned(to) => Err((abandoned, not_sent())),
            permit = places.acquire() => match permit {
                Ok(permit) => Ok(Ok(permit)),
                Err(_) => Ok(Err(last)),
            },
            () = self.pool.clock.sleep_until(end) => Ok(Err(last)),
        }
    }

    async fn try_shared(&self, to: &mut oneshot::Sender<AcquireResult>) -> Result<TryResult, (Abandoned, TryResult)> {
        let bytes = match command::acquire(&self.claim, Duration::ZERO, &self.request) {
            Ok(bytes) => bytes,
            Err(error) => return Ok(TryResult::Decided(error)),
        };
        let connection = tokio::select! {
            biased;
            abandoned = self.abandoned(to) => return Err((abandoned, not_sent())),
            connection = self.pool.shared_connection() => connection,
        };
        let mut heard = match connection {
            Ok(connection) => pin!(connection.send_request(bytes, REPLY_TIMEOUT).reply()),
            Err(why) => return Ok(TryResult::from_no_connection(why)),
        };
        tokio::select! {
            biased;
            heard = &mut heard => Ok(TryResult::from_reply(heard)),
            abandoned = self.abandoned(to) => {
                // The reply is on its way over a connection that others use. With the caller's id it is not needed.
                if abandoned == Abandoned::CallerGone && !self.generated_id {
                    return Err((abandoned, not_sent()));
                }
                Err((abandoned, TryResult::from_reply(heard.await)))
            }
        }
    }

    async fn try_exclusive(
        &self,
        wait: Duration,
        to: &mut oneshot::Sender<AcquireResult>,
    ) -> Result<TryResult, (Abandoned, TryResult)> {
        let bytes = match command::acquire(&self.claim, wait, &self.request) {
            Ok(bytes) => bytes,
            Err(error) => return Ok(TryResult::Decided(error)),
        };
        let connection = tokio::select! {
            biased;
            abandoned = self.abandoned(to) => return Err((abandoned, not_sent())),
            connection = self.pool.exclusive_connection() => connection,
        };
        let connection = match connection {
            Ok(connection) => connection,
            Err(why) => return Ok(TryResult::from_no_connection(why)),
        };
        let mut heard = pin!(connection.send_request(bytes, wait.saturating_add(REPLY_TIMEOUT)).reply());
        tokio::select! {
            biased;
            heard = &mut heard => {
                self.pool.return_connection(connection);
                Ok(TryResult::from_reply(heard))
            }
            abandoned = self.abandoned(to) => {
                // Closing the write side makes the server cancel the wait. A grant that was decided before is still
                // read.
                drop(connection);
                Err((abandoned, TryResult::from_reply(heard.await)))
            }
        }
    }

    /// Completes when nobody waits for the result any more.
    async fn abandoned(&self, to: &mut oneshot::Sender<AcquireResult>) -> Abandoned {
        tokio::select! {
            () = to.closed() => Abandoned::CallerGone,
            () = self.pool.closed.cancelled() => Abandoned::Closing,
        }
    }

    /// Keeps law 2 for a try that was abandoned.
    async fn clean_up(&self, abandoned: Abandoned, tried: TryResult) -> Option<AcquireResult> {
        let closing = abandoned == Abandoned::Closing;
        match tried {
            TryResult::Replied(value) => match decode::grant(value) {
                Ok(grant) if self.generated_id => self.pool.release_lease(&grant.lease_id).await,
                Ok(grant) => return closing.then_some(Ok(grant)),
                Err(odd) => return closing.then(|| Err(indeterminate(self.attempt(), Box::new(odd)))),
            },
            TryResult::Unknown(_) if self.generated_id => self.release_unknown_grant().await,
            TryResult::Unknown(source) => return closing.then(|| Err(indeterminate(self.attempt(), source))),
            TryResult::Decided(_) | TryResult::NoEffect(_) => {}
        }
        closing.then(|| Err(unavailable(self.attempt(), CLOSED.into())))
    }

    /// Releases a grant that may have been decided after the caller was gone.
    ///
    /// Only a repeat can learn its lease id, and a repeat could be granted anew. So the resource is inspected first: if
    /// no holder can have our label, there is nothing to release.
    async fn release_unknown_grant(&self) {
        self.pool.drop_idle();
        let Some(first) = self.claim.wants.first() else { return };
        let Ok(look) = command::get(&first.name) else { return };
        let looked = self.pool.call_with_retry(&|| self.attempt(), look, RetryPolicy::Cleanup).await;
        let seen = looked.ok().and_then(|value| decode::resource(value).ok()).flatten();
        if !seen.is_some_and(|seen| self.may_hold(&seen)) {
            return;
        }
        let Ok(bytes) = command::acquire(&self.claim, Duration::ZERO, &self.request) else { return };
        let give_up = self.pool.clock.now().plus(RETRY_FOR);
        for round in 0.. {
            // On an exclusive connection: the first try may still wait on the server, and then this one joins it and
            // blocks.
            let tried = match self.pool.exclusive_connection().await {
                Ok(connection) => {
                    TryResult::from_reply(connection.send_request(bytes.clone(), REPLY_TIMEOUT).reply().await)
                }
                Err(why) => TryResult::from_no_connection(why),
            };
            match tried {
                TryResult::Replied(value) => {
                    if let Ok(grant) = decode::grant(value) {
                        self.pool.release_lease(&grant.lease_id).await;
                    }
                    return;
                }
                TryResult::Decided(_) => return,
                TryResult::NoEffect(_) | TryResult::Unknown(_) if self.pool.clock.now() >= give_up => return,
                TryResult::NoEffect(_) | TryResult::Unknown(_) => self.pool.backoff(round).await,
            }
        }
    }

    /// Whether a holder has our label, or not all holders are shown.
    fn may_hold(&self, seen: &Resource) -> bool {
        seen.holders_total > seen.holders.len()
            || seen.holders.iter().any(|holding| holding.holder == self.claim.holder)
    }

    fn final_error(&self, maybe: bool, source: BoxError) -> Error {
        if maybe { indeterminate(self.attempt(), source) } else { unavailable(self.attempt(), source) }
    }

    fn attempt(&self) -> String {
        format!("acquire {}", self.claim.wants.first().map_or("", |want| &want.name))
    }
}

fn not_sent() -> TryResult {
    TryResult::NoEffect("it was given up".into())
}

/// A unique request id.
fn new_request_id() -> String {
    format!("auto-{:032x}", u128::from_le_bytes(random()))
}

impl EndsUnseen for Arc<ConnectionPool> {
    fn end_unseen(&self, grant: Grant) {
        let pool = self.clone();
        self.tasks.spawn_on(async move { pool.release_lease(&grant.lease_id).await }, &self.runtime);
    }
}
