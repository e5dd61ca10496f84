//! The worker: runs a handler for each job, and ends the job by what the handler returns.
//!
//! ```text
//!   keeper task ──Assignment──▶ handler futures (in your task) ──JobEnded──▶ keeper task: ack, nack, claim
//! ```
//!
//! - Ok: the job is acknowledged, together with the next claim. `Err(Nack)`: tried again later, or a dead letter.
//! - A handler that panics, and a job whose body the handler's type does not take, are a [`Nack`] too; the latter a dead one.
//! - Deliveries are extended at a third of their time. A handler whose delivery can no longer be proven ours is cut off: its
//!   future is dropped.
//! - Handlers run in the task that awaits [`Work::until`]. The keeper is a task of its own, so that a handler that blocks the
//!   thread for a while does not lose the others' deliveries on a runtime with several threads.
//! - A store that is away is asked again, with a backoff; [`Work::on_trouble`] is told.

use std::future::Future;
use std::marker::PhantomData;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Queue;
use super::delivery::{Delivery, DeliveryEnd, Nack};
use super::keeper::{Keeper, KeeperOptions, TroubleHook};
use super::limits::{MAX_VISIBLE, check_slots, check_span, fit_label};
use super::rows::ClaimedJob;
use crate::clock::Clock;
use crate::recipe::error::RecipeError;

/// How often the queue is looked at while nothing wakes the worker.
const DEFAULT_POLL: Duration = Duration::from_secs(5);
/// The longest poll.
const MAX_POLL: Duration = Duration::from_secs(3600);
/// Jobs of one key that are taken together.
const DEFAULT_JOBS_PER_KEY: usize = 10;

/// What a worker did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkReport {
    /// Jobs that ended well.
    pub acked: u64,
    /// Jobs that wait to be tried again.
    pub retried: u64,
    /// Jobs that became dead letters.
    pub dead: u64,
    /// Jobs whose end came too late: another has them, or had them.
    pub stale: u64,
    /// Jobs whose handler was cut off, because the delivery could no longer be proven ours.
    pub lost: u64,
    /// Jobs whose acknowledgement had no answer, and was stale when it was sent again: most likely it had been heard.
    pub unknown: u64,
}

/// A worker that is to be. Nothing happens before [`Work::until`] is awaited.
#[must_use = "nothing is worked on before until is awaited"]
pub struct Work<'a, T, F> {
    queue: &'a Queue,
    handler: F,
    options: KeeperOptions,
    takes: PhantomData<fn() -> T>,
}

/// A job, or the jobs of a key, for one slot of the worker.
pub(super) struct Assignment {
    pub number: u64,
    /// In order.
    pub jobs: Vec<ClaimedJob>,
    pub end: DeliveryEnd,
}

/// How the handler of a job ended.
#[derive(Debug)]
pub(super) enum HandlerEnd {
    Done,
    /// By `Delivery::finish`: the store knows already.
    Finished,
    Failed(Nack),
    /// The delivery could no longer be proven ours.
    CutOff,
}

/// A job of an assignment ended. Anything but `Done` and `Finished` ends the assignment.
#[derive(Debug)]
pub(super) struct JobEnded {
    pub number: u64,
    pub job_id: i64,
    pub end: HandlerEnd,
    /// The last of its assignment.
    pub last: bool,
}

