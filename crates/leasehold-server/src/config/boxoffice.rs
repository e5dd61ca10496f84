//! `[boxoffice]`: tickets, webhooks and the payment provider.

use std::fmt;
use std::time::Duration;

use leasehold_boxoffice::provider::CaptureMode;
use leasehold_boxoffice::sign::MIN_SECRET_BYTES;
use serde::Deserialize;

use super::units::ConfigDuration;

/// The configuration of the box office.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename = "BoxOffice", deny_unknown_fields, default)]
pub struct BoxOfficeConfig {
    /// The secrets that sign tickets: one, or two while it is being changed.
    pub ticket_secrets: Vec<SecretText>,
    /// How long a ticket lives.
    pub ticket_ttl: ConfigDuration,
    /// The event that the buyers' page begins with.
    pub default_event: Option<String>,
    /// The URL of the payment provider.
    pub provider_url: Option<String>,
    /// Whether the provider creates payments, and when it captures. None: the shop creates them.
    pub provider_payments: Option<CaptureMode>,
    /// The secrets of the payment provider: one, or two while it is being changed.
    pub provider_secrets: Vec<SecretText>,
    /// Whether webhooks and the provider may be in a private network.
    pub allow_private_targets: bool,
}

impl Default for BoxOfficeConfig {
    fn default() -> Self {
        Self {
            ticket_secrets: Vec::new(),
            ticket_ttl: ConfigDuration::seconds(3600),
            default_event: None,
            provider_url: None,
            provider_payments: None,
            provider_secrets: Vec::new(),
            allow_private_targets: false,
        }
    }
}

impl BoxOfficeConfig {
    /// The holder name of this server's own leases.
    pub fn name(&self) -> String {
        format!("boxoffice-{}", std::process::id())
    }

    /// Refuses what cannot work.
    ///
    /// # Errors
    ///
    /// The sentence.
    pub fn check(&self) -> Result<(), String> {
        for (field, secrets) in [("ticket_secrets", &self.ticket_secrets), ("provider_secrets", &self.provider_secrets)]
        {
            if secrets.len() > 2 {
                return Err(format!("boxoffice.{field} is one secret, or two while it is being changed"));
            }
            if secrets.iter().any(|secret| secret.0.len() < MIN_SECRET_BYTES) {
                return Err(format!("boxoffice.{field}: a secret is at least {MIN_SECRET_BYTES} bytes"));
            }
        }
        let ttl = self.ticket_ttl.0;
        if ttl < Duration::from_mins(1) || ttl > Duration::from_hours(24) {
            return Err(format!("boxoffice.ticket_ttl is from 1m to 24h, got {}", self.ticket_ttl));
        }
        if self.provider_url.is_some() && self.provider_secrets.is_empty() {
            return Err("boxoffice.provider_url needs boxoffice.provider_secrets".into());
        }
        if self.provider_payments.is_some() && self.provider_url.is_none() {
            return Err("boxoffice.provider_payments needs boxoffice.provider_url".into());
        }
        let guard = leasehold_boxoffice::webhook::guard::TargetGuard { allow_private: self.allow_private_targets };
        match self.provider_url.as_deref().map(|url| guard.target(url)) {
            Some(Err(why)) => Err(format!("boxoffice.provider_url: {why}")),
            _ => Ok(()),
        }
    }
}

/// A text that `Debug` does not show.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct SecretText(String);

impl SecretText {
    /// Hides a text.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// The text.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}
