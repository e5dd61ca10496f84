//! Writes the SQL of one fenced table: fills the texts of this folder with its names, keys and resource.
//!
//! # Laws
//!
//! 1. The text of a key does not depend on the session that writes (`TimeZone`, `DateStyle`, `extra_float_digits`,
//!    `search_path`).
//! 2. What a user named (tables, columns, resources) is always quoted: none of it is ever read as SQL.
//! 3. The same table, keys and resource always give the same text: `fence check` compares it with what is installed.

use super::table::{KeyColumn, TableShape};
use crate::fence::refusal::FenceError;
use crate::fence::resource_template::{ResourceTemplate, TemplatePiece};

/// The SQL that is installed once in a database.
pub(super) const DATABASE_SQL: &str = include_str!("database.sql");

const ROW_FUNCTIONS: &str = include_str!("row_functions.sql");
const ROW_TRIGGERS: &str = include_str!("row_triggers.sql");
const KEYED_FUNCTIONS: &str = include_str!("keyed_functions.sql");
const KEYED_TRIGGERS: &str = include_str!("keyed_triggers.sql");
const FIXED_FUNCTIONS: &str = include_str!("fixed_functions.sql");
const FIXED_TRIGGERS: &str = include_str!("fixed_triggers.sql");

/// What stands around the body of every function of ours.
pub(super) const BODY_QUOTE: &str = "$fence$";

/// Types whose text never depends on the session, and whose equal values have equal texts.
const EXACT_TYPES: [&str; 20] = [
    "int2",
    "int4",
    "int8",
    "oid",
    "uuid",
    "bool",
    "text",
    "varchar",
    "bpchar",
    "name",
    "char",
    "inet",
    "cidr",
    "macaddr",
    "macaddr8",
    "bit",
    "varbit",
    "time",
    "int4range",
    "int8range",
];
/// Of these, the ones that are compared as they are: equality is equality of texts.
const PLAIN_TYPES: [&str; 6] = ["int2", "int4", "int8", "oid", "uuid", "bool"];

/// Where the fence of a row is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remember {
    /// In a column of the row itself.
    Row,
    /// In a row of `leasehold_fence.seen`, by name.
    Name,
}

impl Remember {
    /// The word on the command line and in `leasehold_fence.fenced`.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Row => "row",
            Self::Name => "name",
        }
    }
}

/// A trigger that a fenced table must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExpectedTrigger {
    pub name: &'static str,
    /// `pg_trigger.tgtype`.
    pub kind: i16,
    /// The function, without the guard: `_row`.
    pub function: &'static str,
    /// It has a WHEN, with these words in it.
    pub conditional: Option<&'static str>,
    /// Its WHEN compares the keys.
    pub asks_for_keys: bool,
}

impl ExpectedTrigger {
    /// A trigger for rows is cloned to partitions. One for statements is not.
    pub fn is_for_rows(&self) -> bool {
        self.kind & 1 == 1
    }
}

/// The trigger that refuses TRUNCATE. It is not cloned to partitions.
pub(super) const TRUNCATE_TRIGGER: ExpectedTrigger = ExpectedTrigger {
    name: "zz_leasehold_truncate",
    kind: 34,
    function: "no_truncate",
    conditional: None,
    asks_for_keys: false,
};

/// Every name that a trigger of ours may have.
pub(super) const TRIGGER_NAMES: [&str; 6] = [
    "aa_leasehold_fence",
    "zz_leasehold_fence",
    "zz_leasehold_new",
    "zz_leasehold_memory",
    "zz_leasehold_moved",
    "zz_leasehold_truncate",
];

/// The fence of one table, from which all its SQL is written.
#[derive(Clone, Debug)]
pub(super) struct FenceText<'t> {
    pub guard: &'t str,
    pub shape: &'t TableShape,
    pub template: &'t ResourceTemplate,
    pub store: Remember,
}

