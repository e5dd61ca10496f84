//! How connections end: by themselves, cut off, or because the server stops.

use std::time::Duration;

use leasehold::clock::Time;
use leasehold::engine::embedded::Stopped;
use rustix::event::epoll;

use super::{EventLoop, tag};
use crate::resp::codec::reply::Reply;
use crate::resp::connection::Blocked;
use crate::service::Denial;
use crate::service::metrics::Outcome;

impl EventLoop {
    /// Closes what is to be closed: the line is left, and grants that nobody heard of are ended.
    pub(super) fn reap(&mut self) {
        let dead = std::mem::take(&mut self.dead);
        if dead.is_empty() {
            return;
        }
        let engine = self.engine.clone();
        let mut locked = None;
        for slot in dead {
            let place = &mut self.places[slot as usize];
            let Some(connection) = place.connection.take() else { continue };
            place.next = connection.next_number();
            self.free.push(slot);
            let _ = epoll::delete(&self.poll, &connection.transport);
            for number in connection.unheard() {
                self.orphans.insert(tag(slot, number));
            }
            if let Some(Blocked::InLine(waiter_id)) = connection.blocked
                && let Some(engine) = &engine
                && locked.get_or_insert_with(|| engine.lock_for_batch()).cancel(waiter_id)
            {
                // It left the line, and no answer will come.
                self.shared.service.metrics.refused(Outcome::Left);
                self.orphans.remove(&tag(slot, connection.next_number().wrapping_sub(1)));
            }
        }
    }

    /// Cuts off those who begin a command and do not end it, those who take no bytes, and those who wait without a right.
    pub(super) fn look_after(&mut self) {
        let turned_away = std::mem::take(&mut self.turned_away);
        if turned_away > 0 {
            tracing::warn!(turned_away, "too many connections");
        }
        let config = &self.shared.config;
        for (slot, place) in self.places.iter_mut().enumerate() {
            let Some(connection) = &mut place.connection else { continue };
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

    /// The server stops: nobody new, those in line are told, what is owed leaves. `true` when that is done.
    pub(super) fn say_goodbye(&mut self) -> bool {
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
        let mut locked = None;
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
                Some(Blocked::InLine(waiter_id)) => engine
                    .as_ref()
                    .is_some_and(|engine| locked.get_or_insert_with(|| engine.lock_for_batch()).cancel(waiter_id)),
            };
            if told {
                let number = connection.next_number().wrapping_sub(1);
                let denial = Denial::Engine(Stopped::NoEffect("the server is shutting down".into()).into_error("wait"));
                connection.settle(number, |from, _, out| Reply::new(out, from.protocol).denial(&denial));
            }
            self.mark_dirty(slot);
        }
        drop(locked);
        self.flush();
        self.reap();
    }
}
