//! The calls of queues, for callers of the server.

use leasehold::recipe::queue::calls::{
    Extended, FailedJob, LaneAnswer, LaneAsk, NewJob, NotEnded, QueueCalls, QueueFacts, QueueSettings, TurnAnswer,
    TurnAsk,
};
use leasehold::recipe::queue::{Nacked, Pushed};
use leasehold::recipe::{RecipeError, RecipeRefusal};
use std::sync::Arc;
use std::time::Duration;

use super::RecipeAccess;
use super::bell::{QueueBell, SWEEP_EVERY};
use super::counts::JobEnd;
use crate::service::Denial;

/// One queue, for one authorised call.
#[derive(Clone)]
pub struct QueueAccess {
    access: RecipeAccess,
    calls: QueueCalls,
    name: String,
}

impl RecipeAccess {
    /// The calls of the queue that was authorised.
    ///
    /// # Errors
    ///
    /// It is no name of a queue.
    pub fn queue(self, name: &str) -> Result<QueueAccess, Denial> {
        let calls = self.state.store.queue_calls(name).map_err(Denial::Recipe)?;
        Ok(QueueAccess { access: self, calls, name: name.to_owned() })
    }
}

impl QueueAccess {
    /// The bell. Ask for it after the store has answered: then there is such a queue.
    fn bell(&self) -> Arc<QueueBell> {
        self.access.state.bells.of_queue(&self.name)
    }

    fn count(&self, how: JobEnd, count: usize) {
        self.access.state.counts.record_ended(&self.name, how, count);
    }

    /// The number that changes with every push through this server.
    pub fn rings(&self) -> u64 {
        self.bell().rings()
    }

    fn ring(&self) {
        if self.bell().ring() {
            self.access.state.counts.record_ring();
        }
    }

    /// Makes the queue, or changes settings.
    pub async fn make(&self, settings: QueueSettings) -> Result<QueueFacts, Denial> {
        self.access.ask(self.calls.make(settings)).await
    }

    /// What a worker must know, and when the next job that waits for its moment is ready.
    pub async fn glance(&self) -> Result<(QueueFacts, Option<Duration>), Denial> {
        let facts = self.access.ask(self.calls.facts()).await?;
        Ok((facts, self.access.ask(self.calls.next_ready()).await?))
    }

    /// Pushes a job, and wakes one who waits.
    pub async fn push(&self, job: NewJob) -> Result<Pushed, Denial> {
        let at_once = job.delay.is_zero();
        let pushed = self.access.ask(self.calls.push(job)).await?;
        // A delayed one rings too: who sleeps looks when the next is ready.
        if pushed.fresh || at_once {
            self.ring();
        }
        Ok(pushed)
    }

    /// Acknowledges and claims.
    pub async fn turn(&self, mut ask: TurnAsk) -> Result<TurnAnswer, Denial> {
        let asked = ask.done.len();
        let elsewhere = self.keep_here(&mut ask.done).await?;
        let mut answer = self.access.ask(self.calls.turn(ask)).await?;
        answer.stale.extend(elsewhere);
        self.count_ended(asked.saturating_sub(answer.locked.len()), answer.stale.len());
        self.count(JobEnd::Lapsed, answer.lapsed as usize);
        if answer.lapsed > 0 {
            self.ring();
        }
        self.sweep_if_due().await;
        Ok(answer)
    }

    /// Ends deliveries; those that were not ended.
    pub async fn ack(&self, mut jobs: Vec<i64>, token: i64) -> Result<NotEnded, Denial> {
        let asked = jobs.len();
        let elsewhere = self.keep_here(&mut jobs).await?;
        let mut answer = self.access.ask(self.calls.ack(jobs, token)).await?;
        answer.stale.extend(elsewhere);
        self.count_ended(asked.saturating_sub(answer.locked.len()), answer.stale.len());
        Ok(answer)
    }

