//! Reads a layout from CSV or JSON, or lists what is wrong with it, line by line.
//!
//! CSV, one line for each seat or area, in any order of columns:
//!
//! ```text
//! id,section,row,number,price,capacity
//! A-1,Stalls,A,1,4500,
//! floor,,,,3000,300
//! ```
//!
//! JSON, with seats one by one, or as sections of rows, or both:
//!
//! ```json
//! {"seats": [{"id": "A-1", "section": "Stalls", "row": "A", "number": 1, "price": 4500}],
//!  "sections": [{"id": "Circle", "rows": [{"id": "B", "price": 3500, "count": 20},
//!                                         {"id": "C", "seats": [{"number": 1, "price": 3000}]}]}],
//!  "areas": [{"id": "floor", "capacity": 300, "price": 3000}]}
//! ```
//!
//! # Laws
//!
//! 1. All or nothing: a layout without a single problem, or every problem that was found (up to [`MAX_PROBLEMS`]).
//! 2. Limits come first: what is too big is not read.
//! 3. Every problem has a line, a stable code, and a sentence that says what to do. Sections and rows keep the order of
//!    the file: the first is the best.
//!
//! # Not here
//!
//! Whether an event may still take a layout (the office).

mod csv;
mod draft;
mod json;
#[cfg(test)]
mod tests;

use serde::Serialize;

pub use self::csv::csv;
pub use self::json::{ImportedParts, json, parts};

/// Bytes of a file.
pub const MAX_FILE_BYTES: usize = 16 << 20;
/// Seats of an event.
pub const MAX_IMPORTED_SEATS: usize = 100_000;
/// Areas of an event.
pub const MAX_IMPORTED_AREAS: usize = 1000;
/// Bytes of an id, and of the name of a section or row.
pub const MAX_LAYOUT_ID_BYTES: usize = 64;
/// Places of one area.
pub const MAX_AREA_PLACES: u64 = 1_000_000;
/// A price: more than anybody pays, and sums of them still fit.
pub const MAX_IMPORTED_PRICE: u64 = 1_000_000_000_000;
/// So many problems are told; then it says that there are more.
pub const MAX_PROBLEMS: usize = 200;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ImportProblem {
    /// Where: lines count from 1. 0 for the file as a whole.
    pub line: u64,
    /// The column or field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// A stable word for it.
    pub code: ImportCode,
    /// What is wrong and what to do, for people.
    pub sentence: String,
}

/// What can be wrong. The words are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ImportCode {
    /// There is nothing in it.
    Empty,
    /// The file, or what is in it, is more than is taken.
    TooMuch,
    /// It is not UTF-8, not CSV, or not JSON.
    Unreadable,
    /// A column or field is missing.
    Missing,
    /// A column or field that is not known: perhaps misspelt.
    UnknownField,
    /// A column or field is there twice.
    RepeatedField,
    /// An id or name is empty, too long, or has a character that it must not have.
    BadId,
    /// A number is none, or out of its bounds.
    BadNumber,
    /// A price is no whole number of minor units.
    BadPrice,
    /// This id was there before.
    DuplicateId,
    /// Another seat stands in this place.
    DuplicatePlace,
    /// A value is of another type than it should be.
    BadType,
    /// A line is neither a seat nor an area, or both.
    Mixed,
    /// There are more problems than are told.
    MoreProblems,
}

impl ImportProblem {
    /// A problem of the file as a whole.
    fn whole(code: ImportCode, sentence: impl Into<String>) -> Self {
        Self { line: 0, field: None, code, sentence: sentence.into() }
    }
}

/// Checks size and encoding before the file is parsed.
fn check_size(bytes: &[u8]) -> Result<&str, Vec<ImportProblem>> {
    if bytes.len() > MAX_FILE_BYTES {
        return Err(vec![ImportProblem::whole(
            ImportCode::TooMuch,
            format!("a layout is at most {} MiB", MAX_FILE_BYTES >> 20),
        )]);
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let line = line_of(bytes, error.valid_up_to());
        let sentence = "the file is not UTF-8: save it as UTF-8 and try again".to_owned();
        vec![ImportProblem { line, field: None, code: ImportCode::Unreadable, sentence }]
    })?;
    // Spreadsheets put a mark before the text.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim().is_empty() {
        return Err(vec![ImportProblem::whole(
            ImportCode::Empty,
            "the file is empty: it needs at least one seat or area",
        )]);
    }
    Ok(text)
}

fn line_of(bytes: &[u8], at: usize) -> u64 {
    1 + bytes[..at.min(bytes.len())].iter().filter(|byte| **byte == b'\n').count() as u64
}
