//! The guard: a second process beside `run`, for the day when `run` itself is killed or stopped.
//!
//! ```text
//!   run ──pipe──▶ guard            words: Group(pid), KillAt(moment), Done
//!    └──▶ command (own group) ◀── KILL, when the pipe closes without Done, or when the moment comes
//! ```
//!
//! The parent-death signal takes the command itself when `run` dies, but not what the command started;
//! and nothing at all happens when `run` is merely stopped (SIGSTOP, a debugger, a stuck disk) while
//! the lease runs out. The guard covers both. It sits in a process group of its own, so that what is
//! sent to the group of `run` (Ctrl-C, `kill -9 -PGID`) does not take it too.
//!
//! # Not covered
//!
//! A command that leaves its process group is out of reach. A number of a group could in theory be
//! reused in the moment between its end and our KILL; the kernel hands out numbers in a circle, so a
//! reuse takes thousands of forks within microseconds.

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

/// What is said through the pipe. Each word is shorter than a pipe's atomic write, so none is torn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardMessage {
    /// The process group to kill.
    Group(i32),
    /// When to kill it, unless a later moment is told before.
    KillAt(Time),
    /// The group is gone; so may you.
    Done,
}

/// The bytes of one word.
const GUARD_MESSAGE_BYTES: usize = 9;

impl GuardMessage {
    /// The word as bytes: a tag and a number. No allocation: the forked child says a word too.
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

/// The guard, as `run` sees it.
#[derive(Debug)]
pub struct Guard {
    process: Child,
    pipe: OwnedFd,
}

impl Guard {
    /// Starts the guard.
    pub fn start() -> anyhow::Result<Self> {
        Self::spawn().context("start the guard process beside the command")
    }

    fn spawn() -> io::Result<Self> {
        // Closed on exec, or the command would hold the pipe open and the guard would never hear of our
        // end. Never blocking: a guard that was stopped must not stop us.
        let (reader, pipe) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // Not the path of the binary: it may have been replaced since we were started.
        let process = Command::new("/proc/self/exe")
            .arg0("leasehold")
            .arg(GUARD_COMMAND)
            .process_group(0)
            .current_dir("/")
            .stdin(reader)
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self { process, pipe })
    }

    /// An end of the pipe for the child, which says its own group before it becomes the command.
    pub fn for_child(&self) -> io::Result<OwnedFd> {
        self.pipe.try_clone()
    }

    /// Says when the guard must kill the group if nothing more is heard.
    pub fn kill_at(&self, at: Time) {
        self.send(GuardMessage::KillAt(at));
    }

    /// Sends the guard home: the group is gone.
    pub fn dismiss(mut self) {
        self.send(GuardMessage::Done);
        // It ends by that word. Killed as well, because one that somebody stopped would keep us waiting;
        // waited for, so that no zombie is left and nobody holds our stderr open.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    fn send(&self, message: GuardMessage) {
        // A guard that is gone or stopped cannot be helped: the parent-death signal is still there.
        let _ = rustix::io::write(&self.pipe, &message.to_bytes());
    }
}

/// What the guard process does: listens, and kills the group when it must.
pub fn run_guard() -> anyhow::Result<u8> {
    let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)
        .context("create the timer of the guard")?;
    let mut group = None;
    loop {
        match next_event(&timer).context("listen to run")? {
            GuardEvent::Message(GuardMessage::Group(pid)) => group = u32::try_from(pid).ok().and_then(Group::led_by),
            GuardEvent::Message(GuardMessage::KillAt(at)) => {
                set_timer(&timer, at).context("set the timer of the guard")?
            }
            GuardEvent::Message(GuardMessage::Done) => return Ok(exit::DONE),
            GuardEvent::Time => {
                kill_group(group);
                output::say("the lease ran out while run was stopped: its command was killed");
                return Ok(exit::LOST);
            }
            GuardEvent::Silence => {
                kill_group(group);
                output::say("run ended without a word: its command was killed");
                return Ok(exit::LOST);
            }
        }
    }
}

fn kill_group(group: Option<Group>) {
    if let Some(group) = group {
        group.signal(Signal::KILL);
    }
}

/// What the guard waits for.
enum GuardEvent {
    Message(GuardMessage),
    /// The moment has come.
    Time,
    /// The pipe closed: `run` is dead.
    Silence,
}

fn next_event(timer: &OwnedFd) -> Result<GuardEvent, Errno> {
    let pipe = rustix::stdio::stdin();
    loop {
        // Words before the timer: one of them may move the moment, or say that all is done.
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

/// Sets the timer to a moment of the clock that counts suspend; one that has passed rings at once.
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
