//! The inbox of an event loop: other threads send replies and pushes for its connections to it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OwnedSemaphorePermit;

use super::waker::Waker;

/// Bytes for a connection.
#[derive(Debug)]
pub struct InboxMessage {
    /// The slot of the connection.
    pub slot: u32,
    /// The connection: its slot may belong to another one by now.
    pub connection_id: u64,
    /// The command that this replies to. None for a push.
    pub number: Option<u32>,
    pub bytes: Vec<u8>,
    /// The connection is to be closed after these bytes.
    pub last: bool,
    /// Returned when the message is dropped, so that its sender sends only so many ahead.
    pub _permit: Option<OwnedSemaphorePermit>,
}

/// Messages that the event loop has not received yet.
#[derive(Debug, Default)]
pub struct Inbox {
    messages: Mutex<Vec<InboxMessage>>,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Vec<InboxMessage>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Receives every message.
    pub fn take_all(&self) -> Vec<InboxMessage> {
        std::mem::take(&mut *self.lock())
    }
}

/// Sends to one connection from any thread.
#[derive(Clone)]
pub struct ConnectionHandle {
    pub inbox: Arc<Inbox>,
    pub waker: Arc<Waker>,
    pub slot: u32,
    pub connection_id: u64,
}

impl ConnectionHandle {
    /// Sends the reply to a command.
    pub fn send_reply(&self, number: u32, bytes: Vec<u8>) {
        self.send(Some(number), bytes, false, None);
    }

    /// Sends a push. The permit is returned when the event loop has received it.
    pub fn send_push(&self, bytes: Vec<u8>, permit: Option<OwnedSemaphorePermit>) {
        self.send(None, bytes, false, permit);
    }

    /// Sends a push after which the connection is closed.
    pub fn send_last(&self, bytes: Vec<u8>) {
        self.send(None, bytes, true, None);
    }

    fn send(&self, number: Option<u32>, bytes: Vec<u8>, last: bool, permit: Option<OwnedSemaphorePermit>) {
        let (slot, connection_id) = (self.slot, self.connection_id);
        self.inbox.lock().push(InboxMessage { slot, connection_id, number, bytes, last, _permit: permit });
        self.waker.wake();
    }
}
