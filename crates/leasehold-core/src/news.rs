//! The events that watchers get: who was granted what, and how it ended. No secret in them.
//!
//! Events are encoded beside the facts, because a fact does not say what an ended lease had covered.

use crate::fact::{End, time, token};
use crate::time::Time;
use crate::token::Token;
use crate::wire::{MalformedRecord, WireReader, put_str, put_u64};

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum EventKind {
    /// A claim was granted.
    Granted = 0,
    /// Ended by its owner, whole or one resource of it.
    Released = 1,
    /// Ended by time.
    Lapsed = 2,
    /// Ended by an operator.
    Revoked = 3,
    /// Has another holder label: the event shows the new one.
    Relabelled = 4,
}

impl EventKind {
    /// The word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Released => "released",
            Self::Lapsed => "lapsed",
            Self::Revoked => "revoked",
            Self::Relabelled => "relabelled",
        }
    }
}

impl From<End> for EventKind {
    fn from(end: End) -> Self {
        match end {
            End::Released => Self::Released,
            End::Lapsed => Self::Lapsed,
            End::Revoked => Self::Revoked,
        }
    }
}

/// One event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct News<'a> {
    /// What happened.
    pub kind: EventKind,
    /// To which lease.
    pub token: Token,
    /// When, by the book's time.
    pub at: Time,
    /// Whose it is or was.
    pub holder: &'a str,
    /// The operator's reason.
    pub reason: &'a str,
    /// What it covers or covered.
    pub names: Vec<&'a str>,
}

pub(crate) fn encode<'n>(
    out: &mut Vec<u8>,
    kind: EventKind,
    token: Token,
    at: Time,
    holder: &str,
    reason: &str,
    names: impl ExactSizeIterator<Item = &'n str>,
) {
    out.push(kind as u8);
    put_u64(out, token.get());
    put_u64(out, at.as_nanos());
    put_str(out, holder);
    put_str(out, reason);
    put_u64(out, names.len() as u64);
    for name in names {
        put_str(out, name);
    }
}

impl<'a> News<'a> {
    /// Reads the next event.
    ///
    /// # Errors
    ///
    /// [`MalformedRecord`] if the bytes are none.
    pub fn decode(reader: &mut WireReader<'a>) -> Result<Self, MalformedRecord> {
        let kind = match reader.byte()? {
            0 => EventKind::Granted,
            1 => EventKind::Released,
            2 => EventKind::Lapsed,
            3 => EventKind::Revoked,
            4 => EventKind::Relabelled,
            _ => return Err(MalformedRecord),
        };
        let (token, at) = (token(reader)?, time(reader)?);
        let (holder, reason) = (reader.str()?, reader.str()?);
        let count = reader.u64()?;
        if count > reader.left() as u64 {
            return Err(MalformedRecord);
        }
        let names = (0..count).map(|_| reader.str()).collect::<Result<_, _>>()?;
        Ok(Self { kind, token, at, holder, reason, names })
    }
}