impl FenceText<'_> {
    /// Sequence and functions: they lock no table.
    ///
    /// # Errors
    ///
    /// [`FenceError::Invalid`] when a key of the template is no column, or a name cannot stand in a function.
    pub fn functions(&self) -> Result<String, FenceError> {
        let text = match (self.store, self.template.is_fixed()) {
            (Remember::Row, _) => ROW_FUNCTIONS,
            (Remember::Name, false) => KEYED_FUNCTIONS,
            (Remember::Name, true) => FIXED_FUNCTIONS,
        };
        let sql = self.fill(text)?;
        if sql.matches(BODY_QUOTE).count() != text.matches(BODY_QUOTE).count() {
            return Err(FenceError::Invalid(format!("a name with {BODY_QUOTE} in it cannot be fenced")));
        }
        Ok(sql)
    }

    /// Column and triggers, for the table and its partitions.
    ///
    /// # Errors
    ///
    /// As [`FenceText::functions`].
    pub fn triggers(&self) -> Result<String, FenceError> {
        let text = match (self.store, self.template.is_fixed()) {
            (Remember::Row, _) => ROW_TRIGGERS,
            (Remember::Name, false) => KEYED_TRIGGERS,
            (Remember::Name, true) => FIXED_TRIGGERS,
        };
        let mut sql = self.fill(text)?;
        let (guard, table) = (self.guard, self.shape.quoted());
        let relations = || std::iter::once(table.as_str()).chain(self.shape.partitions.iter().map(String::as_str));
        for relation in relations() {
            sql += &format!(
                "CREATE TRIGGER zz_leasehold_truncate BEFORE TRUNCATE ON {relation} FOR EACH STATEMENT EXECUTE FUNCTION \
                 leasehold_fence.no_truncate('{guard}');\n"
            );
        }
        // On a subscriber the publisher has checked, and the apply worker shows no token: it must pass.
        let state = if self.shape.subscribed { "ENABLE" } else { "ENABLE ALWAYS" };
        for relation in relations() {
            for trigger in self.expected_triggers() {
                if relation == table || trigger.is_for_rows() || trigger == TRUNCATE_TRIGGER {
                    sql += &format!("ALTER TABLE {relation} {state} TRIGGER {};\n", trigger.name);
                }
            }
        }
        Ok(sql)
    }

    /// The triggers that the table must have.
    pub fn expected_triggers(&self) -> Vec<ExpectedTrigger> {
        let trigger = |name, kind, function, conditional| {
            let asks_for_keys = name == "zz_leasehold_moved";
            ExpectedTrigger { name, kind, function, conditional, asks_for_keys }
        };
        let mut all = match (self.store, self.template.is_fixed()) {
            (Remember::Row, _) => vec![
                trigger("zz_leasehold_fence", 19, "_row", Some("current_setting('leasehold.token'::text, true)")),
                trigger("zz_leasehold_new", 7, "_new", None),
                trigger("zz_leasehold_memory", 13, "_memory", None),
                trigger("zz_leasehold_moved", 17, "_memory", Some("IS DISTINCT FROM")),
            ],
            (Remember::Name, false) => vec![trigger("zz_leasehold_fence", 29, "_name", None)],
            (Remember::Name, true) => {
                let held = Some("current_setting('leasehold.held_");
                vec![trigger("aa_leasehold_fence", 30, "_name", held), trigger("zz_leasehold_fence", 29, "_name", held)]
            }
        };
        all.push(TRUNCATE_TRIGGER);
        all
    }

    /// The resource of a row, as SQL over `OLD`, `NEW` or the alias of a table.
    ///
    /// # Errors
    ///
    /// [`FenceError::Invalid`] when a key of the template is no column of the table.
    pub fn resource_sql(&self, row: &str) -> Result<String, FenceError> {
        let several = self.template.key_columns().len() > 1;
        let mut parts = Vec::new();
        for piece in self.template.pieces() {
            parts.push(match piece {
                TemplatePiece::Text(text) => quote_literal(text),
                TemplatePiece::Key(at) => {
                    let column = self.shape.find_column(&self.template.key_columns()[*at])?;
                    key_text(column, row, several)
                }
            });
        }
        // A text in front makes the operator that of texts, whatever the first key is.
        Ok(format!("({})", parts.join(" OPERATOR(pg_catalog.||) ")))
    }

    /// Whether an UPDATE changed the resource of a row, as SQL.
    fn moved_sql(&self) -> Result<String, FenceError> {
        let mut plain = Vec::new();
        for key in self.template.key_columns() {
            let column = self.shape.find_column(key)?;
            if !PLAIN_TYPES.contains(&column.base_type.as_str()) {
                return Ok(format!("{} IS DISTINCT FROM {}", self.resource_sql("OLD")?, self.resource_sql("NEW")?));
            }
            let name = quote_ident(&column.name);
            plain.push(format!("NEW.{name} IS DISTINCT FROM OLD.{name}"));
        }
        Ok(plain.join(" OR "))
    }

    /// Fills the places «g», «table», «old», «new», «moved» and «name» of a text. What is filled in is not looked at
    /// again.
    fn fill(&self, text: &str) -> Result<String, FenceError> {
        let mut sql = String::with_capacity(2 * text.len());
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('«') {
            let (place, after) = after.split_once('»').unwrap_or((after, ""));
            sql.push_str(before);
            sql.push_str(&match place {
                "g" => self.guard.to_owned(),
                "table" => self.shape.quoted(),
                "old" => self.resource_sql("OLD")?,
                "new" => self.resource_sql("NEW")?,
                "moved" => self.moved_sql()?,
                "name" => quote_literal(&self.template.fixed_name()),
                other => unreachable!("no text of ours has the place {other}"),
            });
            rest = after;
        }
        sql.push_str(rest);
        Ok(sql)
    }
}

