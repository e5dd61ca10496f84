//! JSON. Pieces are kept as they stand in the text, so that each knows its line.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::draft::{ImportCell, ImportRecord, LayoutDraft};
use super::{ImportCode, ImportProblem, MAX_IMPORTED_SEATS, check_size, line_of};
use crate::layout::Layout;

/// Reads a layout from JSON: an object with `seats`, `sections` and `areas`.
///
/// # Errors
///
/// Everything that is wrong with it.
pub fn json(bytes: &[u8]) -> Result<Layout, Vec<ImportProblem>> {
    read(bytes, &[]).map(|(layout, _)| layout)
}

/// As [`json`], where the object has other fields too: those that are named in `others` come back as they stand.
///
/// # Errors
///
/// Everything that is wrong with it.
pub fn parts(bytes: &[u8], others: &[&str]) -> Result<ImportedParts, Vec<ImportProblem>> {
    read(bytes, others)
}

/// A layout, and other fields of its object by name, as they stand.
pub type ImportedParts = (Layout, Vec<(String, String)>);

const LAYOUT: [&str; 3] = ["seats", "sections", "areas"];

fn read(bytes: &[u8], others: &[&str]) -> Result<ImportedParts, Vec<ImportProblem>> {
    let text = check_size(bytes)?;
    let mut reader = JsonLayoutReader { text, lines: LineCounter::default(), draft: LayoutDraft::default() };
    let mut left = Vec::new();
    let whole: RawObject<'_> = match serde_json::from_str(text) {
        Ok(whole) => whole,
        Err(error) => {
            let sentence = match error.classify() {
                serde_json::error::Category::Eof => "the JSON ends too early",
                serde_json::error::Category::Data => "a layout is one JSON object with seats, sections and areas",
                _ => "this is not JSON",
            };
            reader.draft.wrong(error.line() as u64, None, ImportCode::Unreadable, sentence);
            return reader.draft.done().map(|layout| (layout, left));
        }
    };
    reader.repeated(&whole);
    // An event may be made first and get its layout later.
    let bare = !others.is_empty() && !whole.0.iter().any(|(name, _)| LAYOUT.contains(&name.as_str()));
    for (name, value) in whole.0 {
        match name.as_str() {
            "seats" => reader.list(value, "seats", JsonLayoutReader::seat),
            "areas" => reader.list(value, "areas", JsonLayoutReader::area),
            "sections" => reader.list(value, "sections", JsonLayoutReader::section),
            other if others.contains(&other) => left.push((name, value.get().to_owned())),
            _ => {
                let known = [&LAYOUT[..], others].concat();
                reader.unknown(value, &name, &known);
            }
        }
    }
    if bare && !reader.draft.has_problems() {
        return Ok((Layout::default(), left));
    }
    reader.draft.done().map(|layout| (layout, left))
}

/// Counts lines only forward: pieces come in the order of the text.
#[derive(Default)]
struct LineCounter {
    at: usize,
    line: u64,
}

struct JsonLayoutReader<'a> {
    text: &'a str,
    lines: LineCounter,
    draft: LayoutDraft,
}

impl<'a> JsonLayoutReader<'a> {
    /// The line of a piece: it is a slice of the text, so its address says where it stands.
    fn line(&mut self, piece: &RawValue) -> u64 {
        let at = (piece.get().as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize);
        if at < self.lines.at {
            return line_of(self.text.as_bytes(), at);
        }
        let passed = self.text.as_bytes().get(self.lines.at..at).unwrap_or_default();
        self.lines.line += passed.iter().filter(|byte| **byte == b'\n').count() as u64;
        self.lines.at = at;
        self.lines.line + 1
    }

