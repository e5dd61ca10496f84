//! Sends webhooks: entries in order, signed, repeated until they are accepted.
//!
//! # Laws
//!
//! 1. A webhook gets every entry of an event in order, at least once. Its position is stored in the ledger.
//! 2. One of several servers sends, under a lease. Two at once would only send messages twice.
//! 3. A slow receiver does not delay others. A receiver that accepts nothing for days is deactivated.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::clock::{Clock, Time};
use leasehold::engine::{Claim, Engine, Grant, Mode, Want};
use leasehold::{Error, Refusal};
use leasehold_boxoffice::model::{AuditQuery, EventId, WebhookRow};
use leasehold_boxoffice::office::OfficeTask;
use leasehold_boxoffice::sign::{HEADER, Secrets};
use leasehold_boxoffice::webhook;

use super::BoxOffice;
use crate::api::boxoffice::staff_entry_json;
use leasehold_support::sync::lock;
use leasehold_support::time::wall_ms;

/// The resource that the sending server holds, and for how long between renewals.
const SENDER_LEASE_NAME: &str = "boxoffice-webhooks";
const SENDER_LEASE_TTL: Duration = Duration::from_secs(15);
const DELIVERY_CHECK_EVERY: Duration = Duration::from_millis(250);
const MAX_ENTRIES_PER_DELIVERY: usize = 100;

/// A webhook and an event: one sequence of deliveries.
type DeliveryKey = (String, EventId);

/// The state of one sequence of deliveries.
#[derive(Clone, Copy, Debug, Default)]
struct DeliveryProgress {
    /// The last number that was accepted; none until it was read from the ledger.
    cursor: Option<u64>,
    failed: u32,
    /// The next attempt is not before this.
    next: Option<Time>,
    /// When the entry that was not accepted happened, by the wall clock.
    behind: Option<u64>,
}

/// The webhook task of one server.
pub struct WebhookSender {
    boxoffice: Arc<BoxOffice>,
    engine: Arc<dyn Engine>,
    clock: Arc<dyn Clock>,
    deliveries: Mutex<HashMap<DeliveryKey, DeliveryProgress>>,
    under_way: DeliveriesUnderWay,
}

/// The sequences that are being delivered: each by one task at a time.
#[derive(Clone, Default)]
struct DeliveriesUnderWay(Arc<Mutex<HashSet<DeliveryKey>>>);

impl DeliveriesUnderWay {
    /// None: a task delivers this sequence already.
    fn begin(&self, key: DeliveryKey) -> Option<DeliveryUnderWay> {
        lock(&self.0).insert(key.clone()).then(|| DeliveryUnderWay { all: self.clone(), key })
    }
}

/// Ends with the task, even if the task panics: otherwise the webhook would get nothing until a restart.
struct DeliveryUnderWay {
    all: DeliveriesUnderWay,
    key: DeliveryKey,
}

impl Drop for DeliveryUnderWay {
    fn drop(&mut self) {
        lock(&self.all.0).remove(&self.key);
    }
}

