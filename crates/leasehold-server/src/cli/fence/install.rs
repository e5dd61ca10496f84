//! `leasehold fence install`: puts a fence on a table.

use clap::{Args, ValueEnum};
use leasehold::fence::postgres::{self, FenceMode, InstallOptions, Remember};
use leasehold::fence::sqlite::{self, SqliteInstallOptions};
use leasehold_support::exit::{self, Failure};
use leasehold_support::output;

use super::database::{DatabaseArg, FencedDatabase};
use super::fence_failure;

const EXAMPLE: &str = "\
Example:
  leasehold fence install --url postgres://owner@db/shop --table seats --key seat_id --resource 'seat/{}'
  leasehold fence install --url postgres://owner@db/shop --table invoices --resource billing --mode observe
  leasehold fence install --url sqlite:shop.sqlite --table seats --key event,seat --dry-run

The resource is the name that is leased: 'seat/{}' is one fence per row, {} all key columns joined by /, {column} one of
them; a name without braces is one fence for the whole table. Install again after a column was renamed, a partition was
added, or a check found a hole: what is remembered stays.

--mode observe (PostgreSQL) counts and logs what it would refuse, and lets it pass: start with it on a busy table, and
install again with --mode enforce when the counter of fence check stands still.";

/// Puts a fence on a table, with data and under traffic.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct FenceInstallArgs {
    #[command(flatten)]
    database: DatabaseArg,
    /// The table, as its name is written; schema.table where it is not on the path.
    #[arg(long, value_name = "TABLE")]
    table: String,
    /// The key columns.
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',')]
    key: Vec<String>,
    /// The resource of a row, or one name for the whole table. Default: TABLE/{}
    #[arg(long, value_name = "NAME")]
    resource: Option<String>,
    /// Where fences are remembered. Default: in the row where that is possible.
    #[arg(long, value_name = "WHERE")]
    remember: Option<RememberWord>,
    /// What happens to a write that must not be admitted.
    #[arg(long, value_name = "MODE", default_value = "enforce")]
    mode: ModeWord,
    /// Print the SQL, and change nothing.
    #[arg(long)]
    dry_run: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RememberWord {
    /// In a column of the row itself.
    Row,
    /// By the name of the resource, in a table of the fence.
    Name,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ModeWord {
    /// Refuse it.
    Enforce,
    /// Count it, log it, and let it pass.
    Observe,
}

impl FenceInstallArgs {
    /// Installs the fence, or prints its SQL.
    pub async fn execute(self) -> anyhow::Result<u8> {
        match self.database.parse()? {
            FencedDatabase::Postgres(url) => self.install_postgres(&url).await,
            FencedDatabase::Sqlite(path) => self.install_sqlite(&path),
        }
    }

    async fn install_postgres(self, url: &str) -> anyhow::Result<u8> {
        let options = InstallOptions {
            table: self.table,
            keys: self.key,
            resource: self.resource,
            remember: self.remember.map(|word| match word {
                RememberWord::Row => Remember::Row,
                RememberWord::Name => Remember::Name,
            }),
            mode: if self.mode == ModeWord::Observe { FenceMode::Observe } else { FenceMode::Enforce },
        };
        let mut client = postgres::connect(url).await.map_err(fence_failure)?;
        let report = if self.dry_run {
            postgres::plan_install(&client, &options).await
        } else {
            postgres::install(&mut client, &options).await
        };
        let report = report.map_err(fence_failure)?;
        for note in &report.notes {
            output::say(output::plain(note));
        }
        if self.dry_run {
            output::line(report.sql_text().trim_end())?;
            return Ok(exit::DONE);
        }
        let store = match report.store {
            Remember::Row => "in the row",
            Remember::Name => "by name",
        };
        let (table, resource) = (output::plain(&report.table), output::plain(&report.resource));
        let mode = report.mode;
        output::line(match report.statements.len() {
            0 => format!("{table} is fenced as {resource}, remembered {store}, mode {mode}: nothing to do"),
            _ => format!("{table} is fenced as {resource}, remembered {store}, mode {mode}"),
        })?;
        Ok(exit::DONE)
    }

    fn install_sqlite(self, path: &std::path::Path) -> anyhow::Result<u8> {
        if self.mode == ModeWord::Observe {
            return Err(Failure::usage("SQLite cannot count what it lets pass: --mode observe is for PostgreSQL"));
        }
        if self.remember == Some(RememberWord::Row) {
            return Err(Failure::usage("on SQLite fences are remembered by name: leave --remember out"));
        }
        let options = SqliteInstallOptions { table: self.table, keys: self.key, resource: self.resource };
        let mut connection = sqlite::connect(path).map_err(fence_failure)?;
        if self.dry_run {
            let report = sqlite::plan_install(&connection, &options).map_err(fence_failure)?;
            output::line(report.sql_text().trim_end())?;
            return Ok(exit::DONE);
        }
        let report = sqlite::install(&mut connection, &options).map_err(fence_failure)?;
        for note in &report.notes {
            output::say(output::plain(note));
        }
        let (table, resource) = (output::plain(&report.table), output::plain(&report.resource));
        let rest = if report.statements.is_empty() { ": nothing to do" } else { "" };
        output::line(format!("{table} is fenced as {resource}{rest}"))?;
        Ok(exit::DONE)
    }
}
