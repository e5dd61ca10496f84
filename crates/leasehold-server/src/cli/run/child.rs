//! Starting the command so that it cannot outlive us unseen.
//!
//! # Why there is `unsafe` here, and only here
//!
//! What must be true *before* the command's first instruction has to happen between fork and exec:
//! the parent-death signal, the word to the guard, the terminal. Rust calls that `unsafe` because a
//! forked child of a threaded process may only make plain system calls: no allocation, no locks, no
//! panic. The closure below does system calls on values made ready beforehand, and nothing else.
//! The disposition of SIGTTOU is changed through libc because rustix offers no `sigaction`.

#![allow(unsafe_code)]

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};
use tokio::process::{Child, Command};

use super::guard::GuardMessage;
use super::terminal::Terminal;

/// What the command finds in its environment; `None` takes a variable away that we may have inherited
/// from an outer `run`.
pub type Environment = [(&'static str, Option<String>); 3];

/// Starts the command in its own process group.
///
/// Call it on the main thread: the parent-death signal is tied to the *thread* that forks, and would
/// strike when a worker thread ends.
///
/// # Errors
///
/// The command could not be started. Then nothing of it runs.
pub fn start(
    command: &[OsString],
    environment: Environment,
    terminal: Option<&Terminal>,
    to_guard: OwnedFd,
) -> io::Result<Child> {
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(arguments).process_group(0);
    for (name, value) in environment {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let parent = getpid();
    let restore = terminal.map(|terminal| terminal.ignored().previous);
    let prepare = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // Had the parent died just before that call, no signal would ever come.
        if getppid() != Some(parent) {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let me = getpid();
        tell_guard(&to_guard, me)?;
        if let Some(previous) = restore {
            // The terminal first, while SIGTTOU is still ignored. A terminal that refuses is not worth
            // a command that does not start.
            let _ = Terminal::give_to(me);
            // SAFETY: sets the disposition of one signal to a value that `signal` itself returned.
            unsafe { libc::signal(libc::SIGTTOU, previous) };
        }
        Ok(())
    };
    // SAFETY: `prepare` only makes system calls: see the head of this file.
    unsafe { command.pre_exec(prepare) };
    command.spawn()
}

/// Tells the guard which group to kill, before there is anything in it to kill.
fn tell_guard(to_guard: &OwnedFd, me: Pid) -> io::Result<()> {
    let bytes = GuardMessage::Group(me.as_raw_nonzero().get()).to_bytes();
    rustix::io::write(to_guard, &bytes)?;
    Ok(())
}

/// SIGTTOU is ignored from here on, in this process; the command gets back what there was before.
#[derive(Debug)]
pub struct IgnoredTtou {
    previous: libc::sighandler_t,
}

impl IgnoredTtou {
    /// Ignores SIGTTOU from now on.
    pub fn start() -> Self {
        // SAFETY: SIG_IGN is a valid disposition, and no other code of ours handles this signal.
        Self { previous: unsafe { libc::signal(libc::SIGTTOU, libc::SIG_IGN) } }
    }
}
