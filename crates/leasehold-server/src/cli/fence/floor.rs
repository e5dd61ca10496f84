//! `leasehold fence floor`: raises an engine above every token that a database has seen.

use clap::Args;
use leasehold::Token;
use leasehold::fence::{postgres, sqlite};
use leasehold_support::exit::{self, Failure};
use leasehold_support::output;

use super::database::{DatabaseArg, FencedDatabase};
use super::fence_failure;
use crate::cli::target::Target;

const EXAMPLE: &str = "\
Example:
  leasehold fence floor --engine redis://cache-1:6379 --url postgres://owner@db/shop
  leasehold fence floor --engine embedded:./leases --above 4711

After a restore or a move to another engine, its tokens may be below what the fence has seen, and every new holder would be
refused. Stop granting, run this, start again. A fence is never lowered: that would let the dead back in.
Tokens of etcd:// and zk:// are numbers of the system itself. For them this prints the option token_base=N, which belongs
into every URL of that engine.";

/// Raises the next token of an engine above every token that a database has seen.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct FenceFloorArgs {
    #[command(flatten)]
    database: DatabaseArg,
    /// The engine to raise.
    #[arg(long, value_name = "URL")]
    engine: String,
    /// Raise it above this token instead.
    #[arg(long, value_name = "TOKEN", conflicts_with = "url")]
    above: Option<u64>,
}

impl FenceFloorArgs {
    /// Reads the highest token, and raises the engine above it.
    pub async fn execute(self) -> anyhow::Result<u8> {
        let target = Target::parse(&self.engine)?;
        let (highest, place) = self.find_highest().await?;
        let fixed_base = target.fixed_token_base();
        let client = target.open().await?;
        let raised = client.raise_floor(highest.filter(|_| fixed_base.is_none())).await;
        let closed = client.close().await;
        let floor = raised?;
        closed?;
        if let (Some(base), Some(highest)) = (fixed_base, highest.filter(|highest| *highest > floor)) {
            let wanted = highest.get() - floor.get() + base;
            output::line(format!("token_base={wanted}"))?;
            output::say(format!(
                "the highest token seen was {highest}{place}, and tokens of this engine go on from {floor}: put this \
                 option into every URL of it, then start again"
            ));
            return Ok(exit::DONE);
        }
        match highest {
            Some(highest) => {
                output::line(format!("tokens of the engine are above {floor}; the highest seen was {highest}{place}"))?;
            }
            None => output::line(format!("nothing was seen{place}; no token of the engine is below {floor}"))?,
        }
        Ok(exit::DONE)
    }

    /// The highest token, and where it was found.
    async fn find_highest(&self) -> anyhow::Result<(Option<Token>, String)> {
        if let Some(number) = self.above {
            let token = Token::new(number).ok_or_else(|| Failure::usage("a token is from 1 to 9223372036854775807"))?;
            return Ok((Some(token), String::new()));
        }
        if !self.database.is_given() {
            return Err(Failure::usage("say above what: --url DB for the fenced database, or --above TOKEN"));
        }
        Ok(match self.database.parse()? {
            FencedDatabase::Postgres(url) => {
                let client = postgres::connect(&url).await.map_err(fence_failure)?;
                let sources = postgres::highest_token(&client).await.map_err(fence_failure)?;
                match sources.first() {
                    Some(source) => (Some(source.highest), format!(" in {}", output::plain(&source.table))),
                    None => (None, " in the database".into()),
                }
            }
            FencedDatabase::Sqlite(path) => {
                let connection = sqlite::connect(&path).map_err(fence_failure)?;
                (sqlite::highest_token(&connection).map_err(fence_failure)?, format!(" in {}", path.display()))
            }
        })
    }
}
