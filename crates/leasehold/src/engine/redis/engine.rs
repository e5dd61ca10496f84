//! The verbs of the contract, as scripts.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Secret, WaiterId};
use redis::Value;
use tokio::runtime::Handle;

use super::acquire_task::AcquireTask;
use super::claim_text::{record_key, to_hex};
use super::connect::PushSink;
use super::decode::{Inspected, OwnerReply, UnexpectedReply, inspected, number_text, owner_reply, text};
use super::errors::{CLOSED, CallError, ENGINE, indeterminate, unavailable};
use super::examine::{CLOCK_FOLLOWS, find_foreign_clients, measure_clock};
use super::node::{PUSH_SLOT, RedisNode, RetryPolicy, ScriptCall, random_bits, send_command, slot_of};
use super::options::RedisOptions;
use super::scripts::{PREFIX, Script};
use super::shared::{FOREIGN_HOLDER, RedisShared, parse_lease};
use super::verify::first_denial;
use super::waiting::WaitRegistry;
use super::watch::{RedisWatcher, forget_names, observe};
use crate::clock::until;
use crate::engine::from_book::{acquire, millis, wants};
use crate::engine::{
    Answer, Claim, Engine, EngineProfile, EventId, Finding, Grant, Keys, LeaseId, Promises, Query, Renewal, Resource,
    Token, Watch,
};
use crate::error::{Error, Refusal};

/// How long closing waits for leases that are still to be released.
const MAX_CLOSE_WAIT: Duration = Duration::from_secs(4);
/// As many holders and waiters of one resource as other engines show.
const HOLDERS_SHOWN: usize = 1000;
const SHOWN_IN_LISTS: usize = 100;
/// Names that one script inspects for a list.
const NAMES_PER_INSPECT: usize = 100;

/// What it promises at best.
pub const PROFILE: EngineProfile = EngineProfile {
    url: "redis://HOST:PORT",
    best: promises(true),
    needs: &[
        "appendonly yes",
        "appendfsync always",
        "no-appendfsync-on-rewrite no",
        "aof-load-truncated no",
        "maxmemory-policy noeviction",
        "no replicas",
    ],
};

const fn promises(strong: bool) -> Promises {
    Promises {
        engine: ENGINE,
        durable: strong,
        fencing: strong,
        fair: true,
        never_early: false,
        outlives_process: true,
    }
}

/// The client of one Redis server. See the module.
pub struct RedisEngine {
    shared: Arc<RedisShared>,
    promises: Promises,
}

impl fmt::Debug for RedisEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisEngine").field("options", &self.shared.node.options).finish_non_exhaustive()
    }
}

impl RedisEngine {
    /// Connects, and reads what the server promises. Its tasks run on the runtime that this is called in.
    ///
    /// # Errors
    ///
    /// Unavailable when nobody answers there, or a replica does; Invalid for a wrong password, a missing permission, an old
    /// server, a cluster, or a call outside of a tokio runtime.
    pub async fn open(options: RedisOptions) -> Result<Arc<Self>, Error> {
        let runtime = Handle::try_current()
            .map_err(|_| Error::Invalid("a server is asked on a tokio runtime: open it inside one".into()))?;
        let registry = Arc::new(WaitRegistry::default());
        let messages = registry.clone();
        let pushes = PushSink::new(move |push| messages.receive(&push));
        let at = options.at();
        let node = RedisNode::new(options, to_hex(&random_bits::<8>()), pushes, runtime.clone());
        if let Err(error) = node.connection(PUSH_SLOT).await {
            return Err(match error {
                CallError::Decided(error) => error,
                CallError::Busy(source) | CallError::NoEffect(source) | CallError::Unknown(source) => {
                    unavailable(format!("open redis://{at}"), source)
                }
            });
        }
        // The others as well, so that the first requests do not wait for them. If one fails, its first request tries again.
        let _ = tokio::join!(node.connection(1), node.connection(2), node.connection(3));
        let strong = first_denial(&node.findings()).is_none();
        if strong {
            node.swear_fencing();
        }
        let shared = RedisShared::new(node.clone(), registry.clone(), runtime.clone(), strong);
        runtime.spawn(registry.clone().run_heartbeat(node.clone()));
        runtime.spawn(registry.run_supervisor(node));
        Ok(Arc::new(Self { shared, promises: promises(strong) }))
    }

