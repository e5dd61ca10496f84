//! `bench --book`: the cost of one decision of the book, with few and with many leases held. No disk, no threads.

use hdrhistogram::Histogram;
use leasehold_core::{Acquire, Book, Command, LeaseKey, Limits, Mode, Reply, Secret, Time, WaiterId, Want};
use serde::Serialize;

use super::progress;
use leasehold_support::output::{self, Table};
use leasehold_support::time::stopwatch;

/// Pairs of acquire and release measured at each number of held leases.
const PAIRS_PER_SIZE: u64 = 200_000;

/// Median latencies with one number of held leases.
#[derive(Debug, Serialize)]
pub struct BookMeasurement {
    leases: u64,
    acquire_ns: u64,
    release_ns: u64,
    pair_ns: u64,
    renew_random_ns: u64,
}

/// Median latencies for every number of held leases.
/// `pair_ratio` is the pair latency with the most leases, divided by the one with the fewest.
#[derive(Debug, Serialize)]
pub struct BookReport {
    rows: Vec<BookMeasurement>,
    pair_ratio: f64,
}

/// A xorshift generator for resource names and for picking leases. Nothing drawn from it is a secret.
struct XorShift64(u64);

impl XorShift64 {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

fn acquire_lease(book: &mut Book, name: &str, random: &mut XorShift64, now: Time) -> anyhow::Result<LeaseKey> {
    let wants = [Want { name, mode: Mode::Exclusive }];
    let secret = Secret::new((u128::from(random.next()) << 64 | u128::from(random.next())).to_le_bytes());
    let claim = Acquire {
        waiter_id: WaiterId(0),
        wants: &wants,
        ttl_ms: 3_600_000,
        wait_ms: 0,
        max_hold_ms: None,
        delay_ms: 0,
        holder: "host-0123:4567 bench",
        request: None,
        secret,
        principal: "",
        value: None,
    };
    match book.apply(Command::Acquire(claim), now).reply {
        Reply::Granted(granted) => Ok(granted.lease),
        other => anyhow::bail!("the book answered {other:?}"),
    }
}

fn measure_size(leases: u64) -> anyhow::Result<BookMeasurement> {
    let limits = Limits { leases: 20_000_000, leases_per_principal: 20_000_000, ..Limits::default() };
    let mut random = XorShift64(88_172_645_463_325_252);
    let mut book = Book::new(limits, random.next());
    book.set_ceiling(u64::MAX);
    let mut now = Time::from_millis(1_000);
    let mut held = Vec::with_capacity(leases as usize);
    let bar = progress::count_bar(leases + PAIRS_PER_SIZE, "leases in the book");
    for at in 0..leases {
        held.push(acquire_lease(&mut book, &format!("resource-{at:015}"), &mut random, now)?);
        if at % 4096 == 0 {
            drop(book.take_tape(Vec::new()));
            bar.inc(4096);
        }
    }
    let mut times: [Histogram<u64>; 4] = std::array::from_fn(|_| Histogram::new(3).expect("three digits are valid"));
    for round in 0..PAIRS_PER_SIZE {
        now = now.plus_millis(round % 2);
        let name = format!("new-resource-{:011}", random.next() % 100_000_000_000);
        let old = held[random.next() as usize % held.len()];
        let start = stopwatch();
        let lease = acquire_lease(&mut book, &name, &mut random, now)?;
        let acquired = stopwatch();
        book.apply(Command::Release { lease }, now);
        let released = stopwatch();
        book.apply(Command::Renew { lease: old, ttl_ms: None }, now);
        let renewed = stopwatch();
        let spans = [acquired - start, released - acquired, released - start, renewed - released];
        for (histogram, span) in times.iter_mut().zip(spans) {
            histogram.saturating_record(span.as_nanos() as u64);
        }
        if round % 64 == 0 {
            drop(book.take_tape(Vec::new()));
        }
    }
    bar.finish_and_clear();
    let p50 = |at: usize| times[at].value_at_quantile(0.5);
    Ok(BookMeasurement { leases, acquire_ns: p50(0), release_ns: p50(1), pair_ns: p50(2), renew_random_ns: p50(3) })
}

/// Measures with 1,000 held leases, then with more, up to `most`.
pub fn run(most: u64) -> anyhow::Result<BookReport> {
    let mut rows = Vec::new();
    // The first result is discarded: the processor may still run at a low frequency.
    measure_size(1_000)?;
    for leases in [1_000, 100_000, 1_000_000, 10_000_000].into_iter().filter(|leases| *leases <= most) {
        rows.push(measure_size(leases)?);
    }
    let pair = |row: Option<&BookMeasurement>| row.map_or(0.0, |row| row.pair_ns as f64);
    let pair_ratio = pair(rows.last()) / pair(rows.first()).max(1.0);
    Ok(BookReport { rows, pair_ratio })
}

/// Prints the results as a table.
pub fn print(report: &BookReport) -> anyhow::Result<()> {
    let mut table = Table::new(&["LEASES", "ACQUIRE P50", "RELEASE P50", "PAIR P50", "RENEW OF ANY P50"]);
    for row in &report.rows {
        let spans = [row.acquire_ns, row.release_ns, row.pair_ns, row.renew_random_ns];
        table.row([row.leases.to_string()].into_iter().chain(spans.map(|span| format!("{span} ns"))));
    }
    table.print()?;
    output::line(format!("a pair with the most leases costs {:.2} x one with the fewest", report.pair_ratio))
}
