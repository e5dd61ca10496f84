//! Every crash image and every flipped bit of a history.
//!
//! The simulator draws crashes at random; here none is left out. A short history is stopped at every disk
//! operation, and every image that the disk may then hold is recovered from. And on a disk at rest every bit
//! is flipped, files are cut, swapped, dropped and doubled: the state found is exact, or the start is refused,
//! or (after the last proven frame only) a tail is cut and the cut is reported.

use std::sync::Arc;

use leasehold::engine::embedded::journal::Damage;
use leasehold::engine::embedded::journal::ceiling::{CeilingFile, Peek};
use leasehold::engine::embedded::journal::recover::{Recovered, recover};
use leasehold::engine::embedded::storage::Storage;
use leasehold::engine::embedded::{Options, start};
use leasehold_core::Book;

use crate::disk::{Faults, SimDisk};
use crate::history::Recorded;
use crate::rng::Rng;
use crate::sim::machine::{SIZES, SealedBatch, limits};
use crate::sim::{StoppedRun, run_until};

/// How much was checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageCounts {
    /// Disk operations that a history was stopped at.
    pub stops: u64,
    /// Images recovered from, or bits and files tampered with.
    pub images: u64,
    /// Found exactly as it was.
    pub exact: u64,
    /// Refused with file and offset.
    pub refused: u64,
    /// An unproven tail was cut and reported.
    pub cut: u64,
}

impl ImageCounts {
    /// Adds another.
    pub const fn add(&mut self, other: &Self) {
        self.stops += other.stops;
        self.images += other.images;
        self.exact += other.exact;
        self.refused += other.refused;
        self.cut += other.cut;
    }
}

fn expected(log: &[SealedBatch], sequence: u64) -> u64 {
    let mut book = Book::new(limits(), 7);
    for sealed in log.iter().filter(|sealed| sealed.sequence <= sequence) {
        if book.replay(&sealed.facts, |_| {}).is_err() {
            return 0;
        }
    }
    book.digest()
}

fn recover_image(disk: &SimDisk) -> Result<(Recovered, u64), Damage> {
    let mut book = Book::new(limits(), 8);
    let found = recover(disk, &mut book, |_, _| {})?;
    Ok((found, book.digest()))
}

/// The most pending writes whose every subset is tried.
const MAX_WRITES_FOR_ALL_SUBSETS: usize = 5;

/// Stops a history at each disk operation from `from` on, `step` apart, and recovers from every image.
///
/// # Errors
///
/// The first image from which something acknowledged is lost, changed or refused.
pub fn crash_images(seed: u64, commands: u64, from: u64, step: u64) -> Result<ImageCounts, String> {
    let mut counts = ImageCounts::default();
    let mut at = from;
    loop {
        let stopped = run_until(seed, commands, Some(at));
        if !stopped.crashed {
            return Ok(counts);
        }
        counts.stops += 1;
        let choices = stopped.disk.choices();
        for dir in 0..=choices.dir {
            for kept in kept_sets(&choices.writes) {
                check_image(&stopped, dir, &kept, &mut counts)
                    .map_err(|why| format!("seed {seed}, operation {at}, {dir} names, {kept:?} bytes: {why}"))?;
            }
        }
        at += step;
    }
}

/// Every byte of every torn write with the others whole or lost, and every subset of a few.
fn kept_sets(lengths: &[usize]) -> Vec<Vec<usize>> {
    let mut sets = vec![lengths.to_vec(), vec![0; lengths.len()]];
    for (torn, length) in lengths.iter().enumerate() {
        // A write of zeros over zeros is the same at every byte.
        let stride = if *length > 4096 { length / 64 } else { 1 };
        for bytes in (0..=*length).step_by(stride) {
            let mut before = lengths.to_vec();
            before[torn] = bytes;
            before[torn + 1..].fill(0);
            let mut others_lost = vec![0; lengths.len()];
            others_lost[torn] = bytes;
            sets.push(before);
            if lengths.len() > 1 {
                sets.push(others_lost);
            }
        }
    }
    if lengths.len() <= MAX_WRITES_FOR_ALL_SUBSETS {
        for mask in 0u32..1 << lengths.len() {
            sets.push(lengths.iter().enumerate().map(|(i, n)| if mask >> i & 1 == 1 { *n } else { 0 }).collect());
        }
    }
    sets
}

