//! `GET`, `EXISTS`, `TTL`, `PTTL`.

use std::iter;
use std::time::Duration;

use crate::resp::codec::frame::CommandArgs;
use crate::resp::codec::reply::{ReplyWriter, millis};
use crate::resp::command::args::{parse_names, parse_single_name};
use crate::resp::command::inline::{InlineContext, InlineOutcome};
use crate::resp::command::spawned::owned_names;
use crate::resp::command::{CommandError, InlineCall, OwnedCall, ServiceCall};
use crate::service::{Caller, Denial, Service, Verb};

/// What `GET` shows of a lease that has no value: `SET` did not make it, and its id is a secret.
const LEASE_WITHOUT_VALUE: &[u8] = b"(a lease)";

/// `GET key`: the value of a key.
#[derive(Debug, PartialEq, Eq)]
pub struct GetCommand<'a> {
    key: &'a str,
}

impl<'a> GetCommand<'a> {
    pub fn parse(args: CommandArgs<'a>) -> Result<Self, CommandError> {
        Ok(Self { key: parse_single_name(args, "GET key")? })
    }
}

impl<'a> ServiceCall<'a> for GetCommand<'a> {
    type Owned = OwnedGet;

    fn verb(&self) -> Verb {
        Verb::GetKey
    }

    fn names(&self) -> impl Iterator<Item = &'a str> {
        iter::once(self.key)
    }

    fn into_owned(self, _: &str) -> OwnedGet {
        OwnedGet { key: self.key.into() }
    }
}

impl<'a> InlineCall<'a> for GetCommand<'a> {
    fn decide(&self, context: &mut InlineContext<'_, '_>) -> InlineOutcome {
        context.read_keys(self.names(), |engine, reply| match engine.key(self.key) {
            Some(key) => reply.bulk(key.value.unwrap_or(LEASE_WITHOUT_VALUE)),
            None => reply.nil(),
        })
    }
}

/// [`GetCommand`] in a task.
pub struct OwnedGet {
    key: String,
}

impl OwnedCall for OwnedGet {
    async fn execute(self, service: &Service, caller: &Caller, reply: &mut ReplyWriter<'_>) -> Result<(), Denial> {
        match service.get_key(caller, &self.key).await? {
            Some(key) => reply.bulk(key.value.as_deref().unwrap_or(LEASE_WITHOUT_VALUE)),
            None => reply.nil(),
        }
        Ok(())
    }
}

/// `EXISTS key [key …]`: how many of these keys are held.
#[derive(Debug, PartialEq, Eq)]
pub struct ExistsCommand<'a> {
    keys: Vec<&'a str>,
}

impl<'a> ExistsCommand<'a> {
    pub fn parse(args: CommandArgs<'a>) -> Result<Self, CommandError> {
        Ok(Self { keys: parse_names(args, "EXISTS key [key …]")? })
    }
}

impl<'a> ServiceCall<'a> for ExistsCommand<'a> {
    type Owned = OwnedExists;

    fn verb(&self) -> Verb {
        Verb::GetKey
    }

    fn names(&self) -> impl Iterator<Item = &'a str> {
        self.keys.iter().copied()
    }

    fn into_owned(self, _: &str) -> OwnedExists {
        OwnedExists { keys: owned_names(&self.keys) }
    }
}

impl<'a> InlineCall<'a> for ExistsCommand<'a> {
    fn decide(&self, context: &mut InlineContext<'_, '_>) -> InlineOutcome {
        context.read_keys(self.names(), |engine, reply| {
            reply.integer(self.keys.iter().filter(|key| engine.key(key).is_some()).count() as i64);
        })
    }
}

/// [`ExistsCommand`] in a task.
pub struct OwnedExists {
    keys: Vec<String>,
}

impl OwnedCall for OwnedExists {
    async fn execute(self, service: &Service, caller: &Caller, reply: &mut ReplyWriter<'_>) -> Result<(), Denial> {
        let mut found = 0;
        for key in &self.keys {
            found += i64::from(service.get_key(caller, key).await?.is_some());
        }
        reply.integer(found);
        Ok(())
    }
}

/// The unit in which a key's remaining life is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TtlUnit {
    Seconds,
    Millis,
}

impl TtlUnit {
    /// As Redis says it: whole milliseconds, or seconds rounded to the nearest; -2 for a key that is not held.
    fn remaining_units(self, remaining: Option<Duration>) -> i64 {
        match (remaining.map(millis), self) {
            (None, _) => -2,
            (Some(ms), Self::Seconds) => ms.saturating_add(500) / 1000,
            (Some(ms), Self::Millis) => ms,
        }
    }
}

/// `TTL key`, `PTTL key`: how long a key is still held.
#[derive(Debug, PartialEq, Eq)]
pub struct TtlCommand<'a> {
    key: &'a str,
    unit: TtlUnit,
}

impl<'a> TtlCommand<'a> {
    pub fn parse_seconds(args: CommandArgs<'a>) -> Result<Self, CommandError> {
        Ok(Self { key: parse_single_name(args, "TTL key")?, unit: TtlUnit::Seconds })
    }

    pub fn parse_millis(args: CommandArgs<'a>) -> Result<Self, CommandError> {
        Ok(Self { key: parse_single_name(args, "PTTL key")?, unit: TtlUnit::Millis })
    }
}

impl<'a> ServiceCall<'a> for TtlCommand<'a> {
    type Owned = OwnedTtl;

    fn verb(&self) -> Verb {
        Verb::GetKey
    }

    fn names(&self) -> impl Iterator<Item = &'a str> {
        iter::once(self.key)
    }

    fn into_owned(self, _: &str) -> OwnedTtl {
        OwnedTtl { key: self.key.into(), unit: self.unit }
    }
}

impl<'a> InlineCall<'a> for TtlCommand<'a> {
    fn decide(&self, context: &mut InlineContext<'_, '_>) -> InlineOutcome {
        context.read_keys(self.names(), |engine, reply| {
            reply.integer(self.unit.remaining_units(engine.key(self.key).map(|key| key.remaining)));
        })
    }
}

/// [`TtlCommand`] in a task.
pub struct OwnedTtl {
    key: String,
    unit: TtlUnit,
}

impl OwnedCall for OwnedTtl {
    async fn execute(self, service: &Service, caller: &Caller, reply: &mut ReplyWriter<'_>) -> Result<(), Denial> {
        let key = service.get_key(caller, &self.key).await?;
        reply.integer(self.unit.remaining_units(key.map(|key| key.remaining)));
        Ok(())
    }
}
