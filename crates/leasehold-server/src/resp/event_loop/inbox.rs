//! The queue by which other threads send replies and pushes to connections of one event loop.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedSemaphorePermit;

use super::waker::Bell;

/// Bytes for a connection.
#[derive(Debug)]
pub struct Letter {
    /// Where it is kept.
    pub slot: u32,
    /// Which connection: slots are used again.
    pub id: u64,
    /// The command that this answers; none for a push.
    pub number: Option<u32>,
    /// The reply.
    pub bytes: Vec<u8>,
    /// Nothing more will come, and the connection is to be closed.
    pub last: bool,
    /// Given back when the letter was taken: until then whoever writes many writes no more.
    pub _place: Option<OwnedSemaphorePermit>,
}

/// Letters that wait to be taken.
#[derive(Debug, Default)]
pub struct Mailbox {
    letters: Mutex<Vec<Letter>>,
}

impl Mailbox {
    /// Leaves a letter, and rings.
    pub fn post(&self, letter: Letter, bell: &Bell) {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner).push(letter);
        bell.ring();
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Takes all of them.
    pub fn take(&self) -> Vec<Letter> {
        std::mem::take(&mut *self.letters.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Where pushes go.
#[derive(Clone)]
pub struct Outlet {
    pub mailbox: Arc<Mailbox>,
    pub bell: Arc<Bell>,
    pub slot: u32,
    pub id: u64,
}

impl Outlet {
    /// Sends bytes to the connection.
    pub fn post(&self, number: Option<u32>, bytes: Vec<u8>, last: bool) {
        self.send(number, bytes, last, None);
    }

    pub fn send(&self, number: Option<u32>, bytes: Vec<u8>, last: bool, place: Option<OwnedSemaphorePermit>) {
        let letter = Letter { slot: self.slot, id: self.id, number, bytes, last, _place: place };
        self.mailbox.post(letter, &self.bell);
    }
}
