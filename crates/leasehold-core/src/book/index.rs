//! An index of eight bytes a row, found with one cache miss, that never grows all at once.
//!
//! A line is 64 bytes, a cache line: a count, and seven entries of a tag (32 bits of the key's hash) and a row of
//! the caller's table. The tag also chooses the line, so growing moves entries without reading what they stand
//! for, a few lines with every change. At ten million rows a table that doubled in one go would stop the book for a
//! tenth of a second, and one that keeps tags, rows and counts apart would pay a miss for each.

const WORDS_PER_LINE: usize = 8;
/// Lines moved to the larger table with every insertion and removal.
const LINES_MOVED_PER_CHANGE: usize = 4;
/// The next table is allocated beforehand between these sizes, in lines: a small table costs nothing, and a large one
/// (from 64 MB on, at 2.6 million rows) may never be used.
const MIN_PREALLOC_LINES: usize = 1 << 12;
const MAX_PREALLOC_LINES: usize = 1 << 18;

#[derive(Debug, Default)]
pub(super) struct IndexTable {
    /// Zeroed memory that the system hands out as it is touched; a vector of aligned lines would be touched at once.
    words: Vec<u64>,
    /// The first word on a cache line.
    offset: usize,
    lines: usize,
    used: usize,
}

/// See the module. Rows are below `u32::MAX`.
#[derive(Debug, Default)]
pub(super) struct Index {
    table: IndexTable,
    /// The smaller table, while its entries are being moved.
    old: IndexTable,
    moved: usize,
    /// The next larger table, allocated by another thread.
    spare: Option<IndexTable>,
}

impl IndexTable {
    fn with_lines(lines: usize) -> Self {
        let words = vec![0; (lines + 1) * WORDS_PER_LINE];
        let offset = (words.as_ptr() as usize).wrapping_neg() % 64 / size_of::<u64>();
        Self { words, offset, lines, used: 0 }
    }

    /// A table whose memory was touched: the system hands out a page when that is done for the first time.
    pub fn ready(lines: usize) -> Self {
        let mut table = Self::with_lines(lines);
        let each_page = crate::block_vec::PAGE_BYTES / size_of::<u64>();
        // Through black_box: the compiler knows that all of it is zero, and would leave the write out.
        table.words.iter_mut().step_by(each_page).for_each(|word| *word = core::hint::black_box(0));
        table
    }

    /// Neighbouring tags share a line: tokens are dense, and the next one finds its line warm. Two of them, not more:
    /// a run of tags that is five times as long as the table has lines then goes around less than three times and
    /// puts six entries into a line, which has room for seven.
    const fn home(&self, tag: u32) -> usize {
        (tag >> 1) as usize & (self.lines - 1)
    }

    const fn after(&self, line: usize) -> usize {
        (line + 1) & (self.lines - 1)
    }

    const fn start(&self, line: usize) -> usize {
        self.offset + line * WORDS_PER_LINE
    }

    fn entries(&self, line: usize) -> &[u64] {
        &self.words[self.start(line) + 1..self.start(line) + WORDS_PER_LINE]
    }

    /// How many entries passed this line because it was full, and stand in one after it. Exact, so that a search for
    /// a missing entry ends at once, even after years of insertions and removals.
    fn passed_count(&mut self, line: usize) -> &mut u64 {
        let start = self.start(line);
        &mut self.words[start]
    }

    /// The word of the entry with this tag for which `is` holds, and its line.
    fn find(&self, tag: u32, mut is: impl FnMut(u32) -> bool) -> Option<(usize, usize)> {
        if self.used == 0 {
            return None;
        }
        let mut line = self.home(tag);
        // In a small table entries may have passed every line: once around is enough.
        for _ in 0..self.lines {
            for (at, entry) in self.entries(line).iter().enumerate() {
                if (entry >> 32) as u32 == tag && *entry as u32 != 0 && is(row_of(*entry)) {
                    return Some((line, self.start(line) + 1 + at));
                }
            }
            if self.words[self.start(line)] == 0 {
                return None;
            }
            line = self.after(line);
        }
        None
    }

    fn insert(&mut self, entry: u64) {
        let mut line = self.home((entry >> 32) as u32);
        loop {
            if let Some(at) = self.entries(line).iter().position(|entry| *entry == 0) {
                let start = self.start(line);
                self.words[start + 1 + at] = entry;
                // The next token goes to the next line: fetch it while there is other work to do.
                core::hint::black_box(self.words[self.start(self.after(line))]);
                self.used += 1;
                return;
            }
            *self.passed_count(line) += 1;
            line = self.after(line);
        }
    }

