//! What is asked for, and how the engine's answer becomes a guard.
//!
//! ```text
//!   Acquire ──▶ engine.acquire ──▶ Grant ──▶ (tighten: one renewal, after a long wait) ──▶ Lease
//! ```
//!
//! # Dropping a future of this module
//!
//! While the engine is asked, dropping leaves the queue, and the engine ends a grant that it had
//! already decided. Between the engine's answer and the guard there is one await at most, the renewal
//! after a long wait; a future dropped there leaves a lease that nobody renews, which lapses with its
//! ttl, as a dropped guard does.

use std::fmt;
use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use leasehold_core::Time;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::clock::{Clock, until};
use crate::engine::{Claim, Engine, FindingKind, Grant, Mode, Promise, Renewal, Want};
use crate::error::{BoxError, Error, Refusal};
use crate::lease::{FencedLease, Lease, LeaseTimes, Lost, RenewalTask, SharedLease};

const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// A claim being put together. Await it to ask for it.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use leasehold::Mode;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let leasehold = leasehold::Leasehold::open(&format!("embedded:{}", dir.path().display())).await?;
/// let lease = leasehold
///     .acquire("report-2026")
///     .and("template", Mode::Shared)
///     .ttl(Duration::from_secs(10))
///     .wait(Duration::from_secs(2))
///     .max_hold(Duration::from_secs(600))
///     .holder("ada, desk 3")
///     .await?;
/// assert_eq!(lease.resources(), ["report-2026", "template"]);
/// # lease.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "nothing is asked until it is awaited"]
pub struct Acquire {
    engine: Arc<dyn Engine>,
    clock: Arc<dyn Clock>,
    claim: Claim,
    renewing: bool,
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").field("claim", &self.claim).field("renewing", &self.renewing).finish_non_exhaustive()
    }
}

impl Acquire {
    pub(crate) fn new(engine: Arc<dyn Engine>, clock: Arc<dyn Clock>, wants: Vec<Want>) -> Self {
        let claim = Claim::new(wants, DEFAULT_TTL, default_holder());
        Self { engine, clock, claim, renewing: true }
    }

    /// One more resource, in its own mode.
    pub fn and(mut self, name: impl Into<String>, mode: Mode) -> Self {
        self.claim.wants.push(Want { name: name.into(), mode });
        self
    }

