//! Leases on several engines at once.
//!
//! On *one* engine several names are one claim, all or nothing: use [`Leasehold::acquire_all`], which holds none while
//! it waits. Over different engines nothing is atomic. What can be kept is an order: everybody takes them in the same
//! one, so that no two can wait for each other for ever.
//!
//! # Laws
//!
//! 1. Engines are asked in one order for all processes: by their identity, else by the text that names them.
//! 2. Names on one engine are one claim there.
//! 3. After a no, nothing is held: what was taken is released in reverse.
//!
//! # Not promised
//!
//! That the leases begin or end together. Each has a life and a token of its own. One may be lost while the others are
//! live, and [`LeaseSet::lost`] says so.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use super::LeaseKind;
use crate::client::Leasehold;
use crate::error::{Error, Refusal};
use crate::lease::{FencedLease, Lease, Lost};

const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// Leases on several engines, being put together.
///
/// # Examples
///
/// ```
/// use leasehold::recipe::several::SeveralEngines;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (a, b) = (tempfile::tempdir()?, tempfile::tempdir()?);
/// # let at = |dir: &tempfile::TempDir| format!("embedded:{}", dir.path().display());
/// # let (stock_url, till_url) = (at(&a), at(&b));
/// let stock = leasehold::Leasehold::open(&stock_url).await?;
/// let till = leasehold::Leasehold::open(&till_url).await?;
///
/// let both = SeveralEngines::new()
///     .lease(&stock_url, &stock, "shelf-3")
///     .lease(&till_url, &till, "till-1")
///     .acquire_all()
///     .await?;
/// assert_eq!((both.leases().len(), both.is_atomic()), (2, false));
/// both.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is asked until acquire_all"]
pub struct SeveralEngines {
    wanted: Vec<WantedLease>,
    ttl: Duration,
    wait: Duration,
    holder: Option<String>,
}

#[derive(Clone, Debug)]
struct WantedLease {
    place: String,
    leasehold: Leasehold,
    name: String,
}

/// One claim on one engine.
struct EngineClaim {
    place: String,
    leasehold: Leasehold,
    names: Vec<String>,
}

impl SeveralEngines {
    /// Nothing yet.
    pub fn new() -> Self {
        Self { wanted: Vec::new(), ttl: DEFAULT_TTL, wait: Duration::ZERO, holder: None }
    }

    /// One more resource, exclusively. `place` names its engine, the same in every process: the URL. It decides the
    /// order where the engine has no identity of its own.
    pub fn lease(mut self, place: impl Into<String>, leasehold: &Leasehold, name: impl Into<String>) -> Self {
        self.wanted.push(WantedLease { place: place.into(), leasehold: leasehold.clone(), name: name.into() });
        self
    }

    /// How long each lease lives without renewal. Default: 30 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long to wait for all of them together. Default: zero, which does not wait.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Public label of who holds them. Default: `hostname:pid`.
    pub fn holder(mut self, holder: impl Into<String>) -> Self {
        self.holder = Some(holder.into());
        self
    }

    /// Takes all of them, or none.
    ///
    /// # Errors
    ///
    /// What the engine said that did not grant; nothing is held then, as far as the others could be asked. `Stale`: one
    /// was lost while another was waited for.
    pub async fn acquire_all(self) -> Result<LeaseSet<Lease>, Error> {
        self.take_in_order().await
    }

    /// Takes all of them, each with a token, or none.
    ///
    /// # Errors
    ///
    /// As [`SeveralEngines::acquire_all`]; [`Error::Invalid`] when one of the engines promises no fencing.
    pub async fn acquire_all_fenced(self) -> Result<LeaseSet<FencedLease>, Error> {
        self.take_in_order().await
    }

