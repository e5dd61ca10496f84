//! Opening: the schema is there and known, its tables are durable, messages come through, and what can be promised is
//! known.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use leasehold_postgres::tokio_postgres::types::Type;
use tokio::runtime::Handle;
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::timeout;

use super::connection::{ConnectionRoute, EngineConnection, ServerConnector};
use super::ids::Bits;
use super::maintenance::run_maintenance;
use super::options::PostgresEngineOptions;
use super::schema::{self, Installed, LAYOUT, SchemaName};
use super::shared::{PostgresShared, ResendPolicy};
use super::sql_error::{Cause, POOLER, SqlFailure};
use super::statements::Sql;
use super::verify::read_facts;
use super::writer::run_writer;
use super::{ENGINE, PostgresEngine};
use crate::error::Error;

/// How long a message may take to be believed lost: over a pooler it never comes.
const SELF_TEST_TIMEOUT: Duration = Duration::from_secs(1);
/// Writers where the options do not say, and how many more there are while commits are slow.
const WRITERS: usize = 2;
const HELPERS: usize = 2;

/// Tables and sequences that a crash would empty, sequences that hand out tokens out of order, and tables that another
/// server writes to.
const CATALOG_FAULTS: &str = "SELECT c.relname || ' is not logged: a crash empties it' FROM pg_class c \
     JOIN pg_namespace n ON n.oid = c.relnamespace \
     WHERE n.nspname = $1 AND c.relkind IN ('r', 'S', 'i') AND c.relpersistence <> 'p' \
     UNION ALL SELECT c.relname || ' has CACHE, INCREMENT or CYCLE: tokens would not rise' FROM pg_sequence s \
     JOIN pg_class c ON c.oid = s.seqrelid JOIN pg_namespace n ON n.oid = c.relnamespace \
     WHERE n.nspname = $1 AND (s.seqcache <> 1 OR s.seqincrement <> 1 OR s.seqcycle) \
     UNION ALL SELECT c.relname || ' is the target of a subscription: another server writes to it' \
     FROM pg_subscription_rel r JOIN pg_class c ON c.oid = r.srrelid JOIN pg_namespace n ON n.oid = c.relnamespace \
     WHERE n.nspname = $1 LIMIT 1";

impl PostgresEngine {
    /// Connects, makes the schema if it is not there and the role may, and checks what can be promised. Its tasks run on
    /// the runtime that this is called in.
    ///
    /// # Errors
    ///
    /// Unavailable when nobody answers there, or a standby does; Invalid for a wrong password, a schema that is missing
    /// or of a newer version, or a pooler that nobody spoke of; Corrupt for tables that a crash would empty.
    pub async fn open(options: PostgresEngineOptions) -> Result<Arc<Self>, Error> {
        let runtime = Handle::try_current()
            .map_err(|_| Error::Invalid("PostgreSQL is asked on a tokio runtime: open it inside one".into()))?;
        let places = options.address.places();
        let attempt = || format!("open postgres://{places}");
        let failed = |failure: SqlFailure| failure.into_error(false, attempt());
        let connector = Arc::new(ServerConnector::new(options, runtime));
        let (to, mut messages) = unbounded_channel();
        let control = connector.open(ConnectionRoute::Statements, Some(to)).await.map_err(failed)?;
        prepare_schema(&connector.options, &control).await?;
        check_catalog(&connector.options.schema, &control).await?;
        let promises = connector.check.promises(&read_facts(&control).await.map_err(failed)?);
        connector.check.set_promised(promises);
        let reader = connector.open(ConnectionRoute::Statements, None).await.map_err(failed)?;
        if !connector.options.pooler {
            let channel = format!("leasehold_test_{}", Bits::draw_random().to_hex());
            control.execute(&format!("LISTEN {channel}")).await.map_err(failed)?;
            reader.execute(&format!("NOTIFY {channel}")).await.map_err(failed)?;
            if !matches!(timeout(SELF_TEST_TIMEOUT, messages.recv()).await, Ok(Some(_))) {
                return Err(Error::Invalid(POOLER.into()));
            }
            control.execute(&format!("UNLISTEN {channel}")).await.map_err(failed)?;
        }
        let identity = read_identity(&connector.options.schema, &reader).await.map_err(failed)?;
        let shared = Arc::new(PostgresShared::new(connector));
        shared.control.put(control).await;
        shared.reader.put(reader).await;
        let engine = Arc::new(Self { shared, promises, identity, keeper: Mutex::new(Weak::new()) });
        engine.start(&attempt).await?;
        Ok(engine)
    }

