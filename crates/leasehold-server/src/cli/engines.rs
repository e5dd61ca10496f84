//! `leasehold engines`: what each engine of this build swears to. Promises are data; this prints them.

use clap::Args;
use leasehold::engine::{Promises, embedded};
use serde::Serialize;

use leasehold_support::output::Table;
use leasehold_support::{exit, output};

const EXAMPLE: &str = "\
Example:
  leasehold engines
  leasehold engines --json | jq -r 'select(.fencing) | .engine'

fair is promised among the callers of one process. Between processes that visit the same embedded
directory, as this command line does, the order is not promised. A server (remote) promises what its own
engine does; the line says it for a server of this version.";

/// A server promises what its engine does; this one has the embedded engine.
const SERVER_PROMISES: Promises = Promises { engine: "remote", ..embedded::PROMISES };

/// Every engine of this build, and how its URL is written.
const ENGINES: [(&str, Promises); 2] =
    [("embedded:DIR", embedded::PROMISES), ("leasehold://HOST:PORT", SERVER_PROMISES)];

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
}

impl EnginesArgs {
    /// Prints the table.
    pub fn execute(self) -> anyhow::Result<u8> {
        let rows = ENGINES.map(|(url, promises)| engine_json(url, promises));
        if self.json {
            rows.iter().try_for_each(output::json)?;
            return Ok(exit::DONE);
        }
        let mut table =
            Table::new(&["ENGINE", "URL", "DURABLE", "FENCING", "FAIR", "NEVER EARLY", "OUTLIVES THE PROCESS"]);
        for row in rows {
            let promises = [row.durable, row.fencing, row.fair, row.never_early, row.outlives_process];
            let words = promises.map(|kept| if kept { "yes" } else { "no" }.to_owned());
            table.row([row.engine.to_owned(), row.url.to_owned()].into_iter().chain(words));
        }
        table.print()?;
        Ok(exit::DONE)
    }
}

fn engine_json(url: &'static str, promises: Promises) -> EngineJson {
    // Taken apart by name, so that a new promise cannot be forgotten here.
    let Promises { engine, durable, fencing, fair, never_early, outlives_process } = promises;
    EngineJson { engine, url, durable, fencing, fair, never_early, outlives_process }
}
