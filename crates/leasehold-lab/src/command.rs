//! `leasehold lab`: its options, and what it prints.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use leasehold_support::exit::{self, Failure};
use leasehold_support::output::{self, Table};
use leasehold_support::signals;

pub use crate::actor::{ACTOR_COMMAND, ActorArgs};
use crate::labs::LabName;
use crate::print::PrintStyle;
use crate::report;
use crate::stage::{Recorder, Stage, require_postgres};
use crate::timeline::LabTimeline;

const EXAMPLE: &str = "\
Example:
  leasehold lab                                    the list
  leasehold lab pause                              a holder sleeps longer than its lease, wakes up and writes
  leasehold lab oversell --report oversell.html    with a picture too, in one file that works offline

Each lab shows a failure first, then its cure, within a minute, on processes and servers of its own that end
with it. It asserts what it shows: exit code 1 if the failure or the cure did not show, 4 if a program that it
needs is not installed.";

/// What is left of a lab that was interrupted.
const NOTHING_LEFT: &str = "everything that the lab started was ended";

/// Timeout for threads that still run when the lab is done.
const RUNTIME_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Shows a classic failure of distributed locks on real processes, then its cure.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct LabArgs {
    /// Which lab; without one, the list of them.
    lab: Option<LabName>,
    /// Write a report with a picture to this file: HTML, readable offline.
    #[arg(long, value_name = "FILE.html", requires = "lab")]
    report: Option<PathBuf>,
    /// Keep the seats in a PostgreSQL of the lab's own; without it, in SQLite.
    #[arg(long, requires = "lab")]
    postgres: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl LabArgs {
    /// Plays the lab, or lists them.
    ///
    /// # Errors
    ///
    /// If a program is missing, a process dies, or a signal comes.
    pub fn execute(self) -> anyhow::Result<u8> {
        let Some(lab) = self.lab else { return list_labs(self.json) };
        if let Some(report) = &self.report {
            check_report_path(report)?;
        }
        if self.postgres && !lab.has_seats() {
            let sentence =
                format!("--postgres: the lab {} has no seats; pause, partition, failover and redlock do", lab.text());
            return Err(Failure::usage(sentence));
        }
        // On this thread: the actors end with the thread that started them.
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the runtime")?;
        let played =
            runtime.block_on(signals::unless_interrupted(NOTHING_LEFT, play_lab(lab, self.postgres, self.json)));
        runtime.shutdown_timeout(RUNTIME_SHUTDOWN_TIMEOUT);
        let timeline = played?;
        if let Some(report) = &self.report {
            std::fs::write(report, report::page(&timeline))
                .with_context(|| format!("write the report to {}", report.display()))?;
            output::say(format!("the report is in {}", report.display()));
        }
        if self.json {
            output::json(&timeline)?;
        } else if timeline.missing.is_empty() {
            PrintStyle::for_stdout().print_end(&timeline)?;
        }
        judge_lab(timeline)
    }
}

/// A lab that did not show what it is for has failed.
fn judge_lab(timeline: LabTimeline) -> anyhow::Result<u8> {
    match timeline.missing.is_empty() {
        true => Ok(exit::DONE),
        false => Err(Failure::coded(exit::UNEXPECTED, timeline.sentence)),
    }
}

async fn play_lab(lab: LabName, postgres: bool, json: bool) -> anyhow::Result<LabTimeline> {
    let style = (!json).then(PrintStyle::for_stdout);
    let mut stage = Stage::new(Recorder::new(lab.text(), lab.title(), style))?;
    lab.check_needs()?;
    if postgres {
        require_postgres()?;
        stage.start_postgres().await?;
    }
    if let Some(style) = style {
        style.print_title(lab.text(), lab.title())?;
    }
    let sentence = lab.play(&mut stage).await?;
    Ok(stage.finish(sentence))
}

fn list_labs(json: bool) -> anyhow::Result<u8> {
    if json {
        for lab in LabName::ALL {
            let needs: Vec<&str> = lab.needs().iter().map(|(program, _)| *program).collect();
            output::json(&serde_json::json!({"lab": lab.text(), "shows": lab.title(), "needs": needs}))?;
        }
        return Ok(exit::DONE);
    }
    let mut table = Table::new(&["LAB", "SHOWS", "NEEDS"]);
    for lab in LabName::ALL {
        let needs = lab.needs().first().map_or("nothing", |(program, _)| program);
        table.row([lab.text().to_owned(), lab.title().to_owned(), needs.to_owned()]);
    }
    table.print()?;
    Ok(exit::DONE)
}

/// A lab takes some seconds: a report that cannot be written is told before.
fn check_report_path(report: &Path) -> anyhow::Result<()> {
    let folder = report.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return Err(Failure::usage(format!("--report: there is no directory {}", folder.display())));
    }
    if report.is_dir() {
        return Err(Failure::usage(format!("--report: {} is a directory, name a file", report.display())));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::ActKind;

    /// Goal: a lab asserts what it shows.
    #[test]
    fn a_lab_that_did_not_show_its_failure_ends_with_1() {
        for (shown, code) in [(true, exit::DONE), (false, exit::UNEXPECTED)] {
            let mut record = Recorder::new("pause", "a test", None);
            record.begin_act(ActKind::Failure, "the failure").expect("nothing is printed");
            record.expect(shown, "bob's sale is lost");
            let judged = judge_lab(record.finish("Seen.".into()));
            assert_eq!(judged.unwrap_or_else(|error| exit::code(&error)), code);
        }
    }
}
