//! What rows remember, beside what the table remembers of them.
//!
//! # Law
//!
//! Where rows keep their own fence, a row never remembers less than `seen` does of its resource. The triggers keep this while
//! they enforce. While they only observe, or while there are none, a row can come that shows less. It is lifted before they
//! enforce (again).

use leasehold_postgres::tokio_postgres::{Error as SqlError, GenericClient};

use super::highest::token_sql;
use super::sql_text::{BODY_QUOTE, FenceText};
use crate::fence::refusal::FenceError;

/// Whether a row remembers less than the table does of its resource.
pub(super) async fn has_rows_below(client: &impl GenericClient, text: &FenceText<'_>) -> Result<bool, SqlError> {
    // A template that cannot be written as SQL any more is another hole.
    let Ok(below) = rows_below_sql(text) else { return Ok(false) };
    if !has_memory(client, text.guard).await? {
        return Ok(false);
    }
    let sql = format!("SELECT EXISTS (SELECT FROM {} t, leasehold_fence.seen s WHERE {below})", text.shape.own_rows());
    client.query_one(&sql, &[]).await?.try_get(0)
}

/// Whether anything is remembered beside the rows: most tables have nothing there.
pub(super) async fn has_memory(client: &impl GenericClient, guard: &str) -> Result<bool, SqlError> {
    let sql = "SELECT EXISTS (SELECT FROM leasehold_fence.seen WHERE scope = $1)";
    client.query_one(sql, &[&guard]).await?.try_get(0)
}

/// The statements that lift every row to what the table remembers of its resource. No trigger of ours may be there. Rows are
/// written only where one is below: triggers of the user's fire for them.
///
/// # Errors
///
/// [`FenceError::Invalid`] when a key of the template is no column.
pub(super) fn lift_rows_sql(text: &FenceText<'_>) -> Result<String, FenceError> {
    let (table, rows, below) = (text.shape.quoted(), text.shape.own_rows(), rows_below_sql(text)?);
    let (quote, guard) = (BODY_QUOTE, text.guard);
    Ok(format!(
        "LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE;
ALTER TABLE {table} ADD COLUMN IF NOT EXISTS leasehold_fence text;
DO {quote} BEGIN
  IF NOT EXISTS (SELECT FROM leasehold_fence.seen WHERE scope = '{guard}') THEN RETURN; END IF;
  IF NOT EXISTS (SELECT FROM {rows} t, leasehold_fence.seen s WHERE {below}) THEN RETURN; END IF;
  UPDATE {rows} t SET leasehold_fence = s.token || CASE s.lease WHEN '' THEN '' ELSE ':' || s.lease END
    FROM leasehold_fence.seen s WHERE {below};
  IF EXISTS (SELECT FROM {rows} t, leasehold_fence.seen s WHERE {below}) THEN
    RAISE EXCEPTION 'rows would admit stale tokens and cannot be lifted: a trigger or a rule of the table undoes it' USING ERRCODE = 'object_not_in_prerequisite_state';
  END IF;
END {quote};
SET CONSTRAINTS ALL IMMEDIATE;"
    ))
}

/// The condition over a row `t` and a row `s` of `seen`.
fn rows_below_sql(text: &FenceText<'_>) -> Result<String, FenceError> {
    let (guard, resource) = (text.guard, text.resource_sql("t")?);
    Ok(format!(
        "s.scope = '{guard}' AND s.resource = {resource} AND coalesce({}, 0) < s.token",
        token_sql("t.leasehold_fence")
    ))
}
