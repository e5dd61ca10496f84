//! Installs a fence on a table: under traffic, in one transaction, again whenever something changed.
//!
//! # Laws
//!
//! 1. One transaction: a table is fenced, or it is as it was.
//! 2. What was remembered stays remembered: over a second install, another store, a removal.
//! 3. Writers wait no longer than the lock timeout at a time. A lock that is not to be had is given up and asked for again.

use std::fmt;
use std::time::Duration;

use leasehold_postgres::tokio_postgres::{Client, Error as SqlError, GenericClient};

use super::FENCE_VERSION;
use super::fenced_row::{FencedRow, database_is_current, read_fenced, remembered_guard};
use super::holes::table_holes;
use super::sql_refusal::{failure_before_commit, unavailable};
use super::sql_text::{DATABASE_SQL, FenceText, Remember, TRIGGER_NAMES, key_warning, quote_ident, quote_literal};
use super::table::{TableShape, find_table, read_shape};
use crate::clock::{Clock as _, SystemClock};
use crate::fence::hole::HoleKind;
use crate::fence::refusal::FenceError;
use crate::fence::resource_template::ResourceTemplate;

/// How long writers may have to wait behind the lock of an install.
const LOCK_TIMEOUT: Duration = Duration::from_millis(200);
/// How often the locks are asked for.
const MAX_ATTEMPTS: u32 = 60;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(400);
/// The advisory lock that lets one install run at a time in a database.
const INSTALL_LOCK: i64 = 5_497_641;

const ATTEMPT: &str = "install the fence";

/// What a fence does with a write that it must not admit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FenceMode {
    /// Refuses it.
    #[default]
    Enforce,
    /// Counts it, logs who it was, and lets it pass: to find the writers that show no token yet.
    Observe,
}

impl FenceMode {
    /// The word on the command line and in `leasehold_fence.fenced`.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Observe => "observe",
        }
    }
}

impl fmt::Display for FenceMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// What to install.
#[derive(Clone, Debug, Default)]
pub struct InstallOptions {
    /// The table, as its name is written: no folding of case; `schema.table` where it is not on the path.
    pub table: String,
    /// The key columns. Empty: as before, or none for one fixed name.
    pub keys: Vec<String>,
    /// The resource of a row, `seat/{}`, or one name for the whole table. None: as before, or `TABLE/{}`.
    pub resource: Option<String>,
    /// Where fences are remembered. None: in the row where that is possible.
    pub remember: Option<Remember>,
    /// What happens to a write that must not be admitted.
    pub mode: FenceMode,
}

/// What was installed, or would be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstallReport {
    /// The table with its schema.
    pub table: String,
    /// The name of this fence among the functions of `leasehold_fence`.
    pub guard: String,
    /// The resource of a row.
    pub resource: String,
    /// Where fences are remembered.
    pub store: Remember,
    /// What happens to a write that must not be admitted.
    pub mode: FenceMode,
    /// What somebody should know.
    pub notes: Vec<String>,
    /// The SQL, in order; empty when everything is as it should be.
    pub statements: Vec<String>,
    /// How often the locks were asked for.
    pub attempts: u32,
}

impl InstallReport {
    /// The SQL as one text, in one transaction.
    #[must_use]
    pub fn sql_text(&self) -> String {
        let mut text = format!("BEGIN;\nSET LOCAL lock_timeout = {};\n", LOCK_TIMEOUT.as_millis());
        for statement in &self.statements {
            text += statement.trim_end();
            text.push('\n');
        }
        text + "COMMIT;\n"
    }
}

