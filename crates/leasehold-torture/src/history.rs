//! What happened in a run, as the clients saw it and as the journal recorded it.
//!
//! All clients live on one machine, so moments are comparable. An operation whose answer never came has no
//! return: it may have taken effect at any later time. (Taking a timeout for a failure is the commonest bug
//! of checkers.)

use std::time::Duration;

use leasehold_core::{End, Fact, Mode, Push, Secret, Token};

/// Index of an operation in [`History::ops`].
pub type OpId = usize;

/// What was asked.
#[derive(Clone, Debug, PartialEq)]
pub enum OpKind {
    /// Take these.
    Acquire(AcquireRequest),
    /// Push the end.
    Renew {
        /// Which lease.
        token: Token,
        /// The life asked for.
        ttl: Option<Duration>,
    },
    /// Change the label.
    Relabel {
        /// Which lease.
        token: Token,
    },
    /// End it.
    Release {
        /// Which lease.
        token: Token,
    },
    /// A key that was never given out: a guessed secret, or another lease's.
    Hostile {
        /// The token shown.
        token: Token,
    },
    /// End all on a resource.
    Revoke {
        /// The resource.
        name: String,
    },
    /// Free keys by name.
    Free {
        /// Which, and what was shown.
        keys: KeyRequest,
        /// How many the reference model would free; none if it would call the command invalid.
        expect: Option<usize>,
    },
    /// Push the end of keys.
    Extend {
        /// Which, and what was shown.
        keys: KeyRequest,
        /// How far.
        push: Push,
        /// How many the reference model would push; none if it would call the command invalid.
        expect: Option<usize>,
    },
    /// Read a resource.
    Read {
        /// The resource.
        name: String,
        /// The tokens that the book showed, to be returned when that is durable.
        saw: Vec<u64>,
        /// The book's time then.
        at: u64,
        /// How many facts were durable when it was asked.
        durable: usize,
    },
    /// Ask for the floor of tokens, and raise it if a token is given.
    Floor {
        /// How far.
        raise: Option<Token>,
    },
    /// Give up waiting.
    Cancel {
        /// The acquire that waits.
        op: OpId,
    },
}

/// Keys by name, and the value that was shown, if any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRequest {
    /// Which.
    pub names: Vec<String>,
    /// The proof; without it any key is meant.
    pub value: Option<String>,
}

impl KeyRequest {
    /// Whether a lease with this value, which covers these, may be touched by it.
    #[must_use]
    pub fn may_touch(&self, value: &str, wants: &[(String, Mode)]) -> bool {
        self.value.as_deref().is_none_or(|shown| shown == value)
            && wants.iter().any(|(name, _)| self.names.contains(name))
    }
}

/// A claim.
#[derive(Clone, Debug, PartialEq)]
pub struct AcquireRequest {
    /// What is wanted.
    pub wants: Vec<(String, Mode)>,
    /// Asked life.
    pub ttl: Duration,
    /// How long it waits at most.
    pub wait: Duration,
    /// The cap.
    pub max_hold: Option<Duration>,
    /// Closed after a lapse.
    pub delay: Duration,
    /// Request id, the same in every retry.
    pub request: Option<String>,
    /// Who asks.
    pub principal: String,
    /// Taken as keys that show this.
    pub value: Option<String>,
}

/// How it ended for the caller.
#[derive(Clone, Copy, Debug)]
pub enum OpOutcome {
    /// No answer yet, or never: it may have happened.
    Unknown,
    /// Granted, or granted before (`repeated`).
    Granted {
        /// The token.
        token: Token,
        /// The secret, to act with.
        secret: Secret,
        /// Life left.
        remaining: Duration,
        /// An earlier try had been granted.
        repeated: bool,
    },
    /// Renewed.
    Renewed {
        /// Life left.
        remaining: Duration,
    },
    /// It has the new label.
    Relabelled,
    /// Released by this call, or by an earlier one.
    Released(bool),
    /// Leases ended.
    Revoked(usize),
    /// Keys freed.
    Freed(usize),
    /// Keys pushed.
    Extended(usize),
    /// The read was answered.
    Read {
        /// How many facts were durable then.
        durable: usize,
    },
    /// No token below this one will come any more.
    Floor(Token),
    /// The principal, or everybody, has their share.
    Quota,
    /// Whether it still waited.
    Cancelled(bool),
    /// Somebody has it.
    Held,
    /// It has ended.
    Stale,
    /// Not known.
    NotHeld,
    /// Another body under the same request id.
    Mismatch,
    /// Refused for another reason, or certainly without effect.
    Failed,
}

