//! Which seats to offer: the best available, an alternative for a choice that was lost, and whether a choice leaves an
//! orphan.
//!
//! ```text
//!   Layout ──▶ SeatIndex (once) ──▶ best / alternative / orphans (FreeSet: one bit a seat) ──▶ positions
//! ```
//!
//! # Laws
//!
//! 1. What is picked is free, distinct, and of the quantity asked for.
//! 2. Adjacent means one row, each number one more than the last.
//! 3. The same hall, the same free seats and the same question have the same answer.
//! 4. An **orphan** is a seat that a choice leaves free with nothing free beside it, and that had a free neighbour before.
//!    With the orphan rule, a pick leaves one only where no pick of that kind does without.
//! 5. The rule never costs a sale: a buyer's own choice is refused for an orphan only with an offer in hand that is as
//!    many, as near together, in the same section, no dearer, and leaves none.
//!
//! The hall is given best first: sections, then rows, in the order in which the layout names them; in a row, the centre
//! first.
//!
//! # Not here
//!
//! Decisions. A pick is a proposal: seats may be taken before the lease is granted, and then the office picks again.

mod alternative;
mod seat_index;
#[cfg(test)]
mod tests;

use std::ops::Range;

pub use alternative::{alternative, avoid_orphan};
pub use seat_index::{FreeSet, SeatIndex, SeatPosition};

/// The most that is picked in one go: more than any hold may have.
pub const MAX_SEATS_PER_PICK: usize = 120;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PickRequest<'a> {
    /// How many, 1 to [`MAX_SEATS_PER_PICK`].
    pub qty: usize,
    /// Only in this section.
    pub section: Option<&'a str>,
    /// In one row, side by side, or not at all. Otherwise side by side where that is to be had.
    pub adjacent: bool,
    /// Leave no orphan where that can be.
    pub no_orphans: bool,
}

/// The best seats that are free; none if so many are not to be had that way.
#[must_use]
pub fn best(index: &SeatIndex, free: &FreeSet, ask: &PickRequest<'_>) -> Option<Vec<SeatPosition>> {
    if ask.qty == 0 || ask.qty > MAX_SEATS_PER_PICK {
        return None;
    }
    let section = match ask.section {
        Some(name) => Some(index.section(name)?),
        None => None,
    };
    let rows = || (0..index.rows.len()).filter(|row| section.is_none_or(|section| index.rows[*row].section == section));
    let block = |clean: bool| rows().find_map(|row| block_in(index, free, row, ask.qty, clean));
    if ask.no_orphans {
        if let Some(block) = block(true) {
            return Some(block.collect());
        }
        let pieces = if ask.adjacent { None } else { scattered_clean(index, free, rows(), ask.qty) };
        if pieces.is_some() {
            return pieces;
        }
    }
    if let Some(block) = block(false) {
        return Some(block.collect());
    }
    if ask.adjacent { None } else { scattered(index, free, rows(), ask.qty) }
}

/// The block of a row that is nearest to its centre. `clean`: one that leaves no orphan.
fn block_in(index: &SeatIndex, free: &FreeSet, row: usize, qty: usize, clean: bool) -> Option<Range<SeatPosition>> {
    let row = &index.rows[row];
    if !free.any(&row.seats) {
        return None;
    }
    // Twice the middle, so that it is a whole number.
    let centre = row.seats.start + row.seats.end;
    let runs = row.stretches.iter().flat_map(|stretch| free.runs(stretch.clone()));
    runs.filter_map(|run| block_near(&run, qty, centre, clean)).min_by_key(|block| off_centre(block, centre))
}

fn off_centre(block: &Range<SeatPosition>, centre: usize) -> (usize, SeatPosition) {
    ((block.start + block.end).abs_diff(centre), block.start)
}

/// The block of a run of free seats that is nearest to a centre (given twice).
fn block_near(run: &Range<SeatPosition>, qty: usize, centre: usize, clean: bool) -> Option<Range<SeatPosition>> {
    let room = run.len().checked_sub(qty)?;
    let blocks = (run.start..=run.start + room).map(|begin| begin..begin + qty);
    let fine = blocks.filter(|block| !clean || (block.start - run.start != 1 && run.end - block.end != 1));
    fine.min_by_key(|block| off_centre(block, centre))
}

