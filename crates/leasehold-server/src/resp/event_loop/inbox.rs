//! The queue by which other threads send replies and pushes to connections of one event loop.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedSemaphorePermit;

use super::waker::Waker;

/// Bytes for a connection.
#[derive(Debug)]
pub struct InboxMessage {
    /// Where it is kept.
    pub slot: u32,
    /// Which connection: slots are used again.
    pub id: u64,
    /// The command that this completed; none for a push.
    pub number: Option<u32>,
    /// The reply.
    pub bytes: Vec<u8>,
    /// Nothing more will come, and the connection is to be closed.
    pub last: bool,
    /// Given back when the message was taken: until then whoever writes count writes no more.
    pub _permit: Option<OwnedSemaphorePermit>,
}

/// Letters that wait to be taken.
#[derive(Debug, Default)]
pub struct Inbox {
    messages: Mutex<Vec<InboxMessage>>,
}

impl Inbox {
    /// Leaves a message, and rings.
    pub fn post(&self, message: InboxMessage, waker: &Waker) {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).push(message);
        waker.wake();
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Takes all of them.
    pub fn take(&self) -> Vec<InboxMessage> {
        std::mem::take(&mut *self.messages.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Where pushes go.
#[derive(Clone)]
pub struct ConnectionHandle {
    pub inbox: Arc<Inbox>,
    pub waker: Arc<Waker>,
    pub slot: u32,
    pub id: u64,
}

impl ConnectionHandle {
    /// Sends bytes to the connection.
    pub fn post(&self, number: Option<u32>, bytes: Vec<u8>, last: bool) {
        self.send(number, bytes, last, None);
    }

    pub fn send(&self, number: Option<u32>, bytes: Vec<u8>, last: bool, entry: Option<OwnedSemaphorePermit>) {
        let message = InboxMessage { slot: self.slot, id: self.id, number, bytes, last, _permit: entry };
        self.inbox.post(message, &self.waker);
    }
}
