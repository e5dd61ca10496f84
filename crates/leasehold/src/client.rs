//! The way in: open an engine by its URL, then acquire, inspect, revoke.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::acquire::Acquire;
use crate::clock::Clock;
use crate::engine::{Engine, Finding, LeaseId, Promises, Query, Renewal, Resource, Token, Want};
use crate::error::Error;

/// How many resources one request for a list asks for.
const RESOURCES_PER_PAGE: usize = 1000;

/// An open engine. Cheap to clone; clones share the engine.
///
/// # Examples
///
/// ```
/// use leasehold::{Error, Leasehold, Refusal};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("embedded:{}", dir.path().display());
/// let leasehold = Leasehold::open(&url).await?;
///
/// let lease = leasehold.acquire("nightly-report").holder("ada").await?;
///
/// // A second acquire gets an answer, and the answer is no.
/// match leasehold.acquire("nightly-report").await {
///     Err(Error::Refused(Refusal::Held { holder, .. })) => assert_eq!(holder.as_deref(), Some("ada")),
///     other => panic!("{other:?}"),
/// }
///
/// lease.release().await?;
/// leasehold.close().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Leasehold {
    pub(crate) engine: Arc<dyn Engine>,
    /// What guards count their validity by.
    pub(crate) clock: Arc<dyn Clock>,
}

impl Leasehold {
    /// Opens an engine by its URL: `embedded:DIR`, `leasehold://host:port` for a server, `redis://host:port`,
    /// `redlock://h1:port,h2:port,h3:port`, `postgres://user@host/database`, `etcd://h1:port,h2:port,h3:port`,
    /// `zk://h1:port,h2:port,h3:port/chroot`.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a URL no engine of this build answers to; otherwise what the engine says
    /// when it cannot be opened.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let error = leasehold::Leasehold::open("mysql://localhost").await.unwrap_err();
    /// assert_eq!(error.to_string(), "no engine answers to mysql: use embedded:DIR or leasehold://host:port");
    /// # }
    /// ```
    pub async fn open(url: &str) -> Result<Self, Error> {
        // No message repeats more of the URL than its scheme: the rest may carry a password.
        let Some((scheme, rest)) = url.split_once(':') else {
            return Err(Error::Invalid("an engine URL begins with its scheme, as in embedded:DIR".into()));
        };
        match scheme {
            "embedded" if rest.is_empty() => {
                Err(Error::Invalid("embedded: wants a directory, as in embedded:./leases".into()))
            }
            // `embedded://leases` would mean /leases in the root, which nobody means.
            "embedded" if rest.starts_with("//") => Err(Error::Invalid(
                "embedded: is followed by a path, without //, as in embedded:/var/lib/leases".into(),
            )),
            "embedded" => open_embedded(rest).await,
            "leasehold" | "leaseholds" => open_remote(url).await,
            "postgres" | "postgresql" => open_postgres(url).await,
            "redis" | "rediss" => open_redis(url).await,
            "redlock" => open_redlock(url).await,
            "etcd" | "etcds" => open_etcd(url).await,
            "zk" => open_zookeeper(url).await,
            other if is_scheme(other) => {
                Err(Error::Invalid(format!("no engine answers to {other}: use embedded:DIR or leasehold://host:port")))
            }
            _ => Err(Error::Invalid("an engine URL begins with its scheme, as in embedded:DIR".into())),
        }
    }

    /// Uses an engine that is open already. The clock is the one its guards count their validity by.
    #[must_use]
    pub fn with_engine(engine: Arc<dyn Engine>, clock: Arc<dyn Clock>) -> Self {
        Self { engine, clock }
    }

    /// The engine that decides.
    #[must_use]
    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    /// What the engine, as configured, swears to.
    #[must_use]
    pub fn promises(&self) -> Promises {
        self.engine.promises()
    }

    /// Asks for one resource, exclusively, for 30 s, without waiting. The builder changes each of these.
    pub fn acquire(&self, name: impl Into<String>) -> Acquire {
        self.acquire_all([name])
    }

