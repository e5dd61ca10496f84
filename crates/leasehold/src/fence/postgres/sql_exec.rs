//! Runs SQL text under a token: what `leasehold fence exec --sql` does.
//!
//! # Law
//!
//! "Nothing was written" is never said of text that ended its transaction itself (`…; COMMIT; …`), and such text is not run
//! twice.

use leasehold_postgres::tokio_postgres::{Client, SimpleQueryMessage, Transaction};

use super::transaction::FencedWrite;
use crate::error::BoxError;
use crate::fence::counters::FenceKind;
use crate::fence::refusal::{FenceError, SelfEnded};
use crate::fence::token_text::FenceSetting;

/// Stands before the text.
const SAVEPOINT: &str = "SAVEPOINT leasehold_before_the_text";
const ROLL_BACK: &str = "ROLLBACK TO SAVEPOINT leasehold_before_the_text";
/// Text with one of these may end a transaction.
const ENDING_WORDS: [&str; 5] = ["COMMIT", "END", "ROLLBACK", "ABORT", "PREPARE"];

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
    tx.batch_execute(SAVEPOINT).await?;
    let messages = match tx.simple_query(sql).await {
        Ok(messages) => messages,
        Err(error) if has_ended_itself(tx, sql).await => return Err(SelfEnded(Some(error.into())).into()),
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

/// Whether text that failed may have ended the transaction before: only in that one there is the savepoint.
async fn has_ended_itself(tx: &Transaction<'_>, sql: &str) -> bool {
    match tx.batch_execute(ROLL_BACK).await {
        Ok(()) => false,
        Err(error) if error.as_db_error().is_some() => true,
        // The connection is gone, and nobody can be asked.
        Err(_) => {
            let upper = sql.to_ascii_uppercase();
            ENDING_WORDS.iter().any(|word| upper.contains(word))
        }
    }
}

fn first_cell(answer: Vec<SimpleQueryMessage>) -> Option<String> {
    answer.into_iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    })
}
