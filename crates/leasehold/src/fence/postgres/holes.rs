//! Finds the holes of a fenced table in the catalog.

use leasehold_postgres::tokio_postgres::{Error as SqlError, GenericClient, Row};

use super::FENCE_VERSION;
use super::fenced_row::{FencedRow, changed_functions};
use super::install::FenceMode;
use super::sql_text::{
    ExpectedTrigger, FenceText, Remember, TRIGGER_NAMES, TRUNCATE_TRIGGER, function_texts, quote_ident,
};
use super::table::TableShape;
use crate::fence::hole::{FenceHole, HoleKind};

/// A trigger that a relation has.
struct FoundTrigger {
    relation: String,
    name: String,
    kind: i16,
    enabled: String,
    conditional: bool,
    /// How it was made.
    definition: String,
    function: String,
    /// It fires for an UPDATE of some columns only. None of ours does.
    for_columns: bool,
    is_ours: bool,
}

impl FoundTrigger {
    fn from_row(row: &Row) -> Result<Self, SqlError> {
        let name: String = row.try_get(1)?;
        Ok(Self {
            relation: row.try_get(0)?,
            is_ours: TRIGGER_NAMES.contains(&name.as_str()),
            name,
            kind: row.try_get(2)?,
            enabled: row.try_get(3)?,
            conditional: row.try_get(4)?,
            function: row.try_get(5)?,
            for_columns: row.try_get(6)?,
            definition: row.try_get(7)?,
        })
    }
}

/// The holes of one fenced table.
pub(super) async fn table_holes(
    client: &impl GenericClient,
    shape: &TableShape,
    row: &FencedRow,
) -> Result<Vec<FenceHole>, SqlError> {
    let table = shape.display_name();
    let mut holes = Vec::new();
    let mut add = |kind, sentence: String| holes.push(FenceHole::new(kind, table.clone(), sentence));
    if row.version != FENCE_VERSION {
        let sentence = format!("version {} installed it, this is version {FENCE_VERSION}: install again", row.version);
        add(HoleKind::OtherVersion, sentence);
    }
    if row.mode == FenceMode::Observe {
        add(HoleKind::Observing, "it only observes: install again with --mode enforce".into());
    }
    for child in &shape.children {
        add(HoleKind::ChildUnfenced, format!("{child} inherits from it and has no fence: install one there"));
    }
    if row.store == Remember::Row && !shape.has_fence_column() {
        add(HoleKind::ColumnMissing, "the column leasehold_fence is gone: install again".into());
    }
    let Ok(template) = row.parse_template() else {
        add(HoleKind::KeyMissing, "its resource cannot be read any more: install again".into());
        return Ok(holes);
    };
    let text = FenceText { guard: &row.guard, shape, template: &template, store: row.store };
    match text.functions() {
        Err(error) => add(HoleKind::KeyMissing, format!("{error}; install again with the new name")),
        Ok(sql) => {
            if let Some(why) = shape.why_not_row(&template).filter(|_| row.store == Remember::Row) {
                add(HoleKind::KeysNotUnique, format!("{why}: make it again, or install with --remember name"));
            }
            for name in changed_functions(client, &function_texts(&sql)).await? {
                add(HoleKind::FunctionChanged, format!("leasehold_fence.{name} is missing or changed: install again"));
            }
        }
    }
    let found = read_triggers(client, shape.oid).await?;
    holes.extend(trigger_holes(&text, &found));
    if row.store == Remember::Row {
        holes.extend(found.iter().filter_map(later_trigger));
    }
    Ok(holes)
}

async fn read_triggers(client: &impl GenericClient, oid: u32) -> Result<Vec<FoundTrigger>, SqlError> {
    let sql = "SELECT format('%I.%I', n.nspname, c.relname), t.tgname::text, t.tgtype, t.tgenabled::text, t.tgqual IS NOT NULL,
            f.nspname || '.' || p.proname, t.tgattr::text <> '', pg_get_triggerdef(t.oid)
        FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
        JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_namespace f ON f.oid = p.pronamespace
        WHERE NOT t.tgisinternal AND t.tgrelid IN (SELECT $1::oid UNION SELECT relid FROM pg_partition_tree($1::oid::regclass))
           OR t.tgname = ANY($2) AND t.tgrelid IN (SELECT relid FROM pg_partition_tree($1::oid::regclass))";
    let names: Vec<&str> = TRIGGER_NAMES.to_vec();
    client.query(sql, &[&oid, &names]).await?.iter().map(FoundTrigger::from_row).collect()
}