    /// Gives a job back, or buries it.
    pub async fn nack(&self, failed: FailedJob) -> Result<Nacked, Denial> {
        // Of a key: its claim is looked up in this queue anyway.
        let elsewhere = match failed.key {
            Some(_) => false,
            None => !self.keep_here(&mut vec![failed.job_id]).await?.is_empty(),
        };
        let what = format!("delivery {} of job {}", failed.token, failed.job_id);
        let nacked = if elsewhere { Nacked::Stale } else { self.access.ask(self.calls.nack(failed)).await? };
        match nacked {
            Nacked::Stale => {
                self.count(JobEnd::Stale, 1);
                return Err(Denial::Recipe(RecipeError::Refused(RecipeRefusal::Stale { what })));
            }
            Nacked::Retry => {
                self.count(JobEnd::Retry, 1);
                self.ring();
            }
            Nacked::Dead => self.count(JobEnd::Dead, 1),
            Nacked::Locked => {}
        }
        Ok(nacked)
    }

    /// Extends deliveries; those that are still the caller's.
    pub async fn extend(&self, mut jobs: Vec<i64>, token: i64, visible: Duration) -> Result<Extended, Denial> {
        self.keep_here(&mut jobs).await?;
        self.access.ask(self.calls.extend(jobs, token, visible)).await
    }

    /// Claims keys.
    pub async fn lane_claim(&self, ask: LaneAsk) -> Result<LaneAnswer, Denial> {
        let answer = self.access.ask(self.calls.lane_claim(ask)).await?;
        self.sweep_if_due().await;
        Ok(answer)
    }

    /// Ends jobs of a key.
    pub async fn lane_ack(&self, key: &str, token: i64, jobs: Vec<i64>, free: bool) -> Result<(), Denial> {
        let count = jobs.len();
        let answer = self.access.ask(self.calls.lane_ack(key, token, jobs, free)).await;
        match &answer {
            Ok(()) => {
                self.count(JobEnd::Ack, count);
                // The key may have more, and others wait.
                if free {
                    self.ring();
                }
            }
            Err(Denial::Recipe(RecipeError::Refused(_))) => self.count(JobEnd::Stale, count),
            Err(_) => {}
        }
        answer
    }

    /// Extends the claim on a key; whether it is still the caller's.
    pub async fn lane_extend(&self, key: &str, token: i64, visible: Duration) -> Result<bool, Denial> {
        self.access.ask(self.calls.lane_extend(key, token, visible)).await
    }

    /// Waits until something was pushed since `seen`, or `wait` is over. Meanwhile it collects what lapsed.
    pub async fn wait_for_push(&self, seen: u64, wait: Duration) {
        let (bell, clock) = (self.bell(), self.access.state.clock.clone());
        if bell.rings() != seen {
            return;
        }
        let end = clock.now().plus(wait);
        while clock.now() < end {
            if bell.wait(&*clock, clock.now().plus(SWEEP_EVERY).min(end)).await {
                return;
            }
            self.sweep_if_due().await;
        }
    }

    /// Keeps those that are in this queue, and returns the others: to this caller they are stale.
    async fn keep_here(&self, jobs: &mut Vec<i64>) -> Result<Vec<i64>, Denial> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let here = self.access.ask(self.calls.only_here(jobs)).await?;
        let elsewhere = jobs.iter().copied().filter(|job| !here.contains(job)).collect();
        jobs.retain(|job| here.contains(job));
        Ok(elsewhere)
    }

    /// Workers behind a server cannot sweep, so it does.
    async fn sweep_if_due(&self) {
        if !self.bell().is_sweep_due(self.access.state.clock.now()) {
            return;
        }
        match self.access.ask(self.calls.sweep()).await {
            Ok(0) => {}
            Ok(lapsed) => {
                self.count(JobEnd::Lapsed, lapsed as usize);
                self.ring();
            }
            // The next one finds them.
            Err(denial) => tracing::debug!(target: "leasehold::recipes", why = denial.sentence(), "no sweep"),
        }
    }

    fn count_ended(&self, asked: usize, stale: usize) {
        self.count(JobEnd::Ack, asked.saturating_sub(stale));
        self.count(JobEnd::Stale, stale);
    }
}
