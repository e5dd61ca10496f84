//! Calls that the embedded engine decides at once, many under one lock: the hot path.

use std::sync::Arc;

use leasehold::engine::Mode;
use leasehold::engine::embedded::{CompletionQueue, LockedEngine, Stopped, refusal};
use leasehold_core::{Acquire as Claim, Command, Keys, Push, Refusal, Reply as EngineReply, WaiterId, Want};

use super::{Acquire, Call, Form};
use crate::resp::codec::reply::{LeaseLife, ReplyWriter, RespVersion, millis};
use crate::resp::connection::{ClientConnection, ReplyShape};
use crate::service::metrics::Outcome;
use crate::service::{Denial, Pass, Service};
use leasehold::clock::Time;
use leasehold::{Error, Refusal as Refused};

/// What GET shows of a lease that was not made by SET: it has no value, and its id is a secret.
pub const MARKER: &[u8] = b"(a lease)";

/// What became of a call.
pub enum InlineOutcome {
    /// The reply is written.
    Done,
    /// The reply comes with its batch.
    Later(ReplyShape),
    /// The claim stands in line.
    InLine(ReplyShape, WaiterId),
}

/// Whether a call is for this path. Without the value nobody proved to own a key: the slow path writes that down.
pub const fn handles(call: &Call<'_>) -> bool {
    match call {
        Call::Set { .. }
        | Call::SetAll { .. }
        | Call::Acquire(_)
        | Call::Renew { .. }
        | Call::Release { .. }
        | Call::Get { .. }
        | Call::Exists { .. }
        | Call::Ttl { .. } => true,
        Call::Free { value, .. } | Call::Extend { value, .. } => value.is_some(),
        _ => false,
    }
}

/// What a call wanted_events besides itself.
pub struct InlineContext<'a, 't> {
    pub service: &'a Service,
    pub locked: &'a mut LockedEngine<'t>,
    pub completions: &'a Arc<CompletionQueue>,
    /// Under which the answer comes.
    pub tag: u64,
    pub now: Time,
}

/// Decides a call that was admitted.
pub fn decide(
    desk: &mut InlineContext<'_, '_>,
    pass: &Pass,
    call: &Call<'_>,
    from: &ClientConnection,
    out: &mut Vec<u8>,
) -> InlineOutcome {
    debug_assert_eq!(pass.verb(), call.verb());
    match call {
        Call::Set { key, value, ttl_ms } => desk.set(&[key], value, *ttl_ms, ReplyShape::Set, from, out),
        Call::SetAll { keys, value, ttl_ms } => {
            desk.set(keys, value, *ttl_ms, ReplyShape::SetAll(keys.len()), from, out)
        }
        Call::Acquire(asked) => desk.acquire(asked, from, out),
        Call::Renew { lease, ttl_ms, full } => match lease.parse() {
            Ok(lease) => {
                desk.submit(Command::Renew { lease, ttl_ms: *ttl_ms }, ReplyShape::Renew { full: *full }, from, out)
            }
            Err(_) => desk.unknown_lease(ReplyShape::Renew { full: *full }, from, out),
        },
        Call::Release { lease } => match lease.parse() {
            Ok(lease) => desk.submit(Command::Release { lease }, ReplyShape::Release, from, out),
            Err(_) => desk.unknown_lease(ReplyShape::Release, from, out),
        },
        Call::Free { keys, value: Some(value) } => {
            let keys = Keys { names: keys, value: Some(value) };
            desk.submit(Command::Free(keys), ReplyShape::Keys(Form::Count), from, out)
        }
        Call::Extend { keys, value: Some(value), ms, add, form } => {
            let push = if *add { Push::Add(*ms) } else { Push::Set(*ms) };
            let keys = Keys { names: keys, value: Some(value) };
            desk.submit(Command::Extend { keys, push }, ReplyShape::Keys(*form), from, out)
        }
        Call::Get { .. } | Call::Exists { .. } | Call::Ttl { .. } => desk.look(call, from.version, out),
        _ => unreachable!("see `handles`"),
    }
}