/// The triggers that are missing, disabled or not ours, on the table and on every partition.
fn trigger_holes(text: &FenceText<'_>, found: &[FoundTrigger]) -> Vec<FenceHole> {
    let own = text.shape.display_name();
    let relations = std::iter::once(own.clone()).chain(text.shape.partition_names.iter().cloned());
    let wanted_state = if text.shape.subscribed { "O" } else { "A" };
    // One that is missing is a hole of its own.
    let keys: Vec<&String> =
        text.template.key_columns().iter().filter(|key| text.shape.find_column(key).is_ok()).collect();
    let mut holes = Vec::new();
    for relation in relations {
        for wanted in text.expected_triggers() {
            if relation != own && !wanted.is_for_rows() && wanted != TRUNCATE_TRIGGER {
                continue;
            }
            let trigger = found.iter().find(|trigger| trigger.relation == relation && trigger.name == wanted.name);
            if let Some((kind, sentence)) = trigger_hole(text.guard, &keys, &wanted, trigger, wanted_state) {
                holes.push(FenceHole::new(kind, relation.clone(), sentence));
            }
        }
    }
    holes
}

/// Whether the definition of a trigger compares this column. A trigger follows a column that is renamed, and another one may
/// have its name by now.
fn names_column(definition: &str, column: &str) -> bool {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '$';
    let plain = format!("new.{column}");
    definition.contains(&format!("new.{}", quote_ident(column)))
        || definition.match_indices(&plain).any(|(at, found)| !definition[at + found.len()..].starts_with(is_part))
}

fn trigger_hole(
    guard: &str,
    keys: &[&String],
    wanted: &ExpectedTrigger,
    found: Option<&FoundTrigger>,
    wanted_state: &str,
) -> Option<(HoleKind, String)> {
    let name = wanted.name;
    let Some(found) = found else {
        let kind = if *wanted == TRUNCATE_TRIGGER { HoleKind::TruncateOpen } else { HoleKind::TriggerMissing };
        return Some((kind, format!("the trigger {name} is missing: install again")));
    };
    let function = if *wanted == TRUNCATE_TRIGGER {
        format!("leasehold_fence.{}", wanted.function)
    } else {
        format!("leasehold_fence.{guard}{}", wanted.function)
    };
    let expected = (wanted.kind, wanted.conditional.is_some(), function.as_str());
    // The server writes a condition in its own way. One of another kind, WHEN (false), has not even these words.
    let is_weaker = wanted.conditional.is_some_and(|words| !found.definition.contains(words))
        || wanted.asks_for_keys && !keys.iter().all(|key| names_column(&found.definition, key));
    if is_weaker || found.for_columns || (found.kind, found.conditional, found.function.as_str()) != expected {
        return Some((HoleKind::TriggerChanged, format!("the trigger {name} is not ours: install again")));
    }
    match found.enabled.as_str() {
        state if state == wanted_state => None,
        "A" => Some((
            HoleKind::TriggerChanged,
            format!("a subscription writes here and the trigger {name} would stop it: install again"),
        )),
        "O" => Some((
            HoleKind::TriggerDisabled,
            format!(
                "the trigger {name} does not fire in sessions with session_replication_role = replica: install again"
            ),
        )),
        _ => Some((HoleKind::TriggerDisabled, format!("the trigger {name} is disabled: install again"))),
    }
}

/// A BEFORE ROW trigger that fires after ours may put another fence into the row.
fn later_trigger(found: &FoundTrigger) -> Option<FenceHole> {
    const BEFORE_ROW: i16 = 3;
    const INSERT_OR_UPDATE: i16 = 4 + 16;
    let later = !found.is_ours
        && found.kind & BEFORE_ROW == BEFORE_ROW
        && found.kind & INSERT_OR_UPDATE != 0
        && found.name.as_str() > "zz_leasehold_fence"
        && found.enabled != "D";
    later.then(|| {
        let name = &found.name;
        let sentence = format!("the trigger {name} fires after the fence and could change it: give it an earlier name");
        FenceHole::new(HoleKind::LaterTrigger, found.relation.clone(), sentence)
    })
}
