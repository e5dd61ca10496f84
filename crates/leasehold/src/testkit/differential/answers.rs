//! What the two sides must agree on: answers to claims, and what is shown.

use std::mem::discriminant;
use std::time::Duration;

use leasehold_core::book::ResourceView;
use leasehold_core::{Granted, HeldDetails, Refusal as CoreRefusal, Reply};

use super::operations::NAMES;
use super::{ANSWER_WITHIN, BookTrial, Compared, Divergence, FuzzCallState, READ_AGAIN_EVERY};
use crate::clock::Clock as _;
use crate::engine::{Grant, Mode, Query, Resource, Token};
use crate::error::{Error, Refusal};

/// The clocks of two machines differ in rate by less than this part of a span.
const RATE_PART: u32 = 1000;

/// A queue up to this long is told exactly in refusals; what is shown of a name is always exact.
const EXACT_QUEUE: usize = 2;

/// What is compared of one name.
#[derive(Debug, PartialEq)]
struct ComparedView {
    /// Only where somebody holds it: what is shown without a holder is for people.
    mode: Option<(std::mem::Discriminant<Mode>, u32)>,
    holders: Vec<(String, Option<Token>)>,
    waiters: Vec<String>,
    queue_len: usize,
}

impl ComparedView {
    /// None: nobody has it or waits for it.
    fn new(
        mode: Mode,
        mut holders: Vec<(String, Option<Token>)>,
        waiters: Vec<String>,
        queue_len: usize,
    ) -> Option<Self> {
        if holders.is_empty() && queue_len == 0 {
            return None;
        }
        holders.sort();
        let capacity = if let Mode::Permits { capacity, .. } = mode { capacity } else { 0 };
        let mode = (!holders.is_empty()).then(|| (discriminant(&mode), capacity));
        Some(Self { mode, holders, waiters, queue_len })
    }
}

impl BookTrial {
    pub(super) fn newest_token(&self) -> Option<Token> {
        let tokens = self.calls.iter().filter_map(|call| match &call.state {
            FuzzCallState::Granted { grant, .. } => grant.token,
            _ => None,
        });
        tokens.max()
    }

    pub(super) fn is_close(&self, book: Duration, engine: Duration) -> bool {
        book.abs_diff(engine) <= self.settings.slack + book / RATE_PART
    }

    pub(super) fn are_close(&self, book: Option<Duration>, engine: Option<Duration>) -> bool {
        match (book, engine) {
            (Some(book), Some(engine)) => self.is_close(book, engine),
            (book, engine) => book == engine,
        }
    }

    /// The answers to a claim. `newest`: a new token is above it.
    pub(super) fn compare_acquired(
        &mut self,
        at: usize,
        book: &Reply,
        engine: Result<Grant, Error>,
        newest: Option<Option<Token>>,
    ) -> Compared {
        let at_once = newest.is_some();
        let is_same = match (book, &engine) {
            (Reply::Granted(granted), Ok(grant)) => {
                self.compare_grants(granted, grant, newest.flatten())?;
                self.calls[at].state = FuzzCallState::Granted { key: granted.lease, grant: grant.clone() };
                true
            }
            (Reply::Refused(CoreRefusal::Held(held)), Err(Error::Refused(refusal @ Refusal::Held { .. }))) => {
                self.counts.held += 1;
                // After a wait, a claim on several names says what was in the way of the last try.
                !at_once || self.is_same_refusal(held, refusal)
            }
            (Reply::Refused(CoreRefusal::Mismatch), Err(Error::Refused(Refusal::Mismatch)))
            | (Reply::Invalid(_), Err(Error::Invalid(_))) => true,
            _ => false,
        };
        match is_same {
            true => Ok(()),
            false => Err(self.differs(format_args!("acquire: the book says {book:?}, the engine {engine:?}"))),
        }
    }

