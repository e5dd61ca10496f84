//! What is asked: drawn at random, and sent to both.

use std::time::Duration;

use leasehold_core::{Command, LeaseKey, Refusal as CoreRefusal, Reply, Secret, WaiterId};

use super::{BookTrial, Compared, FuzzCall, FuzzCallState};
use crate::clock::Clock as _;
use crate::engine::from_book::{acquire, millis, wants};
use crate::engine::{Claim, LeaseId};
use crate::error::{Error, Refusal};
use crate::testkit::draw::draw_claim;

/// Names, and how many permits each has. One is a path below another.
pub(super) const NAMES: [(&str, u32); 4] = [("a", 2), ("a/b", 3), ("c", 5), ("a seat, row é", 2)];
/// Short spans are a few of these.
const UNIT: Duration = Duration::from_millis(150);
/// Long spans are so many times longer: they do not end within a trial, and no wait is longer than an hour.
const LONG: u32 = 1_500;
const REASON: &str = "a drill";

impl BookTrial {
    pub(super) async fn play_one(&mut self) -> Compared {
        match self.random.below(20) {
            0..9 => self.try_acquire().await,
            9..12 => self.try_renew().await,
            12..16 => match self.pick_lease() {
                Some(at) => {
                    let wrong = self.random.one_in(12);
                    self.release(at, wrong).await
                }
                None => Ok(()),
            },
            16 => self.try_revoke().await,
            17 => self.try_relabel().await,
            _ => match self.pick_waiting() {
                Some(at) => self.cancel(at).await,
                None => Ok(()),
            },
        }
    }

    /// A claim. Every fourth that does not wait lives for a short time.
    fn draw_claim(&mut self) -> (Claim, bool) {
        let number = self.calls.len() as u64 + 1;
        let mut claim = draw_claim(&mut self.random, &NAMES, UNIT, number);
        let is_short = claim.wait.is_zero() && self.random.one_in(4);
        if is_short {
            // A request that is repeated asks for the same ttl: its end could not be kept apart.
            claim.request = None;
            claim.max_hold = claim.max_hold.filter(|_| !self.settings.is_fleet);
            let life = claim.max_hold.map_or(claim.ttl, |cap| cap.min(claim.ttl));
            let apart = self.reserve(life, claim.delay);
            claim.ttl = apart;
            claim.max_hold = claim.max_hold.map(|_| apart);
            return (claim, true);
        }
        claim.ttl *= LONG;
        claim.max_hold = claim.max_hold.map(|cap| cap * LONG);
        if !claim.wait.is_zero() {
            claim.wait =
                if self.random.one_in(3) { self.reserve(claim.wait, Duration::ZERO) } else { claim.wait * LONG };
        }
        self.repeat_request(&mut claim);
        (claim, false)
    }

    /// A request that was there before is mostly an honest retry.
    fn repeat_request(&mut self, claim: &mut Claim) {
        let Some(id) = &claim.request else { return };
        let Some(earlier) = self.calls.iter().rev().find(|call| call.claim.request.as_ref() == Some(id)) else {
            return;
        };
        if self.settings.is_fleet && matches!(earlier.state, FuzzCallState::Waiting(_)) {
            claim.request = None;
            return;
        }
        let body = earlier.claim.clone();
        if !self.random.one_in(4) {
            (claim.wants, claim.ttl, claim.max_hold, claim.delay) = (body.wants, body.ttl, body.max_hold, body.delay);
        }
    }

    async fn try_acquire(&mut self) -> Compared {
        let (claim, is_short) = self.draw_claim();
        let at = self.calls.len();
        let waiter_id = WaiterId(at as u64 + 1);
        let secret = (u128::from(self.random.draw()) << 64) | u128::from(self.random.draw());
        let core_wants = wants(&claim);
        let asked = acquire(&claim, &core_wants, None, waiter_id, Secret::new(secret.to_be_bytes()));
        let newest = self.newest_token();
        let (reply, effects) = self.apply(Command::Acquire(asked), self.clock.now());
        self.note(format_args!("{claim:?}: {reply:?}"));
        let (engine, asked) = (self.engine.clone(), claim.clone());
        let task = tokio::spawn(async move { engine.acquire(asked).await });
        self.calls.push(FuzzCall { claim, waiter_id, state: FuzzCallState::Over, is_short, is_over: false });
        if reply == Reply::Waiting {
            self.calls[at].state = FuzzCallState::Waiting(task);
            // Whoever asks next comes after it.
            self.compare_views().await?;
        } else {
            let answer = self.in_time(task).await?.map_err(|panic| self.differs(panic))?;
            self.is_quick()?;
            self.compare_acquired(at, &reply, answer, Some(newest))?;
        }
        self.finish_waiting(effects).await
    }

    /// Mostly one that is not known to be over.
    fn pick_lease(&mut self) -> Option<usize> {
        let any = self.random.one_in(4);
        let granted = |call: &FuzzCall| matches!(call.state, FuzzCallState::Granted { .. }) && (any || !call.is_over);
        let all: Vec<usize> = (0..self.calls.len()).filter(|at| granted(&self.calls[*at])).collect();
        (!all.is_empty()).then(|| *self.random.pick(&all))
    }

    fn pick_waiting(&mut self) -> Option<usize> {
        let waits = |at: &usize| matches!(self.calls[*at].state, FuzzCallState::Waiting(_));
        let all: Vec<usize> = (0..self.calls.len()).filter(waits).collect();
        (!all.is_empty()).then(|| *self.random.pick(&all))
    }

    fn lease(&self, at: usize) -> Option<(LeaseKey, LeaseId, String)> {
        let call = &self.calls[at];
        let FuzzCallState::Granted { key, grant } = &call.state else { return None };
        Some((*key, grant.lease_id.clone(), call.claim.holder.clone()))
    }

