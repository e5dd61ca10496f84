//! What clients sent, decided in turn: at once by the engine in this process, or elsewhere.

use std::sync::Arc;

use leasehold::engine::embedded::{Embedded, LockedEngine};

use super::lookahead::ParsedAhead;
use super::run_command::{CommandRunner, write_reply};
use super::{EventLoop, MAX_COMMANDS_PER_TURN};
use crate::resp::codec::frame::{CommandArgs, ParsedFrame, parse};
use crate::resp::connection::{Blocked, ClientConnection};

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
                        let connection = &mut *connection;
                        CommandRunner { event_loop: self, slot, connection, engine, locked }.run(args);
                        if connection.hung_up && connection.blocked.as_ref().is_some_and(Blocked::waits) {
                            connection.dead = true;
                            self.dead.push(slot);
                        }
                    }
                    done += len;
                }
                ParsedFrame::Wrong(sentence) => {
                    write_reply(connection, |reply| reply.invalid(&format!("protocol error: {sentence}")));
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
}
