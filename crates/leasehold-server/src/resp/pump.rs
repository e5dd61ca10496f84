//! The pump: one thread that speaks with many clients.
//!
//! Each round takes the replies of the batch that has become durable, reads from every client that has something to
//! say, decides all of it under one lock of the engine, and only then writes the replies: the next batch is on its way
//! to the disk while the clients hear of the last one.
//!
//! Waking a thread costs as much as ten commands. So the pump writes its batch to the disk itself, while the kernel
//! gathers what clients send. On a slow disk the engine's writer does it, and the pump does not listen to clients
//! meanwhile: what they send could not be written sooner anyway, and is read in one go when the disk is done.

use std::collections::HashSet;
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold::clock::Time;
use leasehold::engine::embedded::{Embedded, Stopped, Till, Tray};
use leasehold_core::Reply as Decided;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};

use super::Shared;
use super::ask::{self, Ask, Call};
use super::connection::{Blocked, Connection, Kind};
use super::fast::{self, Desk, Step};
use super::frame::{Args, Parsed, parse};
use super::local;
use super::mail::{Bell, Mailbox};
use super::reply::Reply;
use super::slow::{self, Errand};
use super::transport::Transport;
use super::watch::{self, Outlet};
use crate::service::{Denial, Peer};

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
pub struct Pump {
    shared: Arc<Shared>,
    engine: Option<Arc<Embedded>>,
    poll: OwnedFd,
    listener: Option<TcpListener>,
    bell: Arc<Bell>,
    mailbox: Arc<Mailbox>,
    tray: Arc<Tray>,
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

impl Pump {
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
            tray: Tray::new(move || ring.ring()),
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
        if self.tray.is_empty() && self.mailbox.is_empty() {
            self.bell.listen(DEAF);
        }
        self.bell.disarm();
    }

