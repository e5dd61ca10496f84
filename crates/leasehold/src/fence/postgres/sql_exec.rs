//! Runs SQL text under a token: what `leasehold fence exec --sql` does.

use leasehold_postgres::tokio_postgres::{Client, SimpleQueryMessage};

use super::transaction::FencedWrite;
use crate::fence::refusal::FenceError;
use crate::fence::token_text::FenceSetting;

/// Runs statements in one transaction that shows this token. The rows of all of them, as text.
///
/// # Errors
///
/// As [`FencedWrite::run`].
pub async fn execute_sql(
    client: &mut Client,
    shown: FenceSetting,
    sql: &str,
) -> Result<Vec<Vec<Option<String>>>, FenceError> {
    FencedWrite::showing(shown)
        .run(client, async |tx| {
            let mut rows = Vec::new();
            for message in tx.simple_query(sql).await? {
                if let SimpleQueryMessage::Row(row) = message {
                    rows.push((0..row.len()).map(|at| row.get(at).map(str::to_owned)).collect());
                }
            }
            Ok(rows)
        })
        .await
}
