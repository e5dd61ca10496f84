//! One leader of many: campaign in line, lead, step down before another could follow.
//!
//! ```text
//!   Election ── campaign (in line) ──▶ Leader ── run(work) ──▶ resign
//!      │                                 └── lost ──▶ work is dropped, campaign again
//!      └────── observe ──▶ who leads, whenever that changes
//! ```
//!
//! The chair of the election `NAME` is the resource `election/NAME`, held by a lease. The leader's value is the holder
//! label of that lease: every engine shows it to everybody.
//!
//! # Laws
//!
//! 1. At no moment do two leaders of one election believe in their term: the validity of a lease is counted from
//!    before its request, so a term is *lost* before the engine can grant the next.
//! 2. Work under [`Leader::run`] is not polled any more once the term is lost.
//! 3. An observer never goes back: the tokens it tells do not fall.
//!
//! # Not promised
//!
//! That a paused leader stops. The process may be frozen in the middle of a write, and wake up when another leads. The
//! token of the term makes that harmless, where the thing written to compares it: see [`crate::fence`]. An engine
//! without fencing has leaders without a token: [`Election::campaign_unfenced`].

mod leader;
mod observer;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::Time;

use super::LeaseKind;
use super::counters::count_election_term;
use crate::acquire::Acquire;
use crate::client::Leasehold;
use crate::clock::spread_upper_half;
use crate::error::{Error, Refusal};
use crate::lease::{FencedLease, Lease};
pub use leader::Leader;
pub use observer::{ElectedLeader, Observer};

/// Names of elections begin with this, as resources.
pub const RESOURCE_PREFIX: &str = "election/";

const DEFAULT_TTL: Duration = Duration::from_secs(15);
/// How long one claim waits in line before the next is sent: what engines allow by default.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);
/// First pause after the engine could not be asked, and the longest.
const FIRST_BACKOFF: Duration = Duration::from_millis(250);
const MAX_BACKOFF: Duration = Duration::from_secs(5);

/// Told of what kept a campaign from its place in line.
type OnTrouble = Arc<dyn Fn(&Error) + Send + Sync>;

impl Leasehold {
    /// The election of this name: its chair is the resource `election/NAME`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let leasehold = leasehold::Leasehold::open(&format!("embedded:{}", dir.path().display())).await?;
    /// let leader = leasehold.election("scheduler").value("10.0.0.7:9000").campaign().await?;
    /// let token = leader.run(async |term| term.token()).await?;
    ///
    /// let mut seen = leasehold.election("scheduler").observe();
    /// let now = seen.next().await?.expect("somebody leads");
    /// assert_eq!((now.value.as_str(), now.token), ("10.0.0.7:9000", Some(token)));
    ///
    /// leader.resign().await?;
    /// assert!(seen.next().await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election {
            leasehold: self.clone(),
            resource: format!("{RESOURCE_PREFIX}{}", name.as_ref()),
            value: None,
            ttl: DEFAULT_TTL,
            patience: None,
            claim_wait: LONGEST_WAIT,
            on_trouble: None,
        }
    }
}

/// An election, and how to stand in it.
#[derive(Clone)]
#[must_use = "nothing is asked until it campaigns or observes"]
pub struct Election {
    leasehold: Leasehold,
    resource: String,
    /// None: the usual holder label.
    value: Option<String>,
    ttl: Duration,
    /// None: for ever.
    patience: Option<Duration>,
    claim_wait: Duration,
    on_trouble: Option<OnTrouble>,
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election")
            .field("resource", &self.resource)
            .field("value", &self.value)
            .field("ttl", &self.ttl)
            .finish_non_exhaustive()
    }
}

impl Election {
    /// What the leader tells the others, such as its address: at most 256 bytes. Default: `hostname:pid`.
    pub fn value(mut self, value: impl Into<String>) -> Self {
        self.value = Some(value.into());
        self
    }

