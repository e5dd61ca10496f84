//! Seeds of the simulator, and how many of them. `LEASEHOLD_SEEDS` sets the size, `LEASEHOLD_SEED` runs one.

use leasehold_torture::history::HistoryCounts;
use leasehold_torture::invariant;
use leasehold_torture::sim::{self, RunSize};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")))
}

/// Goal: no seed breaks any law, and the seeds are worth something.
/// Method: run them all, check every invariant, then ask that enough happened.
#[test]
fn no_seed_breaks_a_law() {
    let (from, seeds) = match number("LEASEHOLD_SEED") {
        Some(seed) => (seed, 1),
        None => (0, number("LEASEHOLD_SEEDS").unwrap_or(2_000)),
    };
    let mut total = HistoryCounts::default();
    for seed in from..from + seeds {
        let run = sim::run(seed, RunSize::default());
        if let Err((law, why)) = invariant::check_all(&run.history) {
            panic!("seed {seed} breaks {law}: {why}");
        }
        assert!(run.history.counts.commands >= 1_000, "seed {seed} ran too few commands");
        total.add(&run.history.counts);
    }
    println!("{seeds} seeds: {total:?}");
    // An empty history passes every check: so much must have happened, per seed.
    let least = [
        ("grants", total.grants, 140),
        ("lapses", total.lapses, 20),
        ("conflicts", total.conflicts, 100),
        ("crashes", total.crashes, 2),
        ("hostile", total.hostile, 20),
        ("waits", total.waits, 50),
        ("retries", total.retries, 5),
        ("keys", total.keys, 15),
        ("keys freed", total.frees, 5),
        ("keys pushed", total.extends, 5),
        ("key thieves", total.key_thieves, 5),
        ("reads", total.reads, 20),
        ("late reads", total.late_reads, 5),
        ("news", total.news, 100),
        ("floors", total.floors, 5),
        ("relabels", total.relabels, 2),
    ];
    for (what, count, per_seed) in least {
        assert!(count >= per_seed * seeds, "only {count} {what} in {seeds} seeds");
    }
    if seeds >= 100 {
        for (what, count) in [
            ("snapshots", total.snapshots),
            ("cuts", total.cuts),
            ("boots", total.boots),
            ("disk errors", total.disk_errors),
            ("partial frees", total.partial),
            ("quota refusals", total.quotas),
        ] {
            assert!(count >= seeds / 10, "only {count} {what} in {seeds} seeds");
        }
    }
}
