//! The command line: one file per command, and what they share.
//!
//! ```text
//!   arguments ──▶ Cli ──▶ Target (which engine) ──▶ command ──▶ output, exit code
//! ```
//!
//! Commands on leases run on one thread. `run` needs that: the parent-death signal of its child is tied to the thread
//! that started it.

mod acquire;
mod advise;
mod cron;
mod doctor;
mod elect;
mod engines;
mod fence;
mod gate;
mod inspect;
mod key;
mod ls;
mod migrate;
mod once;
mod queue;
mod release;
mod renew;
mod revoke;
pub mod run;
mod secret;
mod store;
mod target;
mod view;
mod watch;

use std::future::Future;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};

use leasehold_support::exit::{self, Failure};
use leasehold_support::output;
use target::{DEFAULT_URL, Target};

const EXAMPLE: &str = "\
Thirty seconds:
  leasehold serve &                                or: export LEASEHOLD_URL=embedded:./my-leases
  leasehold run nightly-report -- ./report.sh      one at a time, killed before the lease can pass on
  leasehold acquire seat-14 --ttl 10m --json       a lease by hand: keep the lease_id, show the token
  leasehold ls                                     what is held, and by whom
  leasehold release - <<<\"$LEASE_ID\"               give it back

Exit codes: 0 done, 1 unexpected, 2 bad usage, 3 held by another, 4 unavailable, 5 outcome unknown,
6 lease lost while the command ran, 7 stale or not held, 8 corrupt.";

/// Timeout for tasks that still run when the command is done.
const RUNTIME_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Leases with fencing tokens, from the shell.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, after_help = EXAMPLE, arg_required_else_help = true)]
struct Cli {
    /// The server or engine to ask: leasehold://HOST:PORT, embedded:DIR, redis://, redlock://, postgres://, etcd://, zk:// [env: LEASEHOLD_URL] [default: leasehold://127.0.0.1:7401]
    // Read from the environment by hand: clap would show its value, and a URL may carry a password; and
    // `bench` must tell what was typed from what the environment happens to name.
    #[arg(long, global = true, value_name = "URL")]
    url: Vec<String>,
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    Serve(crate::serve::ServeArgs),
    Acquire(acquire::AcquireArgs),
    Renew(renew::RenewArgs),
    Release(release::ReleaseArgs),
    Run(run::RunArgs),
    Once(once::OnceArgs),
    Queue(queue::QueueArgs),
    Elect(elect::ElectArgs),
    Cron(cron::CronArgs),
    Advise(advise::AdviseArgs),
    Key(key::KeyArgs),
    Ls(ls::LsArgs),
    Inspect(inspect::InspectArgs),
    Revoke(revoke::RevokeArgs),
    Engines(engines::EnginesArgs),
    Doctor(doctor::DoctorArgs),
    Migrate(migrate::MigrateArgs),
    Fence(fence::FenceArgs),
    Gate(gate::GateArgs),
    #[cfg(feature = "load")]
    Bench(leasehold_load::bench::Bench),
    #[cfg(feature = "load")]
    Rehearse(leasehold_load::rehearse::Rehearse),
    #[cfg(feature = "lab")]
    Lab(leasehold_lab::command::LabArgs),
    Watch(watch::WatchArgs),
    #[cfg(feature = "lab")]
    #[command(name = leasehold_lab::command::ACTOR_COMMAND, hide = true)]
    LabActor(leasehold_lab::command::ActorArgs),
    /// Not for people: the process that `run` leaves behind to outlive it.
    #[command(name = run::guard::GUARD_COMMAND, hide = true)]
    Guard {
        /// The command that it outlives
        command: String,
    },
}

/// Parses the command line, runs the command, and returns the exit code.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return ExitCode::from(print_clap_error(&error)),
    };
    let code = match run_command(cli) {
        Ok(code) => code,
        // The reader of a pipe closed it: `leasehold ls | head -1`.
        Err(error) if output::reader_went_away(&error) => exit::DONE,
        Err(error) => {
            output::say(exit::sentence(&error));
            exit::code(&error)
        }
    };
    ExitCode::from(code)
}