/// One operation.
#[derive(Clone, Debug)]
pub struct Op {
    /// Who.
    pub client: u64,
    /// What.
    pub kind: OpKind,
    /// When it was asked, in nanoseconds of true time.
    pub invoke: u64,
    /// When the answer came.
    pub ret: Option<u64>,
    /// The answer.
    pub outcome: OpOutcome,
    /// Which run of the engine answered.
    pub epoch: usize,
    /// For operations that must change nothing: whether the book was the same before and after.
    pub untouched: bool,
    /// Whether a refusal for want of room would be true, by the reference model.
    pub full: bool,
}

/// A fact, as the journal has it, in commit order.
#[derive(Clone, Debug, PartialEq)]
pub enum Recorded {
    /// A claim was granted.
    Granted {
        /// The token.
        token: u64,
        /// Who: names the operation.
        holder: String,
        /// What it covers.
        wants: Vec<(String, Mode)>,
        /// When, by the book.
        at: u64,
        /// Its end.
        expires_at: u64,
        /// Its cap.
        cap_at: u64,
        /// The life asked for, in nanoseconds.
        ttl: u64,
        /// Request id.
        request: Option<String>,
        /// Who it is counted for.
        principal: String,
        /// What its keys show.
        value: Option<String>,
    },
    /// The end moved.
    Renewed {
        /// The token.
        token: u64,
        /// Its end.
        expires_at: u64,
        /// The life asked for, in nanoseconds.
        ttl: u64,
    },
    /// The label changed.
    Relabelled {
        /// The token.
        token: u64,
        /// The new label.
        holder: String,
    },
    /// A lease ended.
    Ended {
        /// The token.
        token: u64,
        /// How.
        how: End,
        /// When, by the book.
        at: u64,
        /// Closed until then.
        closed_until: u64,
    },
    /// A lease over several resources gave up one.
    Freed {
        /// The token.
        token: u64,
        /// The resource.
        name: String,
    },
    /// A closed resource reopened.
    Reopened {
        /// The token.
        token: u64,
    },
    /// An engine started on the book.
    Resumed {
        /// When, by the book.
        at: u64,
        /// On another boot.
        fresh: bool,
    },
}

impl Recorded {
    /// A fact that can be kept.
    #[must_use]
    pub fn from_fact(fact: &Fact<'_>) -> Self {
        match fact {
            Fact::Granted(record) => Self::Granted {
                token: record.token.get(),
                holder: record.holder.to_string(),
                wants: record.wants.iter().map(|want| (want.name.to_owned(), want.mode)).collect(),
                at: record.granted_at.as_nanos(),
                expires_at: record.expires_at.as_nanos(),
                cap_at: record.cap_at.as_nanos(),
                ttl: u64::from(record.ttl_ms) * 1_000_000,
                request: record.request.map(|mark| mark.id.to_owned()),
                principal: record.principal.to_owned(),
                value: record.value.map(|value| String::from_utf8_lossy(value).into_owned()),
            },
            Fact::Renewed { token, expires_at, ttl_ms } => Self::Renewed {
                token: token.get(),
                expires_at: expires_at.as_nanos(),
                ttl: u64::from(*ttl_ms) * 1_000_000,
            },
            Fact::Relabelled { token, holder } => Self::Relabelled { token: token.get(), holder: (*holder).to_owned() },
            Fact::Ended { token, how, at, closed_until, .. } => {
                Self::Ended { token: token.get(), how: *how, at: at.as_nanos(), closed_until: closed_until.as_nanos() }
            }
            Fact::Freed { token, name } => Self::Freed { token: token.get(), name: (*name).to_owned() },
            Fact::Reopened { token } => Self::Reopened { token: token.get() },
            Fact::Resumed { at, fresh, .. } => Self::Resumed { at: at.as_nanos(), fresh: *fresh },
        }
    }
}

/// One run of the engine.
#[derive(Clone, Debug, Default)]
pub struct Epoch {
    /// The highest ceiling in the files it started from.
    pub ceiling_found: u64,
    /// When the disk refused a sync or a write in it, in true time.
    pub failed_at: Option<u64>,
    /// The record it found.
    pub recovery: Option<Recovery>,
}

