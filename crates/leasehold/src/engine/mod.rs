//! The engine contract: what decides grants, for those who write one.
//!
//! Users of leases want [`crate::Leasehold`]; this trait is for authors of engines. It is object safe,
//! has no default methods, and says at each method what correctness needs from it.
//!
//! # Laws every engine keeps (the conformance suite checks them)
//!
//! 1. At most one exclusive lease per resource is live.
//! 2. Tokens, where there are any, rise per resource with every grant and never come twice.
//! 3. A lease is live on the half-open span `[granted_at, expires_at)`, and nothing lapses early.
//! 4. Nothing is answered before it is as durable as [`Promises`] say.
//! 5. "No" ([`crate::Error::Refused`]) is never confused with "could not ask".

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use sha2::{Digest, Sha256};

pub use leasehold_core::{Mode, Token};

use crate::error::Error;
pub use finding::{EngineProfile, Finding, FindingKind, NotAPromise, Promise};
pub use keys::{Key, Keys, Push};
pub use watch::{Event, EventId, EventKind, Seen, Watch, Watching};

#[cfg(any(feature = "etcd", feature = "redis", feature = "remote", feature = "zookeeper"))]
pub(crate) mod acquire_future;
pub mod admission;
#[cfg(any(feature = "postgres", feature = "redis", feature = "remote"))]
pub(crate) mod clock_offset;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub(crate) mod consensus;
#[cfg(feature = "embedded")]
pub mod embedded;
#[cfg(feature = "etcd")]
pub mod etcd;
mod finding;
#[cfg(any(
    test,
    feature = "embedded",
    feature = "etcd",
    feature = "postgres",
    feature = "redis",
    feature = "testkit",
    feature = "zookeeper"
))]
pub(crate) mod from_book;
mod keys;
#[cfg(any(feature = "embedded", feature = "etcd", feature = "postgres", feature = "redis"))]
pub(crate) mod known_faults;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "redis")]
pub mod redlock;
#[cfg(feature = "remote")]
pub mod remote;
#[cfg(any(feature = "etcd", feature = "redis", feature = "remote", feature = "zookeeper"))]
pub(crate) mod url_text;
mod watch;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

/// Every engine of this build, in the order in which they are shown.
pub const PROFILES: &[EngineProfile] = &[
    #[cfg(feature = "embedded")]
    embedded::PROFILE,
    #[cfg(feature = "remote")]
    remote::PROFILE,
    #[cfg(feature = "redis")]
    redis::PROFILE,
    #[cfg(feature = "redis")]
    redlock::PROFILE,
    #[cfg(feature = "postgres")]
    postgres::PROFILE,
    #[cfg(feature = "etcd")]
    etcd::PROFILE,
    #[cfg(feature = "zookeeper")]
    zookeeper::PROFILE,
];

/// The answer to come. Dropping it gives up the wait: see [`Engine::acquire`].
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// Says what was tried, for the error message; nothing is formatted when nothing goes wrong.
#[cfg(any(feature = "embedded", feature = "postgres", feature = "redis", feature = "remote"))]
pub(crate) type AttemptText<'a> = &'a (dyn Fn() -> String + Sync);