    /// How long the lease lives without renewal. Default: 30 s.
    ///
    /// It is the longest others wait for a holder that died, and the time a holder has to reach the
    /// engine again when it cannot.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.claim.ttl = ttl;
        self
    }

    /// How long to wait in the queue. Default: zero, which does not wait.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.claim.wait = wait;
        self
    }

    /// Renewals never push the end past the grant plus this. Default: no cap.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.claim.max_hold = Some(max_hold);
        self
    }

    /// How long the resources stay closed after a lapse; not after a release. Default: zero.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.claim.delay = delay;
        self
    }

    /// Public label of who holds it, for people. Default: `hostname:pid`.
    pub fn holder(mut self, holder: impl Into<String>) -> Self {
        self.claim.holder = holder.into();
        self
    }

    /// Makes a retried acquire have one effect: choose an id once, and use it in every retry.
    ///
    /// A repeat gets the same lease, with the time it has left; if that lease has ended meanwhile, the
    /// acquire is refused with `Stale`. Default: none, which is enough for who does not retry; where Leasehold
    /// itself has to repeat an acquire, over a connection that was lost, it draws an id for it.
    pub fn request_id(mut self, id: impl Into<String>) -> Self {
        self.claim.request = Some(id.into());
        self
    }

    /// Every resource named so far is wanted shared: many readers, no exclusive holder.
    pub fn shared(self) -> Self {
        self.in_mode(Mode::Shared)
    }

    /// Of every resource named so far, `count` of `capacity` permits are wanted.
    pub fn permits(self, count: u32, capacity: u32) -> Self {
        self.in_mode(Mode::Permits { count, capacity })
    }

    fn in_mode(mut self, mode: Mode) -> Self {
        for want in &mut self.claim.wants {
            want.mode = mode;
        }
        self
    }

    /// Whether the guard renews itself in the background. Default: yes.
    ///
    /// Without it the lease ends after one ttl, unless [`Lease::renew`] is called; danger and loss are
    /// told by the clock as ever.
    pub fn renewing(mut self, on: bool) -> Self {
        self.renewing = on;
        self
    }

    /// Whether the engine promises tokens.
    pub(crate) fn has_fencing(&self) -> bool {
        self.engine.promises().fencing
    }

    /// Asks for a lease for correctness, with a token.
    ///
    /// Awaiting it is Invalid, before anything is asked, when the engine promises no fencing.
    pub fn fenced(self) -> FencedAcquire {
        FencedAcquire(self)
    }

    /// The bare grant: no guard, no renewal. For those who keep the id elsewhere, as the command line does.
    ///
    /// # Errors
    ///
    /// What the engine says: see [`Error`].
    pub async fn grant(self) -> Result<Grant, Error> {
        self.engine.acquire(self.claim).await
    }

    /// Runs `work` under the lease: drops its future when the lease is lost, releases at the end.
    ///
    /// A dropped future stops at its next await, and a thread it started does not stop at all. Where that
    /// matters, use [`FencedAcquire::run`] and a fence at the resource.
    ///
    /// If the release at the end cannot be asked for, the result is returned all the same and the ttl
    /// finishes the lease.
    ///
    /// # Errors
    ///
    /// [`RunError::NotGranted`]: `work` did not run. [`RunError::Lost`]: it was cut off, or it came to
    /// its end under a lease that, as the release showed, had ended before.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let leasehold = leasehold::Leasehold::open(&format!("embedded:{}", dir.path().display())).await?;
    /// let names = leasehold.acquire("sum").run(async |lease| lease.resources().to_vec()).await?;
    /// assert_eq!(names, ["sum"]);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run<T, F>(self, work: F) -> Result<T, RunError>
    where
        F: AsyncFnOnce(&Lease) -> T,
    {
        let lease = self.await.map_err(RunError::NotGranted)?;
        let value = cut_at_loss(&lease, work(&lease)).await?;
        finish(lease, value).await
    }

    async fn take(self) -> Result<(Lease, Grant), Error> {
        let runtime = Handle::try_current().map_err(|_| {
            Error::Invalid("a guard keeps time on a tokio runtime: acquire inside one, or ask for grant()".into())
        })?;
        let Self { engine, clock, claim, renewing } = self;
        let resources = claim.wants.iter().map(|want| want.name.clone()).collect();
        let exclusive = claim.wants.iter().all(|want| want.mode == Mode::Exclusive);
        let (holder, ttl) = (claim.holder.clone(), claim.ttl);

        let sent = clock.now();
        let grant = engine.acquire(claim).await?;
        let terms = tighten(&*engine, &*clock, sent, &grant, ttl).await?;

        let held = Arc::new(SharedLease {
            engine,
            clock,
            lease_id: grant.lease_id.clone(),
            resources,
            exclusive,
            holder,
            ttl,
            terms: watch::Sender::new(terms),
        });
        let keeper = RenewalTask::start(&runtime, held.clone(), renewing);
        Ok((Lease::new(held, keeper), grant))
    }
}

impl IntoFuture for Acquire {
    type Output = Result<Lease, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.take().await.map(|(lease, _)| lease) })
    }
}

/// A claim for a lease with a token. Await it to ask for it.
#[derive(Clone, Debug)]
#[must_use = "nothing is asked until it is awaited"]
pub struct FencedAcquire(Acquire);

impl FencedAcquire {
    /// Runs `work` under the lease, as [`Acquire::run`] does.
    ///
    /// # Errors
    ///
    /// As [`Acquire::run`].
    pub async fn run<T, F>(self, work: F) -> Result<T, RunError>
    where
        F: AsyncFnOnce(&FencedLease) -> T,
    {
        let lease = self.await.map_err(RunError::NotGranted)?;
        let value = cut_at_loss(&lease, work(&lease)).await?;
        finish(lease.into_lease(), value).await
    }

    async fn take(self) -> Result<FencedLease, Error> {
        let promises = self.0.engine.promises();
        if !promises.fencing {
            return Err(Error::Invalid(format!(
                "the {} engine, as configured, promises no fencing, so its leases have no token: {}\
                 drop .fenced() if a double run would only waste work, else use another engine",
                promises.engine,
                why_no_fencing(self.0.engine.as_ref()).await
            )));
        }
        let (lease, grant) = self.0.take().await?;
        let Some(token) = grant.token else {
            return Err(Error::Corrupt {
                engine: promises.engine,
                law: "an engine that promises fencing gives a token with every grant".into(),
                at: lease.resources().join(", "),
            });
        };
        Ok(FencedLease::new(lease, token))
    }
}

