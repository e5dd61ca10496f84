//! A layout in the making: every seat and area is checked here, whatever file it comes from.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use serde_json::Value;

use super::{
    ImportCode, ImportProblem, MAX_AREA_PLACES, MAX_IMPORTED_AREAS, MAX_IMPORTED_PRICE, MAX_IMPORTED_SEATS,
    MAX_LAYOUT_ID_BYTES, MAX_PROBLEMS,
};
use crate::layout::{Area, Layout, Seat};
use crate::pick::SeatIndex;

/// What stands in a field.
#[derive(Clone, Debug)]
pub(super) enum ImportCell {
    /// Of CSV: text, whatever it means.
    Text(String),
    /// Of JSON.
    Json(Value),
}

/// What a line or an object says. Missing and empty are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct ImportRecord {
    pub line: u64,
    pub id: Option<ImportCell>,
    pub section: Option<ImportCell>,
    pub row: Option<ImportCell>,
    pub number: Option<ImportCell>,
    pub price: Option<ImportCell>,
    pub capacity: Option<ImportCell>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct LayoutDraft {
    layout: Layout,
    problems: Vec<ImportProblem>,
    /// There are more than are told.
    more: bool,
    /// On which line an id was first.
    ids: HashMap<String, u64>,
    places: HashMap<(String, String, u32), u64>,
}

impl LayoutDraft {
    /// Notes a problem.
    pub fn wrong(&mut self, line: u64, field: Option<&str>, code: ImportCode, sentence: impl Into<String>) {
        if self.problems.len() >= MAX_PROBLEMS {
            self.more = true;
            return;
        }
        let field = field.map(|field| field.chars().take(MAX_LAYOUT_ID_BYTES).collect());
        self.problems.push(ImportProblem { line, field, code, sentence: sentence.into() });
    }

    /// Whether it is not worth reading on.
    pub fn is_hopeless(&self) -> bool {
        self.more
    }

    /// Whether anything is wrong so far.
    pub fn has_problems(&self) -> bool {
        !self.problems.is_empty()
    }

    /// Takes in a seat.
    pub fn seat(&mut self, record: ImportRecord) {
        let line = record.line;
        let id = self.name(line, "id", record.id, true);
        let section = self.name(line, "section", record.section, false);
        let row = self.name(line, "row", record.row, false);
        let number = self.whole(line, "number", record.number, 0, u64::from(u32::MAX));
        let price = self.price(line, record.price);
        let (Some(id), Some(section), Some(row), Some(number), Some(price)) = (id, section, row, number, price) else {
            return;
        };
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        let fresh = self.fresh(line, &id);
        let place = (section.clone(), row.clone(), number);
        let first = match self.places.entry(place) {
            Entry::Vacant(entry) => {
                entry.insert(line);
                None
            }
            Entry::Occupied(entry) => Some(*entry.get()),
        };
        if let Some(first) = first {
            let sentence = format!("another seat has this number in the same row (line {first}): give each its own");
            self.wrong(line, Some("number"), ImportCode::DuplicatePlace, sentence);
        }
        if self.layout.seats.len() == MAX_IMPORTED_SEATS {
            self.wrong(line, None, ImportCode::TooMuch, format!("an event has at most {MAX_IMPORTED_SEATS} seats"));
            self.more = true;
        } else if fresh {
            self.layout.seats.push(Seat { id, section, row, number, price });
        }
    }

    /// Takes in an area.
    pub fn area(&mut self, record: ImportRecord) {
        let line = record.line;
        let id = self.name(line, "id", record.id, true);
        let capacity = self.whole(line, "capacity", record.capacity, 1, MAX_AREA_PLACES);
        let price = self.price(line, record.price);
        let (Some(id), Some(capacity), Some(price)) = (id, capacity, price) else { return };
        let fresh = self.fresh(line, &id);
        if self.layout.areas.len() == MAX_IMPORTED_AREAS {
            self.wrong(line, None, ImportCode::TooMuch, format!("an event has at most {MAX_IMPORTED_AREAS} areas"));
            self.more = true;
        } else if fresh {
            self.layout.areas.push(Area { id, capacity: u32::try_from(capacity).unwrap_or(u32::MAX), price });
        }
    }

