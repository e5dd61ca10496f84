//! Examines the fences of a database: tables, highest tokens, counters, and every hole there is. Reads only.

use leasehold_postgres::tokio_postgres::{Client, Error as SqlError};

use super::fenced_row::{FencedRow, REMOVED_COMMENT, changed_functions, read_fenced};
use super::highest::{hidden_rows, highest_in_rows, token_from_sql};
use super::holes::table_holes;
use super::install::FenceMode;
use super::row_memory::has_rows_below;
use super::sql_refusal::failure_before_commit;
use super::sql_text::{DATABASE_SQL, FenceText, Remember, function_texts};
use super::table::{TableShape, read_shape};
use crate::Token;
use crate::fence::hole::{FenceHole, HoleKind};
use crate::fence::refusal::FenceError;

/// One fenced table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencedTable {
    /// The table with its schema.
    pub table: String,
    /// The resource of a row.
    pub resource: String,
    /// Where fences are remembered.
    pub store: Remember,
    /// What happens to a write that must not be admitted.
    pub mode: FenceMode,
    /// The highest token that it remembers, as far as was read.
    pub highest: Option<Token>,
    /// Whether everything was read. A large table is sampled.
    pub is_highest_exact: bool,
    /// Rows written since the fence came, those included that were rolled back.
    pub admitted: u64,
    /// Writes that were refused, or would have been. A crash of the server may add up to 32.
    pub rejected: u64,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FenceExamination {
    /// The fenced tables, in order of name.
    pub tables: Vec<FencedTable>,
    /// Ways by which a stale write could get past a fence.
    pub holes: Vec<FenceHole>,
    /// What somebody should know, and what cannot be stopped.
    pub notes: Vec<String>,
    /// The highest token that is remembered by name: by these tables, by `leasehold_fence.check`, by a fence that was removed.
    pub highest_by_name: Option<Token>,
}

impl FenceExamination {
    /// The highest token of all fences, as far as was read.
    #[must_use]
    pub fn highest(&self) -> Option<Token> {
        self.tables.iter().filter_map(|table| table.highest).max().max(self.highest_by_name)
    }

    /// Compares with an engine: its `floor` is the token below which none will come any more.
    pub fn compare_with_floor(&mut self, floor: Token) {
        if let Some(highest) = self.highest().filter(|highest| floor < *highest) {
            self.holes.push(FenceHole::new(
                HoleKind::EngineBelow,
                "",
                format!(
                    "the engine may give out tokens from {floor} on and the fence has seen {highest}: every new holder \
                     would be refused; run leasehold fence floor"
                ),
            ));
        }
    }
}

/// Examines all fences of a database. `exact`: large tables are read whole, else they are sampled.
///
/// # Errors
///
/// [`FenceError::Unavailable`] when the database cannot be asked. [`FenceError::Invalid`] when the highest token is to be
/// exact, and this role does not see every row.
pub async fn examine(client: &Client, exact: bool) -> Result<FenceExamination, FenceError> {
    let (mut found, hidden) =
        examine_all(client, exact).await.map_err(|error| failure_before_commit(error, "examine the fences"))?;
    match hidden.first() {
        Some(sentence) if exact => Err(FenceError::Invalid(sentence.clone())),
        _ => {
            found.notes.extend(hidden);
            Ok(found)
        }
    }
}

/// What was found, and which tables this role cannot read.
async fn examine_all(client: &Client, exact: bool) -> Result<(FenceExamination, Vec<String>), SqlError> {
    let (mut found, mut hidden) = (FenceExamination::default(), Vec::new());
    let rows = read_fenced(client).await?;
    for row in &rows {
        let Some(shape) = read_shape(client, row.rel).await? else {
            found.holes.push(table_gone(row));
            continue;
        };
        found.holes.extend(table_holes(client, &shape, row).await?);
        let why_hidden = if row.store == Remember::Row { hidden_rows(client, &shape, &row.keys).await? } else { None };
        let (table, row_holes) = read_table(client, row, &shape, why_hidden.is_none(), exact).await?;
        found.tables.push(table);
        found.holes.extend(row_holes);
        hidden.extend(why_hidden);
        found.notes.extend(table_notes(client, &shape).await?);
    }
    found.highest_by_name = highest_of_names(client).await?;
    if !rows.is_empty() {
        for name in changed_functions(client, &function_texts(DATABASE_SQL)).await? {
            let sentence = format!("leasehold_fence.{name} is missing or changed: install any table again");
            found.holes.push(FenceHole::new(HoleKind::FunctionChanged, "", sentence));
        }
    }
    found.holes.extend(unfenced_tables(client, &rows).await?);
    found.holes.extend(fixed_settings(client).await?);
    Ok((found, hidden))
}

