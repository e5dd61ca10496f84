//! The checkers catch what they are for: each planted bug is found within a bounded number of seeds.
//!
//! Built with `--cfg planted` (see `scripts/test`); otherwise there is nothing here to run.
#![cfg(planted)]

use leasehold_core::planted::{Bug, plant};
use leasehold_torture::images::{Tally, at_rest};
use leasehold_torture::invariant;
use leasehold_torture::sim::{self, Size};

/// Which law a seed breaks, whether a checker says so or an assertion in the code under test.
fn verdict(seed: u64) -> Option<String> {
    let run = std::panic::catch_unwind(|| sim::run(seed, Size::default()));
    match run {
        Ok(run) => match invariant::check_all(&run.history) {
            Err((law, why)) => Some(format!("{law}: {why}")),
            Ok(()) => flipped(seed),
        },
        Err(_) => Some("an assertion in the code under test".into()),
    }
}

/// What only damage shows: a few flipped bits.
fn flipped(seed: u64) -> Option<String> {
    let rest = match at_rest(seed, 60) {
        Ok(rest) => rest,
        Err(why) => return Some(why),
    };
    let mut tally = Tally::default();
    rest.bits()
        .into_iter()
        .find_map(|(name, bits)| (0..bits).step_by(997).find_map(|bit| rest.flip(&name, bit, &mut tally).err()))
}

/// Goal: no checker is asleep. Method: plant one bug at a time and look for a seed that gives it away.
#[test]
fn every_planted_bug_is_caught() {
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    for bug in Bug::ALL {
        plant(bug);
        match (0..200).find_map(|seed| verdict(seed).map(|why| (seed, why))) {
            Some((seed, why)) => println!("{bug:?}: seed {seed}: {why}"),
            None => missed.push(bug),
        }
    }
    plant(Bug::None);
    assert!(missed.is_empty(), "not caught: {missed:?}");
    // And without a bug the same seeds are clean: it is the bug that was found.
    for seed in 0..100 {
        assert_eq!(verdict(seed), None, "seed {seed} without any bug");
    }
}
