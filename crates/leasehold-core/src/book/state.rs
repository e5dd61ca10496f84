//! The state that the facts produce: leases, resources, recently ended leases, and the indexes over them.
//!
//! [`BookState::evolve`] is the only code that changes it, live and in replay alike. It may not refuse a fact
//! that was decided; a fact that breaks a law means that the record is damaged.

use std::borrow::Cow;
use std::hash::BuildHasher;

use foldhash::fast::FixedState;

use super::InvariantViolation;
use super::ended_leases::{EndedLease, EndedLeases};
use super::index::{Index, IndexTable, tag_of_hash, tag_of_token};
use super::lease::{LeaseEntry, LeaseExtras, LeasePart, LeaseParts, LeasePhase, StoredRequest};
use super::principals::Principals;
use super::resource::ResourceEntry;
use super::snapshot::Copying;
use crate::block_vec::BlockVec;
use crate::command::Want;
use crate::fact::{End, Fact, LeaseRecord};
use crate::time::Time;
use crate::token::{Secret, Token};
use crate::wheel::Wheel;

/// Rows of the token and request indexes are lease slots, or (with this bit) rows of the ended leases.
const ENDED_ROW_BIT: u32 = 1 << 31;

/// Where a token or a request id leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowRef {
    Lease(u32),
    Ended(u32),
}

impl RowRef {
    const fn unpack(row: u32) -> Self {
        if row & ENDED_ROW_BIT == 0 { Self::Lease(row) } else { Self::Ended(row & !ENDED_ROW_BIT) }
    }
}

/// How the book's clock relates to the clock of the machine that last started on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockMark {
    /// The book's time at that start.
    pub at: Time,
    /// By which boot of which machine.
    pub boot: [u8; 16],
    /// That machine's boot clock at the same moment.
    pub boottime: u64,
}

#[derive(Debug)]
pub(super) struct BookState {
    pub leases: BlockVec<LeaseEntry>,
    free_leases: Vec<u32>,
    pub resources: BlockVec<ResourceEntry>,
    free_resources: Vec<u32>,
    names: Index,
    tokens: Index,
    requests: Index,
    pub ended_leases: EndedLeases,
    pub wheel: Wheel,
    pub last_token: u64,
    /// Leases that are somebody's, due or not.
    pub live: usize,
    /// Lapsed leases whose resources are still closed.
    pub closing: usize,
    pub clock: ClockMark,
    pub principals: Principals,
    pub copying: Option<Copying>,
    hasher: FixedState,
}

impl BookState {
    pub fn new(ended_leases: usize, seed: u64) -> Self {
        Self {
            leases: BlockVec::default(),
            free_leases: Vec::new(),
            resources: BlockVec::default(),
            free_resources: Vec::new(),
            names: Index::default(),
            tokens: Index::default(),
            requests: Index::default(),
            ended_leases: EndedLeases::new(ended_leases),
            wheel: Wheel::default(),
            last_token: 0,
            live: 0,
            closing: 0,
            clock: ClockMark::default(),
            principals: Principals::default(),
            copying: None,
            hasher: FixedState::with_seed(seed),
        }
    }

