//! One look: at the ledger or at the lease of a tick, and what is begun by it.

use std::time::{Duration, SystemTime};

use tokio_util::sync::CancellationToken;

use super::{CronError, CronLook, CronNotice, CronRunner, MAX_BACKOFF, RESOURCE_PREFIX, rfc3339};
use crate::acquire::Acquire;
use crate::clock::random_fraction;
use crate::error::{Error, Refusal};
use crate::recipe::counters::{count_cron_late, count_cron_runs};
use crate::recipe::cron::plan::{CatchUp, CronDecision, CronPolicy, LedgerView, Overlap, decide, default_jitter};
use crate::recipe::cron::turn::CronTurn;
use crate::recipe::cron::{CronBegun, CronRecorded, CronRun, CronStart, MissedTicks, RunState};
use crate::recipe::error::RecipeError;
use crate::recipe::store::Store;
use crate::recipe::{LeaseKind as _, StrongestLease};

/// How long one claim may wait in line: what engines allow by default.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);
/// How long the lease of a run that was ended for the next tick may take to come free.
const REPLACED_WAIT: Duration = Duration::from_secs(2);
/// How much longer than its tick may be late the lease of a tick lives: clocks of machines differ.
const SLOT_MARGIN: Duration = Duration::from_secs(600);

/// What became of the ticks and runs before one that was begun.
#[derive(Default)]
struct Before {
    recorded: CronRecorded,
    skipped: Option<MissedTicks>,
    missed: Option<MissedTicks>,
    lost: Option<CronRun>,
}

impl Before {
    /// `ranges`: as they were sent. The ledger decided which were skipped: the earlier ones.
    fn new(ranges: &[MissedTicks], recorded: CronRecorded, lost: Option<CronRun>) -> Self {
        let mut before = Self { recorded, lost, ..Self::default() };
        let mut left = recorded.skipped;
        for range in ranges {
            let place = if range.count <= left { &mut before.skipped } else { &mut before.missed };
            left = left.saturating_sub(range.count);
            *place = Some(match *place {
                Some(first) => MissedTicks { upto: range.upto, count: first.count + range.count, ..first },
                None => *range,
            });
        }
        before
    }
}

impl CronRunner {
    /// Looks at the ledger once, and begins what is due.
    pub(super) async fn look(&mut self, stop: &CancellationToken) -> Result<CronLook, CronError> {
        let now = (self.wall)();
        let started_at = *self.started_at.get_or_insert(now);
        match self.ledger.clone() {
            Some(ledger) => self.look_at_ledger(&ledger, now, started_at, stop).await,
            None => self.look_at_slot(now, started_at, stop).await,
        }
    }

    async fn look_at_ledger(
        &mut self,
        ledger: &Store,
        now: SystemTime,
        started_at: SystemTime,
        stop: &CancellationToken,
    ) -> Result<CronLook, CronError> {
        let known = ledger.cron_schedule(&self.name).await.map_err(CronError::Ledger)?;
        let seen = known.as_ref().map(|known| known.last_tick);
        let settled = match &known {
            None => started_at,
            Some(known) if known.spec == self.schedule.spec() => known.last_tick,
            // The ticks of the new schedule count from when it was given.
            Some(known) if self.change => known.last_tick.max(started_at),
            Some(known) => return Err(CronError::Ledger(self.other_schedule(&known.spec))),
        };
        let mut view = LedgerView { settled, worked: None };
        if let sleep @ CronDecision::Sleep { .. } = decide(&self.schedule, &self.policy, &view, now) {
            return Ok(self.not_due(&sleep, seen, now));
        }
        // Only now: most machines find the tick begun, and read one row.
        let runs = ledger.cron_runs(&self.name, 1).await.map_err(CronError::Ledger)?;
        let last = runs.into_iter().next();
        view.worked = last.as_ref().and_then(|run| self.time_at_work(run, now));
        let (mut tick, next) = match decide(&self.schedule, &self.policy, &view, now) {
            CronDecision::Run { tick, next, .. } => (tick, next),
            CronDecision::Sleep { until } => return Ok(CronLook::Taken { until: self.with_jitter(until) }),
        };
        let Some(lease) = self.acquire(self.schedule_claim(now, next), stop).await? else {
            return Ok(CronLook::Taken { until: self.after_held(next) });
        };
        // A run that was at work when we read of it has ended, or nobody has its lease any more: when it ended decides what
        // became of the ticks since, and whether this one came while it was at work.
        let mut ended = last.as_ref().and_then(|run| run.ended_at);
        if last.is_some() && ended.is_none() {
            let run = match ledger.cron_runs(&self.name, 1).await {
                Ok(runs) => runs.into_iter().next(),
                Err(error) => {
                    release(lease).await;
                    return Err(CronError::Ledger(error));
                }
            };
            ended = run.as_ref().and_then(|run| run.ended_at);
            // A tick that has waited for the run is not late, whatever the clocks of the machines say of its end.
            if self.policy.overlap == Overlap::Skip {
                view.worked = run.as_ref().and_then(|run| self.time_at_work(run, now));
            }
            match decide(&self.schedule, &self.policy, &view, now) {
                CronDecision::Run { tick: again, .. } => tick = again,
                CronDecision::Sleep { until } => {
                    release(lease).await;
                    return Ok(CronLook::Taken { until: self.with_jitter(until) });
                }
            }
        }
        let missed = self.schedule.ranges_between(settled, tick, ended);
        let start = CronStart {
            name: self.name.clone(),
            tick,
            token: lease.token(),
            machine: self.machine.clone().unwrap_or_else(|| lease.holder().to_owned()),
            spec: self.schedule.spec().to_owned(),
            seen,
            missed,
        };
        self.begin(ledger, lease, &start, last, next).await
    }

