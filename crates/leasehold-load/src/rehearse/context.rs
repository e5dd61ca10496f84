//! The context of a rehearsal: what all HTTP clients and buyer tasks share.

use std::sync::Arc;
use std::time::Duration;

use super::counters::SharedCounters;
use super::deployment::Deployment;
use crate::bench::stop_signal::StopSignal;

#[derive(Clone)]
pub struct RehearsalContext {
    pub deployment: Arc<Deployment>,
    pub counters: SharedCounters,
    pub stop: StopSignal,
    /// How long a request without a response is retried.
    pub patience: Duration,
}
