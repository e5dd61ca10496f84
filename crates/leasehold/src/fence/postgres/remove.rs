//! Takes a fence away from a table. What it remembers stays, unless somebody says to forget it.

use leasehold_postgres::tokio_postgres::{Client, GenericClient};

use super::fenced_row::{FencedRow, MEMORY_WORD, REMOVED_COMMENT, read_fenced};
use super::install::{InstallFailure, LockPatience, begin_change, commit_change, drop_triggers};
use super::sql_text::{Remember, quote_literal};
use super::table::{find_table, read_shape};
use crate::fence::refusal::FenceError;

/// What was removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoveReport {
    /// The table with its schema; the guard where the table is gone.
    pub table: String,
    /// Whether the remembered tokens were forgotten. Those of names that another table has, too, stay.
    pub forgotten: bool,
}

/// Removes triggers, functions, counter and the row of `fenced`. The column and `seen` stay, and a later install remembers.
/// `forget` drops them too: from then on every old holder could write again.
///
/// `table` may also be the guard of a table that is not there any more.
///
/// # Errors
///
/// [`FenceError::Invalid`] for a table that is not fenced, [`FenceError::Unavailable`] when the locks were never to be had.
pub async fn remove(client: &mut Client, table: &str, forget: bool) -> Result<RemoveReport, FenceError> {
    let mut patience = LockPatience::default();
    loop {
        match try_remove(client, table, forget).await {
            Ok(report) => return Ok(report),
            Err(failure) => patience.wait_after(failure).await?,
        }
    }
}

async fn try_remove(client: &mut Client, written: &str, forget: bool) -> Result<RemoveReport, InstallFailure> {
    let transaction = begin_change(client).await?;
    let oid = find_table(&transaction, written).await?;
    let rows = read_fenced(&transaction).await?;
    let found = rows.iter().find(|row| Some(row.rel) == oid || row.is_gone && row.guard == written);
    let Some(row) = found else {
        return Err(FenceError::Invalid(format!("{written} is not fenced")).into());
    };
    let shape = read_shape(&transaction, row.rel).await?;
    let mut statements = Vec::new();
    if let Some(shape) = &shape {
        statements.extend(drop_triggers(&transaction, shape).await?);
        if has_column(&transaction, row.rel).await? {
            let table = shape.quoted();
            statements.push(if forget {
                format!("ALTER TABLE {table} DROP COLUMN leasehold_fence;")
            } else {
                let comment = quote_literal(&format!("{REMOVED_COMMENT}; {MEMORY_WORD} {}", row.guard));
                format!("COMMENT ON COLUMN {table}.leasehold_fence IS {comment};")
            });
        }
    }
    let guard = &row.guard;
    for function in ["row", "new", "memory", "name"] {
        statements.push(format!("DROP FUNCTION IF EXISTS leasehold_fence.{guard}_{function}();"));
    }
    statements.push(format!("DROP SEQUENCE IF EXISTS leasehold_fence.{guard}_rejected;"));
    statements.push(format!("DELETE FROM leasehold_fence.fenced WHERE guard = '{guard}';"));
    if forget {
        statements.extend(forget_sql(row, &rows));
    }
    for statement in &statements {
        transaction.batch_execute(statement).await?;
    }
    commit_change(transaction).await?;
    let table = shape.map_or_else(|| row.guard.clone(), |shape| shape.display_name());
    Ok(RemoveReport { table, forgotten: forget && !shares_memory(row, &rows) })
}

async fn has_column(client: &impl GenericClient, oid: u32) -> Result<bool, InstallFailure> {
    let sql = "SELECT EXISTS (SELECT FROM pg_attribute WHERE attrelid = $1 AND attname = 'leasehold_fence'
               AND NOT attisdropped AND atttypid = 'text'::regtype)";
    Ok(client.query_one(sql, &[&oid]).await?.get(0))
}

/// Forgets what belongs to this table alone.
fn forget_sql(row: &FencedRow, all: &[FencedRow]) -> Vec<String> {
    let mut statements = vec![format!("DELETE FROM leasehold_fence.seen WHERE scope = '{}';", row.guard)];
    if let (Remember::Name, Ok(template)) = (row.store, row.parse_template())
        && !shares_memory(row, all)
    {
        let condition = if template.is_fixed() {
            format!("scope = '=' AND resource = {}", quote_literal(&template.fixed_name()))
        } else {
            format!("scope = '' AND starts_with(resource, {})", quote_literal(template.fixed_prefix()))
        };
        statements.push(format!("DELETE FROM leasehold_fence.seen WHERE {condition};"));
    }
    statements
}

/// Whether another table may remember under the names of this one: then what is remembered is not this table's to forget.
fn shares_memory(row: &FencedRow, all: &[FencedRow]) -> bool {
    let Ok(template) = row.parse_template() else { return false };
    row.store == Remember::Name
        && all.iter().filter(|other| other.guard != row.guard && other.store == Remember::Name).any(|other| {
            // What cannot be read any more may be anything.
            other.parse_template().map_or(true, |other| template.may_name_the_same(&other))
        })
}