fn table_gone(row: &FencedRow) -> FenceHole {
    let sentence = format!(
        "the fenced table of {} was dropped: if it was made anew it has no fence, install one. If it will not come \
         back: leasehold fence remove --table {}",
        row.template, row.guard
    );
    FenceHole::new(HoleKind::TableGone, row.guard.clone(), sentence)
}

async fn read_table(
    client: &Client,
    row: &FencedRow,
    shape: &TableShape,
    sees_rows: bool,
    exact: bool,
) -> Result<(FencedTable, Vec<FenceHole>), SqlError> {
    let mut holes = Vec::new();
    let (in_rows, is_highest_exact) = match row.store {
        Remember::Row if !sees_rows => (None, false),
        Remember::Row if shape.has_fence_column() => {
            let read = highest_in_rows(client, &shape.quoted(), row.rel, exact).await?;
            holes = row_holes(client, row, shape, read.is_malformed).await?;
            (read.highest, read.is_whole)
        }
        _ => (None, true),
    };
    let table = FencedTable {
        table: shape.display_name(),
        resource: row.template.clone(),
        store: row.store,
        mode: row.mode,
        highest: in_rows.max(highest_by_name(client, row).await?),
        is_highest_exact,
        admitted: written_rows(client, row).await?,
        rejected: rejected_writes(client, &row.guard).await?,
    };
    Ok((table, holes))
}

/// What rows remember, and should not.
async fn row_holes(
    client: &Client,
    row: &FencedRow,
    shape: &TableShape,
    is_malformed: bool,
) -> Result<Vec<FenceHole>, SqlError> {
    let mut holes = Vec::new();
    let mut add = |kind, sentence: &str| holes.push(FenceHole::new(kind, shape.display_name(), sentence));
    if is_malformed {
        add(
            HoleKind::RowsMalformed,
            "a row has a leasehold_fence that is no fence, and cannot be written: remove the fence, put the token back \
             that the row had, and install again",
        );
    }
    if let Ok(template) = row.parse_template() {
        let text = FenceText { guard: &row.guard, shape, template: &template, store: row.store };
        if has_rows_below(client, &text).await? {
            add(
                HoleKind::RowsBelow,
                "rows that came while it did not enforce would admit a stale token: install again with --mode enforce",
            );
        }
    }
    Ok(holes)
}

/// The highest token of all names, whoever showed it.
async fn highest_of_names(client: &Client) -> Result<Option<Token>, SqlError> {
    let there = client.query_one("SELECT to_regclass('leasehold_fence.seen') IS NOT NULL", &[]).await?;
    if !there.try_get::<_, bool>(0)? {
        return Ok(None);
    }
    let row = client.query_one("SELECT max(token) FROM leasehold_fence.seen", &[]).await?;
    Ok(token_from_sql(row.try_get(0)?))
}

/// The highest token of a table in `seen`.
async fn highest_by_name(client: &Client, row: &FencedRow) -> Result<Option<Token>, SqlError> {
    let template = row.parse_template().ok();
    let (scope, name) = match (row.store, template) {
        (Remember::Row, _) => (row.guard.clone(), None),
        (Remember::Name, Some(template)) if template.is_fixed() => ("=".to_owned(), Some(template.fixed_name())),
        (Remember::Name, _) => (String::new(), None),
    };
    let sql = "SELECT max(token) FROM leasehold_fence.seen WHERE scope = $1 AND ($2::text IS NULL OR resource = $2)";
    let highest: Option<i64> = client.query_one(sql, &[&scope, &name]).await?.try_get(0)?;
    Ok(token_from_sql(highest))
}

/// Rows written since the fence came. Free: the statistics count them anyway. They begin anew with a reset by hand, and with a
/// crash: then every view of the server has the same moment of a reset.
async fn written_rows(client: &Client, row: &FencedRow) -> Result<u64, SqlError> {
    let sql = "SELECT coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)::bigint,
            EXISTS (SELECT FROM leasehold_fence.fenced f, pg_stat_database d, pg_stat_archiver a, pg_stat_bgwriter b, pg_stat_wal w
                WHERE f.guard = $2 AND d.datname = current_database() AND (d.stats_reset > f.installed
                    OR a.stats_reset > f.installed AND a.stats_reset = b.stats_reset AND b.stats_reset = w.stats_reset))
        FROM pg_stat_all_tables
        WHERE relid IN (SELECT $1::oid UNION SELECT relid FROM pg_partition_tree($1::oid::regclass))";
    let answer = client.query_one(sql, &[&row.rel, &row.guard]).await?;
    let (written, is_reset): (i64, bool) = (answer.try_get(0)?, answer.try_get(1)?);
    // Fewer than there were before the fence: the statistics of this table alone were reset.
    let before = if is_reset || written < row.rows_before { 0 } else { row.rows_before };
    Ok(u64::try_from(written - before).unwrap_or_default())
}

