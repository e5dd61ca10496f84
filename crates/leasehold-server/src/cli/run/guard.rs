//! The guard: a second process beside `run`, which kills the command if `run` is killed or stopped.
//!
//! ```text
//!   run ──pipe──▶ guard            messages: Group(pid), KillAt(moment), Done
//!    └──▶ command (own group) ◀── KILL, when the pipe closes without Done, or when the moment comes
//! ```
//!
//! The parent-death signal kills the command when `run` dies, but not the children of the command. And it does nothing
//! when `run` is only stopped (SIGSTOP, a debugger, a stuck disk) while the lease ends. The guard covers both. It has a
//! process group of its own, so that signals to the group of `run` (Ctrl-C, `kill -9 -PGID`) do not reach it.
//!
//! # Not covered
//!
//! A command that leaves its process group. A group id could be reused between its end and our KILL; the kernel assigns
//! ids in a circle, so that takes thousands of forks within microseconds.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use anyhow::Context;
use leasehold::Time;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Signal;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::group::Group;
use leasehold_support::{exit, output};

/// The hidden command that the binary starts itself with.
pub const GUARD_COMMAND: &str = "guard-of-run";

/// A message in the pipe to the guard. Each is shorter than an atomic write to a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardMessage {
    /// The process group to kill.
    Group(i32),
    /// When to kill it, unless a later message moves it.
    KillAt(Time),
    /// The group is gone: the guard ends.
    Done,
}

/// Bytes of one message.
const GUARD_MESSAGE_BYTES: usize = 9;

impl GuardMessage {
    /// The message as bytes: a tag and a number. No allocation: the forked child sends one too.
    pub fn to_bytes(self) -> [u8; GUARD_MESSAGE_BYTES] {
        let (tag, number) = match self {
            Self::Group(pid) => (b'g', u64::from(pid.cast_unsigned())),
            Self::KillAt(at) => (b'k', at.as_nanos()),
            Self::Done => (b'd', 0),
        };
        let mut bytes = [tag; GUARD_MESSAGE_BYTES];
        bytes[1..].copy_from_slice(&number.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (tag, number) = bytes.split_first()?;
        let number = u64::from_le_bytes(number.try_into().ok()?);
        match tag {
            b'g' => Some(Self::Group(u32::try_from(number).ok()?.cast_signed())),
            b'k' => Some(Self::KillAt(Time::from_nanos(number))),
            b'd' => Some(Self::Done),
            _ => None,
        }
    }
}

/// The guard process, as `run` sees it.
#[derive(Debug)]
pub struct Guard {
    process: Child,
    pipe: OwnedFd,
}

impl Guard {
    /// Starts the guard. `command`: the command of ours that it outlives, for people. `kill_at`: when it kills the group, unless
    /// it is told another time. It knows that before there is a group, or a stop of `run` in between would leave the command
    /// without an end.
    pub fn start(command: &str, kill_at: Option<Time>) -> anyhow::Result<Self> {
        let guard = Self::spawn(command).context("start the guard process beside the command")?;
        if let Some(at) = kill_at {
            guard.kill_at(at);
        }
        Ok(guard)
    }

    fn spawn(command: &str) -> io::Result<Self> {
        // Closed on exec, or the command would hold the pipe open and the guard would not notice our end. Non-blocking:
        // a stopped guard must not block `run`.
        let (reader, pipe) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // Not the path of the binary: it may have been replaced since the start.
        let process = Command::new("/proc/self/exe")
            .arg0("leasehold")
            .args([GUARD_COMMAND, command])
            .process_group(0)
            .current_dir("/")
            .stdin(reader)
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self { process, pipe })
    }

    /// A write end of the pipe for the child, which sends its own group before exec.
    pub fn for_child(&self) -> io::Result<OwnedFd> {
        self.pipe.try_clone()
    }

    /// Sets the time at which the guard kills the group.
    pub fn kill_at(&self, at: Time) {
        self.send(GuardMessage::KillAt(at));
    }

    /// Ends the guard: the group is gone.
    pub fn dismiss(mut self) {
        self.send(GuardMessage::Done);
        // The message ends it. It is also killed, because a stopped guard would block the wait; and waited for, so that
        // no zombie stays and stderr is closed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    fn send(&self, message: GuardMessage) {
        // A failure is ignored: the parent-death signal is still there.
        let _ = rustix::io::write(&self.pipe, &message.to_bytes());
    }
}

/// The main loop of the guard process. `command`: what it outlives.
pub fn run_guard(command: &str) -> anyhow::Result<u8> {
    let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)
        .context("create the timer of the guard")?;
    let mut group = None;
    let mut is_late = false;
    loop {
        match next_event(&timer).context("listen to run")? {
            GuardEvent::Message(GuardMessage::Group(pid)) => group = u32::try_from(pid).ok().and_then(Group::led_by),
            GuardEvent::Message(GuardMessage::KillAt(at)) => {
                set_timer(&timer, at).context("set the timer of the guard")?
            }
            GuardEvent::Message(GuardMessage::Done) => return Ok(exit::DONE),
            GuardEvent::Time => is_late = true,
            GuardEvent::Silence => {
                kill_group(group);
                output::say(format!("{command} ended without a word: what it ran was killed"));
                return Ok(exit::LOST);
            }
        }
        // Without a group there is nothing to kill yet: the command may be just about to start.
        if is_late && group.is_some() {
            kill_group(group);
            output::say(format!("{command} was stopped for too long: what it ran was killed"));
            return Ok(exit::LOST);
        }
    }
}

fn kill_group(group: Option<Group>) {
    if let Some(group) = group {
        group.send_signal(Signal::KILL);
    }
}

/// What wakes the guard.
enum GuardEvent {
    Message(GuardMessage),
    /// The timer fired.
    Time,
    /// The pipe closed: `run` is dead.
    Silence,
}

fn next_event(timer: &OwnedFd) -> Result<GuardEvent, Errno> {
    let pipe = rustix::stdio::stdin();
    loop {
        // The pipe is read before the timer: a message may move the time, or end the guard.
        let mut bytes = [0; GUARD_MESSAGE_BYTES];
        match rustix::io::read(pipe, &mut bytes) {
            Ok(0) => return Ok(GuardEvent::Silence),
            Ok(n) => return Ok(GuardMessage::from_bytes(&bytes[..n]).map_or(GuardEvent::Silence, GuardEvent::Message)),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        if rustix::io::read(timer, &mut [0; 8]).is_ok() {
            return Ok(GuardEvent::Time);
        }
        let mut fds = [PollFd::new(&pipe, PollFlags::IN), PollFd::new(timer, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Arms the timer on the clock that counts suspend; a time in the past fires at once.
fn set_timer(timer: &OwnedFd, at: Time) -> Result<(), Errno> {
    // Zero would disarm it.
    let nanos = at.as_nanos().max(1);
    let value = Timespec {
        tv_sec: i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: (nanos % 1_000_000_000).cast_signed(),
    };
    let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
    timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &once).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_the_pipe() {
        for message in [
            GuardMessage::Group(1),
            GuardMessage::Group(i32::MAX),
            GuardMessage::KillAt(Time::from_nanos(u64::MAX)),
            GuardMessage::Done,
        ] {
            assert_eq!(GuardMessage::from_bytes(&message.to_bytes()), Some(message));
        }
        for bytes in [&b""[..], b"d", b"x12345678", b"g\xff\xff\xff\xff\xff\xff\xff\xff"] {
            assert_eq!(GuardMessage::from_bytes(bytes), None, "{bytes:?}");
        }
    }
}
