//! Writes replies when their batch is durable or their task has ended, in the order of the commands, and sends them.

use leasehold::engine::embedded::Stopped;
use leasehold_core::{LeaseKey, Reply as EngineReply};
use rustix::event::epoll::{self, EventData};

use super::{EventLoop, slot_and_number};
use crate::resp::codec::reply::ReplyWriter;
use crate::resp::command::inline::{ReplyContext, write_engine_reply};
use crate::resp::connection::ClientConnection;
use crate::service::Denial;

impl EventLoop {
    /// Writes the replies of batches that are durable.
    pub(super) fn complete_replies(&mut self) {
        let mut completed = std::mem::take(&mut self.completed);
        self.completions.take(&mut completed);
        // All of a batch come at once. Claims that waited in a queue are not counted, and may be among them.
        self.awaiting_sync = self.awaiting_sync.saturating_sub(completed.len());
        let mut unseen = Vec::new();
        for (tag, answer) in completed.drain(..) {
            let (slot, number) = slot_and_number(tag);
            let connection = self.slots[slot as usize].connection.take_if(|connection| connection.is_undecided(number));
            let Some(mut connection) = connection else {
                if self.abandoned.remove(&tag)
                    && let Ok(EngineReply::Granted(granted)) = answer
                    && !granted.repeated
                {
                    unseen.push(granted.lease);
                }
                continue;
            };
            unseen.extend(self.complete_reply(&mut connection, number, answer));
            if connection.state.is_dead() {
                self.dead.push(slot);
            }
            let unblocked = connection.state.is_in_wait_queue() && number.wrapping_add(1) == connection.next_number();
            if unblocked {
                connection.state.unblock();
            }
            self.slots[slot as usize].connection = Some(connection);
            if unblocked {
                self.mark_ready(slot);
            }
            self.mark_dirty(slot);
        }
        self.completed = completed;
        self.release_unseen(unseen);
    }

    /// Writes the reply to one command. Returns the lease that it granted, if nobody will learn of it.
    fn complete_reply(
        &self,
        connection: &mut ClientConnection,
        number: u32,
        answer: Result<EngineReply, Stopped>,
    ) -> Option<LeaseKey> {
        let (service, now) = (&self.shared.service, self.now);
        let waited = connection.state.is_in_wait_queue();
        match answer {
            // The client left while the batch was on its way to the disk, and epoll was not asked since.
            Ok(EngineReply::Granted(granted))
                if waited
                    && !granted.repeated
                    && connection.unrepeatable_acquires().any(|acquire| acquire == number)
                    && connection.transport.has_hung_up() =>
            {
                connection.complete(number, |_, _, _| ());
                connection.state.unblock();
                connection.state.kill();
                Some(granted.lease)
            }
            // The key was revoked while the claim waited, and no deadline check has come since.
            Ok(EngineReply::Granted(granted)) if waited && connection.is_revoked() => {
                connection.complete(number, |connection, _, out| {
                    ReplyWriter::new(out, connection.version).denial(&Denial::Unauthorized);
                });
                (!granted.repeated).then_some(granted.lease)
            }
            answer => {
                connection.complete(number, |connection, shape, out| {
                    write_engine_reply(shape, answer, &mut ReplyContext { service, connection, out, now });
                });
                None
            }
        }
    }

    /// Releases leases that nobody will learn of.
    fn release_unseen(&self, leases: Vec<LeaseKey>) {
        if leases.is_empty() {
            return;
        }
        let Some(engine) = &self.engine else { return };
        let mut locked = engine.lock_for_batch();
        for lease in leases {
            locked.release_unseen(lease);
        }
    }

    /// Takes replies and pushes of tasks from the inbox.
    pub(super) fn receive_messages(&mut self) {
        for message in self.inbox.take_all() {
            let slot = message.slot;
            let max_unsent_bytes = self.shared.config.backlog;
            let connection = self.connection(slot).filter(|connection| connection.id == message.connection_id);
            let Some(connection) = connection else { continue };
            match message.number {
                Some(number) => {
                    if message.bytes.starts_with(b"-") {
                        connection.forget_watch(number);
                    }
                    connection.complete(number, |_, _, out| out.extend_from_slice(&message.bytes));
                    connection.state.unblock();
                }
                None => connection.add_push(&message.bytes),
            }
            if message.last {
                connection.state.start_draining();
            }
            // A watcher that does not read is cut off, and may resume where it was. A reply may be as long as it is: a
            // connection has only one of a task at a time.
            if message.number.is_none() && connection.unsent_bytes() > max_unsent_bytes {
                connection.state.kill();
                self.dead.push(slot);
                continue;
            }
            self.mark_ready(slot);
            self.mark_dirty(slot);
        }
        // Connections that a reply has unblocked run their next commands in this round.
        self.run_ready();
    }

    /// Sends output, and asks epoll for the events that each connection needs next.
    pub(super) fn flush(&mut self) {
        let max_waiting_bytes = self.max_waiting_bytes();
        let max_unsent_bytes = self.shared.config.backlog;
        let mut flushing = std::mem::replace(&mut self.dirty, std::mem::take(&mut self.flushing));
        for slot in flushing.drain(..) {
            let entry = &mut self.slots[slot as usize];
            entry.dirty = false;
            let Some(connection) = entry.connection.as_deref_mut() else { continue };
            let flushed = connection.flush(self.now);
            let drained = connection.state.is_draining() && !connection.has_pending() && !connection.wants_write();
            if flushed.is_err() || drained {
                connection.state.kill();
            }
            if connection.state.is_dead() {
                self.dead.push(slot);
                continue;
            }
            let resumed = !connection.is_backlog_full(max_unsent_bytes) && connection.state.resume();
            let events = connection.wanted_events(max_waiting_bytes);
            if events != connection.polled_events {
                connection.polled_events = events;
                let data = EventData::new_u64(slot.into());
                if epoll::modify(&self.poll, &connection.transport, data, events).is_err() {
                    connection.state.kill();
                    self.dead.push(slot);
                }
            }
            if resumed {
                self.mark_ready(slot);
            }
        }
        self.flushing = flushing;
    }
}
