//! Alternatives: seats to offer to a buyer who cannot have their choice.

use std::ops::Range;

use super::{FreeSet, MAX_SEATS_PER_PICK, SeatIndex, SeatPosition, are_adjacent, orphans};

/// Seats to offer to whoever cannot have these: as many, adjacent if these were, the same section first and as near as
/// can be, and in all no dearer.
#[must_use]
pub fn alternative(
    index: &SeatIndex,
    free: &FreeSet,
    wanted: &[SeatPosition],
    no_orphans: bool,
) -> Option<Vec<SeatPosition>> {
    if wanted.is_empty() || wanted.len() > MAX_SEATS_PER_PICK {
        return None;
    }
    let near = NearestSearch::new(index, free, wanted);
    if are_adjacent(index, wanted) {
        let clean = no_orphans.then(|| near.block(true, false)).flatten();
        return clean.or_else(|| near.block(false, false)).map(Iterator::collect);
    }
    let single = near.one_by_one(wanted);
    let clean = single.as_ref().is_some_and(|positions| orphans(index, free, positions).is_empty());
    if no_orphans && !clean {
        return near.block(true, false).map(Iterator::collect).or(single);
    }
    single
}

/// An offer that lets a choice be refused for the orphan it leaves; none if it leaves none, or if a refusal could cost
/// the sale: then the choice stands. The choice is free.
#[must_use]
pub fn avoid_orphan(index: &SeatIndex, free: &FreeSet, chosen: &[SeatPosition]) -> Option<Vec<SeatPosition>> {
    if chosen.is_empty() || chosen.len() > MAX_SEATS_PER_PICK || orphans(index, free, chosen).is_empty() {
        return None;
    }
    NearestSearch::new(index, free, chosen).block(true, true).map(Iterator::collect)
}

/// A search that begins where a choice was.
struct NearestSearch<'a> {
    index: &'a SeatIndex,
    free: &'a FreeSet,
    qty: usize,
    /// In all no dearer than this.
    budget: u64,
    section: usize,
    /// Rows, nearest first: those of the same section before all others.
    rows: Vec<usize>,
    /// Twice the middle of the choice, counted from the beginning of its row.
    middle: usize,
}

impl<'a> NearestSearch<'a> {
    fn new(index: &'a SeatIndex, free: &'a FreeSet, wanted: &[SeatPosition]) -> Self {
        let first = wanted.iter().copied().min().unwrap_or_default();
        let home = index.row_of(first);
        let section = index.section_of(first);
        let in_row = wanted.iter().filter(|position| index.row_of(**position) == home).copied().max().unwrap_or(first);
        let begin = index.rows[home].seats.start;
        let mut rows: Vec<usize> = (0..index.rows.len()).filter(|row| free.any(&index.rows[*row].seats)).collect();
        rows.sort_by_key(|row| {
            let same = index.rows[*row].section == section;
            // In other sections nothing is near: best first.
            (!same, if same { row.abs_diff(home) } else { 0 }, *row)
        });
        let middle = first + in_row + 1 - 2 * begin;
        Self { index, free, qty: wanted.len(), budget: index.total(wanted), section, rows, middle }
    }

    /// The nearest block. `clean`: one that leaves no orphan. `here`: in the same section only.
    fn block(&self, clean: bool, here: bool) -> Option<Range<SeatPosition>> {
        let rows = self.rows.iter().filter(|row| !here || self.index.rows[**row].section == self.section);
        rows.copied().find_map(|row| {
            let row = &self.index.rows[row];
            let middle = 2 * row.seats.start + self.middle;
            let runs = row.stretches.iter().flat_map(|stretch| self.free.runs(stretch.clone()));
            let blocks = runs.flat_map(|run| self.blocks(run, clean));
            blocks.min_by_key(|block| ((block.start + block.end).abs_diff(middle), block.start))
        })
    }

    fn blocks(&self, run: Range<SeatPosition>, clean: bool) -> impl Iterator<Item = Range<SeatPosition>> {
        let ends = (run.start + self.qty)..=run.end;
        let blocks = ends.map(|end| end - self.qty..end);
        blocks.filter(move |block| {
            let orphan = block.start - run.start == 1 || run.end - block.end == 1;
            !(clean && orphan) && self.index.total(&block.clone().collect::<Vec<_>>()) <= self.budget
        })
    }

    /// What is still free stays; each seat that was lost is replaced by the nearest that is no dearer.
    fn one_by_one(&self, wanted: &[SeatPosition]) -> Option<Vec<SeatPosition>> {
        let mut taken: Vec<SeatPosition> =
            wanted.iter().copied().filter(|position| self.free.is_free(*position)).collect();
        for lost in wanted.iter().filter(|position| !self.free.is_free(**position)) {
            let price = self.index.seat(*lost).price;
            let in_row = lost - self.index.rows[self.index.row_of(*lost)].seats.start;
            let fits = |position: &SeatPosition| {
                self.free.is_free(*position) && self.index.seat(*position).price <= price && !taken.contains(position)
            };
            let nearest = self.rows.iter().find_map(|row| {
                let seats = self.index.rows[*row].seats.clone();
                let there = seats.start + in_row;
                seats.filter(fits).min_by_key(|position| (position.abs_diff(there), *position))
            })?;
            taken.push(nearest);
        }
        taken.sort_unstable();
        Some(taken)
    }
}
