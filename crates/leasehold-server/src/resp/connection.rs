//! One connection: what came in, what is pending, what goes out.
//!
//! # Laws
//!
//! 1. Replies leave in the order of their commands, whenever they are decided.
//! 2. A command that waits stops the ones after it, as Redis does with a blocked client.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering;

use leasehold::clock::Time;
use leasehold_core::WaiterId;
use rustix::event::epoll::EventFlags;
use tokio::task::AbortHandle;

use super::codec::frame::CommandLimits;
use super::codec::reply::RespVersion;
use super::command::inline::ReplyShape;
use super::command::lease::LeaseReply;
use super::transport::Transport;
use crate::service::seats::Seat;
use crate::service::{Caller, Peer};

/// Replies that one client may be pending. A disk that hangs must not gather all that clients can send meanwhile.
const MAX_PENDING_REPLIES: usize = 16_384;

#[derive(Debug)]
enum PendingReply {
    Owed(ReplyShape),
    Done(Vec<u8>),
}

/// Why no further command is read.
#[derive(Debug)]
pub enum Blocked {
    /// The claim stands in line.
    InLine(WaiterId),
    /// The answer is made elsewhere.
    Elsewhere {
        work: AbortHandle,
        /// It has no effect until it is answered, so it may be given up. Anything else is finished, whoever is there to
        /// hear of it: what was done without its line in the audit would be worse.
        waits: bool,
    },
}

impl Blocked {
    /// Whether there is nothing to finish once the client is gone.
    pub const fn waits(&self) -> bool {
        matches!(self, Self::InLine(_) | Self::Elsewhere { waits: true, .. })
    }
}

/// See the module.
pub struct ClientConnection {
    /// Given back when it is over.
    _seat: Seat,
    /// Unique among all connections of this server.
    pub id: u64,
    pub transport: Transport,
    pub peer: Peer,
    /// Who it is; none before it showed a key that is needed.
    pub caller: Option<Caller>,
    pub version: RespVersion,
    /// What was spoken before, by commands that are pending replies: those before this number, this.
    earlier_versions: Vec<(u32, RespVersion)>,
    /// What it calls itself.
    pub name: String,
    /// Who holds what it takes, for people.
    pub holder: String,
    pub input: Vec<u8>,
    out: Vec<u8>,
    sent: usize,
    pending: VecDeque<PendingReply>,
    /// The number of the first reply that is pending.
    first: u32,
    /// The number of the next command.
    next: u32,
    pub blocked: Option<Blocked>,
    pub watch: Option<AbortHandle>,
    /// It asked for a transaction, and sends what was to be in it.
    pub in_refused_multi: bool,
    /// The command that asked for the watch: what is watched is told after its answer.
    watch_number: u32,
    /// The client sends no more: what it sent is still done.
    pub hung_up: bool,
    /// No further command is looked at: what is pending leaves, and then it is closed.
    pub closing: bool,
    /// Commands wait until the client or the disk has taken some of what there is: see [`Self::is_full`].
    pub paused: bool,
    /// Nobody is there to take replies.
    pub dead: bool,
    /// It has not sent a single byte.
    pub silent: bool,
    /// When it was opened, or the first byte of an unfinished command came.
    pub waiting_since: Option<Time>,
    /// When the client last took bytes, while there are some for it.
    pub stalled_since: Option<Time>,
    /// What the poll is asked to report: see [`Self::wanted_events`].
    pub polled_events: EventFlags,
}

impl ClientConnection {
    pub fn new(
        id: u64,
        transport: Transport,
        peer: Peer,
        caller: Option<Caller>,
        first: u32,
        now: Time,
        seat: Seat,
    ) -> Self {
        Self {
            _seat: seat,
            id,
            transport,
            peer,
            caller,
            version: RespVersion::Resp2,
            earlier_versions: Vec::new(),
            name: String::new(),
            holder: peer.to_string(),
            input: Vec::new(),
            out: Vec::new(),
            sent: 0,
            pending: VecDeque::new(),
            first,
            next: first,
            blocked: None,
            watch: None,
            in_refused_multi: false,
            watch_number: first,
            hung_up: false,
            closing: false,
            paused: false,
            dead: false,
            silent: true,
            waiting_since: Some(now),
            stalled_since: None,
            polled_events: EventFlags::IN,
        }
    }

