//! `LEASE REVOKE`, `LEASE PROMISES`, `LEASE FLOOR`, `LEASE ENGINE`: for operators, and about the engine.

use std::iter;

use leasehold::engine::{Finding, FindingKind, Promise, Promises as EnginePromises, Token};

use crate::resp::codec::frame::CommandArgs;
use crate::resp::codec::reply::ReplyWriter;
use crate::resp::command::args::{parse_text, parse_token};
use crate::resp::command::{CommandError, OwnedCall, ServiceCall};
use crate::service::{Caller, Denial, EngineInfo, Service, Verb};

/// `LEASE REVOKE`: ends every lease on a resource.
#[derive(Debug, PartialEq, Eq)]
pub struct RevokeCommand<'a> {
    name: &'a str,
    reason: &'a str,
}

impl<'a> RevokeCommand<'a> {
    pub fn parse(args: CommandArgs<'a>) -> Result<Self, CommandError> {
        match (args.get(0), args.get(1), args.get(2), args.len()) {
            (Some(name), Some(word), Some(reason), 3) if word.eq_ignore_ascii_case(b"REASON") => {
                Ok(Self { name: parse_text(name, "a name")?, reason: parse_text(reason, "a reason")? })
            }
            _ => Err(CommandError::usage("LEASE REVOKE name REASON text")),
        }
    }
}

impl<'a> ServiceCall<'a> for RevokeCommand<'a> {
    type Owned = OwnedRevoke;

    fn verb(&self) -> Verb {
        Verb::Revoke
    }

    fn names(&self) -> impl Iterator<Item = &'a str> {
        iter::once(self.name)
    }

    fn into_owned(self, _: &str) -> OwnedRevoke {
        OwnedRevoke { name: self.name.into(), reason: self.reason.into() }
    }
}

/// [`RevokeCommand`] in a task.
pub struct OwnedRevoke {
    name: String,
    reason: String,
}

impl OwnedCall for OwnedRevoke {
    async fn execute(self, service: &Service, caller: &Caller, reply: &mut ReplyWriter<'_>) -> Result<(), Denial> {
        reply.integer(service.revoke(caller, &self.name, &self.reason).await? as i64);
        Ok(())
    }
}

/// `LEASE PROMISES`: what the engine swears to.
#[derive(Debug, PartialEq, Eq)]
pub struct PromisesCommand;

impl PromisesCommand {
    pub fn parse(args: CommandArgs<'_>) -> Result<Self, CommandError> {
        if args.len() > 0 { Err(CommandError::usage("LEASE PROMISES")) } else { Ok(Self) }
    }
}

impl<'a> ServiceCall<'a> for PromisesCommand {
    type Owned = Self;

    fn verb(&self) -> Verb {
        Verb::Status
    }

    fn names(&self) -> impl Iterator<Item = &'a str> {
        iter::empty()
    }

    fn into_owned(self, _: &str) -> Self {
        self
    }
}

impl OwnedCall for PromisesCommand {
    async fn execute(self, service: &Service, caller: &Caller, reply: &mut ReplyWriter<'_>) -> Result<(), Denial> {
        let promises = service.status(caller)?.promises;
        reply.map(6);
        reply.text("engine");
        reply.text(promises.engine);
        write_promises(reply, &promises);
        Ok(())
    }
}

/// `LEASE FLOOR`: the token below which no lease will be granted any more. With a token, raises it.
#[derive(Debug, PartialEq, Eq)]
pub struct FloorCommand {
    raise_to: Option<Token>,
}

impl FloorCommand {
    pub fn parse(args: CommandArgs<'_>) -> Result<Self, CommandError> {
        if args.len() > 1 {
            return Err(CommandError::usage("LEASE FLOOR [token]"));
        }
        Ok(Self { raise_to: args.get(0).map(parse_token).transpose()? })
    }
}

impl<'a> ServiceCall<'a> for FloorCommand {
    type Owned = Self;

    fn verb(&self) -> Verb {
        if self.raise_to.is_some() { Verb::RaiseFloor } else { Verb::Floor }
    }

    fn names(&self) -> impl Iterator<Item = &'a str> {
        iter::empty()
    }

    fn into_owned(self, _: &str) -> Self {
        self
    }
}

impl OwnedCall for FloorCommand {
    async fn execute(self, service: &Service, caller: &Caller, reply: &mut ReplyWriter<'_>) -> Result<(), Denial> {
        reply.unsigned(service.raise_floor(caller, self.raise_to).await?.get());
        Ok(())
    }
}

/// `LEASE ENGINE`: which engine it is.
#[derive(Debug, PartialEq, Eq)]
pub struct EngineCommand;

impl EngineCommand {
    pub fn parse(args: CommandArgs<'_>) -> Result<Self, CommandError> {
        if args.len() > 0 { Err(CommandError::usage("LEASE ENGINE")) } else { Ok(Self) }
    }
}

impl<'a> ServiceCall<'a> for EngineCommand {
    type Owned = Self;

    fn verb(&self) -> Verb {
        Verb::Status
    }

    fn names(&self) -> impl Iterator<Item = &'a str> {
        iter::empty()
    }

    fn into_owned(self, _: &str) -> Self {
        self
    }
}

impl OwnedCall for EngineCommand {
    async fn execute(self, service: &Service, caller: &Caller, reply: &mut ReplyWriter<'_>) -> Result<(), Denial> {
        write_engine(reply, &service.engine_info(caller).await?);
        Ok(())
    }
}

fn write_engine(reply: &mut ReplyWriter<'_>, info: &EngineInfo) {
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
    write_promises(reply, &info.promises);
    reply.text("findings");
    reply.array(info.findings.len());
    info.findings.iter().for_each(|finding| write_finding(reply, finding));
    reply.text("http");
    match info.http_port {
        Some(port) => reply.integer(port.into()),
        None => reply.nil(),
    }
}

fn write_finding(reply: &mut ReplyWriter<'_>, finding: &Finding) {
    let denied: &[Promise] = match &finding.kind {
        FindingKind::Denies(promises) => promises,
        FindingKind::Warning | FindingKind::Note => &[],
    };
    reply.map(6);
    for (name, text) in [
        ("kind", finding.kind.word()),
        ("setting", &finding.setting),
        ("found", &finding.found),
        ("wanted", &finding.wanted),
        ("sentence", &finding.sentence),
    ] {
        reply.text(name);
        reply.text(text);
    }
    reply.text("promises");
    reply.array(denied.len());
    denied.iter().for_each(|promise| reply.text(promise.word()));
}

/// The five promises: a name and a boolean each.
fn write_promises(reply: &mut ReplyWriter<'_>, promises: &EnginePromises) {
    for promise in Promise::ALL {
        reply.text(promise.word());
        reply.boolean(promises.includes(promise));
    }
}
