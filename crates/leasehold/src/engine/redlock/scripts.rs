//! The scripts of a node: those of the Redis engine for what both do, and a few of our own.
//!
//! A node's vote is an acquire that never waits. It differs from the Redis engine's in three ways: a refusal says *which*
//! lease is in the way, a try can be banned by its secret (so that a request id can be tried again), and another call with
//! the same request id is a refusal.
//!
//! Keys of our own: `leasehold:b:<secret>` a try that was abandoned, `leasehold:j:<secret>` a lease that another call of the
//! same request has joined.

use crate::engine::redis::scripts::{ALLOW_OOM, Layout, Script, script_text};

/// One script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeScript {
    Acquire,
    Abandon,
    Renew,
    Release,
    Peek,
    Join,
    ReadRecord,
    Repair,
    Look,
    List,
    Revoke,
}

impl NodeScript {
    /// Every script, in the order of the enumeration.
    pub const ALL: [Self; 11] = [
        Self::Acquire,
        Self::Abandon,
        Self::Renew,
        Self::Release,
        Self::Peek,
        Self::Join,
        Self::ReadRecord,
        Self::Repair,
        Self::Look,
        Self::List,
        Self::Revoke,
    ];

    /// The text that a node runs.
    pub fn text(self, layout: &Layout) -> String {
        match self {
            Self::Renew => Script::Renew.text(layout),
            Self::Release => Script::Release.text(layout),
            Self::Revoke => Script::Revoke.text(layout),
            Self::Acquire => {
                script_text(layout, "", include_str!("lua/acquire_fast.lua"), include_str!("lua/acquire.lua"))
            }
            Self::Abandon => script_text(layout, ALLOW_OOM, "", include_str!("lua/abandon.lua")),
            Self::Peek => script_text(layout, ALLOW_OOM, "", include_str!("lua/peek.lua")),
            Self::Join => script_text(layout, ALLOW_OOM, "", include_str!("lua/join.lua")),
            Self::ReadRecord => script_text(layout, ALLOW_OOM, "", include_str!("lua/record.lua")),
            Self::Repair => script_text(layout, "", "", include_str!("lua/repair.lua")),
            Self::Look => script_text(layout, ALLOW_OOM, "", include_str!("lua/look.lua")),
            Self::List => script_text(layout, ALLOW_OOM, "", include_str!("lua/list.lua")),
        }
    }

    /// The script of the Redis engine that its errors read like.
    pub const fn relative(self) -> Script {
        match self {
            Self::Acquire | Self::Repair => Script::Acquire,
            Self::Renew | Self::Join => Script::Renew,
            Self::Abandon | Self::Release => Script::Release,
            Self::Revoke => Script::Revoke,
            Self::Peek | Self::ReadRecord | Self::Look | Self::List => Script::Inspect,
        }
    }
}
