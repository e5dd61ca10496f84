//! What engine authors and careful users test with (feature `testkit`).
//!
//! - [`ManualClock`]: time that moves when you say so.
//! - [`FlakyEngine`]: an engine around an engine, that fails or hangs on order.
//! - [`CoreEngine`]: the book alone as an engine, for what does not need a disk.
//! - [`fence_cases`]: the table of cases that every adapter of a fence passes.
//! - [`differential`]: random operations on an engine and on the book, answer by answer.
//! - [`draw`]: numbers and claims from a seed.
//! - [`scenario`]: text scripts that a non-Rust reader can review, run against any engine.

mod core_engine;
pub mod differential;
pub mod draw;
pub mod fence_cases;
mod flaky;
mod manual_clock;
pub mod scenario;

pub use core_engine::{CoreEngine, TickTiming};
pub use flaky::{EngineCall, EngineFault, FlakyEngine};
pub use manual_clock::ManualClock;
