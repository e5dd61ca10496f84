//! `DEL`, `PEXPIRE`, and the scripts that delete or extend keys.
//!
//! A script shows the value of its keys, which proves that its caller owns them: its call is inline. `DEL` and
//! `PEXPIRE` show none: the service writes them to the audit log, so they are spawned.

use leasehold_core::{Command, Keys, Push};

use super::KeyReply;
use crate::resp::codec::frame::CommandArgs;
use crate::resp::codec::reply::ReplyWriter;
use crate::resp::command::args::{parse_names, parse_text};
use crate::resp::command::inline::{InlineContext, InlineOutcome};
use crate::resp::command::spawned::{borrowed_names, owned_names};
use crate::resp::command::{CommandError, Dispatcher, InlineCall, OwnedCall, ServiceCall};
use crate::service::{Caller, Denial, Service, Verb};

/// `DEL key [key …]`, or a script: deletes those keys that have this value.
#[derive(Debug, PartialEq, Eq)]
pub struct DeleteCommand<'a> {
    pub keys: Vec<&'a str>,
    /// None: whatever value they have.
    pub value: Option<&'a [u8]>,
}

impl<'a> DeleteCommand<'a> {
    pub fn parse(args: CommandArgs<'a>) -> Result<Self, CommandError> {
        Ok(Self { keys: parse_names(args, "DEL key [key …]")?, value: None })
    }
}

impl<'a> ServiceCall<'a> for DeleteCommand<'a> {
    type Owned = OwnedDelete;

    fn verb(&self) -> Verb {
        Verb::FreeKey
    }

    fn names(&self) -> impl Iterator<Item = &'a str> {
        self.keys.iter().copied()
    }

    fn into_owned(self, _: &str) -> OwnedDelete {
        OwnedDelete { keys: owned_names(&self.keys), value: self.value.map(Into::into) }
    }
}

impl<'a> InlineCall<'a> for DeleteCommand<'a> {
    fn decide(&self, context: &mut InlineContext<'_, '_>) -> InlineOutcome {
        debug_assert!(self.value.is_some(), "a delete without a value is for the audit log");
        let keys = Keys { names: &self.keys, value: self.value };
        context.submit(Command::Free(keys), KeyReply::Count)
    }
}

/// [`DeleteCommand`] in a task.
pub struct OwnedDelete {
    keys: Vec<String>,
    value: Option<Vec<u8>>,
}

impl OwnedCall for OwnedDelete {
    async fn execute(self, service: &Service, caller: &Caller, reply: &mut ReplyWriter<'_>) -> Result<(), Denial> {
        let keys = borrowed_names(&self.keys);
        let count = service.free_keys(caller, &keys, self.value.as_deref()).await?;
        KeyReply::Count.write_count(count, reply);
        Ok(())
    }
}

/// `PEXPIRE key ms`, or a script: extends those keys that have this value.
#[derive(Debug, PartialEq, Eq)]
pub struct ExtendCommand<'a> {
    pub keys: Vec<&'a str>,
    /// None: whatever value they have.
    pub value: Option<&'a [u8]>,
    pub push: Push,
    pub shape: KeyReply,
}

/// Parses and runs `PEXPIRE`. As in Redis, an end that is not in the future deletes the key.
pub fn dispatch_pexpire(dispatcher: impl Dispatcher, args: CommandArgs<'_>) -> Result<(), CommandError> {
    let usage = || CommandError::usage("PEXPIRE key ms");
    let (Some(key), Some(ms), 2) = (args.get(0), args.get(1), args.len()) else { return Err(usage()) };
    let keys = vec![parse_text(key, "a key")?];
    let ms: i64 = std::str::from_utf8(ms).ok().and_then(|ms| ms.parse().ok()).ok_or_else(usage)?;
    match u64::try_from(ms) {
        Ok(ms) if ms > 0 => {
            dispatcher.spawned(ExtendCommand { keys, value: None, push: Push::Set(ms), shape: KeyReply::Count });
        }
        _ => dispatcher.spawned(DeleteCommand { keys, value: None }),
    }
    Ok(())
}

impl<'a> ServiceCall<'a> for ExtendCommand<'a> {
    type Owned = OwnedExtend;

    fn verb(&self) -> Verb {
        Verb::ExtendKey
    }

    fn names(&self) -> impl Iterator<Item = &'a str> {
        self.keys.iter().copied()
    }

    fn into_owned(self, _: &str) -> OwnedExtend {
        let Self { keys, value, push, shape } = self;
        OwnedExtend { keys: owned_names(&keys), value: value.map(Into::into), push, shape }
    }
}

impl<'a> InlineCall<'a> for ExtendCommand<'a> {
    fn decide(&self, context: &mut InlineContext<'_, '_>) -> InlineOutcome {
        debug_assert!(self.value.is_some(), "an extension without a value is for the audit log");
        let keys = Keys { names: &self.keys, value: self.value };
        context.submit(Command::Extend { keys, push: self.push }, self.shape)
    }
}

/// [`ExtendCommand`] in a task.
pub struct OwnedExtend {
    keys: Vec<String>,
    value: Option<Vec<u8>>,
    push: Push,
    shape: KeyReply,
}

impl OwnedCall for OwnedExtend {
    async fn execute(self, service: &Service, caller: &Caller, reply: &mut ReplyWriter<'_>) -> Result<(), Denial> {
        let keys = borrowed_names(&self.keys);
        let count = service.extend_keys(caller, &keys, self.value.as_deref(), self.push).await?;
        self.shape.write_count(count, reply);
        Ok(())
    }
}
