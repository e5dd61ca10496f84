//! Installs a fence on a table: under traffic, in one transaction, again whenever something changed.
//!
//! # Laws
//!
//! 1. One transaction: a table is fenced, or it is as it was.
//! 2. What was remembered stays remembered: over a second install, another store, a removal.
//! 3. Writers wait no longer than the lock timeout at a time. A lock that is not to be had is given up and asked for again.

use std::fmt;
use std::time::Duration;

use leasehold_postgres::tokio_postgres::{Client, Error as SqlError, GenericClient, IsolationLevel, Transaction};

use super::FENCE_VERSION;
use super::fenced_row::{FencedRow, database_is_current, read_fenced, remembered_guard};
use super::holes::table_holes;
use super::permission::{InstallPermission, read_permission};
use super::row_memory::{has_memory, has_rows_below, lift_rows_sql};
use super::sql_refusal::{WorkFailure, failure_before_commit, failure_of_commit, unavailable};
use super::sql_text::{
    DATABASE_SQL, FenceText, Remember, TRIGGER_NAMES, function_texts, key_warning, quote_ident, quote_literal,
};
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

const ATTEMPT: &str = "install or remove the fence";

/// The first with CREATE OR REPLACE TRIGGER.
const OLDEST_SERVER: i32 = 140_000;

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
        if self.statements.is_empty() {
            return "-- nothing to do\n".to_owned();
        }
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
    let mut patience = LockPatience::default();
    loop {
        match try_install(client, options).await {
            Ok(report) => return Ok(InstallReport { attempts: patience.attempts, ..report }),
            Err(failure) => patience.wait_after(failure).await?,
        }
    }
}

/// Says what [`install`] would do. Changes nothing.
///
/// # Errors
///
/// As [`install`].
pub async fn plan_install(client: &Client, options: &InstallOptions) -> Result<InstallReport, FenceError> {
    let planned = async {
        let shape = fenceable_shape(client, &options.table).await?;
        let permission = read_permission(client, &shape).await?;
        let mut report = plan(client, options, &shape, &permission).await?;
        // Another role may run the text.
        report.notes.extend(permission.why_not());
        Ok::<_, InstallFailure>(report)
    };
    planned.await.map_err(InstallFailure::into_error)
}

/// How often the locks of a table were asked for, and how long to wait before the next time.
pub(super) struct LockPatience {
    attempts: u32,
    pause: Duration,
}

impl Default for LockPatience {
    fn default() -> Self {
        Self { attempts: 1, pause: FIRST_PAUSE }
    }
}

impl LockPatience {
    /// Waits if a lock was not to be had; afterwards the caller tries again.
    ///
    /// # Errors
    ///
    /// Any other failure, and the last attempt.
    pub async fn wait_after(&mut self, failure: InstallFailure) -> Result<(), FenceError> {
        if self.attempts >= MAX_ATTEMPTS || matches!(failure, InstallFailure::Final(_)) {
            return Err(failure.into_error());
        }
        self.attempts += 1;
        SystemClock.sleep_until(SystemClock.now().plus(self.pause)).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }
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
    let transaction = begin_change(client).await?;
    let shape = fenceable_shape(&transaction, &options.table).await?;
    let permission = read_permission(&transaction, &shape).await?;
    if let Some(sentence) = permission.why_not() {
        return Err(invalid(sentence));
    }
    await_observed_writers(&transaction, options, &shape).await?;
    let report = plan(&transaction, options, &shape, &permission).await?;
    for statement in &report.statements {
        transaction.batch_execute(statement).await?;
    }
    commit_change(transaction).await?;
    Ok(report)
}

/// Before a fence that observed enforces: who still writes may leave a row that remembers too little. Where nothing is
/// remembered beside the rows there is no such row, and nobody waits.
async fn await_observed_writers(
    transaction: &Transaction<'_>,
    options: &InstallOptions,
    shape: &TableShape,
) -> Result<(), InstallFailure> {
    let rows = read_fenced(transaction).await?;
    let Some(row) = rows.iter().find(|row| row.rel == shape.oid) else { return Ok(()) };
    let observes = row.mode == FenceMode::Observe && options.mode == FenceMode::Enforce;
    if observes && row.store == Remember::Row && has_memory(transaction, &row.guard).await? {
        transaction.batch_execute(&format!("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE", shape.quoted())).await?;
    }
    Ok(())
}