fn check_image(stopped: &StoppedRun, dir: usize, kept: &[usize], counts: &mut ImageCounts) -> Result<(), String> {
    counts.images += 1;
    let disk = stopped.disk.after_crash(dir, kept);
    let (found, digest) = recover_image(&disk).map_err(|damage| format!("an honest crash is refused: {damage}"))?;
    if found.position.sequence < stopped.acked {
        return Err(format!("frame {} was answered, found up to {}", stopped.acked, found.position.sequence));
    }
    if digest != expected(&stopped.log, found.position.sequence) {
        return Err(format!("another state than the record says at frame {}", found.position.sequence));
    }
    check_ceiling(&stopped.log, &found, stopped.acked)?;
    if found.cut.is_some() {
        counts.cut += 1;
    } else {
        counts.exact += 1;
    }
    // Every few images, the start that follows is stopped at each of its own disk operations too.
    if counts.images.is_multiple_of(IMAGES_PER_START_CRASH) {
        crash_inside(stopped, &disk, found.position.sequence, counts)?;
    }
    Ok(())
}

/// How many images there are to one whose start is stopped too.
const IMAGES_PER_START_CRASH: u64 = 25;

/// Stops the start from an image at each disk operation, and recovers from what that leaves.
fn crash_inside(stopped: &StoppedRun, disk: &SimDisk, sequence: u64, counts: &mut ImageCounts) -> Result<(), String> {
    for at in 0..200 {
        let disk = disk.after_kill();
        disk.set_faults(Faults { crash_in: Some(at), ..Faults::default() });
        let storage: Arc<dyn Storage> = Arc::new(disk.clone());
        let options = Options { limits: limits(), sizes: SIZES, ..Options::default() };
        let mut epochs = Rng::new(at);
        let started = start::<u64>(&storage, &options, Box::new(move || epochs.next()), |_, _| {});
        if !disk.has_crashed() {
            return started.map(drop).map_err(|damage| format!("cannot start: {damage}"));
        }
        let choices = disk.choices();
        for (dir, kept) in [(0, vec![0; choices.writes.len()]), (choices.dir, choices.writes.clone())] {
            counts.images += 1;
            let (found, digest) = recover_image(&disk.after_crash(dir, &kept))
                .map_err(|damage| format!("refused after a crash at operation {at} of the start: {damage}"))?;
            let again = found.position.sequence;
            // The start may have got as far as its own first frame; what it found it must not lose.
            if again < stopped.acked || again > sequence + 1 {
                return Err(format!(
                    "found {again} after a crash at operation {at} of the start, before it {sequence}"
                ));
            }
            if again <= sequence && digest != expected(&stopped.log, again) {
                return Err(format!("another state after a crash at operation {at} of the start"));
            }
            check_ceiling(&stopped.log, &found, stopped.acked)?;
            counts.exact += 1;
        }
    }
    Err("a start that never ends".into())
}

/// No token that was given out to anybody comes again.
fn check_ceiling(log: &[SealedBatch], found: &Recovered, acked: u64) -> Result<(), String> {
    let given = log.iter().filter(|sealed| sealed.sequence <= acked).flat_map(|sealed| &sealed.recorded);
    let newest =
        given.map(|fact| if let Recorded::Granted { token, .. } = fact { *token } else { 0 }).max().unwrap_or(0);
    if found.ceiling < newest {
        return Err(format!("token {newest} was given out, and the ceiling is {}", found.ceiling));
    }
    Ok(())
}

/// A disk at rest, with what it must hold.
pub struct Rest {
    disk: SimDisk,
    log: Vec<SealedBatch>,
    /// Up to here something that came later proves that each frame was durable.
    proven: u64,
    /// Up to here the file beside the journal proves it.
    witnessed: u64,
    last: u64,
}

/// Runs a history to its end and lets the disk come to rest.
///
/// # Errors
///
/// If the untouched disk is not found as it was left.
pub fn at_rest(seed: u64, commands: u64) -> Result<Rest, String> {
    let stopped = run_until(seed, commands, None);
    let disk = stopped.disk.with_bytes("", Vec::new());
    let (found, digest) = recover_image(&disk).map_err(|damage| format!("seed {seed}: refused at rest: {damage}"))?;
    let last = found.position.sequence;
    if last != stopped.acked || digest != expected(&stopped.log, last) {
        return Err(format!("seed {seed}: not found as it was left"));
    }
    let witnessed = CeilingFile::peek(&disk).ok().and_then(Peek::known).map_or(0, |ceiling| ceiling.proven);
    Ok(Rest { disk, log: stopped.log, proven: found.proven, witnessed, last })
}

