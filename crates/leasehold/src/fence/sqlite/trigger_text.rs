//! Writes the triggers of a fenced table.
//!
//! # Laws
//!
//! 1. What a user named (tables, columns, resources) is always quoted: none of it is ever read as SQL.
//! 2. The same table, keys and resource always give the same text: `fence check` compares it with what is installed.

use crate::fence::resource_template::{ResourceTemplate, TemplatePiece};

/// What is made once in a file.
pub(super) const FILE_SQL: &str = "\
CREATE TABLE IF NOT EXISTS leasehold_seen (resource TEXT PRIMARY KEY, token INTEGER NOT NULL CHECK (typeof(token) = 'integer' AND token > 0), lease TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS leasehold_fenced (name TEXT PRIMARY KEY COLLATE NOCASE, template TEXT NOT NULL, keys TEXT NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID;";

/// How the names of our triggers begin. Names of triggers are one space for the whole file: the table follows.
pub(super) const TRIGGER_PREFIX: &str = "zz_leasehold_";

/// A trigger: its name, and the statement that makes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TriggerText {
    pub name: String,
    pub sql: String,
}

/// The three triggers of a table.
pub(super) fn fence_triggers(table: &str, template: &ResourceTemplate) -> [TriggerText; 3] {
    let (old, new) = (resource_sql(template, "OLD"), resource_sql(template, "NEW"));
    let trigger = |event: &str, resources: &[&String]| {
        let name = format!("{TRIGGER_PREFIX}{}_{table}", event.to_lowercase());
        let checks: String = resources.iter().map(|resource| check_sql(resource)).collect();
        let sql =
            format!("CREATE TRIGGER {} AFTER {event} ON {} BEGIN\n{checks}END", quote_ident(&name), quote_ident(table));
        TriggerText { name, sql }
    };
    [trigger("INSERT", &[&new]), trigger("UPDATE", &[&old, &new]), trigger("DELETE", &[&old])]
}

/// The rule for one resource: none, malformed, stale, other lease; then the memory. A message must be a literal: the
/// numbers are read afterwards, in the same transaction.
fn check_sql(resource: &str) -> String {
    let shown = format!(
        "(SELECT h, substr(h, 1, instr(h || ':', ':') - 1) AS s, CAST(substr(h, 1, instr(h || ':', ':') - 1) AS INTEGER) AS n, \
         substr(h, instr(h || ':', ':') + 1) AS m FROM (SELECT leasehold_token({resource}) AS h))"
    );
    format!(
        "  SELECT RAISE(ABORT, 'leasehold LH002: no token was shown for a fenced row') WHERE leasehold_token({resource}) IS NULL;
  SELECT RAISE(ABORT, 'leasehold LH004: the token is malformed') FROM {shown} t
    WHERE t.n < 1 OR CAST(t.n AS TEXT) <> t.s OR t.h LIKE '%:%' AND (length(t.m) <> 16 OR t.m GLOB '*[^0-9a-f]*');
  SELECT CASE WHEN s.token > t.n THEN RAISE(ABORT, 'leasehold LH001: the token is stale')
              WHEN s.token = t.n AND s.lease NOT IN ('', t.m) THEN RAISE(ABORT, 'leasehold LH003: the token belongs to another lease') END
    FROM leasehold_seen s, {shown} t WHERE s.resource = {resource};
  INSERT INTO leasehold_seen SELECT {resource}, n, m FROM {shown} WHERE true
    ON CONFLICT (resource) DO UPDATE SET token = excluded.token, lease = excluded.lease
    WHERE leasehold_seen.token < excluded.token OR leasehold_seen.lease <> excluded.lease;
"
    )
}

/// The resource of a row, as SQL over `OLD` or `NEW`.
fn resource_sql(template: &ResourceTemplate, row: &str) -> String {
    let keys = template.key_columns();
    let part = |piece: &TemplatePiece| match piece {
        TemplatePiece::Text(text) => quote_literal(text),
        TemplatePiece::Key(at) => {
            let value = format!("{row}.{}", quote_ident(&keys[*at]));
            let text = format!(
                "CASE typeof({value}) WHEN 'blob' THEN lower(hex({value})) ELSE coalesce(CAST({value} AS TEXT), '') END"
            );
            if keys.len() > 1 { format!("replace(replace({text}, '%', '%25'), '/', '%2F')") } else { text }
        }
    };
    let parts: Vec<String> = template.pieces().iter().map(part).collect();
    format!("({})", parts.join(" || "))
}

/// An identifier, quoted.
pub(super) fn quote_ident(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn quote_literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
