//! `leasehold fence`: tables of a database that refuse stale writers.
//!
//! One file per command. What they do is in the library, `leasehold::fence`.

mod check;
mod database;
mod exec;
mod floor;
mod install;
mod remove;

use clap::{Args, Subcommand};
use leasehold::fence::FenceError;
use leasehold_support::exit::{self, Failure};

const EXAMPLE: &str = "\
Example:
  leasehold fence install --url postgres://owner@db/shop --table seats --key seat_id --resource 'seat/{}'
  leasehold run seat/14 -- leasehold fence exec --url postgres://app@db/shop --sql \"UPDATE seats SET owner = 'ada' WHERE seat_id = 14\"
  leasehold fence check --url postgres://owner@db/shop

A lock cannot stop a holder that paused. The fence can: after install the database itself refuses every INSERT, UPDATE,
DELETE and TRUNCATE on the table without the token of a lease, or with a stale one, whoever the client is. Databases are
postgres://… and sqlite:FILE.";

/// Makes tables refuse stale holders: install, check, remove, floor, exec.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE, arg_required_else_help = true)]
pub struct FenceArgs {
    #[command(subcommand)]
    command: FenceCommand,
}

#[derive(Debug, Subcommand)]
enum FenceCommand {
    Install(install::FenceInstallArgs),
    Check(check::FenceCheckArgs),
    Remove(remove::FenceRemoveArgs),
    Floor(floor::FenceFloorArgs),
    Exec(exec::FenceExecArgs),
}

impl FenceArgs {
    /// Runs the command.
    pub async fn execute(self) -> anyhow::Result<u8> {
        match self.command {
            FenceCommand::Install(command) => command.execute().await,
            FenceCommand::Check(command) => command.execute().await,
            FenceCommand::Remove(command) => command.execute().await,
            FenceCommand::Floor(command) => command.execute().await,
            FenceCommand::Exec(command) => command.execute().await,
        }
    }
}

/// The exit code and the sentence of an error of a fence.
fn fence_failure(error: FenceError) -> anyhow::Error {
    let code = match &error {
        FenceError::Refused(_) => exit::STALE,
        FenceError::Unavailable { .. } => exit::UNAVAILABLE,
        FenceError::Indeterminate { .. } => exit::UNKNOWN,
        FenceError::Invalid(_) => exit::USAGE,
        FenceError::Corrupt { .. } => exit::CORRUPT,
        _ => exit::UNEXPECTED,
    };
    Failure::coded(code, exit::sentence(&anyhow::Error::new(error)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::fence::{FenceKind, FenceRefusal};

    /// Goal: every error of a fence has the exit code of the contract.
    #[test]
    fn every_error_has_its_code() {
        let (kind, attempt) = (FenceKind::Postgres, String::from("write"));
        let table = [
            (FenceError::Refused(FenceRefusal::Malformed), 7),
            (FenceError::Unavailable { kind, attempt: attempt.clone(), source: "away".into() }, 4),
            (FenceError::Indeterminate { kind, attempt, source: "lost".into() }, 5),
            (FenceError::Invalid("no".into()), 2),
            (FenceError::Corrupt { kind, at: "a row".into() }, 8),
            (FenceError::Work("a constraint".into()), 1),
        ];
        for (error, expected) in table {
            let text = error.to_string();
            assert_eq!(exit::code(&fence_failure(error)), expected, "{text}");
        }
    }

    /// Goal: nobody has to guess how a command of the fence is typed.
    #[test]
    fn every_command_of_the_fence_has_an_example() {
        use clap::CommandFactory;
        #[derive(clap::Parser)]
        struct Probe {
            #[command(subcommand)]
            _command: FenceCommand,
        }
        for command in Probe::command().get_subcommands() {
            let example = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(example.contains(&format!("leasehold fence {}", command.get_name())), "{}", command.get_name());
            assert!(command.get_about().is_some(), "{}", command.get_name());
        }
    }
}