    async fn take_in_order<L: LeaseKind>(self) -> Result<LeaseSet<L>, Error> {
        let (ttl, wait, holder) = (self.ttl, self.wait, self.holder.clone());
        let claims = self.claims_in_order().await?;
        let Some(first) = claims.first() else {
            return Err(Error::Invalid("no lease is asked for: name at least one".into()));
        };
        let clock = first.leasehold.clock.clone();
        let give_up = clock.now().plus(wait);
        let mut set = LeaseSet { leases: Vec::with_capacity(claims.len()) };
        for EngineClaim { leasehold, names, .. } in claims {
            let mut claim = leasehold.acquire_all(names).ttl(ttl).wait(give_up.since(clock.now()));
            if let Some(holder) = &holder {
                claim = claim.holder(holder);
            }
            match L::ask_for(claim).await {
                Ok(lease) => set.leases.push(lease),
                Err(error) => {
                    let _ = set.release().await;
                    return Err(error);
                }
            }
        }
        if set.is_live() {
            return Ok(set);
        }
        let _ = set.release().await;
        Err(Refusal::Stale.into())
    }

    /// One claim for each engine, in the order of law 1.
    async fn claims_in_order(self) -> Result<Vec<EngineClaim>, Error> {
        let mut claims: Vec<EngineClaim> = Vec::new();
        for WantedLease { place, leasehold, name } in self.wanted {
            // Two URLs may name one engine; its identity is the same for all.
            let place = leasehold.identity().await?.unwrap_or(place);
            match claims.iter_mut().find(|claim| claim.place == place) {
                Some(claim) => claim.names.push(name),
                None => claims.push(EngineClaim { place, leasehold, names: vec![name] }),
            }
        }
        claims.sort_by(|a, b| a.place.as_bytes().cmp(b.place.as_bytes()));
        for claim in &mut claims {
            claim.names.sort();
            claim.names.dedup();
        }
        Ok(claims)
    }
}

impl Default for SeveralEngines {
    fn default() -> Self {
        Self::new()
    }
}

/// Leases that were taken together. Each renews itself.
#[must_use = "dropped leases are no longer renewed, and lapse with their ttl"]
pub struct LeaseSet<L> {
    /// In the order in which they were taken.
    leases: Vec<L>,
}

impl<L: LeaseKind> LeaseSet<L> {
    /// The leases, one for each engine, in the order in which they were taken.
    #[must_use]
    pub fn leases(&self) -> &[L] {
        &self.leases
    }

    /// Whether they begin and end as one: only if one engine has them all.
    #[must_use]
    pub fn is_atomic(&self) -> bool {
        self.leases.len() == 1
    }

    /// Whether every one is live.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.leases.iter().all(|lease| lease.as_lease().is_live())
    }

    /// Completes when the first of them is in danger: stop starting new work.
    pub async fn danger(&self) {
        first_of(&self.leases, |lease| lease.as_lease().danger()).await;
    }

    /// Completes when the first of them is lost: stop now.
    pub async fn lost(&self) -> Lost {
        first_of(&self.leases, |lease| lease.as_lease().lost()).await
    }

    /// Releases all of them, the last taken first.
    ///
    /// # Errors
    ///
    /// The first error of those that could not be released; the others are released all the same.
    pub async fn release(mut self) -> Result<(), Error> {
        let mut done = Ok(());
        while let Some(lease) = self.leases.pop() {
            let released = lease.end().await.map(drop);
            done = done.and(released);
        }
        done
    }
}

impl<L: fmt::Debug> fmt::Debug for LeaseSet<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LeaseSet").field(&self.leases).finish()
    }
}

/// The output of the first future that completes.
async fn first_of<'a, L, F: Future>(leases: &'a [L], watch: impl Fn(&'a L) -> F) -> F::Output {
    let mut watched: Vec<_> = leases.iter().map(|lease| Box::pin(watch(lease))).collect();
    std::future::poll_fn(|context| {
        let ready = watched.iter_mut().map(|future| future.as_mut().poll(context));
        ready.into_iter().find(std::task::Poll::is_ready).unwrap_or(std::task::Poll::Pending)
    })
    .await
}
