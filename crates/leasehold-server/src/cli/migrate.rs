//! `leasehold migrate`: makes or upgrades our schemas in a database, or prints the SQL for whoever owns it.

use std::path::Path;

use clap::Args;
use leasehold::Leasehold;
use leasehold::clock::SystemClock;
use leasehold::engine::postgres::{PostgresEngineOptions, grant_sql, migration_sql};
use leasehold::recipe::{Store, store};
use leasehold_boxoffice::ledger::postgres::{self as ledger, Postgres, PostgresOptions};
use leasehold_boxoffice::ledger::sqlite::Sqlite;
use leasehold_support::exit::{self, Failure};
use leasehold_support::output;

use crate::boxoffice::open::exit_failure;
use crate::config::LedgerUrl;

const EXAMPLE: &str = "\
Example:
  leasehold migrate --engine postgres://owner@db/app
  leasehold migrate --engine postgres://owner@db/app --print --role app > leasehold.sql
  leasehold migrate --store postgres://owner@db/app
  leasehold migrate --ledger postgres://owner@db/shop

A server and a client make what is missing when they open a database, if their role may. This is for databases
where it may not. --print asks no database: it prints what makes a new installation.";

/// Makes or upgrades the schemas of an engine, of a store of recipes and of a ledger.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct MigrateArgs {
    /// The engine's database, postgres://…
    #[arg(long, value_name = "URL")]
    engine: Option<String>,
    /// Where recipes keep their rows, postgres://… or sqlite:FILE.
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// The box office's ledger, postgres://… or sqlite:FILE.
    #[arg(long, value_name = "URL")]
    ledger: Option<String>,
    /// Print the SQL of a new installation instead.
    #[arg(long)]
    print: bool,
    /// With --print and --engine: also let this role use the engine.
    #[arg(long, value_name = "ROLE")]
    role: Option<String>,
}

impl MigrateArgs {
    /// Migrates, or prints the SQL.
    pub async fn execute(self) -> anyhow::Result<u8> {
        if self.engine.is_none() && self.store.is_none() && self.ledger.is_none() {
            return Err(Failure::usage("nothing to migrate: give --engine URL, --store URL or --ledger URL"));
        }
        if self.role.is_some() && !(self.print && self.engine.is_some()) {
            return Err(Failure::usage("--role is printed with the engine's SQL: give --print and --engine URL too"));
        }
        if let Some(url) = &self.engine {
            self.migrate_engine(url).await?;
        }
        if let Some(url) = &self.store {
            self.migrate_store(url).await?;
        }
        if let Some(url) = &self.ledger {
            self.migrate_ledger(url).await?;
        }
        Ok(exit::DONE)
    }

    async fn migrate_engine(&self, url: &str) -> anyhow::Result<()> {
        if !(url.starts_with("postgres://") || url.starts_with("postgresql://")) {
            return Err(Failure::usage("only an engine on PostgreSQL has a schema: give --engine postgres://…"));
        }
        let options = PostgresEngineOptions::from_url(url)?;
        if self.print {
            output::line("BEGIN;")?;
            output::line(migration_sql(&options.schema).trim_end())?;
            if let Some(role) = &self.role {
                output::line(grant_sql(&options.schema, role).trim_end())?;
            }
            return output::line("COMMIT;");
        }
        let schema = options.schema.clone();
        let engine = Leasehold::open(url).await?;
        engine.close().await?;
        output::line(format!("the engine's schema {} is up to date", schema.as_str()))
    }

    async fn migrate_store(&self, url: &str) -> anyhow::Result<()> {
        let on_postgres = url.starts_with("postgres://") || url.starts_with("postgresql://");
        if url.starts_with("leasehold://") || url.starts_with("leaseholds://") {
            return Err(Failure::usage("a server makes the tables of its store itself: give the database"));
        }
        if self.print && on_postgres {
            return output::line(store::migration_sql().trim_end());
        }
        if self.print {
            return Err(Failure::usage("a store on SQLite is made by whoever opens it: there is no SQL to print"));
        }
        Store::open(url).await?.close().await;
        let place = if on_postgres { format!("'s schema {}", store::SCHEMA) } else { String::new() };
        output::line(format!("the store{place} is up to date"))
    }

    async fn migrate_ledger(&self, url: &str) -> anyhow::Result<()> {
        match LedgerUrl::parse(url, Path::new(".")).map_err(Failure::usage)? {
            LedgerUrl::None => Err(Failure::usage("there is no ledger to migrate: leave --ledger out")),
            LedgerUrl::Sqlite(_) if self.print => {
                Err(Failure::usage("a SQLite ledger is made by whoever opens it: there is no SQL to print"))
            }
            LedgerUrl::Sqlite(path) => {
                Sqlite::open(&path, SystemClock::shared()).await.map_err(exit_failure)?;
                output::line(format!("the ledger {} is up to date", path.display()))
            }
            LedgerUrl::Postgres(_) if self.print => output::line(ledger::migration_sql().trim_end()),
            LedgerUrl::Postgres(url) => {
                Postgres::open(url.expose(), PostgresOptions::default()).await.map_err(exit_failure)?;
                output::line(format!("the ledger's schema {} is up to date", ledger::SCHEMA))
            }
        }
    }
}
