//! The checkers of the box office see each planted bug.

use super::walk::walk;
use crate::model::planted::{Bug, plant};

/// Goal: the checkers see. Method: each planted bug is found by some seed, by one checker or the other.
#[test]
fn every_planted_bug_is_caught() {
    for bug in Bug::ALL {
        plant(bug);
        let caught = (0..400).any(|seed| !walk(seed, 400).faults.is_empty());
        plant(Bug::None);
        assert!(caught, "{bug:?} was not caught");
    }
}

/// Goal: each attack on money and tokens is seen by the invariant that is there for it, from the rows and by `/invariants`.
/// Method: the mend of each is taken out, and some seed must show the fault under that very name.
#[test]
fn the_invariant_of_each_attack_sees_it() {
    let (money, tokens) = ("every_cent_has_a_source", "tokens_of_a_seat_rise");
    let attacks =
        [(Bug::SellUnpaid, money), (Bug::AnyPaymentBuys, money), (Bug::OfferGrows, money), (Bug::TokensGoBack, tokens)];
    for (bug, name) in attacks {
        plant(bug);
        let seen = (0..400).any(|seed| walk(seed, 400).faults.iter().any(|fault| fault.starts_with(name)));
        plant(Bug::None);
        assert!(seen, "{name} does not see {bug:?}");
    }
}
