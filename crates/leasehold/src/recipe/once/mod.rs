//! `once`: idempotency keys. The first answer is stored, and every later request with the same key gets it.
//!
//! ```text
//!   (none) ─begin▶ trying(token, until) ─finish▶ answered ─expires_at▶ (none)
//!                    ▲        │ until is over, or abandoned
//!                    └─begin──┘ by the next request, with a higher token
//! ```
//!
//! Two forms:
//!
//! - **Two phases**, [`Store::once`]: the work is somewhere else, such as at a payment provider. While it runs, a second
//!   request is told [`RecipeRefusal::InFlight`] and the time left.
//! - **One transaction**, [`begin`] and [`sqlite::begin`]: the work is in the same database. The key, the work and the answer
//!   commit together. A second request waits for the end of the first.
//!
//! ```
//! use std::time::Duration;
//! use leasehold::recipe::{Store, once::Answer};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let store = Store::open(&format!("sqlite:{}/recipes.db", dir.path().display())).await?;
//! let order = r#"{"seat":14,"cents":4200}"#;
//! for request in 0..2 {
//!     let charge = store.once("payments", "order-7", order).ttl(Duration::from_secs(30));
//!     let answer = charge.run(async |first| {
//!         // Pass the key or the token on: the provider, too, may be asked twice by a try that was taken over.
//!         Ok(Answer::new(201, format!("charged by try {}", first.token())))
//!     });
//!     let answer = answer.await?;
//!     assert_eq!((answer.status, answer.replayed), (201, request > 0));
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Laws
//!
//! 1. There is one stored answer for each (scope, key) until it expires.
//! 2. Every answer that is told is the stored one.
//! 3. A finish, a renewal or an abandonment without the newest token writes nothing: a slow first try cannot overwrite the
//!    one that took over.
//!
//! # Not promised
//!
//! **One effect**, in two phases: a first try that was taken over may have done its work. It is one effect if the work is in
//! the transaction, or if the other side compares the key or the token.

#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "http")]
mod remote;
mod request;
mod run;
#[cfg(feature = "sqlite")]
pub mod sqlite;

use std::time::Duration;

#[cfg(feature = "postgres")]
pub use postgres::{begin, begin_request};
pub use request::OnceRequest;
pub use run::Once;

use crate::recipe::error::{RecipeError, RecipeRefusal};
use crate::recipe::store::{Store, StoreDatabase};

/// An answer: of the work, or as it was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// A status of the caller's choice, as of HTTP, or an exit code.
    pub status: i32,
    /// The body, at most 1 MiB.
    pub body: Vec<u8>,
    /// It was stored before: the work did not run.
    pub replayed: bool,
}

impl Answer {
    /// The answer of work that was done.
    pub fn new(status: i32, body: impl Into<Vec<u8>>) -> Self {
        Self { status, body: body.into(), replayed: false }
    }
}

/// What [`begin`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Begun {
    /// Nobody has answered, and nobody else is at it: do the work, then [`First::finish`].
    First(First),
    /// It was answered before: here is the answer.
    Replay(Answer),
    /// Another try still runs. Ask again after that long.
    InFlight {
        /// How long until it can be taken over.
        remaining: Duration,
    },
    /// The key was used before for another request.
    Mismatch,
}

impl Begun {
    /// The first try or the answer; the other two as refusals.
    fn into_result(self) -> Result<Result<First, Answer>, RecipeError> {
        match self {
            Self::First(first) => Ok(Ok(first)),
            Self::Replay(answer) => Ok(Err(answer)),
            Self::InFlight { remaining } => Err(RecipeRefusal::InFlight { remaining: Some(remaining) }.into()),
            Self::Mismatch => Err(RecipeRefusal::Mismatch.into()),
        }
    }
}

/// The right to answer a key, until it is taken over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct First {
    scope: String,
    key: String,
    token: i64,
}

impl First {
    /// A first try that was begun somewhere else, such as by the process that hands this one its work.
    pub fn from_parts(scope: impl Into<String>, key: impl Into<String>, token: i64) -> Self {
        Self { scope: scope.into(), key: key.into(), token }
    }

    /// Rises with every try of the key. Pass it on, where the other side can compare it. It is no token of a lease.
    #[must_use]
    pub const fn token(&self) -> i64 {
        self.token
    }

    fn stale(&self) -> RecipeError {
        RecipeRefusal::Stale { what: format!("try {} of {}/{}", self.token, self.scope, self.key) }.into()
    }
}

/// How a try ends, or goes on.
#[derive(Clone, Copy, Debug)]
pub enum OnceEnd<'a> {
    /// The answer is stored.
    Finish {
        /// A status of the caller's choice.
        status: i32,
        /// At most 1 MiB.
        body: &'a [u8],
    },
    /// It goes on, for so long from now.
    Renew {
        /// At most 1 h.
        ttl: Duration,
    },
    /// It is given up: the next request runs.
    Abandon,
}

impl Store {
    /// A request under an idempotency key. Nothing is asked before [`Once::run`].
    ///
    /// `body` is what must be the same when the key is used again.
    pub fn once(&self, scope: impl Into<String>, key: impl Into<String>, body: impl AsRef<[u8]>) -> Once {
        Once::new(self.clone(), OnceRequest::new(scope, key, body))
    }

    /// The first half of [`Once::run`], for callers whose work is not one future. Nothing is renewed by itself.
    ///
    /// # Errors
    ///
    /// [`RecipeError::Indeterminate`]: the try may have begun under a token that nobody knows. The next one begins when its
    /// ttl is over.
    pub async fn once_begin(&self, request: &OnceRequest) -> Result<Begun, RecipeError> {
        request.check()?;
        match &self.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(database) => database.once_begin(request).await,
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(database) => database.once_begin(request).await,
            #[cfg(feature = "http")]
            StoreDatabase::Server(database) => database.once_begin(request).await,
        }
    }

    /// The second half: ends a try, or renews it. False: another took over, it lapsed, or it was answered already; nothing
    /// was written.
    ///
    /// # Errors
    ///
    /// What the store says when it cannot be asked, and limits.
    pub async fn once_end(&self, first: &First, end: OnceEnd<'_>) -> Result<bool, RecipeError> {
        request::check_first(first)?;
        request::check_end(end)?;
        match &self.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(database) => database.once_end(first, end).await,
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(database) => database.once_end(first, end).await,
            #[cfg(feature = "http")]
            StoreDatabase::Server(database) => database.once_end(first, end).await,
        }
    }

    /// Whether the answer of this try is the stored one: for a finish whose reply was lost.
    ///
    /// # Errors
    ///
    /// What the store says when it cannot be asked.
    pub async fn once_is_stored(&self, first: &First) -> Result<bool, RecipeError> {
        request::check_first(first)?;
        match &self.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(database) => database.once_is_stored(first).await,
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(database) => database.once_is_stored(first).await,
            #[cfg(feature = "http")]
            StoreDatabase::Server(database) => database.once_is_stored(first).await,
        }
    }

    /// Removes up to a thousand answers that expired more than an hour ago, and says how many. Processes that use
    /// [`Once::run`] do so themselves, once a minute, until none is left. Call it where only the forms in a transaction are
    /// used.
    ///
    /// # Errors
    ///
    /// What the store says when it cannot be asked.
    pub async fn forget_expired(&self) -> Result<usize, RecipeError> {
        match &self.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(database) => database.once_forget().await,
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(database) => database.once_forget().await,
            // The server does it.
            #[cfg(feature = "http")]
            StoreDatabase::Server(_) => Ok(0),
        }
    }
}