async fn rejected_writes(client: &Client, guard: &str) -> Result<u64, SqlError> {
    let name = format!("leasehold_fence.{guard}_rejected");
    let there: bool = client.query_one("SELECT to_regclass($1) IS NOT NULL", &[&name]).await?.try_get(0)?;
    if !there {
        return Ok(0);
    }
    let sql = format!("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {name}");
    let rejected: i64 = client.query_one(&sql, &[]).await?.try_get(0)?;
    Ok(u64::try_from(rejected).unwrap_or_default())
}

/// Who could take the fence away, and who could keep others waiting.
async fn table_notes(client: &Client, shape: &TableShape) -> Result<Vec<String>, SqlError> {
    let table = shape.display_name();
    let sql = "SELECT coalesce(string_agg(r.rolname::text, ', ' ORDER BY r.rolname), '') FROM pg_roles r, pg_class c
        WHERE c.oid = $1 AND r.rolcanlogin AND (r.rolsuper OR pg_has_role(r.oid, c.relowner, 'MEMBER'))";
    let owners: String = client.query_one(sql, &[&shape.oid]).await?.try_get(0)?;
    let mut notes =
        vec![format!("{table}: these roles could disable or drop its fence, which cannot be stopped: {owners}")];
    let sql = "SELECT coalesce(string_agg(r.rolname::text, ', ' ORDER BY r.rolname), '') FROM pg_roles r
        WHERE r.rolcanlogin AND has_table_privilege(r.oid, $1::oid, 'UPDATE') AND coalesce((
            SELECT split_part(c, '=', 2) FROM pg_db_role_setting s, unnest(s.setconfig) c
            WHERE s.setrole IN (r.oid, 0) AND c LIKE 'idle\\_in\\_transaction\\_session\\_timeout=%'
                AND s.setdatabase IN (0, (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
            ORDER BY s.setrole <> 0 DESC, s.setdatabase <> 0 DESC LIMIT 1),
            (SELECT reset_val FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout')) = '0'";
    let patient: String = client.query_one(sql, &[&shape.oid]).await?.try_get(0)?;
    if !patient.is_empty() {
        notes.push(format!(
            "{table}: idle_in_transaction_session_timeout is 0 for {patient}: a stale holder that stops inside its \
             transaction keeps the next one waiting"
        ));
    }
    Ok(notes)
}

/// Tables with the column of a fence and without a fence: restored alone, or made anew.
async fn unfenced_tables(client: &Client, rows: &[FencedRow]) -> Result<Vec<FenceHole>, SqlError> {
    let sql = "SELECT format('%I.%I', n.nspname, c.relname), c.oid, coalesce(col_description(c.oid, a.attnum), '')
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE a.attname = 'leasehold_fence' AND NOT a.attisdropped AND a.atttypid = 'text'::regtype
            AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND a.attinhcount = 0 ORDER BY 1";
    let mut holes = Vec::new();
    for row in client.query(sql, &[]).await? {
        let (table, oid, comment): (String, u32, String) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        if rows.iter().all(|fenced| fenced.rel != oid) && !comment.starts_with(REMOVED_COMMENT) {
            let sentence =
                "it has the column of a fence and no fence: it was restored without its triggers; install one";
            holes.push(FenceHole::new(HoleKind::Unfenced, table, sentence));
        }
    }
    Ok(holes)
}

/// Roles and databases that set a token for every session: a stranger would write under it.
async fn fixed_settings(client: &Client) -> Result<Vec<FenceHole>, SqlError> {
    let sql = "SELECT coalesce((SELECT rolname::text FROM pg_roles WHERE oid = s.setrole), 'every role')
        FROM pg_db_role_setting s, unnest(s.setconfig) c WHERE c LIKE 'leasehold.token=%'
            AND s.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database())) ORDER BY 1";
    let mut holes = Vec::new();
    for row in client.query(sql, &[]).await? {
        let role: String = row.try_get(0)?;
        let sentence =
            format!("leasehold.token is set for {role} in advance: reset it, a token is local to a transaction");
        holes.push(FenceHole::new(HoleKind::SettingFixed, "", sentence));
    }
    Ok(holes)
}
