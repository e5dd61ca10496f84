//! The suite that every ledger passes (feature `testkit`).
//!
//! An author of a ledger writes a [`LedgerSubject`]: how to make a fresh ledger, and how to let time pass for it. The suite is
//! a list of [`LAWS`], each a readable test. In a test crate, [`ledger_tests!`](crate::ledger_tests) makes each of them
//! a test of its own. After every law the invariants must hold, by the rows themselves.
//!
//! # The laws, one file per part of a hold's life
//!
//! - `holds`: opened, displaced, renewed, changed, released.
//! - `sales`: paid, sold, declined, late.
//! - `staff`: events, blocks, voids, moves.
//! - `concurrency`: many requests at once: one seat, one buyer, one area, one limit.
//! - `records`: idempotency, numbers, audit, webhooks, and what is stored over a restart.

#![allow(clippy::unwrap_used, reason = "a law that is broken is a panic: this is a test, wherever it is built")]

mod case;
mod concurrency;
mod holds;
mod records;
mod sales;
mod staff;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use super::Ledger;

/// A boxed future.
pub type SuiteFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A ledger under test: what its author supplies.
pub trait LedgerSubject: Send + Sync {
    /// A ledger with nothing in it, that nobody else uses.
    fn fresh(&self) -> SuiteFuture<'_, Arc<dyn Ledger>>;

    /// Lets so many milliseconds pass for the ledgers it made: moves their clock, or sleeps.
    fn advance_time(&self, millis: u64) -> SuiteFuture<'_, ()>;

    /// The unit of time of the laws, in milliseconds: a ttl is ten units. Short where [`LedgerSubject::advance_time`]
    /// sleeps, but longer than a handful of transactions take.
    fn unit_ms(&self) -> u64;

    /// Opens once more what the last [`LedgerSubject::fresh`] ledger left behind, after it was closed.
    fn reopen(&self) -> SuiteFuture<'_, Arc<dyn Ledger>>;
}

/// One law: a test that panics when a ledger breaks it.
#[derive(Clone, Copy)]
pub struct LedgerLaw {
    /// What it says.
    pub name: &'static str,
    /// Tries it on a fresh ledger.
    pub run: for<'a> fn(&'a dyn LedgerSubject) -> SuiteFuture<'a, ()>,
}

impl fmt::Debug for LedgerLaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Law").field(&self.name).finish()
    }
}

/// Hands the names of all laws, by module, to another macro. The one list of them.
#[doc(hidden)]
#[macro_export]
macro_rules! __for_each_ledger_law {
    ($with:path $(, $subject:expr)?) => {
        $with! {
            $($subject)?;
            holds: a_hold_is_all_or_nothing, a_live_hold_is_not_displaced, a_newer_token_displaces_what_lapsed,
                an_older_token_displaces_nothing, a_displaced_hold_loses_all_its_seats, a_renewal_stops_at_the_cap,
                a_renewal_compares_tokens, only_the_key_opens, seats_are_added_and_removed, a_hold_keeps_something,
                a_replaced_lease_moves_the_token, a_release_frees_and_repeats, a_layout_that_changed_sends_back,
                lapses_shorten_the_ttl, the_sweeper_tidies_up, a_free_seat_remembers_its_token,
                live_holds_are_counted,
                payments_nobody_told_of_are_found;
            sales: a_sale_carries_its_token, a_confirm_repeats, a_lapsed_hold_is_not_sold, paying_lasts_to_its_deadline,
                a_decline_returns, another_payment_is_refused, late_money_is_written_down, late_money_buys_the_same_seats,
                late_money_yields_to_others, a_message_counts_once, money_for_other_seats_goes_back, money_steps_once,
                a_payment_is_for_one_hold, too_much_money_goes_back,
                money_for_another_hold_is_kept, a_seat_that_left_the_layout_is_not_sold,
                nobodys_word_sells_nothing, what_does_not_fit_is_stuck, what_is_authorised_is_captured_later;
            staff: what_is_frozen_is_not_held, blocks_keep_seats_back, a_forced_release_ends_the_hold,
                a_void_frees, a_void_of_some_seats, a_void_gives_back, a_move_keeps_the_order,
                a_move_settles_the_difference, rules_are_changed_by_one_at_a_time, a_layout_keeps_what_is_in_use,
                events_are_listed, a_hold_of_places_is_released_by_its_id;
            concurrency: one_seat_has_one_winner, a_buyer_never_exceeds_the_limit, an_area_is_never_oversold,
                one_hold_is_sold_once, snapshots_conserve_seats, webhooks_never_exceed_the_limit;
            records: a_retry_gets_the_stored_answer, another_body_is_refused, a_refusal_is_not_stored,
                numbers_have_no_gap, the_audit_knows_a_seat, webhooks_go_on_where_they_were,
                a_new_webhook_hears_what_comes, a_removed_webhook_stays_removed,
                all_of_it_survives_a_restart, time_never_goes_back, what_is_old_is_forgotten,
                a_closed_ledger_is_unavailable, the_engine_is_remembered;
        }
    };
}

macro_rules! list {
    (; $($module:ident: $($law:ident),+;)+) => {
        /// Every law.
        pub const LAWS: &[LedgerLaw] = &[
            $($(LedgerLaw { name: stringify!($law), run: |subject| Box::pin($module::$law(subject)) }),+),+
        ];
    };
}

__for_each_ledger_law!(list);

/// Makes each law a `#[test]` of its own. The expression makes the [`LedgerSubject`].
#[macro_export]
macro_rules! ledger_tests {
    ($subject:expr) => {
        $crate::__for_each_ledger_law!($crate::__ledger_law_tests, $subject);
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __ledger_law_tests {
    ($subject:expr; $($module:ident: $($law:ident),+;)+) => {
        $($(
            #[test]
            fn $law() {
                $crate::ledger::suite::run_alone(stringify!($law), &$subject);
            }
        )+)+
    };
}

/// Tries one law, by its name, on a runtime of its own.
///
/// # Panics
///
/// When the ledger breaks it, or there is no such law.
pub fn run_alone(name: &str, subject: &dyn LedgerSubject) {
    let law = LAWS.iter().find(|law| law.name == name).expect("a law of this name is in the list");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("the test may have a runtime").block_on((law.run)(subject));
}
