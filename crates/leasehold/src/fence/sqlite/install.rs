//! Installs a fence on a table of a SQLite file, and takes it away again.

use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior, params, params_from_iter};

use super::trigger_text::{FILE_SQL, TRIGGER_PREFIX, fence_triggers, quote_ident};
use super::{FENCE_VERSION, unavailable};
use crate::fence::refusal::FenceError;
use crate::fence::resource_template::ResourceTemplate;

const ATTEMPT: &str = "install the fence";

/// What to install.
#[derive(Clone, Debug, Default)]
pub struct SqliteInstallOptions {
    /// The table.
    pub table: String,
    /// The key columns. Empty: as before, or none for one fixed name.
    pub keys: Vec<String>,
    /// The resource of a row, `seat/{}`, or one name for the whole table. None: as before, or `TABLE/{}`.
    pub resource: Option<String>,
}

/// What was installed, or would be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqliteInstallReport {
    /// The table.
    pub table: String,
    /// The resource of a row.
    pub resource: String,
    /// The SQL, in order; empty when everything is as it should be.
    pub statements: Vec<String>,
    /// What somebody should know.
    pub notes: Vec<String>,
}

impl SqliteInstallReport {
    /// The SQL as one text, in one transaction.
    #[must_use]
    pub fn sql_text(&self) -> String {
        if self.statements.is_empty() {
            return "-- nothing to do\n".to_owned();
        }
        let mut text = "BEGIN IMMEDIATE;\n".to_owned();
        for statement in &self.statements {
            text += &format!("{};\n", statement.trim_end().trim_end_matches(';'));
        }
        text + "COMMIT;\n"
    }
}

/// How a table is fenced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SqliteFencedRow {
    pub table: String,
    pub template: String,
    pub keys: Vec<String>,
    pub version: i64,
}

/// Installs the fence in one transaction.
///
/// # Errors
///
/// [`FenceError::Invalid`] for a table, a key or a resource that cannot be fenced, [`FenceError::Unavailable`] when the file
/// cannot be used now.
pub fn install(connection: &mut Connection, options: &SqliteInstallOptions) -> Result<SqliteInstallReport, FenceError> {
    let failed = |error| unavailable(error, ATTEMPT);
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    let report = plan_install(&transaction, options)?;
    if !report.statements.is_empty() {
        for statement in &report.statements {
            transaction.execute_batch(statement).map_err(failed)?;
        }
        transaction.commit().map_err(failed)?;
    }
    Ok(report)
}

/// Says what [`install`] would do. Changes nothing.
///
/// # Errors
///
/// As [`install`].
pub fn plan_install(
    connection: &Connection,
    options: &SqliteInstallOptions,
) -> Result<SqliteInstallReport, FenceError> {
    let failed = |error| unavailable(error, ATTEMPT);
    let table = fenceable_table(connection, &options.table)?;
    let before = read_fenced(connection).map_err(failed)?.into_iter().find(|row| row.table == table);
    if before.as_ref().is_some_and(|row| row.version > FENCE_VERSION) {
        return Err(FenceError::Invalid("a later version of Leasehold installed this fence: use that version".into()));
    }
    let template = chosen_template(options, &table, before.as_ref())?;
    let columns = read_columns(connection, &table).map_err(failed)?;
    for key in template.key_columns() {
        if !columns.contains(key) {
            return Err(FenceError::Invalid(format!(
                "the table {table} has no column {key}: names are taken as written"
            )));
        }
    }
    let triggers = fence_triggers(&table, &template);
    let found = read_triggers(connection, &table).map_err(failed)?;
    let same = before.as_ref().is_some_and(|row| {
        row.version == FENCE_VERSION && row.template == template.as_text() && row.keys == template.key_columns()
    });
    let in_place = triggers.iter().all(|trigger| found.contains(&(trigger.name.clone(), trigger.sql.clone())));
    let mut statements = Vec::new();
    if !(same && in_place && found.len() == triggers.len()) {
        statements.push(FILE_SQL.to_owned());
        statements.extend(found.iter().map(|(name, _)| format!("DROP TRIGGER {}", quote_ident(name))));
        statements.extend(triggers.into_iter().map(|trigger| trigger.sql));
        statements.push(record_sql(&table, &template));
    }
    let resource = template.as_text().to_owned();
    Ok(SqliteInstallReport { table, resource, statements, notes: Vec::new() })
}

/// Removes the triggers. What they remember stays, and a later install remembers; `forget` deletes it, unless another table
/// may remember under the same names. Whether it was forgotten.
///
/// # Errors
///
/// [`FenceError::Invalid`] for a table that is not fenced.
pub fn remove(connection: &mut Connection, table: &str, forget: bool) -> Result<bool, FenceError> {
    let failed = |error| unavailable(error, "remove the fence");
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    let rows = read_fenced(&transaction).map_err(failed)?;
    let Some(row) = rows.iter().find(|row| row.table.eq_ignore_ascii_case(table)) else {
        return Err(FenceError::Invalid(format!("{table} is not fenced")));
    };
    for (name, _) in read_triggers(&transaction, &row.table).map_err(failed)? {
        transaction.execute_batch(&format!("DROP TRIGGER {}", quote_ident(&name))).map_err(failed)?;
    }
    transaction.execute("DELETE FROM leasehold_fenced WHERE name = ?1", [&row.table]).map_err(failed)?;
    let forgotten = forget && !shares_memory(row, &rows);
    if forgotten {
        let template = ResourceTemplate::parse(&row.template, &row.keys)?;
        let (name, prefix) = (template.fixed_name(), template.fixed_prefix());
        let done = if template.is_fixed() {
            transaction.execute("DELETE FROM leasehold_seen WHERE resource = ?1", [&name])
        } else {
            transaction.execute("DELETE FROM leasehold_seen WHERE substr(resource, 1, length(?1)) = ?1", [prefix])
        };
        done.map_err(failed)?;
    }
    transaction.commit().map_err(failed)?;
    Ok(forgotten)
}

