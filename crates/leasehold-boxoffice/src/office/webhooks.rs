//! Webhooks: receivers of entries, and the last entry that each of them took.

use super::Office;
use crate::error::Error;
use crate::model::{EventId, WebhookAdded, WebhookRow};

/// The most webhooks of one ledger: few enough to be read several times a second.
pub const MAX_WEBHOOKS: usize = 100;

impl Office {
    /// Adds a webhook. It hears what happens from now on. At most [`MAX_WEBHOOKS`], however many are added at once.
    ///
    /// # Errors
    ///
    /// The ledger could not be asked.
    pub async fn add_webhook(&self, webhook: WebhookRow) -> Result<WebhookAdded, Error> {
        self.0.ledger.add_webhook(webhook, MAX_WEBHOOKS).await
    }

    /// All webhooks, also those that were switched off.
    ///
    /// # Errors
    ///
    /// The ledger could not be asked.
    pub async fn webhooks(&self) -> Result<Vec<WebhookRow>, Error> {
        self.0.ledger.webhooks().await
    }

    /// Switches a webhook off. `false`: it was removed meanwhile, and stays so.
    ///
    /// # Errors
    ///
    /// The ledger could not be asked.
    pub async fn deactivate_webhook(&self, id: &str) -> Result<bool, Error> {
        self.0.ledger.deactivate_webhook(id).await
    }

    /// Removes a webhook that the caller saw. `false`: it is not there any more.
    ///
    /// # Errors
    ///
    /// The ledger could not be asked.
    pub async fn remove_webhook(&self, seen: &WebhookRow) -> Result<bool, Error> {
        self.0.ledger.remove_webhook(seen).await
    }

    /// The number of the last entry of this event that a webhook took.
    ///
    /// # Errors
    ///
    /// The ledger could not be asked.
    pub async fn webhook_cursor(&self, id: &str, event: &EventId) -> Result<u64, Error> {
        self.0.ledger.webhook_cursor(id, event).await
    }

    /// A webhook took all entries of this event up to this number. The cursor never goes back.
    ///
    /// # Errors
    ///
    /// The ledger could not be asked.
    pub async fn advance_webhook(&self, id: &str, event: &EventId, seq: u64) -> Result<(), Error> {
        self.0.ledger.advance_webhook(id, event, seq).await
    }

    /// The last number of each event.
    ///
    /// # Errors
    ///
    /// The ledger could not be asked.
    pub async fn heads(&self) -> Result<Vec<(EventId, u64)>, Error> {
        self.0.ledger.heads().await
    }
}
