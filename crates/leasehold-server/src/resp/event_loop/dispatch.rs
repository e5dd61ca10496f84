//! What clients sent, decided in turn: at once by the engine in this process, or elsewhere.

use std::sync::Arc;

use leasehold::engine::embedded::{Embedded, LockedEngine};

use super::lookahead::ParsedAhead;
use super::{EventLoop, MAX_COMMANDS_PER_TURN, tag};
use crate::resp::codec::frame::{CommandArgs, ParsedFrame, parse};
use crate::resp::codec::reply::ReplyWriter;
use crate::resp::command::connection as local;
use crate::resp::command::inline::{self as fast, InlineContext, InlineOutcome};
use crate::resp::command::spawned::{self as slow, OwnedCall};
use crate::resp::command::{self as ask, Call, ParsedCommand};
use crate::resp::connection::{Blocked, ClientConnection, ReplyShape};
use crate::resp::event_loop::inbox::ConnectionHandle;
use crate::resp::watch;
use crate::service::Service;

impl EventLoop {
    /// Decides what has come, all of it under one lock.
    pub(super) fn run_commands_of_ready(&mut self) {
        if self.ready.is_empty() {
            return;
        }
        let engine = self.engine.clone();
        let ready = std::mem::take(&mut self.ready);
        let mut lookahead = std::mem::take(&mut self.lookahead);
        let sizes = &self.shared.config.sizes;
        let mut locked = engine.as_ref().and_then(|engine| lookahead.parse_ahead(&ready, &self.slots, sizes, engine));
        let mut by_connection = lookahead.by_connection();
        for slot in ready {
            let coming = by_connection.next().unwrap_or_default();
            let entry = &mut self.slots[slot as usize];
            entry.ready = false;
            let Some(mut connection) = entry.connection.take() else { continue };
            self.run_commands(slot, &mut connection, coming, engine.as_ref(), &mut locked);
            let needs_flush = connection.closing
                || connection.paused
                || connection.wanted_events(self.input_limit()) != connection.polled_events;
            self.slots[slot as usize].connection = Some(connection);
            if needs_flush {
                self.mark_dirty(slot);
            }
        }
        drop(by_connection);
        self.lookahead = lookahead;
        if let Some(locked) = locked {
            locked.write();
        }
    }