impl InlineContext<'_, '_> {
    fn set(
        &mut self,
        keys: &[&str],
        value: &[u8],
        ttl_ms: u64,
        kind: ReplyShape,
        from: &ClientConnection,
        out: &mut Vec<u8>,
    ) -> InlineOutcome {
        let one;
        let many: Vec<Want<'_>>;
        let wants: &[Want<'_>] = match keys {
            [name] => {
                one = [Want { name, mode: Mode::Exclusive }];
                &one
            }
            _ => {
                many = keys.iter().map(|name| Want { name, mode: Mode::Exclusive }).collect();
                &many
            }
        };
        let claim = Claim { wants, ttl_ms, value: Some(value), ..self.claim(from) };
        self.take(claim, kind, from, out)
    }

    fn acquire(&mut self, asked: &Acquire<'_>, from: &ClientConnection, out: &mut Vec<u8>) -> InlineOutcome {
        let wants: Vec<Want<'_>> = asked.wants.iter().map(|(name, mode)| Want { name, mode: *mode }).collect();
        let plain = self.claim(from);
        let scope = plain.principal;
        let claim = Claim {
            wants: &wants,
            ttl_ms: asked.ttl_ms,
            wait_ms: asked.wait_ms,
            max_hold_ms: asked.max_hold_ms,
            delay_ms: asked.delay_ms,
            holder: asked.holder.unwrap_or(plain.holder),
            request: asked.request.map(|id| leasehold_core::RequestId { scope, id }),
            ..plain
        };
        let kind = ReplyShape::Acquire { began: self.now, retried: asked.request.is_some(), full: asked.full };
        self.take(claim, kind, from, out)
    }

    /// A claim on nothing by whoever is at the other end.
    fn claim<'c>(&self, from: &'c ClientConnection) -> Claim<'c> {
        Claim {
            waiter_id: WaiterId(0),
            wants: &[],
            ttl_ms: 0,
            wait_ms: 0,
            max_hold_ms: None,
            delay_ms: 0,
            holder: &from.holder,
            request: None,
            secret: self.locked.secret(),
            principal: from.caller.as_ref().map_or("", |caller| &caller.principal.id),
            value: None,
        }
    }

    fn take(
        &mut self,
        claim: Claim<'_>,
        kind: ReplyShape,
        from: &ClientConnection,
        out: &mut Vec<u8>,
    ) -> InlineOutcome {
        // Also without patience of its own: a repeat joins the first, and that may wait.
        let waits = claim.wait_ms > 0 || claim.request.is_some();
        match self.locked.acquire(claim, self.completions, self.tag) {
            Ok((Some(reply), _)) => self.done(kind, Ok(reply), from, out),
            Ok((None, waiter_id)) if waits && self.locked.is_waiting(waiter_id) => {
                InlineOutcome::InLine(kind, waiter_id)
            }
            Ok((None, _)) => InlineOutcome::Later(kind),
            Err(stopped) => self.done(kind, Err(stopped), from, out),
        }
    }

    fn submit(
        &mut self,
        command: Command<'_>,
        kind: ReplyShape,
        from: &ClientConnection,
        out: &mut Vec<u8>,
    ) -> InlineOutcome {
        match self.locked.submit(command, self.completions, self.tag) {
            Ok(Some(reply)) => self.done(kind, Ok(reply), from, out),
            Ok(None) => InlineOutcome::Later(kind),
            Err(stopped) => self.done(kind, Err(stopped), from, out),
        }
    }

    fn unknown_lease(&self, kind: ReplyShape, from: &ClientConnection, out: &mut Vec<u8>) -> InlineOutcome {
        self.done(kind, Ok(EngineReply::Refused(Refusal::NotHeld)), from, out)
    }

    fn done(
        &self,
        kind: ReplyShape,
        answer: Result<EngineReply, Stopped>,
        from: &ClientConnection,
        out: &mut Vec<u8>,
    ) -> InlineOutcome {
        tell(self.service, kind, answer, from, out, self.now);
        InlineOutcome::Done
    }

    /// Reads keys. What they show is told when it is durable.
    fn look(&mut self, call: &Call<'_>, version: RespVersion, out: &mut Vec<u8>) -> InlineOutcome {
        let mut bytes = Vec::new();
        let mut reply = ReplyWriter::new(&mut bytes, version);
        if let Some(sentence) = call.names().into_iter().find_map(|name| self.locked.check_name(name).err()) {
            ReplyWriter::new(out, version).denial(&Denial::Engine(Error::Invalid(sentence)));
            return InlineOutcome::Done;
        }
        match call {
            Call::Get { key } => match self.locked.key(key) {
                Some(key) => reply.bulk(key.value.unwrap_or(MARKER)),
                None => reply.nil(),
            },
            Call::Exists { keys } => {
                reply.integer(keys.iter().filter(|key| self.locked.key(key).is_some()).count() as i64);
            }
            Call::Ttl { key, seconds } => reply.integer(match self.locked.key(key) {
                None => -2,
                Some(key) => redis_ttl(key.remaining, *seconds),
            }),
            _ => unreachable!("only keys are looked at"),
        }
        match self.locked.settle(self.completions, self.tag) {
            Ok(true) => {
                out.extend_from_slice(&bytes);
                InlineOutcome::Done
            }
            Ok(false) => InlineOutcome::Later(ReplyShape::Settled(bytes)),
            Err(stopped) => {
                ReplyWriter::new(out, version).denial(&Denial::Engine(stopped.into_error("look")));
                InlineOutcome::Done
            }
        }
    }
}

