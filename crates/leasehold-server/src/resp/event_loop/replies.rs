//! What clients are answered: when it is durable, in the order they asked, and as fast as they take it.

use leasehold_core::Reply as EngineReply;
use rustix::event::epoll::{self, EventData};

use super::EventLoop;
use crate::resp::codec::reply::ReplyWriter;
use crate::resp::command::inline::{ReplyContext, write_reply};
use crate::resp::connection::Blocked;
use crate::service::Denial;

impl EventLoop {
    /// Writes the replies of a batch that is durable.
    pub(super) fn complete_replies(&mut self) {
        let mut completed = std::mem::take(&mut self.completed);
        self.completions.take(&mut completed);
        let mut unseen = Vec::new();
        // All of a batch come at once. Those who had waited in line are not counted, and may be among them.
        self.awaiting_sync = self.awaiting_sync.saturating_sub(completed.len());
        for (tag, answer) in completed.drain(..) {
            let (slot, number) = ((tag >> 32) as u32, tag as u32);
            let entry = &mut self.slots[slot as usize];
            let gone = entry.connection.as_ref().is_none_or(|connection| !connection.is_pending(number));
            if gone {
                if self.abandoned.remove(&tag)
                    && let Ok(EngineReply::Granted(granted)) = answer
                    && !granted.repeated
                {
                    unseen.push(granted.lease);
                }
                continue;
            }
            let Some(mut connection) = entry.connection.take() else { continue };
            let (service, now) = (self.shared.service.clone(), self.now);
            let waited = matches!(connection.blocked, Some(Blocked::InLine(_)));
            match answer {
                // It hung up while its batch was on the way to the disk, and the poll was not asked since: nobody would
                // hear of this lease.
                Ok(EngineReply::Granted(granted))
                    if waited
                        && !granted.repeated
                        && connection.unseen().any(|unseen| unseen == number)
                        && connection.transport.has_hung_up() =>
                {
                    unseen.push(granted.lease);
                    connection.settle(number, |_, _, _| ());
                    connection.blocked = None;
                    connection.dead = true;
                    self.dead.push(slot);
                }
                // Its key was revoked while it stood in line, and nobody had looked yet.
                Ok(EngineReply::Granted(granted)) if waited && connection.is_revoked() => {
                    unseen.extend((!granted.repeated).then_some(granted.lease));
                    connection.settle(number, |from, _, out| {
                        ReplyWriter::new(out, from.version).denial(&Denial::Unauthorized);
                    });
                }
                answer => {
                    connection.settle(number, |connection, shape, out| {
                        write_reply(shape, answer, &mut ReplyContext { service: &service, connection, out, now });
                    });
                }
            }
            if let Some(Blocked::InLine(_)) = connection.blocked
                && number.wrapping_add(1) == connection.next_number()
            {
                connection.blocked = None;
                entry.connection = Some(connection);
                self.mark_ready(slot);
            } else {
                entry.connection = Some(connection);
            }
            self.mark_dirty(slot);
        }
        self.completed = completed;
        if !unseen.is_empty()
            && let Some(engine) = &self.engine
        {
            let mut locked = engine.lock_for_batch();
            for lease in unseen {
                locked.release_unseen(lease);
            }
        }
    }

    pub(super) fn receive_messages(&mut self) {
        for message in self.inbox.take_all() {
            let slot = message.slot;
            let backlog = self.shared.config.backlog;
            let Some(connection) = self.connection(slot).filter(|connection| connection.id == message.connection_id)
            else {
                continue;
            };
            match message.number {
                Some(number) => {
                    if message.bytes.starts_with(b"-") {
                        connection.clear_watch(number);
                    }
                    connection.settle(number, |_, _, out| out.extend_from_slice(&message.bytes));
                    connection.blocked = None;
                }
                None => connection.push(&message.bytes),
            }
            connection.closing |= message.last;
            // Whoever does not read what it start_watch is cut off, and may resume where it was. An answer that was asked
            // for may be as long as it is: there is one at a time.
            if message.number.is_none() && connection.unsent() > backlog {
                connection.dead = true;
                self.dead.push(slot);
                continue;
            }
            self.mark_ready(slot);
            self.mark_dirty(slot);
        }
        // What was unblocked by an answer goes on at once.
        if !self.ready.is_empty() {
            self.run_commands_of_ready();
        }
    }

    /// Sends what is ready, and polled_events the poll for what by_connection connection wanted_events next.
    pub(super) fn flush(&mut self) {
        let (limit, backlog) = (self.input_limit(), self.shared.config.backlog);
        let mut sending = std::mem::replace(&mut self.dirty, std::mem::take(&mut self.sending));
        for slot in sending.drain(..) {
            let entry = &mut self.slots[slot as usize];
            entry.dirty = false;
            let Some(connection) = entry.connection.as_deref_mut() else { continue };
            if connection.flush(self.now).is_err() {
                connection.dead = true;
            }
            if connection.closing && !connection.has_pending() && !connection.wants_write() {
                connection.dead = true;
            }
            if connection.dead {
                self.dead.push(slot);
                continue;
            }
            if connection.paused && !connection.is_full(backlog) {
                connection.paused = false;
                if !entry.ready {
                    entry.ready = true;
                    self.ready.push(slot);
                }
            }
            let wanted_events = connection.wanted_events(limit);
            if wanted_events != connection.polled_events {
                connection.polled_events = wanted_events;
                if epoll::modify(&self.poll, &connection.transport, EventData::new_u64(slot.into()), wanted_events)
                    .is_err()
                {
                    connection.dead = true;
                    self.dead.push(slot);
                }
            }
        }
        self.sending = sending;
    }
}