    /// Asks for several resources at once, all or nothing. There is no order to keep: a claim that
    /// waits holds none of them meanwhile, so two such claims cannot block each other.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let leasehold = leasehold::Leasehold::open(&format!("embedded:{}", dir.path().display())).await?;
    /// let pair = leasehold.acquire_all(["seat-14", "seat-15"]).await?;
    /// assert!(leasehold.acquire("seat-15").await.is_err());
    /// # pair.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire_all<I: IntoIterator<Item: Into<String>>>(&self, names: I) -> Acquire {
        let wants = names.into_iter().map(Want::exclusive);
        Acquire::new(self.engine.clone(), self.clock.clone(), wants.collect())
    }

    /// What is known of one resource; `None` when nobody holds or awaits it.
    ///
    /// # Errors
    ///
    /// What the engine says when it cannot be asked.
    pub async fn inspect(&self, name: &str) -> Result<Option<Resource>, Error> {
        self.engine.inspect(name).await
    }

    /// Every resource in use whose name begins with `prefix`, in order of name. The list is asked for
    /// in pages, so it is not a picture of one moment.
    ///
    /// # Errors
    ///
    /// What the engine says when it cannot be asked.
    pub async fn list(&self, prefix: &str) -> Result<Vec<Resource>, Error> {
        let mut found: Vec<Resource> = Vec::new();
        loop {
            let after = found.last().map(|resource| resource.name.clone());
            let query = Query { prefix: prefix.into(), after: after.clone(), limit: RESOURCES_PER_PAGE };
            let page = self.engine.list(query).await?;
            // Only an empty page is the end: an engine may give fewer than were asked for.
            let Some(last) = page.last() else { return Ok(found) };
            if after.is_some_and(|after| last.name <= after) {
                return Err(Error::Corrupt {
                    engine: self.promises().engine,
                    law: "a list goes on after the name given".into(),
                    at: last.name.clone(),
                });
            }
            found.extend(page);
        }
    }

    /// Ends every lease on a resource, by an operator's order. Says how many.
    ///
    /// # Errors
    ///
    /// What the engine says when it cannot be asked.
    pub async fn revoke(&self, name: &str, reason: &str) -> Result<usize, Error> {
        self.engine.revoke(name, reason).await
    }

    /// Says below which token none will come any more; with `Some(floor)`, first makes every later token higher than it.
    ///
    /// A fence refuses tokens below the highest one it has seen. Raise the floor to that one when the engine is new and
    /// the fence is not: after a move to another engine, or when the engine was restored from an old copy.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let leasehold = leasehold::Leasehold::open(&format!("embedded:{}", dir.path().display())).await?;
    /// let seen_by_the_fence = leasehold::Token::new(4711);
    /// leasehold.raise_floor(seen_by_the_fence).await?;
    ///
    /// let lease = leasehold.acquire("seat-14").fenced().await?;
    /// assert!(Some(lease.token()) > seen_by_the_fence);
    /// # lease.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] above [`Token::MAX_FLOOR`], from an engine without tokens, and from a server that is too old;
    /// otherwise what the engine says when it cannot be asked.
    pub async fn raise_floor(&self, floor: Option<Token>) -> Result<Token, Error> {
        self.engine.raise_floor(floor).await
    }

    /// Public text that names the engine, the same for every process that uses it; `None` where the engine has none.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] from a server that is too old; otherwise what the engine says when it cannot be asked.
    pub async fn identity(&self) -> Result<Option<String>, Error> {
        self.engine.identity().await
    }

    /// Renews by the bare id, for those who keep no guard. Count `remaining` from before the call.
    ///
    /// # Errors
    ///
    /// Refused with `Stale` or `NotHeld` when the lease is gone; otherwise the engine could not be asked.
    pub async fn renew(&self, id: &LeaseId, ttl: Option<Duration>) -> Result<Renewal, Error> {
        self.engine.renew(id, ttl).await
    }

    /// Gives a live lease another holder label, by the bare id. Nothing else of the lease changes.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let leasehold = leasehold::Leasehold::open(&format!("embedded:{}", dir.path().display())).await?;
    /// let lease = leasehold.acquire("leader").holder("starting").await?;
    /// leasehold.relabel(lease.lease_id(), "http://10.0.0.7:8080").await?;
    ///
    /// let seen = leasehold.inspect("leader").await?.expect("it is held");
    /// assert_eq!(seen.holders[0].holder, "http://10.0.0.7:8080");
    /// # lease.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Refused with `Stale` or `NotHeld` when the lease is gone; [`Error::Invalid`] for a label that is too long;
    /// otherwise the engine could not be asked.
    pub async fn relabel(&self, id: &LeaseId, holder: &str) -> Result<(), Error> {
        self.engine.relabel(id, holder).await
    }

    /// What keeps the engine from its best promises, and what an operator should know of it.
    ///
    /// # Errors
    ///
    /// What the engine says when it cannot be asked.
    pub async fn examine(&self) -> Result<Vec<Finding>, Error> {
        self.engine.examine().await
    }

    /// Releases by the bare id. `true`: this call ended it. `false`: it had been released before.
    ///
    /// # Errors
    ///
    /// Refused with `Stale` or `NotHeld` when the lease is gone; otherwise the engine could not be asked.
    pub async fn release(&self, id: &LeaseId) -> Result<bool, Error> {
        self.engine.release(id).await
    }

    /// Finishes what is under way and closes the engine, for every clone. Later calls are Unavailable.
    ///
    /// # Errors
    ///
    /// What the engine says when it could not finish.
    pub async fn close(&self) -> Result<(), Error> {
        self.engine.close().await
    }
}

