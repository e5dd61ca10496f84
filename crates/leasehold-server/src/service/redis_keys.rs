//! Redis keys: names that are held with a value, for clients that use Redis as a lock server.

use std::time::Duration;

use leasehold::Error;
use leasehold::engine::{Claim, Grant, Key, Push};
use tracing::Instrument as _;

use super::pass::{Caller, Pass};
use super::{Denial, Service, Verb};

impl Service {
    /// Sets Redis keys.
    ///
    /// # Errors
    ///
    /// The caller may not, or the engine refused or failed.
    pub async fn set_key(&self, caller: &Caller, claim: Claim, value: &[u8]) -> Result<Grant, Denial> {
        let names: Vec<&str> = claim.wants.iter().map(|want| want.name.as_str()).collect();
        let pass = self.authorize(caller, Verb::SetKey, &names)?;
        let claim = Claim { principal: caller.principal.id.clone(), ..claim };
        let answer = self.redis_keys(&pass)?.set(claim, value).instrument(pass.span(caller)).await;
        self.metrics.record_acquire(&answer, Duration::ZERO);
        answer.map_err(Denial::Engine)
    }

    /// Reads a Redis key.
    ///
    /// # Errors
    ///
    /// The caller may not, or the engine refused or failed.
    pub async fn get_key(&self, caller: &Caller, name: &str) -> Result<Option<Key>, Denial> {
        let pass = self.authorize(caller, Verb::GetKey, &[name])?;
        self.redis_keys(&pass)?.get(name).await.map_err(Denial::Engine)
    }

    /// Frees Redis keys. Without a value the caller did not prove ownership: that goes to the audit log.
    ///
    /// # Errors
    ///
    /// The caller may not, or the engine refused or failed.
    pub async fn free_keys(&self, caller: &Caller, names: &[&str], value: Option<&[u8]>) -> Result<usize, Denial> {
        let pass = self.authorize(caller, Verb::FreeKey, names)?;
        let answer = self.redis_keys(&pass)?.free(names, value).await;
        if value.is_none() {
            self.audit.log_freed_keys(caller, names, &answer);
        }
        answer.map_err(Denial::Engine)
    }

    /// Moves the end of Redis keys. Without a value the caller did not prove ownership: that goes to the audit log.
    ///
    /// # Errors
    ///
    /// The caller may not, or the engine refused or failed.
    pub async fn extend_keys(
        &self,
        caller: &Caller,
        names: &[&str],
        value: Option<&[u8]>,
        push: Push,
    ) -> Result<usize, Denial> {
        let pass = self.authorize(caller, Verb::ExtendKey, names)?;
        let answer = self.redis_keys(&pass)?.extend(names, value, push).await;
        if value.is_none() {
            self.audit.log_extended_keys(caller, names, &answer);
        }
        answer.map_err(Denial::Engine)
    }

    fn redis_keys(&self, pass: &Pass) -> Result<&dyn leasehold::engine::Keys, Denial> {
        let _ = pass;
        self.engine.keys().ok_or_else(|| {
            let engine = self.engine.promises().engine;
            Denial::Engine(Error::Invalid(format!(
                "Redis keys need an engine that keeps values, and {engine} does not"
            )))
        })
    }
}
