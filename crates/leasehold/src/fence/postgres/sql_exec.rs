//! Runs SQL text under a token: what `leasehold fence exec --sql` does.
//!
//! # Law
//!
//! "Nothing was written" is never said of text that ended its transaction itself (`…; COMMIT; …`), and such text is not run
//! twice.

use leasehold_postgres::tokio_postgres::{Client, Error as SqlError, SimpleQueryMessage, Transaction};

use super::transaction::FencedWrite;
use crate::error::BoxError;
use crate::fence::counters::FenceKind;
use crate::fence::refusal::{FenceError, SelfEnded};
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
    let done = FencedWrite::showing(shown).run(client, async |tx| run_text(tx, sql).await).await;
    done.map_err(|error| SelfEnded::reveal(error, FenceKind::Postgres))
}

/// Runs the text, and looks afterwards whether its transaction is still the one that was begun.
async fn run_text(tx: &Transaction<'_>, sql: &str) -> Result<Vec<Vec<Option<String>>>, BoxError> {
    let begun = first_cell(tx.simple_query("SELECT pg_current_xact_id()").await?);
    let messages = match tx.simple_query(sql).await {
        Ok(messages) => messages,
        Err(error) if has_committed(tx, begun.as_deref()).await => return Err(SelfEnded(Some(error.into())).into()),
        Err(error) => return Err(error.into()),
    };
    let now = first_cell(tx.simple_query("SELECT pg_current_xact_id_if_assigned()").await?);
    if now != begun {
        return Err(SelfEnded(None).into());
    }
    let row = |message| match message {
        SimpleQueryMessage::Row(row) => Some((0..row.len()).map(|at| row.get(at).map(str::to_owned)).collect()),
        _ => None,
    };
    Ok(messages.into_iter().filter_map(row).collect())
}

/// Whether the transaction was committed before the text failed. It is over afterwards.
async fn has_committed(tx: &Transaction<'_>, id: Option<&str>) -> bool {
    let Some(id) = id else { return false };
    let asked = async {
        tx.batch_execute("ROLLBACK").await?;
        tx.simple_query(&format!("SELECT pg_xact_status('{id}')")).await
    };
    let status: Result<_, SqlError> = asked.await;
    status.is_ok_and(|answer| first_cell(answer).as_deref() == Some("committed"))
}

fn first_cell(answer: Vec<SimpleQueryMessage>) -> Option<String> {
    answer.into_iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    })
}
