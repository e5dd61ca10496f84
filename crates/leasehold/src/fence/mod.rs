//! The check beside the resource: what makes a holder that woke up too late harmless.
//!
//! No lease can stop a paused process. What can be kept is an order: every grant carries a higher
//! [`Token`](crate::Token) than the one before, the resource remembers the highest it has seen, and
//! refuses anything lower **in the same step as the write**. A check before the write is no fence: the
//! pause may come between the two.
//!
//! - [`rule`]: the rule, in one place. Every adapter is tested with the same table of cases.
//! - [`token_text`]: the texts in which a token travels to a resource.
//! - [`refusal`]: why a fenced write did not happen.
//! - `hole` (features `postgres` and `sqlite`): ways by which a stale write could get past a fence.
//! - `resource_template` (the same): which resource a row of a table is.
//! - [`counters`]: how many writes the adapters of this process admitted and refused.
//! - [`Register`]: a value in memory with its fence, the reference for all others.
//! - `postgres` (feature `postgres`): tables that refuse stale writers, whoever the client is.
//! - `sqlite` (feature `sqlite`): the same for tables of a SQLite file.
//! - `redis` (feature `redis`): keys of Redis, for clients that write through the script.
//! - `file` (feature `embedded`): local files.
//! - `object` (feature `object`): objects of a store with conditional writes.
//!
//! # What a fence is not
//!
//! It is no authentication: whoever may write may show a token of their own making. It stops the honest who are late.
//! It is for exclusive leases only. Two shared holders have two tokens, and the lower one would be refused while its
//! lease is live.

pub mod counters;
#[cfg(feature = "embedded")]
pub mod file;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub mod hole;
#[cfg(feature = "object")]
pub mod object;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
pub mod refusal;
mod register;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub mod resource_template;
pub mod rule;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub mod token_text;

pub use counters::FenceKind;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use hole::{FenceHole, HoleKind};
pub use refusal::{FenceError, FenceRefusal};
pub use register::Register;
pub use rule::{FenceVerdict, decide};
pub use token_text::{FenceSetting, FenceToken, LeaseMark};
