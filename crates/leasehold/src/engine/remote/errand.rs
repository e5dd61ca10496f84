//! One acquire, from its first try to its answer, also when its caller or the connection goes away.
//!
//! ```text
//!   Engine::acquire ──▶ errand (a task of its own) ──▶ tries, one after the other ──▶ oneshot ──▶ caller
//! ```
//!
//! # Laws
//!
//! 1. Every try of one acquire has the same request id, so that all of them together have one effect.
//! 2. The id is the caller's, or drawn for this acquire. A grant under a drawn id that nobody will see is released;
//!    one under the caller's id stays for its ttl, because a retry may come for it.
//! 3. The last word is Indeterminate if any try may have taken effect, and Unavailable if none can have.
//!
//! A task of its own, because the wait for a connection and for an answer must go on while nobody polls the caller's
//! future, and the cleaning up after it is dropped.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use leasehold_core::Time;
use tokio::sync::{Semaphore, SemaphorePermit, oneshot};

use super::hub::{CLOSED, Hub, INSIST, Nature, OUTAGE, Tried, random};
use super::link::REPLY;
use super::{answer, command, indeterminate, unavailable};
use crate::engine::{Claim, Grant, Resource};
use crate::error::{BoxError, Error, Refusal};

type Answer = Result<Grant, Error>;

/// See the module.
pub(super) struct Errand {
    hub: Arc<Hub>,
    claim: Claim,
    request: String,
    /// The id is ours: nobody can come again with it.
    drawn: bool,
}

/// The caller's end. Dropping it gives up.
pub(super) struct Awaited {
    hub: Arc<Hub>,
    from: oneshot::Receiver<Answer>,
    drawn: bool,
    attempt: String,
}

/// Why a try was left before its answer came.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    /// The caller is gone.
    Alone,
    /// The engine is being closed.
    Closing,
}

impl Errand {
    /// Sends it off.
    pub fn start(hub: &Arc<Hub>, claim: Claim) -> Awaited {
        let drawn = claim.request.is_none();
        let request = match &claim.request {
            Some(id) => command::request(&claim.principal, id),
            None => draw(),
        };
        let errand = Self { hub: hub.clone(), claim, request, drawn };
        let (to, from) = oneshot::channel();
        let attempt = errand.attempt();
        hub.errands.spawn_on(errand.run(to), &hub.runtime);
        Awaited { hub: hub.clone(), from, drawn, attempt }
    }

    async fn run(mut self, mut to: oneshot::Sender<Answer>) {
        let Some(answer) = self.fetch(&mut to).await else { return };
        if let Err(Ok(grant)) = to.send(answer)
            && self.drawn
        {
            self.hub.give_back(&grant.lease_id).await;
        }
    }

    /// The answer; none when nobody wants it any more.
    async fn fetch(&mut self, to: &mut oneshot::Sender<Answer>) -> Option<Answer> {
        let began = self.hub.clock.now();
        let patience = began.plus(self.claim.wait);
        let mut maybe = false;
        // When an answer was first missed, and since when the server has been away.
        let (mut missed, mut away) = (None::<Time>, None::<Time>);
        for round in 0_u32.. {
            let tried = match self.try_once(round, patience, to).await {
                Ok(tried) => tried,
                // That this try did nothing says nothing of those before it.
                Err((left, Tried::NoEffect(source))) if maybe => {
                    return self.clean_up(left, Tried::Unknown(source)).await;
                }
                Err((left, Tried::No(error))) if maybe && Tried::is_of_the_gate(&error) => {
                    return self.clean_up(left, Tried::Unknown(Box::new(error))).await;
                }
                Err((left, tried)) => return self.clean_up(left, tried).await,
            };
            let now = self.hub.clock.now();
            let (source, give_up) = match tried {
                Tried::Heard(value) => match answer::grant(value) {
                    // It was granted to a try whose answer was lost, and is over: a drawn id has no second life.
                    Ok(grant) if self.drawn && round > 0 && grant.remaining.is_zero() && now < patience => {
                        (self.request, maybe, missed) = (draw(), false, None);
                        continue;
                    }
                    Ok(grant) => return Some(Ok(grant)),
                    Err(odd) => return Some(Err(indeterminate(self.attempt(), Box::new(odd)))),
                },
                Tried::No(error) if maybe && Tried::is_of_the_gate(&error) => {
                    return Some(Err(self.in_vain(maybe, Box::new(error))));
                }
                Tried::No(error) => return Some(Err(error)),
                Tried::Unknown(source) => {
                    maybe = true;
                    away = None;
                    (source, patience.max(missed.get_or_insert(now).plus(INSIST)))
                }
                Tried::NoEffect(source) => {
                    let since = *away.get_or_insert(now);
                    let last = missed.map_or(patience, |missed| patience.max(missed.plus(INSIST)));
                    (source, last.min(since.plus(OUTAGE)))
                }
            };
            self.hub.doubt();
            // Broken before anything was sent, on the first try: that was an old connection.
            let old = round == 0 && source.is::<Arc<std::io::Error>>();
            if now >= give_up && !old {
                return Some(Err(self.in_vain(maybe, source)));
            }
            if let Some(left) = self.pause_or_left(round, to).await {
                let tried = if maybe { Tried::Unknown(source) } else { Tried::NoEffect(source) };
                return self.clean_up(left, tried).await;
            }
        }
        unreachable!("the rounds end by time")
    }

