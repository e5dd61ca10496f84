//! `leasehold queue`: jobs in a queue of a store, from the shell.
//!
//! One file per command. What they do is in the library, `leasehold::recipe::queue`.

mod child;
mod dead;
mod ls;
mod make;
mod pause;
mod push;
mod work;

use clap::{Args, Subcommand};
use leasehold::recipe::queue::Queue;
use leasehold::recipe::{RecipeError, RecipeRefusal, Store};

use super::store::open_store;

const EXAMPLE: &str = "\
Example:
  leasehold queue push mail '{\"to\": \"ada\"}' --store sqlite:./jobs.db
  leasehold queue work mail -j 4 --store sqlite:./jobs.db -- ./send-mail.sh
  leasehold queue ls --store postgres://app@db/shop

Every delivery of a job has a token: a worker that slept too long cannot acknowledge a job that another has by now. The
same queue is used by any program by SQL, in its own transaction: SELECT leasehold.queue_push('mail', '{\"to\": \"ada\"}').";

/// Hands jobs to workers, each with a token: make, push, work, ls, dead, retry, drop, pause.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE, arg_required_else_help = true)]
pub struct QueueArgs {
    #[command(subcommand)]
    command: QueueCommand,
}

#[derive(Debug, Subcommand)]
enum QueueCommand {
    Make(make::QueueMakeArgs),
    Push(push::QueuePushArgs),
    Work(work::QueueWorkArgs),
    Ls(ls::QueueLsArgs),
    Dead(dead::QueueDeadArgs),
    Retry(dead::QueueRetryArgs),
    Drop(dead::QueueDropArgs),
    Pause(pause::QueuePauseArgs),
}

impl QueueArgs {
    /// Runs the command.
    pub async fn execute(self, engine_url: &str) -> anyhow::Result<u8> {
        match self.command {
            QueueCommand::Make(command) => command.execute(engine_url).await,
            QueueCommand::Push(command) => command.execute(engine_url).await,
            QueueCommand::Work(command) => command.execute(engine_url).await,
            QueueCommand::Ls(command) => command.execute(engine_url).await,
            QueueCommand::Dead(command) => command.execute(engine_url).await,
            QueueCommand::Retry(command) => command.execute(engine_url).await,
            QueueCommand::Drop(command) => command.execute(engine_url).await,
            QueueCommand::Pause(command) => command.execute(engine_url).await,
        }
    }
}

/// Where the queue is.
#[derive(Debug, Args)]
struct QueuePlace {
    /// Where jobs are kept: postgres://…, sqlite:FILE or leasehold://HOST:PORT [env: LEASEHOLD_STORE] [default: by --url]
    // Read from the environment by hand: clap would show its value, and a URL may carry a password.
    #[arg(long, value_name = "URL")]
    store: Option<String>,
}

impl QueuePlace {
    async fn open(&self, engine_url: &str) -> anyhow::Result<Store> {
        open_store(self.store.as_deref(), engine_url).await
    }
}

/// A queue that must be there.
async fn open_existing(place: &QueuePlace, engine_url: &str, name: &str) -> anyhow::Result<Queue> {
    let store = place.open(engine_url).await?;
    Ok(store.queue(name).open_existing().await?)
}

/// A queue; a plain one with the defaults is made if there is none.
async fn open_or_make(store: &Store, name: &str) -> anyhow::Result<Queue> {
    match store.queue(name).open_existing().await {
        Err(RecipeError::Refused(RecipeRefusal::NoQueue { .. })) => Ok(store.queue(name).open().await?),
        opened => Ok(opened?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: nobody has to guess how a command of the queue is typed.
    #[test]
    fn every_command_of_the_queue_has_an_example() {
        use clap::CommandFactory;
        #[derive(clap::Parser)]
        struct QueueProbe {
            #[command(subcommand)]
            _command: QueueCommand,
        }
        for command in QueueProbe::command().get_subcommands() {
            let example = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(example.contains(&format!("leasehold queue {}", command.get_name())), "{}", command.get_name());
            assert!(command.get_about().is_some(), "{}", command.get_name());
        }
    }
}
