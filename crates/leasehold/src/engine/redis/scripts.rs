//! The Lua scripts: one text per verb, made of an optional fast path, the two common parts and the verb.
//!
//! Every text begins with a `#!lua` line. Without it a script on a read-only replica answers from stale data instead of
//! READONLY: a "no" would be confused with "could not ask". The verbs that free something are allowed when the memory
//! is full.

/// What the names of keys begin with: the part of the layout that belongs to us alone.
pub(in crate::engine) const PREFIX: &str = "leasehold:";

const COMMON: &str = concat!(include_str!("lua/common.lua"), include_str!("lua/queue.lua"));

/// One verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Script {
    Acquire,
    Renew,
    Relabel,
    Release,
    Revoke,
    Leave,
    Beat,
    Inspect,
    Observe,
    Adopt,
    Floor,
    Open,
    Gathered,
}

/// What differs between two engines on one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Layout {
    /// What the key of a name begins with.
    pub key_prefix: String,
    /// What the list begins with that wakes waiters of python-redis-lock; empty without them.
    pub signal_prefix: String,
    /// How long a waiter is believed to be alive without a word of its process, in milliseconds.
    pub waiter_ms: u64,
}

impl Default for Layout {
    fn default() -> Self {
        Self { key_prefix: String::new(), signal_prefix: String::new(), waiter_ms: 10_000 }
    }
}

impl Script {
    /// Every script, in the order in which they are loaded.
    pub const ALL: [Self; 13] = [
        Self::Acquire,
        Self::Renew,
        Self::Relabel,
        Self::Release,
        Self::Revoke,
        Self::Leave,
        Self::Beat,
        Self::Inspect,
        Self::Observe,
        Self::Adopt,
        Self::Floor,
        Self::Open,
        Self::Gathered,
    ];

    /// What it is called in errors.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Renew => "renew",
            Self::Relabel => "relabel",
            Self::Release => "release",
            Self::Revoke => "revoke",
            Self::Leave => "leave",
            Self::Beat => "beat",
            Self::Inspect => "inspect",
            Self::Observe => "observe",
            Self::Adopt => "adopt",
            Self::Floor => "floor",
            Self::Open => "open",
            Self::Gathered => "gathered",
        }
    }

    /// The text that the server runs.
    pub fn text(self, layout: &Layout) -> String {
        let (flags, fast, verb) = match self {
            Self::Acquire => ("", include_str!("lua/acquire_fast.lua"), include_str!("lua/acquire.lua")),
            Self::Renew => (ALLOW_OOM, "", include_str!("lua/renew.lua")),
            Self::Relabel => (ALLOW_OOM, "", include_str!("lua/relabel.lua")),
            Self::Release => (ALLOW_OOM, include_str!("lua/release_fast.lua"), include_str!("lua/release.lua")),
            Self::Revoke => (ALLOW_OOM, "", include_str!("lua/revoke.lua")),
            Self::Leave => (ALLOW_OOM, "", include_str!("lua/leave.lua")),
            Self::Beat => (ALLOW_OOM, "", include_str!("lua/beat.lua")),
            Self::Inspect => (ALLOW_OOM, "", include_str!("lua/inspect.lua")),
            Self::Observe => (ALLOW_OOM, "", include_str!("lua/observe.lua")),
            Self::Adopt => (ALLOW_OOM, "", include_str!("lua/adopt.lua")),
            Self::Floor => ("", "", include_str!("lua/floor.lua")),
            Self::Open => (ALLOW_OOM, "", include_str!("lua/open.lua")),
            // Nothing but fast ways: the common part would be run for nothing.
            Self::Gathered => return fill_in(layout, &format!("#!lua\n{}", include_str!("lua/gathered.lua"))),
        };
        script_text(layout, flags, fast, verb)
    }
}

/// For a script that frees something.
pub(in crate::engine) const ALLOW_OOM: &str = " flags=allow-oom";

/// A text that the server runs: an optional fast path, the common part and the verb.
pub(in crate::engine) fn script_text(layout: &Layout, flags: &str, fast: &str, verb: &str) -> String {
    fill_in(layout, &format!("#!lua{flags}\n{fast}{COMMON}{verb}"))
}

fn fill_in(layout: &Layout, text: &str) -> String {
    text.replace("@P@", PREFIX)
        .replace("@K@", &layout.key_prefix)
        .replace("@SIGNAL@", &layout.signal_prefix)
        .replace("@WAITER_MS@", &layout.waiter_ms.to_string())
}
