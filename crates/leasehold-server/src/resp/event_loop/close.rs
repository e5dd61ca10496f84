//! How connections end: by themselves, cut off, or because the server stops.

use std::time::Duration;

use leasehold::clock::Time;
use leasehold::engine::embedded::Stopped;
use rustix::event::epoll;

use super::{EventLoop, tag};
use crate::resp::codec::reply::ReplyWriter;
use crate::resp::connection::Blocked;
use crate::service::Denial;
use crate::service::metrics::Outcome;

impl EventLoop {
    /// Closes what is to be closed: the line is left, and grants that nobody heard of are ended.
    pub(super) fn close_dead(&mut self) {
        let dead = std::mem::take(&mut self.dead);
        if dead.is_empty() {
            return;
        }
        let engine = self.engine.clone();
        let mut locked = None;
        for slot in dead {
            let entry = &mut self.slots[slot as usize];
            let Some(connection) = entry.connection.take() else { continue };
            entry.next = connection.next_number();
            self.free.push(slot);
            let _ = epoll::delete(&self.poll, &connection.transport);
            for number in connection.unseen() {
                self.abandoned.insert(tag(slot, number));
            }
            if let Some(Blocked::InLine(waiter_id)) = connection.blocked
                && let Some(engine) = &engine
                && locked.get_or_insert_with(|| engine.lock_for_batch()).cancel(waiter_id)
            {
                // It left the line, and no answer will come.
                self.shared.service.metrics.refused(Outcome::Left);
                self.abandoned.remove(&tag(slot, connection.next_number().wrapping_sub(1)));
            }
        }
    }

    /// Cuts off those who begin a command and do not end it, those who take no bytes, and those who wait without a right.
    pub(super) fn check_deadlines(&mut self) {
        let refused_connections = std::mem::take(&mut self.refused_connections);
        if refused_connections > 0 {
            tracing::warn!(turned_away = refused_connections, "too many connections");
        }
        let config = &self.shared.config;
        for (slot, entry) in self.slots.iter_mut().enumerate() {
            let Some(connection) = &mut entry.connection else { continue };
            let over = |since: Option<Time>, most: Duration| since.is_some_and(|since| self.now.since(since) > most);
            let within = if connection.silent { config.first_byte } else { config.command_within };
            if over(connection.waiting_since, within) && connection.blocked.is_none()
                || over(connection.stalled_since, config.write_stall)
                // Who waits in the name of a key that was revoked leaves the line: it must not be handed a lease later.
                || connection.blocked.is_some() && connection.is_revoked()
            {
                connection.dead = true;
                self.dead.push(slot as u32);
            }
        }
    }

    /// The server stops: nobody new, those in line are told, what is pending leaves. `true` when that is done.
    pub(super) fn shut_down(&mut self) -> bool {
        let since = match self.stopping_since {
            Some(since) => since,
            None => {
                self.begin_shutdown();
                *self.stopping_since.insert(self.now)
            }
        };
        let left = self.slots.iter().any(|entry| entry.connection.is_some());
        if !left || self.now.since(since) > self.shared.config.farewell {
            self.dead = (0..self.slots.len() as u32).collect();
            self.close_dead();
            return true;
        }
        self.next_deadline_check = self.now.plus(Duration::from_millis(20));
        false
    }

    fn begin_shutdown(&mut self) {
        if let Some(listener) = self.listener.take() {
            let _ = epoll::delete(&self.poll, &listener);
        }
        let engine = self.engine.clone();
        let mut locked = None;
        for slot in 0..self.slots.len() as u32 {
            let entry = &mut self.slots[slot as usize];
            let Some(connection) = entry.connection.as_deref_mut() else { continue };
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
                Some(Blocked::InLine(waiter_id)) => engine
                    .as_ref()
                    .is_some_and(|engine| locked.get_or_insert_with(|| engine.lock_for_batch()).cancel(waiter_id)),
            };
            if told {
                let number = connection.next_number().wrapping_sub(1);
                let denial = Denial::Engine(Stopped::NoEffect("the server is shutting down".into()).into_error("wait"));
                connection.settle(number, |from, _, out| ReplyWriter::new(out, from.version).denial(&denial));
            }
            self.mark_dirty(slot);
        }
        drop(locked);
        self.flush();
        self.close_dead();
    }
}
