//! The inline path: the embedded engine decides a call on the event loop's thread, many calls under one lock.

use std::sync::Arc;

use leasehold::clock::Time;
use leasehold::engine::embedded::{CompletionQueue, LockedEngine, Stopped, refusal};
use leasehold::{Error, Refusal};
use leasehold_core::{Acquire as Claim, Command, Reply as EngineReply, WaiterId};

use super::keys::KeyReply;
use super::lease::LeaseReply;
use crate::resp::codec::reply::ReplyWriter;
use crate::resp::connection::ClientConnection;
use crate::service::metrics::AcquireOutcome;
use crate::service::{Denial, Pass, Service};

/// What the reply to a call looks like that waits for its batch to be durable, or for its task.
#[derive(Debug)]
pub enum ReplyShape {
    /// The engine's reply to a key command.
    Key(KeyReply),
    /// The engine's reply to a `LEASE` command.
    Lease(LeaseReply),
    /// These bytes, once the state that they show is durable.
    WhenDurable(Vec<u8>),
    /// The bytes that a task sends.
    FromTask,
}

impl From<KeyReply> for ReplyShape {
    fn from(shape: KeyReply) -> Self {
        Self::Key(shape)
    }
}

impl From<LeaseReply> for ReplyShape {
    fn from(shape: LeaseReply) -> Self {
        Self::Lease(shape)
    }
}

impl ReplyShape {
    /// Whether its outcome counts among those of acquires.
    const fn is_acquire(&self) -> bool {
        matches!(self, Self::Key(KeyReply::Set | KeyReply::SetAll { .. }) | Self::Lease(LeaseReply::Acquire { .. }))
    }
}

/// What became of a call.
pub enum InlineOutcome {
    /// The reply is written.
    Written,
    /// The reply comes with its batch, from the completion queue.
    InBatch(ReplyShape),
    /// The claim waits in the queue of its resource.
    InQueue(ReplyShape, WaiterId),
}

/// What a call needs to be decided.
pub struct InlineContext<'a, 'e> {
    /// Proof that the access check of the service passed.
    pub _pass: &'a Pass,
    pub service: &'a Service,
    /// The embedded engine, locked for all calls of this round.
    pub engine: &'a mut LockedEngine<'e>,
    pub completions: &'a Arc<CompletionQueue>,
    /// Names the connection and the command in the completion queue.
    pub tag: u64,
    pub now: Time,
    pub connection: &'a ClientConnection,
    /// Where a reply goes that can be written at once.
    pub out: &'a mut Vec<u8>,
}

