//! Where replies go when their batch is durable: to one waiting caller, or to the queue of a thread that serves many.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use leasehold_core::{LeaseKey, Reply};
use tokio::sync::oneshot;

use super::super::errors::{no_effect, unknown_outcome};
use crate::error::Error;

/// The engine stopped before it could reply.
#[derive(Clone, Debug)]
pub enum Stopped {
    /// The command had no effect.
    NoEffect(Arc<str>),
    /// The facts of the command may or may not be on the disk.
    Unknown(Arc<str>),
}

impl Stopped {
    /// The error for the caller.
    pub fn into_error(self, attempt: &str) -> Error {
        match self {
            Self::NoEffect(sentence) => no_effect(attempt.to_owned(), &sentence),
            Self::Unknown(sentence) => unknown_outcome(attempt.to_owned(), &sentence),
        }
    }
}

/// Where the reply to one command goes.
pub enum ReplyTo {
    /// To one caller, which awaits this reply alone.
    Caller {
        to: oneshot::Sender<Result<Reply, Stopped>>,
        /// The claim has a request id: if its caller is gone, a retry may come for the lease.
        retried: bool,
    },
    /// To the queue of a thread that serves many connections.
    CompletionQueue { completions: Arc<CompletionQueue>, tag: u64 },
}

impl ReplyTo {
    /// Discards the reply.
    pub fn nowhere() -> Self {
        Self::Caller { to: oneshot::channel().0, retried: true }
    }

    /// Sends the reply. Returns the lease of a grant whose caller is gone and will not retry: it must be released.
    pub fn send(self, reply: Result<Reply, Stopped>, batcher: &mut CompletionBatcher) -> Option<LeaseKey> {
        match self {
            Self::Caller { to, retried } => match to.send(reply) {
                Err(Ok(Reply::Granted(granted))) if !retried && !granted.repeated => Some(granted.lease),
                _ => None,
            },
            Self::CompletionQueue { completions, tag } => {
                batcher.add(completions, tag, reply);
                None
            }
        }
    }
}

/// The replies for one thread that serves many connections, each with the tag of its command.
pub struct CompletionQueue {
    replies: Mutex<Vec<(u64, Result<Reply, Stopped>)>>,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue").finish_non_exhaustive()
    }
}

impl CompletionQueue {
    /// An empty queue. `wake` is called from another thread after replies were added; it must not block.
    #[must_use]
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { replies: Mutex::new(Vec::new()), wake: Box::new(wake) })
    }

    /// Adds the replies of a whole batch under one lock, with one wake-up.
    fn add_all(&self, batch: &mut Vec<(u64, Result<Reply, Stopped>)>) {
        if !batch.is_empty() {
            self.replies.lock().unwrap_or_else(PoisonError::into_inner).append(batch);
            (self.wake)();
        }
    }

    /// Whether the queue holds no reply.
    pub fn is_empty(&self) -> bool {
        self.replies.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Takes all replies, and leaves the empty vector for the next ones.
    pub fn take(&self, empty: &mut Vec<(u64, Result<Reply, Stopped>)>) {
        debug_assert!(empty.is_empty());
        std::mem::swap(&mut *self.replies.lock().unwrap_or_else(PoisonError::into_inner), empty);
    }
}

/// Collects the replies of a batch, so that each [`CompletionQueue`] is locked and woken once for it.
#[derive(Default)]
pub struct CompletionBatcher {
    completions: Option<Arc<CompletionQueue>>,
    replies: Vec<(u64, Result<Reply, Stopped>)>,
}

impl CompletionBatcher {
    fn add(&mut self, completions: Arc<CompletionQueue>, tag: u64, reply: Result<Reply, Stopped>) {
        if self.completions.as_ref().is_none_or(|other| !Arc::ptr_eq(other, &completions)) {
            self.flush();
            self.completions = Some(completions);
        }
        self.replies.push((tag, reply));
    }

    fn flush(&mut self) {
        if let Some(completions) = self.completions.take() {
            completions.add_all(&mut self.replies);
        }
    }
}

impl Drop for CompletionBatcher {
    fn drop(&mut self) {
        self.flush();
    }
}
