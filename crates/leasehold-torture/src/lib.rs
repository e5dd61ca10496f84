//! Histories, invariants, faults and the simulator that keep Leasehold honest.
//!
//! - [`history`]: what clients asked and learned, and what the journal kept.
//! - [`invariant`]: the laws, one per file; each reads a history and says what breaks it.
//! - [`model`]: the plainest code that says what leases and queues are, to compare with.
//! - [`disk`]: a disk that crashes, tears and fails.
//! - [`sim`]: the engine's own code under misbehaving clients and that disk, from one seed.
//! - [`images`]: every crash image and every flipped bit of a history.
//! - [`rng`]: randomness with a seed.
//! - [`witness`]: what a real process said before it was killed, against what its directory holds.
#![forbid(unsafe_code)]

pub mod disk;
pub mod history;
pub mod images;
pub mod invariant;
pub mod model;
pub mod rng;
pub mod sim;
pub mod witness;
