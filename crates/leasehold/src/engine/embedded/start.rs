//! From a directory to a running book: recovers it, sets its clock by this machine's, and reserves the first tokens.

use std::sync::Arc;

use leasehold_core::{Book, Fact};

use super::book_clock::BookClock;
use super::commit::group::GroupCommit;
use super::journal::frame::FrameKind;
use super::journal::identity;
use super::journal::recover::recover;
use super::journal::{Damage, Journal};
use super::options::{Notice, Options};
use super::storage::Storage;

/// What [`start`] returns to its caller: the engine, or the simulator, which has no threads.
pub struct Started<A> {
    /// The recovered book.
    pub group: GroupCommit<A>,
    /// The book's clock.
    pub clock: BookClock,
    /// The journal, ready to be written to.
    pub journal: Journal,
    /// The identity of the directory.
    pub identity: String,
}

/// Recovers a directory, sets the book's clock by this machine's, and reserves the first tokens. All of it is durable
/// when this returns. `seen` gets each fact, with the sequence of its frame.
pub fn start<A>(
    storage: &Arc<dyn Storage>,
    options: &Options,
    mut random: Box<dyn FnMut() -> u64 + Send>,
    seen: impl FnMut(u64, &Fact<'_>),
) -> Result<Started<A>, Damage> {
    let mut book = Book::new(options.limits.clone(), random());
    let found = recover(storage.as_ref(), &mut book, seen)?;
    if let Some(cut) = &found.cut {
        (options.notices)(Notice::Cut { file: cut.file.clone(), offset: cut.offset, bytes: cut.bytes });
    }
    let io = |what: &str| {
        let what = what.to_owned();
        move |error| Damage::Io(what, error)
    };
    let bits = [random(), random()];
    let mut journal =
        Journal::start(storage.clone(), options.sizes, &found, random).map_err(io("make the journal ready"))?;
    // After the journal's start: it has synced the directory, so the file name of an identity that was found is
    // durable.
    let identity = match found.identity {
        Some(identity) => identity,
        None => identity::make(storage.as_ref(), bits).map_err(io("write the identity"))?,
    };
    book.skip_tokens_to(found.ceiling);
    let (clock, fresh) = BookClock::take_up(options.clock.clone(), book.clock(), book.now());
    book.resume(clock.mark(), fresh);
    journal.reserve_tokens(0).map_err(io("write the token ceiling"))?;
    let facts = book.take_tape(Vec::new());
    journal.commit(FrameKind::Facts, &facts, clock.now()).map_err(io("write the journal"))?;
    book.set_ceiling(journal.token_ceiling());
    Ok(Started { group: GroupCommit::new(book), clock, journal, identity })
}