    /// From the next reply on it is spoken like this.
    pub fn set_version(&mut self, version: RespVersion) {
        let first = self.first;
        self.earlier_versions.retain(|(until, _)| is_before(first, *until));
        if self.has_pending() && version != self.version {
            self.earlier_versions.push((self.next, self.version));
        }
        self.version = version;
    }

    /// How the command with this number is answered.
    fn version_of(&self, number: u32) -> RespVersion {
        let earlier_versions = self.earlier_versions.iter().find(|(until, _)| is_before(number, *until));
        earlier_versions.map_or(self.version, |(_, version)| *version)
    }

    /// No further command runs: the connection is closed when its replies are sent.
    pub const fn start_draining(&mut self) {
        self.closing = true;
    }

    /// The number that the next command will have.
    pub const fn next_number(&self) -> u32 {
        self.next
    }

    /// Where replies that are ready may be written at once; none if others are pending before them.
    pub fn ready(&mut self) -> Option<&mut Vec<u8>> {
        self.pending.is_empty().then_some(&mut self.out)
    }

    /// A command was answered by bytes in [`Self::ready`].
    pub const fn answered(&mut self) {
        self.next = self.next.wrapping_add(1);
        self.first = self.next;
    }

    /// A command was answered at once, but others are pending before it.
    pub fn push_written(&mut self, reply: Vec<u8>) {
        self.pending.push_back(PendingReply::Done(reply));
        self.next = self.next.wrapping_add(1);
    }

    /// The answer to this command comes later.
    pub fn push_pending(&mut self, kind: ReplyShape) {
        self.pending.push_back(PendingReply::Owed(kind));
        self.next = self.next.wrapping_add(1);
    }

    /// The answer to a command has come: `write` makes the reply of it. `false` if it was not pending.
    pub fn settle(&mut self, number: u32, write: impl FnOnce(&Self, ReplyShape, &mut Vec<u8>)) -> bool {
        let version = self.version;
        self.version = self.version_of(number);
        let settled = self.write_in_order(number, write);
        self.version = version;
        if !self.has_pending() {
            self.earlier_versions.clear();
        }
        settled
    }

    fn write_in_order(&mut self, number: u32, write: impl FnOnce(&Self, ReplyShape, &mut Vec<u8>)) -> bool {
        let index = number.wrapping_sub(self.first) as usize;
        if index == 0
            && let Some(PendingReply::Owed(_)) = self.pending.front()
        {
            let Some(PendingReply::Owed(kind)) = self.pending.pop_front() else { unreachable!("it was there") };
            let mut out = std::mem::take(&mut self.out);
            write(self, kind, &mut out);
            self.out = out;
            self.first = self.first.wrapping_add(1);
            while let Some(PendingReply::Done(_)) = self.pending.front() {
                let Some(PendingReply::Done(reply)) = self.pending.pop_front() else { unreachable!("it was there") };
                self.out.extend_from_slice(&reply);
                self.first = self.first.wrapping_add(1);
            }
            return true;
        }
        let Some(slot @ PendingReply::Owed(_)) = self.pending.get_mut(index) else { return false };
        let PendingReply::Owed(kind) = std::mem::replace(slot, PendingReply::Done(Vec::new())) else {
            unreachable!("it was there")
        };
        let mut reply = Vec::new();
        write(self, kind, &mut reply);
        if let Some(slot) = self.pending.get_mut(index) {
            *slot = PendingReply::Done(reply);
        }
        true
    }

    /// Whether the answer to this command is pending.
    pub fn is_pending(&self, number: u32) -> bool {
        matches!(self.pending.get(number.wrapping_sub(self.first) as usize), Some(PendingReply::Owed(_)))
    }

