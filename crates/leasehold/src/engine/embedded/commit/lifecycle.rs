//! Whether the engine takes commands and writes batches: one value, under the lock of the book.
//!
//! ```text
//!   Running ──stop──▶ Stopping ──▶ Ended
//!      │                 │           ▲
//!      ├──fail───────────┴▶ Failed ──┤   a write or a sync failed
//!      └──doubt────────────▶ InDoubt ┘   a panic, perhaps in the middle of a change to the book
//! ```
//!
//! # Laws
//!
//! 1. Commands are taken while Running only. Batches are written while Running or Stopping only.
//! 2. No way leads back: from Failed, InDoubt and Ended nothing is ever written again.
//! 3. The first reason is kept: a later failure does not hide it.
//!
//! # What cannot be written down any more
//!
//! These were four flags (stopped, stopping, failed, in doubt), set one by one. Two wrong combinations can no longer be
//! written down. In doubt, and commands still taken: they were decided on a book that may be half changed. Ended, and
//! batches still written: they would follow the closing frame. Now each state answers both questions.

use std::io;
use std::sync::Arc;

use super::super::errors::BUG_IN_ENGINE;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Lifecycle {
    /// Commands are taken, batches are written.
    #[default]
    Running,
    /// No command is taken. The writer thread writes what was gathered, then closes the journal.
    Stopping,
    /// A write or a sync failed. The writer thread tells everybody who waits.
    Failed {
        /// The error of the disk.
        cause: Arc<str>,
        /// What new callers are told.
        sentence: Arc<str>,
    },
    /// A panic may have left the book half changed. The writer thread tells everybody who waits.
    InDoubt,
    /// The writer thread has ended: closed in good order, or after a failure.
    Ended {
        /// What new callers are told.
        sentence: Arc<str>,
    },
}

const CLOSED: &str = "the engine is closed";

impl Lifecycle {
    /// What the caller of a new command is told: the command had no effect. None while commands are taken.
    pub fn refusal(&self) -> Option<&str> {
        match self {
            Self::Running => None,
            Self::Stopping => Some(CLOSED),
            Self::InDoubt => Some("the engine stopped because of a bug in it"),
            Self::Failed { sentence, .. } | Self::Ended { sentence } => Some(sentence),
        }
    }

    /// Whether a batch may be written.
    pub const fn may_write(&self) -> bool {
        matches!(self, Self::Running | Self::Stopping)
    }

    /// Fails with the reason why no batch may be written.
    ///
    /// # Errors
    ///
    /// The error of the disk, or that there was a bug.
    pub fn check_writable(&self) -> io::Result<()> {
        match self {
            Self::Running | Self::Stopping => Ok(()),
            Self::InDoubt => Err(io::Error::other(BUG_IN_ENGINE)),
            Self::Failed { cause: reason, .. } | Self::Ended { sentence: reason } => {
                Err(io::Error::other(reason.to_string()))
            }
        }
    }

    /// Whether the writer thread may close the journal, once nothing is left to write.
    pub const fn may_close(&self) -> bool {
        matches!(self, Self::Stopping)
    }

    /// The engine is asked to close.
    pub fn stop(&mut self) {
        if *self == Self::Running {
            *self = Self::Stopping;
        }
    }

    /// A write or a sync failed.
    pub fn fail(&mut self, error: &io::Error) {
        if self.may_write() {
            *self = Self::Failed { cause: error.to_string().into(), sentence: failed_sentence(error) };
        }
    }

    /// A panic may have left the book half changed.
    pub fn doubt(&mut self) {
        if self.may_write() {
            *self = Self::InDoubt;
        }
    }

    /// The writer thread ends, after it closed the journal or could not. Returns what everybody who waits is told.
    pub fn end(&mut self, closed: &io::Result<()>) -> Arc<str> {
        let sentence = match closed {
            Ok(()) => CLOSED.into(),
            Err(error) => failed_sentence(error),
        };
        *self = Self::Ended { sentence: Arc::clone(&sentence) };
        sentence
    }
}