    fn open_or(&self, attempt: &str) -> Result<(), Error> {
        if self.shared.node.closed.is_cancelled() {
            return Err(unavailable(attempt.into(), CLOSED.into()));
        }
        Ok(())
    }

    fn check_claim(&self, claim: &Claim) -> Result<(), Error> {
        let wanted = wants(claim);
        let checked = acquire(claim, &wanted, None, WaiterId(0), Secret::new([0; 16]));
        self.shared.node.options.limits.check(&checked).map_err(Error::Invalid)?;
        claim.wants.iter().try_for_each(|want| self.shared.key_of(&want.name).map(drop))
    }

    async fn ask_owner(
        &self,
        script: Script,
        lease: &LeaseId,
        argument: String,
        attempt: &str,
    ) -> Result<OwnerReply, Error> {
        self.open_or(attempt)?;
        let (handle, secret) = parse_lease(lease)?;
        // Numbered, so that a copy of this request that arrives late does not undo what a later one was answered.
        let number = self.shared.node.next_number().to_string();
        let args = vec![secret.to_owned(), argument, self.shared.node.instance.clone(), number];
        let call = ScriptCall { script, slot: slot_of(handle), keys: vec![record_key(handle)], args };
        let value = self.shared.node.call(&|| attempt.into(), &call, RetryPolicy::Idempotent).await?;
        match owner_reply(&value).map_err(|odd| indeterminate(attempt.into(), Box::new(odd)))? {
            OwnerReply::Stale => Err(Refusal::Stale.into()),
            OwnerReply::NotHeld => Err(Refusal::NotHeld.into()),
            reply => Ok(reply),
        }
    }

    /// What is known of these keys, in order.
    async fn look_at(
        &self,
        attempt: crate::engine::AttemptText<'_>,
        keys: Vec<String>,
        holders_shown: usize,
    ) -> Result<Vec<Option<Resource>>, Error> {
        let names: Vec<String> = keys.iter().map(|key| self.shared.name_of(key)).collect();
        let args = vec![holders_shown.to_string(), SHOWN_IN_LISTS.to_string()];
        let slot = random_bits::<1>()[0] as usize % super::node::CONNECTIONS;
        let call = ScriptCall { script: Script::Inspect, slot, keys, args };
        let value = self.shared.node.call(attempt, &call, RetryPolicy::ReadOnly).await?;
        let seen = inspected(&value, &names).map_err(|odd| unavailable(attempt(), Box::new(odd)))?;
        Ok(seen.into_iter().map(|seen| seen.map(|seen| self.show(seen))).collect())
    }

    fn show(&self, seen: Inspected) -> Resource {
        let mut resource = seen.resource;
        for holding in &mut resource.holders {
            if seen.foreign {
                holding.holder = FOREIGN_HOLDER.into();
            }
            if !self.promises.fencing {
                holding.token = None;
            }
        }
        resource
    }

    async fn list_page(&self, query: &Query) -> Result<Vec<Resource>, Error> {
        let attempt = || format!("list {}", query.prefix);
        observe(&self.shared, &attempt).await?;
        let key_prefix = &self.shared.node.layout.key_prefix;
        let prefix = format!("{key_prefix}{}", query.prefix);
        let mut from = match &query.after {
            Some(after) if *after >= query.prefix => format!("({key_prefix}{after}"),
            _ => format!("[{prefix}"),
        };
        let mut found = Vec::new();
        while found.len() < query.limit {
            let wanted = (query.limit - found.len()).min(NAMES_PER_INSPECT);
            let keys = self.read_index(&attempt, &from, &prefix, wanted).await?;
            let Some(last) = keys.last() else { break };
            from = format!("({last}");
            let mut free = keys.clone();
            let seen: Vec<Resource> =
                self.look_at(&attempt, keys, SHOWN_IN_LISTS).await?.into_iter().flatten().collect();
            free.retain(|key| !seen.iter().any(|resource| resource.name == self.shared.name_of(key)));
            forget_names(&self.shared, free).await;
            found.extend(seen);
        }
        Ok(found)
    }

