//! What rows remember, beside what the table remembers of them.
//!
//! # Law
//!
//! Where rows keep their own fence, a row never remembers less than `seen` does of its resource. The triggers keep this while
//! they enforce. While they only observe, or while there are none, a row can come that shows less. It is lifted before they
//! enforce (again).

use leasehold_postgres::tokio_postgres::{Error as SqlError, GenericClient};

use super::highest::token_sql;
use super::sql_text::FenceText;
use crate::fence::refusal::FenceError;

/// Whether a row remembers less than the table does of its resource.
pub(super) async fn has_rows_below(client: &impl GenericClient, text: &FenceText<'_>) -> Result<bool, SqlError> {
    // A template that cannot be written as SQL any more is another hole.
    let Ok(below) = rows_below_sql(text) else { return Ok(false) };
    let sql = format!("SELECT EXISTS (SELECT FROM {} t, leasehold_fence.seen s WHERE {below})", text.shape.quoted());
    client.query_one(&sql, &[]).await?.try_get(0)
}

/// The statement that lifts every row to what the table remembers of its resource. No trigger of ours may be there.
///
/// # Errors
///
/// [`FenceError::Invalid`] when a key of the template is no column.
pub(super) fn lift_rows_sql(text: &FenceText<'_>) -> Result<String, FenceError> {
    let table = text.shape.quoted();
    Ok(format!(
        "LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE;
ALTER TABLE {table} ADD COLUMN IF NOT EXISTS leasehold_fence text;
UPDATE {table} t SET leasehold_fence = s.token || CASE s.lease WHEN '' THEN '' ELSE ':' || s.lease END
  FROM leasehold_fence.seen s WHERE {};",
        rows_below_sql(text)?
    ))
}

/// The condition over a row `t` and a row `s` of `seen`.
fn rows_below_sql(text: &FenceText<'_>) -> Result<String, FenceError> {
    let (guard, resource) = (text.guard, text.resource_sql("t")?);
    // Asked for once, before any row is read: most tables have nothing in `seen`.
    Ok(format!(
        "EXISTS (SELECT FROM leasehold_fence.seen WHERE scope = '{guard}')
    AND s.scope = '{guard}' AND s.resource = {resource} AND coalesce({}, 0) < s.token",
        token_sql("t.leasehold_fence")
    ))
}