    async fn pause_or_left(&self, round: u32, to: &mut oneshot::Sender<Answer>) -> Option<Left> {
        tokio::select! {
            left = self.left(to) => Some(left),
            () = self.hub.pause(round) => None,
        }
    }

    /// One try. The error is a try that was left; what came of it is said beside why.
    async fn try_once(
        &self,
        round: u32,
        patience: Time,
        to: &mut oneshot::Sender<Answer>,
    ) -> Result<Tried, (Left, Tried)> {
        // The first try says what was asked for, exactly: its bounds are the server's to check.
        let wait = if round == 0 { self.claim.wait } else { patience.since(self.hub.clock.now()) };
        // A repeat may join a first try that the server believes to be in line still, and block with it. So may what
        // has the caller's id: nobody here knows whether it is the first.
        if wait.is_zero() && round == 0 && self.drawn {
            return self.over_shared(to).await;
        }
        // Those who do not wait have connections that those who do cannot take.
        let places = if wait.is_zero() { &self.hub.asking } else { &self.hub.waiting };
        let (permit, wait) = match places.try_acquire() {
            Ok(permit) => (permit, wait),
            Err(_) => match self.in_the_crowd(places, round, patience, to).await? {
                Ok(permit) => (permit, patience.since(self.hub.clock.now())),
                Err(tried) => return Ok(tried),
            },
        };
        let tried = self.over_own(wait, to).await;
        drop(permit);
        tried
    }