    /// The next names in use under a prefix.
    async fn read_index(
        &self,
        attempt: crate::engine::AttemptText<'_>,
        from: &str,
        prefix: &str,
        most: usize,
    ) -> Result<Vec<String>, Error> {
        let mut command = redis::cmd("ZRANGEBYLEX");
        // No UTF-8 has the byte 0xff: it is behind every name with this prefix.
        let mut to = b"[".to_vec();
        to.extend_from_slice(prefix.as_bytes());
        to.push(0xff);
        command.arg(format!("{PREFIX}i")).arg(from).arg(to).arg("LIMIT").arg(0).arg(most);
        let value = self.read_plain(attempt, &command).await?;
        let odd = |odd: UnexpectedReply| unavailable(attempt(), Box::new(odd));
        super::decode::array(&value).map_err(odd)?.iter().map(|key| text(key).map_err(odd)).collect()
    }

    /// A command that reads, with one retry over a new connection.
    async fn read_plain(&self, attempt: crate::engine::AttemptText<'_>, command: &redis::Cmd) -> Result<Value, Error> {
        let node = &self.shared.node;
        let mut last = None;
        for _ in 0..2 {
            let connection = match node.connection(PUSH_SLOT).await {
                Ok(connection) => connection,
                Err(CallError::Decided(error)) => return Err(error),
                Err(CallError::Busy(why) | CallError::NoEffect(why) | CallError::Unknown(why)) => {
                    return Err(unavailable(attempt(), why));
                }
            };
            match send_command(&*node.clock, &mut connection.redis.clone(), command).await {
                Some(Ok(value)) => return Ok(value),
                Some(Err(error)) => last = Some(super::errors::read_connect_error(&error, &node.options.at())),
                None => last = Some(CallError::NoEffect("the server does not answer".into())),
            }
            node.drop_connection(PUSH_SLOT, &connection);
        }
        Err(match last {
            Some(CallError::Decided(error)) => error,
            Some(CallError::Busy(why) | CallError::NoEffect(why) | CallError::Unknown(why)) => {
                unavailable(attempt(), why)
            }
            None => unavailable(attempt(), "it was not asked".into()),
        })
    }
}

impl Engine for RedisEngine {
    fn promises(&self) -> Promises {
        self.promises
    }

