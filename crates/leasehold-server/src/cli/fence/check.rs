//! `leasehold fence check`: fenced tables, their highest tokens, and every hole there is.

use clap::Args;
use leasehold::fence::FenceHole;
use leasehold::fence::postgres::{self, FenceExamination};
use leasehold::fence::sqlite::{self, SqliteExamination};
use leasehold_support::exit;
use leasehold_support::output::{self, Table, plain};

use super::database::{DatabaseArg, FencedDatabase};
use super::fence_failure;
use crate::cli::target::Target;

const EXAMPLE: &str = "\
Example:
  leasehold fence check --url postgres://owner@db/shop
  leasehold fence check --url postgres://owner@db/shop --engine leasehold://127.0.0.1:7401
  leasehold fence check --url sqlite:shop.sqlite --prometheus > /var/lib/node-exporter/fence.prom

Exit code 1 if there is a hole: a way by which a stale write could get past a fence. With --engine also if the engine may
give out tokens that the fence has seen. Notes are what cannot be stopped, or is worth knowing.";

/// Shows fenced tables and every hole in their fences; exit code 1 if there is one.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct FenceCheckArgs {
    #[command(flatten)]
    database: DatabaseArg,
    /// The engine whose tokens are shown to the fence: reads large tables whole.
    #[arg(long, value_name = "URL")]
    engine: Option<String>,
    /// Print metrics in the text format of Prometheus.
    #[arg(long)]
    prometheus: bool,
}

impl FenceCheckArgs {
    /// Examines the fences and prints what was found.
    pub async fn execute(self) -> anyhow::Result<u8> {
        let database = self.database.parse()?;
        let floor = match &self.engine {
            Some(url) => Some(read_floor(url).await?),
            None => None,
        };
        let holes = match database {
            FencedDatabase::Postgres(url) => {
                let client = postgres::connect(&url).await.map_err(fence_failure)?;
                let mut found = postgres::examine(&client, floor.is_some()).await.map_err(fence_failure)?;
                if let Some(floor) = floor {
                    found.compare_with_floor(floor);
                }
                if self.prometheus {
                    print_metrics(&found)?
                } else {
                    print_tables(&found)?
                }
                found.holes
            }
            FencedDatabase::Sqlite(path) => {
                let connection = sqlite::connect(&path).map_err(fence_failure)?;
                let mut found = sqlite::examine(&connection).map_err(fence_failure)?;
                if let Some(floor) = floor {
                    found.compare_with_floor(floor);
                }
                if self.prometheus {
                    print_sqlite_metrics(&found)?
                } else {
                    print_sqlite_tables(&found)?
                }
                found.holes
            }
        };
        Ok(if holes.is_empty() { exit::DONE } else { exit::UNEXPECTED })
    }
}

/// The token below which the engine gives out none any more.
async fn read_floor(url: &str) -> anyhow::Result<leasehold::Token> {
    let client = Target::parse(url)?.open().await?;
    let floor = client.raise_floor(None).await;
    let _ = client.close().await;
    Ok(floor?)
}

fn print_tables(found: &FenceExamination) -> anyhow::Result<()> {
    if found.tables.is_empty() {
        output::line("no table is fenced")?;
    } else {
        let mut table = Table::new(&["TABLE", "RESOURCE", "REMEMBERED", "MODE", "HIGHEST", "ADMITTED", "REFUSED"]);
        for fenced in &found.tables {
            let highest = fenced.highest.map_or_else(|| "-".to_owned(), |token| token.to_string());
            let highest = if fenced.is_highest_exact { highest } else { format!("{highest} (sampled)") };
            table.row([
                fenced.table.clone(),
                fenced.resource.clone(),
                fenced.store.word().to_owned(),
                fenced.mode.to_string(),
                highest,
                fenced.admitted.to_string(),
                fenced.rejected.to_string(),
            ]);
        }
        table.print()?;
    }
    print_findings(&found.holes, &found.notes)
}

fn print_sqlite_tables(found: &SqliteExamination) -> anyhow::Result<()> {
    if found.tables.is_empty() {
        output::line("no table is fenced")?;
    } else {
        let mut table = Table::new(&["TABLE", "RESOURCE"]);
        for fenced in &found.tables {
            table.row([fenced.table.clone(), fenced.resource.clone()]);
        }
        table.print()?;
        let highest = found.highest.map_or_else(|| "-".to_owned(), |token| token.to_string());
        output::line(format!("highest token  {highest}"))?;
    }
    print_findings(&found.holes, &found.notes)
}

fn print_findings(holes: &[FenceHole], notes: &[String]) -> anyhow::Result<()> {
    for hole in holes {
        let place = if hole.table.is_empty() { String::new() } else { format!("{}: ", hole.table) };
        output::line(plain(&format!("hole ({}): {place}{}", hole.kind.word(), hole.sentence)))?;
    }
    for note in notes {
        output::line(plain(&format!("note: {note}")))?;
    }
    Ok(())
}

/// Resources are never labels: there may be millions of them.
fn print_metrics(found: &FenceExamination) -> anyhow::Result<()> {
    let families = [
        ("leasehold_fence_admitted_total", "Rows written since the fence came, as the statistics count them."),
        ("leasehold_fence_rejected_total", "Writes that were refused, or would have been."),
    ];
    for (at, (name, help)) in families.into_iter().enumerate() {
        output::line(format!("# HELP {name} {help}\n# TYPE {name} counter"))?;
        for fenced in &found.tables {
            let value = if at == 0 { fenced.admitted } else { fenced.rejected };
            output::line(format!("{name}{{kind=\"postgres\",table=\"{}\"}} {value}", label(&fenced.table)))?;
        }
    }
    print_holes_metric("postgres", found.holes.len())
}

fn print_sqlite_metrics(found: &SqliteExamination) -> anyhow::Result<()> {
    print_holes_metric("sqlite", found.holes.len())
}

fn print_holes_metric(kind: &str, holes: usize) -> anyhow::Result<()> {
    let name = "leasehold_fence_holes";
    output::line(format!("# HELP {name} Ways by which a stale write could get past a fence.\n# TYPE {name} gauge"))?;
    output::line(format!("{name}{{kind=\"{kind}\"}} {holes}"))
}

/// The value of a label, escaped as the text format wants it.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
