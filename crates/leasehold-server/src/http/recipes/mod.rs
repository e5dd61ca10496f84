//! The handlers of recipes: one route for each call of the store, and views for people.
//!
//! - [`once`]: tries under idempotency keys. [`queue`], [`lanes`]: the calls of queues, and of queues by key.
//! - [`queues`]: queues and dead letters for people, and what operators change. [`cron`]: schedules and their runs.
//! - [`elections`]: who leads.

pub mod cron;
pub mod elections;
pub mod lanes;
pub mod once;
pub mod queue;
pub mod queues;

use std::ops::RangeInclusive;
use std::time::Duration;

use super::App;
use super::call::HttpCall;
use super::fields::{Fields, missing_field};
use super::problem::Problem;
use crate::service::recipes::{QueueAccess, queue_resource};
use crate::service::{Caller, Denial, Verb};

/// Bytes of a body with a job in it: 1 MiB, and what stands beside it.
const MAX_JOB_BODY_BYTES: usize = (1 << 20) + (64 << 10);
/// Bytes of a body with an answer in it: 1 MiB as hexadecimal digits, or as text with each character escaped.
const MAX_ANSWER_BODY_BYTES: usize = (2 << 20) + (64 << 10);
/// Jobs of one answer: each may have 1 MiB.
const MAX_CLAIMED_JOBS: usize = 64;
/// The longest wait for a push.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// Authorises a call on the queue of the path.
fn authorize_queue(call: &HttpCall, caller: &Caller, verb: Verb) -> Result<QueueAccess, Problem> {
    let name = call.path_segment(2)?;
    let access = call.app.service.recipes(caller, verb, Some(&queue_resource(&name)));
    access.and_then(|access| access.queue(&name)).map_err(|denial| call.denial_problem(&denial, caller))
}

/// The problem for a denial, where the call itself cannot be kept over a wait.
fn deny<'a>(app: &'a App, caller: &'a Caller) -> impl Fn(Denial) -> Problem + 'a {
    move |denial| Problem::with_retry_after(&denial, &app.service, caller)
}

/// A required field that is decimal text.
fn required_decimal(fields: &mut Fields, name: &'static str) -> Result<i64, Problem> {
    fields.take_decimal(name)?.ok_or_else(|| missing_field(name))
}

/// A required text.
fn required_text(fields: &mut Fields, name: &'static str) -> Result<String, Problem> {
    fields.take_text(name)?.ok_or_else(|| missing_field(name))
}

/// Decimal texts, as ids of jobs go.
fn decimal_texts(numbers: &[i64]) -> Vec<String> {
    numbers.iter().map(ToString::to_string).collect()
}

/// A number of the query, within a range.
fn parse_limit(
    name: &str,
    text: Option<String>,
    default: usize,
    range: RangeInclusive<usize>,
) -> Result<usize, Problem> {
    let Some(text) = text else { return Ok(default) };
    let limit = text.parse().ok().filter(|limit| range.contains(limit));
    limit.ok_or_else(|| Problem::invalid(format!("{name} is a number from {} to {}", range.start(), range.end())))
}