    /// The acquires that are pending an answer and will not be asked for again: if granted, nobody will hear of it.
    pub fn unseen(&self) -> impl Iterator<Item = u32> + '_ {
        let unseen = |slot: &PendingReply| {
            matches!(slot, PendingReply::Owed(ReplyShape::Lease(LeaseReply::Acquire { has_request_id: false, .. })))
        };
        let pending = self.pending.iter().enumerate().filter(move |(_, slot)| unseen(slot));
        pending.map(|(index, _)| self.first.wrapping_add(index as u32))
    }

    /// The next command polled_events for a watch, and this is the work.
    pub fn start_watch(&mut self, work: AbortHandle) {
        self.watch = Some(work);
        self.watch_number = self.next;
    }

    /// The command was answered with a no: if it asked for a watch, there is none.
    pub fn clear_watch(&mut self, number: u32) {
        if self.watch_number == number {
            self.watch = None;
        }
    }

    /// Something that nobody asked for just now: between replies, never inside one, nor before the answer to the watch.
    pub fn push(&mut self, bytes: &[u8]) {
        match self.pending.get_mut(self.watch_number.wrapping_sub(self.first) as usize) {
            Some(PendingReply::Done(reply)) => reply.extend_from_slice(bytes),
            _ => self.out.extend_from_slice(bytes),
        }
    }

    /// So much waits for the client, or for the disk in its name, that its next commands must wait too.
    pub fn is_full(&self, backlog: usize) -> bool {
        self.unsent() > backlog || self.pending.len() >= MAX_PENDING_REPLIES
    }

    /// Whether the key it showed was revoked since.
    pub fn is_revoked(&self) -> bool {
        self.caller.as_ref().is_some_and(|caller| caller.principal.revoked.load(Ordering::Relaxed))
    }

    /// Whether replies are still pending.
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// How many bytes wait for the client.
    pub fn unsent(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Sends what is ready, as far as the client takes it.
    ///
    /// # Errors
    ///
    /// The client is gone.
    pub fn flush(&mut self, now: Time) -> io::Result<()> {
        while self.sent < self.out.len() {
            match self.transport.write(&self.out[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.sent += count;
                    self.stalled_since = None;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.stalled_since.get_or_insert(now);
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.sent == self.out.len() {
            self.sent = 0;
            self.stalled_since = None;
            empty(&mut self.out);
            if self.pending.capacity() > 512 && self.pending.is_empty() {
                self.pending = VecDeque::new();
            }
        } else if self.sent > 1 << 16 {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
        self.transport.flush()
    }

    /// Whether the poll should say when the client takes bytes again.
    pub fn wants_write(&self) -> bool {
        self.unsent() > 0 || self.transport.wants_write()
    }

    /// Whether more may be read: not while a lot of it waits to be looked at.
    fn wants_read(&self, most: usize) -> bool {
        !self.closing && !self.hung_up && self.input.len() < most && self.unsent() < most
    }

    /// What the poll has to tell of this client, of whom `most` bytes may wait on either side. Who waits with more than
    /// that behind is not read from, and must still be missed when it goes.
    pub fn wanted_events(&self, most: usize) -> EventFlags {
        let mut wanted_events = EventFlags::empty();
        let read = self.wants_read(most);
        wanted_events.set(EventFlags::IN, read);
        wanted_events.set(EventFlags::OUT, self.wants_write());
        wanted_events
            .set(EventFlags::RDHUP, !read && !self.hung_up && self.blocked.as_ref().is_some_and(Blocked::waits));
        wanted_events
    }

    /// How much one command may be: little, from one who has not shown a key that is needed.
    pub const fn sizes<'s>(&self, known: &'s CommandLimits) -> &'s CommandLimits {
        if self.caller.is_some() { known } else { &CommandLimits::UNAUTHENTICATED }
    }

    /// Forgets commands that were looked at.
    pub fn consumed(&mut self, bytes: usize) {
        if bytes == self.input.len() {
            empty(&mut self.input);
        } else {
            self.input.drain(..bytes);
        }
    }
}

impl Drop for ClientConnection {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.abort();
        }
        if let Some(Blocked::Elsewhere { work, waits: true }) = &self.blocked {
            work.abort();
        }
    }
}

/// Whether one number was given before the other; they begin anew after the last.
const fn is_before(one: u32, other: u32) -> bool {
    other.wrapping_sub(one).cast_signed() > 0
}

/// A burst must not keep its memory: thousands of connections idle.
fn empty(buffer: &mut Vec<u8>) {
    if buffer.capacity() > 4096 {
        *buffer = Vec::new();
    } else {
        buffer.clear();
    }
}
