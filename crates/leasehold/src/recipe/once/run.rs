//! `once` in two phases: begin, the work with renewals beside it, finish.

use std::fmt;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::request::{OnceRequest, check_answer};
use super::{Answer, Begun, First, OnceEnd};
use crate::clock::{Time, until};
use crate::error::BoxError;
use crate::recipe::error::{RecipeError, RecipeRefusal};
use crate::recipe::store::Store;

/// How often a try that waits for another asks again.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// How often storing an answer is tried, with a pause that doubles: the work is done, and would be repeated.
const FINISH_ATTEMPTS: u32 = 6;
/// How often a process removes what has expired.
const FORGET_EVERY: Duration = Duration::from_secs(60);

/// A request under an idempotency key. [`Store::once`] makes one.
#[must_use = "nothing is asked before `run`"]
pub struct Once {
    store: Store,
    request: OnceRequest,
    wait: Duration,
}

impl fmt::Debug for Once {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Once").field("request", &self.request).field("wait", &self.wait).finish_non_exhaustive()
    }
}

impl Once {
    pub(super) const fn new(store: Store, request: OnceRequest) -> Self {
        Self { store, request, wait: Duration::ZERO }
    }

    /// A request of HTTP: its method and its path must be the same too when the key is used again.
    pub fn of(mut self, method: &str, path: &str) -> Self {
        self.request = self.request.of(method, path);
        self
    }

    /// How long the first try may be silent before another takes over; it is renewed at a third of it. Default: 30 s, at
    /// most 1 h.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.request = self.request.ttl(ttl);
        self
    }

    /// How long the answer is kept, from the beginning of the try that gave it. Default: 24 h, at most 30 days.
    pub fn keep(mut self, keep: Duration) -> Self {
        self.request = self.request.keep(keep);
        self
    }

    /// How long to wait while another try runs: for its answer, or to take over. Default: not at all.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Runs `work` if nobody has answered the key, and stores its answer; otherwise returns the stored one.
    ///
    /// An error of `work` is not stored: the try is abandoned, and the next request runs. What a retry could not change
    /// belongs in an [`Answer`]. Work that is taken over is dropped.
    ///
    /// # Errors
    ///
    /// [`RecipeRefusal::InFlight`], [`RecipeRefusal::Mismatch`]: the work did not run. [`RecipeRefusal::Stale`]: another
    /// took over while it ran, and its answer counts. [`RecipeError::Work`]: the work failed. [`RecipeError::Indeterminate`]:
    /// ask again.
    pub async fn run<F>(self, work: F) -> Result<Answer, RecipeError>
    where
        F: AsyncFnOnce(&First) -> Result<Answer, BoxError>,
    {
        self.request.check()?;
        let (first, lost_at) = match self.begin_or_wait().await? {
            (Ok(first), lost_at) => (first, lost_at),
            (Err(answer), _) => return Ok(answer),
        };
        self.forget_expired();
        let done = tokio::select! {
            biased;
            done = work(&first) => done,
            () = self.renew_until_lost(&first, lost_at) => return Err(first.stale()),
        };
        let refused = match done {
            Ok(answer) => match check_answer(&answer.body) {
                Ok(()) => return self.finish(&first, answer).await,
                Err(error) => error,
            },
            Err(error) => RecipeError::Work(error),
        };
        // If nobody can be told, the next request waits until the try is over by time.
        let _ = self.store.once_end(&first, OnceEnd::Abandon).await;
        Err(refused)
    }

    /// The first try with the moment at which it is over, or the answer.
    async fn begin_or_wait(&self) -> Result<(Result<First, Answer>, Time), RecipeError> {
        let clock = &*self.store.clock;
        let give_up_at = clock.now().plus(self.wait);
        let mut pause = FIRST_PAUSE;
        loop {
            // From before the request: the store counts from later.
            let lost_at = clock.now().plus(self.request.ttl);
            let refused = match self.store.once_begin(&self.request).await.and_then(Begun::into_result) {
                Ok(begun) => return Ok((begun, lost_at)),
                Err(RecipeError::Refused(RecipeRefusal::InFlight { remaining })) => remaining,
                Err(error) => return Err(error),
            };
            let now = clock.now();
            if now >= give_up_at {
                return Err(RecipeRefusal::InFlight { remaining: refused }.into());
            }
            // Half a millisecond more than is left: the store counts whole ones.
            let left = refused.map_or(pause, |left| left.saturating_add(Duration::from_micros(500)));
            clock.sleep_until(now.plus(pause.min(left)).min(give_up_at)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Renews at a third of the ttl. Ends when the try was taken over, or can no longer be proven to be ours.
    async fn renew_until_lost(&self, first: &First, mut lost_at: Time) {
        let clock = &*self.store.clock;
        let ttl = self.request.ttl;
        let mut next = clock.now().plus(ttl / 3);
        loop {
            clock.sleep_until(next.min(lost_at)).await;
            let sent = clock.now();
            if sent >= lost_at {
                return;
            }
            match until(clock, lost_at, self.store.once_end(first, OnceEnd::Renew { ttl })).await {
                Some(Ok(true)) => (lost_at, next) = (sent.plus(ttl), sent.plus(ttl / 3)),
                Some(Ok(false)) | None => return,
                // The store is away: asked again while the time lasts.
                Some(Err(_)) => next = clock.now().plus((ttl / 10).min(LONGEST_PAUSE)),
            }
        }
    }

    /// Stores the answer. It is tried again where the store was away.
    async fn finish(&self, first: &First, answer: Answer) -> Result<Answer, RecipeError> {
        let clock = &*self.store.clock;
        let mut unknown = None;
        let mut pause = FIRST_PAUSE;
        for attempt in 1.. {
            let error =
                match self.store.once_end(first, OnceEnd::Finish { status: answer.status, body: &answer.body }).await {
                    Ok(true) => return Ok(answer),
                    // An earlier attempt, whose reply was lost, may have stored it.
                    Ok(false) => match unknown {
                        None => return Err(first.stale()),
                        Some(unknown) => match self.store.once_is_stored(first).await {
                            Ok(true) => return Ok(answer),
                            Ok(false) => return Err(first.stale()),
                            Err(_) => return Err(unknown),
                        },
                    },
                    Err(error @ (RecipeError::Unavailable { .. } | RecipeError::Indeterminate { .. })) => error,
                    Err(error) => return Err(error),
                };
            if attempt >= FINISH_ATTEMPTS {
                return Err(unknown.unwrap_or(error));
            }
            if matches!(error, RecipeError::Indeterminate { .. }) {
                unknown = Some(error);
            }
            clock.sleep_until(clock.now().plus(pause)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Err(first.stale())
    }

    /// Now and then, in a task of its own, expired answers are removed.
    fn forget_expired(&self) {
        let now = self.store.clock.now().as_nanos().max(1);
        let last = self.store.forgotten_at.load(Ordering::Relaxed);
        let due = last == 0 || now.saturating_sub(last) >= u64::try_from(FORGET_EVERY.as_nanos()).unwrap_or(u64::MAX);
        let ours =
            due && self.store.forgotten_at.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if ours {
            let store = self.store.clone();
            // A failure costs nothing but space, and the next minute tries again.
            tokio::spawn(async move { while store.forget_expired().await.is_ok_and(|removed| removed > 0) {} });
        }
    }
}
