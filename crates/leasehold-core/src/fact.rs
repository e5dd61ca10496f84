//! What happened, as the journal records it.
//!
//! Facts are past tense and complete: they carry the deadlines that were decided, not the rule that
//! decided them, so that a later change of rules never reinterprets history. Replay only evolves.

use std::borrow::Cow;
use std::fmt;

use crate::command::{Mode, Want};
use crate::time::Time;
use crate::token::{Secret, Token};
use crate::wire::{MalformedRecord, WireReader, put_bytes, put_str, put_u64};

/// How a lease ended: three words, three metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum End {
    /// By its owner.
    Released = 1,
    /// By time.
    Lapsed = 2,
    /// By an operator.
    Revoked = 3,
}

impl End {
    pub(crate) fn from_byte(byte: u8) -> Result<Self, MalformedRecord> {
        match byte {
            1 => Ok(Self::Released),
            2 => Ok(Self::Lapsed),
            3 => Ok(Self::Revoked),
            _ => Err(MalformedRecord),
        }
    }
}

/// A request id with the fingerprint of its body, so that another body under the same id is seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestMark<'a> {
    /// The principal.
    pub scope: &'a str,
    /// The id.
    pub id: &'a str,
    /// Hash of the claim: stable, it is kept on disk.
    pub fingerprint: u64,
}

impl<'a> RequestMark<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_str(out, self.scope);
        put_str(out, self.id);
        put_u64(out, self.fingerprint);
    }

    fn decode(reader: &mut WireReader<'a>) -> Result<Self, MalformedRecord> {
        Ok(Self { scope: reader.str()?, id: reader.str()?, fingerprint: reader.u64()? })
    }
}

/// A lease as it stood when it was granted, or when a snapshot was taken. `Debug` hides the value: it proves ownership.
#[derive(Clone)]
pub struct LeaseRecord<'a> {
    /// Names it.
    pub token: Token,
    /// Proves it.
    pub secret: Secret,
    /// When it was granted.
    pub granted_at: Time,
    /// Live before this moment, not at it.
    pub expires_at: Time,
    /// Renewals never go past this.
    pub cap_at: Time,
    /// The life last asked for.
    pub ttl_ms: u32,
    /// How long the resources stay closed after a lapse.
    pub delay_ms: u32,
    /// Public label.
    pub holder: Cow<'a, str>,
    /// The request that made it.
    pub request: Option<RequestMark<'a>>,
    /// Who it is counted for.
    pub principal: &'a str,
    /// What the holder's key shows.
    pub value: Option<&'a [u8]>,
    /// What it covers.
    pub wants: Cow<'a, [Want<'a>]>,
}

impl fmt::Debug for LeaseRecord<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseRecord")
            .field("token", &self.token)
            .field("granted_at", &self.granted_at)
            .field("expires_at", &self.expires_at)
            .field("cap_at", &self.cap_at)
            .field("holder", &self.holder)
            .field("principal", &self.principal)
            .field("value", &self.value.map(|_| "…"))
            .field("wants", &self.wants)
            .finish_non_exhaustive()
    }
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Fact<'a> {
    /// A claim was granted.
    Granted(LeaseRecord<'a>),
    /// The end was moved.
    Renewed {
        /// Which lease.
        token: Token,
        /// Its new end.
        expires_at: Time,
        /// The life asked for.
        ttl_ms: u32,
    },
    /// A lease has another label; nothing else of it changed.
    Relabelled {
        /// Which lease.
        token: Token,
        /// Its new label.
        holder: &'a str,
    },
    /// A lease ended.
    Ended {
        /// Which lease.
        token: Token,
        /// In which of three ways.
        how: End,
        /// When this was decided.
        at: Time,
        /// Its resources stay closed until then; [`Time::ZERO`] if they are free at once.
        closed_until: Time,
        /// The operator's reason.
        reason: &'a str,
    },
    /// A lease over several resources gave up one of them, and goes on without it.
    Freed {
        /// Which lease.
        token: Token,
        /// The resource.
        name: &'a str,
    },
    /// The closing delay after a lapse is over.
    Reopened {
        /// The lapsed lease.
        token: Token,
    },
    /// An engine started on the book, and this is how the book's clock relates to the machine's.
    Resumed {
        /// The book's time at that moment.
        at: Time,
        /// Which boot of which machine.
        boot: [u8; 16],
        /// That machine's boot clock at the same moment.
        boottime: u64,
        /// Another boot than before: every live lease has its last ttl once more.
        fresh: bool,
    },
}