    /// How long a term lasts without renewal. Default: 15 s. It is the longest time without a leader when one dies.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long to campaign. Default: for ever.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }

    /// How long one claim waits in line before another one is sent, which then stands at the end of the line.
    /// Default: 1 h. A server with a lower limit refuses more than that limit.
    pub fn claim_wait(mut self, wait: Duration) -> Self {
        self.claim_wait = wait;
        self
    }

    /// Calls this whenever the engine could not be asked and the campaign goes on.
    pub fn on_trouble(mut self, call: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        self.on_trouble = Some(Arc::new(call));
        self
    }

    /// The resource that the leader holds.
    #[must_use]
    pub fn resource(&self) -> &str {
        &self.resource
    }

    /// Stands in line until this process leads, with a token for its writes.
    ///
    /// Goes on while the engine is away: see [`Election::on_trouble`]. Dropping the future leaves the line.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] when the engine promises no fencing, or the claim can never be granted; [`Error::Corrupt`].
    /// With a [`patience`](Election::patience), what the engine said last when it is over: held, or could not be asked.
    pub async fn campaign(self) -> Result<Leader, Error> {
        let promises = self.leasehold.promises();
        if !promises.fencing {
            return Err(Error::Invalid(format!(
                "the {} engine, as configured, promises no fencing, so its leaders have no token: campaign_unfenced() if \
                 two leaders for a moment would only waste work, else use another engine",
                promises.engine
            )));
        }
        self.stand_in_line::<FencedLease>().await
    }

    /// As [`Election::campaign`], on any engine, for a leader without a token: two that lead for a moment must do no
    /// more harm than wasted work.
    ///
    /// # Errors
    ///
    /// As [`Election::campaign`].
    pub async fn campaign_unfenced(self) -> Result<Leader<Lease>, Error> {
        self.stand_in_line::<Lease>().await
    }

    /// Tells who leads, and tells it again whenever that changes.
    pub fn observe(&self) -> Observer {
        Observer::new(self.leasehold.clone(), self.resource.clone(), self.ttl / 3)
    }

    async fn stand_in_line<L: LeaseKind>(self) -> Result<Leader<L>, Error> {
        let clock = self.leasehold.clock.clone();
        let give_up = self.patience.map_or(Time::NEVER, |patience| clock.now().plus(patience));
        let mut failures = 0;
        loop {
            let asked = clock.now();
            let wait = self.claim_wait.min(give_up.since(asked));
            match L::ask_for(self.claim(wait)).await {
                Ok(lease) => {
                    count_election_term();
                    return Ok(Leader::new(self.leasehold.clone(), lease));
                }
                Err(error @ (Error::Invalid(_) | Error::Corrupt { .. })) => return Err(error),
                Err(error) if clock.now() >= give_up => return Err(error),
                // One claim has waited as long as a claim may: the next stands at the end of the line.
                Err(Error::Refused(Refusal::Held { .. })) if clock.now() >= asked.plus(wait) => failures = 0,
                Err(error) => {
                    if let Some(call) = &self.on_trouble {
                        call(&error);
                    }
                    let pause = self.backoff(failures, clock.now());
                    failures = failures.saturating_add(1);
                    clock.sleep_until(clock.now().plus(pause).min(give_up)).await;
                }
            }
        }
    }

    fn claim(&self, wait: Duration) -> Acquire {
        let claim = self.leasehold.acquire(&self.resource).ttl(self.ttl).wait(wait);
        match &self.value {
            Some(value) => claim.holder(value),
            None => claim,
        }
    }

    /// Doubling and bounded. Spread, so that candidates whose engine comes back do not ask in step.
    fn backoff(&self, failures: u32, now: Time) -> Duration {
        let whole = FIRST_BACKOFF.saturating_mul(1 << failures.min(16)).min(MAX_BACKOFF);
        spread_upper_half(whole, &(&self.resource, &self.value, std::process::id(), now, failures))
    }
}
