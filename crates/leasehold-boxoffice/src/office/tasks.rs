//! The background tasks: the sweeper and the sequencer, each under a lease so that one of many offices runs it; and the
//! follower, in every office.
//!
//! Correctness depends on none of them: expiry is a predicate, and numbering may be late.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use leasehold::Leasehold;
use leasehold::engine::Resource;

use super::Office;
use super::engine::TASK_LEASE_PREFIX;
use super::lease::LEASE_PREFIX;
use super::task_health::OfficeTask;
use crate::error::Error;
use crate::model::EventId;

/// The ttl of the leases of sweeper and sequencer: how long their work stops when a server dies.
const TASK_LEASE_TTL: Duration = Duration::from_secs(5);
/// How long to wait in the engine's queue for such a lease.
const TASK_LEASE_WAIT: Duration = Duration::from_secs(60);
/// The most holds or entries that one transaction handles.
const MAX_ROWS_PER_TRANSACTION: usize = 500;
/// Every so many sweeps leases without a hold row are searched for; every so many, old rows are deleted.
const SWEEPS_PER_ORPHAN_CHECK: u64 = 5;
const SWEEPS_PER_FORGET: u64 = 3600;

impl Office {
    /// Runs sweeper, sequencer and follower until the future is dropped.
    pub async fn run(&self) {
        let sweeper = self.run_under_lease(OfficeTask::Sweeper, |office, turn| async move { office.sweep(turn).await });
        let sequencer = self.run_under_lease(OfficeTask::Sequencer, |office, _| async move { office.sequence().await });
        tokio::join!(sweeper, sequencer, self.run_follower());
    }

    async fn run_follower(&self) {
        loop {
            // After an error the next round tries again. Meanwhile the seat maps grow too old to refuse.
            if self.follow_entries().await.is_ok() {
                self.record_task_round(OfficeTask::Follower);
            }
            self.sleep_for(self.0.options.sequence_every).await;
        }
    }

    async fn sleep_for(&self, span: Duration) {
        let at = self.clock().now().plus(span);
        self.clock().sleep_until(at).await;
    }

    /// Runs rounds of a task while this office has its lease.
    async fn run_under_lease<F, W>(&self, task: OfficeTask, work: W)
    where
        W: Fn(Office, u64) -> F,
        F: Future<Output = Result<(), Error>>,
    {
        let client = Leasehold::with_engine(self.0.engine.clone(), self.0.options.clock.clone());
        let every =
            if task == OfficeTask::Sweeper { self.0.options.sweep_every } else { self.0.options.sequence_every };
        loop {
            let name = format!("{TASK_LEASE_PREFIX}{}", task.as_str());
            let ask = |wait| client.acquire(&name).ttl(TASK_LEASE_TTL).wait(wait).holder(self.0.options.name.clone());
            let held =
                |error: &leasehold::Error| matches!(error, leasehold::Error::Refused(leasehold::Refusal::Held { .. }));
            let mut asked = ask(Duration::ZERO).await;
            // Another server has the lease and does the work: record that at once, then wait in the queue.
            if asked.as_ref().is_err_and(held) {
                self.record_task_round(task);
                asked = ask(TASK_LEASE_WAIT).await;
            }
            let lease = match asked {
                Ok(lease) => lease,
                Err(error) => {
                    if held(&error) {
                        self.record_task_round(task);
                    } else {
                        self.0.health.record_blocked(task, public_reason(&error));
                    }
                    self.sleep_for(every.max(Duration::from_millis(100))).await;
                    continue;
                }
            };
            let mut turn = 0;
            loop {
                turn += 1;
                let piece = async {
                    if work(self.clone(), turn).await.is_ok() {
                        self.record_task_round(task);
                    }
                    self.sleep_for(every).await;
                };
                tokio::select! {
                    biased;
                    _ = lease.lost() => break,
                    () = piece => {}
                }
            }
        }
    }