impl WebhookSender {
    /// Over a box office, and the engine that grants the lease of the sender.
    pub fn new(boxoffice: Arc<BoxOffice>, engine: Arc<dyn Engine>, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            boxoffice,
            engine,
            clock,
            deliveries: Mutex::default(),
            under_way: DeliveriesUnderWay::default(),
        })
    }

    /// Sends until dropped.
    pub async fn run(self: Arc<Self>) {
        let mut lease: Option<Grant> = None;
        let mut renewed = self.clock.now();
        loop {
            self.clock.sleep_until(self.clock.now().plus(DELIVERY_CHECK_EVERY)).await;
            // Without a webhook no lease is needed.
            if lease.is_none() && self.active_webhooks().await.is_ok_and(|webhooks| webhooks.is_empty()) {
                self.boxoffice.office().record_task_round(OfficeTask::Webhooks);
                continue;
            }
            if lease.is_none() || self.clock.now().since(renewed) > SENDER_LEASE_TTL / 3 {
                lease = match self.keep_lease(lease.take()).await {
                    Ok(lease) => Some(lease),
                    // Another server has the lease and sends.
                    Err(Error::Refused(Refusal::Held { .. })) => {
                        self.boxoffice.office().record_task_round(OfficeTask::Webhooks);
                        None
                    }
                    Err(_) => None,
                };
                renewed = self.clock.now();
                if lease.is_none() {
                    // The other server may have advanced the positions: read them again later.
                    lock(&self.deliveries).clear();
                    self.clock.sleep_until(self.clock.now().plus(SENDER_LEASE_TTL / 3)).await;
                    continue;
                }
            }
            match self.deliver_due().await {
                Ok(()) => self.boxoffice.office().record_task_round(OfficeTask::Webhooks),
                Err(error) => tracing::warn!(%error, "webhooks wait for the ledger"),
            }
        }
    }

    /// Age of the oldest entry that a receiver did not accept.
    pub fn lag_ms(&self, now_ms: u64) -> u64 {
        let deliveries = lock(&self.deliveries);
        deliveries
            .values()
            .filter_map(|progress| progress.behind)
            .map(|at| now_ms.saturating_sub(at))
            .max()
            .unwrap_or(0)
    }

    async fn keep_lease(&self, lease: Option<Grant>) -> Result<Grant, Error> {
        if let Some(lease) = lease {
            return self.engine.renew(&lease.lease_id, Some(SENDER_LEASE_TTL)).await.map(|_| lease);
        }
        let claim = Claim {
            wants: vec![Want { name: SENDER_LEASE_NAME.into(), mode: Mode::Exclusive }],
            ttl: SENDER_LEASE_TTL,
            wait: Duration::ZERO,
            max_hold: None,
            delay: Duration::ZERO,
            holder: "webhooks".into(),
            request: None,
            principal: String::new(),
        };
        self.engine.acquire(claim).await
    }

    async fn active_webhooks(&self) -> Result<Vec<WebhookRow>, leasehold_boxoffice::Error> {
        let rows = self.boxoffice.office().webhooks().await?;
        Ok(rows.into_iter().filter(|row| row.active).collect())
    }

    async fn deliver_due(self: &Arc<Self>) -> Result<(), leasehold_boxoffice::Error> {
        let webhooks = self.active_webhooks().await?;
        if webhooks.is_empty() {
            return Ok(());
        }
        let heads = self.boxoffice.office().heads().await?;
        // A deleted or inactive webhook does not count as behind.
        let known = |key: &DeliveryKey| webhooks.iter().any(|row| row.id == key.0);
        lock(&self.deliveries).retain(|key, _| known(key));
        for row in webhooks {
            for (event, head) in &heads {
                if row.event_id.as_ref().is_none_or(|only| only == event) {
                    self.deliver_if_due(&row, event, *head).await?;
                }
            }
        }
        Ok(())
    }

    async fn deliver_if_due(
        self: &Arc<Self>,
        row: &WebhookRow,
        event: &EventId,
        head: u64,
    ) -> Result<(), leasehold_boxoffice::Error> {
        let key = (row.id.clone(), event.clone());
        let known = lock(&self.deliveries).get(&key).copied().unwrap_or_default();
        if known.next.is_some_and(|next| self.clock.now() < next) {
            return Ok(());
        }
        let cursor = match known.cursor {
            Some(cursor) => cursor,
            None => self.boxoffice.office().webhook_cursor(&row.id, event).await?,
        };
        if cursor >= head {
            return Ok(());
        }
        let Some(under_way) = self.under_way.begin(key) else { return Ok(()) };
        let (this, row) = (self.clone(), row.clone());
        tokio::spawn(async move {
            let known = DeliveryProgress { cursor: Some(cursor), ..known };
            let progress = this.deliver(&row, &under_way.key.1, known).await;
            // Before it ends: the next task must begin where this one stopped.
            lock(&this.deliveries).insert(under_way.key.clone(), progress);
        });
        Ok(())
    }

    /// Sends the next entries, until all are sent or one fails.
    async fn deliver(&self, row: &WebhookRow, event: &EventId, mut known: DeliveryProgress) -> DeliveryProgress {
        let since = known.cursor.unwrap_or_default();
        let query = AuditQuery { since, seat: None, limit: MAX_ENTRIES_PER_DELIVERY };
        let office = self.boxoffice.office();
        let (Ok(entries), Ok(secrets)) = (office.audit(event, query).await, Secrets::new(&[row.secret.as_bytes()]))
        else {
            return self.schedule_retry(row, known, "the ledger or the secret cannot be read").await;
        };
        for entry in entries {
            let body = staff_entry_json(&entry).to_string().into_bytes();
            let message = webhook::message(&secrets, entry.seq, body, wall_ms());
            let answer = self.boxoffice.outbound().post(&row.url, &[(HEADER, &message.signature)], message.body).await;
            let why = match answer {
                Ok(answer) if answer.is_success() => None,
                Ok(answer) => Some(format!("status {}", answer.status)),
                Err(failed) => Some(failed.to_string()),
            };
            if let Some(why) = why {
                known.behind = Some(entry.wall_ms);
                return self.schedule_retry(row, known, &why).await;
            }
            if office.advance_webhook(&row.id, event, entry.seq).await.is_err() {
                return self.schedule_retry(row, known, "the ledger does not answer").await;
            }
            known = DeliveryProgress { cursor: Some(entry.seq), failed: 0, next: None, behind: None };
        }
        known
    }

    async fn schedule_retry(&self, row: &WebhookRow, known: DeliveryProgress, why: &str) -> DeliveryProgress {
        let failed = known.failed + 1;
        let chance = self.clock.now().as_nanos();
        let Some(pause) = webhook::pause(failed, chance) else {
            tracing::warn!(webhook = row.id, why, "a webhook took nothing for days, and is switched off");
            let _ = self.boxoffice.office().deactivate_webhook(&row.id).await;
            return DeliveryProgress { failed: 0, behind: None, ..known };
        };
        tracing::info!(webhook = row.id, failed, why, "a webhook was not taken, and will be sent again");
        DeliveryProgress { failed, next: Some(self.clock.now().plus(pause)), ..known }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a sequence is delivered by one task at a time, and a task that panics does not end it for good.
    #[tokio::test]
    async fn a_delivery_that_panics_can_begin_again() {
        let all = DeliveriesUnderWay::default();
        let key = ("wh_1".to_owned(), EventId("ev_1".into()));
        let first = all.begin(key.clone()).unwrap();
        assert!(all.begin(key.clone()).is_none(), "one at a time");
        assert!(all.begin(("wh_2".to_owned(), key.1.clone())).is_some(), "others are not kept waiting");
        let task = tokio::spawn(async move {
            let _under_way = first;
            panic!("on purpose");
        });
        assert!(task.await.unwrap_err().is_panic());
        assert!(all.begin(key).is_some());
    }
}