const GRANTED: u8 = 1;
const RENEWED: u8 = 2;
const ENDED: u8 = 3;
const REOPENED: u8 = 4;
const RESUMED: u8 = 5;
const FREED: u8 = 6;
const RELABELLED: u8 = 7;

/// Optional parts of a lease record: bits of one byte, so that most leases take no more than that.
const HAS_REQUEST: u8 = 1;
const HAS_PRINCIPAL: u8 = 2;
const HAS_VALUE: u8 = 4;

impl<'a> Fact<'a> {
    /// Appends the fact to the tape.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Granted(record) => {
                out.push(GRANTED);
                record.encode(out);
            }
            Self::Renewed { token, expires_at, ttl_ms } => {
                out.push(RENEWED);
                put_u64(out, token.get());
                put_u64(out, expires_at.as_nanos());
                put_u64(out, u64::from(*ttl_ms));
            }
            Self::Relabelled { token, holder } => {
                out.push(RELABELLED);
                put_u64(out, token.get());
                put_str(out, holder);
            }
            Self::Ended { token, how, at, closed_until, reason } => {
                out.push(ENDED);
                put_u64(out, token.get());
                out.push(*how as u8);
                put_u64(out, at.as_nanos());
                put_u64(out, closed_until.as_nanos());
                put_str(out, reason);
            }
            Self::Freed { token, name } => {
                out.push(FREED);
                put_u64(out, token.get());
                put_str(out, name);
            }
            Self::Reopened { token } => {
                out.push(REOPENED);
                put_u64(out, token.get());
            }
            Self::Resumed { at, boot, boottime, fresh } => {
                out.push(RESUMED);
                put_u64(out, at.as_nanos());
                out.extend_from_slice(boot);
                put_u64(out, *boottime);
                out.push(u8::from(*fresh));
            }
        }
    }

    /// Reads the next fact.
    ///
    /// # Errors
    ///
    /// [`MalformedRecord`] if the bytes are no fact.
    pub fn decode(reader: &mut WireReader<'a>) -> Result<Self, MalformedRecord> {
        Ok(match reader.byte()? {
            GRANTED => Self::Granted(LeaseRecord::decode(reader)?),
            RENEWED => Self::Renewed { token: token(reader)?, expires_at: time(reader)?, ttl_ms: reader.u32()? },
            ENDED => Self::Ended {
                token: token(reader)?,
                how: End::from_byte(reader.byte()?)?,
                at: time(reader)?,
                closed_until: time(reader)?,
                reason: reader.str()?,
            },
            RELABELLED => Self::Relabelled { token: token(reader)?, holder: reader.str()? },
            FREED => Self::Freed { token: token(reader)?, name: reader.str()? },
            REOPENED => Self::Reopened { token: token(reader)? },
            RESUMED => Self::Resumed {
                at: time(reader)?,
                boot: reader.array()?,
                boottime: reader.u64()?,
                fresh: flag(reader)?,
            },
            _ => return Err(MalformedRecord),
        })
    }
}