    pub fn evolve(&mut self, fact: &Fact<'_>) -> Result<(), InvariantViolation> {
        match fact {
            Fact::Granted(record) => {
                if record.token.get() <= self.last_token {
                    return Err(InvariantViolation("tokens rise"));
                }
                self.last_token = record.token.get();
                self.add_lease(record, LeasePhase::Live)
            }
            Fact::Renewed { token, expires_at, ttl_ms } => {
                let slot = self.live_slot(*token)?;
                self.keep_copy(slot);
                let lease = &mut self.leases[slot as usize];
                let sooner = *expires_at < lease.expires_at;
                lease.expires_at = *expires_at;
                lease.ttl_ms = *ttl_ms;
                // The wheel finds a later end when the old one comes up; an earlier end must be armed.
                if sooner {
                    self.wheel.arm(slot, *expires_at);
                }
                Ok(())
            }
            Fact::Relabelled { token, holder } => {
                let slot = self.live_slot(*token)?;
                self.keep_copy(slot);
                self.leases[slot as usize].holder = (*holder).into();
                Ok(())
            }
            Fact::Ended { token, how, at, closed_until, .. } => self.apply_end(*token, *how, *at, *closed_until),
            Fact::Freed { token, name } => {
                let slot = self.live_slot(*token)?;
                self.keep_copy(slot);
                let part = self.find_name(name).and_then(|at| self.leases[slot as usize].parts.remove(at));
                let Some(part) = part else {
                    return Err(InvariantViolation("a lease frees what it has, and keeps something"));
                };
                self.remove_holder(slot, part);
                Ok(())
            }
            Fact::Reopened { token } => match self.find_token(token.get()) {
                Some(RowRef::Lease(slot)) if self.leases[slot as usize].phase == LeasePhase::Closing => {
                    self.keep_copy(slot);
                    self.closing -= 1;
                    self.drop_lease(slot, End::Lapsed);
                    Ok(())
                }
                _ => Err(InvariantViolation("only a closing lease reopens")),
            },
            Fact::Resumed { at, boot, boottime, fresh } => {
                self.clock = ClockMark { at: *at, boot: *boot, boottime: *boottime };
                if *fresh {
                    self.start_again(*at);
                }
                Ok(())
            }
        }
    }

    /// Ends a live lease: its resources are free, or closed for a while.
    fn apply_end(&mut self, token: Token, how: End, at: Time, closed_until: Time) -> Result<(), InvariantViolation> {
        let slot = self.live_slot(token)?;
        self.keep_copy(slot);
        self.live -= 1;
        if closed_until > at {
            let lease = &mut self.leases[slot as usize];
            lease.phase = LeasePhase::Closing;
            lease.expires_at = closed_until;
            self.closing += 1;
            self.wheel.arm(slot, closed_until);
        } else {
            self.drop_lease(slot, how);
        }
        Ok(())
    }

    /// After a boot change the time that passed is unknown: each live lease has its last ttl once more,
    /// each closing resource its delay, within the cap as far as the record can prove time spent.
    fn start_again(&mut self, at: Time) {
        for slot in 0..self.leases.len() as u32 {
            let lease = &self.leases[slot as usize];
            if lease.phase == LeasePhase::Vacant || lease.expires_at <= at {
                continue;
            }
            self.keep_copy(slot);
            let lease = &mut self.leases[slot as usize];
            lease.expires_at = match lease.phase {
                LeasePhase::Closing => at.plus_millis(lease.delay_ms.into()),
                _ => at.plus_millis(lease.ttl_ms.into()).min(lease.cap_at).max(lease.expires_at),
            };
        }
    }

    /// Puts back a lease from a snapshot.
    pub fn restore_lease(&mut self, record: &LeaseRecord<'_>, closing: bool) -> Result<(), InvariantViolation> {
        self.add_lease(record, if closing { LeasePhase::Closing } else { LeasePhase::Live })
    }

    fn add_lease(&mut self, record: &LeaseRecord<'_>, phase: LeasePhase) -> Result<(), InvariantViolation> {
        let token = record.token.get();
        if self.find_token(token).is_some() {
            return Err(InvariantViolation("a token comes once"));
        }
        let slot = self.free_leases.pop().unwrap_or(self.leases.len() as u32);
        let wants = &*record.wants;
        let parts = match *wants {
            [want] => LeaseParts::One(self.add_holder(slot, want)?),
            _ => LeaseParts::from(
                wants.iter().map(|want| self.add_holder(slot, *want)).collect::<Result<Vec<LeasePart>, _>>()?,
            ),
        };
        let lease = LeaseEntry {
            token,
            secret: record.secret,
            granted_at: record.granted_at,
            expires_at: record.expires_at,
            cap_at: record.cap_at,
            ttl_ms: record.ttl_ms,
            delay_ms: record.delay_ms,
            parts,
            holder: record.holder.as_ref().into(),
            extras: LeaseExtras::new(record.request, record.value),
            principal: self.principals.add_lease(record.principal),
            phase,
            copied: false,
        };
        match self.leases.get_mut(slot as usize) {
            Some(vacant) => *vacant = lease,
            None => self.leases.push(lease),
        }
        match phase {
            LeasePhase::Closing => self.closing += 1,
            _ => self.live += 1,
        }
        self.wheel.arm(slot, record.expires_at);
        self.tokens.insert(tag_of_token(token), slot);
        if let Some(mark) = record.request {
            self.requests.insert(self.request_tag(mark.scope, mark.id), slot);
        }
        Ok(())
    }

