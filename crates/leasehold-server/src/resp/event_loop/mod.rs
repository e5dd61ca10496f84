//! The event loop: one thread that serves many connections.
//!
//! A round:
//!
//! 1. accept new connections ([`accept`]), and read from every socket that has input ([`read`]);
//! 2. parse all of it ([`lookahead`]), decide it under one lock of the engine, and write the batch to the journal
//!    ([`dispatch`], [`run_command`]);
//! 3. write the replies that have become durable, and send them ([`replies`]);
//! 4. close connections ([`close`]).
//!
//! Waking another thread costs as much as ten commands. So this thread writes its batch to the journal itself, while
//! the kernel buffers what clients send. On a slow disk the engine's writer thread does it. Then the event loop does
//! not read sockets meanwhile: their commands could not be written sooner, and are read at once when the sync is done.
//!
//! Other threads reach the event loop by its [`inbox`], the engine's completion queue, and the [`waker`].

mod accept;
mod close;
mod dispatch;
pub mod inbox;
mod lookahead;
mod read;
mod replies;
mod run_command;
pub mod waker;

use std::collections::HashSet;
use std::io;
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
use super::connection::ClientConnection;
use inbox::Inbox;
use lookahead::Lookahead;
use waker::Waker;

/// What epoll reports for the listener. A smaller number is the slot of a connection.
const LISTENER_EVENT: u64 = u64::MAX;
/// What epoll reports for the waker.
const WAKER_EVENT: u64 = u64::MAX - 1;
/// Events that epoll returns at once.
const MAX_EVENTS_PER_POLL: usize = 1024;
/// The longest wait for the engine's writer thread before sockets are polled again.
const MAX_WAIT_FOR_SYNC: Duration = Duration::from_millis(2);
/// How often the deadlines of connections are checked.
const DEADLINE_CHECK_EVERY: Duration = Duration::from_millis(500);

/// A slot for a connection. Command numbers go on when the slot is used again, so that a late completion finds no
/// command.
#[derive(Default)]
struct ConnectionSlot {
    connection: Option<Box<ClientConnection>>,
    next_number: u32,
    /// The slot is in [`EventLoop::ready`].
    ready: bool,
    /// The slot is in [`EventLoop::dirty`].
    dirty: bool,
}

/// See the module.
pub struct EventLoop {
    shared: Arc<ServerShared>,
    /// The embedded engine. None if the server has another engine.
    engine: Option<Arc<Embedded>>,
    poll: OwnedFd,
    /// None when the server stops.
    listener: Option<TcpListener>,
    waker: Arc<Waker>,
    inbox: Arc<Inbox>,
    /// Where the engine puts the replies of a batch that is durable.
    completions: Arc<CompletionQueue>,
    /// The buffer that is swapped with the completion queue's.
    completed: Vec<(u64, Result<EngineReply, Stopped>)>,
    slots: Vec<ConnectionSlot>,
    /// Slots without a connection.
    free: Vec<u32>,
    /// Slots with input that has not run.
    ready: Vec<u32>,
    /// Slots with output to send, or with other events to poll for.
    dirty: Vec<u32>,
    /// The buffer that is swapped with `dirty`.
    flushing: Vec<u32>,
    /// Slots to be closed at the end of the round.
    dead: Vec<u32>,
    /// Tags of pending acquires whose clients have left. Their grants are released.
    abandoned: HashSet<u64>,
    read_buffer: Box<[u8]>,
    /// Where the arguments of the current command lie.
    argument_spans: Vec<(u32, u32)>,
    lookahead: Lookahead,
    /// The buffer for one reply.
    reply: Vec<u8>,
    /// Replies that come with a batch that is not durable.
    awaiting_sync: usize,
    now: Time,
    next_deadline_check: Time,
    /// Whether epoll reports new connections.
    accepting: bool,
    stopping_since: Option<Time>,
    /// Connections refused since that was last logged: strangers must not fill the log.
    refused_connections: usize,
}

impl EventLoop {
    pub fn new(shared: Arc<ServerShared>, listener: TcpListener) -> io::Result<Self> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let waker = Arc::new(Waker::new()?);
        epoll::add(&poll, &listener, EventData::new_u64(LISTENER_EVENT), accept::ACCEPT_EVENTS)?;
        epoll::add(&poll, &*waker, EventData::new_u64(WAKER_EVENT), EventFlags::IN)?;
        let completion_waker = waker.clone();
        let now = shared.service.clock().now();
        Ok(Self {
            engine: shared.service.embedded().cloned(),
            shared,
            poll,
            listener: Some(listener),
            waker,
            inbox: Arc::new(Inbox::default()),
            completions: CompletionQueue::new(move || completion_waker.wake()),
            completed: Vec::new(),
            slots: Vec::new(),
            free: Vec::new(),
            ready: Vec::new(),
            dirty: Vec::new(),
            flushing: Vec::new(),
            dead: Vec::new(),
            abandoned: HashSet::new(),
            read_buffer: vec![0; read::READ_CHUNK_BYTES].into(),
            argument_spans: Vec::new(),
            lookahead: Lookahead::default(),
            reply: Vec::new(),
            awaiting_sync: 0,
            now,
            next_deadline_check: now,
            accepting: true,
            stopping_since: None,
            refused_connections: 0,
        })
    }

    pub fn waker(&self) -> Arc<Waker> {
        self.waker.clone()
    }

    /// Serves connections until the server stops.
    pub fn run(mut self) {
        let mut events = Vec::with_capacity(MAX_EVENTS_PER_POLL);
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
            self.run_ready();
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

    /// Sleeps until the engine's writer thread has synced the batch, at most [`MAX_WAIT_FOR_SYNC`]: a slow disk must
    /// not keep the event loop from its sockets. A disk that hangs while this thread writes does (decision 0010).
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
        // Whatever came before the waker was armed did not wake.
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
                    self.peer_closed(slot);
                }
                if flags.contains(EventFlags::OUT) {
                    self.mark_dirty(slot);
                }
            }
        }
    }

    fn connection(&mut self, slot: u32) -> Option<&mut ClientConnection> {
        self.slots.get_mut(slot as usize)?.connection.as_deref_mut()
    }

    /// The commands of this connection run in this round.
    fn mark_ready(&mut self, slot: u32) {
        let entry = &mut self.slots[slot as usize];
        if !entry.ready {
            entry.ready = true;
            self.ready.push(slot);
        }
    }

    /// The output of this connection is sent in this round, and its events are polled anew.
    fn mark_dirty(&mut self, slot: u32) {
        let entry = &mut self.slots[slot as usize];
        if !entry.dirty && entry.connection.is_some() {
            entry.dirty = true;
            self.dirty.push(slot);
        }
    }
}

/// Names a command in the engine's completion queue: its slot and its number.
const fn command_tag(slot: u32, number: u32) -> u64 {
    (slot as u64) << 32 | number as u64
}

/// The slot and the number of a tag.
const fn slot_and_number(tag: u64) -> (u32, u32) {
    ((tag >> 32) as u32, tag as u32)
}
