//! The check beside the resource: what makes a holder that woke up too late harmless.
//!
//! No lease can stop a paused process. What can be kept is an order: every grant carries a higher
//! [`Token`](crate::Token) than the one before, the resource remembers the highest it has seen, and
//! refuses anything lower **in the same step as the write**. A check before the write is no fence: the
//! pause may come between the two.
//!
//! - [`Register`]: a value in memory with its fence, the reference for all others.

mod register;

pub use register::{Register, Stale};
