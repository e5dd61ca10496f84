//! `leasehold cron`: a command on a schedule, on one machine of many.
//!
//! ```text
//!   CronRunner (library) ──tick is ours──▶ command as under `run` ──▶ finish in the ledger ──▶ release ──▶ next tick
//! ```
//!
//! One file per command. What decides is in the library, `leasehold::recipe::cron`.

mod history;
mod ls;
mod next;
mod notices;
mod rm;
mod run;

use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand};
use leasehold::recipe::Store;
use leasehold_support::time;

use super::store::open_store;

const EXAMPLE: &str = "\
Example:
  leasehold cron report --schedule \"0 3 * * *\" --tz Europe/Berlin -- ./report.sh
  leasehold cron tidy --schedule \"*/30 * * * * *\" --overlap wait --max-run 5m -- ./tidy.sh
  leasehold cron ls                                every schedule, its last run and its next tick
  leasehold cron history report                    what ran, where, and how it ended
  leasehold cron next report                       the coming ticks, and what summer time does to them
  leasehold cron rm report                         forgets a schedule that was given up

Start the same line on every machine: each tick runs on one of them. The schedule has five fields (minute, hour, day,
month, weekday), or six with seconds first. A ledger (--store) keeps which tick ran; no tick is begun twice, and each is
ok, failed, lost (its machine died; it is not repeated), missed or skipped (it came while a run was at work).

The command has the environment of `leasehold run`, and LEASEHOLD_TICK (RFC 3339, UTC); its resource is cron/NAME. The
last 4000 characters of its output are kept in the ledger. When its lease can no longer be proven, its whole process
group is ended before another machine can run. TERM and INT are passed on to it; then this one ends.

--tick asks once and ends, for a timer of your own: the command's own code, or 3 if another machine has the tick.
--at-most-once needs no store: each tick has a lease cron/NAME@TICK that is never released. There is no history then, a
run whose machine died is not reported, and runs of two ticks may overlap.";

/// Runs a command on a schedule, each tick on one machine of many; also: ls, history, next, rm.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE, arg_required_else_help = true)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct CronArgs {
    #[command(subcommand)]
    command: Option<CronCommand>,
    #[command(flatten)]
    run: run::CronRunArgs,
}

#[derive(Debug, Subcommand)]
enum CronCommand {
    Ls(ls::CronLsArgs),
    History(history::CronHistoryArgs),
    Next(next::CronNextArgs),
    Rm(rm::CronRmArgs),
}

impl CronArgs {
    /// Runs the command.
    pub async fn execute(self, engine_url: &str) -> anyhow::Result<u8> {
        match self.command {
            None => self.run.execute(engine_url).await,
            Some(CronCommand::Ls(command)) => command.execute(engine_url).await,
            Some(CronCommand::History(command)) => command.execute(engine_url).await,
            Some(CronCommand::Next(command)) => command.execute(engine_url).await,
            Some(CronCommand::Rm(command)) => command.execute(engine_url).await,
        }
    }
}

/// Where the ledger of runs is.
#[derive(Debug, Args)]
struct CronPlace {
    /// Where runs are kept: postgres://…, sqlite:FILE or leasehold://HOST:PORT [env: LEASEHOLD_STORE] [default: by --url]
    // Read from the environment by hand: clap would show its value, and a URL may carry a password.
    #[arg(long, value_name = "URL")]
    store: Option<String>,
}

impl CronPlace {
    async fn open(&self, engine_url: &str) -> anyhow::Result<Store> {
        open_store(self.store.as_deref(), engine_url).await
    }
}

/// The time of day.
fn wall_now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(time::wall_ms())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: nobody has to guess how a command of cron is typed.
    #[test]
    fn every_command_of_cron_has_an_example() {
        use clap::CommandFactory;
        #[derive(clap::Parser)]
        struct CronProbe {
            #[command(subcommand)]
            _command: CronCommand,
        }
        for command in CronProbe::command().get_subcommands() {
            let example = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(example.contains(&format!("leasehold cron {}", command.get_name())), "{}", command.get_name());
            assert!(command.get_about().is_some(), "{}", command.get_name());
        }
    }
}
