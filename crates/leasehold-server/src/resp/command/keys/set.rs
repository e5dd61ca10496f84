//! `SET`, and the script that sets several keys.

use std::iter;

use leasehold::engine::{Claim, Mode};
use leasehold::{Error, Refusal};
use leasehold_core::{Acquire, Want};

use super::KeyReply;
use crate::resp::codec::frame::CommandArgs;
use crate::resp::codec::reply::ReplyWriter;
use crate::resp::command::args::{parse_number, parse_text};
use crate::resp::command::inline::{InlineContext, InlineOutcome};
use crate::resp::command::spawned::exclusive_claim;
use crate::resp::command::{CommandError, InlineCall, OwnedCall, ServiceCall};
use crate::service::{Caller, Denial, Service, Verb};

/// `SET key value NX PX ms`: acquires one key.
#[derive(Debug, PartialEq, Eq)]
pub struct SetCommand<'a> {
    key: &'a str,
    value: &'a [u8],
    ttl_ms: u64,
}

impl<'a> SetCommand<'a> {
    pub fn parse(args: CommandArgs<'a>) -> Result<Self, CommandError> {
        const USAGE: &str = "SET key value NX PX ms";
        let key = parse_text(args.get(0).ok_or_else(|| CommandError::usage(USAGE))?, "a key")?;
        let value = args.get(1).ok_or_else(|| CommandError::usage(USAGE))?;
        let (mut only_new, mut ttl_ms, mut at) = (false, None, 2);
        while let Some(option) = args.get(at) {
            let mut unit_ms = None;
            if option.eq_ignore_ascii_case(b"NX") {
                only_new = true;
            } else if option.eq_ignore_ascii_case(b"PX") {
                unit_ms = Some(1);
            } else if option.eq_ignore_ascii_case(b"EX") {
                unit_ms = Some(1000);
            } else {
                return Err("SET is supported as SET key value NX PX ms (or EX s), and with no other option".into());
            }
            if let Some(unit_ms) = unit_ms {
                if ttl_ms.is_some() {
                    return Err("SET takes one expiry: PX ms or EX s".into());
                }
                at += 1;
                let time = parse_number(args.get(at).ok_or_else(|| CommandError::usage(USAGE))?, "an expiry")?;
                ttl_ms = Some(time.saturating_mul(unit_ms));
            }
            at += 1;
        }
        if !only_new {
            return Err("SET without NX would overwrite another's lock: say SET key value NX PX ms".into());
        }
        let ttl_ms = ttl_ms
            .ok_or("SET NX without an expiry would hold the lock for ever if its holder dies: add PX ms or EX s")?;
        Ok(Self { key, value, ttl_ms })
    }
}

impl<'a> ServiceCall<'a> for SetCommand<'a> {
    type Owned = OwnedSet;

    fn verb(&self) -> Verb {
        Verb::SetKey
    }

    fn names(&self) -> impl Iterator<Item = &'a str> {
        iter::once(self.key)
    }

    fn into_owned(self, holder: &str) -> OwnedSet {
        let claim = exclusive_claim([self.key], self.ttl_ms, holder);
        OwnedSet { claim, value: self.value.into(), shape: KeyReply::Set }
    }
}

impl<'a> InlineCall<'a> for SetCommand<'a> {
    fn decide(&self, context: &mut InlineContext<'_, '_>) -> InlineOutcome {
        let wants = [Want { name: self.key, mode: Mode::Exclusive }];
        let (ttl_ms, value) = (self.ttl_ms, Some(self.value));
        context.acquire(Acquire { wants: &wants, ttl_ms, value, ..context.empty_claim() }, KeyReply::Set)
    }
}

/// Acquires several keys, all or none, for a script.
#[derive(Debug, PartialEq, Eq)]
pub struct SetAllCommand<'a> {
    pub keys: Vec<&'a str>,
    pub value: &'a [u8],
    pub ttl_ms: u64,
}

impl<'a> ServiceCall<'a> for SetAllCommand<'a> {
    type Owned = OwnedSet;

    fn verb(&self) -> Verb {
        Verb::SetKey
    }

    fn names(&self) -> impl Iterator<Item = &'a str> {
        self.keys.iter().copied()
    }

    fn into_owned(self, holder: &str) -> OwnedSet {
        let shape = KeyReply::SetAll { keys: self.keys.len() };
        let claim = exclusive_claim(self.keys, self.ttl_ms, holder);
        OwnedSet { claim, value: self.value.into(), shape }
    }
}

impl<'a> InlineCall<'a> for SetAllCommand<'a> {
    fn decide(&self, context: &mut InlineContext<'_, '_>) -> InlineOutcome {
        let one;
        let several: Vec<Want<'_>>;
        let wants: &[Want<'_>] = match self.keys.as_slice() {
            [name] => {
                one = [Want { name, mode: Mode::Exclusive }];
                &one
            }
            keys => {
                several = keys.iter().map(|name| Want { name, mode: Mode::Exclusive }).collect();
                &several
            }
        };
        let claim = Acquire { wants, ttl_ms: self.ttl_ms, value: Some(self.value), ..context.empty_claim() };
        context.acquire(claim, KeyReply::SetAll { keys: self.keys.len() })
    }
}

/// [`SetCommand`] or [`SetAllCommand`] in a task.
pub struct OwnedSet {
    claim: Claim,
    value: Vec<u8>,
    shape: KeyReply,
}

impl OwnedCall for OwnedSet {
    async fn execute(self, service: &Service, caller: &Caller, reply: &mut ReplyWriter<'_>) -> Result<(), Denial> {
        match service.set_key(caller, self.claim, &self.value).await {
            Ok(_) => self.shape.write_set(true, reply),
            Err(Denial::Engine(Error::Refused(Refusal::Held { .. }))) => self.shape.write_set(false, reply),
            Err(denial) => return Err(denial),
        }
        Ok(())
    }
}
