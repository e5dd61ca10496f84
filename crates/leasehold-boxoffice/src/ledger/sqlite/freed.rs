//! The last token of each seat that was freed since the file was opened.
//!
//! A request that was overtaken between its lease and its row has an old token, and is refused by what is remembered here. No
//! such request outlives this process, and no other process can open the file: so this is kept in memory. In a row of the
//! table that stays when its seat is free, it dirtied a page for almost every seat (22.9 kB of WAL for a hold, not 12.9 kB).
//!
//! It belongs to the thread: only the writer thread loads what a decision needs, and a ledger has one. What a transaction
//! remembered stays when the transaction is rolled back. That is safe: the token was granted, so lower ones are stale.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use crate::model::EventId;

#[derive(Default)]
struct Freed {
    /// By the hash of event and seat: two that collide refuse too much, never too little, once in 2^64.
    tokens: HashMap<u64, u64>,
    hasher: RandomState,
}

thread_local! {
    static FREED: RefCell<Freed> = RefCell::default();
}

/// The last token of a seat; zero: it was not freed since the file was opened.
pub(super) fn last_token(event: &EventId, seat: &str) -> u64 {
    FREED.with_borrow(|freed| freed.tokens.get(&freed.hasher.hash_one((event.as_str(), seat))).copied().unwrap_or(0))
}

/// The seat is freed, and this was its token.
pub(super) fn remember(event: &EventId, seat: &str, token: u64) {
    FREED.with_borrow_mut(|freed| {
        let last = freed.tokens.entry(freed.hasher.hash_one((event.as_str(), seat))).or_default();
        *last = token.max(*last);
    });
}