/// What recovery made of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// The last frame whose answers had left.
    pub acked: u64,
    /// The last frame written at all.
    pub written: u64,
    /// The last frame found.
    pub found: u64,
    /// Hash of the state it should have found there.
    pub expected: u64,
    /// Hash of the state it found.
    pub digest: u64,
}

/// One write to the fenced resource.
#[derive(Clone, Debug)]
pub struct FencedWrite {
    /// The resource.
    pub name: String,
    /// The token shown.
    pub token: u64,
    /// Accepted or refused.
    pub accepted: bool,
    /// The newest token granted on the resource at that moment, by the journal.
    pub newest: u64,
}

/// A white-box observation that broke a law, with the number of the law.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The invariant's file name.
    pub invariant: &'static str,
    /// What was seen.
    pub what: String,
}

/// How much happened: an empty history proves nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistoryCounts {
    /// Commands submitted.
    pub commands: u64,
    /// Claims granted.
    pub grants: u64,
    /// Leases ended by time.
    pub lapses: u64,
    /// Claims refused because somebody has it.
    pub conflicts: u64,
    /// Power failures and kills.
    pub crashes: u64,
    /// Keys that were never given out.
    pub hostile: u64,
    /// Claims that waited.
    pub waits: u64,
    /// Retried requests.
    pub retries: u64,
    /// Snapshots made.
    pub snapshots: u64,
    /// Frames cut by recovery.
    pub cuts: u64,
    /// Restarts on another boot.
    pub boots: u64,
    /// Failed syncs and writes.
    pub disk_errors: u64,
    /// Claims granted as keys.
    pub keys: u64,
    /// Keys freed by name.
    pub frees: u64,
    /// Leases over several that went on without one of their keys.
    pub partial: u64,
    /// Keys pushed by name.
    pub extends: u64,
    /// Keys asked for with a wrong value.
    pub key_thieves: u64,
    /// Refusals for want of room.
    pub quotas: u64,
    /// Reads answered.
    pub reads: u64,
    /// Reads that had to wait for the disk.
    pub late_reads: u64,
    /// Events published.
    pub news: u64,
    /// Floors read or raised.
    pub floors: u64,
    /// Leases that got another label.
    pub relabels: u64,
}

impl HistoryCounts {
    /// Adds another run's.
    pub fn add(&mut self, other: &Self) {
        let mine: [&mut u64; 23] = [
            &mut self.commands,
            &mut self.grants,
            &mut self.lapses,
            &mut self.conflicts,
            &mut self.crashes,
            &mut self.hostile,
            &mut self.waits,
            &mut self.retries,
            &mut self.snapshots,
            &mut self.cuts,
            &mut self.boots,
            &mut self.disk_errors,
            &mut self.keys,
            &mut self.frees,
            &mut self.partial,
            &mut self.extends,
            &mut self.key_thieves,
            &mut self.quotas,
            &mut self.reads,
            &mut self.late_reads,
            &mut self.news,
            &mut self.floors,
            &mut self.relabels,
        ];
        let theirs = [
            other.commands,
            other.grants,
            other.lapses,
            other.conflicts,
            other.crashes,
            other.hostile,
            other.waits,
            other.retries,
            other.snapshots,
            other.cuts,
            other.boots,
            other.disk_errors,
            other.keys,
            other.frees,
            other.partial,
            other.extends,
            other.key_thieves,
            other.quotas,
            other.reads,
            other.late_reads,
            other.news,
            other.floors,
            other.relabels,
        ];
        for (mine, theirs) in mine.into_iter().zip(theirs) {
            *mine += theirs;
        }
    }
}

/// Everything that happened.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// What clients asked and learned.
    pub ops: Vec<Op>,
    /// What the journal recorded and kept: facts lost in a crash are gone from here too.
    pub facts: Vec<Recorded>,
    /// Runs of the engine.
    pub epochs: Vec<Epoch>,
    /// Writes to fenced resources.
    pub guarded: Vec<FencedWrite>,
    /// What white-box checks saw while the run went on.
    pub observations: Vec<Observation>,
    /// How much happened.
    pub counts: HistoryCounts,
}
