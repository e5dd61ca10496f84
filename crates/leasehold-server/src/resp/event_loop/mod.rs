//! The pump: one thread that speaks with count clients.
//!
//! A round: read from every client that has something to say ([`door`] lets new ones in), parse all of it ([`lookahead`]),
//! decide it under one lock of the engine and write it to the disk ([`turn`]), send the replies that have become durable
//! ([`completed`]), close what is to be closed ([`leaving`]).
//!
//! Waking a thread costs as much as ten commands. So the pump writes its batch to the disk itself, while the kernel
//! gathers what clients send. On a slow disk the engine's writer does it, and the pump does not listen to clients
//! meanwhile: what they send could not be written sooner anyway, and is read in one go when the disk is done.

mod accept;
mod close;
mod dispatch;
pub mod inbox;
mod lookahead;
mod replies;
mod run_command;
pub mod waker;

use std::collections::HashSet;
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold::clock::Time;
use leasehold::engine::embedded::{CompletionQueue, Embedded, Stopped};
use leasehold_core::Reply as EngineReply;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};

use super::ServerShared;
use super::connection::{Blocked, ClientConnection};
use super::transport::Transport;
use inbox::Inbox;
use waker::Waker;

const LISTENER_EVENT: u64 = u64::MAX;
const WAKER_EVENT: u64 = u64::MAX - 1;
/// With several pumps one is told of by_connection who comes.
const ACCEPT_EVENTS: EventFlags = EventFlags::IN.union(EventFlags::EXCLUSIVE);
/// Commands of one client before others get their turn.
const MAX_COMMANDS_PER_TURN: usize = 256;
/// Longest time that clients are not listened to while a batch is on its way to the disk.
const MAX_WAIT_FOR_SYNC: Duration = Duration::from_millis(2);
/// How often clients are looked at that should have said or taken something.
const DEADLINE_CHECK_EVERY: Duration = Duration::from_millis(500);
/// Bytes read from one client in one round.
const READ_CHUNK_BYTES: usize = 64 << 10;

/// A entry for a connection. Its numbers go on when it is used again, so that a late answer finds nobody.
#[derive(Default)]
struct ConnectionSlot {
    connection: Option<Box<ClientConnection>>,
    next: u32,
    /// It is in the list of those that have input, or output.
    ready: bool,
    dirty: bool,
}

/// See the module.
pub struct EventLoop {
    shared: Arc<ServerShared>,
    engine: Option<Arc<Embedded>>,
    poll: OwnedFd,
    listener: Option<TcpListener>,
    waker: Arc<Waker>,
    inbox: Arc<Inbox>,
    completions: Arc<CompletionQueue>,
    completed: Vec<(u64, Result<EngineReply, Stopped>)>,
    slots: Vec<ConnectionSlot>,
    free: Vec<u32>,
    /// Places with input that was not looked at.
    ready: Vec<u32>,
    /// Places with output that was not sent.
    dirty: Vec<u32>,
    sending: Vec<u32>,
    /// Places to be closed.
    dead: Vec<u32>,
    /// Acquires whose clients are gone: their grants are to be ended.
    abandoned: HashSet<u64>,
    read_buffer: Box<[u8]>,
    at: Vec<(u32, u32)>,
    lookahead: lookahead::Lookahead,
    reply: Vec<u8>,
    /// Answers that wait for the disk.
    awaiting_sync: usize,
    now: Time,
    next_deadline_check: Time,
    /// The poll tells of new connections.
    listening: bool,
    stopping_since: Option<Time>,
    /// How count found no room since that was last said: strangers must not fill the log.
    refused_connections: usize,
}

