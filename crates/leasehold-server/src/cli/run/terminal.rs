//! Who may read the terminal. The command gets its own process group, and only one group at a time is
//! in the foreground: without handing it over, a command that asks a question would be stopped.

use rustix::io::Errno;
use rustix::process::{Pid, getpgrp};
use rustix::stdio::stdin;
use rustix::termios::{isatty, tcgetpgrp, tcsetpgrp};

use super::child::IgnoredTtou;

/// The terminal on stdin, which was ours when we came. Dropping this takes it back.
#[derive(Debug)]
pub struct Terminal {
    ours: Pid,
    /// From the background, `tcsetpgrp` is answered with SIGTTOU, which would stop us: ignored meanwhile.
    ignored: IgnoredTtou,
}

impl Terminal {
    /// The terminal, if stdin is one and we are in its foreground; else there is nothing to hand over.
    pub fn in_foreground() -> Option<Self> {
        let ours = getpgrp();
        let foreground = isatty(stdin()) && tcgetpgrp(stdin()) == Ok(ours);
        foreground.then(|| Self { ours, ignored: IgnoredTtou::start() })
    }

    /// What the child needs to undo for itself.
    pub fn ignored(&self) -> &IgnoredTtou {
        &self.ignored
    }

    /// Puts a group into the foreground.
    pub fn give_to(group: Pid) -> Result<(), Errno> {
        tcsetpgrp(stdin(), group)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A terminal that was hung up meanwhile cannot be taken back, and need not be.
        let _ = tcsetpgrp(stdin(), self.ours);
    }
}