/// What decides grants.
pub trait Engine: Send + Sync + 'static {
    /// What this engine, as it was opened, swears to. It does not change while the engine is open: when a setting is
    /// found to have got weaker, acquires are Unavailable with the setting named, and leases that exist go on.
    fn promises(&self) -> Promises;

    /// Takes all resources of the claim, or none.
    ///
    /// Waits up to `claim.wait` in order of arrival. Dropping the future leaves the queue; if the grant
    /// had already been decided, the engine ends it, so that no lease is left that nobody knows of. With
    /// a request id it stays for its ttl instead: a retry may come for it. A retry while the first try
    /// still waits joins it, and both have the longer wait and the same answer.
    fn acquire(&self, claim: Claim) -> Answer<'_, Grant>;

    /// Sets the end to now + ttl (the last ttl if none is given), never past the cap, never reviving.
    fn renew<'a>(&'a self, lease: &'a LeaseId, ttl: Option<Duration>) -> Answer<'a, Renewal>;

    /// Gives a live lease another holder label; its end, its token and its place stay. Refused as [`Engine::renew`] is.
    fn relabel<'a>(&'a self, lease: &'a LeaseId, holder: &'a str) -> Answer<'a, ()>;

    /// Ends the lease. `true`: this call ended it. `false`: it had been released before.
    fn release<'a>(&'a self, lease: &'a LeaseId) -> Answer<'a, bool>;

    /// Ends every lease on a resource, by an operator's order. Says how many.
    fn revoke<'a>(&'a self, name: &'a str, reason: &'a str) -> Answer<'a, usize>;

    /// What is known of one resource; `None` when nobody holds or awaits it and no delay keeps it closed.
    fn inspect<'a>(&'a self, name: &'a str) -> Answer<'a, Option<Resource>>;

    /// Resources in use, in order of name.
    fn list(&self, query: Query) -> Answer<'_, Vec<Resource>>;

    /// Says below which token none will come any more; with `Some(floor)`, first makes every later token higher than it.
    ///
    /// A raised floor is as durable as a token: in force before the answer, after a crash and after a restart. It never
    /// goes down. The answer is never below a floor that was raised or a token that was granted before the call. A grant
    /// that is decided while the call is under way may still have a lower token. Invalid above [`Token::MAX_FLOOR`],
    /// and from an engine without tokens.
    fn raise_floor(&self, floor: Option<Token>) -> Answer<'_, Token>;

    /// Public text that names this engine: the same for every process that asks it and over its restarts, and not that
    /// of any other engine. None from an engine that has nothing of the kind.
    fn identity(&self) -> Answer<'_, Option<String>>;

    /// Looks at the settings and the state of what decides: what keeps this engine from its best promises, and what an
    /// operator should know. `leasehold doctor` prints it. Reads only.
    fn examine(&self) -> Answer<'_, Vec<Finding>>;

    /// Tells what happens from here on, or from after `since`. See [`Watching`]. Invalid from an engine that cannot be
    /// watched.
    fn watch(&self, since: Option<EventId>) -> Answer<'_, Watch>;

    /// Names as Redis keys; none from an engine that cannot keep a value beside a lease.
    fn keys(&self) -> Option<&dyn Keys>;

    /// Finishes what is under way, and closes files and connections. Later calls are Unavailable.
    fn close(&self) -> Answer<'_, ()>;
}

/// What is asked for: resources, each in its mode, for a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// What is wanted, all or nothing.
    pub wants: Vec<Want>,
    /// Asked life of the lease.
    pub ttl: Duration,
    /// How long to wait in the queue; zero does not wait.
    pub wait: Duration,
    /// Renewals never push the end past grant + this.
    pub max_hold: Option<Duration>,
    /// How long the resources stay closed after a lapse (not after a release). An engine whose leases end with their process
    /// may refuse it as Invalid.
    pub delay: Duration,
    /// Public label of who holds it, for people.
    pub holder: String,
    /// Makes a retried acquire have one effect: the same in every retry, scoped to the principal.
    pub request: Option<String>,
    /// Who asks, as a server knows them: request ids are theirs, leases are counted for them. Empty where
    /// principals are not distinguished.
    pub principal: String,
}

/// One resource of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// The resource.
    pub name: String,
    /// How it is wanted.
    pub mode: Mode,
}

impl Want {
    /// The resource for one holder alone.
    pub fn exclusive(name: impl Into<String>) -> Self {
        Self { name: name.into(), mode: Mode::Exclusive }
    }
}

