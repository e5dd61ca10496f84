//! Ctrl-C, TERM or HUP: ends a bench or a rehearsal early, with its results so far and cleaned up.

use std::time::Duration;

use tokio::sync::watch;

use leasehold_support::output;
use leasehold_support::signals::Signals;

/// Whether somebody asked to stop.
#[derive(Clone, Debug)]
pub struct StopSignal(watch::Receiver<bool>);

impl StopSignal {
    /// Starts listening, for something of this name. Needs a runtime.
    pub fn listen(what: &'static str) -> anyhow::Result<Self> {
        let mut signals = Signals::listen()?;
        let (ask, asked) = watch::channel(false);
        tokio::spawn(async move {
            signals.next().await;
            let _ = ask.send(true);
            output::say(format!("ending {what}; once more to leave at once, without cleaning up"));
            signals.next().await;
            // What hangs (a disk, an engine) would keep us for ever.
            std::process::exit(i32::from(super::EXIT_INTERRUPTED));
        });
        Ok(Self(asked))
    }

    /// Whether somebody asked.
    pub fn is_requested(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits this long, or until somebody asks.
    #[allow(clippy::disallowed_methods, reason = "a bench measures real time")]
    pub async fn sleep_or_stop(&self, time: Duration) {
        let mut asked = self.0.clone();
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            _ = asked.wait_for(|asked| *asked) => {}
        }
    }
}
