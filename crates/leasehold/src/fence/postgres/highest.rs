//! The highest token that a database has seen: what an engine must be above, after a restore or a move.

use leasehold_postgres::tokio_postgres::{Client, Error as SqlError, GenericClient};

use super::fenced_row::read_fenced;
use super::sql_refusal::failure_before_commit;
use super::sql_text::Remember;
use super::table::{TableShape, read_shape};
use crate::Token;
use crate::fence::counters::FenceKind;
use crate::fence::refusal::FenceError;

/// Tables of the parts of Leasehold that keep tokens of leases, and how the highest is read.
const OTHER_SOURCES: [(&str, &str); 5] = [
    ("leasehold_fence.seen", "SELECT max(token) FROM leasehold_fence.seen"),
    ("leasehold.schedule", "SELECT max(token) FROM leasehold.schedule"),
    ("leasehold_boxoffice.hold_seats", "SELECT max(token) FROM leasehold_boxoffice.hold_seats"),
    ("leasehold_boxoffice.sold_seats", "SELECT max(token) FROM leasehold_boxoffice.sold_seats"),
    // Places of areas have the tokens of the leases of live holds.
    (
        "leasehold_boxoffice.holds",
        "SELECT max((l ->> 'token')::bigint) FROM leasehold_boxoffice.holds h,
            jsonb_array_elements(h.body::jsonb -> 'leases') l WHERE h.live",
    ),
];

/// Rows up to which a table is read whole, even where a sample would do.
const WHOLE_TABLE_ROWS: f32 = 200_000.0;
/// The part of a larger table that a sample reads, in percent.
const SAMPLE_PERCENT: u32 = 1;

/// Where a token was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenSource {
    /// The table.
    pub table: String,
    /// The highest token in it.
    pub highest: Token,
}

/// The highest tokens of every place in the database that keeps tokens of leases, the highest first. Reads fenced tables
/// whole.
///
/// # Errors
///
/// [`FenceError::Unavailable`] when the database cannot be asked. [`FenceError::Invalid`] when this role does not see every
/// row: an engine that was raised above the rest of them would not be above all. [`FenceError::Corrupt`]: a row holds what is
/// no fence.
pub async fn highest_token(client: &Client) -> Result<Vec<TokenSource>, FenceError> {
    let failed = |error| failure_before_commit(error, "read the highest token");
    for row in read_fenced(client).await.map_err(failed)?.iter().filter(|row| row.store == Remember::Row) {
        if let Some(shape) = read_shape(client, row.rel).await.map_err(failed)?
            && let Some(sentence) = hidden_rows(client, &shape, &[]).await.map_err(failed)?
        {
            return Err(FenceError::Invalid(sentence));
        }
    }
    let (sources, malformed) = read_all(client).await.map_err(failed)?;
    match malformed.first() {
        // What it held may have been above all others.
        Some(table) => Err(FenceError::Corrupt { kind: FenceKind::Postgres, at: format!("a row of {table}") }),
        None => Ok(sources),
    }
}

/// Why this role does not see what every row of a table remembers; none: it does.
/// `keys`: columns that are to be read beside it.
pub(super) async fn hidden_rows(
    client: &impl GenericClient,
    shape: &TableShape,
    keys: &[String],
) -> Result<Option<String>, SqlError> {
    if !shape.has_fence_column() {
        return Ok(None);
    }
    let sql = "SELECT bool_and(has_column_privilege($1::oid, a.attnum, 'SELECT')), row_security_active($1::oid)
        FROM pg_attribute a WHERE a.attrelid = $1 AND NOT a.attisdropped
            AND (a.attname = 'leasehold_fence' OR a.attname::text = ANY($2))";
    let row = client.query_one(sql, &[&shape.oid, &keys]).await?;
    let table = shape.display_name();
    Ok(match (row.try_get(0)?, row.try_get(1)?) {
        (false, _) => {
            Some(format!("{table}: this role may not read its column leasehold_fence, or its keys: ask as its owner"))
        }
        (true, true) => Some(format!("{table}: row level security hides rows from this role: ask as its owner")),
        (true, false) => None,
    })
}

/// The tokens of all places, and the tables with a row that holds no fence.
async fn read_all(client: &Client) -> Result<(Vec<TokenSource>, Vec<String>), SqlError> {
    let (mut sources, mut malformed) = (Vec::new(), Vec::new());
    for row in read_fenced(client).await? {
        if row.store == Remember::Row
            && let Some(shape) = read_shape(client, row.rel).await?
        {
            let found = highest_in_rows(client, &shape.quoted(), row.rel, true).await?;
            malformed.extend(found.is_malformed.then(|| shape.display_name()));
            sources.extend(found.highest.map(|highest| TokenSource { table: shape.display_name(), highest }));
        }
    }
    for (table, sql) in OTHER_SOURCES {
        let there: bool = client.query_one("SELECT to_regclass($1) IS NOT NULL", &[&table]).await?.try_get(0)?;
        if there {
            let highest = token_from_sql(client.query_one(sql, &[]).await?.try_get(0)?);
            sources.extend(highest.map(|highest| TokenSource { table: table.to_owned(), highest }));
        }
    }
    sources.sort_by_key(|source| std::cmp::Reverse(source.highest));
    Ok((sources, malformed))
}

/// What the rows of a table remember.
pub(super) struct RowsRead {
    pub highest: Option<Token>,
    /// All rows were read. Otherwise a sample.
    pub is_whole: bool,
    /// One of them holds what is no fence.
    pub is_malformed: bool,
}

/// The token in the fence of a row, as SQL; NULL for what is no fence.
pub(super) fn token_sql(fence: &str) -> String {
    format!(
        "CASE WHEN {fence} ~ '^[1-9][0-9]{{0,18}}(:[0-9a-f]{{16}})?$' THEN
            CASE WHEN split_part({fence}, ':', 1)::numeric <= 9223372036854775807 THEN split_part({fence}, ':', 1)::bigint END END"
    )
}

/// Reads what rows of a table remember. `exact`: all of them.
pub(super) async fn highest_in_rows(
    client: &impl GenericClient,
    table: &str,
    oid: u32,
    exact: bool,
) -> Result<RowsRead, SqlError> {
    let sql = "SELECT sum(greatest(reltuples, 0))::real FROM pg_class WHERE oid = $1
               OR oid IN (SELECT relid FROM pg_partition_tree($1::oid::regclass))";
    let rows: Option<f32> = client.query_one(sql, &[&oid]).await?.try_get(0)?;
    let whole = exact || rows.unwrap_or_default() <= WHOLE_TABLE_ROWS;
    let sample = if whole { String::new() } else { format!("TABLESAMPLE SYSTEM ({SAMPLE_PERCENT})") };
    let token = token_sql("leasehold_fence");
    let sql = format!(
        "SELECT max({token}), coalesce(bool_or(leasehold_fence IS NOT NULL AND {token} IS NULL), false) FROM {table} {sample}"
    );
    let row = client.query_one(&sql, &[]).await?;
    Ok(RowsRead { highest: token_from_sql(row.try_get(0)?), is_whole: whole, is_malformed: row.try_get(1)? })
}

pub(super) fn token_from_sql(number: Option<i64>) -> Option<Token> {
    number.and_then(|number| u64::try_from(number).ok()).and_then(Token::new)
}