impl Claim {
    /// A claim that does not wait, without a cap, a delay, a request id or a principal.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use leasehold::engine::{Claim, Want};
    ///
    /// let ttl = Duration::from_secs(30);
    /// let patient = Claim { wait: ttl, ..Claim::new(vec![Want::exclusive("seat-14")], ttl, "ada") };
    /// assert_eq!((patient.wants[0].name.as_str(), patient.max_hold), ("seat-14", None));
    /// ```
    pub fn new(wants: Vec<Want>, ttl: Duration, holder: impl Into<String>) -> Self {
        Self {
            wants,
            ttl,
            wait: Duration::ZERO,
            max_hold: None,
            delay: Duration::ZERO,
            holder: holder.into(),
            request: None,
            principal: String::new(),
        }
    }
}

/// The secret that proves a lease. `Debug` hides it; [`LeaseId::expose`] does not.
///
/// Its form is its engine's affair: at most [`LeaseId::MAX_BYTES`] bytes of `[A-Za-z0-9._-]`. Nobody else reads it.
#[derive(Clone, PartialEq, Eq)]
pub struct LeaseId(Box<str>);

impl LeaseId {
    /// The longest lease id that an engine may make.
    pub const MAX_BYTES: usize = 1024;

    /// Wraps the text form.
    pub fn new(text: impl Into<Box<str>>) -> Self {
        Self(text.into())
    }

    /// The text form: a secret, for the holder alone.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// The public mark of the lease: 16 hexadecimal digits that tell two leases apart where their tokens are equal. It
    /// proves nothing and reveals nothing of the secret.
    ///
    /// ```
    /// use leasehold::LeaseId;
    ///
    /// let id = LeaseId::new("2a-0123456789abcdef0123456789abcdef");
    /// assert_eq!(id.mark(), "bfec454cde43044c");
    /// ```
    #[must_use]
    pub fn mark(&self) -> String {
        let digest = Sha256::new().chain_update(b"leasehold fence v1\0").chain_update(self.0.as_bytes()).finalize();
        digest[..8].iter().fold(String::with_capacity(16), |digits, byte| digits + &format!("{byte:02x}"))
    }
}

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseId(…)")
    }
}

/// A granted claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The secret that proves it.
    pub lease_id: LeaseId,
    /// The fencing token; none from an engine that promises no fencing.
    pub token: Option<Token>,
    /// Life left when the engine decided. Count it from before the request was sent.
    pub remaining: Duration,
    /// How far renewals can still push the end, from now; none without a cap.
    pub renewable: Option<Duration>,
}

/// A renewed lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// Life left when the engine decided. Count it from before the request was sent.
    pub remaining: Duration,
    /// How far renewals can still push the end, from now; none without a cap.
    pub renewable: Option<Duration>,
}

/// Which resources to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// Only names that begin so.
    pub prefix: String,
    /// Only names after this one, for the next page.
    pub after: Option<String>,
    /// At most this many.
    pub limit: usize,
}

/// One resource in use, as everybody may see it: no secret in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// Its name.
    pub name: String,
    /// How it is held, or wanted by the head of its queue.
    pub mode: Mode,
    /// The first holders.
    pub holders: Vec<Holding>,
    /// How many hold it, shown or not.
    pub holders_total: usize,
    /// The first waiters, in order.
    pub waiters: Vec<Waiting>,
    /// How many wait.
    pub queue_len: usize,
}

/// One lease on a resource, as everybody may see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Public label.
    pub holder: String,
    /// The fencing token, where the engine promises fencing.
    pub token: Option<Token>,
    /// How long it has been held.
    pub since: Duration,
    /// Life left without renewal.
    pub remaining: Duration,
}

/// One waiting claim, as everybody may see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Public label.
    pub holder: String,
    /// How long it has waited.
    pub waiting: Duration,
}

/// What an engine swears to. Promises are data: `leasehold engines` prints them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promises {
    /// Short name, as in error messages.
    pub engine: &'static str,
    /// An acknowledged answer survives a crash of the engine.
    pub durable: bool,
    /// Tokens rise with every grant and never come twice.
    pub fencing: bool,
    /// Waiters are served in order of arrival.
    pub fair: bool,
    /// Nothing lapses before its time.
    pub never_early: bool,
    /// A lease outlives the process that took it, for its ttl.
    pub outlives_process: bool,
}