/// Installs the fence, and repeats while somebody else holds a lock on the table.
///
/// # Errors
///
/// [`FenceError::Invalid`] for a table, a key or a resource that cannot be fenced. [`FenceError::Unavailable`] when the
/// locks were never to be had, or the database is away: nothing was changed.
pub async fn install(client: &mut Client, options: &InstallOptions) -> Result<InstallReport, FenceError> {
    let mut pause = FIRST_PAUSE;
    let mut attempts = 1;
    loop {
        match try_install(client, options).await {
            Ok(report) => return Ok(InstallReport { attempts, ..report }),
            Err(InstallFailure::Locked(error)) if attempts >= MAX_ATTEMPTS => return Err(unavailable(&error, ATTEMPT)),
            Err(InstallFailure::Locked(_)) => {}
            Err(InstallFailure::Final(error)) => return Err(error),
        }
        attempts += 1;
        SystemClock.sleep_until(SystemClock.now().plus(pause)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Says what [`install`] would do. Changes nothing.
///
/// # Errors
///
/// As [`install`].
pub async fn plan_install(client: &Client, options: &InstallOptions) -> Result<InstallReport, FenceError> {
    plan(client, options).await.map_err(InstallFailure::into_error)
}

/// Why an install did not happen.
pub(super) enum InstallFailure {
    /// A lock was not to be had in time.
    Locked(SqlError),
    Final(FenceError),
}

impl InstallFailure {
    pub fn into_error(self) -> FenceError {
        match self {
            Self::Locked(error) => unavailable(&error, ATTEMPT),
            Self::Final(error) => error,
        }
    }
}

impl From<SqlError> for InstallFailure {
    fn from(error: SqlError) -> Self {
        match error.code().map(|code| code.code()) {
            // A deadlock with a writer is a lock that was not to be had, too.
            Some("55P03" | "40P01") => Self::Locked(error),
            _ => Self::Final(failure_before_commit(error, ATTEMPT)),
        }
    }
}

impl From<FenceError> for InstallFailure {
    fn from(error: FenceError) -> Self {
        Self::Final(error)
    }
}

async fn try_install(client: &mut Client, options: &InstallOptions) -> Result<InstallReport, InstallFailure> {
    let transaction = client.transaction().await?;
    let settings =
        format!("SET LOCAL lock_timeout = {}; SELECT pg_advisory_xact_lock({INSTALL_LOCK})", LOCK_TIMEOUT.as_millis());
    transaction.batch_execute(&settings).await?;
    let report = plan(&transaction, options).await?;
    for statement in &report.statements {
        transaction.batch_execute(statement).await?;
    }
    transaction.commit().await?;
    Ok(report)
}

async fn plan(client: &impl GenericClient, options: &InstallOptions) -> Result<InstallReport, InstallFailure> {
    let shape = fenceable_shape(client, &options.table).await?;
    let before = read_fenced(client).await?.into_iter().find(|row| row.rel == shape.oid);
    if before.as_ref().is_some_and(|row| row.version > FENCE_VERSION) {
        return Err(invalid("a later version of Leasehold installed this fence: use that version".into()));
    }
    let template = chosen_template(options, &shape, before.as_ref())?;
    for key in template.key_columns() {
        shape.find_column(key)?;
    }
    let (store, mut notes) = chosen_store(options, &shape, &template, before.as_ref())?;
    notes.extend(template.key_columns().iter().filter_map(|key| key_warning(shape.find_column(key).ok()?)));
    if shape.subscribed {
        notes.push("a subscription writes to this table: the publisher checks, so replicated writes pass here".into());
    }
    let guard = match (&before, remembered_guard(client, shape.oid).await?) {
        (Some(row), _) => row.guard.clone(),
        (None, Some(guard)) => guard,
        (None, None) => fresh_guard(client).await?,
    };
    let text = FenceText { guard: &guard, shape: &shape, template: &template, store };
    let statements = statements(client, &text, options.mode, before.as_ref(), &mut notes).await?;
    Ok(InstallReport {
        table: shape.display_name(),
        resource: template.as_text().to_owned(),
        store,
        mode: options.mode,
        notes,
        statements,
        attempts: 1,
        guard,
    })
}

fn invalid(sentence: String) -> InstallFailure {
    InstallFailure::Final(FenceError::Invalid(sentence))
}

/// The table, if it is one that can be fenced.
async fn fenceable_shape(client: &impl GenericClient, written: &str) -> Result<TableShape, InstallFailure> {
    let Some(oid) = find_table(client, written).await? else {
        return Err(invalid(format!("there is no table {written}: names are taken as written, with their case")));
    };
    let Some(shape) = read_shape(client, oid).await? else {
        return Err(invalid(format!("{written} is no table: fence the table below it")));
    };
    if shape.is_partition {
        return Err(invalid(format!("{written} is a partition: fence the table that it is a part of")));
    }
    if shape.has_foreign_partition {
        return Err(invalid(format!("{written} has a partition on another server, which cannot be fenced from here")));
    }
    if !shape.children.is_empty() {
        return Err(invalid(format!(
            "{written} has tables that inherit from it, and its fence would not be theirs: fence {} first",
            shape.children.join(", ")
        )));
    }
    Ok(shape)
}

fn chosen_template(
    options: &InstallOptions,
    shape: &TableShape,
    before: Option<&FencedRow>,
) -> Result<ResourceTemplate, FenceError> {
    let keys = match before {
        Some(row) if options.keys.is_empty() => &row.keys,
        _ => &options.keys,
    };
    let text = match (&options.resource, before) {
        (Some(text), _) => text.clone(),
        (None, Some(row)) => row.template.clone(),
        (None, None) if keys.is_empty() => {
            return Err(FenceError::Invalid(
                "name the key columns by --key, or one resource for the whole table by --resource NAME".into(),
            ));
        }
        (None, None) => format!("{}/{{}}", shape.name.replace('{', "{{").replace('}', "}}")),
    };
    ResourceTemplate::parse(&text, keys)
}

/// Where fences are remembered, and why.
fn chosen_store(
    options: &InstallOptions,
    shape: &TableShape,
    template: &ResourceTemplate,
    before: Option<&FencedRow>,
) -> Result<(Remember, Vec<String>), FenceError> {
    let why_not = shape.why_not_row(template.key_columns());
    let column = shape.columns.iter().find(|column| column.name == "leasehold_fence");
    let foreign = column.filter(|column| column.base_type != "text");
    match (options.remember, why_not) {
        (Some(Remember::Row), Some(why)) => {
            Err(FenceError::Invalid(format!("rows cannot remember their own fence: {why}; use --remember name")))
        }
        (Some(Remember::Row) | None, None) if foreign.is_some() => {
            Err(FenceError::Invalid("the table has a column leasehold_fence of its own: use --remember name".into()))
        }
        (Some(store), _) => Ok((store, Vec::new())),
        (None, None) if before.is_some_and(|row| row.store == Remember::Name) => Ok((Remember::Name, Vec::new())),
        (None, None) => Ok((Remember::Row, Vec::new())),
        (None, Some(why)) => Ok((Remember::Name, vec![format!("fences are remembered by name: {why}")])),
    }
}

async fn fresh_guard(client: &impl GenericClient) -> Result<String, SqlError> {
    let sql = "SELECT 'g' || left(replace(gen_random_uuid()::text, '-', ''), 12)";
    client.query_one(sql, &[]).await?.try_get(0)
}

/// The statements that make the table as it should be; none where it is.
async fn statements(
    client: &impl GenericClient,
    text: &FenceText<'_>,
    mode: FenceMode,
    before: Option<&FencedRow>,
    notes: &mut Vec<String>,
) -> Result<Vec<String>, InstallFailure> {
    let mut statements = Vec::new();
    if !database_is_current(client).await? {
        statements.push(DATABASE_SQL.to_owned());
    }
    let template = text.template;
    let same = before.is_some_and(|row| {
        row.store == text.store && row.template == template.as_text() && row.keys == template.key_columns()
    });
    if let Some(row) = before.filter(|_| same && statements.is_empty()) {
        let holes = table_holes(client, text.shape, row).await?;
        if holes.iter().all(|hole| hole.kind == HoleKind::Observing) {
            // No lock on the table: writers do not notice.
            let sql = format!(
                "UPDATE leasehold_fence.fenced SET mode = '{mode}' WHERE guard = {};",
                quote_literal(text.guard)
            );
            return Ok(if row.mode == mode { Vec::new() } else { vec![sql] });
        }
    }
    // Functions lock no table, so they come first and the locks of the table last.
    statements.push(text.functions()?);
    statements.extend(drop_triggers(client, text.shape).await?);
    if let Some(row) = before.filter(|_| !same) {
        statements.extend(carry_memory(text, row, notes)?);
    }
    statements.push(text.triggers()?);
    statements.push(record_sql(text, mode));
    Ok(statements)
}

/// Drops the triggers of ours that a table has. They are made anew in the same transaction.
pub(super) async fn drop_triggers(client: &impl GenericClient, shape: &TableShape) -> Result<Vec<String>, SqlError> {
    let names: Vec<&str> = TRIGGER_NAMES.to_vec();
    // A clone on a partition goes with the trigger of its table.
    let sql = "SELECT n.nspname::text, c.relname::text, t.tgname::text FROM pg_trigger t
        JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE t.tgparentid = 0 AND t.tgname = ANY($2)
            AND (c.oid = $1 OR c.oid IN (SELECT relid FROM pg_partition_tree($1::oid::regclass)))
        ORDER BY (c.oid = $1) DESC, 1, 2, 3";
    let mut statements = Vec::new();
    for row in client.query(sql, &[&shape.oid, &names]).await? {
        let table = format!("{}.{}", quote_ident(row.try_get(0)?), quote_ident(row.try_get(1)?));
        statements.push(format!("DROP TRIGGER {} ON {table};", quote_ident(row.try_get(2)?)));
    }
    Ok(statements)
}

/// Takes along what was remembered in another store.
fn carry_memory(text: &FenceText<'_>, before: &FencedRow, notes: &mut Vec<String>) -> Result<Vec<String>, FenceError> {
    let (guard, table) = (text.guard, text.shape.quoted());
    let renamed = before.template != text.template.as_text() || before.keys.len() != text.template.key_columns().len();
    if renamed {
        notes.push(format!(
            "the resource was {}: tokens that are remembered under other names are not asked for any more",
            before.template
        ));
    }
    let merge = "ON CONFLICT ON CONSTRAINT seen_pkey DO UPDATE SET token = excluded.token, lease = excluded.lease
        WHERE x.token < excluded.token";
    Ok(match (before.store, text.store) {
        (Remember::Row, Remember::Name) if !text.template.is_fixed() => {
            let resource = text.resource_sql("t")?;
            vec![format!(
                "LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE;
INSERT INTO leasehold_fence.seen AS x (scope, resource, token, lease)
  SELECT DISTINCT ON (resource) '', resource, token, lease FROM (
    SELECT {resource} AS resource, split_part(t.leasehold_fence, ':', 1)::bigint AS token, split_part(t.leasehold_fence, ':', 2) AS lease
      FROM {table} t WHERE t.leasehold_fence IS NOT NULL
    UNION ALL SELECT s.resource, s.token, s.lease FROM leasehold_fence.seen s WHERE s.scope = '{guard}') m
  ORDER BY resource, token DESC, lease DESC
  {merge};"
            )]
        }
        (Remember::Name, Remember::Row) => {
            let resource = text.resource_sql("t")?;
            vec![format!(
                "LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE;
ALTER TABLE {table} ADD COLUMN IF NOT EXISTS leasehold_fence text;
UPDATE {table} t SET leasehold_fence = s.token || CASE s.lease WHEN '' THEN '' ELSE ':' || s.lease END
  FROM leasehold_fence.seen s WHERE s.scope = '' AND s.resource = {resource}
    AND (t.leasehold_fence IS NULL OR split_part(t.leasehold_fence, ':', 1)::bigint < s.token);
INSERT INTO leasehold_fence.seen AS x (scope, resource, token, lease)
  SELECT '{guard}', s.resource, s.token, s.lease FROM leasehold_fence.seen s WHERE s.scope = ''
  {merge};"
            )]
        }
        _ => Vec::new(),
    })
}

/// The row of `fenced`.
fn record_sql(text: &FenceText<'_>, mode: FenceMode) -> String {
    let keys: Vec<String> = text.template.key_columns().iter().map(|key| quote_literal(key)).collect();
    format!(
        "INSERT INTO leasehold_fence.fenced (guard, rel, store, template, keys, mode, version, rows_before)
  VALUES ('{}', {}::regclass, '{}', {}, ARRAY[{}]::text[], '{mode}', {FENCE_VERSION}, (SELECT coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)
    FROM pg_stat_all_tables WHERE relid IN (SELECT {}::regclass UNION SELECT p.relid FROM pg_partition_tree({}::regclass) p)))
  ON CONFLICT (guard) DO UPDATE SET rel = excluded.rel, store = excluded.store, template = excluded.template, keys = excluded.keys, mode = excluded.mode, version = excluded.version;",
        text.guard,
        quote_literal(&text.shape.quoted()),
        text.store.word(),
        quote_literal(text.template.as_text()),
        keys.join(", "),
        quote_literal(&text.shape.quoted()),
        quote_literal(&text.shape.quoted()),
    )
}
