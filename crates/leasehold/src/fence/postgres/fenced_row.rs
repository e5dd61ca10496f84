//! Rows of `leasehold_fence.fenced`: which tables are fenced, and how.

use leasehold_postgres::tokio_postgres::{Error as SqlError, GenericClient, Row};

use super::install::FenceMode;
use super::sql_text::{DATABASE_SQL, FunctionText, Remember, function_texts};
use crate::fence::refusal::FenceError;
use crate::fence::resource_template::ResourceTemplate;

/// How the comment of the column `leasehold_fence` names the guard whose memory it belongs to.
pub(super) const MEMORY_WORD: &str = "memory of";
/// How the comment begins after the fence was removed on purpose.
pub(super) const REMOVED_COMMENT: &str = "Leasehold: the fence was removed";

/// How a table is fenced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FencedRow {
    pub guard: String,
    pub rel: u32,
    pub store: Remember,
    pub template: String,
    pub keys: Vec<String>,
    pub mode: FenceMode,
    pub version: i32,
    /// What the statistics had counted when the fence came.
    pub rows_before: i64,
    /// The table was dropped. What it remembered is still there.
    pub is_gone: bool,
}

impl FencedRow {
    /// The resource of a row.
    ///
    /// # Errors
    ///
    /// [`FenceError::Invalid`]: somebody changed the row by hand.
    pub fn parse_template(&self) -> Result<ResourceTemplate, FenceError> {
        ResourceTemplate::parse(&self.template, &self.keys)
    }

    fn from_row(row: &Row) -> Result<Self, SqlError> {
        Ok(Self {
            guard: row.try_get(0)?,
            rel: row.try_get(1)?,
            store: if row.try_get::<_, &str>(2)? == "row" { Remember::Row } else { Remember::Name },
            template: row.try_get(3)?,
            keys: row.try_get(4)?,
            mode: if row.try_get::<_, &str>(5)? == "observe" { FenceMode::Observe } else { FenceMode::Enforce },
            version: row.try_get(6)?,
            rows_before: row.try_get(7)?,
            is_gone: row.try_get(8)?,
        })
    }
}

/// Every fenced table, in order of name. None at all where the schema is not there.
pub(super) async fn read_fenced(client: &impl GenericClient) -> Result<Vec<FencedRow>, SqlError> {
    let there = client.query_one("SELECT to_regclass('leasehold_fence.fenced') IS NOT NULL", &[]).await?;
    if !there.try_get::<_, bool>(0)? {
        return Ok(Vec::new());
    }
    let sql = "SELECT guard, rel::oid, store, template, keys, mode, version, rows_before,
                   NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = rel::oid)
               FROM leasehold_fence.fenced ORDER BY rel::text";
    client.query(sql, &[]).await?.iter().map(FencedRow::from_row).collect()
}

/// The functions of this database that are not ours: missing, or changed in text or rights.
pub(super) async fn changed_functions(
    client: &impl GenericClient,
    expected: &[FunctionText],
) -> Result<Vec<String>, SqlError> {
    let sql = "SELECT p.proname::text, p.prosrc, p.prosecdef,
                   coalesce('search_path=pg_catalog, pg_temp' = ANY (p.proconfig), false)
               FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = 'leasehold_fence'";
    let mut found = Vec::new();
    for row in client.query(sql, &[]).await? {
        found.push(FunctionText {
            name: row.try_get(0)?,
            body: row.try_get(1)?,
            is_definer: row.try_get(2)?,
            has_search_path: row.try_get(3)?,
        });
    }
    let changed = expected.iter().filter(|function| !found.contains(function));
    Ok(changed.map(|function| function.name.clone()).collect())
}

/// Whether what is installed once in a database is there, in this version.
pub(super) async fn database_is_current(client: &impl GenericClient) -> Result<bool, SqlError> {
    let tables =
        "SELECT to_regclass('leasehold_fence.seen') IS NOT NULL AND to_regclass('leasehold_fence.fenced') IS NOT NULL";
    let there: bool = client.query_one(tables, &[]).await?.try_get(0)?;
    Ok(there && changed_functions(client, &function_texts(DATABASE_SQL)).await?.is_empty())
}

/// The guard whose memory is in the column of a table, from the comment of the column.
pub(super) async fn remembered_guard(client: &impl GenericClient, oid: u32) -> Result<Option<String>, SqlError> {
    let sql = "SELECT col_description(attrelid, attnum) FROM pg_attribute
               WHERE attrelid = $1 AND attname = 'leasehold_fence' AND NOT attisdropped";
    let Some(row) = client.query_opt(sql, &[&oid]).await? else { return Ok(None) };
    let comment: Option<String> = row.try_get(0)?;
    let guard = comment.and_then(|text| text.rsplit_once(MEMORY_WORD).map(|(_, guard)| guard.trim().to_owned()));
    let digits = |guard: &str| guard.bytes().skip(1).all(|b| b.is_ascii_hexdigit());
    Ok(guard.filter(|guard| guard.len() == 13 && guard.starts_with('g') && digits(guard)))
}
