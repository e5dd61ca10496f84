//! `bench --idle N --pid PID`: the cost of idle connections, in memory of the server and in latency of busy clients.

use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;

use super::{ServerAddress, pairs};
use crate::bench::latency::{LatencySummary, ratio};
use crate::bench::pair_load::PairMeasurement;
use crate::bench::pairs_report::format_micros;
use crate::bench::progress;
use crate::bench::stop_signal::StopSignal;
use leasehold_support::exit::Failure;
use leasehold_support::output::{self, Table};

/// Clients that acquire and release, without and with the idle connections.
const BUSY_CLIENTS: usize = 8;

/// File descriptors that this process needs besides.
const SPARE_FILE_DESCRIPTORS: u64 = 128;

/// Figures of `--idle`.
#[derive(Debug, Serialize)]
pub struct IdleReport {
    url: String,
    pid: u32,
    idle: usize,
    /// Resident memory of the server process.
    resident_bytes_before: u64,
    resident_bytes_with: u64,
    resident_bytes_per_connection: f64,
    /// Pairs of the busy clients, without and with the idle connections.
    pairs_per_s_before: f64,
    pairs_per_s_with: f64,
    pair_us_before: LatencySummary,
    pair_us_with: LatencySummary,
    /// The p99 with the idle connections, divided by the p99 without.
    ratio_p99: f64,
}

/// Measures memory and busy clients, without and with `count` idle connections. Blocks the thread.
pub fn run(
    address: &ServerAddress,
    count: usize,
    pid: u32,
    time: Duration,
    stop: &StopSignal,
) -> anyhow::Result<IdleReport> {
    raise_file_limit(count)?;
    resident_bytes(pid)?;
    let measure_busy = |what: &str| -> anyhow::Result<PairMeasurement> {
        let bar = progress::time_bar(time, what);
        let measured = pairs::run(address, BUSY_CLIENTS, time, stop, &bar);
        bar.finish_and_clear();
        measured
    };
    let before = measure_busy("pairs by others, without idle connections")?;
    let resident_bytes_before = resident_bytes(pid)?;
    let idle = open_idle(address, count, stop)?;
    let resident_bytes_with = resident_bytes(pid)?;
    let with = measure_busy("pairs by others, beside idle connections")?;
    let closed = idle.iter().filter(|stream| !is_open(stream)).count();
    ensure!(closed == 0, "the server closed {closed} of {count} idle connections: nothing was measured beside them");
    let (pair_us_before, pair_us_with) = (before.pair.summary(), with.pair.summary());
    Ok(IdleReport {
        url: address.display_url.clone(),
        pid,
        idle: idle.len(),
        resident_bytes_before,
        resident_bytes_with,
        resident_bytes_per_connection: per_connection(resident_bytes_before, resident_bytes_with, idle.len()),
        pairs_per_s_before: before.pairs_per_s().round(),
        pairs_per_s_with: with.pairs_per_s().round(),
        pair_us_before,
        pair_us_with,
        ratio_p99: ratio(pair_us_with.p99, pair_us_before.p99),
    })
}

/// Opens the idle connections. Each sends one PING: a server may close a connection that never sends, and after a reply
/// the server has allocated all that it keeps for a connection.
fn open_idle(address: &ServerAddress, count: usize, stop: &StopSignal) -> anyhow::Result<Vec<TcpStream>> {
    let bar = progress::count_bar(count as u64, "idle connections");
    let mut idle = Vec::with_capacity(count);
    for number in 0..count {
        if stop.is_requested() {
            break;
        }
        let attempt = || format!("open idle connection {} of {count}", number + 1);
        let mut stream = address.connect().with_context(attempt)?;
        let reply = address.request(&mut stream, &["PING"]).with_context(attempt)?;
        ensure!(reply == "+PONG", "the server answered PING with {reply:?}");
        stream.set_nonblocking(true).context("make a socket that does not block")?;
        idle.push(stream);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(idle)
}

/// Whether the server still has the connection open: there is nothing to read, not even end of file.
fn is_open(stream: &TcpStream) -> bool {
    stream.peek(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

/// Raises this process's limit of open files.
fn raise_file_limit(count: usize) -> anyhow::Result<()> {
    let wanted = count as u64 + SPARE_FILE_DESCRIPTORS;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    let maximum = maximum.map(|maximum| maximum.max(wanted));
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).map_err(|_| {
        Failure::usage(format!(
            "this process may not open {wanted} files: say ulimit -n {wanted}, or fewer with --idle"
        ))
    })
}

/// Resident memory of a process. `smaps_rollup` is exact. `status` lags by some pages per thread.
fn resident_bytes(pid: u32) -> anyhow::Result<u64> {
    let proc = PathBuf::from("/proc").join(pid.to_string());
    let read = |file: &str, field: &str| parse_kib_field(&std::fs::read_to_string(proc.join(file)).ok()?, field);
    read("smaps_rollup", "Rss:")
        .or_else(|| read("status", "VmRSS:"))
        .ok_or_else(|| Failure::usage(format!("--pid {pid} is no process whose memory can be read")))
}

/// Parses a line like `Rss:   1234 kB` and returns bytes.
fn parse_kib_field(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[allow(clippy::cast_precision_loss, reason = "bytes and counts are far below 2^53")]
fn per_connection(before: u64, with: u64, count: usize) -> f64 {
    ratio(with.saturating_sub(before) as f64, count as f64)
}

/// Prints the figures as text.
pub fn print(report: &IdleReport) -> anyhow::Result<()> {
    output::line(format!("{}, process {}", report.url, report.pid))?;
    let each = report.resident_bytes_per_connection;
    output::line(format!("{} idle connections: {:.1} KiB resident each", report.idle, each / 1024.0))?;
    let mut table = Table::new(&["8 OTHERS", "PAIRS/S", "PAIR P50", "P99", "MAX"]);
    let mut row = |what: &str, per_s: f64, us: LatencySummary| {
        let latencies = [us.p50, us.p99, us.max].map(format_micros);
        table.row([what.to_owned(), format!("{per_s:.0}")].into_iter().chain(latencies));
    };
    row("without", report.pairs_per_s_before, report.pair_us_before);
    row("with", report.pairs_per_s_with, report.pair_us_with);
    table.print()?;
    output::line(format!("p99 of the others is {:.2} x what it was", report.ratio_p99))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_as_the_kernel_writes_it() {
        let rollup = "55d0-7ffd ---p 00000000 00:00 0  [rollup]\nRss:                1536 kB\nPss: 1 kB\n";
        assert_eq!(parse_kib_field(rollup, "Rss:"), Some(1536 * 1024));
        assert_eq!(parse_kib_field("VmHWM:\t 9 kB\nVmRSS:\t    8 kB\n", "VmRSS:"), Some(8192));
        assert_eq!(parse_kib_field("Rss: many kB", "Rss:"), None);
        assert!(resident_bytes(std::process::id()).unwrap() > 1 << 16);
        assert!(resident_bytes(u32::MAX).is_err());
    }

    #[test]
    fn what_is_grown_is_shared_out() {
        assert!((per_connection(1_000, 21_000, 10) - 2_000.0).abs() < 1e-9);
        assert!((per_connection(21_000, 1_000, 10) - 0.0).abs() < 1e-9);
    }
}
