//! Logs to stderr, written by a thread of its own: a blocked stderr blocks only that thread.
//!
//! ```text
//!   tracing ──▶ bounded queue ──▶ log thread ──▶ stderr
//!                    └ full: lines are dropped and counted; the count is logged later
//! ```
//!
//! # Laws
//!
//! 1. A blocked stderr (a stopped reader, a full pipe) never delays a response, a renewal or the shutdown.
//! 2. Lines of other crates are written at info at most, whatever the level: they do not know what is secret here.
//! 3. Audit lines are written at every level.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use anyhow::Context;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{Layer, Registry};

use super::config::{Config, LogFormat, LogLevel};

/// Lines in the queue,
const MAX_QUEUED_LINES: usize = 8192;
/// and their bytes.
const MAX_QUEUED_BYTES: usize = 4 << 20;
/// Timeout for writing the last lines.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// The queue to the log thread.
#[derive(Clone)]
pub struct LogWriter {
    sender: SyncSender<LogRecord>,
    stats: Arc<LogQueueStats>,
}

#[derive(Default)]
struct LogQueueStats {
    /// Bytes in the queue.
    bytes: AtomicUsize,
    /// Dropped lines that were not reported yet.
    dropped: AtomicU64,
}

enum LogRecord {
    Line(Vec<u8>),
    /// All records before this one are written: acknowledge it.
    Mark(SyncSender<()>),
}

impl LogWriter {
    /// Starts the log thread, which writes to `out`.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    fn start_thread(out: impl Write + Send + 'static, format: LogFormat) -> io::Result<Self> {
        let (sender, receiver) = sync_channel(MAX_QUEUED_LINES);
        let stats = Arc::new(LogQueueStats::default());
        let log = Self { sender, stats: stats.clone() };
        std::thread::Builder::new()
            .name("leasehold-log".into())
            .spawn(move || write_records(out, &receiver, &stats, format))?;
        Ok(log)
    }

    /// Writes one line without level and time.
    pub fn write_line(&self, line: &str) {
        self.queue_line(format!("{line}\n").into_bytes());
    }

    fn queue_line(&self, line: Vec<u8>) {
        let bytes = line.len();
        let before = self.stats.bytes.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > MAX_QUEUED_BYTES || self.sender.try_send(LogRecord::Line(line)).is_err() {
            self.stats.bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.stats.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until the queue is written, with a timeout.
    pub fn flush(&self) {
        let (done, written) = sync_channel(1);
        if self.sender.try_send(LogRecord::Mark(done)).is_ok() {
            let _ = written.recv_timeout(FLUSH_TIMEOUT);
        }
    }
}

fn write_records(mut out: impl Write, receiver: &Receiver<LogRecord>, stats: &LogQueueStats, format: LogFormat) {
    while let Ok(record) = receiver.recv() {
        let dropped = stats.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            let _ = out.write_all(dropped_notice(dropped, format).as_bytes());
        }
        match record {
            LogRecord::Line(line) => {
                // A closed stderr cannot be reported anywhere.
                let _ = out.write_all(&line);
                stats.bytes.fetch_sub(line.len(), Ordering::Relaxed);
            }
            LogRecord::Mark(done) => drop(done.send(())),
        }
    }
}

fn dropped_notice(dropped: u64, format: LogFormat) -> String {
    let sentence = "log lines were dropped, because stderr did not take them in time";
    match format {
        LogFormat::Text => format!(" WARN leasehold::log: {dropped} {sentence}\n"),
        LogFormat::Json => format!(
            "{{\"level\":\"WARN\",\"target\":\"leasehold::log\",\"fields\":{{\"message\":\"{sentence}\",\"dropped\":{dropped}}}}}\n"
        ),
    }
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = LogLine;

    fn make_writer(&'a self) -> LogLine {
        LogLine { log: self.clone(), bytes: Vec::new() }
    }
}

/// One line being formatted; queued when dropped.
pub struct LogLine {
    log: LogWriter,
    bytes: Vec<u8>,
}

