//! One connection: its input, its pending replies, its output.
//!
//! # Laws
//!
//! 1. Replies leave in the order of their commands, whenever they are decided.
//! 2. A command that waits blocks those after it, as Redis does with a blocked client.
//!
//! # Not here
//!
//! When a connection runs commands, waits, drains or dies: [`state`].

pub mod state;

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering;

use leasehold::clock::Time;
use rustix::event::epoll::EventFlags;
use tokio::task::AbortHandle;

use super::codec::frame::CommandLimits;
use super::codec::reply::RespVersion;
use super::command::inline::ReplyShape;
use super::command::lease::LeaseReply;
use super::transport::Transport;
use crate::service::connection_limit::ConnectionPermit;
use crate::service::{Caller, PeerAddress};
use state::{BlockedBy, ConnectionPhase, ConnectionState};

/// Replies of one connection that may be pending. A disk that hangs must not gather all that clients send meanwhile.
const MAX_PENDING_REPLIES: usize = 16_384;
/// An empty buffer that is larger is freed: thousands of connections are idle after a burst.
const MAX_IDLE_BUFFER_BYTES: usize = 4096;
/// An empty queue of replies that is larger is freed.
const MAX_IDLE_REPLY_QUEUE: usize = 512;
/// Bytes that were sent are removed from the output buffer when there are more.
const MAX_SENT_BYTES_KEPT: usize = 64 << 10;

/// The reply to a command that has not left the queue.
#[derive(Debug)]
enum PendingReply {
    /// The reply is not known.
    Undecided(ReplyShape),
    /// The reply is written, and waits for those before it.
    Written(Vec<u8>),
}

/// See the module.
pub struct ClientConnection {
    /// Counts the connection among all of the server.
    _permit: ConnectionPermit,
    /// Unique among all connections of this server.
    pub id: u64,
    pub transport: Transport,
    pub peer: PeerAddress,
    /// Who the client is. None before it has shown a key, on a server with keys.
    pub caller: Option<Caller>,
    /// The version of the next reply.
    pub version: RespVersion,
    /// Versions of pending replies that are older: each for the commands before this number.
    earlier_versions: Vec<(u32, RespVersion)>,
    /// The name that the client gave the connection; may be empty.
    pub name: String,
    /// The label of leases that the client acquires without one.
    pub holder: String,
    /// Bytes that were read and have not run as commands.
    pub input: Vec<u8>,
    /// Replies in order. The first [`Self::sent`] bytes have left.
    out: Vec<u8>,
    sent: usize,
    /// Replies that cannot be added to `out` yet, in the order of their commands.
    pending: VecDeque<PendingReply>,
    /// The number of the first command whose reply is pending.
    first_pending: u32,
    /// The number of the next command.
    next: u32,
    pub state: ConnectionState,
    /// The client sent `MULTI`, which was refused: its commands are refused until `EXEC` or `DISCARD`.
    pub in_refused_multi: bool,
    /// The task of `LEASE WATCH`.
    pub watch: Option<AbortHandle>,
    /// The number of the command that started the watch. Pushes follow its reply.
    watch_number: u32,
    /// When the connection was accepted, or the first byte of an incomplete command came.
    pub incomplete_since: Option<Time>,
    /// Since when the client takes no bytes, while there are some for it.
    pub stalled_since: Option<Time>,
    /// The events that epoll reports now: see [`Self::wanted_events`].
    pub polled_events: EventFlags,
}

impl ClientConnection {
    pub fn new(
        id: u64,
        transport: Transport,
        peer: PeerAddress,
        caller: Option<Caller>,
        first_number: u32,
        now: Time,
        permit: ConnectionPermit,
    ) -> Self {
        Self {
            _permit: permit,
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
            first_pending: first_number,
            next: first_number,
            state: ConnectionState::accepted(),
            in_refused_multi: false,
            watch: None,
            watch_number: first_number,
            incomplete_since: Some(now),
            stalled_since: None,
            polled_events: EventFlags::IN,
        }
    }