    fn run_commands<'e>(
        &mut self,
        slot: u32,
        connection: &mut ClientConnection,
        mut coming: ParsedAhead<'_>,
        engine: Option<&'e Arc<Embedded>>,
        locked: &mut Option<LockedEngine<'e>>,
    ) {
        let input = std::mem::take(&mut connection.input);
        let mut at = std::mem::take(&mut self.at);
        let mut done = 0;
        let mut turn = 0;
        while connection.blocked.is_none() && !connection.closing && !connection.dead {
            if turn == MAX_COMMANDS_PER_TURN {
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
                Some((bytes, arguments)) => (ParsedFrame::Command(bytes), arguments),
                None => {
                    let sizes = connection.sizes(&self.shared.config.sizes);
                    (parse(&input[done..], sizes, &mut at), at.as_slice())
                }
            };
            match parsed {
                ParsedFrame::Incomplete => {
                    connection.closing |= connection.hung_up;
                    connection.waiting_since =
                        if done == input.len() { None } else { Some(connection.waiting_since.unwrap_or(self.now)) };
                    break;
                }
                ParsedFrame::Command(len) => {
                    let args = CommandArgs::new(&input[done..done + len], arguments);
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
                ParsedFrame::Wrong(sentence) => {
                    self.write(connection, |reply| reply.invalid(&format!("protocol error: {sentence}")));
                    connection.closing = true;
                    done = input.len();
                    break;
                }
                ParsedFrame::Http => {
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

    /// Writes a reply in its entry.
    fn write(&mut self, connection: &mut ClientConnection, write: impl FnOnce(&mut ReplyWriter<'_>)) {
        let version = connection.version;
        if let Some(out) = connection.ready() {
            write(&mut ReplyWriter::new(out, version));
            connection.answered();
        } else {
            let mut bytes = Vec::new();
            write(&mut ReplyWriter::new(&mut bytes, version));
            connection.push_written(bytes);
        }
    }

    fn run_command<'e>(
        &mut self,
        slot: u32,
        connection: &mut ClientConnection,
        args: CommandArgs<'_>,
        engine: Option<&'e Arc<Embedded>>,
        locked: &mut Option<LockedEngine<'e>>,
    ) {
        let asked = ask::read(args);
        let may_ask = connection.caller.is_some()
            || matches!(
                asked,
                Ok(ParsedCommand::ConnectionCommand(
                    ask::ConnectionCommand::Auth(_)
                        | ask::ConnectionCommand::Hello { .. }
                        | ask::ConnectionCommand::Quit
                ))
            );
        if !may_ask {
            return self.write(connection, |reply| reply.error("NOAUTH", "Authentication required: AUTH key"));
        }
        if connection.in_refused_multi && !matches!(asked, Ok(ParsedCommand::ConnectionCommand(_))) {
            return self.write(connection, |reply| reply.invalid("not done: MULTI was refused (DISCARD ends it)"));
        }
        match asked {
            Err(sentence) if sentence == ask::NO_SCRIPT => {
                self.write(connection, |reply| reply.error("NOSCRIPT", ask::NO_SCRIPT));
            }
            Err(sentence) => self.write(connection, |reply| reply.invalid(&sentence)),
            Ok(ParsedCommand::ConnectionCommand(asked)) => {
                let mut reply = std::mem::take(&mut self.reply);
                reply.clear();
                local::answer(&self.shared.service, &asked, connection, &mut reply);
                match connection.ready() {
                    Some(out) => {
                        out.extend_from_slice(&reply);
                        connection.answered();
                    }
                    None => connection.push_written(reply.clone()),
                }
                self.reply = reply;
            }
            Ok(ParsedCommand::Call(call)) => match engine {
                Some(engine) if fast::handles(&call) => self.run_inline(slot, connection, &call, engine, locked),
                _ => self.run_spawned(slot, connection, &call),
            },
        }
    }

    fn run_inline<'e>(
        &mut self,
        slot: u32,
        connection: &mut ClientConnection,
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
        let mut desk = InlineContext {
            service: &self.shared.service,
            locked: locked.get_or_insert_with(|| engine.lock_for_batch()),
            completions: &self.completions,
            tag: tag(slot, connection.next_number()),
            now: self.now,
        };
        match fast::decide(&mut desk, &pass, call, connection, &mut reply) {
            InlineOutcome::Done => match connection.ready() {
                Some(out) => {
                    out.extend_from_slice(&reply);
                    connection.answered();
                }
                None => connection.push_written(reply.clone()),
            },
            InlineOutcome::Later(kind) => {
                self.awaiting_sync += 1;
                connection.push_pending(kind);
            }
            InlineOutcome::InLine(kind, waiter_id) => {
                connection.push_pending(kind);
                connection.blocked = Some(Blocked::InLine(waiter_id));
            }
        }
        self.reply = reply;
    }

    fn run_spawned(&mut self, slot: u32, connection: &mut ClientConnection, call: &Call<'_>) {
        let Some(caller) = connection.caller.clone() else { return };
        let errand = match OwnedCall::of(call, &connection.holder) {
            Ok(errand) => errand,
            Err(sentence) => return self.write(connection, |reply| reply.invalid(&sentence)),
        };
        let handle = ConnectionHandle { inbox: self.inbox.clone(), waker: self.waker.clone(), slot, id: connection.id };
        let number = connection.next_number();
        let service = self.shared.service.clone();
        let version = connection.version;
        let waits = matches!(errand, OwnedCall::Acquire(..) | OwnedCall::Watch(..));
        let work = match errand {
            OwnedCall::Watch(..) if connection.watch.is_some() => {
                return self.write(connection, |reply| reply.invalid("this connection watches already"));
            }
            OwnedCall::Watch(prefix, since) => {
                let work = watch::tell(service, caller, prefix, since, version, handle, number);
                let work = self.shared.runtime.spawn(work).abort_handle();
                connection.start_watch(work.clone());
                work
            }
            errand => self
                .shared
                .runtime
                .spawn(async move {
                    let bytes = slow::answer(service, caller, errand, version).await;
                    handle.post(Some(number), bytes, false);
                })
                .abort_handle(),
        };
        connection.push_pending(ReplyShape::Mail);
        connection.blocked = Some(Blocked::Elsewhere { work, waits });
    }
}
