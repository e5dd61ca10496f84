//! The one binary of Leasehold.
//!
//! Read in this order:
//!
//! - [`service`]: the one way from a protocol to the engine: who may, how much, count it.
//! - [`boxoffice`]: the box office as a server has it: tickets, webhooks, the payment provider, a demo.
//! - [`resp`], [`http`]: the two protocols; they only translate.
//! - [`serve`]: what starts the server and ends it: configuration, keys, TLS, ports, logs.
//! - [`cli`]: the commands, their options, and what each prints.
//! - [`cli::exit`]: which exit code says what; one function decides.
//! - [`cli::run`]: a command under a lease, dead before the lease could be granted again.
//! - [`cli::bench`]: what this machine and this disk can do.
//!
//! # Not here
//!
//! Decisions about leases (the `leasehold` library and its engines).

mod api;
mod boxoffice;
mod cli;
mod config;
mod http;
mod resp;
mod serve;
mod service;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    cli::main()
}
