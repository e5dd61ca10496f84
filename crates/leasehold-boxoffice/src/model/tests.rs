//! The machine by itself: a walk of many buyers over a ledger that is nothing but maps, from one seed.

mod map_ledger;
mod money;
mod walk;

use super::decide::ttl_for;
use super::*;
use walk::walk;

/// Goal: whatever is asked in whatever order, every invariant holds after every step and the history is legal.
#[test]
fn a_random_walk_keeps_every_invariant() {
    let mut sold = 0;
    for seed in 0..80 {
        let walked = walk(seed, 400);
        assert!(walked.faults.is_empty(), "seed {seed}: {:#?}", walked.faults);
        sold += walked.sold;
    }
    assert!(sold > 200, "the walk sells: {sold}");
}

proptest::proptest! {
    /// Goal: the shortened ttl is never more than the event's, never zero, and never rises with lapses.
    #[test]
    fn a_shortened_ttl_stays_in_bounds(ttl in 1u64..100_000_000, lapses in 0u32..100, now in 0u64..10_000_000) {
        let at = |lapses| ttl_for(ttl, lapses, Moment(now), Moment(now));
        proptest::prop_assert!(at(lapses) >= 1 && at(lapses) <= ttl);
        proptest::prop_assert!(at(lapses + 1) <= at(lapses));
        proptest::prop_assert_eq!(at(decide::FREE_LAPSES), ttl);
        let forgiven = ttl_for(ttl, lapses, Moment(now), Moment(now).plus(decide::LAPSE_WINDOW_MS + 1));
        proptest::prop_assert_eq!(forgiven, ttl);
    }
}

#[test]
fn rules_that_make_no_sense_are_named() {
    let good = EventSettings::named("Gala");
    assert_eq!(good.problem(), None);
    let bad = [
        EventSettings { name: String::new(), ..good.clone() },
        EventSettings { currency: "euro".into(), ..good.clone() },
        EventSettings { ttl_ms: 0, ..good.clone() },
        EventSettings { pay_ms: u64::MAX, ..good.clone() },
        EventSettings { per_buyer: 0, ..good.clone() },
        EventSettings { max_hold_ms: 1, ..good },
    ];
    bad.iter().for_each(|settings| assert!(settings.problem().is_some(), "{settings:?}"));
}

#[test]
fn one_hold_becomes_one_order_by_its_name() {
    assert_eq!(OrderId::for_hold(&"h_12ab".into()), "o_12ab".into());
    assert_ne!(OrderId::for_hold(&"h_1".into()), OrderId::for_hold(&"h_2".into()));
}