    fn acquire(&self, claim: Claim) -> Answer<'_, Grant> {
        Box::pin(async move {
            self.open_or("acquire")?;
            self.check_claim(&claim)?;
            AcquireTask::start(&self.shared, claim).await
        })
    }

    fn renew<'a>(&'a self, lease: &'a LeaseId, ttl: Option<Duration>) -> Answer<'a, Renewal> {
        Box::pin(async move {
            let ttl = ttl.map(millis);
            if let Some(ttl) = ttl {
                self.shared.node.options.limits.check_ttl(ttl).map_err(Error::Invalid)?;
            }
            let ttl = ttl.map_or_else(String::new, |ttl| ttl.to_string());
            match self.ask_owner(Script::Renew, lease, ttl, "renew a lease").await? {
                OwnerReply::Renewed { remaining_ms, cap_left_ms } => Ok(Renewal {
                    remaining: self.shared.less_slew(Duration::from_millis(remaining_ms)),
                    renewable: cap_left_ms.map(Duration::from_millis),
                }),
                _ => Err(indeterminate("renew a lease".into(), Box::new(UnexpectedReply))),
            }
        })
    }

    fn relabel<'a>(&'a self, lease: &'a LeaseId, holder: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            self.shared.node.options.limits.check_holder(holder).map_err(Error::Invalid)?;
            match self.ask_owner(Script::Relabel, lease, holder.to_owned(), "relabel a lease").await? {
                OwnerReply::Done(1) => Ok(()),
                _ => Err(indeterminate("relabel a lease".into(), Box::new(UnexpectedReply))),
            }
        })
    }

    fn release<'a>(&'a self, lease: &'a LeaseId) -> Answer<'a, bool> {
        Box::pin(async move {
            self.open_or("release a lease")?;
            self.shared.release(lease, RetryPolicy::Idempotent).await
        })
    }

    fn revoke<'a>(&'a self, name: &'a str, reason: &'a str) -> Answer<'a, usize> {
        Box::pin(async move {
            let key = self.shared.key_of(name)?;
            let most = self.shared.node.options.limits.holder_bytes;
            if reason.trim().is_empty() || reason.len() > most {
                return Err(Error::Invalid(format!("a revoke gives a reason of 1 to {most} bytes")));
            }
            if reason.chars().any(char::is_control) {
                return Err(Error::Invalid("a reason holds no control characters".into()));
            }
            let attempt = || format!("revoke {name}");
            let args = vec![reason.to_owned()];
            let call = ScriptCall { script: Script::Revoke, slot: PUSH_SLOT, keys: vec![key], args };
            match self.shared.node.call(&attempt, &call, RetryPolicy::NotTwice).await? {
                Value::Int(-1) => Err(Error::Invalid(format!(
                    "{name} is held by another Redis client, not by a lease; delete its key yourself if you are sure"
                ))),
                Value::Int(count @ 0..) => Ok(usize::try_from(count).unwrap_or(usize::MAX)),
                _ => Err(indeterminate(attempt(), Box::new(UnexpectedReply))),
            }
        })
    }

    fn inspect<'a>(&'a self, name: &'a str) -> Answer<'a, Option<Resource>> {
        Box::pin(async move {
            let key = self.shared.key_of(name)?;
            let mut seen = self.look_at(&|| format!("inspect {name}"), vec![key], HOLDERS_SHOWN).await?;
            Ok(seen.pop().flatten())
        })
    }

    fn list(&self, query: Query) -> Answer<'_, Vec<Resource>> {
        Box::pin(async move {
            self.open_or("list")?;
            if query.limit == 0 {
                return Ok(Vec::new());
            }
            self.list_page(&query).await
        })
    }

    fn raise_floor(&self, floor: Option<Token>) -> Answer<'_, Token> {
        Box::pin(async move {
            self.open_or("raise the floor")?;
            if !self.promises.fencing {
                return Err(Error::Invalid("this Redis, as configured, has no tokens, so they have no floor".into()));
            }
            if floor > Some(Token::MAX_FLOOR) {
                let sentence = format!("a floor is at most {}: too few tokens would be left", Token::MAX_FLOOR);
                return Err(Error::Invalid(sentence));
            }
            let args = vec![floor.map_or_else(String::new, |floor| floor.to_string())];
            let call = ScriptCall { script: Script::Floor, slot: PUSH_SLOT, keys: Vec::new(), args };
            let attempt = || "raise the floor".to_owned();
            let policy = if floor.is_some() { RetryPolicy::Idempotent } else { RetryPolicy::ReadOnly };
            let value = self.shared.node.call(&attempt, &call, policy).await?;
            let token = number_text(&value).ok().and_then(Token::new);
            token.ok_or_else(|| indeterminate(attempt(), Box::new(UnexpectedReply)))
        })
    }

    fn identity(&self) -> Answer<'_, Option<String>> {
        Box::pin(async move {
            self.open_or("read the identity")?;
            Ok(None)
        })
    }

    fn examine(&self) -> Answer<'_, Vec<Finding>> {
        Box::pin(async move {
            self.open_or("examine the engine")?;
            let node = &self.shared.node;
            let failed = |error| match error {
                CallError::Decided(error) => error,
                CallError::Busy(why) | CallError::NoEffect(why) | CallError::Unknown(why) => {
                    unavailable("examine the engine".into(), why)
                }
            };
            let mut findings = node.verify_again().await.map_err(failed)?;
            let mut redis = node.connection(PUSH_SLOT).await.map_err(failed)?.redis.clone();
            let offset = measure_clock(node, &mut redis).await;
            findings.extend(offset.map(|offset| offset.finding("clock of the server", CLOCK_FOLLOWS)));
            findings.extend(find_foreign_clients(node, &mut redis).await);
            Ok(findings)
        })
    }

    fn watch(&self, since: Option<EventId>) -> Answer<'_, Watch> {
        Box::pin(async move {
            self.open_or("watch")?;
            Ok(Box::new(RedisWatcher::begin(self.shared.clone(), since).await?) as Watch)
        })
    }

    fn keys(&self) -> Option<&dyn Keys> {
        None
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            let node = &self.shared.node;
            node.closed.cancel();
            self.shared.tasks.close();
            // A lease that cannot be released in this time lapses.
            let _ = until(&*node.clock, node.clock.now().plus(MAX_CLOSE_WAIT), self.shared.tasks.wait()).await;
            node.close_connections();
            Ok(())
        })
    }
}

impl Drop for RedisEngine {
    fn drop(&mut self) {
        // The heartbeat and the supervisor end.
        self.shared.node.closed.cancel();
    }
}
