//! How many writes the adapters of this process admitted and refused, for metrics.
//!
//! A table that is fenced in its database also counts there, whoever the writer is: `leasehold fence check --prometheus`.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where a fenced resource is. The label `kind` of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FenceKind {
    /// A table of PostgreSQL.
    Postgres,
    /// A table of a SQLite file.
    Sqlite,
    /// Keys of Redis.
    Redis,
    /// A file.
    File,
    /// An object of an object store.
    Object,
    /// A service behind the HTTP gate.
    Gate,
}

impl FenceKind {
    /// Every kind.
    pub const ALL: [Self; 6] = [Self::Postgres, Self::Sqlite, Self::Redis, Self::File, Self::Object, Self::Gate];

    /// The kind in one word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Sqlite => "sqlite",
            Self::Redis => "redis",
            Self::File => "file",
            Self::Object => "object",
            Self::Gate => "gate",
        }
    }
}

impl fmt::Display for FenceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// The writes that adapters of one kind decided in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FenceCounts {
    /// Writes that were admitted, and took effect as far as is known.
    pub admitted: u64,
    /// Writes that were refused.
    pub rejected: u64,
}

struct KindCounters {
    admitted: AtomicU64,
    rejected: AtomicU64,
}

static COUNTERS: [KindCounters; FenceKind::ALL.len()] =
    [const { KindCounters { admitted: AtomicU64::new(0), rejected: AtomicU64::new(0) } }; FenceKind::ALL.len()];

/// What was counted so far.
#[must_use]
pub fn read_counts(kind: FenceKind) -> FenceCounts {
    let counters = &COUNTERS[kind as usize];
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    FenceCounts { admitted: load(&counters.admitted), rejected: load(&counters.rejected) }
}

/// Counts one admitted write.
pub fn count_admitted(kind: FenceKind) {
    COUNTERS[kind as usize].admitted.fetch_add(1, Ordering::Relaxed);
}

/// Counts one refused write.
pub fn count_rejected(kind: FenceKind) {
    COUNTERS[kind as usize].rejected.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_counted_apart() {
        let before = FenceKind::ALL.map(read_counts);
        count_admitted(FenceKind::Gate);
        count_rejected(FenceKind::Gate);
        count_rejected(FenceKind::Gate);
        let after = FenceKind::ALL.map(read_counts);
        let at = FenceKind::Gate as usize;
        assert_eq!((after[at].admitted, after[at].rejected), (before[at].admitted + 1, before[at].rejected + 2));
        assert_eq!(after[FenceKind::Object as usize], before[FenceKind::Object as usize]);
    }
}
