//! `leasehold engines`: what each engine of this build swears to. Promises are data; this prints them.

use clap::Args;
use leasehold::engine::{EngineProfile, PROFILES, Promises};
use serde::Serialize;

use leasehold_support::output::Table;
use leasehold_support::{exit, output};

const EXAMPLE: &str = "\
Example:
  leasehold engines
  leasehold engines --json | jq -r 'select(.fencing) | .engine'

The table says what each engine promises at best, and below it what that needs. What yours promises, as it is
configured, leasehold doctor tells. fair is promised among the callers of one process and, but for embedded: and
redlock:, among processes.";

/// Shows the promise table of every engine in this version.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct EnginesArgs {
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct EngineJson {
    engine: &'static str,
    url: &'static str,
    durable: bool,
    fencing: bool,
    fair: bool,
    never_early: bool,
    outlives_process: bool,
    needs: &'static [&'static str],
}

impl EnginesArgs {
    /// Prints the table.
    pub fn execute(self) -> anyhow::Result<u8> {
        let rows: Vec<EngineJson> = PROFILES.iter().map(engine_json).collect();
        if self.json {
            rows.iter().try_for_each(output::json)?;
            return Ok(exit::DONE);
        }
        let mut table =
            Table::new(&["ENGINE", "URL", "DURABLE", "FENCING", "FAIR", "NEVER EARLY", "OUTLIVES THE PROCESS"]);
        for row in &rows {
            let promises = [row.durable, row.fencing, row.fair, row.never_early, row.outlives_process];
            let words = promises.map(|kept| if kept { "yes" } else { "no" }.to_owned());
            table.row([row.engine.to_owned(), row.url.to_owned()].into_iter().chain(words));
        }
        table.print()?;
        for row in rows.iter().filter(|row| !row.needs.is_empty()) {
            output::line("")?;
            output::line(format!("{} needs for that: {}", row.engine, row.needs.join("; ")))?;
        }
        Ok(exit::DONE)
    }
}

fn engine_json(profile: &EngineProfile) -> EngineJson {
    let EngineProfile { url, best, needs } = *profile;
    // Taken apart by name, so that a new promise cannot be forgotten here.
    let Promises { engine, durable, fencing, fair, never_early, outlives_process } = best;
    EngineJson { engine, url, durable, fencing, fair, never_early, outlives_process, needs }
}