    /// More claims wait through this engine than it has connections for: what is free is had at once all the same, and
    /// nobody waits longer than they said. A place in the server's line is had only with a connection.
    async fn in_the_crowd<'p>(
        &self,
        places: &'p Semaphore,
        round: u32,
        patience: Time,
        to: &mut oneshot::Sender<Answer>,
    ) -> Result<Result<SemaphorePermit<'p>, Tried>, (Left, Tried)> {
        let mut last = Tried::NoEffect("too many claims wait through this engine".into());
        if self.drawn && round == 0 {
            match self.over_shared(to).await? {
                refused @ Tried::No(Error::Refused(Refusal::Held { .. })) => last = refused,
                other => return Ok(Err(other)),
            }
        }
        // A place among those who do not wait is free within the time of an answer.
        let now = self.hub.clock.now();
        let end = if patience > now { patience } else { now.plus(REPLY) };
        tokio::select! {
            biased;
            left = self.left(to) => Err((left, not_sent())),
            permit = places.acquire() => match permit {
                Ok(permit) => Ok(Ok(permit)),
                Err(_) => Ok(Err(last)),
            },
            () = self.hub.clock.sleep_until(end) => Ok(Err(last)),
        }
    }

    async fn over_shared(&self, to: &mut oneshot::Sender<Answer>) -> Result<Tried, (Left, Tried)> {
        let bytes = match command::acquire(&self.claim, Duration::ZERO, &self.request) {
            Ok(bytes) => bytes,
            Err(error) => return Ok(Tried::No(error)),
        };
        let link = tokio::select! {
            biased;
            left = self.left(to) => return Err((left, not_sent())),
            link = self.hub.shared() => link,
        };
        let mut heard = match link {
            Ok(link) => pin!(link.ask(bytes, REPLY).heard()),
            Err(why) => return Ok(Tried::unconnected(why)),
        };
        tokio::select! {
            biased;
            heard = &mut heard => Ok(Tried::of(heard)),
            left = self.left(to) => {
                // The answer is on its way, and others use this connection. With the caller's own id nobody needs it.
                if left == Left::Alone && !self.drawn {
                    return Err((left, not_sent()));
                }
                Err((left, Tried::of(heard.await)))
            }
        }
    }

    async fn over_own(&self, wait: Duration, to: &mut oneshot::Sender<Answer>) -> Result<Tried, (Left, Tried)> {
        let bytes = match command::acquire(&self.claim, wait, &self.request) {
            Ok(bytes) => bytes,
            Err(error) => return Ok(Tried::No(error)),
        };
        let link = tokio::select! {
            biased;
            left = self.left(to) => return Err((left, not_sent())),
            link = self.hub.own() => link,
        };
        let link = match link {
            Ok(link) => link,
            Err(why) => return Ok(Tried::unconnected(why)),
        };
        let mut heard = pin!(link.ask(bytes, wait.saturating_add(REPLY)).heard());
        tokio::select! {
            biased;
            heard = &mut heard => {
                self.hub.hand_back(link);
                Ok(Tried::of(heard))
            }
            left = self.left(to) => {
                // Goodbye: the server takes us out of the line. A grant that was decided before is still heard.
                drop(link);
                Err((left, Tried::of(heard.await)))
            }
        }
    }

    /// Completes when nobody wants the answer any more.
    async fn left(&self, to: &mut oneshot::Sender<Answer>) -> Left {
        tokio::select! {
            () = to.closed() => Left::Alone,
            () = self.hub.closed.cancelled() => Left::Closing,
        }
    }

    /// Sees to it that law 2 holds for a try that was left.
    async fn clean_up(&self, left: Left, tried: Tried) -> Option<Answer> {
        let closing = left == Left::Closing;
        match tried {
            Tried::Heard(value) => match answer::grant(value) {
                Ok(grant) if self.drawn => self.hub.give_back(&grant.lease_id).await,
                Ok(grant) => return closing.then_some(Ok(grant)),
                Err(odd) => return closing.then(|| Err(indeterminate(self.attempt(), Box::new(odd)))),
            },
            Tried::Unknown(_) if self.drawn => self.take_back().await,
            Tried::Unknown(source) => return closing.then(|| Err(indeterminate(self.attempt(), source))),
            Tried::No(_) | Tried::NoEffect(_) => {}
        }
        closing.then(|| Err(unavailable(self.attempt(), CLOSED.into())))
    }

    /// Ends the grant that may have been decided while we went away.
    ///
    /// Only a repeat can learn its lease_id, and a repeat could also be granted anew. So first a look: if nobody with
    /// our label can hold the resource, there is nothing to take back.
    async fn take_back(&self) {
        self.hub.doubt();
        let Some(first) = self.claim.wants.first() else { return };
        let Ok(look) = command::get(&first.name) else { return };
        let looked = self.hub.insist(&|| self.attempt(), look, Nature::Owed).await;
        let seen = looked.ok().and_then(|value| answer::resource(value).ok()).flatten();
        if !seen.is_some_and(|seen| self.may_be_among(&seen)) {
            return;
        }
        let Ok(bytes) = command::acquire(&self.claim, Duration::ZERO, &self.request) else { return };
        let give_up = self.hub.clock.now().plus(INSIST);
        for round in 0.. {
            // On a connection of its own: the server may believe that the first try is in line still, and let us join.
            let tried = match self.hub.own().await {
                Ok(link) => Tried::of(link.ask(bytes.clone(), REPLY).heard().await),
                Err(why) => Tried::unconnected(why),
            };
            match tried {
                Tried::Heard(value) => {
                    if let Ok(grant) = answer::grant(value) {
                        self.hub.give_back(&grant.lease_id).await;
                    }
                    return;
                }
                Tried::No(_) => return,
                Tried::NoEffect(_) | Tried::Unknown(_) if self.hub.clock.now() >= give_up => return,
                Tried::NoEffect(_) | Tried::Unknown(_) => self.hub.pause(round).await,
            }
        }
    }

    /// Whether somebody with our label holds it, or is hidden in a crowd that is not shown whole.
    fn may_be_among(&self, seen: &Resource) -> bool {
        seen.holders_total > seen.holders.len()
            || seen.holders.iter().any(|holding| holding.holder == self.claim.holder)
    }

    fn in_vain(&self, maybe: bool, source: BoxError) -> Error {
        if maybe { indeterminate(self.attempt(), source) } else { unavailable(self.attempt(), source) }
    }

    fn attempt(&self) -> String {
        format!("acquire {}", self.claim.wants.first().map_or("", |want| &want.name))
    }
}

fn not_sent() -> Tried {
    Tried::NoEffect("it was given up".into())
}

/// A request id that is nobody else's.
fn draw() -> String {
    format!("auto-{:032x}", u128::from_le_bytes(random()))
}

impl Future for Awaited {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        Pin::new(&mut self.from).poll(context).map(|answer| {
            // The task answers; it went without doing so only if its runtime did.
            answer.unwrap_or_else(|_| {
                let why = "the runtime that the engine was opened on is gone";
                Err(indeterminate(self.attempt.clone(), why.into()))
            })
        })
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.from.close();
        // The answer may have come while nobody looked.
        if let Ok(Ok(grant)) = self.from.try_recv()
            && self.drawn
        {
            let hub = self.hub.clone();
            self.hub.errands.spawn_on(async move { hub.give_back(&grant.lease_id).await }, &self.hub.runtime);
        }
    }
}
