//! What all calls of one engine share: the server, the waiting calls, and what is remembered of its own leases.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::Token;
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use super::claim_text::{ClaimText, release, split_lease_id};
use super::decode::{GrantedReply, OwnerReply, UnexpectedReply, owner_reply};
use super::errors::{CLOSED, indeterminate, unavailable};
use super::gather::Gatherer;
use super::node::{RedisNode, RetryPolicy, ScriptCall, slot_of};
use super::scripts::{PREFIX, Script};
use super::waiting::WaitRegistry;
use crate::engine::{Grant, LeaseId};
use crate::error::{Error, Refusal};

/// The label of a holder that is not ours. The value of its key is its secret, and is never shown.
pub(super) const FOREIGN_HOLDER: &str = "(a Redis client)";

/// How many leases of this process are remembered for the fast release.
const LEASES_REMEMBERED: usize = 65_536;

/// See the module.
pub(super) struct RedisShared {
    pub node: Arc<RedisNode>,
    pub gatherer: Arc<Gatherer>,
    pub registry: Arc<WaitRegistry>,
    pub runtime: Handle,
    /// Tasks that go on after their caller is gone.
    pub tasks: TaskTracker,
    /// Tokens are shown.
    pub fencing: bool,
    leases: Mutex<HashMap<String, OwnLease>>,
}

/// What is remembered of a lease that this process got.
#[derive(Clone)]
struct OwnLease {
    /// The key, where a release may take the fast way.
    key: Option<String>,
    /// A try may still be on its way: it is kept from taking anything after the release, for so long.
    ban_ms: Option<u64>,
}

impl RedisShared {
    pub fn new(node: Arc<RedisNode>, registry: Arc<WaitRegistry>, runtime: Handle, fencing: bool) -> Arc<Self> {
        let leases = Mutex::default();
        let gatherer = Gatherer::new(node.clone(), runtime.clone());
        Arc::new(Self { node, gatherer, registry, runtime, tasks: TaskTracker::new(), fencing, leases })
    }

    fn lock_leases(&self) -> MutexGuard<'_, HashMap<String, OwnLease>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a lease, and makes it a grant.
    pub fn note_grant(&self, text: &ClaimText, granted: GrantedReply, repeated: bool) -> Grant {
        // Waiters of python-redis-lock are woken by the slow way only.
        let fast = text.plain && self.node.layout.signal_prefix.is_empty();
        let own = OwnLease { key: fast.then(|| text.keys[0].clone()), ban_ms: repeated.then_some(text.life_ms) };
        if own.key.is_some() || own.ban_ms.is_some() {
            let mut leases = self.lock_leases();
            if leases.len() >= LEASES_REMEMBERED
                && let Some(forgotten) = leases.keys().next().cloned()
            {
                leases.remove(&forgotten);
            }
            leases.insert(text.handle.clone(), own);
        }
        let fast_reply = granted.remaining_ms.is_none();
        let remaining = Duration::from_millis(granted.remaining_ms.unwrap_or(text.life_ms));
        let cap_left_ms = if fast_reply { text.cap_ms } else { granted.cap_left_ms };
        Grant {
            lease_id: LeaseId::new(text.lease_id(granted.secret.as_deref().unwrap_or(&text.secret))),
            token: if self.fencing { Token::new(granted.token) } else { None },
            remaining: self.less_slew(remaining),
            renewable: cap_left_ms.map(Duration::from_millis),
        }
    }

    /// A remaining time, less what a wall clock that is slewed may be off meanwhile.
    pub fn less_slew(&self, remaining: Duration) -> Duration {
        remaining.saturating_sub(remaining.saturating_mul(self.node.options.slew_ppm) / 1_000_000)
    }

    /// The name of a key.
    pub fn name_of(&self, key: &str) -> String {
        key.strip_prefix(&self.node.layout.key_prefix).unwrap_or(key).to_owned()
    }

    /// The key of a name.
    pub fn key_of(&self, name: &str) -> Result<String, Error> {
        self.node.options.limits.check_name(name).map_err(Error::Invalid)?;
        let key = format!("{}{name}", self.node.layout.key_prefix);
        if key.starts_with(PREFIX) {
            return Err(Error::Invalid(format!("names that begin with {PREFIX} are the engine's own on Redis")));
        }
        Ok(key)
    }

    pub async fn release(&self, lease: &LeaseId, policy: RetryPolicy) -> Result<bool, Error> {
        let (handle, secret) = parse_lease(lease)?;
        let own = self.lock_leases().get(handle).cloned();
        let (key, ban_ms) = own.map_or((None, None), |own| (own.key, own.ban_ms));
        let (keys, args) = release(handle, secret, key.as_deref(), ban_ms);
        let attempt = || "release a lease".to_owned();
        let call = ScriptCall { script: Script::Release, slot: slot_of(handle), keys, args };
        if policy != RetryPolicy::Cleanup && self.node.closed.is_cancelled() {
            return Err(unavailable(attempt(), CLOSED.into()));
        }
        let first = self.gatherer.run_script(&call).await;
        let (value, repeated) = self.node.finish_call(&attempt, &call, policy, first).await?;
        self.lock_leases().remove(handle);
        match owner_reply(&value).map_err(|odd| indeterminate(attempt(), Box::new(odd)))? {
            OwnerReply::Done(ended) => Ok(ended == 1),
            OwnerReply::Stale => Err(Refusal::Stale.into()),
            // An earlier try may have released it: of a release without a request id only the last ones are remembered.
            OwnerReply::NotHeld if repeated => {
                Err(indeterminate(attempt(), "a try whose reply was lost may have released it".into()))
            }
            OwnerReply::NotHeld => Err(Refusal::NotHeld.into()),
            OwnerReply::Renewed { .. } => Err(indeterminate(attempt(), Box::new(UnexpectedReply))),
        }
    }

    /// Releases a lease that nobody will use. If that fails, it lapses.
    pub async fn release_unseen(&self, lease: &LeaseId) {
        let _ = self.release(lease, RetryPolicy::Cleanup).await;
    }
}

/// Handle and secret. Text that is no lease id of ours is an id we do not know.
pub(super) fn parse_lease(lease: &LeaseId) -> Result<(&str, &str), Error> {
    split_lease_id(lease.expose()).ok_or_else(|| Refusal::NotHeld.into())
}