    /// Begins a run under the lease. If it is not ours, the lease is released.
    async fn begin(
        &self,
        ledger: &Store,
        lease: StrongestLease,
        start: &CronStart,
        last: Option<CronRun>,
        next: Option<SystemTime>,
    ) -> Result<CronLook, CronError> {
        let tick = start.tick;
        let begun = match ledger.cron_begin(start).await {
            Ok(begun) => begun,
            Err(error) => {
                if matches!(error, RecipeError::Indeterminate { .. }) {
                    self.notify(&CronNotice::Unknown { tick });
                }
                release(lease).await;
                return Err(CronError::Ledger(error));
            }
        };
        let until = match begun {
            CronBegun::First { token, recorded } => {
                let lost = if recorded.lost > 0 { self.find_lost(ledger, last).await } else { None };
                let before = Before::new(&start.missed, recorded, lost);
                return Ok(CronLook::Turn(Box::new(self.begun(lease, tick, token, before))));
            }
            CronBegun::Done => self.with_jitter(next),
            // Another machine began something since we read: read again.
            CronBegun::Again => Some((self.wall)()),
            CronBegun::Stale => {
                self.notify(&CronNotice::Stale { tick });
                self.after_held(next)
            }
            CronBegun::Early => {
                self.notify(&CronNotice::ClockAhead { tick });
                (self.wall)().checked_add(MAX_BACKOFF)
            }
        };
        release(lease).await;
        Ok(CronLook::Taken { until })
    }

    /// When the last run was at work. One that still runs is in the way of those who wait for it; whether it is in the way of
    /// the others is known by its lease.
    fn time_at_work(&self, run: &CronRun, now: SystemTime) -> Option<(SystemTime, SystemTime)> {
        match run.ended_at {
            Some(ended) => Some((run.started_at, ended)),
            None if self.policy.overlap == Overlap::Wait => Some((run.started_at, now)),
            None => None,
        }
    }

    /// The run that our begin found without an end, as it is in the ledger now.
    async fn find_lost(&self, ledger: &Store, last: Option<CronRun>) -> Option<CronRun> {
        let last = last.filter(|run| run.state == RunState::Running)?;
        // Ours, the ticks that were skipped, those that were missed, and the lost one.
        match ledger.cron_runs(&self.name, 4).await {
            Ok(runs) => runs.into_iter().find(|run| run.tick == last.tick && run.state == RunState::Lost),
            Err(error) => {
                self.notify(&CronNotice::Trouble(&CronError::Ledger(error)));
                None
            }
        }
    }

    /// Without a ledger: the lease of the tick decides.
    async fn look_at_slot(
        &mut self,
        now: SystemTime,
        started_at: SystemTime,
        stop: &CancellationToken,
    ) -> Result<CronLook, CronError> {
        // A tick that came before this process may have been run by another: its lease knows.
        let newest = self.schedule.last_at(now).and_then(|newest| newest.checked_sub(Duration::from_secs(1)));
        let start = match self.policy.catch_up {
            CatchUp::None => started_at,
            CatchUp::Last | CatchUp::All => newest.map_or(started_at, |newest| newest.min(started_at)),
        };
        let view = LedgerView { settled: self.settled.unwrap_or(start), worked: None };
        // Only a tick that is younger than its lease may be tried: `All` would try older ones.
        let catch_up = if self.policy.catch_up == CatchUp::None { CatchUp::None } else { CatchUp::Last };
        let policy = CronPolicy { catch_up, overlap: Overlap::Skip, ..self.policy.clone() };
        let decision = decide(&self.schedule, &policy, &view, now);
        let CronDecision::Run { tick, next, .. } = decision else {
            return Ok(self.not_due(&decision, self.settled, now));
        };
        let ttl = policy.late_at(&self.schedule, tick).saturating_add(SLOT_MARGIN);
        let resource = format!("{RESOURCE_PREFIX}{}@{}", self.name, rfc3339(tick));
        // Without the longest run: it would end the lease early, and the lease is all that remembers the tick.
        let claim = self.labelled(self.leasehold.acquire(resource).ttl(ttl));
        let lease = self.acquire(claim, stop).await?;
        // Whoever has the lease: this tick is settled.
        self.settled = Some(tick);
        Ok(match lease {
            None => CronLook::Taken { until: self.with_jitter(next) },
            Some(lease) => CronLook::Turn(Box::new(self.begun(lease, tick, 0, Before::default()))),
        })
    }