    fn list(&mut self, value: &'a RawValue, field: &str, one: fn(&mut Self, &'a RawValue)) {
        if is_null(value) {
            return;
        }
        match serde_json::from_str::<Vec<&RawValue>>(value.get()) {
            Ok(items) => {
                for item in items {
                    if self.draft.is_hopeless() {
                        return;
                    }
                    one(self, item);
                }
            }
            Err(_) => {
                let line = self.line(value);
                self.draft.wrong(line, Some(field), ImportCode::BadType, format!("{field} is a list"));
            }
        }
    }

    fn object(&mut self, item: &'a RawValue, what: &str) -> Option<(u64, RawObject<'a>)> {
        let line = self.line(item);
        let object = serde_json::from_str::<RawObject<'_>>(item.get()).ok();
        if object.is_none() {
            self.draft.wrong(line, None, ImportCode::BadType, format!("{what} is an object"));
        }
        if let Some(object) = &object {
            self.repeated(object);
        }
        object.map(|object| (line, object))
    }

    fn repeated(&mut self, object: &RawObject<'a>) {
        let mut seen = HashSet::new();
        for (name, value) in &object.0 {
            if !seen.insert(name.as_str()) {
                let line = self.line(value);
                self.draft.wrong(line, Some(name), ImportCode::RepeatedField, "this field is there twice");
            }
        }
    }

    fn unknown(&mut self, value: &RawValue, name: &str, known: &[&str]) {
        let line = self.line(value);
        let sentence = format!("there is no field of this name here: fields are {}", known.join(", "));
        self.draft.wrong(line, Some(name), ImportCode::UnknownField, sentence);
    }

    /// The fields of a seat or area, as far as they may be there.
    fn record(&mut self, line: u64, object: RawObject<'a>, known: &[&str]) -> ImportRecord {
        let mut record = ImportRecord { line, ..ImportRecord::default() };
        for (name, value) in object.0 {
            let place = match name.as_str() {
                "id" => &mut record.id,
                "section" => &mut record.section,
                "row" => &mut record.row,
                "number" => &mut record.number,
                "price" => &mut record.price,
                "capacity" => &mut record.capacity,
                _ => {
                    self.unknown(value, &name, known);
                    continue;
                }
            };
            if known.contains(&name.as_str()) {
                *place = cell(value);
            } else {
                self.unknown(value, &name, known);
            }
        }
        record
    }

    fn seat(&mut self, item: &'a RawValue) {
        let Some((line, object)) = self.object(item, "a seat") else { return };
        let record = self.record(line, object, &["id", "section", "row", "number", "price"]);
        self.draft.seat(record);
    }

    fn area(&mut self, item: &'a RawValue) {
        let Some((line, object)) = self.object(item, "an area") else { return };
        let record = self.record(line, object, &["id", "capacity", "price"]);
        self.draft.area(record);
    }

    fn section(&mut self, item: &'a RawValue) {
        let Some((line, object)) = self.object(item, "a section") else { return };
        let (mut id, mut price, mut rows) = (None, None, None);
        for (name, value) in object.0 {
            match name.as_str() {
                "id" => id = cell(value),
                "price" => price = cell(value),
                "rows" => rows = Some(value),
                _ => self.unknown(value, &name, &["id", "price", "rows"]),
            }
        }
        let Some(rows) = rows else {
            self.draft.wrong(line, Some("rows"), ImportCode::Missing, "rows is missing");
            return;
        };
        let Ok(rows) = serde_json::from_str::<Vec<&RawValue>>(rows.get()) else {
            self.draft.wrong(line, Some("rows"), ImportCode::BadType, "rows is a list");
            return;
        };
        for row in rows {
            let Some((line, object)) = self.object(row, "a row") else { continue };
            self.row(line, object, RowContext { section: id.clone(), price: price.clone() });
        }
    }

    fn row(&mut self, line: u64, object: RawObject<'a>, within: RowContext) {
        let (mut id, mut price, mut seats, mut count, mut first) = (None, within.price, None, None, None);
        for (name, value) in object.0 {
            match name.as_str() {
                "id" => id = cell(value),
                "price" => price = cell(value),
                "seats" => seats = Some(value),
                "count" => count = Some(value),
                "first" => first = Some(value),
                _ => self.unknown(value, &name, &["id", "price", "seats", "count", "first"]),
            }
        }
        let one =
            ImportRecord { line, id: None, section: within.section, row: id, number: None, price, capacity: None };
        match (seats, count) {
            (Some(seats), None) => self.seats_of_row(seats, &one),
            (None, Some(count)) => self.counted(line, count, first, &one),
            _ => {
                let sentence = "a row has either seats, one by one, or a count of them";
                self.draft.wrong(line, Some("seats"), ImportCode::Mixed, sentence);
            }
        }
    }

    fn seats_of_row(&mut self, seats: &'a RawValue, row: &ImportRecord) {
        let Ok(seats) = serde_json::from_str::<Vec<&RawValue>>(seats.get()) else {
            self.draft.wrong(row.line, Some("seats"), ImportCode::BadType, "seats is a list");
            return;
        };
        for seat in seats {
            let Some((line, object)) = self.object(seat, "a seat") else { continue };
            let mut record = self.record(line, object, &["id", "number", "price"]);
            record.section = row.section.clone();
            record.row = row.row.clone();
            record.price = record.price.or_else(|| row.price.clone());
            record.id = record.id.take().or_else(|| made_id(&record));
            self.draft.seat(record);
        }
    }

    fn counted(&mut self, line: u64, count: &RawValue, first: Option<&RawValue>, row: &ImportRecord) {
        let number = |value: &RawValue| serde_json::from_str::<u32>(value.get()).ok();
        let many = number(count).filter(|count| (1..=MAX_IMPORTED_SEATS).contains(&(*count as usize)));
        let first = first.map_or(Some(1), number);
        let (Some(many), Some(first)) = (many, first) else {
            let sentence = format!("count is a whole number from 1 to {MAX_IMPORTED_SEATS}, and first one from 0");
            self.draft.wrong(line, Some("count"), ImportCode::BadNumber, sentence);
            return;
        };
        for number in (u64::from(first)..).take(many as usize) {
            if self.draft.is_hopeless() {
                return;
            }
            let mut record = ImportRecord { number: Some(ImportCell::Json(number.into())), ..row.clone() };
            record.id = made_id(&record);
            self.draft.seat(record);
        }
    }
}

struct RowContext {
    section: Option<ImportCell>,
    price: Option<ImportCell>,
}

/// The id of a seat that has none: section, row and number.
fn made_id(record: &ImportRecord) -> Option<ImportCell> {
    let part = |cell: &Option<ImportCell>| match cell {
        Some(ImportCell::Json(Value::String(text))) => Some(text.clone()),
        Some(ImportCell::Json(Value::Number(number))) => Some(number.to_string()),
        _ => None,
    };
    let id = format!("{}-{}-{}", part(&record.section)?, part(&record.row)?, part(&record.number)?);
    Some(ImportCell::Json(Value::String(id)))
}

fn is_null(value: &RawValue) -> bool {
    value.get() == "null"
}

fn cell(value: &RawValue) -> Option<ImportCell> {
    serde_json::from_str::<Value>(value.get()).ok().filter(|value| !value.is_null()).map(ImportCell::Json)
}

/// An object as it stands: fields in order, also those that are there twice.
struct RawObject<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for RawObject<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor;
        impl<'de> Visitor<'de> for ObjectVisitor {
            type Value = RawObject<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawObject<'de>, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry::<String, &RawValue>()? {
                    fields.push(field);
                }
                Ok(RawObject(fields))
            }
        }
        deserializer.deserialize_map(ObjectVisitor)
    }
}
