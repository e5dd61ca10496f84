//! Memory that a book will need soon, made ready by whoever has time.
//!
//! The first touch of memory is dear: the system finds a page and clears it, and in a virtual machine may have to ask the
//! host for it. A book that grows fast spent an eighth of its time on that. So it says what it will need ([`Book::prealloc_request`]),
//! somebody else makes it ([`PreallocRequest::make`]), and the book takes it when it grows ([`Book::prealloc`]). A book that nobody
//! supplies makes all of it by itself, and decides the same.

use super::Book;
use super::index::IndexTable;
use super::lease::LeaseEntry;
use super::resource::ResourceEntry;
use crate::block_vec::BlockVec;

/// What will be needed.
#[derive(Debug)]
pub struct PreallocRequest {
    leases: bool,
    resources: bool,
    names: Option<usize>,
    tokens: Option<usize>,
}

/// What was made.
#[derive(Debug)]
pub struct Prealloc {
    leases: Option<Vec<LeaseEntry>>,
    resources: Option<Vec<ResourceEntry>>,
    names: Option<IndexTable>,
    tokens: Option<IndexTable>,
}

impl PreallocRequest {
    /// Makes it: some megabytes are touched.
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
    /// What it will need soon and does not have.
    #[must_use]
    pub fn prealloc_request(&self) -> Option<PreallocRequest> {
        let (names, tokens) = self.state.wanted_tables();
        let (leases, resources) = (self.state.leases.wants(), self.state.resources.wants());
        let request = PreallocRequest { leases, resources, names, tokens };
        (leases || resources || names.is_some() || tokens.is_some()).then_some(request)
    }

    /// Takes what was made, and gives back what it has no use for any more: drop that where nobody waits for it.
    #[must_use = "it may be large: drop it where nobody waits for that"]
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
    use crate::{Acquire, Command, Limits, Mode, Reply, Secret, Time, WaiterId, Want};

    /// A book with so many leases; whoever supplies it is asked after each.
    fn grown(many: u32, mut supplier: impl FnMut(&mut Book)) -> Book {
        let mut book = Book::new(Limits::default(), 7);
        book.set_ceiling(u64::MAX);
        for number in 0..many {
            let name = format!("seat-{number}");
            let claim = Acquire {
                waiter_id: WaiterId(number.into()),
                wants: &[Want { name: &name, mode: Mode::Exclusive }],
                ttl_ms: 60_000,
                wait_ms: 0,
                max_hold_ms: None,
                delay_ms: 0,
                holder: "ada",
                request: None,
                secret: Secret::new([7; 16]),
                principal: "",
                value: Some(b"v"),
            };
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
