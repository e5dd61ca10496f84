//! The stop signal: SIGINT, SIGTERM or SIGHUP ends a bench or a rehearsal early, with clean-up and the results so far.

use std::time::Duration;

use tokio::sync::watch;

use leasehold_support::output;
use leasehold_support::signals::Signals;

/// Tells tasks and loops whether a stop was requested.
#[derive(Clone, Debug)]
pub struct StopSignal(watch::Receiver<bool>);

impl StopSignal {
    /// Spawns the task that listens for signals. `what` names the run in the message to the user. Needs a runtime.
    pub fn listen(what: &'static str) -> anyhow::Result<Self> {
        let mut signals = Signals::listen()?;
        let (ask, asked) = watch::channel(false);
        tokio::spawn(async move {
            signals.next().await;
            let _ = ask.send(true);
            output::say(format!("ending {what}; once more to leave at once, without cleaning up"));
            signals.next().await;
            // A second signal exits at once: a disk or an engine that hangs would block the clean-up forever.
            std::process::exit(i32::from(super::EXIT_INTERRUPTED));
        });
        Ok(Self(asked))
    }

    pub fn is_requested(&self) -> bool {
        *self.0.borrow()
    }

    /// Sleeps for `time`, or until a stop is requested.
    #[allow(clippy::disallowed_methods, reason = "a bench measures real time")]
    pub async fn sleep_or_stop(&self, time: Duration) {
        let mut asked = self.0.clone();
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            _ = asked.wait_for(|asked| *asked) => {}
        }
    }
}