/// How Redis says how long: whole milliseconds, or seconds rounded to the nearest.
pub fn redis_ttl(remaining: std::time::Duration, seconds: bool) -> i64 {
    let ms = millis(remaining);
    if seconds { ms.saturating_add(500) / 1000 } else { ms }
}

/// Writes the reply of an answer, and counts it.
pub fn tell(
    service: &Service,
    kind: ReplyShape,
    answer: Result<EngineReply, Stopped>,
    from: &ClientConnection,
    out: &mut Vec<u8>,
    now: Time,
) {
    let mut reply = ReplyWriter::new(out, from.version);
    let decided = match answer {
        Ok(decided) => decided,
        Err(stopped) => {
            let error = stopped.into_error("the command");
            if matches!(kind, ReplyShape::Set | ReplyShape::SetAll(_) | ReplyShape::Acquire { .. }) {
                service.metrics.refused(Outcome::of(&error));
            }
            reply.denial(&Denial::Engine(error));
            return;
        }
    };
    match (kind, decided) {
        (ReplyShape::Set, EngineReply::Granted(_)) => {
            service.metrics.granted(std::time::Duration::ZERO);
            reply.simple("OK");
        }
        (ReplyShape::SetAll(count), EngineReply::Granted(_)) => {
            service.metrics.granted(std::time::Duration::ZERO);
            reply.integer(count as i64);
        }
        (kind @ (ReplyShape::Set | ReplyShape::SetAll(_)), EngineReply::Refused(Refusal::Held(_))) => {
            service.metrics.refused(Outcome::Held);
            if matches!(kind, ReplyShape::Set) { reply.nil() } else { reply.integer(0) }
        }
        (ReplyShape::Acquire { began, full, .. }, EngineReply::Granted(granted)) => {
            service.metrics.granted(now.since(began));
            let life = LeaseLife { remaining: granted.remaining, renewable: full.then_some(granted.renewable) };
            reply.granted(&granted.lease.expose(), Some(granted.lease.token), life);
        }
        (ReplyShape::Renew { full }, EngineReply::Renewed(renewed)) => {
            reply.renewed(LeaseLife { remaining: renewed.remaining, renewable: full.then_some(renewed.renewable) });
        }
        (ReplyShape::Release, EngineReply::Released(first)) => reply.integer(first.into()),
        (ReplyShape::Keys(Form::Count), EngineReply::Freed(count) | EngineReply::Extended(count)) => {
            reply.integer(count as i64)
        }
        (ReplyShape::Keys(Form::Flag), EngineReply::Freed(count) | EngineReply::Extended(count)) => {
            reply.integer(i64::from(count > 0));
        }
        (ReplyShape::Settled(bytes), EngineReply::Ticked(_)) => out.extend_from_slice(&bytes),
        (kind, other) => {
            let error = refusal(other, "the command");
            match kind {
                ReplyShape::Set | ReplyShape::SetAll(_) | ReplyShape::Acquire { .. } => {
                    service.metrics.refused(Outcome::of(&error))
                }
                ReplyShape::Renew { .. } => service.metrics.renew_failed(&error),
                _ => {}
            }
            let guessing = matches!(error, Error::Refused(Refused::NotHeld))
                && from.caller.as_ref().is_some_and(|caller| !service.may_guess(caller));
            if guessing {
                reply.denial(&Denial::Slow("too many lease ids that are not known: slow down".into()));
            } else {
                reply.denial(&Denial::Engine(error));
            }
        }
    }
}
