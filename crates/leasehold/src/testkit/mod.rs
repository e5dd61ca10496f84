//! What engine authors and careful users test with (feature `testkit`).
//!
//! - [`ManualClock`]: time that moves when you say so.
//! - [`Flaky`]: an engine around an engine, that fails or hangs on order.

mod flaky;
mod manual_clock;

pub use flaky::{Fault, Flaky, Verb};
pub use manual_clock::ManualClock;