impl<'a, T, F> Work<'a, T, F>
where
    T: DeserializeOwned,
    F: AsyncFn(Delivery<T>) -> Result<(), Nack>,
{
    pub(super) fn new(queue: &'a Queue, slots: usize, handler: F) -> Self {
        let options = KeeperOptions {
            slots,
            jobs_per_key: DEFAULT_JOBS_PER_KEY,
            visible: None,
            poll: DEFAULT_POLL,
            worker: default_worker(),
            on_trouble: None,
        };
        Self { queue, handler, options, takes: PhantomData }
    }

    /// How long a delivery lasts without being extended, where it is not the queue's time.
    pub fn visible(mut self, visible: Duration) -> Self {
        self.options.visible = Some(visible);
        self
    }

    /// How often to look for jobs while nothing wakes the worker. Default: 5 s.
    pub fn poll(mut self, poll: Duration) -> Self {
        self.options.poll = poll;
        self
    }

    /// By key: how many jobs of one key are taken together. Default: 10.
    pub fn jobs_per_key(mut self, jobs: usize) -> Self {
        self.options.jobs_per_key = jobs;
        self
    }

    /// The label of this worker, for people. Default: machine and process.
    pub fn worker(mut self, label: &str) -> Self {
        self.options.worker = fit_label(label);
        self
    }

    /// Called when the store cannot be asked. The worker goes on trying.
    pub fn on_trouble(mut self, hook: impl Fn(&RecipeError) + Send + Sync + 'static) -> Self {
        self.options.on_trouble = Some(TroubleHook(Arc::new(hook)));
        self
    }

    /// Works until `shutdown` completes: then no more jobs are taken, and those that run are waited for.
    ///
    /// Dropping the future gives back the jobs that run: they are tried again at once.
    ///
    /// # Errors
    ///
    /// What cannot get better by trying again: no such queue, an invalid option, a store that breaks its laws. And a store
    /// that is away at the end, when there is still something to acknowledge.
    pub async fn until(self, shutdown: impl Future<Output = ()>) -> Result<WorkReport, RecipeError> {
        check_slots(self.options.slots)?;
        check_slots(self.options.jobs_per_key)?;
        check_span("a poll", self.options.poll, MAX_POLL)?;
        self.options.visible.map_or(Ok(()), |visible| check_span("the time of a delivery", visible, MAX_VISIBLE))?;
        let (assign, mut assigned) = mpsc::unbounded_channel();
        let (report_end, ended) = mpsc::unbounded_channel();
        let stop = CancellationToken::new();
        let clock = self.queue.calls.store.clock.clone();
        let keeper = Keeper::start(self.queue.calls.clone(), self.options, assign, ended, stop.clone()).await?;
        let mut keeper = std::pin::pin!(async move {
            keeper
                .await
                .unwrap_or_else(|error| Err(RecipeError::Invalid(format!("the keeper of a worker died: {error}"))))
        });
        let mut shutdown = std::pin::pin!(shutdown.fuse());
        let slot = AssignmentRunner { queue: self.queue.name(), handler: &self.handler, clock, takes: self.takes };
        let mut running = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                report = &mut keeper => return report,
                () = &mut shutdown, if !stop.is_cancelled() => stop.cancel(),
                Some(()) = running.next(), if !running.is_empty() => {}
                Some(assignment) = assigned.recv() => running.push(slot.run(assignment, report_end.clone())),
            }
        }
    }
}

/// Runs the handler for the jobs of one assignment, one after the other.
struct AssignmentRunner<'a, T, F> {
    queue: &'a str,
    handler: &'a F,
    clock: Arc<dyn Clock>,
    takes: PhantomData<fn() -> T>,
}

impl<T, F> AssignmentRunner<'_, T, F>
where
    T: DeserializeOwned,
    F: AsyncFn(Delivery<T>) -> Result<(), Nack>,
{
    async fn run(&self, assignment: Assignment, report: mpsc::UnboundedSender<JobEnded>) {
        let Assignment { number, jobs, end } = assignment;
        let count = jobs.len();
        let mut done_before = Vec::new();
        for (at, mut job) in jobs.into_iter().enumerate() {
            // By key the claim counted a try of the first job only: the others may never be reached.
            job.attempt = job.attempt.saturating_add(u16::from(at > 0));
            let job_id = job.job_id;
            let ended = self.run_job(job, done_before.clone(), end.clone()).await;
            match ended {
                HandlerEnd::Done => done_before.push(job_id),
                // It ended those before it too.
                HandlerEnd::Finished => done_before.clear(),
                HandlerEnd::Failed(_) | HandlerEnd::CutOff => {}
            }
            let broken = !matches!(ended, HandlerEnd::Done | HandlerEnd::Finished);
            // Nobody listens any more once the keeper has ended.
            let _ = report.send(JobEnded { number, job_id, end: ended, last: broken || at + 1 == count });
            if broken {
                return;
            }
        }
    }

    async fn run_job(&self, job: ClaimedJob, done_before: Vec<i64>, mut end: DeliveryEnd) -> HandlerEnd {
        let body = match serde_json::from_str(&job.body) {
            Ok(body) => body,
            Err(error) => return HandlerEnd::Failed(Nack::dead(format!("the worker does not take this job: {error}"))),
        };
        let finished = Arc::new(AtomicBool::new(false));
        let (queue, clock) = (self.queue.to_owned(), self.clock.clone());
        let delivery = Delivery { queue, job, body, done_before, end: end.clone(), clock, finished: finished.clone() };
        let handled = AssertUnwindSafe((self.handler)(delivery)).catch_unwind();
        let ended = tokio::select! {
            biased;
            () = end.passed(self.clock.as_ref()) => HandlerEnd::CutOff,
            handled = handled => match handled {
                Ok(Ok(())) => HandlerEnd::Done,
                Ok(Err(nack)) => HandlerEnd::Failed(nack),
                Err(panic) => HandlerEnd::Failed(Nack::later(format!("the handler panicked: {}", panic_text(&*panic)))),
            },
        };
        if finished.load(Ordering::SeqCst) { HandlerEnd::Finished } else { ended }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_else(|| "no text".into())
}

/// Asked of the system once.
fn default_worker() -> String {
    static LABEL: OnceLock<String> = OnceLock::new();
    let ask = || format!("{}:{}", rustix::system::uname().nodename().to_string_lossy(), std::process::id());
    fit_label(LABEL.get_or_init(ask))
}