    /// A run that is ours, after everybody was told what came before it.
    fn begun(&self, lease: StrongestLease, tick: SystemTime, token: i64, before: Before) -> CronTurn {
        let Before { recorded, skipped, missed, lost } = before;
        count_cron_runs(RunState::Lost, recorded.lost);
        count_cron_runs(RunState::Skipped, recorded.skipped);
        count_cron_runs(RunState::Missed, recorded.missed);
        if let Some(lost) = &lost {
            self.notify(&CronNotice::Lost(lost));
        }
        if let Some(skipped) = skipped {
            self.notify(&CronNotice::Skipped(skipped));
        }
        if let Some(missed) = missed {
            self.notify(&CronNotice::Missed(missed));
        }
        count_cron_late((self.wall)().duration_since(tick).unwrap_or_default());
        CronTurn { name: self.name.clone(), tick, token, lease, ledger: self.ledger.clone(), skipped, missed, lost }
    }

    fn schedule_claim(&self, now: SystemTime, next: Option<SystemTime>) -> Acquire {
        let claim = self.leasehold.acquire(format!("{RESOURCE_PREFIX}{}", self.name)).ttl(self.ttl);
        let time_left = next.and_then(|next| next.duration_since(now).ok()).unwrap_or(Duration::MAX);
        match self.policy.overlap {
            Overlap::Skip => self.limited(claim),
            Overlap::Wait => self.limited(claim.wait(time_left.min(LONGEST_WAIT))),
            Overlap::Replace => {
                // The run before this tick was ended just before it: its lease may not be released yet.
                let claim = claim.wait(REPLACED_WAIT.min(time_left / 2));
                let most = self.max_run.map_or(time_left, |most| most.min(time_left));
                self.labelled(if most == Duration::MAX { claim } else { claim.max_hold(most) })
            }
        }
    }

    fn limited(&self, claim: Acquire) -> Acquire {
        self.labelled(match self.max_run {
            Some(most) => claim.max_hold(most),
            None => claim,
        })
    }

    fn labelled(&self, claim: Acquire) -> Acquire {
        match &self.machine {
            Some(machine) => claim.holder(machine),
            None => claim,
        }
    }

    /// The lease; none: another has it, or a stop came while we stood in line.
    async fn acquire(&mut self, claim: Acquire, stop: &CancellationToken) -> Result<Option<StrongestLease>, CronError> {
        let promises = self.leasehold.promises();
        if !promises.fencing && !self.said_no_tokens && self.ledger.is_some() {
            self.said_no_tokens = true;
            self.notify(&CronNotice::NoTokens { engine: promises.engine });
        }
        let asked = tokio::select! {
            biased;
            asked = StrongestLease::ask_for(claim) => asked,
            () = stop.cancelled() => return Ok(None),
        };
        match asked {
            Ok(lease) => Ok(Some(lease)),
            Err(Error::Refused(Refusal::Held { .. })) => Ok(None),
            Err(error) => Err(CronError::Lease(error)),
        }
    }

    /// What to say about a tick that is not to be run now: another machine has it, or none has come.
    fn not_due(&self, decision: &CronDecision, seen: Option<SystemTime>, now: SystemTime) -> CronLook {
        let until = match decision {
            CronDecision::Sleep { until } => self.with_jitter(*until),
            CronDecision::Run { .. } => None,
        };
        match self.schedule.last_at(now) {
            Some(newest) if seen.is_some_and(|seen| seen >= newest) => CronLook::Taken { until },
            _ => CronLook::NotDue { until },
        }
    }

    /// When to look again at a tick whose lease another has.
    fn after_held(&self, next: Option<SystemTime>) -> Option<SystemTime> {
        let pause = (self.ttl / 3).mul_f64(0.5 + random_fraction() / 2.0);
        let soon = (self.wall)().checked_add(pause)?;
        Some(self.with_jitter(next).map_or(soon, |next| next.min(soon)))
    }

    /// The tick, and a part of the jitter.
    fn with_jitter(&self, tick: Option<SystemTime>) -> Option<SystemTime> {
        let tick = tick?;
        let most = self.jitter.unwrap_or_else(|| default_jitter(&self.schedule, tick));
        tick.checked_add(most.mul_f64(random_fraction()))
    }

    fn other_schedule(&self, stored: &str) -> RecipeError {
        RecipeError::Invalid(format!(
            "the ledger has another schedule under the name {}: \"{stored}\", and this is \"{}\"; stop the machines that \
             have the other one, and give --change to replace it",
            self.name,
            self.schedule.spec()
        ))
    }
}

/// One that is not released lapses with its ttl.
async fn release(lease: StrongestLease) {
    let _ = lease.end().await;
}