    fn add_holder(&mut self, lease: u32, want: Want<'_>) -> Result<LeasePart, InvariantViolation> {
        let resource = self.open_resource(want.name);
        let place = &mut self.resources[resource as usize];
        if !place.admits(want.mode) {
            return Err(InvariantViolation("a resource admits those who hold it"));
        }
        place.add_holder(lease, want.mode);
        Ok(LeasePart::new(resource, want.mode))
    }

    /// Removes a lease from all indexes; what remains is an ended lease.
    fn drop_lease(&mut self, slot: u32, how: End) {
        let lease = &mut self.leases[slot as usize];
        lease.phase = LeasePhase::Vacant;
        lease.copied = false;
        let token = std::mem::take(&mut lease.token);
        let parts = std::mem::replace(&mut lease.parts, LeaseParts::One(LeasePart::new(0, crate::Mode::Exclusive)));
        let request = lease.extras.take().and_then(|extras| extras.request);
        let secret = std::mem::replace(&mut lease.secret, Secret::new([0; 16]));
        lease.holder = Default::default();
        self.principals.remove_lease(lease.principal);
        for part in parts.as_slice() {
            self.remove_holder(slot, *part);
        }
        self.wheel.disarm(slot);
        self.free_leases.push(slot);
        self.remember(EndedLease { token, secret, how, request }, Some(slot));
    }

    fn remove_holder(&mut self, lease: u32, part: LeasePart) {
        let resource = &mut self.resources[part.resource as usize];
        let mode = part.mode(resource.capacity());
        resource.remove_holder(lease, mode);
        self.close_resource_if_idle(part.resource);
    }

    /// Remembers an ended lease, and forgets the oldest if there are too many. `slot` is where the indexes still point.
    pub fn remember(&mut self, ending: EndedLease, slot: Option<u32>) {
        let (row, oldest) = self.ended_leases.next_row();
        if let Some(oldest) = oldest {
            let request = oldest.request.as_ref().map(|r| self.request_tag(&r.scope, &r.id));
            self.tokens.remove(tag_of_token(oldest.token), row | ENDED_ROW_BIT);
            if let Some(tag) = request {
                self.requests.remove(tag, row | ENDED_ROW_BIT);
            }
        }
        let token = tag_of_token(ending.token);
        let request = ending.request.as_ref().map(|r| self.request_tag(&r.scope, &r.id));
        self.ended_leases.push(ending);
        let row = row | ENDED_ROW_BIT;
        match slot {
            Some(slot) => {
                self.tokens.replace(token, slot, row);
                if let Some(tag) = request {
                    self.requests.replace(tag, slot, row);
                }
            }
            None => {
                self.tokens.insert(token, row);
                if let Some(tag) = request {
                    self.requests.insert(tag, row);
                }
            }
        }
    }

    fn name_tag(&self, name: &str) -> u32 {
        tag_of_hash(self.hasher.hash_one(name))
    }

    /// The sizes of the next index tables for names and tokens, in lines, if they are needed soon.
    pub fn wanted_tables(&self) -> (Option<usize>, Option<usize>) {
        (self.names.next_table_lines(), self.tokens.next_table_lines())
    }

    /// Takes the next tables, and returns those of the wrong size.
    pub fn keep_tables(
        &mut self,
        names: Option<IndexTable>,
        tokens: Option<IndexTable>,
    ) -> (Option<IndexTable>, Option<IndexTable>) {
        let names = names.and_then(|table| self.names.keep_ready(table));
        (names, tokens.and_then(|table| self.tokens.keep_ready(table)))
    }

