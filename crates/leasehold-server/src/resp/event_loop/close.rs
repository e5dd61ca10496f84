//! Closes connections: dead ones, those past a deadline, and all of them when the server stops.

use std::time::Duration;

use leasehold::clock::Time;
use leasehold::engine::embedded::Stopped;
use rustix::event::epoll;

use super::{EventLoop, command_tag};
use crate::resp::RespConfig;
use crate::resp::codec::reply::ReplyWriter;
use crate::resp::connection::ClientConnection;
use crate::resp::connection::state::{BlockedBy, ConnectionPhase};
use crate::service::Denial;
use crate::service::metrics::AcquireOutcome;

/// How often a shutdown looks whether all connections are closed.
const SHUTDOWN_CHECK_EVERY: Duration = Duration::from_millis(20);

impl EventLoop {
    /// Closes dead connections. Their claims leave the queues, and grants that nobody can learn of are released later.
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
            entry.next_number = connection.next_number();
            self.free.push(slot);
            let _ = epoll::delete(&self.poll, &connection.transport);
            for number in connection.unrepeatable_acquires() {
                self.abandoned.insert(command_tag(slot, number));
            }
            if let BlockedBy::WaitQueue(waiter_id) = connection.state.blocked_by()
                && let Some(engine) = &engine
                && locked.get_or_insert_with(|| engine.lock_for_batch()).cancel(*waiter_id)
            {
                // It left the queue, so no completion will come.
                self.shared.service.metrics.record_refusal(AcquireOutcome::Left);
                self.abandoned.remove(&command_tag(slot, connection.next_number().wrapping_sub(1)));
            }
        }
    }

    /// Kills connections that are past a deadline.
    pub(super) fn check_deadlines(&mut self) {
        let refused_connections = std::mem::take(&mut self.refused_connections);
        if refused_connections > 0 {
            tracing::warn!(turned_away = refused_connections, "too many connections");
        }
        for (slot, entry) in self.slots.iter_mut().enumerate() {
            let Some(connection) = &mut entry.connection else { continue };
            if is_overdue(connection, &self.shared.config, self.now) {
                connection.state.kill();
                self.dead.push(slot as u32);
            }
        }
    }

    /// Stops: no new connections, waiting commands are refused, pending replies are sent. `true` when that is done.
    pub(super) fn shut_down(&mut self) -> bool {
        let since = match self.stopping_since {
            Some(since) => since,
            None => {
                self.begin_shutdown();
                *self.stopping_since.insert(self.now)
            }
        };
        let any_open = self.slots.iter().any(|entry| entry.connection.is_some());
        if !any_open || self.now.since(since) > self.shared.config.farewell {
            self.dead = (0..self.slots.len() as u32).collect();
            self.close_dead();
            return true;
        }
        self.next_deadline_check = self.now.plus(SHUTDOWN_CHECK_EVERY);
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
            connection.state.start_draining();
            let gave_up = match connection.state.unblock() {
                BlockedBy::Nothing | BlockedBy::FullBacklog => false,
                BlockedBy::Task { task, abortable: true } => {
                    task.abort();
                    true
                }
                // The command may have had its effect. Its own reply says so, and comes soon.
                BlockedBy::Task { task, abortable: false } => {
                    connection.state.start_task(task, false);
                    false
                }
                // The claim may be granted at this moment: then it has left the queue, and its completion comes.
                BlockedBy::WaitQueue(waiter_id) => engine
                    .as_ref()
                    .is_some_and(|engine| locked.get_or_insert_with(|| engine.lock_for_batch()).cancel(waiter_id)),
            };
            if gave_up {
                refuse_last_command(connection);
            }
            self.mark_dirty(slot);
        }
        drop(locked);
        self.flush();
        self.close_dead();
    }
}

/// Whether the client sent nothing or half a command for too long, takes no bytes, or waits with a key that was
/// revoked: it must not be granted a lease later.
fn is_overdue(connection: &ClientConnection, config: &RespConfig, now: Time) -> bool {
    let past = |since: Option<Time>, limit: Duration| since.is_some_and(|since| now.since(since) > limit);
    let is_silent = connection.state.phase() == ConnectionPhase::Silent;
    let input_limit = if is_silent { config.first_byte } else { config.command_within };
    let awaits_reply = connection.state.awaits_reply();
    !awaits_reply && past(connection.incomplete_since, input_limit)
        || past(connection.stalled_since, config.write_stall)
        || awaits_reply && connection.is_revoked()
}

/// Replies that the server stops to the command that was given up: the last one.
fn refuse_last_command(connection: &mut ClientConnection) {
    let number = connection.next_number().wrapping_sub(1);
    let denial = Denial::Engine(Stopped::NoEffect("the server is shutting down".into()).into_error("wait"));
    connection.complete(number, |connection, _, out| ReplyWriter::new(out, connection.version).denial(&denial));
}
