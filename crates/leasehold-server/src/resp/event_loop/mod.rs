//! The pump: one thread that speaks with many clients.
//!
//! A round: read from every client that has something to say ([`door`] lets new ones in), parse all of it ([`ahead`]),
//! decide it under one lock of the engine and write it to the disk ([`turn`]), send the replies that have become durable
//! ([`answers`]), close what is to be closed ([`leaving`]).
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
use leasehold_core::Reply as Decided;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};

use super::Shared;
use super::connection::{Blocked, Connection};
use super::transport::Transport;
use inbox::Mailbox;
use waker::Bell;

const LISTENER: u64 = u64::MAX;
const BELL: u64 = u64::MAX - 1;
/// With several pumps one is told of each who comes.
const AT_THE_DOOR: EventFlags = EventFlags::IN.union(EventFlags::EXCLUSIVE);
/// Commands of one client before others get their turn.
const TURN: usize = 256;
/// Longest time that clients are not listened to while a batch is on its way to the disk.
const DEAF: Duration = Duration::from_millis(2);
/// How often clients are looked at that should have said or taken something.
const LOOK: Duration = Duration::from_millis(500);
/// Bytes read from one client in one round.
const GULP: usize = 64 << 10;

/// A place for a connection. Its numbers go on when it is used again, so that a late answer finds nobody.
#[derive(Default)]
struct Place {
    connection: Option<Box<Connection>>,
    next: u32,
    /// It is in the list of those that have input, or output.
    ready: bool,
    dirty: bool,
}

/// See the module.
pub struct EventLoop {
    shared: Arc<Shared>,
    engine: Option<Arc<Embedded>>,
    poll: OwnedFd,
    listener: Option<TcpListener>,
    bell: Arc<Bell>,
    mailbox: Arc<Mailbox>,
    completions: Arc<CompletionQueue>,
    answers: Vec<(u64, Result<Decided, Stopped>)>,
    places: Vec<Place>,
    free: Vec<u32>,
    /// Places with input that was not looked at.
    ready: Vec<u32>,
    /// Places with output that was not sent.
    dirty: Vec<u32>,
    sending: Vec<u32>,
    /// Places to be closed.
    dead: Vec<u32>,
    /// Acquires whose clients are gone: their grants are to be ended.
    orphans: HashSet<u64>,
    scratch: Box<[u8]>,
    at: Vec<(u32, u32)>,
    ahead: lookahead::Ahead,
    reply: Vec<u8>,
    /// Answers that wait for the disk.
    at_disk: usize,
    now: Time,
    next_look: Time,
    /// The poll tells of new connections.
    listening: bool,
    stopping_since: Option<Time>,
    /// How many found no room since that was last said: strangers must not fill the log.
    turned_away: usize,
}

impl EventLoop {
    pub fn new(shared: Arc<Shared>, listener: TcpListener) -> io::Result<Self> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = Arc::new(Bell::new()?);
        epoll::add(&poll, &listener, EventData::new_u64(LISTENER), AT_THE_DOOR)?;
        epoll::add(&poll, &*bell, EventData::new_u64(BELL), EventFlags::IN)?;
        let ring = bell.clone();
        let now = shared.service.clock().now();
        Ok(Self {
            engine: shared.service.embedded().cloned(),
            shared,
            poll,
            listener: Some(listener),
            bell,
            mailbox: Arc::new(Mailbox::default()),
            completions: CompletionQueue::new(move || ring.ring()),
            answers: Vec::new(),
            places: Vec::new(),
            free: Vec::new(),
            ready: Vec::new(),
            dirty: Vec::new(),
            sending: Vec::new(),
            dead: Vec::new(),
            orphans: HashSet::new(),
            scratch: vec![0; GULP].into(),
            at: Vec::new(),
            ahead: lookahead::Ahead::default(),
            reply: Vec::new(),
            at_disk: 0,
            now,
            next_look: now,
            listening: true,
            stopping_since: None,
            turned_away: 0,
        })
    }

    pub fn bell(&self) -> Arc<Bell> {
        self.bell.clone()
    }

    /// Speaks with clients until the server stops.
    pub fn run(mut self) {
        let mut events = Vec::with_capacity(1024);
        loop {
            self.await_disk();
            if let Err(error) = self.poll(&mut events) {
                tracing::error!(%error, "the RESP port cannot be polled any more");
                return;
            }
            self.now = self.shared.service.clock().now();
            for event in &events {
                self.on_event(event.data.u64(), event.flags);
            }
            self.run_ready();
            self.take_answers();
            self.take_mail();
            self.flush();
            self.reap();
            if self.now >= self.next_look {
                self.next_look = self.now.plus(LOOK);
                self.look_after();
                self.reap();
                self.listen_again();
            }
            if self.shared.stopping.load(Ordering::Relaxed) && self.say_goodbye() {
                return;
            }
        }
    }

    /// Sleeps until the batch that the engine's writer has is durable. Not for long: a slow disk must not make us deaf.
    /// (A disk that hangs while this thread writes does: see decision 0010.)
    fn await_disk(&mut self) {
        if self.at_disk == 0 {
            return;
        }
        self.bell.arm();
        if self.completions.is_empty() && self.mailbox.is_empty() {
            self.bell.listen(DEAF);
        }
        self.bell.disarm();
    }

    fn poll(&mut self, events: &mut Vec<epoll::Event>) -> io::Result<()> {
        events.clear();
        self.bell.arm();
        // What came before the bell was armed did not ring it.
        let busy = !self.ready.is_empty() || !self.completions.is_empty() || !self.mailbox.is_empty();
        let wait = if busy { Duration::ZERO } else { self.next_look.since(self.now).min(LOOK) };
        let timeout = Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos().into() };
        match epoll::wait(&self.poll, rustix::buffer::spare_capacity(events), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        self.bell.disarm();
        Ok(())
    }

    fn on_event(&mut self, data: u64, flags: EventFlags) {
        match data {
            LISTENER => self.accept(),
            BELL => self.bell.heard(),
            slot => {
                let slot = slot as u32;
                if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
                    self.read(slot);
                } else if flags.contains(EventFlags::RDHUP) {
                    self.hang_up(slot);
                }
                if flags.contains(EventFlags::OUT) {
                    self.mark_dirty(slot);
                }
            }
        }
    }

    /// Bytes of one client that wait to be looked at.
    fn input_limit(&self) -> usize {
        self.shared.config.sizes.command + GULP
    }

    fn connection(&mut self, slot: u32) -> Option<&mut Connection> {
        self.places.get_mut(slot as usize)?.connection.as_deref_mut()
    }

    fn read(&mut self, slot: u32) {
        let Some(connection) = self.places.get_mut(slot as usize).and_then(|place| place.connection.as_deref_mut())
        else {
            return;
        };
        loop {
            match connection.transport.read(&mut self.scratch) {
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
                    connection.input.extend_from_slice(&self.scratch[..count]);
                    // TLS may keep more than one read gives; a plain socket is asked again by the next poll.
                    if matches!(connection.transport, Transport::Plain(_)) || connection.input.len() >= GULP {
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
    fn hang_up(&mut self, slot: u32) {
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
        let place = &mut self.places[slot as usize];
        if !place.ready {
            place.ready = true;
            self.ready.push(slot);
        }
    }

    fn mark_dirty(&mut self, slot: u32) {
        let place = &mut self.places[slot as usize];
        if !place.dirty && place.connection.is_some() {
            place.dirty = true;
            self.dirty.push(slot);
        }
    }
}

const fn tag(slot: u32, number: u32) -> u64 {
    (slot as u64) << 32 | number as u64
}
