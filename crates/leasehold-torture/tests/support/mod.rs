//! What the tests with real servers share.
#![allow(dead_code, reason = "each test uses a part of it")]
#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "real servers live in real time")]

pub mod client_process;
pub mod fleet_run;
pub mod laws;
pub mod recorder;
pub mod report;
pub mod stops;