/// The text of a key, the same in every session.
fn key_text(column: &KeyColumn, row: &str, escaped: bool) -> String {
    let value = format!("{row}.{}", quote_ident(&column.name));
    let text = match column.base_type.as_str() {
        // 1.0 and 1.00 are one key.
        "numeric" => format!("pg_catalog.trim_scale({value})::pg_catalog.text"),
        "date" => calendar_text(&format!("{value}::pg_catalog.date"), "YYYY-MM-DD"),
        "timestamp" => calendar_text(&format!("{value}::pg_catalog.timestamp"), "YYYY-MM-DD\"T\"HH24:MI:SS.US"),
        "timestamptz" => calendar_text(
            &format!("pg_catalog.timezone('UTC', {value}::pg_catalog.timestamptz)"),
            "YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"",
        ),
        "bytea" => format!("pg_catalog.encode({value}::pg_catalog.bytea, 'hex')"),
        _ if is_exact(column) => format!("{value}::pg_catalog.text"),
        _ => format!("leasehold_fence.key_text({value})"),
    };
    let text = if column.not_null { text } else { format!("COALESCE({text}, '')") };
    let text =
        if escaped { format!("pg_catalog.replace(pg_catalog.replace({text}, '%', '%25'), '/', '%2F')") } else { text };
    format!("({text} COLLATE pg_catalog.\"C\")")
}

/// A day or a moment as text. Years before Christ end in ` BC`: without it two years would be one resource. `to_char` has no
/// text for the infinite ones.
fn calendar_text(value: &str, format: &str) -> String {
    format!(
        "COALESCE(pg_catalog.replace(pg_catalog.to_char({value}, '{format} BC'), ' AD', ''), {value}::pg_catalog.text)"
    )
}

/// Whether the text of a key never depends on the session, and equal values have equal texts.
fn is_exact(column: &KeyColumn) -> bool {
    column.is_enum || EXACT_TYPES.contains(&column.base_type.as_str())
}

/// What to warn of when a column is used as a key.
pub(super) fn key_warning(column: &KeyColumn) -> Option<String> {
    let converted = ["numeric", "date", "timestamp", "timestamptz", "bytea"];
    let name = column.base_type.as_str();
    let why = if column.folds_text {
        "has a collation that does not tell all texts apart".to_owned()
    } else if is_exact(column) || converted.contains(&name) {
        return None;
    } else {
        format!("is of type {name}")
    };
    Some(format!("the key {} {why}: equal values that are written differently are two resources", column.name))
}

/// A function of ours, as `pg_proc` has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FunctionText {
    pub name: String,
    pub body: String,
    /// It runs with the rights of its owner.
    pub is_definer: bool,
    /// It sees `pg_catalog` alone, whatever the caller's path is.
    pub has_search_path: bool,
}

