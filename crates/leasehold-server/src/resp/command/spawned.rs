//! Calls that any engine answers, through the service's own methods: what is rare, and every call on an engine
//! without a locked.

use std::sync::Arc;
use std::time::Duration;

use leasehold::engine::{Claim, EventId, LeaseId, Mode, Promises, Push, Query, Resource, Token, Want};

use super::inline::{MARKER, redis_ttl};
use super::{Call, Form};
use crate::resp::codec::reply::{LeaseLife, ReplyWriter, RespVersion, millis};
use crate::service::metrics::Outcome;
use crate::service::{Caller, Denial, EngineInfo, Service};

/// A call that owns what it was asked with, to be answered away from its connection.
pub enum OwnedCall {
    Acquire(Claim, bool),
    Renew(LeaseId, Option<Duration>, bool),
    Release(LeaseId),
    Inspect(String),
    List(Query),
    Revoke(String, String),
    Promises,
    Floor(Option<Token>),
    Engine,
    Set(Claim, Vec<u8>, bool),
    Get(String),
    Exists(Vec<String>),
    Ttl(String, bool),
    Free(Vec<String>, Option<Vec<u8>>),
    Extend(Vec<String>, Option<Vec<u8>>, Push, Form),
    Watch(String, Option<EventId>),
}

impl OwnedCall {
    /// Takes what the call was asked with out of the connection's input.
    ///
    /// # Errors
    ///
    /// One sentence that says what is wrong with it.
    pub fn of(call: &Call<'_>, holder: &str) -> Result<Self, String> {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        Ok(match call {
            Call::Acquire(asked) => {
                let claim = Claim {
                    wants: asked.wants.iter().map(|(name, mode)| Want { name: (*name).into(), mode: *mode }).collect(),
                    wait: Duration::from_millis(asked.wait_ms),
                    max_hold: asked.max_hold_ms.map(Duration::from_millis),
                    delay: Duration::from_millis(asked.delay_ms),
                    request: asked.request.map(Into::into),
                    ..claim(&[], asked.ttl_ms, asked.holder.unwrap_or(holder))
                };
                Self::Acquire(claim, asked.full)
            }
            Call::Renew { lease, ttl_ms, full } => {
                Self::Renew(LeaseId::new(*lease), ttl_ms.map(Duration::from_millis), *full)
            }
            Call::Release { lease } => Self::Release(LeaseId::new(*lease)),
            Call::Inspect { name } => Self::Inspect((*name).into()),
            Call::List { prefix, limit, after } => {
                Self::List(Query { prefix: (*prefix).into(), limit: *limit, after: after.map(Into::into) })
            }
            Call::Revoke { name, reason } => Self::Revoke((*name).into(), (*reason).into()),
            Call::Promises => Self::Promises,
            Call::Floor { raise } => Self::Floor(*raise),
            Call::Engine => Self::Engine,
            Call::Set { key, value, ttl_ms } => Self::Set(claim(&[key], *ttl_ms, holder), value.to_vec(), false),
            Call::SetAll { keys, value, ttl_ms } => Self::Set(claim(keys, *ttl_ms, holder), value.to_vec(), true),
            Call::Get { key } => Self::Get((*key).into()),
            Call::Exists { keys } => Self::Exists(owned(keys)),
            Call::Ttl { key, seconds } => Self::Ttl((*key).into(), *seconds),
            Call::Free { keys, value } => Self::Free(owned(keys), value.map(Into::into)),
            Call::Extend { keys, value, ms, add, form } => {
                let push = if *add { Push::Add(*ms) } else { Push::Set(*ms) };
                Self::Extend(owned(keys), value.map(Into::into), push, *form)
            }
            Call::Watch { prefix, since } => {
                let since = since.map(str::parse).transpose().map_err(|_| "SINCE takes the id of an event")?;
                Self::Watch((*prefix).into(), since)
            }
        })
    }
}

fn claim(keys: &[&str], ttl_ms: u64, holder: &str) -> Claim {
    Claim {
        wants: keys.iter().map(|name| Want { name: (*name).into(), mode: Mode::Exclusive }).collect(),
        ttl: Duration::from_millis(ttl_ms),
        wait: Duration::ZERO,
        max_hold: None,
        delay: Duration::ZERO,
        holder: holder.into(),
        request: None,
        principal: String::new(),
    }
}

/// Counts an acquire whose client went away: then its work is dropped before there is an answer.
struct Unanswered(Option<Arc<Service>>);

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(service) = &self.0 {
            service.metrics.refused(Outcome::Left);
        }
    }
}

/// Runs the errand and writes its reply.
pub async fn answer(service: Arc<Service>, caller: Caller, errand: OwnedCall, version: RespVersion) -> Vec<u8> {
    let mut unanswered = Unanswered(matches!(errand, OwnedCall::Acquire(..)).then(|| service.clone()));
    let mut out = Vec::new();
    let mut reply = ReplyWriter::new(&mut out, version);
    if let Err(denial) = attempt(&service, &caller, errand, &mut reply).await {
        reply.denial(&denial);
    }
    unanswered.0 = None;
    out
}

