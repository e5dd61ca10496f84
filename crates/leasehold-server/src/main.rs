//! The one binary of Leasehold.
//!
//! Read in this order:
//!
//! - [`service`]: every protocol reaches the engine through it: authentication, authorisation, limits, counters.
//! - [`boxoffice`]: the box office of a server: tickets, webhooks, the payment provider, a demo.
//! - [`resp`], [`http`]: the two protocols; they only translate. [`api`]: the JSON that they share.
//! - [`serve`]: starts and stops the server: keys, TLS, ports, logs. [`config`]: its configuration.
//! - [`gate`]: `leasehold gate`, the fence in front of an HTTP service.
//! - [`cli`]: the commands, their options, and what each prints.
//! - [`cli::run`]: a command under a lease, killed before the lease could be granted again.
//!
//! # Not here
//!
//! Decisions about leases (the `leasehold` library and its engines).

mod api;
mod boxoffice;
mod cli;
mod config;
mod gate;
mod http;
mod resp;
mod serve;
mod service;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    cli::main()
}
