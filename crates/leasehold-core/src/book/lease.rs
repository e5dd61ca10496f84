//! A lease in memory. Compact on purpose: a million of them, with names and indexes, fit in 250 MB.

use std::fmt;

use compact_str::CompactString;

use crate::command::Mode;
use crate::fact::RequestMark;
use crate::time::Time;
use crate::token::{LeaseKey, Secret, Token};

/// Which resource, and how. Eight bytes: the capacity is kept at the resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeasePart {
    pub resource: u32,
    share: u32,
}

const EXCLUSIVE: u32 = 0;
const SHARED: u32 = u32::MAX;

impl LeasePart {
    pub fn new(resource: u32, mode: Mode) -> Self {
        let share = match mode {
            Mode::Exclusive => EXCLUSIVE,
            Mode::Shared => SHARED,
            Mode::Permits { count, .. } => count,
        };
        Self { resource, share }
    }

    /// The mode, with the capacity that the resource knows.
    pub fn mode(self, capacity: u32) -> Mode {
        match self.share {
            EXCLUSIVE => Mode::Exclusive,
            SHARED => Mode::Shared,
            count => Mode::Permits { count, capacity },
        }
    }
}

/// What a lease covers: nearly always one resource, kept without an allocation.
#[derive(Clone, Debug)]
pub(super) enum LeaseParts {
    One(LeasePart),
    #[allow(clippy::box_collection, reason = "a thin pointer keeps every lease eight bytes smaller")]
    Many(Box<Vec<LeasePart>>),
}

impl LeaseParts {
    pub fn as_slice(&self) -> &[LeasePart] {
        match self {
            Self::One(part) => core::slice::from_ref(part),
            Self::Many(parts) => parts,
        }
    }
}

impl LeaseParts {
    /// Takes out the part on this resource; what is left is never empty.
    pub fn remove(&mut self, resource: u32) -> Option<LeasePart> {
        let Self::Many(parts) = self else { return None };
        let at = parts.iter().position(|part| part.resource == resource)?;
        let part = parts.remove(at);
        if let [last] = parts[..] {
            *self = Self::One(last);
        }
        Some(part)
    }
}

impl From<Vec<LeasePart>> for LeaseParts {
    fn from(parts: Vec<LeasePart>) -> Self {
        match parts[..] {
            [part] => Self::One(part),
            _ => Self::Many(Box::new(parts)),
        }
    }
}

/// The request that made a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredRequest {
    pub scope: CompactString,
    pub id: CompactString,
    pub fingerprint: u64,
}

impl StoredRequest {
    pub fn mark(&self) -> RequestMark<'_> {
        RequestMark { scope: &self.scope, id: &self.id, fingerprint: self.fingerprint }
    }

    pub fn from_mark(mark: RequestMark<'_>) -> Box<Self> {
        Box::new(Self { scope: mark.scope.into(), id: mark.id.into(), fingerprint: mark.fingerprint })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeasePhase {
    /// Somebody's, until `expires_at`.
    Live,
    /// Lapsed, and its resources stay closed until `expires_at`.
    Closing,
    /// The slot is free.
    Vacant,
}

/// What renewing and releasing need comes first, in the order it is declared.
#[derive(Clone, Debug)]
#[repr(C)]
pub(super) struct LeaseEntry {
    pub token: u64,
    pub secret: Secret,
    /// The end of the phase it is in.
    pub expires_at: Time,
    pub cap_at: Time,
    pub ttl_ms: u32,
    pub delay_ms: u32,
    /// Whom it is counted for.
    pub principal: u32,
    pub phase: LeasePhase,
    /// The snapshot under way has this lease as it stood when the snapshot began.
    pub copied: bool,
    pub granted_at: Time,
    pub parts: LeaseParts,
    pub holder: CompactString,
    /// What most leases have none of.
    pub extras: Option<Box<LeaseExtras>>,
}

/// What a lease may have besides, behind one pointer: a million leases that have none of it stay small.
#[derive(Clone, Default)]
pub(super) struct LeaseExtras {
    /// The request that made it.
    pub request: Option<Box<StoredRequest>>,
    /// What its keys show, if it was taken as Redis keys.
    pub value: Option<KeyValue>,
}

/// Bytes, nearly always few: those are kept where they are, so that a Redis key is one small allocation.
#[derive(Clone)]
pub(super) enum KeyValue {
    Few(u8, [u8; INLINE_VALUE_BYTES]),
    Many(Box<[u8]>),
}

const INLINE_VALUE_BYTES: usize = 22;

impl KeyValue {
    fn new(bytes: &[u8]) -> Self {
        let mut few = [0; INLINE_VALUE_BYTES];
        match few.get_mut(..bytes.len()) {
            Some(start) => {
                start.copy_from_slice(bytes);
                Self::Few(bytes.len() as u8, few)
            }
            None => Self::Many(bytes.into()),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Few(len, bytes) => &bytes[..usize::from(*len)],
            Self::Many(bytes) => bytes,
        }
    }
}

impl fmt::Debug for LeaseExtras {
    /// Without the value: it proves ownership.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Besides").field("request", &self.request).finish_non_exhaustive()
    }
}

impl LeaseExtras {
    pub fn new(request: Option<RequestMark<'_>>, value: Option<&[u8]>) -> Option<Box<Self>> {
        if request.is_none() && value.is_none() {
            return None;
        }
        Some(Box::new(Self { request: request.map(StoredRequest::from_mark), value: value.map(KeyValue::new) }))
    }
}

impl LeaseEntry {
    /// The request that made it.
    pub fn request(&self) -> Option<&StoredRequest> {
        self.extras.as_ref()?.request.as_deref()
    }

    /// What its keys show, if it was taken as Redis keys.
    pub fn value(&self) -> Option<&[u8]> {
        self.extras.as_ref()?.value.as_ref().map(KeyValue::bytes)
    }

    pub fn token(&self) -> Token {
        Token::new(self.token).expect("a lease that is not vacant has a token")
    }

    pub fn key(&self) -> LeaseKey {
        LeaseKey { token: self.token(), secret: self.secret }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what a key shows is what it was given, of any length; and a short one is one allocation of 32 bytes.
    #[test]
    fn what_is_shown_is_what_was_given() {
        for len in [0, 1, INLINE_VALUE_BYTES - 1, INLINE_VALUE_BYTES, INLINE_VALUE_BYTES + 1, 255, 256, 4096] {
            let bytes: Vec<u8> = (0..len).map(|at| at as u8).collect();
            assert_eq!(KeyValue::new(&bytes).bytes(), bytes);
            assert_eq!(matches!(KeyValue::new(&bytes), KeyValue::Few(..)), len <= INLINE_VALUE_BYTES);
        }
        assert_eq!(size_of::<LeaseExtras>(), 32);
    }
}
