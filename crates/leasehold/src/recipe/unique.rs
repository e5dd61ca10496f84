//! A unique constraint as control flow: who inserts the row first has it.
//!
//! # Laws
//!
//! 1. Of all who insert one key, one is told [`UniqueInsert::First`].
//! 2. *Taken* is an answer, not an error: the transaction around it goes on. A caught 23505 of PostgreSQL would leave a
//!    transaction in which every later statement fails (25P02).
//! 3. Only the constraint that was named decides. `INSERT OR IGNORE` of SQLite would swallow a missing value too.
//!
//! # Notes
//!
//! In PostgreSQL, while another transaction has inserted the key and not ended, the insert waits for it. In REPEATABLE
//! READ it can fail with 40001: run the transaction again.

/// What became of an insert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UniqueInsert {
    /// The row is ours.
    First,
    /// Another has the key. Nothing was written.
    Taken,
}

impl UniqueInsert {
    fn by_rows(inserted: bool) -> Self {
        if inserted { Self::First } else { Self::Taken }
    }
}

/// The statement: `key` is the columns of the unique constraint. Names are quoted, so they are case-sensitive; a table
/// may be `schema.table`.
fn insert_text(table: &str, key: &[&str], columns: &[&str], parameter: char) -> String {
    let list = |names: &[&str]| names.iter().map(|name| quote_name(name)).collect::<Vec<_>>().join(", ");
    let values: Vec<String> = (1..=columns.len()).map(|number| format!("{parameter}{number}")).collect();
    let table: Vec<String> = table.split('.').map(quote_name).collect();
    format!(
        "INSERT INTO {} ({}) VALUES ({}) ON CONFLICT ({}) DO NOTHING",
        table.join("."),
        list(columns),
        values.join(", "),
        list(key)
    )
}

fn quote_name(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Inserts a row in PostgreSQL, in the caller's transaction if `client` is one.
///
/// ```no_run
/// # async fn example(tx: &tokio_postgres::Transaction<'_>) -> Result<(), tokio_postgres::Error> {
/// use leasehold::recipe::unique::{self, UniqueInsert};
///
/// match unique::insert(tx, "sale", &["seat"], &[("seat", &14), ("buyer", &"ada")]).await? {
///     UniqueInsert::First => { /* sold */ }
///     UniqueInsert::Taken => { /* somebody was first */ }
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// What PostgreSQL says: another constraint, a missing column, a lost connection.
#[cfg(feature = "postgres")]
pub async fn insert(
    client: &impl leasehold_postgres::tokio_postgres::GenericClient,
    table: &str,
    key: &[&str],
    row: &[(&str, &(dyn leasehold_postgres::tokio_postgres::types::ToSql + Sync))],
) -> Result<UniqueInsert, leasehold_postgres::tokio_postgres::Error> {
    let columns: Vec<&str> = row.iter().map(|(column, _)| *column).collect();
    let values: Vec<_> = row.iter().map(|(_, value)| *value).collect();
    let inserted = client.execute(&insert_text(table, key, &columns, '$'), &values).await?;
    Ok(UniqueInsert::by_rows(inserted > 0))
}

/// Inserts a row in SQLite, in the caller's transaction if there is one.
///
/// # Errors
///
/// What SQLite says: another constraint, a missing column, a busy file.
#[cfg(feature = "sqlite")]
pub fn insert_sqlite(
    connection: &rusqlite::Connection,
    table: &str,
    key: &[&str],
    row: &[(&str, &dyn rusqlite::ToSql)],
) -> Result<UniqueInsert, rusqlite::Error> {
    let columns: Vec<&str> = row.iter().map(|(column, _)| *column).collect();
    let values: Vec<&dyn rusqlite::ToSql> = row.iter().map(|(_, value)| *value).collect();
    let inserted = connection.execute(&insert_text(table, key, &columns, '?'), values.as_slice())?;
    Ok(UniqueInsert::by_rows(inserted > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_and_values_are_parameters() {
        assert_eq!(
            insert_text("shop.sale", &["seat"], &["seat", "buy\"er"], '$'),
            "INSERT INTO \"shop\".\"sale\" (\"seat\", \"buy\"\"er\") VALUES ($1, $2) ON CONFLICT (\"seat\") DO NOTHING"
        );
    }
}