    fn remove(&mut self, tag: u32, (found, word): (usize, usize)) {
        self.words[word] = 0;
        self.used -= 1;
        let mut line = self.home(tag);
        while line != found {
            *self.passed_count(line) -= 1;
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
        if let Some((_, word)) = self.table.find(tag, &mut is) {
            return Some(row_of(self.table.words[word]));
        }
        let (_, word) = self.old.find(tag, is)?;
        Some(row_of(self.old.words[word]))
    }

    /// Fetches the line where the search for this tag begins.
    pub fn fetch(&self, tag: u32) {
        if self.table.lines > 0 {
            core::hint::black_box(self.table.words[self.table.start(self.table.home(tag))]);
        }
    }

    /// Adds a row that is not there yet.
    pub fn insert(&mut self, tag: u32, row: u32) {
        self.keep_moving();
        // Five of seven entries on average: few lines are ever full.
        if self.table.used + self.old.used + 1 > self.table.lines * 5 {
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
        if let Some((_, word)) = table.find(tag, |other| other == row) {
            table.words[word] = entry(tag, with);
        }
    }

    fn table_with(&mut self, tag: u32, row: u32) -> &mut IndexTable {
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
        let lines = (self.table.lines * 2).max(4);
        let larger = self.spare.take().unwrap_or_else(|| IndexTable::with_lines(lines));
        debug_assert_eq!(larger.lines, lines);
        self.old = std::mem::replace(&mut self.table, larger);
        self.moved = 0;
    }

    /// How many lines the next table will have, if it is needed soon and not allocated yet.
    pub fn next_table_lines(&self) -> Option<usize> {
        let soon = (self.table.used + self.old.used) * 10 > self.table.lines * 5 * 9;
        let worth_it = (MIN_PREALLOC_LINES..=MAX_PREALLOC_LINES).contains(&self.table.lines);
        (soon && worth_it && self.spare.is_none()).then(|| self.table.lines * 2)
    }

    /// Takes the next table, or returns one of the wrong size: the index grew by itself meanwhile.
    pub fn keep_ready(&mut self, table: IndexTable) -> Option<IndexTable> {
        debug_assert_eq!(table.used, 0);
        if self.spare.is_some() || table.lines != self.table.lines * 2 {
            return Some(table);
        }
        self.spare = Some(table);
        None
    }

    /// Moves the next few lines of the smaller table.
    fn keep_moving(&mut self) {
        if self.old.lines == 0 {
            return;
        }
        for line in self.moved..(self.moved + LINES_MOVED_PER_CHANGE).min(self.old.lines) {
            for word in self.old.start(line) + 1..self.old.start(line) + WORDS_PER_LINE {
                let entry = self.old.words[word];
                if entry != 0 {
                    self.old.remove((entry >> 32) as u32, (line, word));
                    self.table.insert(entry);
                }
            }
            self.moved = line + 1;
        }
        if self.old.used == 0 {
            self.old = IndexTable::default();
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
        /// Goal: through growth, full lines and removal the index answers as a plain map does, whoever made its tables.
        /// Method: few tags, so that lines fill up; every row is looked for after every step; now and then a table of the
        /// right size or of another is made ready.
        #[test]
        fn the_index_agrees_with_a_map(steps in proptest::collection::vec((any::<bool>(), 0..400u32, 0..40u32), 1..600)) {
            let mut index = Index::default();
            let mut model: BTreeMap<u32, u32> = BTreeMap::new();
            for (add, row, tag) in steps {
                if row % 16 == 0 {
                    let lines = index.table.lines << (row >> 4 & 1);
                    let left = index.keep_ready(IndexTable::ready(lines.max(4)));
                    prop_assert!(left.is_none() || index.spare.is_some() || lines == index.table.lines);
                }
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

    /// Goal: a look for what is not there ends, also when entries passed every line. (It once did not.)
    /// Method: fill each line of the smallest table past its end, and take out all but those that passed it.
    #[test]
    fn a_look_for_what_is_not_there_ends_when_every_line_was_passed() {
        let mut index = Index::default();
        let mut row = 0;
        for home in 0..4u32 {
            let tags: Vec<(u32, u32)> = (0..8).map(|i| (home << 1, row + i)).collect();
            row += 8;
            for (tag, row) in &tags {
                index.insert(*tag, *row);
            }
            for (tag, row) in &tags[..7] {
                index.remove(*tag, *row);
            }
        }
        assert_eq!(index.find(77, |_| true), None);
    }

    #[test]
    fn dense_tags_fill_lines_evenly_and_grow_in_steps() {
        let mut index = Index::default();
        for row in 0..100_000 {
            index.insert(tag_of_token(u64::from(row)), row);
        }
        assert!((0..100_000).all(|row| index.find(row, |found| found == row) == Some(row)));
        assert!(index.table.lines * WORDS_PER_LINE < 100_000 * 4, "wasteful");
    }

    /// Goal: a window of tokens that moves on (young leases, old endings) never crowds the lines at its edge.
    /// Method: windows of many lengths, moved around the table twice; nothing ever passes a full line.
    #[test]
    fn a_moving_run_of_tags_never_fills_a_line() {
        for length in [100u32, 1_000, 65_536, 65_600, 81_919] {
            let mut index = Index::default();
            for tag in 0..length * 3 {
                index.insert(tag, tag % (1 << 20));
                if tag >= length {
                    index.remove(tag - length, (tag - length) % (1 << 20));
                }
            }
            let table = &mut index.table;
            let passed: u64 = (0..table.lines).map(|line| *table.passed_count(line)).sum();
            assert_eq!(passed, 0, "a run of {length}");
        }
    }
}