/// Single seats and pieces, row by row, with no thought of orphans.
fn scattered(
    index: &SeatIndex,
    free: &FreeSet,
    rows: impl Iterator<Item = usize>,
    qty: usize,
) -> Option<Vec<SeatPosition>> {
    let mut taken: Vec<SeatPosition> = Vec::with_capacity(qty);
    for row in rows {
        let row = &index.rows[row];
        if !free.any(&row.seats) {
            continue;
        }
        let centre = row.seats.start + row.seats.end;
        let mut here: Vec<SeatPosition> = row.seats.clone().filter(|position| free.is_free(*position)).collect();
        here.sort_by_key(|position| off_centre(&(*position..*position + 1), centre));
        taken.extend(here.into_iter().take(qty - taken.len()));
        if taken.len() == qty {
            taken.sort_unstable();
            return Some(taken);
        }
    }
    None
}

/// So many in pieces that leave no orphan anywhere, best rows first.
///
/// A run of n free seats can give any number but n - 1 (then one would be left), so what remains to be decided is how
/// many each run gives: sums, in the order of the runs, found from behind.
fn scattered_clean(
    index: &SeatIndex,
    free: &FreeSet,
    rows: impl Iterator<Item = usize>,
    qty: usize,
) -> Option<Vec<SeatPosition>> {
    let mut runs: Vec<(usize, Range<SeatPosition>)> = Vec::new();
    for row in rows.filter(|row| free.any(&index.rows[*row].seats)) {
        let stretches = index.rows[row].stretches.iter();
        runs.extend(stretches.flat_map(|stretch| free.runs(stretch.clone())).map(|run| (row, run)));
    }
    // Bit n of `sums[i]`: n seats can be had from run i and all after it.
    let all = if qty == 127 { u128::MAX } else { (1u128 << (qty + 1)) - 1 };
    let mut sums = vec![1u128; runs.len() + 1];
    for at in (0..runs.len()).rev() {
        let (length, after) = (runs[at].1.len(), sums[at + 1]);
        sums[at] = if after == all { all } else { gives(length, qty).fold(0, |sums, many| sums | after << many) & all };
    }
    let (mut left, mut taken) = (qty, Vec::with_capacity(qty));
    for (at, (row, run)) in runs.iter().enumerate() {
        if sums[at] >> left & 1 == 0 {
            return None;
        }
        let most = gives(run.len(), left).filter(|many| sums[at + 1] >> (left - many) & 1 == 1).max()?;
        if most > 0 {
            let seats = &index.rows[*row].seats;
            taken.extend(block_near(run, most, seats.start + seats.end, true)?);
            left -= most;
        }
        if left == 0 {
            return Some(taken);
        }
    }
    None
}

/// How many a run of so many free seats can give without leaving one, up to `most`.
fn gives(length: usize, most: usize) -> impl Iterator<Item = usize> {
    (0..=length.min(most)).filter(move |many| *many == 0 || length - many != 1)
}

/// The seats that this choice would leave alone. The choice itself is free, or will be.
#[must_use]
pub fn orphans(index: &SeatIndex, free: &FreeSet, chosen: &[SeatPosition]) -> Vec<SeatPosition> {
    let mut left = free.clone();
    chosen.iter().for_each(|position| left.set(*position, false));
    let mut alone = Vec::new();
    for position in chosen {
        let stretch = index.stretch_of(*position);
        let beside =
            [position.checked_sub(1), Some(position + 1)].into_iter().flatten().filter(|at| stretch.contains(at));
        for near in beside.filter(|at| left.is_free(*at)) {
            let mut neighbours = [near.checked_sub(1), Some(near + 1)].into_iter().flatten();
            let company = neighbours.any(|at| stretch.contains(&at) && left.is_free(at));
            if !company && !alone.contains(&near) {
                alone.push(near);
            }
        }
    }
    alone.sort_unstable();
    alone
}

/// Whether these stand side by side in one row, in any order.
#[must_use]
pub fn are_adjacent(index: &SeatIndex, chosen: &[SeatPosition]) -> bool {
    let mut sorted = chosen.to_vec();
    sorted.sort_unstable();
    let Some((first, last)) = sorted.first().zip(sorted.last()) else { return false };
    last - first + 1 == sorted.len() && index.stretch_of(*first).contains(last)
}
