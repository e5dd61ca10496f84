//! The end of a command's output: passed on to our own stdout and stderr, and kept.
//!
//! Threads copy it, not the runtime: a reader of ours that stands still must not hold up the renewals of the lease.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_support::sync::lock;
use tokio::process::Command;
use tokio::sync::watch;

use crate::cli::target;

/// 4,000 characters, of up to four bytes each.
const KEPT_BYTES: usize = 16_000;
const READ_CHUNK_BYTES: usize = 8 * 1024;
/// How long to wait for output that is still under way when the command has ended. A process that left the group may keep
/// its output open for ever.
const MAX_WAIT_FOR_OUTPUT: Duration = Duration::from_secs(1);

/// Where the output of one command is kept.
pub struct OutputTail {
    kept: Arc<Mutex<VecDeque<u8>>>,
    /// Each copying thread has a receiver, and drops it at the end.
    copying: watch::Sender<()>,
}

impl OutputTail {
    pub fn new() -> Self {
        Self { kept: Arc::default(), copying: watch::Sender::new(()) }
    }

    /// Connects a command that is about to be started.
    ///
    /// # Errors
    ///
    /// No pipes, or no threads.
    pub fn connect(&self, command: &mut Command) -> io::Result<()> {
        let (stdout, to_stdout) = io::pipe()?;
        let (stderr, to_stderr) = io::pipe()?;
        self.start_copying(stdout, io::stdout())?;
        self.start_copying(stderr, io::stderr())?;
        command.stdin(Stdio::null()).stdout(to_stdout).stderr(to_stderr);
        Ok(())
    }

    /// The end of the output, once the command has ended.
    pub async fn kept_text(&self) -> String {
        let clock = target::system_clock();
        let give_up_at = clock.now().plus(MAX_WAIT_FOR_OUTPUT);
        tokio::select! {
            () = self.copying.closed() => {}
            () = clock.sleep_until(give_up_at) => {}
        }
        let kept: Vec<u8> = lock(&self.kept).iter().copied().collect();
        String::from_utf8_lossy(&kept).into_owned()
    }

    fn start_copying(&self, mut from: io::PipeReader, mut to: impl Write + Send + 'static) -> io::Result<()> {
        let (kept, copying) = (self.kept.clone(), self.copying.subscribe());
        let copy = move || {
            let mut chunk = [0; READ_CHUNK_BYTES];
            loop {
                let read = match from.read(&mut chunk) {
                    Ok(0) => break,
                    Ok(read) => &chunk[..read],
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(_) => break,
                };
                keep(&mut lock(&kept), read);
                // Nobody may be left to read it: that is no reason to stop the command.
                let _ = to.write_all(read).and_then(|()| to.flush());
            }
            drop(copying);
        };
        std::thread::Builder::new().name("output of the command".into()).spawn(copy).map(drop)
    }
}

fn keep(kept: &mut VecDeque<u8>, bytes: &[u8]) {
    kept.extend(bytes);
    let over = kept.len().saturating_sub(KEPT_BYTES);
    kept.drain(..over);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_kept() {
        let mut kept = VecDeque::new();
        keep(&mut kept, b"first words");
        assert_eq!(kept.len(), 11);
        keep(&mut kept, &[b'x'; KEPT_BYTES - 4]);
        keep(&mut kept, b"last");
        let kept: Vec<u8> = kept.into();
        assert!(kept.len() == KEPT_BYTES && kept.ends_with(b"xlast"));
    }
}