fn run_command(cli: Cli) -> anyhow::Result<u8> {
    let target = || Target::parse(&chosen_url(&cli.url)?);
    match cli.command {
        CliCommand::Migrate(_) if !cli.url.is_empty() => Err(Failure::usage(
            "this command works on databases: give --engine URL, --store URL or --ledger URL, not --url",
        )),
        CliCommand::Migrate(command) => block_on_this_thread(command.execute()),
        CliCommand::Fence(command) => block_on_this_thread(command.execute()),
        CliCommand::Serve(_) | CliCommand::Key(_) if !cli.url.is_empty() => {
            Err(Failure::usage("this command works on a directory: give --data DIR, not --url"))
        }
        #[cfg(feature = "load")]
        CliCommand::Rehearse(_) if !cli.url.is_empty() => {
            Err(Failure::usage("a rehearsal speaks HTTP: give --http URL, not --url"))
        }
        #[cfg(feature = "lab")]
        CliCommand::Lab(_) if !cli.url.is_empty() => {
            Err(Failure::usage("a lab starts servers of its own: leave --url out"))
        }
        #[cfg(feature = "lab")]
        CliCommand::Lab(command) => command.execute(),
        #[cfg(feature = "lab")]
        CliCommand::LabActor(command) => command.execute(),
        CliCommand::Gate(_) if !cli.url.is_empty() => {
            Err(Failure::usage("a gate asks no engine: give --upstream URL, not --url"))
        }
        CliCommand::Gate(command) => command.execute(),
        CliCommand::Serve(command) => command.execute(),
        CliCommand::Key(command) => command.execute(),
        CliCommand::Acquire(command) => block_on_this_thread(command.execute(&target()?)),
        CliCommand::Renew(command) => block_on_this_thread(command.execute(&target()?)),
        CliCommand::Release(command) => block_on_this_thread(command.execute(&target()?)),
        CliCommand::Run(command) => block_on_this_thread(command.execute(&target()?)),
        CliCommand::Once(command) => {
            let url = chosen_url(&cli.url)?;
            block_on_this_thread(command.execute(&url))
        }
        CliCommand::Queue(command) => {
            let url = chosen_url(&cli.url)?;
            block_on_this_thread(command.execute(&url))
        }
        CliCommand::Cron(command) => {
            let url = chosen_url(&cli.url)?;
            block_on_this_thread(command.execute(&url))
        }
        CliCommand::Elect(command) => block_on_this_thread(command.execute(&target()?)),
        CliCommand::Advise(_) if !cli.url.is_empty() => {
            Err(Failure::usage("this command asks no engine: leave --url out"))
        }
        CliCommand::Advise(command) => command.execute(&Cli::command()),
        CliCommand::Ls(command) => block_on_this_thread(command.execute(&target()?)),
        CliCommand::Inspect(command) => block_on_this_thread(command.execute(&target()?)),
        CliCommand::Revoke(command) => block_on_this_thread(command.execute(&target()?)),
        CliCommand::Engines(command) => command.execute(),
        CliCommand::Doctor(command) => block_on_this_thread(command.execute(&target()?)),
        #[cfg(feature = "load")]
        CliCommand::Bench(command) => command.execute(&cli.url),
        #[cfg(feature = "load")]
        CliCommand::Rehearse(command) => command.execute(),
        CliCommand::Watch(command) => block_on_this_thread(command.execute(&target()?)),
        CliCommand::Guard { command } => run::guard::run_guard(&command),
    }
}

/// The URL of a command: typed, or from the environment, or the default.
fn chosen_url(typed: &[String]) -> anyhow::Result<String> {
    match typed {
        [] => {
            let named = std::env::var("LEASEHOLD_URL").ok().filter(|url| !url.is_empty());
            Ok(named.unwrap_or_else(|| DEFAULT_URL.to_owned()))
        }
        [url] => Ok(url.clone()),
        _ => Err(Failure::usage("this command asks one engine: give --url once")),
    }
}

/// Runs a command on this thread.
fn block_on_this_thread<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the runtime")?;
    let done = runtime.block_on(work);
    // A disk that hangs must not keep the process.
    runtime.shutdown_timeout(RUNTIME_SHUTDOWN_TIMEOUT);
    done
}

/// Prints the error of a command line that clap could not parse. A bad value gets one sentence like our other errors;
/// the rest keeps clap's hints.
fn print_clap_error(error: &clap::Error) -> u8 {
    if matches!(error.kind(), ErrorKind::ValueValidation) {
        let text = |kind| match error.get(kind) {
            Some(ContextValue::String(text)) => text.as_str(),
            _ => "",
        };
        let option = text(ContextKind::InvalidArg).split(' ').next().unwrap_or_default();
        let value = text(ContextKind::InvalidValue);
        let why = std::error::Error::source(error).map_or_else(|| "not understood".to_owned(), ToString::to_string);
        output::say(format!("{option} {value}: {why}"));
        return exit::USAGE;
    }
    // Help and version are results and go to stdout; clap knows. A closed pipe there is nobody's fault.
    let _ = error.print();
    u8::try_from(error.exit_code()).unwrap_or(exit::USAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Goal: nobody has to guess what a command is for or how it is typed.
    #[test]
    fn every_command_has_a_line_about_it_and_an_example() {
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = command.get_name();
            assert!(command.get_about().is_some_and(|about| about.to_string().lines().count() == 1), "{name}");
            let example = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(example.contains(&format!("leasehold {name}")), "{name}: {example}");
        }
    }
}
