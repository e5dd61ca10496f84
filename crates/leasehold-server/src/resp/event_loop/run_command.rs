//! Runs one command of one connection: at once, under the lock of the embedded engine, or in a tokio task.

use std::sync::Arc;

use leasehold::engine::embedded::{Embedded, LockedEngine};

use super::inbox::ConnectionHandle;
use super::{EventLoop, command_tag};
use crate::resp::codec::frame::CommandArgs;
use crate::resp::codec::reply::ReplyWriter;
use crate::resp::command::connection::ConnectionCommand;
use crate::resp::command::inline::{InlineContext, InlineOutcome, ReplyShape};
use crate::resp::command::{CommandError, Dispatcher, InlineCall, OwnedCall, ServiceCall, spawned, table};
use crate::resp::connection::ClientConnection;
use crate::resp::watch::{WatchCommand, WatchTask};
use crate::service::Service;

const AUTHENTICATION_REQUIRED: (&str, &str) = ("NOAUTH", "Authentication required: AUTH key");
const MULTI_WAS_REFUSED: (&str, &str) = ("INVALID", "not done: MULTI was refused (DISCARD ends it)");

/// What it takes to run one command.
pub(super) struct CommandRunner<'r, 'e> {
    pub event_loop: &'r mut EventLoop,
    pub slot: u32,
    pub connection: &'r mut ClientConnection,
    /// None if the engine is not embedded.
    pub engine: Option<&'e Arc<Embedded>>,
    /// The engine's lock. The first inline command of a round takes it, and the round's end returns it.
    pub locked: &'r mut Option<LockedEngine<'e>>,
}

impl CommandRunner<'_, '_> {
    /// Parses the command, and runs it or replies why not.
    pub fn run(self, args: CommandArgs<'_>) {
        let Self { event_loop, slot, connection, engine, locked } = self;
        let runner = CommandRunner { event_loop, slot, connection: &mut *connection, engine, locked };
        if let Err(error) = table::dispatch(runner, args) {
            write_command_error(connection, &error);
        }
    }

    /// Replies to a call that may not run now, whatever it asks for. Returns whether it did.
    fn refuse_call(&mut self) -> bool {
        let refusal = call_refusal(self.connection);
        if let Some((word, sentence)) = refusal {
            write_reply(self.connection, |reply| reply.error(word, sentence));
        }
        refusal.is_some()
    }

    /// Adds the bytes of a complete reply to the connection.
    fn add_reply(self, reply: Vec<u8>) {
        match self.connection.direct_output() {
            Some(out) => {
                out.extend_from_slice(&reply);
                self.connection.count_direct_reply();
            }
            None => self.connection.push_written(reply.clone()),
        }
        self.event_loop.reply = reply;
    }

    /// The buffer for one reply, empty. [`Self::add_reply`] returns it.
    fn reply_buffer(&mut self) -> Vec<u8> {
        let mut reply = std::mem::take(&mut self.event_loop.reply);
        reply.clear();
        reply
    }

    fn handle(&self) -> ConnectionHandle {
        ConnectionHandle {
            inbox: self.event_loop.inbox.clone(),
            waker: self.event_loop.waker.clone(),
            slot: self.slot,
            connection_id: self.connection.id,
        }
    }

    /// Runs the call in a task. No further command of the connection runs before its reply.
    fn spawn<'a, C: ServiceCall<'a>>(self, call: C) {
        let Some(caller) = self.connection.caller.clone() else { return };
        let call = call.into_owned(&self.connection.holder);
        let (service, version) = (self.event_loop.shared.service.clone(), self.connection.version);
        let (handle, number) = (self.handle(), self.connection.next_number());
        let task = self.event_loop.shared.runtime.spawn(async move {
            handle.send_reply(number, spawned::execute(service, caller, call, version).await);
        });
        self.connection.push_undecided(ReplyShape::FromTask);
        self.connection.state.start_task(task.abort_handle(), C::Owned::ABORTABLE);
    }
}

