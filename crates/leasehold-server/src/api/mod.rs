//! The JSON of the contract, as typed values and builders. A leaf: HTTP, RESP, webhooks and the command line use it.
//!
//! - [`leases`]: grants, renewals, resources, lease events.
//! - [`boxoffice`]: events, holds, orders, money, entries of the feed.
//! - [`recipes`]: queues, tries of once, schedules, elections.

pub mod boxoffice;
pub mod leases;
pub mod recipes;