    /// Changes the version, from the next reply on.
    pub fn set_version(&mut self, version: RespVersion) {
        let first_pending = self.first_pending;
        self.earlier_versions.retain(|(until, _)| is_before(first_pending, *until));
        if self.has_pending() && version != self.version {
            self.earlier_versions.push((self.next, self.version));
        }
        self.version = version;
    }

    /// The version that was set when the command with this number came.
    fn version_of(&self, number: u32) -> RespVersion {
        let earlier = self.earlier_versions.iter().find(|(until, _)| is_before(number, *until));
        earlier.map_or(self.version, |(_, version)| *version)
    }

    /// The number that the next command will have.
    pub const fn next_number(&self) -> u32 {
        self.next
    }

    /// The output buffer, if the next reply can be added to it: none is pending before it. Then call
    /// [`Self::count_direct_reply`].
    pub fn direct_output(&mut self) -> Option<&mut Vec<u8>> {
        self.pending.is_empty().then_some(&mut self.out)
    }

    /// The reply to the next command was added to [`Self::direct_output`].
    pub const fn count_direct_reply(&mut self) {
        self.next = self.next.wrapping_add(1);
        self.first_pending = self.next;
    }

    /// The reply to the next command is known, and others are pending before it.
    pub fn push_written(&mut self, reply: Vec<u8>) {
        self.pending.push_back(PendingReply::Written(reply));
        self.next = self.next.wrapping_add(1);
    }

    /// The reply to the next command comes later.
    pub fn push_undecided(&mut self, shape: ReplyShape) {
        self.pending.push_back(PendingReply::Undecided(shape));
        self.next = self.next.wrapping_add(1);
    }

    /// The reply to a pending command is known: `write` writes it. A command that is not pending is left alone.
    pub fn complete(&mut self, number: u32, write: impl FnOnce(&Self, ReplyShape, &mut Vec<u8>)) {
        let version = self.version;
        self.version = self.version_of(number);
        self.write_in_order(number, write);
        self.version = version;
        if !self.has_pending() {
            self.earlier_versions.clear();
        }
    }

    fn write_in_order(&mut self, number: u32, write: impl FnOnce(&Self, ReplyShape, &mut Vec<u8>)) {
        let index = self.pending_index(number);
        let Some(pending @ PendingReply::Undecided(_)) = self.pending.get_mut(index) else { return };
        let placeholder = PendingReply::Written(Vec::new());
        let PendingReply::Undecided(shape) = std::mem::replace(pending, placeholder) else { return };
        if index > 0 {
            let mut reply = Vec::new();
            write(self, shape, &mut reply);
            self.pending[index] = PendingReply::Written(reply);
            return;
        }
        let mut out = std::mem::take(&mut self.out);
        write(self, shape, &mut out);
        while let Some(PendingReply::Written(reply)) = self.pending.front() {
            out.extend_from_slice(reply);
            self.pending.pop_front();
            self.first_pending = self.first_pending.wrapping_add(1);
        }
        self.out = out;
    }

    const fn pending_index(&self, number: u32) -> usize {
        number.wrapping_sub(self.first_pending) as usize
    }

    /// Whether the reply to this command is not known.
    pub fn is_undecided(&self, number: u32) -> bool {
        matches!(self.pending.get(self.pending_index(number)), Some(PendingReply::Undecided(_)))
    }

