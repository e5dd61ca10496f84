//! CSV: what spreadsheets write, with commas or semicolons, quotes, CRLF, and a mark before the text.

use ::csv::{ReaderBuilder, StringRecord};

use super::draft::{ImportCell, ImportRecord, LayoutDraft};
use super::{ImportCode, ImportProblem, check_size};
use crate::layout::Layout;

const COLUMNS: [&str; 6] = ["id", "section", "row", "number", "price", "capacity"];

/// Reads a layout from CSV.
///
/// # Errors
///
/// Everything that is wrong with it.
pub fn csv(bytes: &[u8]) -> Result<Layout, Vec<ImportProblem>> {
    let text = check_size(bytes)?;
    let head = text.lines().next().unwrap_or_default();
    // Where the comma is for decimals, spreadsheets write semicolons.
    let delimiter = if head.contains(';') && !head.contains(',') { b';' } else { b',' };
    let mut reader = ReaderBuilder::new().delimiter(delimiter).flexible(true).from_reader(text.as_bytes());
    let mut draft = LayoutDraft::default();
    let columns = match reader.headers() {
        Ok(head) => columns(head, &mut draft),
        Err(error) => {
            broken(&error, &mut draft);
            return draft.done();
        }
    };
    let mut line = StringRecord::new();
    while !draft.is_hopeless() {
        match reader.read_record(&mut line) {
            Ok(false) => break,
            Ok(true) => read_line(&line, &columns, &mut draft),
            Err(error) => {
                broken(&error, &mut draft);
                break;
            }
        }
    }
    draft.done()
}

/// Which column is where.
fn columns(head: &StringRecord, draft: &mut LayoutDraft) -> Vec<Option<&'static str>> {
    let mut found: Vec<Option<&'static str>> = Vec::new();
    for name in head {
        let name = name.trim();
        let known = COLUMNS.iter().find(|known| known.eq_ignore_ascii_case(name)).copied();
        if known.is_none() {
            let sentence = format!("there is no column of this name: columns are {}", COLUMNS.join(", "));
            draft.wrong(1, Some(name), ImportCode::UnknownField, sentence);
        } else if found.contains(&known) {
            draft.wrong(1, Some(name), ImportCode::RepeatedField, "this column is there twice");
        }
        found.push(known);
    }
    for needed in ["id", "price"] {
        if !found.contains(&Some(needed)) {
            let sentence = format!("the first line names the columns, and {needed} is not there");
            draft.wrong(1, Some(needed), ImportCode::Missing, sentence);
        }
    }
    found
}

fn read_line(line: &StringRecord, columns: &[Option<&'static str>], draft: &mut LayoutDraft) {
    let at = line.position().map_or(0, ::csv::Position::line);
    let mut record = ImportRecord { line: at, ..ImportRecord::default() };
    if line.len() > columns.len() && line.iter().skip(columns.len()).any(|text| !text.is_empty()) {
        let sentence =
            format!("{} fields, but the first line names {}: is a quote missing?", line.len(), columns.len());
        draft.wrong(at, None, ImportCode::Unreadable, sentence);
        return;
    }
    for (column, text) in columns.iter().zip(line).filter(|(_, text)| !text.is_empty()) {
        let cell = Some(ImportCell::Text(text.to_owned()));
        match *column {
            Some("id") => record.id = cell,
            Some("section") => record.section = cell,
            Some("row") => record.row = cell,
            Some("number") => record.number = cell,
            Some("price") => record.price = cell,
            Some("capacity") => record.capacity = cell,
            _ => {}
        }
    }
    if line.iter().all(str::is_empty) {
        return;
    }
    let seated = record.section.is_some() || record.row.is_some() || record.number.is_some();
    match (record.capacity.is_some(), seated) {
        (true, true) => {
            let sentence = "a line with a capacity is an area, which has no section, row or number";
            draft.wrong(at, Some("capacity"), ImportCode::Mixed, sentence);
        }
        (true, false) => draft.area(record),
        (false, _) => draft.seat(record),
    }
}

fn broken(error: &::csv::Error, draft: &mut LayoutDraft) {
    let line = error.position().map_or(0, ::csv::Position::line);
    draft.wrong(line, None, ImportCode::Unreadable, "this is not CSV from here on");
}