impl<'a> InlineContext<'a, '_> {
    /// A claim on nothing, in the name of the connection.
    pub fn empty_claim(&self) -> Claim<'a> {
        Claim {
            waiter_id: WaiterId(0),
            wants: &[],
            ttl_ms: 0,
            wait_ms: 0,
            max_hold_ms: None,
            delay_ms: 0,
            holder: &self.connection.holder,
            request: None,
            secret: self.engine.secret(),
            principal: self.connection.caller.as_ref().map_or("", |caller| &caller.principal.id),
            value: None,
        }
    }

    /// Decides a claim.
    pub fn acquire(&mut self, claim: Claim<'_>, shape: impl Into<ReplyShape>) -> InlineOutcome {
        // A repeated request joins the first one, which may wait even if this one says no `WAIT`.
        let may_wait = claim.wait_ms > 0 || claim.request.is_some();
        match self.engine.acquire(claim, self.completions, self.tag) {
            Ok((Some(reply), _)) => self.write(shape, Ok(reply)),
            Ok((None, waiter_id)) if may_wait && self.engine.is_waiting(waiter_id) => {
                InlineOutcome::InQueue(shape.into(), waiter_id)
            }
            Ok((None, _)) => InlineOutcome::InBatch(shape.into()),
            Err(stopped) => self.write(shape, Err(stopped)),
        }
    }

    /// Decides any other command.
    pub fn submit(&mut self, command: Command<'_>, shape: impl Into<ReplyShape>) -> InlineOutcome {
        match self.engine.submit(command, self.completions, self.tag) {
            Ok(Some(reply)) => self.write(shape, Ok(reply)),
            Ok(None) => InlineOutcome::InBatch(shape.into()),
            Err(stopped) => self.write(shape, Err(stopped)),
        }
    }

    /// Reads keys. The reply leaves when the state that it shows is durable.
    pub fn read_keys<'n>(
        &mut self,
        names: impl IntoIterator<Item = &'n str>,
        read: impl FnOnce(&mut LockedEngine<'_>, &mut ReplyWriter<'_>),
    ) -> InlineOutcome {
        let version = self.connection.version;
        if let Some(sentence) = names.into_iter().find_map(|name| self.engine.check_name(name).err()) {
            ReplyWriter::new(self.out, version).denial(&Denial::Engine(Error::Invalid(sentence)));
            return InlineOutcome::Written;
        }
        let mut bytes = Vec::new();
        read(self.engine, &mut ReplyWriter::new(&mut bytes, version));
        match self.engine.settle(self.completions, self.tag) {
            Ok(true) => self.out.extend_from_slice(&bytes),
            Ok(false) => return InlineOutcome::InBatch(ReplyShape::WhenDurable(bytes)),
            Err(stopped) => {
                ReplyWriter::new(self.out, version).denial(&Denial::Engine(stopped.into_error("look")));
            }
        }
        InlineOutcome::Written
    }

    /// Writes the reply now.
    pub fn write(&mut self, shape: impl Into<ReplyShape>, answer: Result<EngineReply, Stopped>) -> InlineOutcome {
        let (service, connection, now) = (self.service, self.connection, self.now);
        write_engine_reply(shape.into(), answer, &mut ReplyContext { service, connection, out: self.out, now });
        InlineOutcome::Written
    }
}

/// What it takes to write the reply of a decided call.
pub struct ReplyContext<'a> {
    pub service: &'a Service,
    pub connection: &'a ClientConnection,
    pub out: &'a mut Vec<u8>,
    pub now: Time,
}

impl ReplyContext<'_> {
    pub fn writer(&mut self) -> ReplyWriter<'_> {
        ReplyWriter::new(self.out, self.connection.version)
    }

    /// Writes a refusal. A caller that shows too many unknown lease ids is told to slow down instead.
    fn write_refusal(&mut self, error: Error) {
        let is_guess = matches!(error, Error::Refused(Refusal::NotHeld));
        let caller = self.connection.caller.as_ref();
        let denial = if is_guess && caller.is_some_and(|caller| !self.service.may_guess(caller)) {
            Denial::Slow("too many lease ids that are not known: slow down".into())
        } else {
            Denial::Engine(error)
        };
        self.writer().denial(&denial);
    }
}

/// Writes the reply of the engine in the shape of its command, and counts the outcome.
pub fn write_engine_reply(shape: ReplyShape, answer: Result<EngineReply, Stopped>, context: &mut ReplyContext<'_>) {
    let is_acquire = shape.is_acquire();
    let is_renewal = matches!(shape, ReplyShape::Lease(LeaseReply::Renew { .. }));
    let reply = match answer {
        Ok(reply) => reply,
        Err(stopped) => {
            let error = stopped.into_error("the command");
            if is_acquire {
                context.service.metrics.record_refusal(AcquireOutcome::from_error(&error));
            } else if is_renewal {
                context.service.metrics.record_renew_failure(&error);
            }
            return context.writer().denial(&Denial::Engine(error));
        }
    };
    let written = match shape {
        ReplyShape::Key(shape) => shape.write(reply, context),
        ReplyShape::Lease(shape) => shape.write(reply, context),
        ReplyShape::WhenDurable(bytes) if matches!(reply, EngineReply::Ticked(_)) => {
            context.out.extend_from_slice(&bytes);
            Ok(())
        }
        ReplyShape::WhenDurable(_) | ReplyShape::FromTask => Err(reply),
    };
    let Err(other) = written else { return };
    let error = refusal(other, "the command");
    if is_acquire {
        context.service.metrics.record_refusal(AcquireOutcome::from_error(&error));
    } else if is_renewal {
        context.service.metrics.record_renew_failure(&error);
    }
    context.write_refusal(error);
}
