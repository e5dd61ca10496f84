//! What an engine finds when it is examined: which settings keep it from which promises.

use std::fmt;
use std::str::FromStr;

use super::Promises;

/// One of the five things an engine can swear to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Promise {
    /// An acknowledged answer survives a crash of the engine.
    Durable,
    /// Tokens rise with every grant and never come twice.
    Fencing,
    /// Waiters are served in order of arrival.
    Fair,
    /// Nothing lapses before its time.
    NeverEarly,
    /// A lease outlives the process that took it, for its ttl.
    OutlivesProcess,
}

impl Promise {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Self; 5] = [Self::Durable, Self::Fencing, Self::Fair, Self::NeverEarly, Self::OutlivesProcess];

    /// The word for it, as in `doctor --need` and in JSON.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Durable => "durable",
            Self::Fencing => "fencing",
            Self::Fair => "fair",
            Self::NeverEarly => "never_early",
            Self::OutlivesProcess => "outlives_process",
        }
    }
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// The text names no promise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the promises are durable, fencing, fair, never_early and outlives_process")]
pub struct NotAPromise;

impl FromStr for Promise {
    type Err = NotAPromise;

    fn from_str(text: &str) -> Result<Self, NotAPromise> {
        Self::ALL.into_iter().find(|promise| promise.word() == text).ok_or(NotAPromise)
    }
}

impl Promises {
    /// Whether this one is made.
    #[must_use]
    pub const fn includes(&self, promise: Promise) -> bool {
        match promise {
            Promise::Durable => self.durable,
            Promise::Fencing => self.fencing,
            Promise::Fair => self.fair,
            Promise::NeverEarly => self.never_early,
            Promise::OutlivesProcess => self.outlives_process,
        }
    }
}

/// What a finding means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FindingKind {
    /// It keeps these promises from being made.
    Denies(Vec<Promise>),
    /// Every promise stands, and yet somebody should look at it.
    Warning,
    /// For information.
    Note,
}

impl FindingKind {
    /// The word for it, in JSON and on the wire.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Denies(_) => "denies",
            Self::Warning => "warning",
            Self::Note => "note",
        }
    }
}

/// One thing found by [`super::Engine::examine`]. No secret is in it, and no part of a URL but hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What it means.
    pub kind: FindingKind,
    /// The setting or fact, by the name an operator knows it by: `appendfsync`.
    pub setting: String,
    /// As it is.
    pub found: String,
    /// As it should be; empty for a note.
    pub wanted: String,
    /// What follows from it, for people: one sentence.
    pub sentence: String,
}

impl Finding {
    /// A setting that keeps promises from being made.
    pub fn denies(
        promises: &[Promise],
        setting: impl Into<String>,
        found: impl Into<String>,
        wanted: impl Into<String>,
        sentence: impl Into<String>,
    ) -> Self {
        Self::new(FindingKind::Denies(promises.to_vec()), setting.into(), found.into(), wanted.into(), sentence.into())
    }

    /// Something that somebody should look at.
    pub fn warning(
        setting: impl Into<String>,
        found: impl Into<String>,
        wanted: impl Into<String>,
        sentence: impl Into<String>,
    ) -> Self {
        Self::new(FindingKind::Warning, setting.into(), found.into(), wanted.into(), sentence.into())
    }

    /// For information.
    pub fn note(setting: impl Into<String>, found: impl Into<String>, sentence: impl Into<String>) -> Self {
        Self::new(FindingKind::Note, setting.into(), found.into(), String::new(), sentence.into())
    }

    const fn new(kind: FindingKind, setting: String, found: String, wanted: String, sentence: String) -> Self {
        Self { kind, setting, found, wanted, sentence }
    }
}

/// What an engine can promise at best, and what it needs for that. `leasehold engines` prints it. Each engine's module
/// has one, called `PROFILE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineProfile {
    /// How its URL looks.
    pub url: &'static str,
    /// What it promises if everything is as it needs it.
    pub best: Promises,
    /// The settings without which it promises less; none where nothing can be set wrong.
    pub needs: &'static [&'static str],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_promise_is_found_by_its_word() {
        let none = Promises {
            engine: "none",
            durable: false,
            fencing: false,
            fair: false,
            never_early: false,
            outlives_process: false,
        };
        for promise in Promise::ALL {
            assert_eq!(promise.word().parse(), Ok(promise));
            assert!(!none.includes(promise));
            let all = Promises {
                durable: true,
                fencing: true,
                fair: true,
                never_early: true,
                outlives_process: true,
                ..none
            };
            assert!(all.includes(promise));
        }
        assert_eq!("Fencing".parse::<Promise>(), Err(NotAPromise));
        let only = Promises { never_early: true, ..none };
        assert_eq!(Promise::ALL.into_iter().filter(|p| only.includes(*p)).collect::<Vec<_>>(), [Promise::NeverEarly]);
    }
}