impl fmt::Debug for Leasehold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leasehold").field("promises", &self.promises()).finish_non_exhaustive()
    }
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.len() <= 32
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
}

#[cfg(feature = "embedded")]
async fn open_embedded(dir: &str) -> Result<Leasehold, Error> {
    use crate::clock::SystemClock;
    use crate::engine::embedded::{Embedded, Options};
    let engine = Embedded::open(dir, Options::default()).await?;
    Ok(Leasehold::with_engine(engine, SystemClock::shared()))
}

#[cfg(feature = "remote")]
async fn open_remote(url: &str) -> Result<Leasehold, Error> {
    use crate::clock::SystemClock;
    use crate::engine::remote::{Options, Remote};
    let engine = Remote::open(Options::from_url(url)?).await?;
    Ok(Leasehold::with_engine(engine, SystemClock::shared()))
}

#[cfg(feature = "redis")]
async fn open_redis(url: &str) -> Result<Leasehold, Error> {
    use crate::clock::SystemClock;
    use crate::engine::redis::{RedisEngine, RedisOptions};
    let engine = RedisEngine::open(RedisOptions::from_url(url)?).await?;
    Ok(Leasehold::with_engine(engine, SystemClock::shared()))
}

#[cfg(feature = "redis")]
async fn open_redlock(url: &str) -> Result<Leasehold, Error> {
    use crate::clock::SystemClock;
    use crate::engine::redlock::{Redlock, RedlockOptions};
    let engine = Redlock::open(RedlockOptions::from_url(url)?).await?;
    Ok(Leasehold::with_engine(engine, SystemClock::shared()))
}

#[cfg(feature = "etcd")]
async fn open_etcd(url: &str) -> Result<Leasehold, Error> {
    use crate::clock::SystemClock;
    use crate::engine::etcd::{EtcdEngine, EtcdEngineOptions};
    let engine = EtcdEngine::open(EtcdEngineOptions::from_url(url)?).await?;
    Ok(Leasehold::with_engine(engine, SystemClock::shared()))
}

#[cfg(not(feature = "etcd"))]
async fn open_etcd(_url: &str) -> Result<Leasehold, Error> {
    Err(Error::Invalid("this build asks no etcd clusters: build leasehold with the feature `etcd`".into()))
}

#[cfg(feature = "zookeeper")]
async fn open_zookeeper(url: &str) -> Result<Leasehold, Error> {
    use crate::clock::SystemClock;
    use crate::engine::zookeeper::{ZookeeperEngine, ZookeeperEngineOptions};
    let engine = ZookeeperEngine::open(ZookeeperEngineOptions::from_url(url)?).await?;
    Ok(Leasehold::with_engine(engine, SystemClock::shared()))
}

#[cfg(not(feature = "zookeeper"))]
async fn open_zookeeper(_url: &str) -> Result<Leasehold, Error> {
    Err(Error::Invalid("this build asks no ZooKeeper: build leasehold with the feature `zookeeper`".into()))
}

#[cfg(not(feature = "redis"))]
async fn open_redlock(url: &str) -> Result<Leasehold, Error> {
    open_redis(url).await
}

#[cfg(not(feature = "redis"))]
async fn open_redis(_url: &str) -> Result<Leasehold, Error> {
    Err(Error::Invalid("this build asks no Redis servers: build leasehold with the feature `redis`".into()))
}

#[cfg(not(feature = "remote"))]
async fn open_remote(_url: &str) -> Result<Leasehold, Error> {
    Err(Error::Invalid("this build asks no servers: build leasehold with the feature `remote`".into()))
}

#[cfg(feature = "postgres")]
async fn open_postgres(url: &str) -> Result<Leasehold, Error> {
    use crate::clock::SystemClock;
    use crate::engine::postgres::{PostgresEngine, PostgresEngineOptions};
    let engine = PostgresEngine::open(PostgresEngineOptions::from_url(url)?).await?;
    Ok(Leasehold::with_engine(engine, SystemClock::shared()))
}

#[cfg(not(feature = "postgres"))]
async fn open_postgres(_url: &str) -> Result<Leasehold, Error> {
    Err(Error::Invalid("this build does not use PostgreSQL: build leasehold with the feature `postgres`".into()))
}

#[cfg(not(feature = "embedded"))]
async fn open_embedded(_dir: &str) -> Result<Leasehold, Error> {
    Err(Error::Invalid("this build has no embedded engine: build leasehold with the feature `embedded`".into()))
}
