//! A vector that never moves what is in it: it grows by blocks.
//!
//! A plain vector doubles by copying all it has. At ten million leases that is more than a gigabyte in one go: a book
//! that stops for a second, and memory touched twice for every byte that is kept.
//!
//! # Not here
//!
//! Which row is free, and what is in one: its owner knows.

use core::mem::MaybeUninit;
use core::ops::{Index, IndexMut};

/// Rows of a block. A power of two, so that a place is found with a shift and a mask; and many, because an allocator
/// rounds up: with 4,096 a lease took 257 bytes, so it takes 234. What is not touched yet costs nothing.
const ROWS_PER_BLOCK: usize = 1 << 16;
/// Memory is handed out by pages of at least this many bytes.
pub(crate) const PAGE_BYTES: usize = 4096;

/// See the module.
#[derive(Clone, Debug)]
pub struct BlockVec<T> {
    /// All but the last are full.
    blocks: Vec<Vec<T>>,
    /// The next block, allocated by another thread.
    spare: Option<Vec<T>>,
}

impl<T> Default for BlockVec<T> {
    fn default() -> Self {
        Self { blocks: Vec::new(), spare: None }
    }
}

impl<T> BlockVec<T> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.blocks.last().map_or(0, |last| (self.blocks.len() - 1) * ROWS_PER_BLOCK + last.len())
    }

    /// Adds a row after the last.
    pub fn push(&mut self, row: T) {
        match self.blocks.last_mut() {
            Some(last) if last.len() < ROWS_PER_BLOCK => last.push(row),
            // A small book stays small: the first block grows as any vector.
            None => self.blocks.push(vec![row]),
            Some(_) => {
                let mut block = self.spare.take().unwrap_or_else(|| Vec::with_capacity(ROWS_PER_BLOCK));
                block.push(row);
                self.blocks.push(block);
            }
        }
    }

    /// Whether another block is needed soon, and none is ready.
    pub fn needs_block(&self) -> bool {
        self.spare.is_none() && self.blocks.last().is_some_and(|last| last.len() >= ROWS_PER_BLOCK / 4 * 3)
    }

    /// A block whose memory was touched: the system hands out a page when that is done for the first time.
    pub fn ready_block() -> Vec<T> {
        let mut block = Vec::with_capacity(ROWS_PER_BLOCK);
        let each_page = (PAGE_BYTES / size_of::<T>().max(1)).max(1);
        block.spare_capacity_mut().iter_mut().step_by(each_page).for_each(|row| *row = MaybeUninit::zeroed());
        block
    }

    /// Takes the next block, or returns it if there is one already.
    pub fn keep_ready(&mut self, block: Vec<T>) -> Option<Vec<T>> {
        debug_assert!(block.is_empty());
        if self.spare.is_some() {
            return Some(block);
        }
        self.spare = Some(block);
        None
    }

    /// The row, if there are that many.
    pub fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        self.blocks.get_mut(at / ROWS_PER_BLOCK)?.get_mut(at % ROWS_PER_BLOCK)
    }

    /// All rows in order.
    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.blocks.iter().flatten()
    }

    /// All rows in order, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.blocks.iter_mut().flatten()
    }
}

impl<T> Index<usize> for BlockVec<T> {
    type Output = T;

    fn index(&self, at: usize) -> &T {
        &self.blocks[at / ROWS_PER_BLOCK][at % ROWS_PER_BLOCK]
    }
}

impl<T> IndexMut<usize> for BlockVec<T> {
    fn index_mut(&mut self, at: usize) -> &mut T {
        &mut self.blocks[at / ROWS_PER_BLOCK][at % ROWS_PER_BLOCK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: rows are found where they were put, across the edges of blocks, and stay where they are.
    #[test]
    fn rows_stay_where_they_are() {
        let mut rows = BlockVec::default();
        assert_eq!(rows.len(), 0);
        let many = 3 * ROWS_PER_BLOCK + 7;
        let mut first_of_second = core::ptr::null();
        for at in 0..many {
            assert!(rows.get_mut(at).is_none());
            rows.push(at);
            assert_eq!(rows.len(), at + 1);
            if at == ROWS_PER_BLOCK {
                first_of_second = core::ptr::from_ref(&rows[ROWS_PER_BLOCK]);
            }
        }
        assert!(core::ptr::eq(first_of_second, &rows[ROWS_PER_BLOCK]), "nothing was moved");
        assert!(rows.iter().copied().eq(0..many));
        rows.iter_mut().for_each(|row| *row += 1);
        rows[ROWS_PER_BLOCK] = 5;
        *rows.get_mut(ROWS_PER_BLOCK - 1).expect("it is there") = 6;
        assert_eq!(
            (rows[ROWS_PER_BLOCK - 1], rows[ROWS_PER_BLOCK], rows[ROWS_PER_BLOCK + 1], rows[many - 1]),
            (6, 5, ROWS_PER_BLOCK + 2, many)
        );
    }

    /// Goal: a block that lies ready is the next one, once.
    #[test]
    fn a_block_that_lies_ready_is_taken() {
        let mut rows = BlockVec::default();
        assert!(!rows.needs_block(), "a small book stays small");
        (0..ROWS_PER_BLOCK / 4 * 3).for_each(|at| rows.push(at));
        assert!(rows.needs_block());
        let block = BlockVec::ready_block();
        let place = block.as_ptr();
        assert!(rows.keep_ready(block).is_none() && !rows.needs_block());
        assert!(rows.keep_ready(BlockVec::ready_block()).is_some(), "one is enough");
        (ROWS_PER_BLOCK / 4 * 3..2 * ROWS_PER_BLOCK + 1).for_each(|at| rows.push(at));
        assert!(core::ptr::eq(place, &rows[ROWS_PER_BLOCK]));
        assert!(rows.iter().copied().eq(0..=2 * ROWS_PER_BLOCK));
    }
}
