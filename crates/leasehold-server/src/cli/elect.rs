//! `leasehold elect`: `run` that campaigns for ever.

use std::ffi::OsString;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use clap::Args;
use leasehold::recipe::election::Election;
use leasehold::{Error, Leasehold};

use super::run::leased_command::{self, CommandEnd, LeasedCommand, RunLease};
use super::run::plan::RunPlan;
use super::target::Target;
use leasehold_support::exit::{self, Failure};
use leasehold_support::signals::{self, Signals};
use leasehold_support::{duration, output};

const EXAMPLE: &str = "\
Example:
  leasehold elect scheduler -- ./scheduler
  leasehold elect scheduler --value 10.0.0.7:9000 --again -- sh -c './scheduler --token \"$LEASEHOLD_TOKEN\"'
  leasehold inspect election/scheduler             who leads, and who stands in line

Start it on every machine: one runs the command, the others stand in line for as long as it takes, even while the
engine is away. The command has the environment of `leasehold run`; its resource is election/NAME. When the term can no
longer be proven, the command's whole process group is ended before another can lead, and the exit code is 6; with
--again it stands in line once more. When the command ends, this one resigns and passes its code on.";

/// Runs a command as the leader of many, and ends it before another could lead.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct ElectArgs {
    /// The election.
    #[arg(value_name = "NAME")]
    name: String,
    /// How long a term lasts without renewal: the longest time without a leader when one dies.
    #[arg(long, default_value = "15s", value_parser = duration::parse, allow_hyphen_values = true)]
    ttl: Duration,
    /// What the leader tells the others, such as its address [default: host, pid and program]
    #[arg(long, value_name = "TEXT")]
    value: Option<String>,
    /// How long the command may take between TERM and KILL.
    #[arg(long, default_value = "5s", value_parser = duration::parse, allow_hyphen_values = true)]
    grace: Duration,
    /// Campaign again after a lost term, instead of ending with code 6.
    #[arg(long)]
    again: bool,
    /// Give the command LEASEHOLD_API_KEY too; otherwise it is removed from its environment.
    #[arg(long)]
    pass_key: bool,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl ElectArgs {
    /// Campaigns, runs the command as the leader, resigns.
    pub async fn execute(self, target: &Target) -> anyhow::Result<u8> {
        let plan = RunPlan::new(self.ttl, self.grace, None).map_err(Failure::usage)?;
        if self.name.is_empty() {
            return Err(Failure::usage("an election has a name: say e.g. leasehold elect scheduler -- ./scheduler"));
        }
        // From here on a signal is ours to handle: a term must not be left behind by Ctrl-C.
        let mut signals = Signals::listen()?;
        let client = target.open().await?;
        let done = self.lead_until_done(&client, plan, &mut signals).await;
        // Best effort: what is still under way after the answer is known changes nothing about it.
        let _ = client.close().await;
        done.map(CommandEnd::exit_code)
    }

    async fn lead_until_done(
        &self,
        client: &Leasehold,
        plan: RunPlan,
        signals: &mut Signals,
    ) -> anyhow::Result<CommandEnd> {
        let election = self.election(client);
        let resource = election.resource().to_owned();
        let leased = LeasedCommand::new(&resource, &self.command, plan).run_by("elect").pass_key(self.pass_key);
        loop {
            let lease = tokio::select! {
                biased;
                lease = campaign(client, election.clone()) => lease?,
                signal = signals.next() => return Err(signals::interrupted(signal, signals::NOTHING_HELD)),
            };
            match leased.run(lease, signals).await? {
                CommandEnd::Lost { asked_to_end: false } if self.again => output::say("campaigning again"),
                end => return Ok(end),
            }
        }
    }

    fn election(&self, client: &Leasehold) -> Election {
        let value = self.value.clone().unwrap_or_else(|| leased_command::holder_label(&self.command));
        let said = Mutex::new(String::new());
        let on_trouble = move |error: &Error| {
            let sentence = format!("the campaign goes on: {}", exit::causes(error));
            let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
            // An engine that stays away is told once.
            if *said != sentence {
                output::say(&sentence);
                *said = sentence;
            }
        };
        client.election(&self.name).ttl(self.ttl).value(value).on_trouble(on_trouble)
    }
}

/// Stands in line until this process leads, in the strongest form that the engine offers.
async fn campaign(client: &Leasehold, election: Election) -> Result<RunLease, Error> {
    if client.promises().fencing {
        Ok(RunLease::Fenced(election.campaign().await?.into_lease()))
    } else {
        Ok(RunLease::Plain(election.campaign_unfenced().await?.into_lease()))
    }
}
