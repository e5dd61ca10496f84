//! Examines the fences of a SQLite file: tables, the highest token, and every hole there is. Reads only.

use rusqlite::Connection;

use super::install::{SqliteFencedRow, has_table, read_columns, read_fenced, read_triggers};
use super::trigger_text::fence_triggers;
use super::{FENCE_VERSION, unavailable};
use crate::Token;
use crate::fence::hole::{FenceHole, HoleKind};
use crate::fence::refusal::FenceError;
use crate::fence::resource_template::ResourceTemplate;

/// Tables that keep tokens of leases, and the column. The first is the fence's, then those of schedules and of the ledger of
/// the box office.
const SOURCES: [(&str, &str); 5] = [
    ("leasehold_seen", "token"),
    ("leasehold_schedule", "token"),
    ("hold_seats", "token"),
    ("sold_seats", "token"),
    ("tokens", "highest"),
];
/// Places of areas in the ledger of the box office: they have the tokens of the leases of live holds.
const AREA_TOKENS: &str = "SELECT max(CAST(l.value ->> 'token' AS INTEGER))
    FROM holds h, json_each(h.body, '$.leases') l WHERE h.live = 1";

/// One fenced table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqliteFencedTable {
    /// The table.
    pub table: String,
    /// The resource of a row.
    pub resource: String,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SqliteExamination {
    /// The fenced tables, in order of name.
    pub tables: Vec<SqliteFencedTable>,
    /// The highest token that the fences of the file remember.
    pub highest: Option<Token>,
    /// Ways by which a stale write could get past a fence.
    pub holes: Vec<FenceHole>,
    /// What somebody should know, and what cannot be stopped.
    pub notes: Vec<String>,
}

impl SqliteExamination {
    /// Compares with an engine: its `floor` is the token below which none will come any more.
    pub fn compare_with_floor(&mut self, floor: Token) {
        if let Some(highest) = self.highest.filter(|highest| floor < *highest) {
            let sentence = format!(
                "the engine may give out tokens from {floor} on and the fence has seen {highest}: every new holder would \
                 be refused; run leasehold fence floor"
            );
            self.holes.push(FenceHole::new(HoleKind::EngineBelow, "", sentence));
        }
    }
}

/// Examines all fences of a file.
///
/// # Errors
///
/// [`FenceError::Unavailable`] when the file cannot be read.
pub fn examine(connection: &Connection) -> Result<SqliteExamination, FenceError> {
    examine_all(connection).map_err(|error| unavailable(error, "examine the fences"))
}

/// The highest token of leases that the file has seen: of fences, of schedules, and of a ledger of the box office.
///
/// # Errors
///
/// [`FenceError::Unavailable`] when the file cannot be read.
pub fn highest_token(connection: &Connection) -> Result<Option<Token>, FenceError> {
    let read = || -> rusqlite::Result<Option<Token>> {
        let has_columns = |table: &str, columns: &[&str]| -> rusqlite::Result<bool> {
            let there = if has_table(connection, table)? { read_columns(connection, table)? } else { Vec::new() };
            Ok(columns.iter().all(|column| there.iter().any(|name| name == column)))
        };
        let mut highest = None;
        for (table, column) in SOURCES {
            if has_columns(table, &[column])? {
                highest = highest.max(read_token(connection, &format!("SELECT max({column}) FROM {table}"))?);
            }
        }
        // Tables of these names may be a user's own.
        if has_columns("hold_seats", &["token"])? && has_columns("holds", &["body", "live"])? {
            highest = highest.max(read_token(connection, AREA_TOKENS)?);
        }
        Ok(highest)
    };
    read().map_err(|error| unavailable(error, "read the highest token"))
}

fn read_token(connection: &Connection, sql: &str) -> rusqlite::Result<Option<Token>> {
    let highest: Option<i64> = connection.query_row(sql, [], |row| row.get(0))?;
    Ok(highest.and_then(|number| u64::try_from(number).ok()).and_then(Token::new))
}

fn examine_all(connection: &Connection) -> rusqlite::Result<SqliteExamination> {
    let mut found = SqliteExamination::default();
    if has_table(connection, "leasehold_seen")? {
        found.highest = read_token(connection, "SELECT max(token) FROM leasehold_seen")?;
    }
    for row in read_fenced(connection)? {
        if !has_table(connection, &row.table)? {
            let sentence = "it was renamed or dropped: install again under its name, then remove this one";
            found.holes.push(FenceHole::new(HoleKind::TableGone, row.table, sentence));
            continue;
        }
        found.holes.extend(table_holes(connection, &row)?);
        let unique: i64 = connection.query_row(
            "SELECT count(*) FROM pragma_index_list(?1) WHERE \"unique\" = 1",
            [&row.table],
            |answer| answer.get(0),
        )?;
        // A rowid key has no index of its own, so one index may already be the second unique key.
        if unique > 1 || unique == 1 && has_rowid_key(connection, &row.table)? {
            found.notes.push(format!(
                "{}: it has a second unique index, so INSERT OR REPLACE may remove another row without asking the fence \
                 on connections without PRAGMA recursive_triggers = ON",
                row.table
            ));
        }
        found.tables.push(SqliteFencedTable { table: row.table, resource: row.template });
    }
    if !found.tables.is_empty() {
        found.notes.push("whoever may write the file can drop the triggers, which cannot be stopped".into());
    }
    Ok(found)
}

fn has_rowid_key(connection: &Connection, table: &str) -> rusqlite::Result<bool> {
    let sql = "SELECT count(*) = 1 AND upper(max(type)) = 'INTEGER' FROM pragma_table_info(?1) WHERE pk > 0";
    connection.query_row(sql, [table], |row| Ok(row.get::<_, Option<bool>>(0)?.unwrap_or(false)))
}

fn table_holes(connection: &Connection, row: &SqliteFencedRow) -> rusqlite::Result<Vec<FenceHole>> {
    let mut holes = Vec::new();
    let mut add = |kind, sentence: String| holes.push(FenceHole::new(kind, row.table.clone(), sentence));
    if row.version != FENCE_VERSION {
        let sentence = format!("version {} installed it, this is version {FENCE_VERSION}: install again", row.version);
        add(HoleKind::OtherVersion, sentence);
    }
    let Ok(template) = ResourceTemplate::parse(&row.template, &row.keys) else {
        add(HoleKind::KeyMissing, "its resource cannot be read any more: install again".into());
        return Ok(holes);
    };
    let columns = read_columns(connection, &row.table)?;
    for key in row.keys.iter().filter(|key| !columns.contains(key)) {
        add(HoleKind::KeyMissing, format!("it has no column {key} any more: install again with the new name"));
    }
    let found = read_triggers(connection, &row.table)?;
    for wanted in fence_triggers(&row.table, &template) {
        match found.iter().find(|(name, _)| *name == wanted.name) {
            None => add(HoleKind::TriggerMissing, format!("the trigger {} is missing: install again", wanted.name)),
            Some((_, sql)) if *sql != wanted.sql => {
                add(HoleKind::TriggerChanged, format!("the trigger {} is not ours: install again", wanted.name));
            }
            Some(_) => {}
        }
    }
    Ok(holes)
}
