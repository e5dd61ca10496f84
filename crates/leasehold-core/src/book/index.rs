//! An index of eight bytes a row, found with one cache miss, that never grows all at once.
//!
//! A line is 64 bytes: eight entries of a tag (32 bits of the key's hash) and a row of somebody else's slab. The
//! tag also chooses the line, so growing moves entries without looking at what they stand for, a few lines with
//! every change. At ten million rows a table that doubled in one go would stop the book for a tenth of a second,
//! and one that keeps tags and rows apart would pay two misses for every look.

const ENTRIES: usize = 8;
/// Lines moved to the larger table with every insertion and removal.
const MOVE: usize = 4;
type Line = [u64; ENTRIES];

#[derive(Debug, Default)]
struct Table {
    lines: Vec<Line>,
    /// How many entries passed each line because it was full, and stand in one after it. Exact, so that a look for
    /// what is not there ends at once also after years of coming and going.
    passed: Vec<u32>,
    used: usize,
}

/// See the module. Rows are below `u32::MAX`.
#[derive(Debug, Default)]
pub(super) struct Index {
    table: Table,
    /// The smaller table, while its entries are being moved.
    old: Table,
    moved: usize,
}

impl Table {
    fn with_lines(lines: usize) -> Self {
        Self { lines: vec![[0; ENTRIES]; lines], passed: vec![0; lines], used: 0 }
    }

    /// Neighbouring tags share a line: tokens are dense, and the next one finds its line warm.
    const fn home(&self, tag: u32) -> usize {
        (tag >> 2) as usize & (self.lines.len() - 1)
    }

    const fn after(&self, line: usize) -> usize {
        (line + 1) & (self.lines.len() - 1)
    }

    /// Where the entry with this tag stands for which `is` holds.
    fn find(&self, tag: u32, mut is: impl FnMut(u32) -> bool) -> Option<(usize, usize)> {
        if self.used == 0 {
            return None;
        }
        let mut line = self.home(tag);
        loop {
            for (at, entry) in self.lines[line].iter().enumerate() {
                if *entry != 0 && (entry >> 32) as u32 == tag && is(row_of(*entry)) {
                    return Some((line, at));
                }
            }
            if self.passed[line] == 0 {
                return None;
            }
            line = self.after(line);
        }
    }

    fn insert(&mut self, entry: u64) {
        let mut line = self.home((entry >> 32) as u32);
        loop {
            if let Some(free) = self.lines[line].iter_mut().find(|entry| **entry == 0) {
                *free = entry;
                self.used += 1;
                return;
            }
            self.passed[line] += 1;
            line = self.after(line);
        }
    }

    fn remove(&mut self, tag: u32, (found, at): (usize, usize)) {
        self.lines[found][at] = 0;
        self.used -= 1;
        let mut line = self.home(tag);
        while line != found {
            self.passed[line] -= 1;
            line = self.after(line);
        }
    }
}

const fn row_of(entry: u64) -> u32 {
    entry as u32 - 1
}

const fn entry(tag: u32, row: u32) -> u64 {
    (tag as u64) << 32 | (row as u64 + 1)
}

impl Index {
    pub fn find(&self, tag: u32, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        if let Some((line, at)) = self.table.find(tag, &mut is) {
            return Some(row_of(self.table.lines[line][at]));
        }
        let (line, at) = self.old.find(tag, is)?;
        Some(row_of(self.old.lines[line][at]))
    }

    /// Adds a row that is not there yet.
    pub fn insert(&mut self, tag: u32, row: u32) {
        self.keep_moving();
        // Five of eight entries on average: few lines are ever full.
        if (self.table.used + self.old.used + 1) * 8 > self.table.lines.len() * ENTRIES * 5 {
            self.grow();
        }
        self.table.insert(entry(tag, row));
    }

    pub fn remove(&mut self, tag: u32, row: u32) {
        let table = self.table_with(tag, row);
        if let Some(place) = table.find(tag, |other| other == row) {
            table.remove(tag, place);
        }
        self.keep_moving();
    }

    /// Puts another row in the place of one with the same tag.
    pub fn replace(&mut self, tag: u32, row: u32, with: u32) {
        let table = self.table_with(tag, row);
        if let Some((line, at)) = table.find(tag, |other| other == row) {
            table.lines[line][at] = entry(tag, with);
        }
    }

    fn table_with(&mut self, tag: u32, row: u32) -> &mut Table {
        if self.table.find(tag, |other| other == row).is_some() {
            return &mut self.table;
        }
        assert!(self.old.find(tag, |other| other == row).is_some(), "a row is in the index until it is removed");
        &mut self.old
    }

    fn grow(&mut self) {
        while self.old.used > 0 {
            self.keep_moving();
        }
        let lines = (self.table.lines.len() * 2).max(4);
        self.old = std::mem::replace(&mut self.table, Table::with_lines(lines));
        self.moved = 0;
    }

    /// Moves the next few lines of the smaller table.
    fn keep_moving(&mut self) {
        if self.old.lines.is_empty() {
            return;
        }
        for _ in 0..MOVE {
            let Some(line) = self.old.lines.get(self.moved).copied() else { break };
            for (at, entry) in line.into_iter().enumerate().filter(|(_, entry)| *entry != 0) {
                self.old.remove((entry >> 32) as u32, (self.moved, at));
                self.table.insert(entry);
            }
            self.moved += 1;
        }
        if self.old.used == 0 {
            self.old = Table::default();
        }
    }
}

/// The tag of a token: itself, so that neighbours are neighbours.
pub(super) const fn tag_of_token(token: u64) -> u32 {
    token as u32
}

/// The tag of a well-mixed hash.
pub(super) const fn tag_of_hash(hash: u64) -> u32 {
    (hash >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Goal: through growth, full lines and removal the index answers as a plain map does.
        /// Method: few tags, so that lines fill up; every row is looked for after every step.
        #[test]
        fn the_index_agrees_with_a_map(steps in proptest::collection::vec((any::<bool>(), 0..400u32, 0..40u32), 1..600)) {
            let mut index = Index::default();
            let mut model: BTreeMap<u32, u32> = BTreeMap::new();
            for (add, row, tag) in steps {
                match (add, model.get(&row).copied()) {
                    (true, None) => {
                        index.insert(tag, row);
                        model.insert(row, tag);
                    }
                    (false, Some(tag)) => {
                        index.remove(tag, row);
                        model.remove(&row);
                    }
                    (true, Some(tag)) => {
                        index.replace(tag, row, row + 1000);
                        index.replace(tag, row + 1000, row);
                    }
                    (false, None) => {}
                }
                for (row, tag) in &model {
                    prop_assert_eq!(index.find(*tag, |other| other == *row), Some(*row));
                }
                prop_assert_eq!(index.find(tag, |other| other >= 400), None);
            }
            prop_assert_eq!(index.table.used + index.old.used, model.len());
        }
    }

    #[test]
    fn dense_tags_fill_lines_evenly_and_grow_in_steps() {
        let mut index = Index::default();
        for row in 0..100_000 {
            index.insert(tag_of_token(u64::from(row)), row);
        }
        assert!((0..100_000).all(|row| index.find(row, |found| found == row) == Some(row)));
        assert!(index.table.lines.len() * ENTRIES < 100_000 * 4, "wasteful");
    }
}