    /// Numbers entries that have no number yet, and updates the seat maps of this office.
    ///
    /// # Errors
    ///
    /// The ledger could not be asked.
    pub async fn sequence(&self) -> Result<(), Error> {
        loop {
            let numbered = self.0.ledger.sequence(MAX_ROWS_PER_TRANSACTION).await?;
            if numbered.is_empty() {
                return Ok(());
            }
            let full = numbered.len() == MAX_ROWS_PER_TRANSACTION;
            self.apply_numbered(&numbered).await;
            self.follow_entries().await?;
            if !full {
                return Ok(());
            }
        }
    }

    /// One sweep: ends holds that are over and releases their leases, continues late money, revokes leases without a row.
    ///
    /// # Errors
    ///
    /// Engine or ledger could not be asked; the next sweep goes on.
    pub async fn sweep(&self, turn: u64) -> Result<(), Error> {
        loop {
            let swept = self.0.ledger.lapse_due(MAX_ROWS_PER_TRANSACTION).await?;
            self.0.counts.expired.fetch_add(swept.holds.len() as u64, Relaxed);
            for hold in &swept.holds {
                self.release_leases(&hold.leases).await;
            }
            if !swept.more {
                break;
            }
        }
        let advanced = self.advance_open_money().await;
        if turn % SWEEPS_PER_ORPHAN_CHECK == 1 {
            self.revoke_orphans().await?;
        }
        if turn.is_multiple_of(SWEEPS_PER_FORGET) {
            let age = u64::try_from(self.0.options.retention.as_millis()).unwrap_or(u64::MAX);
            self.0.ledger.forget_older_than(age).await?;
        }
        advanced
    }

    /// Revokes leases that have no hold row after some time: the server that acquired them has died.
    ///
    /// # Errors
    ///
    /// Engine or ledger could not be asked.
    pub async fn revoke_orphans(&self) -> Result<(), Error> {
        let client = Leasehold::with_engine(self.0.engine.clone(), self.0.options.clock.clone());
        let resources = client.list(LEASE_PREFIX).await.map_err(Error::engine)?;
        let mut by_event: HashMap<EventId, Vec<Resource>> = HashMap::new();
        for resource in resources {
            let event = resource.name[LEASE_PREFIX.len()..].split('/').next().unwrap_or_default();
            by_event.entry(EventId(event.into())).or_default().push(resource);
        }
        let age = self.0.options.orphan_lease_after;
        for (event, resources) in by_event {
            let old: Vec<Resource> =
                resources.into_iter().filter(|r| r.holders.iter().any(|h| h.since >= age)).collect();
            let tokens: Vec<u64> = old.iter().flat_map(tokens_of).collect();
            if tokens.is_empty() {
                continue;
            }
            let known: HashSet<u64> = self.0.ledger.known_tokens(&event, &tokens).await?.into_iter().collect();
            // A revoke ends every lease on a resource: it is done only if none of them has a row.
            let orphans = old.iter().filter(|resource| {
                resource.holders.iter().all(|held| held.since >= age)
                    && tokens_of(resource).all(|token| !known.contains(&token))
            });
            for orphan in orphans {
                self.revoke_orphan(&client, orphan).await?;
            }
        }
        Ok(())
    }

    async fn revoke_orphan(&self, client: &Leasehold, orphan: &Resource) -> Result<(), Error> {
        // Read once more: if another holder has it now, it is no orphan.
        let current = client.inspect(&orphan.name).await.map_err(Error::engine)?;
        let same = current.is_some_and(|current| tokens_of(&current).eq(tokens_of(orphan)));
        if same {
            let ended = client.revoke(&orphan.name, "a lease of the box office without a hold").await;
            let ended = ended.map_err(Error::engine)?;
            self.0.counts.orphan_leases.fetch_add(ended as u64, Relaxed);
        }
        Ok(())
    }
}

/// Why a lease cannot be acquired, for `/readyz`: without addresses and host names.
fn public_reason(error: &leasehold::Error) -> String {
    match error {
        leasehold::Error::Invalid(why) => why.clone(),
        leasehold::Error::Refused(refusal) => refusal.to_string(),
        _ => "the engine does not answer".into(),
    }
}

fn tokens_of(resource: &Resource) -> impl Iterator<Item = u64> + '_ {
    resource.holders.iter().filter_map(|held| Some(held.token?.get()))
}