    /// Pending acquires without a request id. If one is granted after the client has left, nobody can learn of its
    /// lease.
    pub fn unrepeatable_acquires(&self) -> impl Iterator<Item = u32> + '_ {
        let is_unrepeatable = |pending: &PendingReply| {
            matches!(
                pending,
                PendingReply::Undecided(ReplyShape::Lease(LeaseReply::Acquire { has_request_id: false, .. }))
            )
        };
        let indices = self.pending.iter().enumerate().filter(move |(_, pending)| is_unrepeatable(pending));
        indices.map(|(index, _)| self.first_pending.wrapping_add(index as u32))
    }

    /// The next command starts a watch, with this task.
    pub fn start_watch(&mut self, task: AbortHandle) {
        self.watch = Some(task);
        self.watch_number = self.next;
    }

    /// The command was refused. If it was to start the watch, there is none.
    pub fn forget_watch(&mut self, number: u32) {
        if self.watch_number == number {
            self.watch = None;
        }
    }

    /// Adds a push: between replies, and behind the reply to the watch.
    pub fn add_push(&mut self, bytes: &[u8]) {
        let index = self.pending_index(self.watch_number);
        match self.pending.get_mut(index) {
            Some(PendingReply::Written(reply)) => reply.extend_from_slice(bytes),
            _ => self.out.extend_from_slice(bytes),
        }
    }

    /// Whether so much waits for the client, or for the disk in its name, that no further command may run.
    pub fn is_backlog_full(&self, max_unsent_bytes: usize) -> bool {
        self.unsent_bytes() > max_unsent_bytes || self.pending.len() >= MAX_PENDING_REPLIES
    }

    /// Whether the key of the client was revoked.
    pub fn is_revoked(&self) -> bool {
        self.caller.as_ref().is_some_and(|caller| caller.principal.revoked.load(Ordering::Relaxed))
    }

    /// Whether replies are pending.
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Bytes that wait for the client.
    pub fn unsent_bytes(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Sends the output, as far as the client takes it.
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
            clear_buffer(&mut self.out);
            if self.pending.capacity() > MAX_IDLE_REPLY_QUEUE && self.pending.is_empty() {
                self.pending = VecDeque::new();
            }
        } else if self.sent > MAX_SENT_BYTES_KEPT {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
        self.transport.flush()
    }

    /// Whether bytes wait for the client, here or in TLS.
    pub fn wants_write(&self) -> bool {
        self.unsent_bytes() > 0 || self.transport.wants_write()
    }

    /// Whether more is read: not while many bytes wait on either side.
    fn wants_read(&self, max_bytes: usize) -> bool {
        self.state.reads_input() && self.input.len() < max_bytes && self.unsent_bytes() < max_bytes
    }

    /// The events that epoll must report. At most `max_bytes` may wait on either side. A client that waits and is not
    /// read from must be noticed when it leaves, so then `RDHUP` is asked for.
    pub fn wanted_events(&self, max_bytes: usize) -> EventFlags {
        let read = self.wants_read(max_bytes);
        let half_closed = self.state.phase() == ConnectionPhase::HalfClosed;
        let mut events = EventFlags::empty();
        events.set(EventFlags::IN, read);
        events.set(EventFlags::OUT, self.wants_write());
        events.set(EventFlags::RDHUP, !read && !half_closed && self.state.is_abortable());
        events
    }

    /// How large a command may be: small, from a client that has not shown a key.
    pub const fn command_limits<'l>(&self, authenticated: &'l CommandLimits) -> &'l CommandLimits {
        if self.caller.is_some() { authenticated } else { &CommandLimits::UNAUTHENTICATED }
    }

    /// Removes commands from the input that have run.
    pub fn discard_input(&mut self, bytes: usize) {
        if bytes == self.input.len() {
            clear_buffer(&mut self.input);
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
        if let BlockedBy::Task { task, abortable: true } = self.state.blocked_by() {
            task.abort();
        }
    }
}

/// Whether one number was given before the other. They start again after the largest.
const fn is_before(one: u32, other: u32) -> bool {
    other.wrapping_sub(one).cast_signed() > 0
}

fn clear_buffer(buffer: &mut Vec<u8>) {
    if buffer.capacity() > MAX_IDLE_BUFFER_BYTES {
        *buffer = Vec::new();
    } else {
        buffer.clear();
    }
}
