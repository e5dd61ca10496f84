//! The laws, one per file. Each reads a history and says what breaks it.
//!
//! The numbers are those of the catalogue in `docs/internals/torture.md`. Laws that only a white box can see
//! (the order of the queue, a lost wake-up) are looked at while the run goes on, by the simulator and the
//! reference model, and reported as observations under the same names.

pub mod all_or_nothing;
pub mod believed;
pub mod fence;
pub mod idempotent_retry;
pub mod never_early;
pub mod no_false_fencing;
pub mod no_ghost_grant;
pub mod no_ok_after_failure;
pub mod no_resurrection;
pub mod non_owner;
pub mod nothing_lost;
pub mod observed;
pub mod recorded;
pub mod release_once;
pub mod token_order;
pub mod token_over_restart;
pub mod token_unique;

use crate::history::History;

/// One law.
pub struct Invariant {
    /// Its file.
    pub name: &'static str,
    /// Looks for what breaks it.
    pub check: fn(&History) -> Result<(), String>,
}

/// All of them.
pub const ALL: &[Invariant] = &[
    Invariant { name: "observed", check: observed::check },
    Invariant { name: "token_unique", check: token_unique::check },
    Invariant { name: "token_order", check: token_order::check },
    Invariant { name: "token_over_restart", check: token_over_restart::check },
    Invariant { name: "recorded", check: recorded::check },
    Invariant { name: "believed", check: believed::check },
    Invariant { name: "fence", check: fence::check },
    Invariant { name: "no_false_fencing", check: no_false_fencing::check },
    Invariant { name: "nothing_lost", check: nothing_lost::check },
    Invariant { name: "all_or_nothing", check: all_or_nothing::check },
    Invariant { name: "never_early", check: never_early::check },
    Invariant { name: "no_resurrection", check: no_resurrection::check },
    Invariant { name: "non_owner", check: non_owner::check },
    Invariant { name: "release_once", check: release_once::check },
    Invariant { name: "idempotent_retry", check: idempotent_retry::check },
    Invariant { name: "no_ghost_grant", check: no_ghost_grant::check },
    Invariant { name: "no_ok_after_failure", check: no_ok_after_failure::check },
];

/// Checks all of them; the first violation, with its name.
///
/// # Errors
///
/// The name of the law and what breaks it.
pub fn check_all(history: &History) -> Result<(), (&'static str, String)> {
    ALL.iter().try_for_each(|invariant| (invariant.check)(history).map_err(|why| (invariant.name, why)))
}
