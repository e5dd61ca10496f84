//! The suite that every engine passes (feature `testkit`).
//!
//! An engine author writes a [`Subject`]: how to make a fresh engine, and how to let time pass for it. The
//! suite is a list of [`LAWS`], each a readable test; what an engine does not swear to in its
//! [`Promises`](crate::Promises) is not asked of it.
//!
//! ```
//! use leasehold::conformance::{self, Manual};
//! use leasehold::testkit::{CoreEngine, TickTiming};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let core = Manual::new(|clock| {
//!     let engine = CoreEngine::new(clock, Default::default(), TickTiming::Prompt);
//!     Box::pin(async move { engine as _ })
//! });
//! conformance::run_all(&core).await;
//! # }
//! ```
//!
//! In a test crate, [`conformance_tests!`](crate::conformance_tests) makes each law a test of its own.
//!
//! # The laws, one file per part of a lease's life
//!
//! - `exclusion`: one holder, and who may be beside whom (shared, permits).
//! - `ending`: release, lapse and revoke, and what is left of a lease afterwards.
//! - `time`: when a lease ends, and what renewing does.
//! - `tokens`: they rise, and they stay.
//! - `label`: the holder label can be changed.
//! - `floor`: raising the floor of tokens, and which engine it is.
//! - `several`: claims on more than one resource.
//! - `queue`: who waits, in which order, and who goes away.
//! - `request`: retries have one effect.
//! - `view`: what everybody may see, and what an operator is told.
//! - `bounds`: what is refused because of its size or shape.
//! - `keys`: names as Redis keys, where the engine has them.
//! - `watching`: what those who watch are told, where the engine can be watched.
//! - `stopping`: close, and what a durable engine knows afterwards.
//!
//! # Not here
//!
//! Crashes, lost messages and histories under load: the torture crate.

#![allow(clippy::disallowed_methods)] // external engines live in real time, and so does the limit on a law

mod bounds;
mod ending;
mod exclusion;
mod fleet;
mod floor;
mod keys;
mod label;
mod law_case;
mod manual;
mod queue;
mod real;
mod request;
mod several;
mod stopping;
mod time;
mod tokens;
mod view;
mod watching;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use crate::engine::Engine;

pub use fleet::Fleet;
pub use manual::Manual;
pub use real::Real;

/// Something to come.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A law being tried. It stays on the thread that tries it.
pub type Trial<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// An engine under test: what its author supplies.
pub trait Subject: Send + Sync {
    /// An engine on which nothing is held, and which nobody else uses.
    fn fresh(&self) -> BoxFuture<'_, Arc<dyn Engine>>;

    /// Lets this much time pass for the engines it made: moves their clock, or sleeps.
    fn pass(&self, span: Duration) -> BoxFuture<'_, ()>;

    /// The yardstick of the laws: a ttl is about ten of these. Short where [`Subject::pass`] sleeps.
    fn unit(&self) -> Duration;

    /// How far an answer or an ending may be off because of the way there and back. Zero for a clock set
    /// by hand, and well below [`Subject::unit`] for others.
    fn slack(&self) -> Duration;

    /// Opens once more what the last [`Subject::fresh`] engine left behind when it was closed. `None`
    /// where that means nothing; a law about it then passes.
    fn reopen(&self) -> BoxFuture<'_, Option<Arc<dyn Engine>>>;

    /// Whether an ending may be forgotten by the time another process asks: then its owner is told NotHeld instead of
    /// Stale. Only for a [`Fleet`] over an engine whose processes remember endings, each its own.
    fn forgets_endings(&self) -> bool {
        false
    }

    /// Whether a repeated request that still waits is joined wherever it is repeated. Not through another process, on an
    /// engine that says so.
    fn joins_requests(&self) -> bool {
        true
    }

    /// The longest ttl that the engine grants.
    fn longest_ttl(&self) -> Duration {
        Duration::from_secs(24 * 3600)
    }

    /// Another client of the last [`Subject::fresh`] engine, while the first one is open. `None` where there is one
    /// client at a time; a law about two then passes.
    fn beside(&self) -> BoxFuture<'_, Option<Arc<dyn Engine>>> {
        Box::pin(async { None })
    }
}