impl<'a> LeaseRecord<'a> {
    /// Appends the record.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_u64(out, self.token.get());
        out.extend_from_slice(self.secret.expose());
        put_u64(out, self.granted_at.as_nanos());
        put_u64(out, self.expires_at.as_nanos());
        // Most leases have no cap: one byte instead of ten.
        put_u64(out, if self.cap_at == Time::NEVER { 0 } else { self.cap_at.as_nanos() });
        put_u64(out, u64::from(self.ttl_ms));
        put_u64(out, u64::from(self.delay_ms));
        put_str(out, &self.holder);
        let has = |bit: u8, has: bool| if has { bit } else { 0 };
        out.push(
            has(HAS_REQUEST, self.request.is_some())
                | has(HAS_PRINCIPAL, !self.principal.is_empty())
                | has(HAS_VALUE, self.value.is_some()),
        );
        if let Some(mark) = self.request {
            mark.encode(out);
        }
        if !self.principal.is_empty() {
            put_str(out, self.principal);
        }
        if let Some(value) = self.value {
            put_bytes(out, value);
        }
        put_u64(out, self.wants.len() as u64);
        for want in self.wants.iter() {
            encode_mode(want.mode, out);
            put_str(out, want.name);
        }
    }

    /// Reads a record back.
    ///
    /// # Errors
    ///
    /// [`MalformedRecord`] if the bytes are no record.
    pub fn decode(reader: &mut WireReader<'a>) -> Result<Self, MalformedRecord> {
        let mut record = Self {
            token: token(reader)?,
            secret: Secret::new(reader.array()?),
            granted_at: time(reader)?,
            expires_at: time(reader)?,
            cap_at: match time(reader)? {
                Time::ZERO => Time::NEVER,
                at => at,
            },
            ttl_ms: reader.u32()?,
            delay_ms: reader.u32()?,
            holder: Cow::Borrowed(reader.str()?),
            request: None,
            principal: "",
            value: None,
            wants: Cow::Borrowed(&[]),
        };
        let has = reader.byte()?;
        if has & !(HAS_REQUEST | HAS_PRINCIPAL | HAS_VALUE) != 0 {
            return Err(MalformedRecord);
        }
        if has & HAS_REQUEST != 0 {
            record.request = Some(RequestMark::decode(reader)?);
        }
        if has & HAS_PRINCIPAL != 0 {
            record.principal = reader.str()?;
        }
        if has & HAS_VALUE != 0 {
            record.value = Some(reader.bytes()?);
        }
        record.wants = {
            let count = reader.u64()?;
            // Each takes two bytes or more: a count that lies cannot make us allocate.
            if count == 0 || count > reader.left() as u64 / 2 {
                return Err(MalformedRecord);
            }
            let mut wants = Vec::with_capacity(count as usize);
            for _ in 0..count {
                let mode = decode_mode(reader)?;
                wants.push(Want { name: reader.str()?, mode });
            }
            Cow::Owned(wants)
        };
        Ok(record)
    }
}

pub(crate) fn encode_mark(mark: Option<RequestMark<'_>>, out: &mut Vec<u8>) {
    match mark {
        None => out.push(0),
        Some(mark) => {
            out.push(HAS_REQUEST);
            mark.encode(out);
        }
    }
}

pub(crate) fn decode_mark<'a>(reader: &mut WireReader<'a>) -> Result<Option<RequestMark<'a>>, MalformedRecord> {
    Ok(if flag(reader)? { Some(RequestMark::decode(reader)?) } else { None })
}

fn encode_mode(mode: Mode, out: &mut Vec<u8>) {
    match mode {
        Mode::Exclusive => out.push(0),
        Mode::Shared => out.push(1),
        Mode::Permits { count, capacity } => {
            out.push(2);
            put_u64(out, u64::from(count));
            put_u64(out, u64::from(capacity));
        }
    }
}

fn decode_mode(reader: &mut WireReader<'_>) -> Result<Mode, MalformedRecord> {
    Ok(match reader.byte()? {
        0 => Mode::Exclusive,
        1 => Mode::Shared,
        2 => Mode::Permits { count: reader.u32()?, capacity: reader.u32()? },
        _ => return Err(MalformedRecord),
    })
}

pub(crate) fn token(reader: &mut WireReader<'_>) -> Result<Token, MalformedRecord> {
    Token::new(reader.u64()?).ok_or(MalformedRecord)
}

pub(crate) fn time(reader: &mut WireReader<'_>) -> Result<Time, MalformedRecord> {
    Ok(Time::from_nanos(reader.u64()?))
}

pub(crate) fn flag(reader: &mut WireReader<'_>) -> Result<bool, MalformedRecord> {
    match reader.byte()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(MalformedRecord),
    }
}

/// The fingerprint of a claim: what is asked, not who asks or how long they would wait for it.
///
/// Holder and wait are left out, since an honest retry may come from another process with less patience.
/// FNV-1a: it is kept on disk, so it must never change; whoever makes it collide fools only himself.
#[must_use]
pub fn fingerprint(wants: &[Want<'_>], ttl_ms: u64, max_hold_ms: Option<u64>, delay_ms: u64) -> u64 {
    let mut bytes = Vec::with_capacity(64);
    for want in wants {
        encode_mode(want.mode, &mut bytes);
        put_str(&mut bytes, want.name);
    }
    for number in [ttl_ms, max_hold_ms.unwrap_or(0), delay_ms] {
        put_u64(&mut bytes, number);
    }
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
