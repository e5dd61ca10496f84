//! Load generators and the proof of a rehearsal.
//!
//! - `leasehold bench` measures an engine or a server.
//! - `leasehold rehearse` runs an on-sale with simulated buyers against a running box office and proves the result.
//!
//! Both are commands of the one binary. They are in a crate of their own because they are clients: they use the library
//! and the HTTP API, and no code of the server.

pub mod bench;
pub mod rehearse;
