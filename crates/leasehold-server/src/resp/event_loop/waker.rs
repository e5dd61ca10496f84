//! Wakes the event loop's thread from other threads.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// Wakes a pump that sleeps, and costs nothing while it does not.
#[derive(Debug)]
pub struct Waker {
    fd: OwnedFd,
    asleep: AtomicBool,
}

impl Waker {
    /// A waker for one pump.
    ///
    /// # Errors
    ///
    /// The system has no more file descriptors.
    pub fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { fd, asleep: AtomicBool::new(false) })
    }

    /// There is something to do.
    pub fn wake(&self) {
        if self.asleep.swap(false, Ordering::SeqCst) {
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// The pump is about to sleep: whatever comes from now on rings.
    pub fn arm(&self) {
        self.asleep.store(true, Ordering::SeqCst);
    }

    /// The pump is awake.
    pub fn disarm(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// Sleeps until it rings, at most this long.
    pub fn wait(&self, most: Duration) {
        let timeout = Timespec { tv_sec: 0, tv_nsec: most.subsec_nanos().into() };
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        if poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready > 0) {
            self.clear();
        }
    }

    /// The waker has rung, and was clear.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.fd, &mut [0; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