fn failed_sentence(error: &io::Error) -> Arc<str> {
    format!("the engine stopped because the disk failed: {error}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk_error() -> io::Error {
        io::Error::other("no more disk")
    }

    fn state(change: impl FnOnce(&mut Lifecycle)) -> Lifecycle {
        let mut state = Lifecycle::default();
        change(&mut state);
        state
    }

    fn failed() -> Lifecycle {
        state(|state| state.fail(&disk_error()))
    }

    fn ended() -> Lifecycle {
        state(|state| drop(state.end(&Ok(()))))
    }

    fn all() -> [Lifecycle; 5] {
        [Lifecycle::Running, Lifecycle::Stopping, failed(), Lifecycle::InDoubt, ended()]
    }

    /// Goal: each state answers each question of the engine as the law says.
    #[test]
    fn each_state_answers_what_it_allows() {
        // Takes commands, writes batches, may close the journal.
        let allowed = all().map(|state| (state.refusal().is_none(), state.may_write(), state.may_close()));
        let expected = [
            (true, true, false),
            (false, true, true),
            (false, false, false),
            (false, false, false),
            (false, false, false),
        ];
        assert_eq!(allowed, expected);
        for state in all() {
            assert_eq!(state.check_writable().is_ok(), state.may_write(), "{state:?}");
            assert!(state.may_write() || state.refusal().is_some(), "{state:?} takes commands that nobody writes");
        }
    }

    /// Goal: closing keeps what was gathered, and does not undo a failure.
    #[test]
    fn a_stop_changes_a_running_engine_only() {
        let after = all().map(|mut state| {
            state.stop();
            state
        });
        assert_eq!(after, [Lifecycle::Stopping, Lifecycle::Stopping, failed(), Lifecycle::InDoubt, ended()]);
    }

    /// Goal: a failed disk stops an engine that runs or closes, with the sentence operators look for.
    #[test]
    fn a_failure_ends_all_writing_and_is_told() {
        let after = all().map(|mut state| {
            state.fail(&disk_error());
            state
        });
        assert_eq!(after, [failed(), failed(), failed(), Lifecycle::InDoubt, ended()]);
        assert_eq!(failed().refusal(), Some("the engine stopped because the disk failed: no more disk"));
        assert_eq!(failed().check_writable().unwrap_err().to_string(), "no more disk");
    }

    /// Goal: of two failures the first is told.
    #[test]
    fn the_first_failure_is_kept() {
        let mut twice = failed();
        twice.fail(&io::Error::other("an earlier write failed"));
        assert_eq!(twice, failed());
        twice.doubt();
        assert_eq!(twice, failed());
    }

    /// Goal: after a panic no command is taken and nothing is written, and a disk that fails later changes nothing.
    #[test]
    fn a_panic_ends_commands_and_writing() {
        let after = all().map(|mut state| {
            state.doubt();
            state
        });
        assert_eq!(after, [Lifecycle::InDoubt, Lifecycle::InDoubt, failed(), Lifecycle::InDoubt, ended()]);
        assert_eq!(Lifecycle::InDoubt.refusal(), Some("the engine stopped because of a bug in it"));
        assert_eq!(Lifecycle::InDoubt.check_writable().unwrap_err().to_string(), "a bug in the engine");
    }

    /// Goal: every state ends, and after the end nothing follows the closing frame.
    #[test]
    fn the_end_is_final() {
        for mut state in all() {
            assert_eq!(&*state.end(&Err(disk_error())), "the engine stopped because the disk failed: no more disk");
            let end = state.clone();
            state.stop();
            state.fail(&io::Error::other("later"));
            state.doubt();
            assert_eq!(state, end);
            assert!(!state.may_write() && !state.may_close());
        }
        assert_eq!(ended().refusal(), Some("the engine is closed"));
    }
}
