//! One command of one caller: submitted, and awaited until it is durable.

use std::sync::Arc;

use leasehold_core::{Book, Command, Reply, WaiterId};
use tokio::sync::oneshot;

use super::super::errors::{no_effect, unknown_outcome};
use super::completion::{ReplyTo, Stopped};
use super::shared::EngineShared;
use crate::engine::AttemptText;
use crate::error::Error;

/// A command that was given to the engine.
pub enum SubmittedCommand<'a> {
    /// Decided, and all that the reply rests on is durable.
    Replied(Reply),
    /// The claim waits in a queue, or its batch is on its way to the disk.
    Pending(PendingReply<'a>),
    /// The engine takes no commands.
    Stopped(Arc<str>),
}

/// A reply that is awaited. Dropping it leaves the queue, or releases the grant that nobody will see.
pub struct PendingReply<'a> {
    shared: &'a EngineShared,
    waiter_id: WaiterId,
    from: oneshot::Receiver<Result<Reply, Stopped>>,
    retried: bool,
    done: bool,
}

/// Decides a command; `retried` if its caller may come again for the reply.
pub fn submit_command<'c>(
    shared: &EngineShared,
    retried: bool,
    build: impl FnOnce(WaiterId) -> Command<'c>,
) -> SubmittedCommand<'_> {
    let now = shared.clock.now();
    let mut state = shared.lock();
    if let Some(sentence) = state.lifecycle.refusal() {
        return SubmittedCommand::Stopped(sentence.into());
    }
    let waiter_id = state.group.new_waiter_id();
    let mut receiver = None;
    let reply_to = || {
        let (to, from) = oneshot::channel();
        receiver = Some(from);
        ReplyTo::Caller { to, retried }
    };
    let reply = state.group.submit(build(waiter_id), reply_to, now);
    shared.wake_writer_for_work(state);
    match (reply, receiver) {
        (Some(reply), _) => SubmittedCommand::Replied(reply),
        (None, Some(from)) => SubmittedCommand::Pending(PendingReply { shared, waiter_id, from, retried, done: false }),
        (None, None) => unreachable!("a reply comes now or later"),
    }
}

/// Reads the book, and waits until all that the book knew at that moment is durable.
pub async fn read_durable<T>(
    shared: &EngineShared,
    attempt: AttemptText<'_>,
    read: impl FnOnce(&Book) -> T,
) -> Result<T, Error> {
    let (value, receiver) = {
        let mut state = shared.lock();
        if let Some(sentence) = state.lifecycle.refusal() {
            return Err(no_effect(attempt(), sentence));
        }
        let value = read(&state.group.book);
        let mut receiver = None;
        state.group.reply_when_durable(Reply::Ticked(false), || {
            let (to, from) = oneshot::channel();
            receiver = Some(from);
            ReplyTo::Caller { to, retried: true }
        });
        shared.wake_writer_for_work(state);
        (value, receiver)
    };
    if let Some(receiver) = receiver {
        match receiver.await {
            Ok(Ok(_)) => {}
            // A read changes nothing, whatever became of what it read.
            Ok(Err(Stopped::NoEffect(sentence) | Stopped::Unknown(sentence))) => {
                return Err(no_effect(attempt(), &sentence));
            }
            Err(_) => return Err(no_effect(attempt(), "the engine went away")),
        }
    }
    Ok(value)
}

impl SubmittedCommand<'_> {
    /// Waits for the reply.
    pub async fn reply(self, attempt: AttemptText<'_>) -> Result<Reply, Error> {
        let mut pending = match self {
            Self::Replied(reply) => return Ok(reply),
            Self::Stopped(sentence) => return Err(no_effect(attempt(), &sentence)),
            Self::Pending(pending) => pending,
        };
        let reply = (&mut pending.from).await;
        pending.done = true;
        match reply {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(stopped)) => Err(stopped.into_error(&attempt())),
            Err(_) => Err(unknown_outcome(attempt(), "the engine went away")),
        }
    }
}

impl Drop for PendingReply<'_> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let mut state = self.shared.lock();
        let now = self.shared.clock.now();
        if !state.group.cancel(self.waiter_id, now) {
            // Decided already. If the reply is not here yet, the journal writer finds the channel closed and releases.
            self.from.close();
            if let Ok(Ok(Reply::Granted(granted))) = self.from.try_recv()
                && !self.retried
                && !granted.repeated
            {
                state.release_unseen(granted.lease, now);
            }
        }
        self.shared.wake_writer_for_work(state);
    }
}
