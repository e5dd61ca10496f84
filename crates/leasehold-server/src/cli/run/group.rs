//! The process group of the command: everything it started that did not leave the group.

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

/// A process group, by the pid of its first process.
#[derive(Clone, Copy, Debug)]
pub struct Group(Pid);

impl Group {
    /// The group that this process leads.
    pub fn led_by(pid: u32) -> Option<Self> {
        i32::try_from(pid).ok().and_then(Pid::from_raw).map(Self)
    }

    /// Signals every process of the group. A group that is gone needs no signal.
    pub fn send_signal(self, signal: Signal) {
        let _ = kill_process_group(self.0, signal);
    }

    /// Whether no process of the group runs. Call it after the leader was reaped.
    pub fn is_gone(self) -> bool {
        match test_kill_process_group(self.0) {
            Err(Errno::SRCH) => true,
            // Only zombies may be left: in a container nobody may reap them. A process forked during the check would be
            // missed, so the group is killed again.
            _ if only_zombies(self.0) => {
                self.send_signal(Signal::KILL);
                true
            }
            _ => false,
        }
    }
}

/// Whether every process of a group is a zombie, by the process table. `false` if it cannot be read.
fn only_zombies(group: Pid) -> bool {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return false;
    };
    let mut seen = false;
    for entry in entries.flatten() {
        let name = entry.file_name();
        if !name.to_str().is_some_and(|name| name.bytes().all(|b| b.is_ascii_digit())) {
            continue;
        }
        // A process that ended meanwhile has no stat file.
        let stat = std::fs::read(entry.path().join("stat")).unwrap_or_default();
        if let Some((state, of)) = state_and_group(&String::from_utf8_lossy(&stat))
            && of == group.as_raw_nonzero().get()
        {
            if !matches!(state, 'Z' | 'X') {
                return false;
            }
            seen = true;
        }
    }
    seen
}

/// State and process group from the text of `/proc/PID/stat`. The name in it is in parentheses, is
/// chosen by the process, and may itself hold parentheses and spaces.
fn state_and_group(stat: &str) -> Option<(char, i32)> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let group = fields.nth(1)?.parse().ok()?;
    Some((state, group))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_fools_nobody() {
        assert_eq!(state_and_group("7 (sh) S 1 42 42 0 -1 4194304"), Some(('S', 42)));
        assert_eq!(state_and_group("7 (a) Z 1 2 3) R 1 43 42 0"), Some(('R', 43)));
        assert_eq!(state_and_group(""), None);
        assert_eq!(state_and_group("7 (sh) S"), None);
    }

    #[test]
    fn our_own_group_is_not_gone() {
        assert!(!Group(rustix::process::getpgrp()).is_gone());
    }
}
