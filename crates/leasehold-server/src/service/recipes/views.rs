//! Queues, as people look at them; and what operators change.

use std::time::{Duration, SystemTime};

use leasehold::recipe::RecipeError;
use leasehold::recipe::queue::{DeadJob, HotKey, QueueStatus};
use leasehold_support::sync::lock;
use leasehold_support::time::wall_ms;
use tokio::time::timeout;

use super::cron::MAX_SCHEDULES;
use super::{RecipeAccess, RecipeState};
use crate::service::pass::Caller;
use crate::service::{Denial, Service, Verb};

/// How old the depths of metrics may be.
const DEPTHS_FOR: Duration = Duration::from_secs(5);
/// How long a scrape waits for the store: shorter than its collector waits for the scrape.
const DEPTHS_TIMEOUT: Duration = Duration::from_secs(2);
/// How old the hot keys of a queue may be: they are counted by reading all its jobs.
const HOT_KEYS_FOR: Duration = Duration::from_secs(10);
/// Keys that are counted at once.
pub const MAX_HOT_KEYS: usize = 100;

/// The name that a prefix is compared with.
pub fn queue_resource(name: &str) -> String {
    format!("queue/{name}")
}

/// A queue, and its keys with the most jobs.
#[derive(Debug)]
pub struct SeenQueue {
    /// The queue.
    pub status: QueueStatus,
    /// Of a queue by key.
    pub hot_keys: Vec<HotKey>,
}

/// What an operator does to a queue.
#[derive(Clone, Debug)]
pub enum QueueOrder {
    /// Dead letters wait again.
    Retry(Vec<i64>),
    /// Dead letters are removed.
    Drop(Vec<i64>),
    /// No jobs are handed out, or again.
    Pause(bool),
}

impl QueueOrder {
    const fn word(&self) -> &'static str {
        match self {
            Self::Retry(_) => "retry dead letters",
            Self::Drop(_) => "drop dead letters",
            Self::Pause(true) => "pause queue",
            Self::Pause(false) => "resume queue",
        }
    }
}

impl RecipeState {
    /// The queues for metrics; none: the store does not answer.
    pub(crate) async fn depths(&self) -> Option<Vec<QueueStatus>> {
        // One scrape asks. The others, and whoever comes while the store is away, have no sample instead of a wait.
        let mut kept = self.depths.try_lock().ok()?;
        let now = self.clock.now();
        if let Some((at, depths)) = &*kept
            && now.since(*at) < DEPTHS_FOR
        {
            return Some(depths.clone());
        }
        let depths = timeout(DEPTHS_TIMEOUT, self.store.queues()).await.ok()?.ok()?;
        *kept = Some((now, depths.clone()));
        Some(depths)
    }

    /// How many schedules have a tick that nobody began and that is too late to begin; none: the store does not answer.
    pub(crate) async fn overdue_schedules(&self) -> Option<u64> {
        // As for depths: one scrape asks.
        let mut kept = self.overdue.try_lock().ok()?;
        let now = self.clock.now();
        if let Some((at, overdue)) = &*kept
            && now.since(*at) < DEPTHS_FOR
        {
            return Some(*overdue);
        }
        let overdue = timeout(DEPTHS_TIMEOUT, self.count_overdue()).await.ok()?.ok()?;
        *kept = Some((now, overdue));
        Some(overdue)
    }

    async fn count_overdue(&self) -> Result<u64, RecipeError> {
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(wall_ms());
        let mut overdue = 0;
        for schedule in self.store.cron_schedules(MAX_SCHEDULES).await? {
            let is_overdue = |last| schedule.overdue(last, now).is_ok_and(|age| age.is_some());
            // When the last run ended matters only to one that seems overdue.
            if is_overdue(None) && is_overdue(self.store.cron_runs(&schedule.name, 1).await?.first()) {
                overdue += 1;
            }
        }
        Ok(overdue)
    }

    async fn hot_keys_of(&self, queue: &str, most: usize) -> Result<Vec<HotKey>, Denial> {
        let now = self.clock.now();
        let kept = lock(&self.hot_keys).get(queue).filter(|(at, _)| now.since(*at) < HOT_KEYS_FOR).cloned();
        let mut keys = match kept {
            Some((_, keys)) => keys,
            None => {
                let calls = self.store.queue_calls(queue).map_err(Denial::Recipe)?;
                let keys = calls.hot_keys(MAX_HOT_KEYS).await.map_err(Denial::Recipe)?;
                let mut kept = lock(&self.hot_keys);
                kept.retain(|_, (at, _)| now.since(*at) < HOT_KEYS_FOR);
                kept.insert(queue.to_owned(), (now, keys.clone()));
                keys
            }
        };
        keys.truncate(most);
        Ok(keys)
    }
}

impl RecipeAccess {
    /// The queues that the caller may see, or the one of this name.
    ///
    /// # Errors
    ///
    /// The store refused or failed.
    pub async fn queues(&self, caller: &Caller, name: Option<&str>, keys: usize) -> Result<Vec<SeenQueue>, Denial> {
        let mut found = self.ask(self.state.store.queues()).await?;
        found.retain(|queue| name.is_none_or(|name| queue.name == name));
        found.retain(|queue| caller.principal.sees(&queue_resource(&queue.name)));
        let mut seen = Vec::with_capacity(found.len());
        for mut status in found {
            status.sleepers = status.sleepers.saturating_add(self.state.bells.waiters(&status.name));
            let hot_keys = match (status.by_key, keys) {
                (true, 1..) => self.state.hot_keys_of(&status.name, keys).await?,
                _ => Vec::new(),
            };
            seen.push(SeenQueue { status, hot_keys });
        }
        Ok(seen)
    }

    /// Dead letters, the newest first. `below`: only those with lower ids, the highest id first.
    ///
    /// # Errors
    ///
    /// The store refused or failed.
    pub async fn dead(&self, queue: &str, most: usize, below: Option<i64>) -> Result<Vec<DeadJob>, Denial> {
        let calls = self.state.store.queue_calls(queue).map_err(Denial::Recipe)?;
        // A queue that is not there has no dead letters either, and must not look empty.
        self.ask(calls.facts()).await?;
        match below {
            None => self.ask(calls.dead(most)).await,
            Some(id) => self.ask(calls.dead_below(id, most)).await,
        }
    }
}

impl Service {
    /// Does what an operator orders, and writes it to the audit log. How many dead letters it was about.
    ///
    /// # Errors
    ///
    /// The caller may not, or the store refused or failed.
    pub async fn order_queue(&self, caller: &Caller, queue: &str, order: QueueOrder) -> Result<u64, Denial> {
        let resource = queue_resource(queue);
        let access = self.recipes(caller, Verb::RunQueue, Some(&resource))?;
        let word = order.word();
        let calls = access.state.store.queue_calls(queue).map_err(Denial::Recipe)?;
        let done = access.ask(async {
            calls.facts().await?;
            match order {
                QueueOrder::Retry(jobs) => calls.revive(jobs).await,
                QueueOrder::Drop(jobs) => calls.drop_dead(jobs).await,
                QueueOrder::Pause(paused) => calls.pause(paused).await.map(|()| 0),
            }
        });
        let done = done.await;
        self.audit.log_queue_order(word, caller, &resource, &done);
        // Revived jobs are ready, and a queue that was paused may have some.
        if done.is_ok() {
            access.state.bells.of_queue(queue).ring();
        }
        done
    }
}
