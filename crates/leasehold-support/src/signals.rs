//! The signals that ask us to end: TERM, INT and HUP.
//!
//! A signal that was ignored when we were started stays ignored (`nohup`, background jobs of a script):
//! catching it would undo what the caller asked for.

use std::future::Future;

use anyhow::Context;
use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

use crate::exit::Failure;

/// The signals that ask us to end, as a stream.
pub struct Signals {
    terminate: Option<unix::Signal>,
    interrupt: Option<unix::Signal>,
    hangup: Option<unix::Signal>,
}

impl Signals {
    /// Starts listening. From here on these signals no longer end the process by themselves.
    pub fn listen() -> anyhow::Result<Self> {
        let ignored = ignored();
        let listen = |signal: Signal| {
            let raw = signal.as_raw();
            let heard = ignored & (1 << (raw - 1)) == 0;
            heard.then(|| unix::signal(SignalKind::from_raw(raw))).transpose().context("listen for signals")
        };
        Ok(Self { terminate: listen(Signal::TERM)?, interrupt: listen(Signal::INT)?, hangup: listen(Signal::HUP)? })
    }

    /// The next signal. Cancelling this loses none.
    pub async fn next(&mut self) -> Signal {
        tokio::select! {
            () = heard(&mut self.terminate) => Signal::TERM,
            () = heard(&mut self.interrupt) => Signal::INT,
            () = heard(&mut self.hangup) => Signal::HUP,
        }
    }
}

async fn heard(stream: &mut Option<unix::Signal>) {
    match stream {
        // The stream ends only with the runtime, and then nobody asks any more.
        Some(stream) => drop(stream.recv().await),
        None => std::future::pending().await,
    }
}

/// What is true of an interrupted command that nobody will come back to.
pub const NOTHING_HELD: &str = "nothing is held";

/// Does the work unless a signal comes first; then the work is dropped, which gives up its wait, and the error says
/// what is left of it.
pub async fn unless_interrupted<T>(left: &str, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let mut signals = Signals::listen()?;
    tokio::select! {
        biased;
        done = work => done,
        signal = signals.next() => Err(interrupted(signal, left)),
    }
}

/// The end of a command that a signal interrupted, as shells count it.
pub fn interrupted(signal: Signal, left: &str) -> anyhow::Error {
    let code = u8::try_from(128 + signal.as_raw()).unwrap_or(u8::MAX);
    Failure::coded(code, format!("interrupted by {}, {left}", name(signal)))
}

/// The name of a signal we listen for.
pub fn name(signal: Signal) -> String {
    match signal {
        Signal::TERM => "SIGTERM".into(),
        Signal::INT => "SIGINT".into(),
        Signal::HUP => "SIGHUP".into(),
        other => format!("signal {}", other.as_raw()),
    }
}

/// The signals this process ignores, bit n-1 for signal n, as the kernel says them. None if it does not.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
