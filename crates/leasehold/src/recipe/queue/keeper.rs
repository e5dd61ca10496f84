//! The keeper of a worker: claims jobs for free slots, acknowledges what ended, extends what runs, and sleeps when there is
//! nothing to do.
//!
//! # The sleep
//!
//! A claim found too little: ask to be woken, look when the next job is ready, claim once more (a push may have come in
//! between), then wait for a push, that moment, or the poll. While it waits it still extends, acknowledges and sweeps.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::calls::QueueCalls;
use super::delivery::{DeliveryEnd, Nack};
use super::keeper_ends::LockedEnds;
use super::rows::{ClaimedJob, Extended, FailedJob, QueueFacts, SINCE_EVER, TurnAsk};
use super::wake::Wake;
use super::work::{Assignment, HandlerEnd, JobEnded, WorkReport};
use crate::clock::{Clock, Time, until};
use crate::recipe::error::RecipeError;

/// How often lapsed deliveries are collected, by whichever worker comes first.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// How often a busy worker looks at all jobs, and not only at those after its last batch.
const FULL_TURN_EVERY: Duration = Duration::from_secs(1);
/// A turn that looks at all jobs takes at most this part of the time.
const FULL_TURN_PART: u32 = 10;
/// Every so many turns the levels are served in reverse, so that none starves.
const REVERSE_EVERY: u64 = 8;
/// The first and the longest pause before the store is asked again.
const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(3);
/// How long a worker that is to stop tries to acknowledge at a store that is away.
const STOP_PATIENCE: Duration = Duration::from_secs(10);
/// When a delivery that could not be extended because of somebody's transaction is extended again, at the latest.
const EXTEND_LOCKED_AFTER: Duration = Duration::from_secs(1);
/// How long the worker waits for the connection that tells it of pushes. Without one the poll finds them.
const MAX_WAIT_TO_LISTEN: Duration = Duration::from_secs(5);

/// What a worker was asked to do.
#[derive(Clone, Debug)]
pub(super) struct KeeperOptions {
    pub slots: usize,
    pub jobs_per_key: usize,
    pub visible: Option<Duration>,
    pub poll: Duration,
    pub worker: String,
    pub on_trouble: Option<TroubleHook>,
}

/// Told when the store cannot be asked.
#[derive(Clone)]
pub(super) struct TroubleHook(pub Arc<dyn Fn(&RecipeError) + Send + Sync>);

impl fmt::Debug for TroubleHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TroubleHook")
    }
}

/// A delivery, or the claim on a key, that a handler works under.
pub(super) struct HeldClaim {
    pub token: i64,
    pub key: Option<String>,
    /// The job whose try was counted by the claim. By key that is the first one only.
    pub first: i64,
    /// The jobs that have not ended.
    pub jobs: Vec<i64>,
    /// Jobs of a key that ended well and are not acknowledged yet.
    pub done: Vec<i64>,
    /// No handler runs under it any more.
    pub complete: bool,
    /// Until when it is provably ours.
    pub valid_until: watch::Sender<Time>,
}

impl HeldClaim {
    /// By key: whether jobs of this claim are done and not acknowledged.
    pub fn has_unacked(&self, token: i64, key: &str) -> bool {
        self.token == token && self.key.as_deref() == Some(key) && !self.done.is_empty()
    }

    /// What a failed job adds to its number of tries: by key the claim counted the first job only.
    fn tries_to_add(&self, job: i64, untried: bool) -> i32 {
        let counted = self.key.is_none() || job == self.first;
        i32::from(!untried) - i32::from(counted)
    }
}

/// The keeper. See the module.
pub(super) struct Keeper {
    pub calls: QueueCalls,
    pub facts: QueueFacts,
    pub options: KeeperOptions,
    pub clock: Arc<dyn Clock>,
    pub report: WorkReport,
    /// By the number of the assignment.
    pub held: HashMap<u64, HeldClaim>,
    /// Something may be there to be claimed.
    pub claim_due: bool,
    /// Failed jobs to be given back.
    pub failed: Vec<FailedJob>,
    /// By key: where the next claim goes on.
    pub cursor: String,
    /// By key: claims in a row that found only keys of others.
    pub empty_claims: u32,
    assign: mpsc::UnboundedSender<Assignment>,
    ended: mpsc::UnboundedReceiver<JobEnded>,
    stop: CancellationToken,
    wake: Wake,
    /// Jobs that ended well, by token.
    pub done: BTreeMap<i64, Vec<i64>>,
    /// Tokens whose acknowledgement was sent and had no answer.
    pub unsure: Vec<i64>,
    /// Ends of deliveries that met somebody's transaction.
    pub locked: LockedEnds,
    next_number: u64,
    /// Pushes wake us.
    pub armed: bool,
    next_ready: Option<Time>,
    poll_at: Time,
    extend_at: Time,
    sweep_at: Time,
    since: i64,
    full_turn_at: Time,
    turns: u64,
    /// The worker's future was dropped.
    abandoned: bool,
}

