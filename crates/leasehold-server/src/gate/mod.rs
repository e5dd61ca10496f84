//! `leasehold gate`: the fence in front of an HTTP service that cannot check tokens itself.
//!
//! ```text
//!   client ──▶ forward ──▶ fences ──▶ upstream
//!                            │ ▲
//!                            ▼ │        memory: the journal, one fsync for each raise
//! ```
//!
//! Files, from the lowest: [`machine`] (decisions only), [`metrics`], [`fences`] (the machine at run time), [`memory`] (its
//! journal), [`upstream`] (connections), [`body`] (bodies in both directions), [`headers`], [`forward`] (one request),
//! [`tunnel`] (upgrades), [`workers`] (threads), [`run`] (start and stop).
//!
//! # What is guaranteed
//!
//! 1. After a newer request was forwarded, no byte of an older one for that resource leaves the gate.
//! 2. A newer request is forwarded only when the upstream has answered every older one. An upstream that completes its
//!    effect before it answers sees them in order.
//! 3. What was forwarded had its token on disk: a restart of the gate lets no older one in.
//!
//! # What is not
//!
//! What the upstream does after its answer, or after a connection was cut: a request that was received whole and not
//! answered may still take effect. Requests that reach the upstream on another way, and those of a second gate with a
//! memory of its own. And a fence is no authentication: whoever may send may show any token.

mod body;
mod fences;
pub mod forward;
mod headers;
pub mod machine;
mod memory;
mod metrics;
pub mod run;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod times_tests;
mod tunnel;
mod upstream;
mod workers;
