//! Leases as Redis keys: [`set`] (`SET`), [`read`] (`GET`, `EXISTS`, `TTL`, `PTTL`), [`change`] (`DEL`, `PEXPIRE`).
//!
//! Only the embedded engine has keys. For any other engine the service refuses these calls, on the spawned path.

pub mod change;
pub mod read;
pub mod set;

use std::time::Duration;

use leasehold_core::{Refusal, Reply as EngineReply};

use super::inline::ReplyContext;
use crate::resp::codec::reply::ReplyWriter;
use crate::service::metrics::AcquireOutcome;

/// What the engine's reply to a key command becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyReply {
    /// `OK`, or nil if the key is held.
    Set,
    /// How many keys were set: all, or 0.
    SetAll { keys: usize },
    /// How many keys were deleted or extended.
    Count,
    /// 1 if any key was deleted or extended, else 0.
    Flag,
}

impl KeyReply {
    /// Writes the reply, or gives a reply back that is a refusal.
    pub fn write(self, reply: EngineReply, context: &mut ReplyContext<'_>) -> Result<(), EngineReply> {
        match (self, reply) {
            (Self::Set | Self::SetAll { .. }, EngineReply::Granted(_)) => {
                context.service.metrics.record_grant(Duration::ZERO);
                self.write_set(true, &mut context.writer());
            }
            (Self::Set | Self::SetAll { .. }, EngineReply::Refused(Refusal::Held(_))) => {
                context.service.metrics.record_refusal(AcquireOutcome::Held);
                self.write_set(false, &mut context.writer());
            }
            (Self::Count | Self::Flag, EngineReply::Freed(count) | EngineReply::Extended(count)) => {
                self.write_count(count, &mut context.writer());
            }
            (_, other) => return Err(other),
        }
        Ok(())
    }

    fn write_set(self, granted: bool, reply: &mut ReplyWriter<'_>) {
        match (self, granted) {
            (Self::SetAll { keys }, _) => reply.integer(if granted { keys as i64 } else { 0 }),
            (_, true) => reply.simple("OK"),
            (_, false) => reply.nil(),
        }
    }

    fn write_count(self, count: usize, reply: &mut ReplyWriter<'_>) {
        reply.integer(if self == Self::Flag { i64::from(count > 0) } else { count as i64 });
    }
}
