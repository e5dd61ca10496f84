//! What clients are answered: when it is durable, in the order they asked, and as fast as they take it.

use leasehold_core::Reply as Decided;
use rustix::event::epoll::{self, EventData};

use super::EventLoop;
use crate::resp::codec::reply::Reply;
use crate::resp::command::inline as fast;
use crate::resp::connection::Blocked;
use crate::service::Denial;

impl EventLoop {
    /// Writes the replies of a batch that is durable.
    pub(super) fn take_answers(&mut self) {
        let mut answers = std::mem::take(&mut self.answers);
        self.completions.take(&mut answers);
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
            let mut locked = engine.lock_for_batch();
            for lease in unheard {
                locked.release_unseen(lease);
            }
        }
    }

    pub(super) fn take_mail(&mut self) {
        for letter in self.mailbox.take() {
            let slot = letter.slot;
            let backlog = self.shared.config.backlog;
            let Some(connection) = self.connection(slot).filter(|connection| connection.id == letter.id) else {
                continue;
            };
            match letter.number {
                Some(number) => {
                    if letter.bytes.starts_with(b"-") {
                        connection.no_watch(number);
                    }
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
    pub(super) fn flush(&mut self) {
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
            let needs = connection.needs(limit);
            if needs != connection.asks {
                connection.asks = needs;
                if epoll::modify(&self.poll, &connection.transport, EventData::new_u64(slot.into()), needs).is_err() {
                    connection.dead = true;
                    self.dead.push(slot);
                }
            }
        }
        self.sending = sending;
    }
}