    fn poll(&mut self, events: &mut Vec<epoll::Event>) -> io::Result<()> {
        events.clear();
        self.bell.arm();
        // What came before the bell was armed did not ring it.
        let busy = !self.ready.is_empty() || !self.tray.is_empty() || !self.mailbox.is_empty();
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
                }
                if flags.contains(EventFlags::OUT) {
                    self.mark_dirty(slot);
                }
            }
        }
    }

    fn accept(&mut self) {
        // A few at a time: those who are here have their turn too.
        for _ in 0..256 {
            let Some(listener) = &self.listener else { return };
            let (stream, address) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => {
                    // Out of file descriptors: those who wait at the door stay there until somebody leaves.
                    if !matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) {
                        tracing::warn!(%error, "a connection cannot be accepted");
                        // The poll would tell of them again and again meanwhile.
                        let _ = epoll::delete(&self.poll, listener);
                        self.listening = false;
                    }
                    return;
                }
            };
            if !self.shared.enter(address.ip()) {
                self.turned_away += 1;
                let _ = stream.set_nonblocking(true);
                let _ = io::Write::write(&mut &stream, b"-QUOTA too many connections\r\n");
                continue;
            }
            if let Err(error) = self.add(stream, address) {
                tracing::debug!(%error, peer = %address, "a connection broke as it began");
                self.shared.leave(address.ip());
            }
        }
    }

    fn listen_again(&mut self) {
        if !self.listening
            && let Some(listener) = &self.listener
        {
            self.listening = epoll::add(&self.poll, listener, EventData::new_u64(LISTENER), AT_THE_DOOR).is_ok();
        }
    }

    fn add(&mut self, stream: std::net::TcpStream, address: std::net::SocketAddr) -> io::Result<()> {
        let transport = Transport::accept(stream, self.shared.config.tls.as_ref())?;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            self.places.len() as u32 - 1
        });
        if let Err(error) = epoll::add(&self.poll, &transport, EventData::new_u64(slot.into()), EventFlags::IN) {
            self.free.push(slot);
            return Err(error.into());
        }
        let peer = Peer(address);
        let caller = self.shared.service.enter_quietly(peer);
        let id = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        let place = &mut self.places[slot as usize];
        place.connection = Some(Box::new(Connection::new(id, transport, peer, caller, place.next, self.now)));
        Ok(())
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

    /// Decides what has come, all of it under one lock.
    fn run_ready(&mut self) {
        let engine = self.engine.clone();
        let mut till = None;
        for slot in std::mem::take(&mut self.ready) {
            let place = &mut self.places[slot as usize];
            place.ready = false;
            let Some(mut connection) = place.connection.take() else { continue };
            self.run_commands(slot, &mut connection, engine.as_ref(), &mut till);
            let asks_more = connection.closing
                || connection.paused
                || connection.wants_write()
                || connection.wants_read(self.input_limit()) != connection.asks_read;
            self.places[slot as usize].connection = Some(connection);
            if asks_more {
                self.mark_dirty(slot);
            }
        }
        if let Some(till) = till {
            till.write();
        }
    }

    fn run_commands<'e>(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        engine: Option<&'e Arc<Embedded>>,
        till: &mut Option<Till<'e>>,
    ) {
        let input = std::mem::take(&mut connection.input);
        let mut at = std::mem::take(&mut self.at);
        let mut done = 0;
        let mut turn = 0;
        while connection.blocked.is_none() && !connection.closing && !connection.dead {
            if turn == TURN {
                self.mark_ready(slot);
                break;
            }
            if connection.is_full(self.shared.config.backlog) {
                // It goes on when some of that has left: see `flush`.
                connection.paused = true;
                break;
            }
            turn += 1;
            match parse(&input[done..], connection.sizes(&self.shared.config.sizes), &mut at) {
                Parsed::Incomplete => {
                    connection.closing |= connection.hung_up;
                    connection.waiting_since =
                        if done == input.len() { None } else { Some(connection.waiting_since.unwrap_or(self.now)) };
                    break;
                }
                Parsed::Command(len) => {
                    let args = Args::new(&input[done..done + len], &at);
                    if args.len() > 0 {
                        connection.waiting_since = None;
                        self.run_command(slot, connection, args, engine, till);
                        if connection.hung_up && connection.blocked.as_ref().is_some_and(Blocked::waits) {
                            connection.dead = true;
                            self.dead.push(slot);
                        }
                    }
                    done += len;
                }
                Parsed::Wrong(sentence) => {
                    self.write(connection, |reply| reply.invalid(&format!("protocol error: {sentence}")));
                    connection.closing = true;
                    done = input.len();
                    break;
                }
                Parsed::Http => {
                    tracing::warn!(peer = %connection.peer, "HTTP on the RESP port: cut off");
                    connection.dead = true;
                    self.dead.push(slot);
                    done = input.len();
                    break;
                }
            }
        }
        self.at = at;
        let left = if connection.closing || connection.dead { input.len() } else { done };
        connection.input = input;
        connection.consumed(left);
    }

    /// Writes a reply in its place.
    fn write(&mut self, connection: &mut Connection, write: impl FnOnce(&mut Reply<'_>)) {
        let protocol = connection.protocol;
        if let Some(out) = connection.ready() {
            write(&mut Reply::new(out, protocol));
            connection.answered();
        } else {
            let mut bytes = Vec::new();
            write(&mut Reply::new(&mut bytes, protocol));
            connection.owe_done(bytes);
        }
    }

    fn run_command<'e>(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        args: Args<'_>,
        engine: Option<&'e Arc<Embedded>>,
        till: &mut Option<Till<'e>>,
    ) {
        let asked = ask::read(args);
        let may_ask = connection.caller.is_some()
            || matches!(asked, Ok(Ask::Local(ask::Local::Auth(_) | ask::Local::Hello { .. } | ask::Local::Quit)));
        if !may_ask {
            return self.write(connection, |reply| reply.error("NOAUTH", "Authentication required: AUTH key"));
        }
        if connection.refused_multi && !matches!(asked, Ok(Ask::Local(_))) {
            return self.write(connection, |reply| reply.invalid("not done: MULTI was refused (DISCARD ends it)"));
        }
        match asked {
            Err(sentence) if sentence == ask::NO_SCRIPT => {
                self.write(connection, |reply| reply.error("NOSCRIPT", ask::NO_SCRIPT));
            }
            Err(sentence) => self.write(connection, |reply| reply.invalid(&sentence)),
            Ok(Ask::Local(asked)) => {
                let mut reply = std::mem::take(&mut self.reply);
                reply.clear();
                local::answer(&self.shared.service, &asked, connection, &mut reply);
                match connection.ready() {
                    Some(out) => {
                        out.extend_from_slice(&reply);
                        connection.answered();
                    }
                    None => connection.owe_done(reply.clone()),
                }
                self.reply = reply;
            }
            Ok(Ask::Call(call)) => match engine {
                Some(engine) if fast::handles(&call) => self.run_fast(slot, connection, &call, engine, till),
                _ => self.run_slow(slot, connection, &call),
            },
        }
    }

    fn run_fast<'e>(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        call: &Call<'_>,
        engine: &'e Arc<Embedded>,
        till: &mut Option<Till<'e>>,
    ) {
        let Some(caller) = &connection.caller else { return };
        // Names are collected only for those who may not touch all of them.
        let names = if caller.principal.prefixes.is_empty() { Vec::new() } else { call.names() };
        let pass = match self.shared.service.admit(caller, call.verb(), &names) {
            Ok(pass) => pass,
            Err(denial) => return self.write(connection, |reply| reply.denial(&denial)),
        };
        let mut reply = std::mem::take(&mut self.reply);
        reply.clear();
        let mut desk = Desk {
            service: &self.shared.service,
            till: till.get_or_insert_with(|| engine.till()),
            tray: &self.tray,
            tag: tag(slot, connection.next_number()),
            now: self.now,
        };
        match fast::decide(&mut desk, &pass, call, connection, &mut reply) {
            Step::Done => match connection.ready() {
                Some(out) => {
                    out.extend_from_slice(&reply);
                    connection.answered();
                }
                None => connection.owe_done(reply.clone()),
            },
            Step::Later(kind) => {
                self.at_disk += 1;
                connection.owe(kind);
            }
            Step::InLine(kind, ticket) => {
                connection.owe(kind);
                connection.blocked = Some(Blocked::InLine(ticket));
            }
        }
        self.reply = reply;
    }

    fn run_slow(&mut self, slot: u32, connection: &mut Connection, call: &Call<'_>) {
        let Some(caller) = connection.caller.clone() else { return };
        let errand = match Errand::of(call, &connection.holder) {
            Ok(errand) => errand,
            Err(sentence) => return self.write(connection, |reply| reply.invalid(&sentence)),
        };
        let outlet = Outlet { mailbox: self.mailbox.clone(), bell: self.bell.clone(), slot, id: connection.id };
        let number = connection.next_number();
        let service = self.shared.service.clone();
        let protocol = connection.protocol;
        let waits = matches!(errand, Errand::Acquire(..) | Errand::Watch(..));
        let work = match errand {
            Errand::Watch(..) if connection.watch.is_some() => {
                return self.write(connection, |reply| reply.invalid("this connection watches already"));
            }
            Errand::Watch(prefix, since) => {
                let work = watch::tell(service, caller, prefix, since, protocol, outlet, number);
                let work = self.shared.runtime.spawn(work).abort_handle();
                connection.watches(work.clone());
                work
            }
            errand => self
                .shared
                .runtime
                .spawn(async move {
                    let bytes = slow::answer(service, caller, errand, protocol).await;
                    outlet.post(Some(number), bytes, false);
                })
                .abort_handle(),
        };
        connection.owe(Kind::Mail);
        connection.blocked = Some(Blocked::Elsewhere { work, waits });
    }

    /// Writes the replies of a batch that is durable.
    fn take_answers(&mut self) {
        let mut answers = std::mem::take(&mut self.answers);
        self.tray.take(&mut answers);
        let mut unheard = Vec::new();
        // All of a batch come at once. Those who had waited in line are not counted, and may be among them.
        self.at_disk = self.at_disk.saturating_sub(answers.len());
        for (tag, answer) in answers.drain(..) {
            let (slot, number) = ((tag >> 32) as u32, tag as u32);
            let place = &mut self.places[slot as usize];
            let gone = place.connection.as_ref().is_none_or(|connection| !connection.awaits(number));
            if gone {
                if self.orphans.remove(&tag)
                    && let Ok(Decided::Granted(granted)) = answer
                    && !granted.repeated
                {
                    unheard.push(granted.lease);
                }
                continue;
            }
            let Some(mut connection) = place.connection.take() else { continue };
            let (service, now) = (self.shared.service.clone(), self.now);
            let waited = matches!(connection.blocked, Some(Blocked::InLine(_)));
            match answer {
                // It hung up while its batch was on the way to the disk, and the poll was not asked since: nobody would
                // hear of this lease.
                Ok(Decided::Granted(granted))
                    if waited
                        && !granted.repeated
                        && connection.unheard().any(|unheard| unheard == number)
                        && connection.transport.has_hung_up() =>
                {
                    unheard.push(granted.lease);
                    connection.settle(number, |_, _, _| ());
                    connection.blocked = None;
                    connection.dead = true;
                    self.dead.push(slot);
                }
                // Its key was revoked while it stood in line, and nobody had looked yet.
                Ok(Decided::Granted(granted)) if waited && connection.is_revoked() => {
                    unheard.extend((!granted.repeated).then_some(granted.lease));
                    connection.settle(number, |from, _, out| {
                        Reply::new(out, from.protocol).denial(&Denial::Unauthorized);
                    });
                }
                answer => {
                    connection.settle(number, |from, kind, out| fast::tell(&service, kind, answer, from, out, now));
                }
            }
            if let Some(Blocked::InLine(_)) = connection.blocked
                && number.wrapping_add(1) == connection.next_number()
            {
                connection.blocked = None;
                place.connection = Some(connection);
                self.mark_ready(slot);
            } else {
                place.connection = Some(connection);
            }
            self.mark_dirty(slot);
        }
        self.answers = answers;
        if !unheard.is_empty()
            && let Some(engine) = &self.engine
        {
            let mut till = engine.till();
            for lease in unheard {
                till.release_unseen(lease);
            }
        }
    }

    fn take_mail(&mut self) {
        for letter in self.mailbox.take() {
            let slot = letter.slot;
            let backlog = self.shared.config.backlog;
            let Some(connection) = self.connection(slot).filter(|connection| connection.id == letter.id) else {
                continue;
            };
            match letter.number {
                Some(number) => {
                    connection.settle(number, |_, _, out| out.extend_from_slice(&letter.bytes));
                    connection.blocked = None;
                }
                None => connection.push(&letter.bytes),
            }
            connection.closing |= letter.last;
            // Whoever does not read what it watches is cut off, and may resume where it was. An answer that was asked
            // for may be as long as it is: there is one at a time.
            if letter.number.is_none() && connection.unsent() > backlog {
                connection.dead = true;
                self.dead.push(slot);
                continue;
            }
            self.mark_ready(slot);
            self.mark_dirty(slot);
        }
        // What was unblocked by an answer goes on at once.
        if !self.ready.is_empty() {
            self.run_ready();
        }
    }

    /// Sends what is ready, and asks the poll for what each connection needs next.
    fn flush(&mut self) {
        let (limit, backlog) = (self.input_limit(), self.shared.config.backlog);
        let mut sending = std::mem::replace(&mut self.dirty, std::mem::take(&mut self.sending));
        for slot in sending.drain(..) {
            let place = &mut self.places[slot as usize];
            place.dirty = false;
            let Some(connection) = place.connection.as_deref_mut() else { continue };
            if connection.flush(self.now).is_err() {
                connection.dead = true;
            }
            if connection.closing && !connection.owes() && !connection.wants_write() {
                connection.dead = true;
            }
            if connection.dead {
                self.dead.push(slot);
                continue;
            }
            if connection.paused && !connection.is_full(backlog) {
                connection.paused = false;
                if !place.ready {
                    place.ready = true;
                    self.ready.push(slot);
                }
            }
            let read = connection.wants_read(limit);
            let write = connection.wants_write();
            if (read, write) != (connection.asks_read, connection.asks_write) {
                (connection.asks_read, connection.asks_write) = (read, write);
                let mut flags = EventFlags::empty();
                flags.set(EventFlags::IN, read);
                flags.set(EventFlags::OUT, write);
                if epoll::modify(&self.poll, &connection.transport, EventData::new_u64(slot.into()), flags).is_err() {
                    connection.dead = true;
                    self.dead.push(slot);
                }
            }
        }
        self.sending = sending;
    }

    /// Closes what is to be closed: the line is left, and grants that nobody heard of are ended.
    fn reap(&mut self) {
        let dead = std::mem::take(&mut self.dead);
        if dead.is_empty() {
            return;
        }
        let engine = self.engine.clone();
        let mut till = None;
        for slot in dead {
            let place = &mut self.places[slot as usize];
            let Some(connection) = place.connection.take() else { continue };
            place.next = connection.next_number();
            self.free.push(slot);
            let _ = epoll::delete(&self.poll, &connection.transport);
            self.shared.leave(connection.peer.0.ip());
            for number in connection.unheard() {
                self.orphans.insert(tag(slot, number));
            }
            if let Some(Blocked::InLine(ticket)) = connection.blocked
                && let Some(engine) = &engine
                && till.get_or_insert_with(|| engine.till()).cancel(ticket)
            {
                // It left the line, and no answer will come.
                self.orphans.remove(&tag(slot, connection.next_number().wrapping_sub(1)));
            }
        }
    }

    /// Cuts off those who begin a command and do not end it, those who take no bytes, and those who wait without a right.
    fn look_after(&mut self) {
        let turned_away = std::mem::take(&mut self.turned_away);
        if turned_away > 0 {
            tracing::warn!(turned_away, "too many connections");
        }
        let config = &self.shared.config;
        for (slot, place) in self.places.iter_mut().enumerate() {
            let Some(connection) = &mut place.connection else { continue };
            let over = |since: Option<Time>, most: Duration| since.is_some_and(|since| self.now.since(since) > most);
            if over(connection.waiting_since, config.command_within) && connection.blocked.is_none()
                || over(connection.stalled_since, config.write_stall)
                // Who waits in the name of a key that was revoked leaves the line: it must not be handed a lease later.
                || connection.blocked.is_some() && connection.is_revoked()
            {
                connection.dead = true;
                self.dead.push(slot as u32);
            }
        }
    }

    /// The server stops: nobody new, those in line are told, what is owed leaves. `true` when that is done.
    fn say_goodbye(&mut self) -> bool {
        let since = match self.stopping_since {
            Some(since) => since,
            None => {
                self.begin_goodbye();
                *self.stopping_since.insert(self.now)
            }
        };
        let left = self.places.iter().any(|place| place.connection.is_some());
        if !left || self.now.since(since) > self.shared.config.farewell {
            self.dead = (0..self.places.len() as u32).collect();
            self.reap();
            return true;
        }
        self.next_look = self.now.plus(Duration::from_millis(20));
        false
    }

    fn begin_goodbye(&mut self) {
        if let Some(listener) = self.listener.take() {
            let _ = epoll::delete(&self.poll, &listener);
        }
        let engine = self.engine.clone();
        let mut till = None;
        for slot in 0..self.places.len() as u32 {
            let place = &mut self.places[slot as usize];
            let Some(connection) = place.connection.as_deref_mut() else { continue };
            connection.closing = true;
            let told = match connection.blocked.take() {
                None => false,
                Some(Blocked::Elsewhere { work, waits: true }) => {
                    work.abort();
                    true
                }
                // It may have had its effect: its own answer says so, and comes soon.
                Some(elsewhere @ Blocked::Elsewhere { waits: false, .. }) => {
                    connection.blocked = Some(elsewhere);
                    false
                }
                // A claim that was granted at this moment has its answer on the way.
                Some(Blocked::InLine(ticket)) => {
                    engine.as_ref().is_some_and(|engine| till.get_or_insert_with(|| engine.till()).cancel(ticket))
                }
            };
            if told {
                let number = connection.next_number().wrapping_sub(1);
                let denial = Denial::Engine(Stopped::NoEffect("the server is shutting down".into()).into_error("wait"));
                connection.settle(number, |from, _, out| Reply::new(out, from.protocol).denial(&denial));
            }
            self.mark_dirty(slot);
        }
        drop(till);
        self.flush();
        self.reap();
    }
}

const fn tag(slot: u32, number: u32) -> u64 {
    (slot as u64) << 32 | number as u64
}