impl Keeper {
    /// Starts the task, after one question that shows whether there is such a queue.
    pub async fn start(
        calls: QueueCalls,
        options: KeeperOptions,
        assign: mpsc::UnboundedSender<Assignment>,
        ended: mpsc::UnboundedReceiver<JobEnded>,
        stop: CancellationToken,
    ) -> Result<JoinHandle<Result<WorkReport, RecipeError>>, RecipeError> {
        let mut facts = calls.facts().await?;
        facts.visible = options.visible.unwrap_or(facts.visible);
        let wake = Wake::new(&calls.store, &calls.name)?;
        let clock = calls.store.clock.clone();
        let now = clock.now();
        let keeper = Self {
            calls,
            facts,
            options,
            clock,
            report: WorkReport::default(),
            held: HashMap::new(),
            claim_due: true,
            failed: Vec::new(),
            cursor: String::new(),
            empty_claims: 0,
            assign,
            ended,
            stop,
            wake,
            done: BTreeMap::new(),
            unsure: Vec::new(),
            locked: LockedEnds::default(),
            next_number: 0,
            armed: false,
            next_ready: None,
            poll_at: now,
            extend_at: now,
            sweep_at: now,
            since: SINCE_EVER,
            full_turn_at: now,
            turns: 0,
            abandoned: false,
        };
        Ok(tokio::spawn(keeper.run()))
    }

