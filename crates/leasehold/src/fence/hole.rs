//! Holes of a fence: ways by which a stale write could get past it.

/// What kind of hole it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HoleKind {
    /// A trigger is not there.
    TriggerMissing,
    /// A trigger is there and does not fire always.
    TriggerDisabled,
    /// A trigger is there and is not ours.
    TriggerChanged,
    /// TRUNCATE of the table or of a partition goes through.
    TruncateOpen,
    /// A table inherits from the fenced one, and has no fence.
    ChildUnfenced,
    /// A trigger fires after ours, and could change the fence of the row.
    LaterTrigger,
    /// A key column has another name, or is gone.
    KeyMissing,
    /// The column with the fence of a row is gone.
    ColumnMissing,
    /// The keys have no unique index any more.
    KeysNotUnique,
    /// A row remembers less than the table does of its resource.
    RowsBelow,
    /// The column with the fence of a row holds what is no fence.
    RowsMalformed,
    /// A table has the column of a fence, and no fence.
    Unfenced,
    /// A function is missing, or has another text.
    FunctionChanged,
    /// Another version of Leasehold installed it.
    OtherVersion,
    /// The fence observes, and refuses nothing.
    Observing,
    /// The fenced table was dropped.
    TableGone,
    /// A role or the database sets a token for every session.
    SettingFixed,
    /// The engine may give out tokens that the fence has seen.
    EngineBelow,
}

impl HoleKind {
    /// The kind in one word, for scripts.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::TriggerMissing => "trigger_missing",
            Self::TriggerDisabled => "trigger_disabled",
            Self::TriggerChanged => "trigger_changed",
            Self::TruncateOpen => "truncate_open",
            Self::ChildUnfenced => "child_unfenced",
            Self::LaterTrigger => "later_trigger",
            Self::KeyMissing => "key_missing",
            Self::ColumnMissing => "column_missing",
            Self::KeysNotUnique => "keys_not_unique",
            Self::RowsBelow => "rows_below",
            Self::RowsMalformed => "rows_malformed",
            Self::Unfenced => "unfenced",
            Self::FunctionChanged => "function_changed",
            Self::OtherVersion => "other_version",
            Self::Observing => "observing",
            Self::TableGone => "table_gone",
            Self::SettingFixed => "setting_fixed",
            Self::EngineBelow => "engine_below",
        }
    }
}

/// A hole, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceHole {
    /// What kind it is.
    pub kind: HoleKind,
    /// The table or partition; empty for what concerns the whole database.
    pub table: String,
    /// What is wrong, and what to do.
    pub sentence: String,
}

impl FenceHole {
    pub(crate) fn new(kind: HoleKind, table: impl Into<String>, sentence: impl Into<String>) -> Self {
        Self { kind, table: table.into(), sentence: sentence.into() }
    }
}
