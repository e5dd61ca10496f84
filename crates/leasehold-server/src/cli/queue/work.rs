//! `leasehold queue work`: runs a command for each job.

use std::ffi::OsString;
use std::pin::pin;
use std::time::Duration;

use clap::Args;
use leasehold::recipe::queue::{Delivery, Nack, Queue};
use leasehold::recipe::{RecipeError, Store};
use leasehold_support::exit::{self, Failure};
use leasehold_support::signals::{self, Signals};
use leasehold_support::{duration, output};
use serde::Serialize;
use serde::de::IgnoredAny;

use super::child::JobCommand;
use super::{QueuePlace, open_or_make};
use crate::cli::target;

/// How often `--drain` looks whether anything is left.
const DRAIN_CHECK_EVERY: Duration = Duration::from_millis(200);
/// Jobs whose workers died come back within this time after their deliveries.
const LAPSED_COME_BACK_WITHIN: Duration = Duration::from_millis(1100);

const EXAMPLE: &str = "\
Example:
  leasehold queue work mail -j 4 -- ./send-mail.sh
  leasehold queue work mail --drain -- sh -c 'jq -r .to'

The job is on stdin. The command finds LEASEHOLD_JOB_ID, LEASEHOLD_JOB_TOKEN, LEASEHOLD_JOB_ATTEMPT and, by key,
LEASEHOLD_JOB_KEY in its environment. ATTEMPT is 1 for the first try. Exit code 0: done. 65: a dead letter. Anything else: tried again later.

The delivery is extended while the command runs. When that fails, the command's whole process group gets TERM, then KILL
before another worker can be given the job. TERM and INT: no more jobs are taken, and the commands that run are waited
for. A second one: they are killed, and their jobs are given back. A plain queue is made if there is none of this name.";

/// Runs a command for each job of a queue
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct QueueWorkArgs {
    /// The queue
    #[arg(value_name = "Q")]
    queue: String,
    /// Commands at a time; by key: keys at a time
    #[arg(short = 'j', long = "jobs", value_name = "N", default_value_t = 1)]
    jobs: usize,
    /// How long a delivery lasts without being extended [default: the queue's]
    #[arg(long, value_name = "D", value_parser = duration::parse, allow_hyphen_values = true)]
    visible: Option<Duration>,
    /// How often to look for jobs while nothing wakes the worker
    #[arg(long, value_name = "D", default_value = "5s", value_parser = duration::parse, allow_hyphen_values = true)]
    poll: Duration,
    /// End when no job is ready, or will be within a second, and none is taken
    #[arg(long)]
    drain: bool,
    /// At the end print one JSON object: how many jobs ended how
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: QueuePlace,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

#[derive(Serialize)]
struct WorkedJson {
    acked: u64,
    retried: u64,
    dead: u64,
    stale: u64,
    lost: u64,
    unknown: u64,
}

impl QueueWorkArgs {
    pub async fn execute(self, engine_url: &str) -> anyhow::Result<u8> {
        let mut signals = Signals::listen()?;
        let store = self.place.open(engine_url).await?;
        let queue = open_or_make(&store, &self.queue).await?;
        let command = JobCommand::from_words(self.command.clone());
        command.check_exists()?;
        let handler = async |job: Delivery<IgnoredAny>| -> Result<(), Nack> { command.run(&job).await };
        let mut work =
            queue.work(self.jobs, handler).poll(self.poll).on_trouble(|error| output::say(error.to_string()));
        if let Some(visible) = self.visible {
            work = work.visible(visible);
        }
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let mut stop = Some(stop);
        let mut working = pin!(work.until(async { drop(stopped.await) }));
        let mut drained = pin!(self.wait_until_drained(&store, &queue));
        let mut interrupted = None;
        let mut paused = None;
        let report = loop {
            tokio::select! {
                report = &mut working => break report?,
                signal = signals.next() => match stop.take() {
                    Some(stop) => drop(stop.send(())),
                    None => {
                        interrupted = Some(signal);
                        command.abort.cancel();
                    }
                },
                drained = &mut drained, if stop.is_some() => {
                    // The commands that run are waited for in any case.
                    paused = drained.err();
                    stop.take().map(|stop| stop.send(()));
                }
            }
        };
        if self.json {
            output::json(&WorkedJson {
                acked: report.acked,
                retried: report.retried,
                dead: report.dead,
                stale: report.stale,
                lost: report.lost,
                unknown: report.unknown,
            })?;
        }
        match (interrupted, paused) {
            (Some(signal), _) => Err(signals::interrupted(signal, "the jobs that ran are given back")),
            (None, Some(failure)) => Err(failure),
            (None, None) => Ok(exit::DONE),
        }
    }

    /// Completes when nothing is left to do, if that was asked for.
    async fn wait_until_drained(&self, store: &Store, queue: &Queue) -> anyhow::Result<()> {
        if !self.drain {
            return std::future::pending().await;
        }
        let calls = store.queue_calls(&self.queue)?;
        let clock = target::system_clock();
        let mut now_empty = false;
        loop {
            let was_empty = std::mem::take(&mut now_empty);
            match queue.status().await {
                Ok(status) if status.paused => {
                    return Err(Failure::coded(exit::HELD, "the queue is paused: resume it first"));
                }
                // A job of a worker that died waits for a moment after its delivery.
                Ok(status) if status.ready == 0 && status.taken == 0 => {
                    now_empty = nothing_comes_soon(calls.next_ready().await);
                }
                // The worker itself says that the store is away, and tries again.
                Ok(_) | Err(RecipeError::Unavailable { .. } | RecipeError::Indeterminate { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            // Two looks: what changes between the questions of one is seen by the other.
            if was_empty && now_empty {
                return Ok(());
            }
            clock.sleep_until(clock.now().plus(DRAIN_CHECK_EVERY)).await;
        }
    }
}

/// Whether no job is ready so soon that it may be one whose worker died. What cannot be asked now is asked again.
fn nothing_comes_soon(next_ready: Result<Option<Duration>, RecipeError>) -> bool {
    next_ready.is_ok_and(|next| next.is_none_or(|next| next > LAPSED_COME_BACK_WITHIN))
}