    async fn try_renew(&mut self) -> Compared {
        let Some((at, (lease, id, label))) = self.pick_lease().and_then(|at| Some((at, self.lease(at)?))) else {
            return Ok(());
        };
        let short = UNIT * (2 + self.random.below(12) as u32);
        let ttl = match self.random.below(4) {
            // The ttl of a short one is not kept apart from other ends.
            0 if !self.calls[at].is_short => None,
            1 => Some(self.reserve(short, self.calls[at].claim.delay)),
            _ => Some(short * LONG),
        };
        let (reply, effects) = self.apply(Command::Renew { lease, ttl_ms: ttl.map(millis) }, self.clock.now());
        self.note(format_args!("renew {label} {ttl:?}: {reply:?}"));
        let answer = self.in_time(self.engine.renew(&id, ttl)).await?;
        self.is_quick()?;
        let is_same = match (&reply, &answer) {
            (Reply::Renewed(book), Ok(renewal)) => {
                self.calls[at].is_short = ttl.is_some_and(|ttl| ttl < UNIT * LONG);
                self.is_close(book.remaining, renewal.remaining) && self.are_close(book.renewable, renewal.renewable)
            }
            (Reply::Refused(refusal), Err(error)) => is_same_end(refusal, error),
            _ => false,
        };
        self.counts.stale += usize::from(answer.is_err());
        self.calls[at].is_over |= answer.is_err();
        if !is_same {
            return Err(self.differs(format_args!("renew: the book says {reply:?}, the engine {answer:?}")));
        }
        self.finish_waiting(effects).await
    }

    /// `wrong`: with a secret that no lease has.
    pub(super) async fn release(&mut self, at: usize, wrong: bool) -> Compared {
        let Some((mut lease, mut id, label)) = self.lease(at) else { return Ok(()) };
        if wrong {
            lease.secret = Secret::new([9; 16]);
            let (rest, last) = id.expose().split_at(id.expose().len() - 1);
            id = LeaseId::new(format!("{rest}{}", if last == "0" { "1" } else { "0" }));
        }
        let (reply, effects) = self.apply(Command::Release { lease }, self.clock.now());
        self.note(format_args!("release {label}, wrong secret {wrong}: {reply:?}"));
        let answer = self.in_time(self.engine.release(&id)).await?;
        self.is_quick()?;
        let is_same = match (&reply, &answer) {
            (Reply::Released(book), Ok(engine)) => book == engine,
            (Reply::Refused(refusal), Err(error)) => is_same_end(refusal, error),
            _ => false,
        };
        self.counts.stale += usize::from(answer.is_err());
        self.calls[at].is_over |= !wrong;
        if !is_same {
            return Err(self.differs(format_args!("release: the book says {reply:?}, the engine {answer:?}")));
        }
        self.finish_waiting(effects).await
    }

    async fn try_relabel(&mut self) -> Compared {
        let Some(at) = self.pick_lease() else { return Ok(()) };
        // Another process that writes a lease anew knows its end less exactly.
        let is_exact = !self.settings.is_fleet || !self.calls[at].is_short;
        let Some((lease, id, label)) = self.lease(at).filter(|_| is_exact) else { return Ok(()) };
        let holder = format!("{label} again");
        let (reply, effects) = self.apply(Command::Relabel { lease, holder: &holder }, self.clock.now());
        self.note(format_args!("relabel {label}: {reply:?}"));
        let answer = self.in_time(self.engine.relabel(&id, &holder)).await?;
        self.is_quick()?;
        let is_same = match (&reply, &answer) {
            (Reply::Relabelled, Ok(())) => true,
            (Reply::Refused(refusal), Err(error)) => is_same_end(refusal, error),
            _ => false,
        };
        if !is_same {
            return Err(self.differs(format_args!("relabel: the book says {reply:?}, the engine {answer:?}")));
        }
        self.finish_waiting(effects).await
    }

    async fn try_revoke(&mut self) -> Compared {
        let (name, _) = *self.random.pick(&NAMES);
        let (reply, effects) = self.apply(Command::Revoke { name, reason: REASON }, self.clock.now());
        self.note(format_args!("revoke {name}: {reply:?}"));
        let answer = self.in_time(self.engine.revoke(name, REASON)).await?;
        self.is_quick()?;
        if !matches!((&reply, &answer), (Reply::Revoked(book), Ok(engine)) if book == engine) {
            return Err(self.differs(format_args!("revoke: the book says {reply:?}, the engine {answer:?}")));
        }
        self.finish_waiting(effects).await
    }

    /// The caller of a claim that waits is gone.
    pub(super) async fn cancel(&mut self, at: usize) -> Compared {
        let state = std::mem::replace(&mut self.calls[at].state, FuzzCallState::Over);
        let FuzzCallState::Waiting(task) = state else {
            self.calls[at].state = state;
            return Ok(());
        };
        let waiter_id = self.calls[at].waiter_id;
        let (reply, effects) = self.apply(Command::Cancel { waiter_id }, self.clock.now());
        let label = self.calls[at].claim.holder.clone();
        self.note(format_args!("cancel {label}: {reply:?}"));
        task.abort();
        let _ = task.await;
        self.finish_waiting(effects).await?;
        self.compare_views().await
    }
}

/// Whether an owner is told the same of a lease that is not live.
fn is_same_end(book: &CoreRefusal, engine: &Error) -> bool {
    matches!(
        (book, engine),
        (CoreRefusal::Stale, Error::Refused(Refusal::Stale)) | (CoreRefusal::NotHeld, Error::Refused(Refusal::NotHeld))
    )
}
