//! Wakes the event loop's thread from other threads.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// An eventfd that is written only while the event loop sleeps: otherwise a wake-up costs one atomic swap.
#[derive(Debug)]
pub struct Waker {
    fd: OwnedFd,
    /// Whether the next wake-up has to write the eventfd.
    armed: AtomicBool,
}

impl Waker {
    /// # Errors
    ///
    /// The system has no more file descriptors.
    pub fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { fd, armed: AtomicBool::new(false) })
    }

    /// Wakes the event loop if it sleeps.
    pub fn wake(&self) {
        if self.armed.swap(false, Ordering::SeqCst) {
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// The event loop is about to sleep. It must look for work after this call, and then sleep.
    pub fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }

    /// The event loop is awake.
    pub fn disarm(&self) {
        self.armed.store(false, Ordering::SeqCst);
    }

    /// Sleeps until a wake-up, at most this long (less than a second).
    pub fn wait(&self, timeout: Duration) {
        let timeout = Timespec { tv_sec: 0, tv_nsec: timeout.subsec_nanos().into() };
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        if poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready > 0) {
            self.clear();
        }
    }

    /// Resets the eventfd after a wake-up.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.fd, &mut [0; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