    /// See [`super::Book::prefetch`].
    pub fn prefetch(&self, names: &[&str]) {
        let mut tags = [0; 16];
        for names in names.chunks(tags.len()) {
            for (tag, name) in tags.iter_mut().zip(names) {
                *tag = self.name_tag(name);
            }
            // A loop with nothing else in it: the processor then loads all of them at once.
            for tag in &tags[..names.len()] {
                self.names.fetch(*tag);
            }
        }
    }

    pub fn find_name(&self, name: &str) -> Option<u32> {
        self.names.find(self.name_tag(name), |row| self.resources[row as usize].name == name)
    }

    /// The resource of this name; a new one, if there is none.
    pub fn open_resource(&mut self, name: &str) -> u32 {
        let tag = self.name_tag(name);
        if let Some(found) = self.names.find(tag, |row| self.resources[row as usize].name == name) {
            return found;
        }
        let resource = ResourceEntry::new(name);
        let slot = match self.free_resources.pop() {
            Some(slot) => {
                self.resources[slot as usize] = resource;
                slot
            }
            None => {
                self.resources.push(resource);
                self.resources.len() as u32 - 1
            }
        };
        self.names.insert(tag, slot);
        slot
    }

    /// Forgets a resource that nobody holds or awaits.
    pub fn close_resource_if_idle(&mut self, slot: u32) {
        let resource = &mut self.resources[slot as usize];
        if !resource.is_idle() || resource.name.is_empty() {
            return;
        }
        let tag = tag_of_hash(self.hasher.hash_one(resource.name.as_str()));
        self.names.remove(tag, slot);
        resource.name = Default::default();
        self.free_resources.push(slot);
    }

    pub fn find_token(&self, token: u64) -> Option<RowRef> {
        let row = self.tokens.find(tag_of_token(token), |row| self.token_of(row) == token)?;
        Some(RowRef::unpack(row))
    }

    pub fn find_request(&self, scope: &str, id: &str) -> Option<RowRef> {
        let row = self.requests.find(self.request_tag(scope, id), |row| {
            self.request_of(row).is_some_and(|request| request.scope == scope && request.id == id)
        })?;
        Some(RowRef::unpack(row))
    }

    fn live_slot(&self, token: Token) -> Result<u32, InvariantViolation> {
        match self.find_token(token.get()) {
            Some(RowRef::Lease(slot)) if self.leases[slot as usize].phase == LeasePhase::Live => Ok(slot),
            _ => Err(InvariantViolation("only a live lease changes")),
        }
    }

    pub fn request_tag(&self, scope: &str, id: &str) -> u32 {
        tag_of_hash(self.hasher.hash_one((scope, id)))
    }

    fn token_of(&self, row: u32) -> u64 {
        match RowRef::unpack(row) {
            RowRef::Lease(slot) => self.leases[slot as usize].token,
            RowRef::Ended(row) => self.ended_leases.get(row).token,
        }
    }

    fn request_of(&self, row: u32) -> Option<&StoredRequest> {
        match RowRef::unpack(row) {
            RowRef::Lease(slot) => self.leases[slot as usize].request(),
            RowRef::Ended(row) => self.ended_leases.get(row).request.as_deref(),
        }
    }

    /// The lease as a record, with the names of what it covers.
    pub fn lease_record(&self, slot: u32) -> LeaseRecord<'_> {
        let lease = &self.leases[slot as usize];
        LeaseRecord {
            token: lease.token(),
            secret: lease.secret,
            granted_at: lease.granted_at,
            expires_at: lease.expires_at,
            cap_at: lease.cap_at,
            ttl_ms: lease.ttl_ms,
            delay_ms: lease.delay_ms,
            holder: Cow::Borrowed(&lease.holder),
            request: lease.request().map(StoredRequest::mark),
            principal: self.principals.name(lease.principal),
            value: lease.value(),
            wants: Cow::Owned(
                lease
                    .parts
                    .as_slice()
                    .iter()
                    .map(|part| {
                        let resource = &self.resources[part.resource as usize];
                        Want { name: &resource.name, mode: part.mode(resource.capacity()) }
                    })
                    .collect(),
            ),
        }
    }
}
