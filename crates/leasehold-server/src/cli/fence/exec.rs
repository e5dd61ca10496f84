//! `leasehold fence exec`: SQL or a command under a token.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use clap::Args;
use leasehold::fence::{FenceSetting, postgres, sqlite};
use leasehold_support::exit::{self, Failure};
use leasehold_support::output;

use super::database::{DatabaseArg, FencedDatabase};
use super::fence_failure;

/// Where `run` leaves what a fence is shown.
const FENCE_VARIABLE: &str = "LEASEHOLD_FENCE";

const EXAMPLE: &str = "\
Example:
  leasehold run seat/14 -- leasehold fence exec --url postgres://app@db/shop --sql \"UPDATE seats SET owner = 'ada' WHERE seat_id = 14\"
  leasehold run billing -- leasehold fence exec -- psql --file nightly.sql
  leasehold fence exec --url sqlite:shop.sqlite --token 42:0123456789abcdef --sql \"DELETE FROM seats WHERE seat_id = 14\"

The token is that of LEASEHOLD_FENCE, which leasehold run sets, or --token. --sql runs in one transaction, and prints rows
with tabs between the columns. A command gets the token in PGOPTIONS, for every connection that it opens by libpq: not
through a pooler in transaction mode. Exit code 7 when the fence refuses; a command's own code is passed on.";

/// Runs SQL, or a command that connects to PostgreSQL, under a token.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct FenceExecArgs {
    #[command(flatten)]
    database: DatabaseArg,
    /// The token and the mark of the lease, TOKEN:MARK. Default: LEASEHOLD_FENCE of the environment.
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
    /// The SQL to run.
    #[arg(long, value_name = "TEXT", conflicts_with = "command", required_unless_present = "command")]
    sql: Option<String>,
    /// The command and its arguments.
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl FenceExecArgs {
    /// Runs the SQL or the command.
    pub async fn execute(self) -> anyhow::Result<u8> {
        let shown = self.find_token()?;
        let Some(sql) = &self.sql else { return self.become_command(&shown) };
        let rows = match self.database.parse()? {
            FencedDatabase::Postgres(url) => {
                let mut client = postgres::connect(&url).await.map_err(fence_failure)?;
                postgres::execute_sql(&mut client, shown, sql).await
            }
            FencedDatabase::Sqlite(path) => {
                let mut connection = sqlite::connect(&path).map_err(fence_failure)?;
                sqlite::execute_sql(&mut connection, shown, sql)
            }
        };
        for row in rows.map_err(fence_failure)? {
            let cells: Vec<String> = row.iter().map(|cell| output::plain(cell.as_deref().unwrap_or(""))).collect();
            output::line(cells.join("\t"))?;
        }
        Ok(exit::DONE)
    }

    fn find_token(&self) -> anyhow::Result<FenceSetting> {
        let text = match &self.token {
            Some(text) => text.clone(),
            None => std::env::var(FENCE_VARIABLE).ok().filter(|text| !text.is_empty()).ok_or_else(|| {
                Failure::usage("no token: run this under leasehold run, or give --token TOKEN:MARK of a lease")
            })?,
        };
        text.parse().map_err(|refusal| Failure::usage(format!("{refusal}")))
    }

    /// Becomes the command: its exit code and its signals are its own.
    fn become_command(&self, shown: &FenceSetting) -> anyhow::Result<u8> {
        if self.database.is_given() {
            return Err(Failure::usage("a command connects by itself: give --url with --sql only"));
        }
        let (program, arguments) =
            self.command.split_first().ok_or_else(|| Failure::usage("give --sql TEXT, or -- and a command"))?;
        let before = std::env::var("PGOPTIONS").unwrap_or_default();
        let option = format!("-c leasehold.token={}", escape_option(&shown.to_string()));
        let options = if before.is_empty() { option } else { format!("{before} {option}") };
        let mut command = Command::new(program);
        command.args(arguments).env("PGOPTIONS", options).env(FENCE_VARIABLE, shown.to_string());
        let error = command.exec();
        let program = output::plain(&program.to_string_lossy());
        Err(match error.kind() {
            ErrorKind::NotFound => Failure::coded(exit::NOT_FOUND, format!("{program}: command not found")),
            _ => Failure::coded(exit::NOT_EXECUTABLE, format!("{program}: cannot be executed: {error}")),
        })
    }
}

/// In PGOPTIONS a backslash keeps white space and backslashes from ending the value.
fn escape_option(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_ascii_whitespace() || letter == '\\' {
            escaped.push('\\');
        }
        escaped.push(letter);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_space_in_an_option_is_escaped() {
        assert_eq!(escape_option("42:ab\tseat 1\n7"), "42:ab\\\tseat\\ 1\\\n7");
    }
}