/// One law: a test that panics when an engine breaks it.
#[derive(Clone, Copy)]
pub struct Law {
    /// What it says.
    pub name: &'static str,
    /// Tries it on a fresh engine.
    pub run: for<'a> fn(&'a dyn Subject) -> Trial<'a>,
}

impl fmt::Debug for Law {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Law").field(&self.name).finish()
    }
}

/// Hands the names of all laws, by module, to another macro. The one list of them.
#[doc(hidden)]
#[macro_export]
macro_rules! __for_each_law {
    ($with:path $(, $subject:expr)?) => {
        $with! {
            $($subject)?;
            exclusion: exclusive_excludes, a_crowd_gets_one_holder, a_crowd_is_let_in_one_at_a_time,
                readers_share_and_a_writer_waits, permits_never_exceed_the_capacity,
                modes_exclude_each_other, another_capacity_is_invalid_while_in_use,
                the_capacity_is_forgotten_afterwards;
            ending: release_frees, a_second_release_answers_false, a_late_release_leaves_the_successor_alone,
                an_unknown_id_is_not_held, a_wrong_secret_is_not_held, revoke_ends_every_lease_and_counts,
                revoke_serves_the_line, revoke_wants_a_reason, a_delay_keeps_closed_after_a_lapse,
                a_delay_does_not_follow_a_release_or_a_revoke;
            time: a_lease_never_lapses_early, a_lease_lapses_at_its_deadline, renewing_sets_the_end,
                renewing_can_shorten, renewing_never_passes_max_hold, max_hold_cuts_the_first_ttl_too,
                renewing_never_revives;
            tokens: tokens_rise_over_every_ending, tokens_stay_through_renewals,
                one_token_for_several_resources, no_token_without_the_promise, a_lease_id_is_plain_text;
            label: a_new_label_changes_nothing_else, a_new_label_is_shown_on_every_resource,
                a_label_is_refused_as_a_renewal_is, a_new_label_is_told, a_new_label_outlives_the_engine;
            floor: a_raised_floor_holds_for_every_later_grant, a_floor_never_goes_down, a_floor_is_read_without_raising,
                a_floor_without_room_is_invalid, a_floor_outlives_the_engine, an_identity_is_one_for_all;
            several: several_are_all_or_nothing, several_are_released_together,
                a_waiting_claim_holds_nothing, opposite_orders_do_not_deadlock;
            queue: a_waiter_is_served_on_release, a_waiter_is_served_on_lapse, the_line_is_served_in_order,
                a_newcomer_does_not_overtake, patience_runs_out, a_waiter_who_leaves_is_forgotten,
                a_waiter_who_leaves_passes_the_baton, a_waiter_who_gave_up_passes_the_baton,
                a_dropped_acquire_leaves_no_lease, a_grant_nobody_saw_is_ended;
            request: a_repeat_gets_the_same_lease, a_repeat_after_the_end_has_nothing_left,
                another_body_is_a_mismatch, a_request_id_belongs_to_its_principal,
                a_refusal_is_not_stored, a_repeat_beside_a_refusal_is_no_grant, a_repeat_while_waiting_joins,
                a_joined_call_may_leave;
            view: inspect_shows_holders, inspect_shows_the_line, inspect_shows_nothing_of_the_free,
                list_is_in_order_of_names, list_goes_page_by_page, no_secret_is_ever_shown,
                a_promise_that_is_not_made_is_explained;
            bounds: a_bad_claim_is_invalid_and_takes_nothing, what_is_just_within_bounds_is_granted,
                a_bad_renewal_changes_nothing, a_name_that_cannot_be_is_invalid_to_look_at, spans_round_up_to_a_millisecond;
            stopping: a_closed_engine_is_unavailable, closing_sends_the_line_home,
                a_durable_engine_remembers, a_durable_engine_remembers_endings_and_requests,
                time_goes_on_while_an_engine_is_closed;
            keys: a_key_shows_its_value_and_excludes, a_key_is_freed_by_its_value, a_plain_lease_is_no_key,
                freeing_one_of_several_frees_that_one, keys_are_pushed_all_or_none, a_lapsed_key_is_gone,
                a_freed_key_serves_the_line, a_bad_key_is_invalid, a_durable_engine_remembers_keys;
            watching: a_watch_tells_what_happens, a_watch_goes_on_where_it_was, an_unknown_event_is_a_reset,
                what_is_answered_was_told, a_freed_key_is_told_by_its_name, a_new_life_is_a_reset;
        }
    };
}