impl Rest {
    /// Bits that can be flipped: file, and how many.
    #[must_use]
    pub fn bits(&self) -> Vec<(String, usize)> {
        let names = self.disk.names();
        names.into_iter().map(|name| (name.clone(), self.disk.bytes(&name).len() * 8)).collect()
    }

    /// Flips one bit and recovers.
    ///
    /// # Errors
    ///
    /// If the verdict is wrong.
    pub fn flip(&self, name: &str, bit: usize, counts: &mut ImageCounts) -> Result<(), String> {
        let mut bytes = self.disk.bytes(name);
        bytes[bit / 8] ^= 1 << (bit % 8);
        self.judge(&self.disk.with_bytes(name, bytes), self.proven, false, counts)
            .map_err(|why| format!("{name} bit {bit}: {why}"))
    }

    /// Files cut at every `step` bytes, emptied, doubled, swapped.
    ///
    /// # Errors
    ///
    /// If a verdict is wrong.
    pub fn tamper(&self, step: usize, counts: &mut ImageCounts) -> Result<(), String> {
        let names = self.disk.names();
        for name in &names {
            let bytes = self.disk.bytes(name);
            for at in (0..bytes.len()).step_by(step) {
                let short = bytes[..at].to_vec();
                let mut zeroed = bytes.clone();
                zeroed[at..].fill(0);
                let mut garbage = bytes.clone();
                for (i, byte) in garbage[at..].iter_mut().enumerate() {
                    *byte = (i as u8).wrapping_mul(31) ^ 0x5a;
                }
                for (what, tampered) in [("cut", short), ("zeroed", zeroed), ("overwritten", garbage)] {
                    self.judge(&self.disk.with_bytes(name, tampered), self.witnessed, true, counts)
                        .map_err(|why| format!("{name} {what} from {at}: {why}"))?;
                }
            }
            // The ceiling file is the second proof: if it and a segment are gone at once, the loss cannot be noticed.
            for other in names.iter().filter(|other| *other > name && name != "ceiling") {
                let swapped = self.disk.with_bytes(name, self.disk.bytes(other)).with_bytes(other, bytes.clone());
                self.judge(&swapped, self.witnessed, true, counts)
                    .map_err(|why| format!("{name} and {other} swapped: {why}"))?;
                let doubled = self.disk.with_bytes(other, bytes.clone());
                self.judge(&doubled, self.witnessed, true, counts)
                    .map_err(|why| format!("{other} replaced by {name}: {why}"))?;
            }
        }
        Ok(())
    }

    /// Exact, or refused; or, after the last proven frame, cut and reported. Where a whole tail is erased, with the
    /// proof that its own frames carry, `proven` is what the file beside the journal knows, and zeros in place of
    /// a frame that nothing proves are what a crash leaves too.
    fn judge(&self, disk: &SimDisk, proven: u64, tail_erased: bool, counts: &mut ImageCounts) -> Result<(), String> {
        counts.images += 1;
        let seen = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| recover_image(disk)));
        let (found, digest) = match seen {
            Err(_) => return Err("recovery panicked".into()),
            Ok(Err(Damage::Broken { .. })) => {
                counts.refused += 1;
                return Ok(());
            }
            Ok(Err(damage)) => return Err(format!("no verdict: {damage}")),
            Ok(Ok(seen)) => seen,
        };
        let sequence = found.position.sequence;
        if sequence < proven {
            return Err(format!("frame {proven} was proven, found quietly only {sequence}"));
        }
        if digest != expected(&self.log, sequence) {
            return Err(format!("another state than the record says at frame {sequence}"));
        }
        check_ceiling(&self.log, &found, self.last)?;
        if sequence == self.last {
            counts.exact += 1;
        } else if found.cut.is_some() || tail_erased {
            counts.cut += 1;
        } else {
            return Err(format!("frames after {sequence} are gone and nothing is said"));
        }
        Ok(())
    }
}