    fn fresh(&mut self, line: u64, id: &str) -> bool {
        let first = self.ids.get(id).copied();
        if let Some(first) = first {
            let sentence = format!("the id {} was there on line {first}: ids are unique", shown(id));
            self.wrong(line, Some("id"), ImportCode::DuplicateId, sentence);
            return false;
        }
        self.ids.insert(id.to_owned(), line);
        true
    }

    fn missing(&mut self, line: u64, field: &str) {
        self.wrong(line, Some(field), ImportCode::Missing, format!("{field} is missing"));
    }

    /// A name: an id, a section, a row. `path`: it stands in URLs and in names of resources.
    fn name(&mut self, line: u64, field: &'static str, cell: Option<ImportCell>, path: bool) -> Option<String> {
        let name = match cell {
            None => {
                self.missing(line, field);
                return None;
            }
            Some(ImportCell::Text(text) | ImportCell::Json(Value::String(text))) => text,
            Some(ImportCell::Json(_)) => {
                self.wrong(line, Some(field), ImportCode::BadType, format!("{field} is a text: put it in quotes"));
                return None;
            }
        };
        let problem = if name.is_empty() || name.len() > MAX_LAYOUT_ID_BYTES {
            format!("{field} is 1 to {MAX_LAYOUT_ID_BYTES} bytes, this one has {}", name.len())
        } else if name.chars().any(char::is_control) {
            format!("{field} has a control character in it, perhaps a line break")
        } else if path && name.contains('/') {
            format!("{field} {} has a / in it: use - or .", shown(&name))
        } else if name.trim() != name {
            format!("{field} {} begins or ends with a blank", shown(&name))
        } else {
            return Some(name);
        };
        self.wrong(line, Some(field), ImportCode::BadId, problem);
        None
    }

    fn whole(
        &mut self,
        line: u64,
        field: &'static str,
        cell: Option<ImportCell>,
        least: u64,
        most: u64,
    ) -> Option<u64> {
        let Some(cell) = cell else {
            self.missing(line, field);
            return None;
        };
        match number(&cell) {
            Some(number) if (least..=most).contains(&number) => Some(number),
            _ => {
                let sentence = format!("{field} is a whole number from {least} to {most}, got {}", cell.shown());
                self.wrong(line, Some(field), ImportCode::BadNumber, sentence);
                None
            }
        }
    }

    fn price(&mut self, line: u64, cell: Option<ImportCell>) -> Option<u64> {
        let Some(cell) = cell else {
            self.missing(line, "price");
            return None;
        };
        match number(&cell) {
            Some(price) if price <= MAX_IMPORTED_PRICE => Some(price),
            _ => {
                let sentence = format!(
                    "price is a whole number of minor units up to {MAX_IMPORTED_PRICE} (4500 for 45.00), got {}",
                    cell.shown()
                );
                self.wrong(line, Some("price"), ImportCode::BadPrice, sentence);
                None
            }
        }
    }

    /// The layout, in the order of the hall; or all that is wrong.
    pub fn done(mut self) -> Result<Layout, Vec<ImportProblem>> {
        if self.problems.is_empty() && self.layout.seats.is_empty() && self.layout.areas.is_empty() {
            self.problems.push(ImportProblem::whole(ImportCode::Empty, "there is no seat and no area in it"));
        }
        if self.more && self.problems.last().is_some_and(|last| last.code != ImportCode::TooMuch) {
            self.problems
                .push(ImportProblem::whole(ImportCode::MoreProblems, "there are more problems: these are the first"));
        }
        if !self.problems.is_empty() {
            return Err(self.problems);
        }
        let seats = SeatIndex::new(&self.layout).seats().cloned().collect();
        Ok(Layout { seats, areas: self.layout.areas })
    }
}

/// Digits alone: no sign, no point, no separators, none of which mean the same everywhere.
fn number(cell: &ImportCell) -> Option<u64> {
    match cell {
        ImportCell::Text(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok(),
        ImportCell::Text(_) => None,
        ImportCell::Json(value) => value.as_u64(),
    }
}

impl ImportCell {
    fn shown(&self) -> String {
        match self {
            Self::Text(text) => shown(text),
            Self::Json(value) => shown(&value.to_string()),
        }
    }
}

/// A bit of it, with what cannot be seen made visible.
fn shown(text: &str) -> String {
    let short: String = text.chars().take(32).collect();
    if short.len() < text.len() { format!("{short:?}…") } else { format!("{short:?}") }
}