impl Write for LogLine {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for LogLine {
    fn drop(&mut self) {
        let line = std::mem::take(&mut self.bytes);
        if !line.is_empty() {
            self.log.queue_line(line);
        }
    }
}

/// Starts logging for the whole process.
///
/// # Errors
///
/// The thread cannot be started, or the collector's address is invalid.
pub fn start_logging(config: &Config) -> anyhow::Result<LogWriter> {
    // A file descriptor of our own: the log thread must not block on the lock of the standard stderr.
    let stderr = io::stderr().as_fd().try_clone_to_owned().context("take hold of stderr")?;
    let log = LogWriter::start_thread(std::fs::File::from(stderr), config.log.format).context("start the log")?;
    // A call is logged once, when it ends, with its duration.
    let lines =
        tracing_subscriber::fmt::layer().with_ansi(false).with_span_events(FmtSpan::CLOSE).with_writer(log.clone());
    let filter = level_filter(config.log.level);
    let lines: Box<dyn Layer<Registry> + Send + Sync> = match config.log.format {
        LogFormat::Text => lines.with_filter(filter).boxed(),
        LogFormat::Json => lines.json().with_filter(filter).boxed(),
    };
    let subscriber = Registry::default().with(lines);
    #[cfg(feature = "otel")]
    let subscriber = subscriber.with(super::otel::layer(config)?);
    // There is one server in a process.
    let _ = tracing::subscriber::set_global_default(subscriber);
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        // The message of a panic may contain user data: it is logged at debug only.
        let message = panic.payload_as_str().unwrap_or_default();
        tracing::error!(target: "leasehold::panic", place, "a bug: a thread stopped");
        tracing::debug!(target: "leasehold::panic", place, message);
    }));
    Ok(log)
}

fn level_filter(level: LogLevel) -> Targets {
    let ours = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    Targets::new()
        .with_default(ours.min(LevelFilter::INFO))
        .with_target("leasehold", ours)
        .with_target("leasehold::audit", LevelFilter::INFO)
}

#[cfg(test)]
mod tests {
    use std::sync::{Condvar, Mutex};

    use super::*;

    /// A stderr that takes nothing until it is let.
    #[derive(Clone, Default)]
    struct Stuck(Arc<Gate>);

    #[derive(Default)]
    struct Gate {
        /// Whether it takes anything, and what it took.
        state: Mutex<(bool, Vec<u8>)>,
        changed: Condvar,
    }

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let state = self.0.state.lock().unwrap();
            let mut state = self.0.changed.wait_while(state, |state| !state.0).unwrap();
            state.1.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Stuck {
        fn let_go(&self) {
            self.0.state.lock().unwrap().0 = true;
            self.0.changed.notify_all();
        }

        fn text(&self) -> String {
            String::from_utf8(self.0.state.lock().unwrap().1.clone()).unwrap()
        }
    }

    /// Goal: a stderr that is stuck costs lines, never time, and what was lost is told afterwards to the last line.
    #[test]
    fn a_stuck_stderr_costs_lines_and_they_are_counted() {
        for (lines, bytes) in [(3 * MAX_QUEUED_LINES, 20), (1000, 64 << 10)] {
            let stuck = Stuck::default();
            let log = LogWriter::start_thread(stuck.clone(), LogFormat::Text).unwrap();
            let line = "x".repeat(bytes);
            (0..lines).for_each(|_| log.write_line(&line));
            assert!(log.stats.bytes.load(Ordering::Relaxed) <= MAX_QUEUED_BYTES);
            stuck.let_go();
            // The channel may be full for a moment longer; the mark needs a place in it.
            while log.sender.try_send(LogRecord::Line(Vec::new())).is_err() {
                std::thread::yield_now();
            }
            let (done, written) = sync_channel(1);
            log.sender.send(LogRecord::Mark(done)).unwrap();
            written.recv_timeout(Duration::from_secs(20)).unwrap();
            let text = stuck.text();
            let kept = text.lines().filter(|text| *text == line).count();
            let told: usize = text
                .lines()
                .filter(|text| text.contains("were dropped"))
                .map(|text| text.split_whitespace().find_map(|word| word.parse::<usize>().ok()).unwrap())
                .sum();
            assert!(told > 0 && kept + told == lines, "{kept} kept and {told} told of {lines}");
        }
    }

    /// Goal: what the levels let through, by whose it is.
    #[test]
    fn other_crates_are_never_heard_below_info() {
        use tracing::Level as L;
        let heard = |level, target: &str, of: L| level_filter(level).would_enable(target, &of);
        assert!(
            heard(LogLevel::Trace, "leasehold::http", L::TRACE) && heard(LogLevel::Trace, "leasehold_core", L::TRACE)
        );
        for foreign in ["hyper::proto", "h2", "rustls::server", "reqwest"] {
            assert!(
                !heard(LogLevel::Trace, foreign, L::DEBUG) && heard(LogLevel::Trace, foreign, L::INFO),
                "{foreign}"
            );
        }
        assert!(
            heard(LogLevel::Error, "leasehold::audit", L::INFO) && !heard(LogLevel::Error, "leasehold::serve", L::WARN)
        );
    }
}