impl EventLoop {
    pub fn new(shared: Arc<ServerShared>, listener: TcpListener) -> io::Result<Self> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let waker = Arc::new(Waker::new()?);
        epoll::add(&poll, &listener, EventData::new_u64(LISTENER_EVENT), ACCEPT_EVENTS)?;
        epoll::add(&poll, &*waker, EventData::new_u64(WAKER_EVENT), EventFlags::IN)?;
        let wake = waker.clone();
        let now = shared.service.clock().now();
        Ok(Self {
            engine: shared.service.embedded().cloned(),
            shared,
            poll,
            listener: Some(listener),
            waker,
            inbox: Arc::new(Inbox::default()),
            completions: CompletionQueue::new(move || wake.wake()),
            completed: Vec::new(),
            slots: Vec::new(),
            free: Vec::new(),
            ready: Vec::new(),
            dirty: Vec::new(),
            sending: Vec::new(),
            dead: Vec::new(),
            abandoned: HashSet::new(),
            read_buffer: vec![0; READ_CHUNK_BYTES].into(),
            at: Vec::new(),
            lookahead: lookahead::Lookahead::default(),
            reply: Vec::new(),
            awaiting_sync: 0,
            now,
            next_deadline_check: now,
            listening: true,
            stopping_since: None,
            refused_connections: 0,
        })
    }

    pub fn waker(&self) -> Arc<Waker> {
        self.waker.clone()
    }

    /// Speaks with clients until the server stops.
    pub fn run(mut self) {
        let mut events = Vec::with_capacity(1024);
        loop {
            self.wait_for_sync();
            if let Err(error) = self.poll(&mut events) {
                tracing::error!(%error, "the RESP port cannot be polled any more");
                return;
            }
            self.now = self.shared.service.clock().now();
            for event in &events {
                self.handle_event(event.data.u64(), event.flags);
            }
            self.run_commands_of_ready();
            self.complete_replies();
            self.receive_messages();
            self.flush();
            self.close_dead();
            if self.now >= self.next_deadline_check {
                self.next_deadline_check = self.now.plus(DEADLINE_CHECK_EVERY);
                self.check_deadlines();
                self.close_dead();
                self.resume_accepting();
            }
            if self.shared.stopping.load(Ordering::Relaxed) && self.shut_down() {
                return;
            }
        }
    }

    /// Sleeps until the batch that the engine's writer has is durable. Not for long: a slow disk must not make us deaf.
    /// (A disk that hangs while this thread writes does: see decision 0010.)
    fn wait_for_sync(&mut self) {
        if self.awaiting_sync == 0 {
            return;
        }
        self.waker.arm();
        if self.completions.is_empty() && self.inbox.is_empty() {
            self.waker.wait(MAX_WAIT_FOR_SYNC);
        }
        self.waker.disarm();
    }

    fn poll(&mut self, events: &mut Vec<epoll::Event>) -> io::Result<()> {
        events.clear();
        self.waker.arm();
        // What came before the waker was armed did not ring it.
        let busy = !self.ready.is_empty() || !self.completions.is_empty() || !self.inbox.is_empty();
        let wait =
            if busy { Duration::ZERO } else { self.next_deadline_check.since(self.now).min(DEADLINE_CHECK_EVERY) };
        let timeout = Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos().into() };
        match epoll::wait(&self.poll, rustix::buffer::spare_capacity(events), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        self.waker.disarm();
        Ok(())
    }

    fn handle_event(&mut self, data: u64, flags: EventFlags) {
        match data {
            LISTENER_EVENT => self.accept(),
            WAKER_EVENT => self.waker.clear(),
            slot => {
                let slot = slot as u32;
                if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
                    self.read(slot);
                } else if flags.contains(EventFlags::RDHUP) {
                    self.peer_hung_up(slot);
                }
                if flags.contains(EventFlags::OUT) {
                    self.mark_dirty(slot);
                }
            }
        }
    }

    /// Bytes of one client that wait to be looked at.
    fn input_limit(&self) -> usize {
        self.shared.config.sizes.command + READ_CHUNK_BYTES
    }

    fn connection(&mut self, slot: u32) -> Option<&mut ClientConnection> {
        self.slots.get_mut(slot as usize)?.connection.as_deref_mut()
    }

    fn read(&mut self, slot: u32) {
        let Some(connection) = self.slots.get_mut(slot as usize).and_then(|entry| entry.connection.as_deref_mut())
        else {
            return;
        };
        loop {
            match connection.transport.read(&mut self.read_buffer) {
                Ok(0) => {
                    // Whoever waits in line and hangs up leaves it; what others have sent is done and answered.
                    connection.hung_up = true;
                    connection.dead = connection.blocked.as_ref().is_some_and(Blocked::waits);
                    break;
                }
                Ok(count) => {
                    if std::mem::take(&mut connection.silent) {
                        connection.waiting_since = Some(self.now);
                    }
                    connection.input.extend_from_slice(&self.read_buffer[..count]);
                    // TLS may keep more than one read gives; a plain socket is asked again by the next poll.
                    if matches!(connection.transport, Transport::Plain(_)) || connection.input.len() >= READ_CHUNK_BYTES
                    {
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    connection.dead = true;
                    break;
                }
            }
        }
        if connection.dead {
            self.dead.push(slot);
        } else {
            self.mark_ready(slot);
        }
    }

    /// A client that waits and is not read from went away: the poll is asked for that alone.
    fn peer_hung_up(&mut self, slot: u32) {
        let Some(connection) = self.connection(slot) else { return };
        connection.hung_up = true;
        if connection.blocked.as_ref().is_some_and(Blocked::waits) {
            connection.dead = true;
            self.dead.push(slot);
        } else {
            self.mark_dirty(slot);
        }
    }

    fn mark_ready(&mut self, slot: u32) {
        let entry = &mut self.slots[slot as usize];
        if !entry.ready {
            entry.ready = true;
            self.ready.push(slot);
        }
    }

    fn mark_dirty(&mut self, slot: u32) {
        let entry = &mut self.slots[slot as usize];
        if !entry.dirty && entry.connection.is_some() {
            entry.dirty = true;
            self.dirty.push(slot);
        }
    }
}

const fn tag(slot: u32, number: u32) -> u64 {
    (slot as u64) << 32 | number as u64
}
