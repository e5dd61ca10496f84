//! `LEASE GET`, `LEASE LIST`: what everybody may see of resources.

use std::iter;

use leasehold::engine::{Mode, Query, Resource};

use crate::resp::codec::frame::CommandArgs;
use crate::resp::codec::reply::{ReplyWriter, millis};
use crate::resp::command::args::{parse_number, parse_single_name, parse_text};
use crate::resp::command::{CommandError, OwnedCall, ServiceCall};
use crate::service::{Caller, Denial, Service, Verb};

/// What `LIMIT` may be at most, and is when it is absent.
const MAX_RESOURCES_PER_LIST: usize = 1000;

/// `LEASE GET`: one resource.
#[derive(Debug, PartialEq, Eq)]
pub struct InspectCommand<'a> {
    name: &'a str,
}

impl<'a> InspectCommand<'a> {
    pub fn parse(args: CommandArgs<'a>) -> Result<Self, CommandError> {
        Ok(Self { name: parse_single_name(args, "LEASE GET name")? })
    }
}

impl<'a> ServiceCall<'a> for InspectCommand<'a> {
    type Owned = OwnedInspect;

    fn verb(&self) -> Verb {
        Verb::Inspect
    }

    fn names(&self) -> impl Iterator<Item = &'a str> {
        iter::once(self.name)
    }

    fn into_owned(self, _: &str) -> OwnedInspect {
        OwnedInspect { name: self.name.into() }
    }
}

/// [`InspectCommand`] in a task.
pub struct OwnedInspect {
    name: String,
}

impl OwnedCall for OwnedInspect {
    async fn execute(self, service: &Service, caller: &Caller, reply: &mut ReplyWriter<'_>) -> Result<(), Denial> {
        match service.inspect(caller, &self.name).await? {
            Some(found) => write_resource(reply, &found),
            None => reply.nil(),
        }
        Ok(())
    }
}

/// `LEASE LIST`: resources in order of name.
#[derive(Debug, PartialEq, Eq)]
pub struct ListCommand<'a> {
    prefix: &'a str,
    limit: usize,
    after: Option<&'a str>,
}

impl<'a> ListCommand<'a> {
    pub fn parse(args: CommandArgs<'a>) -> Result<Self, CommandError> {
        let usage = || CommandError::usage("LEASE LIST [PREFIX p] [LIMIT n] [AFTER name]");
        let mut parsed = Self { prefix: "", limit: MAX_RESOURCES_PER_LIST, after: None };
        for at in (0..args.len()).step_by(2) {
            let value = args.get(at + 1).ok_or_else(usage)?;
            match args.get(at).unwrap_or_default().to_ascii_uppercase().as_slice() {
                b"PREFIX" => parsed.prefix = parse_text(value, "a prefix")?,
                b"LIMIT" => {
                    let limit = usize::try_from(parse_number(value, "limit")?).unwrap_or(MAX_RESOURCES_PER_LIST);
                    parsed.limit = limit.clamp(1, MAX_RESOURCES_PER_LIST);
                }
                b"AFTER" => parsed.after = Some(parse_text(value, "a name")?),
                _ => return Err(usage()),
            }
        }
        Ok(parsed)
    }
}

impl<'a> ServiceCall<'a> for ListCommand<'a> {
    type Owned = OwnedList;

    fn verb(&self) -> Verb {
        Verb::List
    }

    fn names(&self) -> impl Iterator<Item = &'a str> {
        iter::empty()
    }

    fn into_owned(self, _: &str) -> OwnedList {
        OwnedList(Query { prefix: self.prefix.into(), limit: self.limit, after: self.after.map(Into::into) })
    }
}

/// [`ListCommand`] in a task.
pub struct OwnedList(Query);

impl OwnedCall for OwnedList {
    async fn execute(self, service: &Service, caller: &Caller, reply: &mut ReplyWriter<'_>) -> Result<(), Denial> {
        let found = service.list(caller, self.0).await?;
        reply.array(found.len());
        for resource in &found {
            write_resource(reply, resource);
        }
        Ok(())
    }
}

/// A resource as everybody may see it.
fn write_resource(reply: &mut ReplyWriter<'_>, found: &Resource) {
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
