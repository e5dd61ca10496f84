//! How the engine is opened, and the notices for its operator.

use std::fmt;
use std::sync::Arc;

use leasehold_core::Limits;

use super::journal::JournalSizes;
use crate::clock::{Clock, SystemClock};

/// How the engine is opened.
#[derive(Clone)]
pub struct Options {
    /// The machine's clock.
    pub clock: Arc<dyn Clock>,
    /// Limits on claims.
    pub limits: Limits,
    /// Called with what an operator should know: a tail that was cut, a snapshot that failed.
    pub notices: Arc<dyn Fn(Notice) + Send + Sync>,
    /// Bytes of recent events that are kept for watchers; with zero the engine cannot be watched.
    pub news_bytes: usize,
    #[doc(hidden)]
    pub sizes: JournalSizes,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            clock: SystemClock::shared(),
            limits: Limits::default(),
            notices: Arc::new(|_| {}),
            news_bytes: 1 << 20,
            sizes: JournalSizes::default(),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// What an operator should know.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// A crash left part of a batch that was never acknowledged; it was cut off.
    Cut {
        /// The journal segment.
        file: String,
        /// Where the record ends.
        offset: u64,
        /// How many bytes were cut off.
        bytes: u64,
    },
    /// The maintenance thread could not write a snapshot or prepare a segment; it will try again.
    Delayed(String),
    /// The disk failed, and the engine has stopped.
    Failed(String),
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cut { file, offset, bytes } => {
                write!(f, "recovery left behind {bytes} bytes of an unfinished batch in {file} at offset {offset}")
            }
            Self::Delayed(cause) => write!(f, "journal upkeep failed and will be tried again: {cause}"),
            Self::Failed(cause) => write!(f, "the engine stopped because the disk failed: {cause}"),
        }
    }
}
