//! A process that the lab started: killed and waited for when its value is dropped.

use std::ops::{Deref, DerefMut};
use std::process::{Child, Command};

/// A process of the lab. See the module.
pub struct LabProcess(Child);

impl LabProcess {
    pub fn start(command: &mut Command) -> std::io::Result<Self> {
        command.spawn().map(Self)
    }

    /// Ends it as `kill -9` does, and waits until it has ended: then it writes nothing any more.
    pub fn kill_and_wait(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for LabProcess {
    fn drop(&mut self) {
        self.kill_and_wait();
    }
}

impl Deref for LabProcess {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for LabProcess {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}
