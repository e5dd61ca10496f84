//! The operations of the service, and the role that each needs.

use super::keys::Role;

/// An operation of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Verb {
    /// Acquire resources.
    Acquire,
    /// Renew a lease.
    Renew,
    /// Change the label of a lease.
    Relabel,
    /// Release a lease.
    Release,
    /// Look at one resource.
    Inspect,
    /// List resources.
    List,
    /// Watch events.
    Watch,
    /// Revoke leases of others.
    Revoke,
    /// Take names as Redis keys.
    SetKey,
    /// Look at a Redis key: its value proves ownership, so this is not for readers.
    GetKey,
    /// Free Redis keys.
    FreeKey,
    /// Move the end of Redis keys.
    ExtendKey,
    /// Ask below which token none will come any more.
    Floor,
    /// Raise that floor.
    RaiseFloor,
    /// Look at the server.
    Status,
    /// Read its metrics.
    Metrics,
    /// Look at what an event has for sale.
    SeeEvent,
    /// Hold seats, pay for them, and look at one's own.
    Buy,
    /// Make events and change what is for sale; void, move, block and end holds; mint tickets.
    RunEvent,
    /// Read who did what at an event, and its figures.
    OverseeEvent,
    /// Tell what became of a payment. Providers prove themselves by a signature.
    Settle,
    /// Begin, renew and end tries under idempotency keys.
    Once,
    /// Make a queue, or change its settings.
    MakeQueue,
    /// Push jobs.
    PushJob,
    /// Claim jobs, and end or extend deliveries.
    WorkQueue,
    /// Look at queues and their dead letters.
    SeeQueue,
    /// Retry and drop dead letters, pause and resume queues.
    RunQueue,
    /// Look at schedules and their runs.
    SeeSchedule,
    /// Begin and finish runs of schedules.
    RunSchedule,
}

impl Verb {
    /// Every verb there is.
    pub const ALL: [Self; 29] = [
        Self::Acquire,
        Self::Renew,
        Self::Relabel,
        Self::Release,
        Self::Inspect,
        Self::List,
        Self::Watch,
        Self::Revoke,
        Self::SetKey,
        Self::GetKey,
        Self::FreeKey,
        Self::ExtendKey,
        Self::Floor,
        Self::RaiseFloor,
        Self::Status,
        Self::Metrics,
        Self::SeeEvent,
        Self::Buy,
        Self::RunEvent,
        Self::OverseeEvent,
        Self::Settle,
        Self::Once,
        Self::MakeQueue,
        Self::PushJob,
        Self::WorkQueue,
        Self::SeeQueue,
        Self::RunQueue,
        Self::SeeSchedule,
        Self::RunSchedule,
    ];

    /// The role that it needs. An admin may do everything, and the role `lease` includes `read`.
    pub const fn role(self) -> Role {
        match self {
            Self::Acquire
            | Self::Renew
            | Self::Relabel
            | Self::Release
            | Self::SetKey
            | Self::GetKey
            | Self::FreeKey
            | Self::ExtendKey
            | Self::Once
            | Self::MakeQueue
            | Self::PushJob
            | Self::WorkQueue
            | Self::RunSchedule => Role::Lease,
            Self::Inspect
            | Self::List
            | Self::Watch
            | Self::Floor
            | Self::Status
            | Self::Metrics
            | Self::SeeQueue
            | Self::SeeSchedule => Role::Read,
            Self::Revoke | Self::RaiseFloor | Self::RunQueue => Role::Admin,
            Self::SeeEvent | Self::Buy => Role::Buyer,
            Self::RunEvent | Self::OverseeEvent => Role::Boxoffice,
            Self::Settle => Role::Provider,
        }
    }

    /// Whether it takes, keeps or frees resources by name, without a lease id that proves ownership. A revoke does not
    /// count.
    pub const fn takes_by_name(self) -> bool {
        matches!(self, Self::Acquire | Self::SetKey | Self::FreeKey | Self::ExtendKey)
    }

    /// The word for it, in logs and metrics.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Renew => "renew",
            Self::Relabel => "relabel",
            Self::Release => "release",
            Self::Inspect => "inspect",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Revoke => "revoke",
            Self::SetKey => "set_key",
            Self::GetKey => "get_key",
            Self::FreeKey => "free_key",
            Self::ExtendKey => "extend_key",
            Self::Floor => "floor",
            Self::RaiseFloor => "raise_floor",
            Self::Status => "status",
            Self::Metrics => "metrics",
            Self::SeeEvent => "see_event",
            Self::Buy => "buy",
            Self::RunEvent => "run_event",
            Self::OverseeEvent => "oversee_event",
            Self::Settle => "settle",
            Self::Once => "once",
            Self::MakeQueue => "make_queue",
            Self::PushJob => "push_job",
            Self::WorkQueue => "work_queue",
            Self::SeeQueue => "see_queue",
            Self::RunQueue => "run_queue",
            Self::SeeSchedule => "see_schedule",
            Self::RunSchedule => "run_schedule",
        }
    }
}