/// A transaction that changes fences: one at a time in a database, and nobody waits long behind its locks.
pub(super) async fn begin_change(client: &mut Client) -> Result<Transaction<'_>, InstallFailure> {
    // Read committed: what is decided after a lock was waited for is decided by what was committed before it. Rows that a
    // policy hides from this role must be an error, not left out.
    let transaction = client.build_transaction().isolation_level(IsolationLevel::ReadCommitted).start().await?;
    let settings = format!(
        "SET LOCAL lock_timeout = {}; SET LOCAL row_security = off; SELECT pg_advisory_xact_lock({INSTALL_LOCK})",
        LOCK_TIMEOUT.as_millis()
    );
    transaction.batch_execute(&settings).await?;
    Ok(transaction)
}

/// Commits. A connection that is lost here leaves it unknown whether the fence is there.
pub(super) async fn commit_change(transaction: Transaction<'_>) -> Result<(), InstallFailure> {
    transaction.commit().await.map_err(|error| match failure_of_commit(&error, ATTEMPT) {
        WorkFailure::Final(failure) => InstallFailure::Final(failure),
        WorkFailure::Again(_) => InstallFailure::Locked(error),
    })
}

async fn plan(
    client: &impl GenericClient,
    options: &InstallOptions,
    shape: &TableShape,
    permission: &InstallPermission,
) -> Result<InstallReport, InstallFailure> {
    let version: i32 = client.query_one("SELECT current_setting('server_version_num')::int", &[]).await?.try_get(0)?;
    if version < OLDEST_SERVER {
        return Err(invalid(format!("this is PostgreSQL {}: a fence needs 14 or newer", version / 10_000)));
    }
    let fenced = read_fenced(client).await?;
    let before = fenced.iter().find(|row| row.rel == shape.oid);
    if before.is_some_and(|row| row.version > FENCE_VERSION) {
        return Err(invalid("a later version of Leasehold installed this fence: use that version".into()));
    }
    let template = chosen_template(options, shape, before)?;
    for key in template.key_columns() {
        shape.find_column(key)?;
    }
    let (store, mut notes) = chosen_store(options, shape, &template, before)?;
    notes.extend(template.key_columns().iter().filter_map(|key| key_warning(shape.find_column(key).ok()?)));
    if shape.subscribed {
        notes.push("a subscription writes to this table: the publisher checks, so replicated writes pass here".into());
    }
    if store == Remember::Row && !shape.partitions.is_empty() {
        notes.push(
            "a partition that is detached or dropped takes the fences of its rows along: use --remember name where \
             partitions come and go"
                .into(),
        );
    }
    let remembered = remembered_guard(client, shape.oid).await?;
    if store == Remember::Row && before.is_none() && remembered.is_none() {
        check_own_column(client, shape).await?;
    }
    let guard = match (before, &remembered) {
        (Some(row), _) => row.guard.clone(),
        // A copy of a table has the comment of the first one, whose guard stays its own. A table that was restored alone
        // after it was dropped takes over what is remembered of the first one.
        (None, Some(guard)) if fenced.iter().all(|row| row.guard != *guard || row.is_gone) => guard.clone(),
        (None, _) => fresh_guard(client).await?,
    };
    let text = FenceText { guard: &guard, shape, template: &template, store };
    let mut statements = statements(client, &text, options.mode, before, remembered.as_deref(), &mut notes).await?;
    if statements.len() > 1 {
        let names: Vec<String> = function_texts(&text.functions()?).into_iter().map(|function| function.name).collect();
        statements.extend(permission.hand_over(&guard, &names));
    }
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
    let why_not = shape.why_not_row(template);
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

/// A column of that name that we did not make may hold anything, and what is no fence would be taken for one.
async fn check_own_column(client: &impl GenericClient, shape: &TableShape) -> Result<(), InstallFailure> {
    if !shape.has_fence_column() {
        return Ok(());
    }
    let sql = format!(
        "SELECT EXISTS (SELECT FROM {} WHERE leasehold_fence !~ '^[1-9][0-9]{{0,18}}(:[0-9a-f]{{16}})?$')",
        shape.quoted()
    );
    if client.query_one(&sql, &[]).await?.try_get(0)? {
        let sentence = "the column leasehold_fence of this table holds what is no fence: use --remember name";
        return Err(invalid(sentence.into()));
    }
    Ok(())
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
    remembered: Option<&str>,
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
        let is_whole = holes.iter().all(|hole| hole.kind == HoleKind::Observing);
        if is_whole && (text.store == Remember::Name || !has_rows_below(client, text).await?) {
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
    let earlier = match before {
        Some(row) => {
            notes.extend(renamed_note(row, template));
            Some(row.store).filter(|_| !same)
        }
        None => store_left_behind(client, text).await?,
    };
    if let Some(from) = earlier {
        statements.extend(carry_memory(text, from)?);
    }
    // Another table has that memory by now: this one goes on with a copy.
    if let Some(other) = remembered.filter(|other| text.store == Remember::Row && *other != text.guard) {
        statements.push(format!(
            "INSERT INTO leasehold_fence.seen (scope, resource, token, lease)
  SELECT '{}', s.resource, s.token, s.lease FROM leasehold_fence.seen s WHERE s.scope = '{other}' ON CONFLICT DO NOTHING;",
            text.guard
        ));
    }
    // Rows may have come while nobody looked.
    if text.store == Remember::Row && (before.is_some() || earlier.is_some() || remembered.is_some()) {
        statements.push(lift_rows_sql(text)?);
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

/// What to say when the resource has another name now.
fn renamed_note(before: &FencedRow, template: &ResourceTemplate) -> Option<String> {
    let renamed = before.template != template.as_text() || before.keys.len() != template.key_columns().len();
    renamed.then(|| {
        format!(
            "the resource was {}: tokens that are remembered under other names are not asked for any more",
            before.template
        )
    })
}

/// Where a fence that was removed has left what it remembers, if that is not where this one looks.
async fn store_left_behind(
    client: &impl GenericClient,
    text: &FenceText<'_>,
) -> Result<Option<Remember>, InstallFailure> {
    if text.store == Remember::Name {
        let left = text.shape.has_fence_column() && remembered_guard(client, text.shape.oid).await?.is_some();
        return Ok(left.then_some(Remember::Row));
    }
    let there = client.query_one("SELECT to_regclass('leasehold_fence.seen') IS NOT NULL", &[]).await?;
    if !there.try_get::<_, bool>(0)? {
        return Ok(None);
    }
    let sql = "SELECT EXISTS (SELECT FROM leasehold_fence.seen WHERE scope = '' AND starts_with(resource, $1))";
    let left: bool = client.query_one(sql, &[&text.template.fixed_prefix()]).await?.try_get(0)?;
    Ok(left.then_some(Remember::Name))
}

/// Takes along what was remembered in another store.
fn carry_memory(text: &FenceText<'_>, from: Remember) -> Result<Vec<String>, FenceError> {
    let (guard, table) = (text.guard, text.shape.quoted());
    let merge = "ON CONFLICT ON CONSTRAINT seen_pkey DO UPDATE SET token = excluded.token, lease = excluded.lease
        WHERE x.token < excluded.token";
    let prefix = quote_literal(text.template.fixed_prefix());
    Ok(match (from, text.store) {
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
        // The rows are lifted to it afterwards.
        (Remember::Name, Remember::Row) => {
            vec![format!(
                "LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE;
INSERT INTO leasehold_fence.seen AS x (scope, resource, token, lease)
  SELECT '{guard}', s.resource, s.token, s.lease FROM leasehold_fence.seen s WHERE s.scope = '' AND starts_with(s.resource, {prefix})
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