fn refs(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

async fn attempt(
    service: &Service,
    caller: &Caller,
    errand: OwnedCall,
    reply: &mut ReplyWriter<'_>,
) -> Result<(), Denial> {
    match errand {
        OwnedCall::Acquire(claim, full) => {
            let grant = service.acquire(caller, claim).await?;
            let life = LeaseLife { remaining: grant.remaining, renewable: full.then_some(grant.renewable) };
            reply.granted(grant.lease_id.expose(), grant.token, life);
        }
        OwnedCall::Renew(lease, ttl, full) => {
            let renewal = service.renew(caller, &lease, ttl).await?;
            reply.renewed(LeaseLife { remaining: renewal.remaining, renewable: full.then_some(renewal.renewable) });
        }
        OwnedCall::Release(lease) => reply.integer(service.release(caller, &lease).await?.into()),
        OwnedCall::Inspect(name) => match service.inspect(caller, &name).await? {
            Some(found) => resource(reply, &found),
            None => reply.nil(),
        },
        OwnedCall::List(query) => {
            let found = service.list(caller, query).await?;
            reply.array(found.len());
            for one in &found {
                resource(reply, one);
            }
        }
        OwnedCall::Revoke(name, reason) => reply.integer(service.revoke(caller, &name, &reason).await? as i64),
        OwnedCall::Promises => {
            let promises = service.status(caller)?.promises;
            reply.map(6);
            reply.text("engine");
            reply.text(promises.engine);
            each_promise(reply, &promises);
        }
        OwnedCall::Floor(raise) => reply.unsigned(service.raise_floor(caller, raise).await?.get()),
        OwnedCall::Engine => engine(reply, &service.engine_info(caller).await?),
        OwnedCall::Set(claim, value, counts) => {
            let count = claim.wants.len();
            match service.set_key(caller, claim, &value).await {
                Ok(_) if counts => reply.integer(count as i64),
                Ok(_) => reply.simple("OK"),
                Err(Denial::Engine(leasehold::Error::Refused(leasehold::Refusal::Held { .. }))) if counts => {
                    reply.integer(0);
                }
                Err(Denial::Engine(leasehold::Error::Refused(leasehold::Refusal::Held { .. }))) => reply.nil(),
                Err(denial) => return Err(denial),
            }
        }
        OwnedCall::Get(name) => match service.get_key(caller, &name).await? {
            Some(key) => reply.bulk(key.value.as_deref().unwrap_or(MARKER)),
            None => reply.nil(),
        },
        OwnedCall::Exists(names) => {
            let mut found = 0;
            for name in &names {
                found += i64::from(service.get_key(caller, name).await?.is_some());
            }
            reply.integer(found);
        }
        OwnedCall::Ttl(name, seconds) => {
            let key = service.get_key(caller, &name).await?;
            reply.integer(key.map_or(-2, |key| redis_ttl(key.remaining, seconds)));
        }
        OwnedCall::Free(names, value) => {
            reply.integer(service.free_keys(caller, &refs(&names), value.as_deref()).await? as i64);
        }
        OwnedCall::Extend(names, value, push, form) => {
            let count = service.extend_keys(caller, &refs(&names), value.as_deref(), push).await?;
            reply.integer(if form == Form::Flag { i64::from(count > 0) } else { count as i64 });
        }
        OwnedCall::Watch(..) => unreachable!("a watch is no errand of one answer"),
    }
    Ok(())
}

/// The five promises: a name and a boolean each.
fn each_promise(reply: &mut ReplyWriter<'_>, promises: &Promises) {
    for (name, kept) in [
        ("durable", promises.durable),
        ("fencing", promises.fencing),
        ("fair", promises.fair),
        ("never_early", promises.never_early),
        ("outlives_process", promises.outlives_process),
    ] {
        reply.text(name);
        reply.boolean(kept);
    }
}

/// What is known of the engine.
fn engine(reply: &mut ReplyWriter<'_>, info: &EngineInfo) {
    reply.map(5);
    reply.text("engine");
    reply.text(info.promises.engine);
    reply.text("identity");
    match &info.identity {
        Some(identity) => reply.text(identity),
        None => reply.nil(),
    }
    reply.text("promises");
    reply.map(5);
    each_promise(reply, &info.promises);
    // No engine can be examined yet.
    reply.text("findings");
    reply.array(0);
    reply.text("http");
    match info.http_port {
        Some(port) => reply.integer(port.into()),
        None => reply.nil(),
    }
}

/// A resource as everybody may see it.
fn resource(reply: &mut ReplyWriter<'_>, found: &Resource) {
    let (mode, permits) = match found.mode {
        Mode::Exclusive => ("exclusive", None),
        Mode::Shared => ("shared", None),
        Mode::Permits { count, capacity } => ("permits", Some((count, capacity))),
    };
    reply.map(if permits.is_some() { 8 } else { 6 });
    reply.text("name");
    reply.text(&found.name);
    reply.text("mode");
    reply.text(mode);
    if let Some((used, capacity)) = permits {
        reply.text("permits_used");
        reply.integer(used.into());
        reply.text("capacity");
        reply.integer(capacity.into());
    }
    reply.text("holders");
    reply.array(found.holders.len());
    for holding in &found.holders {
        reply.map(4);
        reply.text("holder");
        reply.text(&holding.holder);
        reply.text("token");
        match holding.token {
            Some(token) => reply.unsigned(token.get()),
            None => reply.nil(),
        }
        reply.text("since_ms");
        reply.integer(millis(holding.since));
        reply.text("remaining_ms");
        reply.integer(millis(holding.remaining));
    }
    reply.text("holders_total");
    reply.integer(found.holders_total as i64);
    reply.text("waiters");
    reply.array(found.waiters.len());
    for waiting in &found.waiters {
        reply.map(2);
        reply.text("holder");
        reply.text(&waiting.holder);
        reply.text("waiting_ms");
        reply.integer(millis(waiting.waiting));
    }
    reply.text("queue_len");
    reply.integer(found.queue_len as i64);
}
