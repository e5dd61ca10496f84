//! Load and proof: `leasehold bench` measures an engine or a server, `leasehold rehearse` plays an on-sale against a running
//! box office and proves what came of it.
//!
//! Both are commands of the one binary. They are a crate of their own because they are clients: they know the library and the
//! HTTP API, and nothing of the server's inside.

pub mod bench;
pub mod rehearse;