/// Whether another table may remember under the names of this one: then what is remembered is not this table's to forget.
fn shares_memory(row: &SqliteFencedRow, all: &[SqliteFencedRow]) -> bool {
    let parse = |row: &SqliteFencedRow| ResourceTemplate::parse(&row.template, &row.keys).ok();
    let Some(template) = parse(row) else { return false };
    // What cannot be read any more may be anything. Here a name made of keys may even be a fixed one: there is one memory.
    let others = all.iter().filter(|other| other.table != row.table);
    others.map(parse).any(|other| other.is_none_or(|other| template.prefixes_meet(&other)))
}

/// The table as the file spells it, if triggers can be put on it.
fn fenceable_table(connection: &Connection, written: &str) -> Result<String, FenceError> {
    let sql = "SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND name = ?1 COLLATE NOCASE";
    let found = connection.query_row(sql, [written], |row| Ok((row.get(0)?, row.get::<_, Option<String>>(1)?)));
    let found: Option<(String, Option<String>)> = found.optional().map_err(|error| unavailable(error, ATTEMPT))?;
    match found {
        None => Err(FenceError::Invalid(format!("there is no table {written} in this file"))),
        Some((_, Some(sql))) if sql.to_ascii_uppercase().starts_with("CREATE VIRTUAL") => {
            Err(FenceError::Invalid(format!("{written} is a virtual table, which has no triggers")))
        }
        Some((name, _)) if name.to_ascii_lowercase().starts_with("sqlite_") => {
            Err(FenceError::Invalid(format!("{written} is SQLite's own")))
        }
        Some((name, _)) if ["leasehold_seen", "leasehold_fenced"].contains(&name.as_str()) => {
            Err(FenceError::Invalid(format!("{written} is the memory of the fence itself")))
        }
        Some((name, _)) => Ok(name),
    }
}

fn chosen_template(
    options: &SqliteInstallOptions,
    table: &str,
    before: Option<&SqliteFencedRow>,
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
        (None, None) => format!("{}/{{}}", table.replace('{', "{{").replace('}', "}}")),
    };
    ResourceTemplate::parse(&text, keys)
}

fn record_sql(table: &str, template: &ResourceTemplate) -> String {
    let quote = |text: &str| format!("'{}'", text.replace('\'', "''"));
    let keys: Vec<String> = template.key_columns().iter().map(|key| quote(key)).collect();
    format!(
        "INSERT INTO leasehold_fenced VALUES ({}, {}, json_array({}), {FENCE_VERSION})
  ON CONFLICT (name) DO UPDATE SET template = excluded.template, keys = excluded.keys, version = excluded.version",
        quote(table),
        quote(template.as_text()),
        keys.join(", "),
    )
}

/// Every fenced table, in order of name.
pub(super) fn read_fenced(connection: &Connection) -> rusqlite::Result<Vec<SqliteFencedRow>> {
    if !has_table(connection, "leasehold_fenced")? {
        return Ok(Vec::new());
    }
    let mut statement = connection.prepare("SELECT name, template, version FROM leasehold_fenced ORDER BY name")?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let mut keys = connection.prepare("SELECT value FROM leasehold_fenced f, json_each(f.keys) WHERE f.name = ?1")?;
    let mut fenced = Vec::new();
    for row in rows {
        let (table, template, version): (String, String, i64) = row?;
        let keys = keys.query_map([&table], |row| row.get(0))?.collect::<Result<_, _>>()?;
        fenced.push(SqliteFencedRow { table, template, keys, version });
    }
    Ok(fenced)
}

/// Whether the file has a table.
pub(super) fn has_table(connection: &Connection, name: &str) -> rusqlite::Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1 COLLATE NOCASE)";
    connection.query_row(sql, [name], |row| row.get(0))
}

/// The columns of a table, generated ones included.
pub(super) fn read_columns(connection: &Connection, table: &str) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare("SELECT name FROM pragma_table_xinfo(?1) WHERE hidden <> 1")?;
    statement.query_map(params_from_iter([table]), |row| row.get(0))?.collect()
}

/// The triggers of ours on a table: their names, and their texts.
pub(super) fn read_triggers(connection: &Connection, table: &str) -> rusqlite::Result<Vec<(String, String)>> {
    let sql = "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = ?1 COLLATE NOCASE
               AND substr(name, 1, length(?2)) = ?2 ORDER BY name";
    let mut statement = connection.prepare(sql)?;
    statement.query_map(params![table, TRIGGER_PREFIX], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
}