impl Dispatcher for CommandRunner<'_, '_> {
    fn connection(mut self, command: ConnectionCommand<'_>) {
        if self.connection.caller.is_none() && !command.runs_before_auth() {
            let (word, sentence) = AUTHENTICATION_REQUIRED;
            return write_reply(self.connection, |reply| reply.error(word, sentence));
        }
        let mut reply = self.reply_buffer();
        command.execute(&self.event_loop.shared.service, self.connection, &mut reply);
        self.add_reply(reply);
    }

    fn inline<'a>(mut self, call: impl InlineCall<'a>) {
        if self.refuse_call() {
            return;
        }
        let Some(engine) = self.engine else { return self.spawn(call) };
        let Some(caller) = &self.connection.caller else { return };
        // Names are collected only if one of them may be out of bounds.
        let unrestricted = caller.principal.prefixes.is_empty() && !call.names().any(Service::is_reserved);
        let names: Vec<&str> = if unrestricted { Vec::new() } else { call.names().collect() };
        let pass = match self.event_loop.shared.service.authorize(caller, call.verb(), &names) {
            Ok(pass) => pass,
            Err(denial) => return write_reply(self.connection, |reply| reply.denial(&denial)),
        };
        debug_assert_eq!(pass.verb(), call.verb());
        let mut reply = self.reply_buffer();
        let outcome = call.decide(&mut InlineContext {
            _pass: &pass,
            service: &self.event_loop.shared.service,
            engine: self.locked.get_or_insert_with(|| engine.lock_for_batch()),
            completions: &self.event_loop.completions,
            tag: command_tag(self.slot, self.connection.next_number()),
            now: self.event_loop.now,
            connection: self.connection,
            out: &mut reply,
        });
        match outcome {
            InlineOutcome::Written => return self.add_reply(reply),
            InlineOutcome::InBatch(shape) => {
                self.event_loop.awaiting_sync += 1;
                self.connection.push_undecided(shape);
            }
            InlineOutcome::InQueue(shape, waiter_id) => {
                self.connection.push_undecided(shape);
                self.connection.state.enter_wait_queue(waiter_id);
            }
        }
        self.event_loop.reply = reply;
    }

    fn spawned<'a>(mut self, call: impl ServiceCall<'a>) {
        if !self.refuse_call() {
            self.spawn(call);
        }
    }

    fn watch(mut self, call: WatchCommand<'_>) {
        if self.refuse_call() {
            return;
        }
        let Some(caller) = self.connection.caller.clone() else { return };
        if self.connection.watch.is_some() {
            return write_reply(self.connection, |reply| reply.invalid("this connection watches already"));
        }
        let task = WatchTask {
            service: self.event_loop.shared.service.clone(),
            caller,
            prefix: call.prefix.into(),
            since: call.since,
            version: self.connection.version,
            handle: self.handle(),
            number: self.connection.next_number(),
        };
        let task = self.event_loop.shared.runtime.spawn(task.run()).abort_handle();
        self.connection.start_watch(task.clone());
        self.connection.push_undecided(ReplyShape::FromTask);
        self.connection.state.start_task(task, true);
    }
}

/// Why no call of this connection may run now: the word and the sentence of the error reply.
fn call_refusal(connection: &ClientConnection) -> Option<(&'static str, &'static str)> {
    if connection.caller.is_none() {
        Some(AUTHENTICATION_REQUIRED)
    } else if connection.in_refused_multi {
        Some(MULTI_WAS_REFUSED)
    } else {
        None
    }
}

/// Replies to a command that cannot run as it is written. A client without a key learns only that it needs one.
fn write_command_error(connection: &mut ClientConnection, error: &CommandError) {
    let (word, sentence) = call_refusal(connection).unwrap_or((error.word, &error.sentence));
    write_reply(connection, |reply| reply.error(word, sentence));
}

/// Writes a reply behind those that are pending.
pub(super) fn write_reply(connection: &mut ClientConnection, write: impl FnOnce(&mut ReplyWriter<'_>)) {
    let version = connection.version;
    if let Some(out) = connection.direct_output() {
        write(&mut ReplyWriter::new(out, version));
        connection.count_direct_reply();
    } else {
        let mut bytes = Vec::new();
        write(&mut ReplyWriter::new(&mut bytes, version));
        connection.push_written(bytes);
    }
}
