//! `leasehold doctor`: what an engine, as it is configured, promises, and which setting is behind each *no*.
//!
//! Knows no engine by name: everything comes from [`leasehold::engine::Engine::promises`] and
//! [`leasehold::engine::Engine::examine`].

use clap::Args;
use leasehold::engine::{Finding, FindingKind, Promise, Promises};
use leasehold_support::output::{Table, plain};
use leasehold_support::{exit, output};
use serde::Serialize;

use super::target::Target;

const EXAMPLE: &str = "\
Example:
  leasehold doctor --url redis://cache-1:6379
  leasehold doctor --need fencing,durable && ./start-billing.sh
  leasehold doctor --json | jq -r '.findings[] | select(.kind == \"denies\") | .sentence'

Exit code 0 if everything that --need names is promised, else 1. Without --need it is 0 whenever the engine
could be asked.";

/// Tells what an engine, as it is configured, can and cannot promise, and why.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct DoctorArgs {
    /// Promises that must be made: durable, fencing, fair, never_early, outlives_process.
    #[arg(long, value_name = "PROMISE", value_delimiter = ',')]
    need: Vec<Promise>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct DoctorJson<'a> {
    engine: &'static str,
    identity: Option<&'a str>,
    promises: PromisesJson,
    /// Those of `--need` that are not promised.
    missing: Vec<&'static str>,
    findings: Vec<FindingJson<'a>>,
}

#[derive(Debug, Serialize)]
struct PromisesJson {
    durable: bool,
    fencing: bool,
    fair: bool,
    never_early: bool,
    outlives_process: bool,
}

#[derive(Debug, Serialize)]
struct FindingJson<'a> {
    kind: &'static str,
    promises: Vec<&'static str>,
    setting: &'a str,
    found: &'a str,
    wanted: &'a str,
    sentence: &'a str,
}

impl DoctorArgs {
    /// Examines the engine and prints what was found.
    pub async fn execute(self, target: &Target) -> anyhow::Result<u8> {
        let client = target.open().await?;
        let examined = async { Ok::<_, leasehold::Error>((client.identity().await?, client.examine().await?)) }.await;
        let promises = client.promises();
        // What was found is worth more than how closing went.
        let closed = client.close().await;
        let (identity, findings) = examined?;
        let missing: Vec<Promise> = self.need.iter().copied().filter(|needed| !promises.includes(*needed)).collect();
        if self.json {
            output::json(&DoctorJson {
                engine: promises.engine,
                identity: identity.as_deref(),
                promises: promises_json(promises),
                missing: missing.iter().map(|promise| promise.word()).collect(),
                findings: findings.iter().map(finding_json).collect(),
            })?;
        } else {
            print_report(promises, identity.as_deref(), &findings)?;
            for promise in &missing {
                output::say(format!("{promise} is needed, and not promised"));
            }
        }
        closed?;
        Ok(if missing.is_empty() { exit::DONE } else { exit::UNEXPECTED })
    }
}

fn promises_json(promises: Promises) -> PromisesJson {
    // Taken apart by name, so that a new promise cannot be forgotten here.
    let Promises { engine: _, durable, fencing, fair, never_early, outlives_process } = promises;
    PromisesJson { durable, fencing, fair, never_early, outlives_process }
}

fn denied(finding: &Finding) -> &[Promise] {
    match &finding.kind {
        FindingKind::Denies(promises) => promises,
        FindingKind::Warning | FindingKind::Note => &[],
    }
}

fn finding_json(finding: &Finding) -> FindingJson<'_> {
    FindingJson {
        kind: finding.kind.word(),
        promises: denied(finding).iter().map(|promise| promise.word()).collect(),
        setting: &finding.setting,
        found: &finding.found,
        wanted: &finding.wanted,
        sentence: &finding.sentence,
    }
}

/// The promises with the reason for each *no*, then what else somebody should know.
fn print_report(promises: Promises, identity: Option<&str>, findings: &[Finding]) -> anyhow::Result<()> {
    output::line(format!("engine    {}", promises.engine))?;
    if let Some(identity) = identity {
        output::line(format!("identity  {}", plain(identity)))?;
    }
    output::line("")?;
    let mut table = Table::new(&["PROMISE", "MADE", "BECAUSE", "FOUND", "WANTED"]);
    for promise in Promise::ALL {
        let reasons: Vec<&Finding> = findings.iter().filter(|finding| denied(finding).contains(&promise)).collect();
        let made = if promises.includes(promise) { "yes" } else { "no" };
        if reasons.is_empty() {
            table.row([promise.word(), made, "", "", ""].map(str::to_owned));
        }
        for (at, reason) in reasons.into_iter().enumerate() {
            let (name, made) = if at == 0 { (promise.word(), made) } else { ("", "") };
            let cells = [name, made, &reason.setting, &reason.found, &reason.wanted];
            table.row(cells.map(plain));
        }
    }
    table.print()?;
    let rank = |finding: &&Finding| match finding.kind {
        FindingKind::Denies(_) => 0,
        FindingKind::Warning => 1,
        FindingKind::Note => 2,
    };
    let mut ordered: Vec<&Finding> = findings.iter().collect();
    ordered.sort_by_key(rank);
    for finding in ordered {
        let wanted = if finding.wanted.is_empty() { String::new() } else { format!(", wanted {}", finding.wanted) };
        let (kind, setting, found) = (finding.kind.word(), &finding.setting, &finding.found);
        let sentence = finding.sentence.trim_end_matches('.');
        output::line("")?;
        output::line(plain(&format!("{kind}: {sentence}")))?;
        output::line(plain(&format!("  ({setting}: {found}{wanted})")))?;
    }
    Ok(())
}