    fn compare_grants(&mut self, book: &Granted, engine: &Grant, newest: Option<Token>) -> Compared {
        let known = self.calls.iter().find_map(|call| match &call.state {
            FuzzCallState::Granted { key, grant } if key.token == book.lease.token => Some(grant),
            _ => None,
        });
        let token_is_right = match known {
            Some(known) => known.lease_id == engine.lease_id && known.token == engine.token,
            // Those who are let in together may have their tokens in any order.
            None => !book.repeated && engine.token > newest && !self.knows_token(engine.token),
        };
        let is_over = book.remaining.is_zero();
        // Through another process what is left may be told too short, down to nothing.
        let is_short_in_fleet = self.settings.is_fleet && book.remaining <= self.settings.slack;
        let is_same = token_is_right
            && (is_over == engine.remaining.is_zero() || is_short_in_fleet)
            && self.is_close(book.remaining, engine.remaining)
            && (is_over || self.are_close(book.renewable, engine.renewable));
        if !is_same {
            return Err(
                self.differs(format_args!("a grant: the book says {book:?}, the engine {engine:?}, beside {newest:?}"))
            );
        }
        self.counts.grants += usize::from(!book.repeated);
        self.counts.repeats += usize::from(book.repeated);
        Ok(())
    }

    fn knows_token(&self, token: Option<Token>) -> bool {
        self.calls
            .iter()
            .any(|call| matches!(&call.state, FuzzCallState::Granted { grant, .. } if grant.token == token))
    }

    fn is_same_refusal(&self, book: &HeldDetails, engine: &Refusal) -> bool {
        let Refusal::Held { resource, holder, remaining, queue_len } = engine else { return false };
        // Of several holders either side may show another one.
        let spans = holder != &book.holder || self.are_close(book.remaining, *remaining);
        // Of a long queue an engine may count the queues of names below this one too.
        let queues = *queue_len == book.queue_len || (book.queue_len > EXACT_QUEUE && *queue_len > book.queue_len);
        (resource, holder.is_some()) == (&book.resource, book.holder.is_some()) && queues && spans
    }

    /// What is shown of every name, soon: who waits has asked a moment ago, and who is gone has left a moment ago.
    pub(super) async fn compare_views(&mut self) -> Compared {
        let give_up = self.clock.now().plus(ANSWER_WITHIN);
        for (name, _) in NAMES {
            loop {
                let now = self.clock.now();
                let book = self.book.inspect(name, now).and_then(|view| self.book_view(view));
                let answer = self.in_time(self.engine.inspect(name)).await?;
                let shown = answer.map_err(|error| self.differs(error))?;
                let engine = shown.and_then(engine_view);
                if book == engine {
                    break;
                }
                self.is_quick()?;
                if now > give_up {
                    let what = format!("{name}:\nthe book shows {book:?},\nthe engine     {engine:?}");
                    return Err(self.differs(what));
                }
                self.clock.sleep_until(now.plus(READ_AGAIN_EVERY)).await;
            }
        }
        Ok(())
    }

    fn book_view(&self, view: ResourceView) -> Option<ComparedView> {
        let told = |number: Token| {
            self.calls.iter().find_map(|call| match &call.state {
                FuzzCallState::Granted { key, grant } if key.token == number => grant.token,
                _ => None,
            })
        };
        let holders = view.holders.into_iter().map(|holding| (holding.holder, told(holding.token))).collect();
        let waiters = view.waiters.into_iter().map(|waiting| waiting.holder).collect();
        ComparedView::new(view.mode, holders, waiters, view.queue_len)
    }

    /// What is left of the names.
    pub(super) async fn read_list(&self) -> Result<Vec<Resource>, Divergence> {
        let query = Query { prefix: String::new(), after: None, limit: 100 };
        let answer = self.in_time(self.engine.list(query)).await?;
        answer.map_err(|error| self.differs(error))
    }
}

fn engine_view(shown: Resource) -> Option<ComparedView> {
    let holders = shown.holders.into_iter().map(|holding| (holding.holder, holding.token)).collect();
    let waiters = shown.waiters.into_iter().map(|waiting| waiting.holder).collect();
    ComparedView::new(shown.mode, holders, waiters, shown.queue_len)
}