    async fn run(mut self) -> Result<WorkReport, RecipeError> {
        let mut pause = MIN_PAUSE;
        let mut give_up_at = None;
        loop {
            while let Ok(ended) = self.ended.try_recv() {
                self.take_end(ended);
            }
            if self.abandoned {
                self.give_all_back();
            }
            let stepped = self.step().await;
            let now = self.clock.now();
            let only_ends_left = self.is_stopping() && self.held.values().all(|claim| claim.complete);
            let gives_up = only_ends_left && now >= *give_up_at.get_or_insert(now.plus(STOP_PATIENCE));
            match stepped {
                Ok(()) if only_ends_left && self.held.is_empty() && self.is_settled() => {
                    self.sleep_no_more().await;
                    return Ok(self.report);
                }
                Ok(()) if gives_up => return Err(self.still_locked()),
                Ok(()) => {
                    pause = MIN_PAUSE;
                    self.rest().await;
                }
                Err(error @ (RecipeError::Unavailable { .. } | RecipeError::Indeterminate { .. })) => {
                    self.report_trouble(&error);
                    if gives_up {
                        return Err(error);
                    }
                    // What was armed may be forgotten: the table does not survive a crash of the server.
                    self.armed = false;
                    self.claim_due = true;
                    self.clock.sleep_until(now.plus(pause)).await;
                    pause = (pause * 2).min(MAX_PAUSE);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn is_stopping(&self) -> bool {
        self.abandoned || self.stop.is_cancelled()
    }

    /// How many assignments more there may be.
    pub fn free_slots(&self) -> usize {
        if self.is_stopping() { 0 } else { self.options.slots.saturating_sub(self.held.len()) }
    }

    /// Everything that is due now.
    async fn step(&mut self) -> Result<(), RecipeError> {
        let now = self.clock.now();
        if now >= self.extend_at {
            let all = self.extend_all().await?;
            let visible = self.facts.visible;
            self.extend_at = now.plus(if all { visible / 3 } else { EXTEND_LOCKED_AFTER.min(visible / 10) });
        }
        self.take_up_locked(now);
        if now >= self.sweep_at {
            let lapsed = self.calls.sweep().await?;
            self.sweep_at = now.plus(SWEEP_EVERY);
            self.note_lapsed(lapsed);
        }
        if self.facts.keyed {
            self.step_lanes().await?
        } else {
            self.step_jobs().await?
        }
        self.give_back().await
    }

    /// Acknowledges and claims jobs of a plain queue.
    async fn step_jobs(&mut self) -> Result<(), RecipeError> {
        // One token goes with the next claim, the others go before it.
        while self.done.len() > 1 {
            self.ack_largest_group().await?;
        }
        loop {
            let due = !self.done.is_empty();
            let wanted = if self.claim_due || due { self.free_slots() } else { 0 };
            if wanted == 0 && !due {
                return Ok(());
            }
            self.turn(wanted).await?;
            while let Ok(ended) = self.ended.try_recv() {
                self.take_end(ended);
            }
            if self.done.len() > 1 {
                return Ok(());
            }
        }
    }

    /// One call: acknowledges one group, and claims.
    async fn turn(&mut self, wanted: usize) -> Result<(), RecipeError> {
        let (done_token, done) = self.largest_group();
        let sent = self.clock.now();
        self.turns = self.turns.wrapping_add(1);
        let reversed = self.facts.levels.len() > 1 && self.turns.is_multiple_of(REVERSE_EVERY);
        let full = reversed || sent >= self.full_turn_at || self.since == SINCE_EVER;
        let ask = TurnAsk {
            jobs: wanted,
            done: done.clone(),
            done_token,
            // What we count from: the queue's own setting may change meanwhile.
            visible: Some(self.facts.visible),
            worker: self.options.worker.clone(),
            since: if full { SINCE_EVER } else { self.since },
            levels: reversed.then(|| self.facts.levels.iter().rev().copied().collect()),
        };
        let answered = self.calls.turn(ask).await;
        let answer = answered.map_err(|error| self.note_unanswered(done_token, error))?;
        self.note_lapsed(answer.lapsed);
        let now = self.clock.now();
        self.count_acked(done_token, done.len(), answer.stale.len(), answer.locked);
        if full {
            self.full_turn_at = now.plus(FULL_TURN_EVERY.max(now.since(sent) * FULL_TURN_PART));
        }
        let short = answer.jobs.len() < wanted;
        self.since = if short {
            SINCE_EVER
        } else {
            answer.jobs.iter().filter_map(|job| job.ready_at).min().unwrap_or(SINCE_EVER)
        };
        if wanted > 0 {
            // A short turn that did not look at all jobs is followed by one that does.
            self.claim_due = !short || !full;
        }
        if !answer.jobs.is_empty() {
            self.sleep_no_more().await;
        }
        for job in answer.jobs {
            self.assign(vec![job], sent);
        }
        Ok(())
    }

    pub fn report_trouble(&self, error: &RecipeError) {
        if let Some(TroubleHook(hook)) = &self.options.on_trouble {
            hook(error);
        }
    }

    /// Hands jobs to a handler. `sent`: before the claim was asked for.
    pub fn assign(&mut self, jobs: Vec<ClaimedJob>, sent: Time) {
        let Some(first) = jobs.first() else { return };
        let (number, token, key) = (self.next_number, first.token, first.key.clone());
        self.next_number += 1;
        // The store counts from when it decided, which was later: we give up first.
        let (valid_until, end) = watch::channel(sent.plus(self.facts.visible));
        let ids = jobs.iter().map(|job| job.job_id).collect();
        if self.held.is_empty() {
            self.extend_at = sent.plus(self.facts.visible / 3);
        }
        let claim =
            HeldClaim { token, key, first: first.job_id, jobs: ids, done: Vec::new(), complete: false, valid_until };
        self.held.insert(number, claim);
        self.abandoned |= self.assign.send(Assignment { number, jobs, end: DeliveryEnd(end) }).is_err();
    }

    /// A handler ended.
    fn take_end(&mut self, ended: JobEnded) {
        let Some(claim) = self.held.get_mut(&ended.number) else { return };
        claim.jobs.retain(|job| *job != ended.job_id);
        claim.complete |= ended.last;
        let (token, key) = (claim.token, claim.key.clone());
        match (ended.end, key) {
            (HandlerEnd::Finished, _) => self.report.acked += 1,
            (HandlerEnd::Done, None) => self.done.entry(token).or_default().push(ended.job_id),
            (HandlerEnd::Done, Some(_)) => claim.done.push(ended.job_id),
            // A plain job is left to lapse. By key, what was done before is acknowledged: only the token counts there.
            (HandlerEnd::CutOff, _) => self.report.lost += 1,
            (HandlerEnd::Failed(Nack { why, after, kill, untried }), key) => {
                let tries = claim.tries_to_add(ended.job_id, untried);
                self.failed.push(FailedJob { job_id: ended.job_id, token, key, why, after, kill, tries });
            }
        }
        // The claim on a key ends when it is given back: see `step_lanes`.
        if ended.last && !self.facts.keyed {
            self.held.remove(&ended.number);
        }
    }

    /// Jobs that lapsed wait for up to a second: a worker that sleeps looks anew when the next is ready.
    fn note_lapsed(&mut self, lapsed: u32) {
        self.armed &= lapsed == 0;
    }

    /// Extends what runs. `false`: some could not be extended because of somebody's transaction, and were left as they are.
    async fn extend_all(&mut self) -> Result<bool, RecipeError> {
        if self.facts.keyed {
            return self.extend_lanes().await;
        }
        let mut by_token: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
        for claim in self.held.values() {
            by_token.entry(claim.token).or_default().extend(&claim.jobs);
        }
        // One that cannot be extended now must not cost the others their time.
        let (mut failed, mut all) = (Ok(()), true);
        for (token, jobs) in by_token {
            let sent = self.clock.now();
            let Extended { ours, locked } = match self.calls.extend(jobs, token, self.facts.visible).await {
                Ok(answer) => answer,
                Err(error) => {
                    failed = failed.and(Err(error));
                    continue;
                }
            };
            for claim in self.held.values().filter(|claim| claim.token == token) {
                // It is ours for as long as it was.
                if claim.jobs.iter().any(|job| locked.contains(job)) {
                    all = false;
                    continue;
                }
                let still_ours = claim.jobs.iter().all(|job| ours.contains(job));
                claim.valid_until.send_replace(if still_ours { sent.plus(self.facts.visible) } else { Time::ZERO });
            }
        }
        failed.map(|()| all)
    }

    /// Waits until there is something to do.
    async fn rest(&mut self) {
        if self.claim_due && self.free_slots() > 0 {
            return;
        }
        let now = self.clock.now();
        let sleeps = self.free_slots() > 0;
        if sleeps && !self.armed {
            self.fall_asleep(now).await;
            return;
        }
        let mut until = self.sweep_at.min(self.locked.retry_at());
        if !self.held.is_empty() {
            until = until.min(self.extend_at);
        }
        if sleeps {
            until = until.min(self.poll_at).min(self.next_ready.unwrap_or(Time::NEVER));
        }
        let stopping = self.is_stopping();
        tokio::select! {
            ended = self.ended.recv(), if !self.abandoned => match ended {
                Some(ended) => self.take_end(ended),
                None => self.abandoned = true,
            },
            () = self.stop.cancelled(), if !stopping => {}
            () = self.wake.rung(self.clock.as_ref()), if sleeps => {
                self.claim_due = true;
                self.armed = false;
            }
            () = self.clock.sleep_until(until) => {
                let now = self.clock.now();
                if sleeps && now >= self.poll_at.min(self.next_ready.unwrap_or(Time::NEVER)) {
                    self.claim_due = true;
                    self.armed = false;
                }
            }
        }
    }

    /// Asks to be woken. After it, one more claim closes the gap between the last one and this.
    async fn fall_asleep(&mut self, now: Time) {
        self.claim_due = true;
        let poll = jittered(self.options.poll);
        // A server that cannot be asked now is asked again by the claim that follows.
        let give_up = self.clock.now().plus(MAX_WAIT_TO_LISTEN);
        let armed = until(self.clock.as_ref(), give_up, self.wake.arm(self.options.poll * 3 / 2)).await;
        let next = self.calls.next_ready().await;
        self.poll_at = now.plus(poll);
        self.next_ready = next.ok().flatten().map(|span| self.clock.now().plus(span));
        self.armed = true;
        if let Some(Err(error)) = armed {
            self.report_trouble(&error);
        }
    }

    /// Pushes need not wake us any more.
    pub async fn sleep_no_more(&mut self) {
        if std::mem::take(&mut self.armed) {
            // A ring too many costs one look.
            let _ = self.wake.disarm().await;
        }
    }

    /// The worker's future was dropped, and its handlers with it.
    fn give_all_back(&mut self) {
        for claim in self.held.values_mut().filter(|claim| !claim.complete) {
            claim.complete = true;
            // Of a key: giving back the first frees it, and the others with it.
            let given_back = claim.jobs.first().map(|job| FailedJob {
                job_id: *job,
                token: claim.token,
                key: claim.key.clone(),
                why: "the worker was stopped".into(),
                after: Some(Duration::ZERO),
                kill: false,
                tries: claim.tries_to_add(*job, true),
            });
            self.failed.extend(given_back);
        }
        if !self.facts.keyed {
            self.held.clear();
        }
    }
}

/// Between three quarters and all of a span: workers that start together do not poll together for ever.
fn jittered(span: Duration) -> Duration {
    let mut random = [0; 4];
    // Without randomness the poll is merely regular.
    let _ = getrandom::fill(&mut random);
    let part = f64::from(u32::from_le_bytes(random)) / f64::from(u32::MAX);
    span.mul_f64(1.0 - part / 4.0)
}
