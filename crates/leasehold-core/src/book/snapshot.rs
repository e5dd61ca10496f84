//! A copy of the whole book as it stood at one moment, taken in small steps while the book changes.
//!
//! The cursor walks the lease slots. Before a lease that the cursor has not reached is changed, its old
//! form is saved ([`BookState::keep_copy`]); leases granted after the beginning have higher tokens and are
//! left out. So the copy is exact, no step is long, and no lease is copied twice.

use super::ended_leases::EndedLease;
use super::lease::{LeasePhase, StoredRequest};
use super::state::{BookState, ClockMark};
use super::{Book, InvariantViolation};
use crate::fact::{End, LeaseRecord, decode_mark, encode_mark, flag, time, token};
use crate::time::Time;
use crate::token::Secret;
use crate::wire::{MalformedRecord, WireReader, put_u64};

/// A snapshot under way.
#[derive(Debug)]
pub(super) struct Copying {
    /// Leases after this token are not part of it.
    last_token: u64,
    cursor: usize,
    out: Vec<u8>,
}

const CLOCK: u8 = 1;
const ENDING: u8 = 2;
const LEASE: u8 = 3;

impl BookState {
    /// Saves the old form of a lease that is about to change, if a snapshot still needs it.
    pub fn keep_copy(&mut self, slot: u32) {
        let Some(copying) = &mut self.copying else { return };
        let lease = &self.leases[slot as usize];
        if lease.copied || lease.token > copying.last_token || (slot as usize) < copying.cursor {
            return;
        }
        let mut out = std::mem::take(&mut copying.out);
        self.copy_lease(slot, &mut out);
        self.leases[slot as usize].copied = true;
        if let Some(copying) = &mut self.copying {
            copying.out = out;
        }
    }

    fn copy_lease(&self, slot: u32, out: &mut Vec<u8>) {
        out.push(LEASE);
        out.push(u8::from(self.leases[slot as usize].phase == LeasePhase::Closing));
        self.lease_record(slot).encode(out);
    }
}

fn copy_ending(ending: &EndedLease, out: &mut Vec<u8>) {
    out.push(ENDING);
    put_u64(out, ending.token);
    out.extend_from_slice(ending.secret.expose());
    out.push(ending.how as u8);
    encode_mark(ending.request.as_ref().map(|request| request.mark()), out);
}

impl Book {
    /// Begins a snapshot of the book as it stands now. One at a time.
    pub fn begin_snapshot(&mut self) {
        self.abandon_snapshot();
        let mut out = Vec::new();
        out.push(CLOCK);
        put_u64(&mut out, self.state.last_token);
        put_u64(&mut out, self.now.as_nanos());
        put_u64(&mut out, self.state.clock.at.as_nanos());
        out.extend_from_slice(&self.state.clock.boot);
        put_u64(&mut out, self.state.clock.boottime);
        for ending in self.state.ended_leases.iter() {
            copy_ending(ending, &mut out);
        }
        self.state.copying = Some(Copying { last_token: self.state.last_token, cursor: 0, out });
    }

    /// Copies the next `slots` leases and moves what is ready to `out`. `true` when that was the last of it.
    pub fn step_snapshot(&mut self, slots: usize, out: &mut Vec<u8>) -> bool {
        let Some(mut copying) = self.state.copying.take() else { return true };
        let end = copying.cursor.saturating_add(slots).min(self.state.leases.len());
        for slot in copying.cursor..end {
            let lease = &mut self.state.leases[slot];
            let copied = std::mem::take(&mut lease.copied);
            if lease.phase != LeasePhase::Vacant && !copied && lease.token <= copying.last_token {
                self.state.copy_lease(slot as u32, &mut copying.out);
            }
        }
        copying.cursor = end;
        out.append(&mut copying.out);
        let done = end == self.state.leases.len();
        if !done {
            self.state.copying = Some(copying);
        }
        done
    }

    /// Gives up the snapshot under way, if there is one.
    pub fn abandon_snapshot(&mut self) {
        if self.state.copying.take().is_some() {
            for lease in self.state.leases.iter_mut() {
                lease.copied = false;
            }
        }
    }

    /// Restores records of a snapshot. They may come in pieces of any size, but each piece must be whole records.
    ///
    /// # Errors
    ///
    /// [`InvariantViolation`] if the bytes are no snapshot, or break a law.
    pub fn restore(&mut self, bytes: &[u8]) -> Result<(), InvariantViolation> {
        let mut reader = WireReader::new(bytes);
        while reader.left() > 0 {
            self.restore_one(&mut reader)?;
        }
        Ok(())
    }

    fn restore_one(&mut self, reader: &mut WireReader<'_>) -> Result<(), InvariantViolation> {
        match reader.byte()? {
            CLOCK => {
                self.state.last_token = reader.u64()?;
                self.now = time(reader)?;
                self.state.clock = ClockMark { at: time(reader)?, boot: reader.array()?, boottime: reader.u64()? };
            }
            ENDING => {
                let ending = EndedLease {
                    token: token(reader)?.get(),
                    secret: Secret::new(reader.array()?),
                    how: End::from_byte(reader.byte()?)?,
                    request: decode_mark(reader)?.map(StoredRequest::from_mark),
                };
                if self.state.find_token(ending.token).is_some() {
                    return Err(InvariantViolation("a token comes once"));
                }
                self.state.remember(ending, None);
            }
            LEASE => {
                let closing = flag(reader)?;
                let record = LeaseRecord::decode(reader)?;
                if record.token.get() > self.state.last_token {
                    return Err(InvariantViolation("tokens rise"));
                }
                self.state.restore_lease(&record, closing)?;
            }
            _ => return Err(MalformedRecord.into()),
        }
        Ok(())
    }

    /// A hash of everything that must survive a restart, the same however the book came to be in this state.
    ///
    /// For checkers: it looks at every lease. The newest token is left out, since a restart skips tokens.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let mut slots: Vec<u32> = (0..self.state.leases.len() as u32)
            .filter(|slot| self.state.leases[*slot as usize].phase != LeasePhase::Vacant)
            .collect();
        slots.sort_by_key(|slot| self.state.leases[*slot as usize].token);
        let mut bytes = Vec::new();
        let clock = self.state.clock;
        put_u64(&mut bytes, clock.at.as_nanos());
        bytes.extend_from_slice(&clock.boot);
        for slot in slots {
            self.state.copy_lease(slot, &mut bytes);
        }
        for ending in self.state.ended_leases.iter() {
            copy_ending(ending, &mut bytes);
        }
        bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
    }

    /// The latest moment the book has seen.
    #[must_use]
    pub const fn now(&self) -> Time {
        self.now
    }
}
