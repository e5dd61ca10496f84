//! The foreground of the terminal. The command has its own process group, and only one group is in the foreground:
//! without handing it over, a command that reads from the terminal would be stopped.

use rustix::io::Errno;
use rustix::process::{Pid, getpgrp};
use rustix::stdio::stdin;
use rustix::termios::{isatty, tcgetpgrp, tcsetpgrp};

use super::child::IgnoredTtou;

/// The terminal on stdin, whose foreground was ours. Dropping this takes it back.
#[derive(Debug)]
pub struct Terminal {
    ours: Pid,
    /// From the background `tcsetpgrp` raises SIGTTOU, which would stop this process: it is ignored.
    ignored: IgnoredTtou,
}

impl Terminal {
    /// The terminal, if stdin is one and this process is in its foreground.
    pub fn in_foreground() -> Option<Self> {
        let ours = getpgrp();
        let foreground = isatty(stdin()) && tcgetpgrp(stdin()) == Ok(ours);
        foreground.then(|| Self { ours, ignored: IgnoredTtou::start() })
    }

    /// The old disposition of SIGTTOU, for the child.
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
        // A terminal that was hung up cannot be taken back.
        let _ = tcsetpgrp(stdin(), self.ours);
    }
}
