//! The seat index of a layout: the position of every seat, and its neighbours.

use std::collections::HashMap;
use std::ops::Range;

use crate::layout::{Layout, Seat};

/// The position of a seat in the index: rows best first, numbers rising.
pub type SeatPosition = usize;

/// A row, and the stretches of it where each seat has the next one beside it.
#[derive(Clone, Debug)]
pub(super) struct SeatRow {
    /// Which section, by its place in the order of sections.
    pub section: usize,
    /// All its seats.
    pub seats: Range<SeatPosition>,
    /// Numbers without a gap: an aisle ends a stretch.
    pub stretches: Vec<Range<SeatPosition>>,
}

/// The positions of all seats. Built once for a layout, and used by every pick.
#[derive(Clone, Debug, Default)]
pub struct SeatIndex {
    seats: Vec<Seat>,
    by_id: HashMap<String, SeatPosition>,
    /// The row of each seat.
    row_of: Vec<usize>,
    sections: Vec<String>,
    pub(super) rows: Vec<SeatRow>,
}

impl SeatIndex {
    /// Orders the seats: sections and rows in the order in which the layout names them first, numbers rising.
    #[must_use]
    pub fn new(layout: &Layout) -> Self {
        let mut index = Self::default();
        let mut section_at: HashMap<&str, usize> = HashMap::new();
        let mut row_at: HashMap<(usize, &str), usize> = HashMap::new();
        let mut rows: Vec<(usize, Vec<&Seat>)> = Vec::new();
        for seat in &layout.seats {
            let section = *section_at.entry(&seat.section).or_insert_with(|| {
                index.sections.push(seat.section.clone());
                index.sections.len() - 1
            });
            let row = *row_at.entry((section, &seat.row)).or_insert_with(|| {
                rows.push((section, Vec::new()));
                rows.len() - 1
            });
            rows[row].1.push(seat);
        }
        // Stable: rows of one section keep their order.
        rows.sort_by_key(|(section, _)| *section);
        for (section, mut seats) in rows {
            seats.sort_by_key(|seat| seat.number);
            index.add_row(section, &seats);
        }
        index
    }

    fn add_row(&mut self, section: usize, seats: &[&Seat]) {
        let begin = self.seats.len();
        let mut stretches: Vec<Range<SeatPosition>> = Vec::new();
        for seat in seats {
            let at = self.seats.len();
            let follows = at > begin && self.seats[at - 1].number.checked_add(1) == Some(seat.number);
            match stretches.last_mut() {
                Some(stretch) if follows => stretch.end = at + 1,
                _ => stretches.push(at..at + 1),
            }
            self.by_id.insert(seat.id.clone(), at);
            self.row_of.push(self.rows.len());
            self.seats.push((*seat).clone());
        }
        self.rows.push(SeatRow { section, seats: begin..self.seats.len(), stretches });
    }

    /// How many seats there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.seats.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.seats.is_empty()
    }

    /// Where a seat stands; none for a seat that is not here.
    #[must_use]
    pub fn position(&self, id: &str) -> Option<SeatPosition> {
        self.by_id.get(id).copied()
    }

    /// The seat at a place.
    ///
    /// # Panics
    ///
    /// There is no such place: places come from this hall.
    #[must_use]
    pub fn seat(&self, position: SeatPosition) -> &Seat {
        &self.seats[position]
    }

    /// Every seat, in the order of the hall.
    pub fn seats(&self) -> impl Iterator<Item = &Seat> {
        self.seats.iter()
    }

    pub(super) fn section(&self, name: &str) -> Option<usize> {
        self.sections.iter().position(|section| section == name)
    }

    pub(super) fn row_of(&self, position: SeatPosition) -> usize {
        self.row_of[position]
    }

    pub(super) fn section_of(&self, position: SeatPosition) -> usize {
        self.rows[self.row_of[position]].section
    }

    pub(super) fn stretch_of(&self, position: SeatPosition) -> Range<SeatPosition> {
        let row = &self.rows[self.row_of[position]];
        let stretch = row.stretches.iter().find(|stretch| stretch.contains(&position));
        stretch.cloned().unwrap_or(position..position + 1)
    }

    /// What these cost together.
    #[must_use]
    pub fn total(&self, positions: &[SeatPosition]) -> u64 {
        positions.iter().fold(0, |sum, position| sum.saturating_add(self.seats[*position].price))
    }
}

/// Which seats are free, one bit for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeSet {
    words: Vec<u64>,
    positions: usize,
}

impl FreeSet {
    /// All of a hall, or none of it.
    #[must_use]
    pub fn new(index: &SeatIndex, free: bool) -> Self {
        let positions = index.len();
        let mut this = Self { words: vec![0; positions.div_ceil(64)], positions };
        if free {
            (0..positions).for_each(|position| this.set(position, true));
        }
        this
    }

    /// Says whether a seat is free.
    pub fn set(&mut self, position: SeatPosition, free: bool) {
        debug_assert!(position < self.positions, "places come from the hall");
        let Some(word) = self.words.get_mut(position / 64) else { return };
        let bit = 1u64 << (position % 64);
        if free {
            *word |= bit;
        } else {
            *word &= !bit;
        }
    }

    /// Whether a seat is free.
    #[must_use]
    pub fn is_free(&self, position: SeatPosition) -> bool {
        self.words.get(position / 64).is_some_and(|word| word >> (position % 64) & 1 == 1)
    }

    /// How many are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether any of these is, by whole words: an empty row costs next to nothing.
    pub(super) fn any(&self, within: &Range<SeatPosition>) -> bool {
        let mut at = within.start;
        while at < within.end {
            let end = within.end.min((at / 64 + 1) * 64);
            let wide = end - at;
            let mask = if wide == 64 { u64::MAX } else { (1u64 << wide) - 1 };
            if self.words[at / 64] >> (at % 64) & mask != 0 {
                return true;
            }
            at = end;
        }
        false
    }

    /// The runs of free neighbours within a stretch, in order.
    pub(super) fn runs(&self, within: Range<SeatPosition>) -> impl Iterator<Item = Range<SeatPosition>> {
        let mut at = within.start;
        std::iter::from_fn(move || {
            while at < within.end && !self.is_free(at) {
                at += 1;
            }
            let begin = at;
            while at < within.end && self.is_free(at) {
                at += 1;
            }
            (begin < at).then_some(begin..at)
        })
    }
}
