//! What clients sent, decided in turn: at once by the engine in this process, or elsewhere.

use std::sync::Arc;

use leasehold::engine::embedded::{Embedded, LockedEngine};

use super::lookahead::Coming;
use super::{EventLoop, TURN, tag};
use crate::resp::codec::frame::{Args, Parsed, parse};
use crate::resp::codec::reply::Reply;
use crate::resp::command::connection as local;
use crate::resp::command::inline::{self as fast, Desk, Step};
use crate::resp::command::spawned::{self as slow, Errand};
use crate::resp::command::{self as ask, Ask, Call};
use crate::resp::connection::{Blocked, Connection, Kind};
use crate::resp::event_loop::inbox::Outlet;
use crate::resp::watch;
use crate::service::Service;

impl EventLoop {
    /// Decides what has come, all of it under one lock.
    pub(super) fn run_ready(&mut self) {
        if self.ready.is_empty() {
            return;
        }
        let engine = self.engine.clone();
        let ready = std::mem::take(&mut self.ready);
        let mut ahead = std::mem::take(&mut self.ahead);
        let sizes = &self.shared.config.sizes;
        let mut locked = engine.as_ref().and_then(|engine| ahead.look(&ready, &self.places, sizes, engine));
        let mut each = ahead.each();
        for slot in ready {
            let coming = each.next().unwrap_or_default();
            let place = &mut self.places[slot as usize];
            place.ready = false;
            let Some(mut connection) = place.connection.take() else { continue };
            self.run_commands(slot, &mut connection, coming, engine.as_ref(), &mut locked);
            let asks_more =
                connection.closing || connection.paused || connection.needs(self.input_limit()) != connection.asks;
            self.places[slot as usize].connection = Some(connection);
            if asks_more {
                self.mark_dirty(slot);
            }
        }
        drop(each);
        self.ahead = ahead;
        if let Some(locked) = locked {
            locked.write();
        }
    }

    fn run_commands<'e>(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        mut coming: Coming<'_>,
        engine: Option<&'e Arc<Embedded>>,
        locked: &mut Option<LockedEngine<'e>>,
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
            let (parsed, arguments) = match coming.next() {
                Some((bytes, arguments)) => (Parsed::Command(bytes), arguments),
                None => {
                    let sizes = connection.sizes(&self.shared.config.sizes);
                    (parse(&input[done..], sizes, &mut at), at.as_slice())
                }
            };
            match parsed {
                Parsed::Incomplete => {
                    connection.closing |= connection.hung_up;
                    connection.waiting_since =
                        if done == input.len() { None } else { Some(connection.waiting_since.unwrap_or(self.now)) };
                    break;
                }
                Parsed::Command(len) => {
                    let args = Args::new(&input[done..done + len], arguments);
                    if args.len() > 0 {
                        connection.waiting_since = None;
                        self.run_command(slot, connection, args, engine, locked);
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
        locked: &mut Option<LockedEngine<'e>>,
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
                Some(engine) if fast::handles(&call) => self.run_fast(slot, connection, &call, engine, locked),
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
        locked: &mut Option<LockedEngine<'e>>,
    ) {
        let Some(caller) = &connection.caller else { return };
        // Names are collected only where one of them may be out of bounds.
        let free = caller.principal.prefixes.is_empty() && !call.any_name(Service::is_reserved);
        let names = if free { Vec::new() } else { call.names() };
        let pass = match self.shared.service.admit(caller, call.verb(), &names) {
            Ok(pass) => pass,
            Err(denial) => return self.write(connection, |reply| reply.denial(&denial)),
        };
        let mut reply = std::mem::take(&mut self.reply);
        reply.clear();
        let mut desk = Desk {
            service: &self.shared.service,
            locked: locked.get_or_insert_with(|| engine.lock_for_batch()),
            completions: &self.completions,
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
            Step::InLine(kind, waiter_id) => {
                connection.owe(kind);
                connection.blocked = Some(Blocked::InLine(waiter_id));
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
}