impl IntoFuture for FencedAcquire {
    type Output = Result<FencedLease, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.take())
    }
}

/// What the engine finds to be the cause, as the beginning of a sentence; empty if it cannot say.
async fn why_no_fencing(engine: &dyn Engine) -> String {
    let findings = engine.examine().await.unwrap_or_default();
    let denies = |kind: &FindingKind| matches!(kind, FindingKind::Denies(all) if all.contains(&Promise::Fencing));
    let causes: Vec<String> = findings.into_iter().filter(|found| denies(&found.kind)).map(|f| f.sentence).collect();
    if causes.is_empty() { String::new() } else { format!("{} Change that, or ", causes.join(" ")) }
}

/// Why there is no result of the work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// There was no grant: the work did not run.
    #[error("the work did not run: there was no grant")]
    NotGranted(#[source] Error),
    /// The lease was lost: the work was cut off, or ended under a lease that had ended before it.
    #[error("the lease was lost under the work")]
    Lost(#[source] Lost),
}

/// The times of the lease when it is handed out.
///
/// The engine decided some time between `sent` and now. After a long wait in the queue that is nearly
/// always *now*, but nothing proves it: all that is provable is `sent` + remaining, and the wait has
/// eaten of it. So when less than two thirds of it are left, one renewal, which does not wait,
/// gives a tight bound.
async fn tighten(
    engine: &dyn Engine,
    clock: &dyn Clock,
    sent: Time,
    grant: &Grant,
    ttl: Duration,
) -> Result<LeaseTimes, Error> {
    if grant.remaining.is_zero() {
        // A repeated request whose lease has ended meanwhile.
        return Err(Refusal::Stale.into());
    }
    let first = Renewal { remaining: grant.remaining, renewable: grant.renewable };
    let provable = LeaseTimes::counted_from(sent, first);
    let answered = clock.now();
    if answered.since(sent) <= grant.remaining / 3 {
        return Ok(provable);
    }
    // Bounded: while there is a lease to hand out, waiting only uses it up. Otherwise the answer is worth
    // waiting for until it could prove nothing any more.
    let provable_now = answered < provable.valid_until;
    let patience = answered.plus(if provable_now { grant.remaining / 3 } else { grant.remaining });
    let source: BoxError = match until(clock, patience, engine.renew(&grant.lease_id, Some(ttl))).await {
        Some(Ok(renewal)) => {
            let tight = LeaseTimes::counted_from(answered, renewal);
            if clock.now() < tight.valid_until {
                return Ok(tight);
            }
            "the validity was over when the answer came".into()
        }
        Some(Err(error @ (Error::Unavailable { .. } | Error::Indeterminate { .. }))) => error.into(),
        Some(Err(error)) => return Err(error),
        None => "no answer to a renewal in time".into(),
    };
    if clock.now() < provable.valid_until {
        return Ok(provable);
    }
    // A lease that nobody can prove is no use to anybody: free it for the next, if the engine listens.
    let patience = clock.now().plus(grant.remaining / 3);
    let _ = until(clock, patience, engine.release(&grant.lease_id)).await;
    Err(Error::Indeterminate {
        engine: engine.promises().engine,
        attempt: "proving a lease that was granted after a long wait".into(),
        source,
    })
}

async fn cut_at_loss<T>(lease: &Lease, work: impl Future<Output = T>) -> Result<T, RunError> {
    tokio::select! {
        biased;
        lost = lease.lost() => Err(RunError::Lost(lost)),
        value = work => Ok(value),
    }
}

async fn finish<T>(lease: Lease, value: T) -> Result<T, RunError> {
    if let Some(lost) = lease.held().verdict() {
        return Err(RunError::Lost(lost));
    }
    match lease.release().await {
        Err(Error::Refused(Refusal::Stale | Refusal::NotHeld)) => Err(RunError::Lost(Lost::Stale)),
        _ => Ok(value),
    }
}

/// Asked of the system once, not with two calls into the kernel at every acquire: they showed in the profile.
fn default_holder() -> String {
    static HOLDER: OnceLock<String> = OnceLock::new();
    let ask = || format!("{}:{}", rustix::system::uname().nodename().to_string_lossy(), std::process::id());
    HOLDER.get_or_init(ask).clone()
}