macro_rules! list {
    (; $($module:ident: $($law:ident),+;)+) => {
        /// Every law.
        pub const LAWS: &[Law] = &[
            $($(Law { name: stringify!($law), run: |subject| Box::pin($module::$law(subject)) }),+),+
        ];
    };
}

__for_each_law!(list);

/// Makes each law a `#[test]` of its own. The expression makes the [`Subject`].
///
/// ```ignore
/// mod my_engine {
///     leasehold::conformance_tests!(super::my_subject());
/// }
/// ```
#[macro_export]
macro_rules! conformance_tests {
    ($subject:expr) => {
        $crate::__for_each_law!($crate::__law_tests, $subject);
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __law_tests {
    ($subject:expr; $($module:ident: $($law:ident),+;)+) => {
        $($(
            #[test]
            fn $law() {
                $crate::conformance::run_alone(stringify!($law), &$subject);
            }
        )+)+
    };
}

/// Tries one law, by its name, on a runtime of its own.
///
/// # Panics
///
/// When the engine breaks it, or there is no such law.
pub fn run_alone(name: &str, subject: &dyn Subject) {
    let law = LAWS.iter().find(|law| law.name == name).expect("the law is on the list");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime starts").block_on((law.run)(subject));
}

/// Tries every law, and tells all that are broken.
///
/// # Panics
///
/// With the names of the laws that the engine breaks.
pub async fn run_all(subject: &dyn Subject) {
    let mut broken = Vec::new();
    for law in LAWS {
        if let Err(why) = attempt(law, subject).await {
            broken.push(format!("{}: {why}", law.name));
        }
    }
    assert!(broken.is_empty(), "{} of {} laws are broken:\n{}", broken.len(), LAWS.len(), broken.join("\n"));
}

/// Tries the laws that are `asked` for against an engine in real time, several at once, each on a subject of its own
/// with this slack. `LEASEHOLD_LAW` names a single one.
///
/// On a busy machine an answer may be later than the slack allows. So a law that is broken is tried once more, alone and
/// with three times the slack, and counts only if it is broken again. Says on stderr how much was tried.
///
/// # Panics
///
/// With the names of the laws that the engine breaks.
#[allow(clippy::print_stderr, reason = "how much was tried is worth a line")]
pub fn run_in_real_time<S: Subject>(
    at_once: usize,
    slack: Duration,
    asked: impl Fn(&str) -> bool,
    make: impl Fn(Duration) -> S + Sync,
) {
    let only = std::env::var("LEASEHOLD_LAW").ok();
    let wanted = |law: &&Law| only.as_ref().map_or_else(|| asked(law.name), |only| only == law.name);
    let laws: Vec<&Law> = LAWS.iter().filter(wanted).collect();
    let try_law = |law: &Law, slack| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime starts").block_on(attempt(law, &make(slack)))
    };
    let (next, first) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while let Some(law) = laws.get(next.fetch_add(1, Ordering::SeqCst)) {
                    if let Err(why) = try_law(law, slack) {
                        first.lock().unwrap_or_else(PoisonError::into_inner).push((*law, why));
                    }
                }
            });
        }
    });
    let first = first.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut broken = Vec::new();
    for (law, why) in &first {
        eprintln!("{} is tried once more, because: {why}", law.name);
        if let Err(why) = try_law(law, slack * 3) {
            broken.push(format!("{}: {why}", law.name));
        }
    }
    eprintln!("{} laws tried, {} of them twice, {} broken", laws.len(), first.len(), broken.len());
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Tries one law. The error says how it was broken.
///
/// # Errors
///
/// What the law panicked with.
pub async fn attempt(law: &Law, subject: &dyn Subject) -> Result<(), String> {
    let mut trial = (law.run)(subject);
    let caught = std::future::poll_fn(|context| {
        // The trial is not polled again after it panicked.
        match catch_unwind(AssertUnwindSafe(|| trial.as_mut().poll(context))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(())) => Poll::Ready(Ok(())),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    })
    .await;
    caught.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked").to_owned()
    })
}
