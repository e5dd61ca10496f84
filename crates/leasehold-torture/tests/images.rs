//! Crash images and flipped bits. `LEASEHOLD_IMAGES` histories are stopped at every disk operation (CI looks at
//! every few), and `LEASEHOLD_FLIPS` histories have every bit flipped (CI flips every few).

use leasehold_torture::images::{ImageCounts, at_rest, crash_images};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")))
}

/// Goal: whatever a crash leaves on the disk, nothing acknowledged is lost and nothing honest is refused.
/// Method: every operation, every subset of pending writes, every byte of a torn one.
#[test]
fn every_crash_image_recovers() {
    let asked = number("LEASEHOLD_IMAGES");
    let (histories, step) = asked.map_or((12, 7), |histories| (histories, 1));
    let mut total = ImageCounts::default();
    for seed in 0..histories {
        match crash_images(seed, 60, seed % step, step) {
            Ok(counts) => total.add(&counts),
            Err(why) => panic!("{why}"),
        }
    }
    println!("{histories} histories: {total:?}");
    assert!(total.stops >= histories * 5 && total.images >= histories * 500, "too little was looked at: {total:?}");
    assert!(total.cut > 0, "no torn tail was ever seen");
}

/// Goal: a flipped bit is harmless, refused, or (in the unproven tail) cut and reported.
/// Method: flip them one by one on a disk at rest, journal, snapshot and ceiling alike.
#[test]
fn every_flipped_bit_is_exact_or_loud() {
    let asked = number("LEASEHOLD_FLIPS");
    let (histories, step) = asked.map_or((6, 41), |histories| (histories, 1));
    let mut total = ImageCounts::default();
    let mut snapshots = 0;
    for seed in 0..histories {
        let rest = at_rest(seed, 400).unwrap_or_else(|why| panic!("{why}"));
        for (name, bits) in rest.bits() {
            snapshots += u64::from(name.starts_with("snapshot"));
            for bit in ((seed as usize % step)..bits).step_by(step) {
                rest.flip(&name, bit, &mut total).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
            }
        }
        rest.tamper(if asked.is_some() { 16 } else { 509 }, &mut total)
            .unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
    println!("{histories} histories, {snapshots} snapshots: {total:?}");
    assert!(snapshots > 0, "no snapshot was ever flipped");
    assert!(total.refused > 100 && total.exact > 100, "too little was seen: {total:?}");
}
