//! JSON. Pieces are kept as they stand in the text, so that each knows its line.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::draft::{Cell, Draft, Record};
use super::{Code, MOST_SEATS, Problem, line_of, weigh};
use crate::layout::Layout;

/// Reads a layout from JSON: an object with `seats`, `sections` and `areas`.
///
/// # Errors
///
/// Everything that is wrong with it.
pub fn json(bytes: &[u8]) -> Result<Layout, Vec<Problem>> {
    read(bytes, &[]).map(|(layout, _)| layout)
}

/// As [`json`], where the object has other fields too: those that are named in `others` come back as they stand.
///
/// # Errors
///
/// Everything that is wrong with it.
pub fn parts(bytes: &[u8], others: &[&str]) -> Result<(Layout, Vec<(String, String)>), Vec<Problem>> {
    read(bytes, others)
}

type Read = (Layout, Vec<(String, String)>);

fn read(bytes: &[u8], others: &[&str]) -> Result<Read, Vec<Problem>> {
    let text = weigh(bytes)?;
    let mut reader = Reader { text, lines: Lines::default(), draft: Draft::default() };
    let mut left = Vec::new();
    let whole: Object<'_> = match serde_json::from_str(text) {
        Ok(whole) => whole,
        Err(error) => {
            let sentence = match error.classify() {
                serde_json::error::Category::Eof => "the JSON ends too early",
                serde_json::error::Category::Data => "a layout is one JSON object with seats, sections and areas",
                _ => "this is not JSON",
            };
            reader.draft.wrong(error.line() as u64, None, Code::Unreadable, sentence);
            return reader.draft.done().map(|layout| (layout, left));
        }
    };
    reader.repeated(&whole);
    for (name, value) in whole.0 {
        match name.as_str() {
            "seats" => reader.list(value, "seats", Reader::seat),
            "areas" => reader.list(value, "areas", Reader::area),
            "sections" => reader.list(value, "sections", Reader::section),
            other if others.contains(&other) => left.push((name, value.get().to_owned())),
            _ => reader.unknown(value, &name, &["seats", "sections", "areas"]),
        }
    }
    reader.draft.done().map(|layout| (layout, left))
}

/// Counts lines only forward: pieces come in the order of the text.
#[derive(Default)]
struct Lines {
    at: usize,
    line: u64,
}

struct Reader<'a> {
    text: &'a str,
    lines: Lines,
    draft: Draft,
}

impl<'a> Reader<'a> {
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
                self.draft.wrong(line, Some(field), Code::BadType, format!("{field} is a list"));
            }
        }
    }

    fn object(&mut self, item: &'a RawValue, what: &str) -> Option<(u64, Object<'a>)> {
        let line = self.line(item);
        let object = serde_json::from_str::<Object<'_>>(item.get()).ok();
        if object.is_none() {
            self.draft.wrong(line, None, Code::BadType, format!("{what} is an object"));
        }
        if let Some(object) = &object {
            self.repeated(object);
        }
        object.map(|object| (line, object))
    }

    fn repeated(&mut self, object: &Object<'a>) {
        let mut seen = HashSet::new();
        for (name, value) in &object.0 {
            if !seen.insert(name.as_str()) {
                let line = self.line(value);
                self.draft.wrong(line, Some(name), Code::RepeatedField, "this field is there twice");
            }
        }
    }

    fn unknown(&mut self, value: &RawValue, name: &str, known: &[&str]) {
        let line = self.line(value);
        let sentence = format!("there is no field of this name here: fields are {}", known.join(", "));
        self.draft.wrong(line, Some(name), Code::UnknownField, sentence);
    }

    /// The fields of a seat or area, as far as they may be there.
    fn record(&mut self, line: u64, object: Object<'a>, known: &[&str]) -> Record {
        let mut record = Record { line, ..Record::default() };
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
            self.draft.wrong(line, Some("rows"), Code::Missing, "rows is missing");
            return;
        };
        let Ok(rows) = serde_json::from_str::<Vec<&RawValue>>(rows.get()) else {
            self.draft.wrong(line, Some("rows"), Code::BadType, "rows is a list");
            return;
        };
        for row in rows {
            let Some((line, object)) = self.object(row, "a row") else { continue };
            self.row(line, object, Within { section: id.clone(), price: price.clone() });
        }
    }

    fn row(&mut self, line: u64, object: Object<'a>, within: Within) {
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
        let one = Record { line, id: None, section: within.section, row: id, number: None, price, capacity: None };
        match (seats, count) {
            (Some(seats), None) => self.seats_of_row(seats, &one),
            (None, Some(count)) => self.counted(line, count, first, &one),
            _ => {
                let sentence = "a row has either seats, one by one, or a count of them";
                self.draft.wrong(line, Some("seats"), Code::Mixed, sentence);
            }
        }
    }

    fn seats_of_row(&mut self, seats: &'a RawValue, row: &Record) {
        let Ok(seats) = serde_json::from_str::<Vec<&RawValue>>(seats.get()) else {
            self.draft.wrong(row.line, Some("seats"), Code::BadType, "seats is a list");
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

    fn counted(&mut self, line: u64, count: &RawValue, first: Option<&RawValue>, row: &Record) {
        let number = |value: &RawValue| serde_json::from_str::<u32>(value.get()).ok();
        let many = number(count).filter(|count| (1..=MOST_SEATS).contains(&(*count as usize)));
        let first = first.map_or(Some(1), number);
        let (Some(many), Some(first)) = (many, first) else {
            let sentence = format!("count is a whole number from 1 to {MOST_SEATS}, and first one from 0");
            self.draft.wrong(line, Some("count"), Code::BadNumber, sentence);
            return;
        };
        for number in (u64::from(first)..).take(many as usize) {
            if self.draft.is_hopeless() {
                return;
            }
            let mut record = Record { number: Some(Cell::Json(number.into())), ..row.clone() };
            record.id = made_id(&record);
            self.draft.seat(record);
        }
    }
}

struct Within {
    section: Option<Cell>,
    price: Option<Cell>,
}

/// The id of a seat that has none: section, row and number.
fn made_id(record: &Record) -> Option<Cell> {
    let part = |cell: &Option<Cell>| match cell {
        Some(Cell::Json(Value::String(text))) => Some(text.clone()),
        Some(Cell::Json(Value::Number(number))) => Some(number.to_string()),
        _ => None,
    };
    let id = format!("{}-{}-{}", part(&record.section)?, part(&record.row)?, part(&record.number)?);
    Some(Cell::Json(Value::String(id)))
}

fn is_null(value: &RawValue) -> bool {
    value.get() == "null"
}

fn cell(value: &RawValue) -> Option<Cell> {
    serde_json::from_str::<Value>(value.get()).ok().filter(|value| !value.is_null()).map(Cell::Json)
}

/// An object as it stands: fields in order, also those that are there twice.
struct Object<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Object<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Object<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object<'de>, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry::<String, &RawValue>()? {
                    fields.push(field);
                }
                Ok(Object(fields))
            }
        }
        deserializer.deserialize_map(Fields)
    }
}
