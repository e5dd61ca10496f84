//! The only place that writes to the terminal: results to stdout, everything else to stderr.

#![allow(clippy::print_stderr, reason = "the command line speaks to people here, and only here")]

use std::io::{self, Write};

use anyhow::Context;
use serde::Serialize;

/// Writes one line of results.
///
/// A failed write is an error, never a panic: who acquired a lease and could not say its id must know.
pub fn line(text: impl AsRef<str>) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_ref().as_bytes()).and_then(|()| stdout.write_all(b"\n"));
    written.and_then(|()| stdout.flush()).context("write the result to stdout")
}

/// Writes one JSON object on one line.
pub fn json(value: &impl Serialize) -> anyhow::Result<()> {
    line(serde_json::to_string(value).context("write the result as JSON")?)
}

/// Says something to the person at the terminal, beside the result.
pub fn say(sentence: impl AsRef<str>) {
    // Nobody is left to tell when stderr is closed, so a failed write is dropped.
    let _ = writeln!(io::stderr(), "leasehold: {}", sentence.as_ref());
}

/// Whether the reader of our results went away (`leasehold ls | head -1`): no failure of ours.
pub fn reader_went_away(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

/// Text chosen by strangers, made harmless to a terminal: control characters are shown escaped.
pub fn plain(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
        out
    })
}

/// A table for people: columns as wide as their widest cell, two spaces between.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings.
    pub fn new(headings: &[&str]) -> Self {
        Self { rows: vec![headings.iter().map(ToString::to_string).collect()] }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| plain(&cell)).collect());
    }

    /// The table as lines without trailing spaces.
    pub fn lines(&self) -> Vec<String> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        self.rows.iter().map(line).collect()
    }

    /// Writes the table to stdout.
    pub fn print(&self) -> anyhow::Result<()> {
        self.lines().iter().try_for_each(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_aligns_its_columns() {
        let mut table = Table::new(&["NAME", "HOLDER"]);
        table.row(["seat-14".into(), "ada".into()]);
        table.row(["s".into(), "b\u{1b}[31mob".into()]);
        assert_eq!(table.lines(), ["NAME     HOLDER", "seat-14  ada", "s        b\\u{1b}[31mob"]);
    }
}
