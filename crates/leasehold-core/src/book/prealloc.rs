//! Memory that a book will need soon, allocated by another thread.
//!
//! The first touch of memory is slow: the system finds a page and clears it, and in a virtual machine may have to ask
//! the host for it. A book that grows fast spent an eighth of its time on that. So it says what it will need
//! ([`Book::prealloc_request`]), another thread allocates it ([`PreallocRequest::make`]), and the book uses it when it
//! grows ([`Book::add_prealloc`]). Without that the book allocates by itself, and decides the same.

use super::Book;
use super::index::IndexTable;
use super::lease::LeaseEntry;
use super::resource::ResourceEntry;
use crate::block_vec::BlockVec;

/// What the book will need soon.
#[derive(Debug)]
pub struct PreallocRequest {
    leases: bool,
    resources: bool,
    names: Option<usize>,
    tokens: Option<usize>,
}

/// Memory that was allocated and touched.
#[derive(Debug)]
pub struct Prealloc {
    leases: Option<Vec<LeaseEntry>>,
    resources: Option<Vec<ResourceEntry>>,
    names: Option<IndexTable>,
    tokens: Option<IndexTable>,
}

impl PreallocRequest {
    /// Allocates it: some megabytes are touched.
    #[must_use]
    pub fn make(&self) -> Prealloc {
        Prealloc {
            leases: self.leases.then(BlockVec::ready_block),
            resources: self.resources.then(BlockVec::ready_block),
            names: self.names.map(IndexTable::ready),
            tokens: self.tokens.map(IndexTable::ready),
        }
    }
}

impl Book {
    /// What the book will need soon and does not have.
    #[must_use]
    pub fn prealloc_request(&self) -> Option<PreallocRequest> {
        let (names, tokens) = self.state.wanted_tables();
        let (leases, resources) = (self.state.leases.needs_block(), self.state.resources.needs_block());
        let request = PreallocRequest { leases, resources, names, tokens };
        (leases || resources || names.is_some() || tokens.is_some()).then_some(request)
    }

    /// Takes the memory, and returns what it cannot use any more: drop that outside of the lock.
    #[must_use = "it may be large: drop it outside of the lock"]
    pub fn add_prealloc(&mut self, prealloc: Prealloc) -> Prealloc {
        let leases = prealloc.leases.and_then(|block| self.state.leases.keep_ready(block));
        let resources = prealloc.resources.and_then(|block| self.state.resources.keep_ready(block));
        let (names, tokens) = self.state.keep_tables(prealloc.names, prealloc.tokens);
        Prealloc { leases, resources, names, tokens }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Acquire, Command, Limits, Reply, Secret, Time, WaiterId, Want};

    /// A book with so many leases; `supplier` is called after each.
    fn grown(many: u32, mut supplier: impl FnMut(&mut Book)) -> Book {
        let mut book = Book::new(Limits::default(), 7);
        book.set_ceiling(u64::MAX);
        for number in 0..many {
            let name = format!("seat-{number}");
            let wants = [Want::exclusive(&name)];
            let acquire = Acquire::new(WaiterId(number.into()), &wants, 60_000, "ada", Secret::new([7; 16]));
            let claim = Acquire { value: Some(b"v"), ..acquire };
            let reply = book.apply(Command::Acquire(claim), Time::default());
            assert!(matches!(reply.reply, Reply::Granted(_)), "{reply:?}");
            supplier(&mut book);
        }
        book
    }

    /// Goal: a book that is supplied has what it needs before it needs it, and is the same book.
    #[test]
    fn a_supplied_book_is_the_same_book() {
        const MANY: u32 = 200_000;
        let mut orders = 0;
        let supplied = grown(MANY, |book| {
            if let Some(order) = book.prealloc_request() {
                orders += 1;
                let left = book.add_prealloc(order.make());
                assert!(left.leases.is_none() && left.resources.is_none() && left.names.is_none());
                assert!(left.tokens.is_none(), "all of it is taken");
                assert!(book.prealloc_request().is_none(), "it has what it asked for");
            }
        });
        // Blocks of leases and of resources before 65,536 and its multiples, tables from 20,480 on.
        assert!((4..=24).contains(&orders), "{orders}");
        let alone = grown(MANY, |_| ());
        assert!(grown(1000, |_| ()).prealloc_request().is_none(), "a small book stays small");
        assert_eq!(supplied.counts(), alone.counts());
        for number in (0..MANY).step_by(997) {
            let name = format!("seat-{number}");
            let seen = |book: &Book| book.inspect(&name, Time::default());
            assert_eq!(seen(&supplied), seen(&alone));
            assert!(seen(&supplied).is_some());
        }
    }
}
