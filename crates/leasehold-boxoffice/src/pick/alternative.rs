//! What to offer to whoever cannot have what they chose.

use std::ops::Range;

use super::{Free, Hall, MOST, Place, are_adjacent, orphans};

/// Seats to offer to whoever cannot have these: as many, adjacent if these were, the same section first and as near as
/// can be, and in all no dearer.
#[must_use]
pub fn alternative(hall: &Hall, free: &Free, wanted: &[Place], no_orphans: bool) -> Option<Vec<Place>> {
    if wanted.is_empty() || wanted.len() > MOST {
        return None;
    }
    let near = Near::new(hall, free, wanted);
    if are_adjacent(hall, wanted) {
        let clean = no_orphans.then(|| near.block(true, false)).flatten();
        return clean.or_else(|| near.block(false, false)).map(Iterator::collect);
    }
    let single = near.one_by_one(wanted);
    let clean = single.as_ref().is_some_and(|places| orphans(hall, free, places).is_empty());
    if no_orphans && !clean {
        return near.block(true, false).map(Iterator::collect).or(single);
    }
    single
}

/// An offer that lets a choice be refused for the orphan it leaves; none if it leaves none, or if a refusal could cost
/// the sale: then the choice stands. The choice is free.
#[must_use]
pub fn instead_of_orphan(hall: &Hall, free: &Free, chosen: &[Place]) -> Option<Vec<Place>> {
    if chosen.is_empty() || chosen.len() > MOST || orphans(hall, free, chosen).is_empty() {
        return None;
    }
    Near::new(hall, free, chosen).block(true, true).map(Iterator::collect)
}

/// A search that begins where a choice was.
struct Near<'a> {
    hall: &'a Hall,
    free: &'a Free,
    qty: usize,
    /// In all no dearer than this.
    budget: u64,
    section: usize,
    /// Rows, nearest first: those of the same section before all others.
    rows: Vec<usize>,
    /// Twice the middle of the choice, counted from the beginning of its row.
    middle: usize,
}

impl<'a> Near<'a> {
    fn new(hall: &'a Hall, free: &'a Free, wanted: &[Place]) -> Self {
        let first = wanted.iter().copied().min().unwrap_or_default();
        let home = hall.row_of(first);
        let section = hall.section_of(first);
        let in_row = wanted.iter().filter(|place| hall.row_of(**place) == home).copied().max().unwrap_or(first);
        let begin = hall.rows[home].seats.start;
        let mut rows: Vec<usize> = (0..hall.rows.len()).filter(|row| free.any(&hall.rows[*row].seats)).collect();
        rows.sort_by_key(|row| {
            let same = hall.rows[*row].section == section;
            // In other sections nothing is near: best first.
            (!same, if same { row.abs_diff(home) } else { 0 }, *row)
        });
        let middle = first + in_row + 1 - 2 * begin;
        Self { hall, free, qty: wanted.len(), budget: hall.total(wanted), section, rows, middle }
    }

    /// The nearest block. `clean`: one that leaves no orphan. `here`: in the same section only.
    fn block(&self, clean: bool, here: bool) -> Option<Range<Place>> {
        let rows = self.rows.iter().filter(|row| !here || self.hall.rows[**row].section == self.section);
        rows.copied().find_map(|row| {
            let row = &self.hall.rows[row];
            let middle = 2 * row.seats.start + self.middle;
            let runs = row.stretches.iter().flat_map(|stretch| self.free.runs(stretch.clone()));
            let blocks = runs.flat_map(|run| self.blocks(run, clean));
            blocks.min_by_key(|block| ((block.start + block.end).abs_diff(middle), block.start))
        })
    }

    fn blocks(&self, run: Range<Place>, clean: bool) -> impl Iterator<Item = Range<Place>> {
        let ends = (run.start + self.qty)..=run.end;
        let blocks = ends.map(|end| end - self.qty..end);
        blocks.filter(move |block| {
            let orphan = block.start - run.start == 1 || run.end - block.end == 1;
            !(clean && orphan) && self.hall.total(&block.clone().collect::<Vec<_>>()) <= self.budget
        })
    }

    /// What is still free stays; each seat that was lost is replaced by the nearest that is no dearer.
    fn one_by_one(&self, wanted: &[Place]) -> Option<Vec<Place>> {
        let mut taken: Vec<Place> = wanted.iter().copied().filter(|place| self.free.is_free(*place)).collect();
        for lost in wanted.iter().filter(|place| !self.free.is_free(**place)) {
            let price = self.hall.seat(*lost).price;
            let in_row = lost - self.hall.rows[self.hall.row_of(*lost)].seats.start;
            let fits = |place: &Place| {
                self.free.is_free(*place) && self.hall.seat(*place).price <= price && !taken.contains(place)
            };
            let nearest = self.rows.iter().find_map(|row| {
                let seats = self.hall.rows[*row].seats.clone();
                let there = seats.start + in_row;
                seats.filter(fits).min_by_key(|place| (place.abs_diff(there), *place))
            })?;
            taken.push(nearest);
        }
        taken.sort_unstable();
        Some(taken)
    }
}