/// The functions in a text of ours.
pub(super) fn function_texts(sql: &str) -> Vec<FunctionText> {
    let mut functions = Vec::new();
    let mut rest = sql;
    while let Some((_, after)) = rest.split_once("FUNCTION leasehold_fence.") {
        let name: String = after.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        let is_definition = after.starts_with(&format!("{name}("));
        let mut pieces = after.splitn(3, BODY_QUOTE);
        match (is_definition, pieces.next(), pieces.next(), pieces.next()) {
            (true, Some(head), Some(body), Some(tail)) => {
                functions.push(FunctionText {
                    name,
                    body: body.to_owned(),
                    is_definer: head.contains("SECURITY DEFINER"),
                    has_search_path: head.contains("SET search_path = pg_catalog, pg_temp"),
                });
                rest = tail;
            }
            _ => rest = after,
        }
    }
    functions
}

/// An identifier, quoted.
pub(super) fn quote_ident(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text, quoted, whatever `standard_conforming_strings` says.
pub(super) fn quote_literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    if text.contains('\\') { format!("E'{}'", quoted.replace('\\', "\\\\")) } else { format!("'{quoted}'") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> TableShape {
        let column = |name: &str, base_type: &str| KeyColumn {
            name: name.into(),
            base_type: base_type.into(),
            is_enum: false,
            folds_text: false,
            not_null: true,
            generated: false,
        };
        TableShape {
            oid: 1,
            schema: "pub\"lic".into(),
            name: "Se ats".into(),
            plain_name: "\"pub\"\"lic\".\"Se ats\"".into(),
            is_partition: false,
            partitions: vec!["\"p\".\"one\"".into()],
            partition_names: vec!["p.one".into()],
            has_foreign_partition: false,
            children: Vec::new(),
            unlogged: false,
            subscribed: false,
            columns: vec![column("id", "int4"), column("na'me", "text")],
            unique_keys: Vec::new(),
        }
    }

    fn text(template: &str, keys: &[&str], store: Remember) -> Result<(String, String), FenceError> {
        let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        let template = ResourceTemplate::parse(template, &keys)?;
        let shape = shape();
        let text = FenceText { guard: "g0123456789ab", shape: &shape, template: &template, store };
        Ok((text.functions()?, text.triggers()?))
    }

    /// Goal: no place is left open, and what a user named is quoted.
    #[test]
    fn every_place_is_filled_and_every_name_quoted() {
        for (template, keys, store) in [
            ("it's {id}\\", &["id"][..], Remember::Row),
            ("it's {}", &["id", "na'me"], Remember::Row),
            ("{}", &["na'me"], Remember::Name),
            ("bill'ing", &[], Remember::Name),
        ] {
            let (functions, triggers) = text(template, keys, store).unwrap();
            for sql in [&functions, &triggers] {
                assert!(!sql.contains(['«', '»']), "{sql}");
            }
            assert!(triggers.contains("\"pub\"\"lic\".\"Se ats\""), "{triggers}");
            assert!(triggers.contains("TRUNCATE ON \"p\".\"one\""), "{triggers}");
            assert!(!function_texts(&functions).is_empty());
        }
        let (functions, _) = text("it's {id}\\", &["id"], Remember::Row).unwrap();
        assert!(functions.contains("'it''s ' OPERATOR") && functions.contains(r"E'\\'"), "{functions}");
    }

    #[test]
    fn a_name_that_would_end_the_function_is_refused() {
        assert!(matches!(text("a$fence$b/{}", &["id"], Remember::Row), Err(FenceError::Invalid(_))));
        assert!(matches!(text("{}", &["nowhere"], Remember::Row), Err(FenceError::Invalid(_))));
    }

    #[test]
    fn the_functions_of_the_database_are_found_with_their_bodies() {
        let functions = function_texts(DATABASE_SQL);
        let names: Vec<&str> = functions.iter().map(|function| function.name.as_str()).collect();
        let definers: Vec<bool> = functions.iter().map(|function| function.is_definer).collect();
        assert_eq!(definers, [true, false, false, true, true, true, false, false]);
        assert!(functions.iter().all(|function| function.has_search_path));
        assert_eq!(names, ["refuse", "pick", "decide", "admit", "admit_one", "check", "key_text", "no_truncate"]);
    }
}
