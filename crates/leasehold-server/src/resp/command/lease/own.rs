//! `LEASE RENEW`, `LEASE RELABEL`, `LEASE RELEASE`: what the owner of a lease does with it.

use std::iter;
use std::time::Duration;

use leasehold::engine::LeaseId;
use leasehold_core::{Command, Refusal, Reply as EngineReply};

use super::{LeaseReply, parse_lease_id};
use crate::resp::codec::frame::CommandArgs;
use crate::resp::codec::reply::{LeaseLife, ReplyWriter};
use crate::resp::command::args::{parse_number, parse_text, single_argument};
use crate::resp::command::inline::{InlineContext, InlineOutcome};
use crate::resp::command::{CommandError, InlineCall, OwnedCall, ServiceCall};
use crate::service::{Caller, Denial, Service, Verb};

/// `LEASE RENEW`: pushes the end of a lease.
#[derive(Debug, PartialEq, Eq)]
pub struct RenewCommand<'a> {
    lease: &'a str,
    /// None: the ttl that the lease was acquired with.
    ttl_ms: Option<u64>,
    /// The reply says how far the lease can be renewed.
    full: bool,
}

impl<'a> RenewCommand<'a> {
    pub fn parse(args: CommandArgs<'a>) -> Result<Self, CommandError> {
        const USAGE: &str = "LEASE RENEW lease_id [ttl_ms] [FULL]";
        let lease = parse_lease_id(args.get(0).ok_or_else(|| CommandError::usage(USAGE))?);
        let full = args.len() > 1 && args.get(args.len() - 1).is_some_and(|last| last.eq_ignore_ascii_case(b"FULL"));
        let others = args.len() - usize::from(full);
        if others > 2 {
            return Err(CommandError::usage(USAGE));
        }
        let ttl_ms = args.get(1).filter(|_| others > 1).map(|ms| parse_number(ms, "ttl")).transpose()?;
        Ok(Self { lease, ttl_ms, full })
    }
}

impl<'a> ServiceCall<'a> for RenewCommand<'a> {
    type Owned = OwnedRenew;

    fn verb(&self) -> Verb {
        Verb::Renew
    }

    fn names(&self) -> impl Iterator<Item = &'a str> {
        iter::empty()
    }

    fn into_owned(self, _: &str) -> OwnedRenew {
        OwnedRenew { lease: LeaseId::new(self.lease), ttl: self.ttl_ms.map(Duration::from_millis), full: self.full }
    }
}

impl<'a> InlineCall<'a> for RenewCommand<'a> {
    fn decide(&self, context: &mut InlineContext<'_, '_>) -> InlineOutcome {
        let shape = LeaseReply::Renew { full: self.full };
        match self.lease.parse() {
            Ok(lease) => context.submit(Command::Renew { lease, ttl_ms: self.ttl_ms }, shape),
            Err(_) => context.write(shape, Ok(EngineReply::Refused(Refusal::NotHeld))),
        }
    }
}

/// [`RenewCommand`] in a task.
pub struct OwnedRenew {
    lease: LeaseId,
    ttl: Option<Duration>,
    full: bool,
}

impl OwnedCall for OwnedRenew {
    async fn execute(self, service: &Service, caller: &Caller, reply: &mut ReplyWriter<'_>) -> Result<(), Denial> {
        let renewal = service.renew(caller, &self.lease, self.ttl).await?;
        reply.renewed(LeaseLife::new(renewal.remaining, renewal.renewable, self.full));
        Ok(())
    }
}

/// `LEASE RELABEL`: gives a lease another holder label.
#[derive(Debug, PartialEq, Eq)]
pub struct RelabelCommand<'a> {
    lease: &'a str,
    holder: &'a str,
}

impl<'a> RelabelCommand<'a> {
    pub fn parse(args: CommandArgs<'a>) -> Result<Self, CommandError> {
        match (args.get(0), args.get(1), args.get(2), args.len()) {
            (Some(lease), Some(word), Some(holder), 3) if word.eq_ignore_ascii_case(b"HOLDER") => {
                Ok(Self { lease: parse_lease_id(lease), holder: parse_text(holder, "a holder")? })
            }
            _ => Err(CommandError::usage("LEASE RELABEL lease_id HOLDER text")),
        }
    }
}

impl<'a> ServiceCall<'a> for RelabelCommand<'a> {
    type Owned = OwnedRelabel;

    fn verb(&self) -> Verb {
        Verb::Relabel
    }

    fn names(&self) -> impl Iterator<Item = &'a str> {
        iter::empty()
    }

    fn into_owned(self, _: &str) -> OwnedRelabel {
        OwnedRelabel { lease: LeaseId::new(self.lease), holder: self.holder.into() }
    }
}

/// [`RelabelCommand`] in a task.
pub struct OwnedRelabel {
    lease: LeaseId,
    holder: String,
}

impl OwnedCall for OwnedRelabel {
    async fn execute(self, service: &Service, caller: &Caller, reply: &mut ReplyWriter<'_>) -> Result<(), Denial> {
        service.relabel(caller, &self.lease, &self.holder).await?;
        reply.integer(1);
        Ok(())
    }
}

/// `LEASE RELEASE`: ends a lease.
#[derive(Debug, PartialEq, Eq)]
pub struct ReleaseCommand<'a> {
    lease: &'a str,
}

impl<'a> ReleaseCommand<'a> {
    pub fn parse(args: CommandArgs<'a>) -> Result<Self, CommandError> {
        Ok(Self { lease: parse_lease_id(single_argument(args, "LEASE RELEASE lease_id")?) })
    }
}

impl<'a> ServiceCall<'a> for ReleaseCommand<'a> {
    type Owned = OwnedRelease;

    fn verb(&self) -> Verb {
        Verb::Release
    }

    fn names(&self) -> impl Iterator<Item = &'a str> {
        iter::empty()
    }

    fn into_owned(self, _: &str) -> OwnedRelease {
        OwnedRelease { lease: LeaseId::new(self.lease) }
    }
}

impl<'a> InlineCall<'a> for ReleaseCommand<'a> {
    fn decide(&self, context: &mut InlineContext<'_, '_>) -> InlineOutcome {
        match self.lease.parse() {
            Ok(lease) => context.submit(Command::Release { lease }, LeaseReply::Release),
            Err(_) => context.write(LeaseReply::Release, Ok(EngineReply::Refused(Refusal::NotHeld))),
        }
    }
}

/// [`ReleaseCommand`] in a task.
pub struct OwnedRelease {
    lease: LeaseId,
}

impl OwnedCall for OwnedRelease {
    async fn execute(self, service: &Service, caller: &Caller, reply: &mut ReplyWriter<'_>) -> Result<(), Denial> {
        reply.integer(service.release(caller, &self.lease).await?.into());
        Ok(())
    }
}
