//! Starts the command so that it cannot outlive this process unnoticed.
//!
//! # Why there is `unsafe` here, and only here
//!
//! The parent-death signal, the message to the guard and the terminal must be set between fork and exec. Rust calls
//! that `unsafe`: the forked child of a threaded process may only make system calls (no allocation, no locks, no
//! panic). The closure below only makes system calls on values prepared before. SIGTTOU is set through libc because
//! rustix has no `sigaction`.

#![allow(unsafe_code)]

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};
use tokio::process::{Child, Command};

use super::guard::GuardMessage;
use super::output_tail::OutputTail;
use super::terminal::Terminal;

/// The credential of this process. A command gets it only if somebody asks for that.
pub const API_KEY_VARIABLE: &str = "LEASEHOLD_API_KEY";

/// Starts the command in its own process group, with this environment: `None` removes a variable that may come from an outer
/// `run`. With an `output`, what it prints is passed on and kept there, and its stdin is empty.
///
/// Call it on the main thread: the parent-death signal is tied to the *thread* that forks, and is sent when that thread
/// ends.
///
/// # Errors
///
/// The command could not be started. Then nothing of it runs.
pub fn start_command(
    command: &[OsString],
    environment: &[(&'static str, Option<String>)],
    output: Option<&OutputTail>,
    terminal: Option<&Terminal>,
    to_guard: OwnedFd,
) -> io::Result<Child> {
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(arguments);
    for (name, value) in environment {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    if let Some(output) = output {
        output.connect(&mut command)?;
    }
    spawn_guarded(command, terminal, to_guard)
}

/// Starts a prepared command in its own process group, known to the guard before it runs. As [`start_command`] otherwise.
///
/// # Errors
///
/// The command could not be started. Then nothing of it runs.
pub fn spawn_guarded(mut command: Command, terminal: Option<&Terminal>, to_guard: OwnedFd) -> io::Result<Child> {
    command.process_group(0);
    let parent = getpid();
    let restore = terminal.map(|terminal| terminal.ignored().previous);
    let prepare = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // If the parent died just before that call, no signal would ever come.
        if getppid() != Some(parent) {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let me = getpid();
        tell_guard(&to_guard, me)?;
        if let Some(previous) = restore {
            // The terminal first, while SIGTTOU is still ignored. A failure here must not stop the command from
            // starting.
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

/// Sends the guard the group to kill, before the command starts.
fn tell_guard(to_guard: &OwnedFd, me: Pid) -> io::Result<()> {
    let bytes = GuardMessage::Group(me.as_raw_nonzero().get()).to_bytes();
    rustix::io::write(to_guard, &bytes)?;
    Ok(())
}

/// Ignores SIGTTOU in this process; the command gets the old disposition.
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
