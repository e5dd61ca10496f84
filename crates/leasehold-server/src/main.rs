//! The one binary of Leasehold.
//!
//! Read in this order:
//!
//! - [`cli`]: the commands, their options, and what each prints.
//! - [`cli::exit`]: which exit code says what; one function decides.
//! - [`cli::run`]: a command under a lease, dead before the lease could be granted again.
//! - [`cli::bench`]: what this machine and this disk can do.
//!
//! # Not here
//!
//! Decisions about leases (the `leasehold` library and its engines). The server comes later.

mod cli;
mod http;
mod resp;
mod serve;
mod service;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    cli::main()
}
