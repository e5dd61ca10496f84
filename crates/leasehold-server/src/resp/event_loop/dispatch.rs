//! Runs the commands that connections have sent, all inline commands of a round under one lock of the engine.

use std::sync::Arc;

use leasehold::engine::embedded::{Embedded, LockedEngine};

use super::EventLoop;
use super::lookahead::ParsedAhead;
use super::run_command::{CommandRunner, write_reply};
use crate::resp::codec::frame::{CommandArgs, ParsedFrame, parse};
use crate::resp::connection::ClientConnection;

/// Commands of one connection that run before others get their turn.
pub(super) const MAX_COMMANDS_PER_TURN: usize = 256;

impl EventLoop {
    /// Runs the commands of every ready connection, then writes the batch to the journal.
    pub(super) fn run_ready(&mut self) {
        if self.ready.is_empty() {
            return;
        }
        let engine = self.engine.clone();
        let ready = std::mem::take(&mut self.ready);
        let mut lookahead = std::mem::take(&mut self.lookahead);
        let limits = &self.shared.config.sizes;
        let mut locked = engine.as_ref().and_then(|engine| lookahead.parse_ahead(&ready, &self.slots, limits, engine));
        let mut parsed_ahead = lookahead.by_connection();
        for slot in ready {
            let parsed_ahead = parsed_ahead.next().unwrap_or_default();
            let entry = &mut self.slots[slot as usize];
            entry.ready = false;
            let Some(mut connection) = entry.connection.take() else { continue };
            self.run_commands(slot, &mut connection, parsed_ahead, engine.as_ref(), &mut locked);
            let needs_flush = connection.state.is_draining()
                || connection.state.is_paused()
                || connection.wanted_events(self.max_waiting_bytes()) != connection.polled_events;
            self.slots[slot as usize].connection = Some(connection);
            if needs_flush {
                self.mark_dirty(slot);
            }
        }
        drop(parsed_ahead);
        self.lookahead = lookahead;
        if let Some(locked) = locked {
            locked.write();
        }
    }

    /// Runs commands from the input of one connection, until one blocks, the backlog is full, or its turn is over.
    fn run_commands<'e>(
        &mut self,
        slot: u32,
        connection: &mut ClientConnection,
        mut parsed_ahead: ParsedAhead<'_>,
        engine: Option<&'e Arc<Embedded>>,
        locked: &mut Option<LockedEngine<'e>>,
    ) {
        let input = std::mem::take(&mut connection.input);
        let mut spans = std::mem::take(&mut self.argument_spans);
        let mut consumed = 0;
        let mut commands = 0;
        while connection.state.runs_commands() {
            if commands == MAX_COMMANDS_PER_TURN {
                self.mark_ready(slot);
                break;
            }
            if connection.is_backlog_full(self.shared.config.backlog) {
                // `flush` resumes it.
                connection.state.pause();
                break;
            }
            connection.state.resume();
            commands += 1;
            let (parsed, spans) = match parsed_ahead.next() {
                Some((bytes, spans)) => (ParsedFrame::Command(bytes), spans),
                None => {
                    let limits = connection.command_limits(&self.shared.config.sizes);
                    (parse(&input[consumed..], limits, &mut spans), spans.as_slice())
                }
            };
            match parsed {
                ParsedFrame::Incomplete => {
                    connection.state.input_exhausted();
                    let has_part = consumed < input.len();
                    connection.incomplete_since = has_part.then(|| connection.incomplete_since.unwrap_or(self.now));
                    break;
                }
                ParsedFrame::Command(bytes) => {
                    let args = CommandArgs::new(&input[consumed..consumed + bytes], spans);
                    if args.len() > 0 {
                        connection.incomplete_since = None;
                        let connection = &mut *connection;
                        CommandRunner { event_loop: self, slot, connection, engine, locked }.run(args);
                    }
                    consumed += bytes;
                }
                ParsedFrame::Wrong(sentence) => {
                    write_reply(connection, |reply| reply.invalid(&format!("protocol error: {sentence}")));
                    connection.state.start_draining();
                }
                ParsedFrame::Http => {
                    tracing::warn!(peer = %connection.peer, "HTTP on the RESP port: cut off");
                    connection.state.kill();
                }
            }
        }
        if connection.state.is_dead() {
            self.dead.push(slot);
        }
        self.argument_spans = spans;
        let ended = connection.state.is_draining() || connection.state.is_dead();
        let discarded = if ended { input.len() } else { consumed };
        connection.input = input;
        connection.discard_input(discarded);
    }
}
