//! Bugs planted on purpose, to prove that the checkers catch them. One build has all of them; the tests switch one on at a
//! time.

/// A bug somebody shipped once, ready to be switched on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[allow(missing_docs, reason = "each name is the bug's sentence")]
pub enum Bug {
    None = 0,
    /// The token counter starts again below the ceiling after a restart.
    TokensRestart,
    /// Expiry compares with a margin in the wrong direction: leases lapse early.
    LapseEarly,
    /// Renew accepts a lease that is due but not yet collected.
    ReviveDue,
    /// Release frees whatever lease stands on the resource now.
    ReleaseSuccessor,
    /// Any secret opens the lease.
    AnySecret,
    /// A new arrival takes a free resource ahead of the queue.
    Overtake,
    /// A cancelled waiter does not pass the baton.
    LoseBaton,
    /// A cancelled waiter stays in the queue and is granted later.
    GhostGrant,
    /// A retried acquire enters the queue twice.
    DoubleEnqueue,
    /// A retried request gets a second grant.
    ForgetRequest,
    /// Renewal goes past max_hold.
    IgnoreCap,
    /// Shared and exclusive holders meet.
    MixReaders,
    /// One permit too many.
    ExtraPermit,
    /// A claim on several resources takes only the first.
    HalfClaim,
    /// The snapshot misses what changed while it was taken.
    TornSnapshot,
    /// The reply leaves before the sync.
    ReplyBeforeSync,
    /// A failed sync is retried and then believed.
    RetrySync,
    /// A torn or damaged record ends recovery quietly wherever it stands.
    CutAnywhere,
    /// After a boot change the old deadlines are kept.
    KeepDeadlines,
    /// The fence accepts a token that is not the newest.
    FenceAcceptsStale,
    /// The recovered state forgets recent endings.
    ForgetEndings,
    /// A read shows a grant that is not durable yet.
    ReadAhead,
    /// A key is freed whatever value is shown.
    FreeAnyValue,
    /// A key that is due but not yet collected is pushed, and lives again.
    ExtendRevives,
    /// A lease that gives up one of its keys keeps the resource closed.
    FreedKeepsResource,
    /// Watchers are not told when a lease gives up one of its keys.
    NewsLost,
    /// Watchers are told before the sync.
    NewsBeforeSync,
    /// Leases of a principal are not counted.
    PrincipalNotCounted,
    /// A thread that writes its own batch panics on the way.
    PressPanics,
    /// A raised floor is in memory only until the next grant.
    FloorNotReserved,
}

impl Bug {
    /// Every bug that can be planted.
    pub const ALL: [Self; 30] = [
        Self::TokensRestart,
        Self::LapseEarly,
        Self::ReviveDue,
        Self::ReleaseSuccessor,
        Self::AnySecret,
        Self::Overtake,
        Self::LoseBaton,
        Self::GhostGrant,
        Self::DoubleEnqueue,
        Self::ForgetRequest,
        Self::IgnoreCap,
        Self::MixReaders,
        Self::ExtraPermit,
        Self::HalfClaim,
        Self::TornSnapshot,
        Self::ReplyBeforeSync,
        Self::RetrySync,
        Self::CutAnywhere,
        Self::KeepDeadlines,
        Self::FenceAcceptsStale,
        Self::ForgetEndings,
        Self::ReadAhead,
        Self::FreeAnyValue,
        Self::ExtendRevives,
        Self::FreedKeepsResource,
        Self::NewsLost,
        Self::NewsBeforeSync,
        Self::PrincipalNotCounted,
        Self::PressPanics,
        Self::FloorNotReserved,
    ];
}

static SWITCH: core::sync::atomic::AtomicU8 = core::sync::atomic::AtomicU8::new(0);

/// Switches one bug on (and the others off).
pub fn plant(bug: Bug) {
    SWITCH.store(bug as u8, core::sync::atomic::Ordering::SeqCst);
}

/// Whether this bug is switched on.
#[must_use]
pub fn on(bug: Bug) -> bool {
    SWITCH.load(core::sync::atomic::Ordering::Relaxed) == bug as u8
}