    async fn start(&self, attempt: &(dyn Fn() -> String + Sync)) -> Result<(), Error> {
        let shared = &self.shared;
        let _ = shared.read_server_clock().await;
        if let Some(base) = shared.options().token_base {
            let base = base.get().cast_signed();
            let parameters = [(&base as _, Type::INT8)];
            let policy = ResendPolicy::Idempotent;
            shared.query_with_retry(attempt, &shared.control, Sql::RaiseFloor, &parameters, policy).await?;
        }
        let writers = shared.options().connections.unwrap_or(WRITERS);
        let helpers = if shared.options().connections.is_none() { HELPERS } else { 0 };
        for at in 0..writers + helpers {
            shared.spawn_background(run_writer(shared.clone(), at >= writers));
        }
        shared.spawn_background(run_maintenance(shared.clone()));
        Ok(())
    }

    /// Makes or upgrades the schema, and nothing else. True: something was changed.
    ///
    /// # Errors
    ///
    /// Unavailable when nobody answers; Invalid when the role may not, or the schema is of a newer version.
    pub async fn migrate(options: &PostgresEngineOptions) -> Result<bool, Error> {
        let attempt = || "migrate postgres://".to_owned();
        let connected = options.address.connect().await;
        let client = connected.map_err(|error| SqlFailure::from_connecting(&error).into_error(false, attempt()))?;
        let installed = schema::read_layout(&client, &options.schema).await;
        let installed = installed.map_err(|error| SqlFailure::from_statement(&error).into_error(false, attempt()))?;
        match installed {
            Installed::Missing => install(options).await,
            Installed::Layout(layout, _) => refuse_layout(layout, &options.schema).map(|()| false),
            Installed::Forbidden => Err(forbidden(&options.schema)),
        }
    }
}

async fn prepare_schema(options: &PostgresEngineOptions, control: &EngineConnection) -> Result<(), Error> {
    let attempt = || "read the layout".to_owned();
    for tried in [false, true] {
        let installed = schema::read_layout(control.client(), &options.schema).await;
        let installed = installed.map_err(|error| SqlFailure::from_statement(&error).into_error(false, attempt()))?;
        match installed {
            Installed::Layout(layout, _) => return refuse_layout(layout, &options.schema),
            Installed::Forbidden => return Err(forbidden(&options.schema)),
            Installed::Missing if tried || !options.migrate => break,
            Installed::Missing => drop(install(options).await?),
        }
    }
    Err(Error::Invalid("the engine is not installed in this database: run `leasehold migrate`".into()))
}

async fn install(options: &PostgresEngineOptions) -> Result<bool, Error> {
    let attempt = || "make the schema of the engine".to_owned();
    let connected = options.address.connect().await;
    let mut client = connected.map_err(|error| SqlFailure::from_connecting(&error).into_error(false, attempt()))?;
    match schema::install(&mut client, &options.schema).await {
        Ok(changed) => Ok(changed),
        Err(error) if error.code().is_some_and(|code| code.code() == "42501") => Err(Error::Invalid(
            "the engine is not installed in this database, and the role may not create a schema: run `leasehold migrate` \
             as an owner, or give the role CREATE"
                .into(),
        )),
        Err(error) => Err(SqlFailure::from_statement(&error).into_error(false, attempt())),
    }
}

fn refuse_layout(layout: i32, schema: &SchemaName) -> Result<(), Error> {
    if layout == LAYOUT {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "the schema {} has layout {layout}, made by a newer Leasehold: this one knows {LAYOUT}",
        schema.as_str()
    )))
}

fn forbidden(schema: &SchemaName) -> Error {
    let grants = schema::grant_sql(schema, "ROLE").replace('\n', " ");
    Error::Invalid(format!("the role may not use the schema of the engine, let its owner run: {grants}"))
}

/// A catalog in which the promises would be lies.
async fn check_catalog(schema: &SchemaName, control: &EngineConnection) -> Result<(), Error> {
    let name = schema.as_str();
    let rows = control.client().query_typed(CATALOG_FAULTS, &[(&name, Type::TEXT)]).await;
    let rows = rows.map_err(|error| {
        SqlFailure::from_statement(&error).into_error(false, "check the tables of the engine".into())
    })?;
    match rows.first().and_then(|row| row.try_get::<_, String>(0).ok()) {
        None => Ok(()),
        Some(fault) => Err(Error::Corrupt {
            engine: ENGINE,
            law: "tables and sequences are as the layout made them".into(),
            at: format!("schema {name}: {fault}"),
        }),
    }
}

/// The system identifier, the database and the schema: the same for every client, and after a failover.
async fn read_identity(schema: &SchemaName, reader: &EngineConnection) -> Result<String, SqlFailure> {
    let rows = reader.query(Sql::Identity, &[]).await?;
    let read = rows.first().and_then(|row| Some((row.try_get::<_, String>(0).ok()?, row.try_get::<_, i64>(1).ok()?)));
    let odd = || SqlFailure::Away(Cause::new("the server does not say which one it is"));
    let (system, database) = read.ok_or_else(odd)?;
    Ok(format!("postgres-{system}-{database}-{}", schema.as_str()))
}
