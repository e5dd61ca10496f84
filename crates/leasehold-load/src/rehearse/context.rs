//! The context of a rehearsal: what every HTTP client and every buyer task shares.

use std::sync::Arc;
use std::time::Duration;

use super::counters::SharedCounters;
use super::deployment::Deployment;
use crate::bench::stop_signal::StopSignal;

/// What all buyers share.
#[derive(Clone)]
pub struct RehearsalContext {
    /// Where to ask.
    pub deployment: Arc<Deployment>,
    /// What came of it.
    pub counters: SharedCounters,
    /// Whether to go on.
    pub stop: StopSignal,
    /// How long to ask for an answer that does not come.
    pub patience: Duration,
}
