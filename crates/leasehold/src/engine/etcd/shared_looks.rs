//! Callers who ask about the same name at the same time share a read.
//!
//! # Law
//!
//! A read answers those who asked before it was sent, and nobody else: what it says is true at a moment within each call.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot::{Receiver, Sender, channel};

/// See the module.
pub(super) struct SharedLooks<T> {
    /// Those who wait for the next read of a name. A name is in it while somebody reads.
    waiting: Mutex<HashMap<String, Vec<Sender<T>>>>,
}

impl<T> Default for SharedLooks<T> {
    fn default() -> Self {
        Self { waiting: Mutex::default() }
    }
}

impl<T: Clone> SharedLooks<T> {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Vec<Sender<T>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next read of a name. `true`: nobody reads it yet, and the caller sees to it that somebody does.
    pub fn join(&self, name: &str) -> (Receiver<T>, bool) {
        let (to, from) = channel();
        let mut waiting = self.lock();
        if let Some(callers) = waiting.get_mut(name) {
            callers.push(to);
            return (from, false);
        }
        waiting.insert(name.to_owned(), vec![to]);
        (from, true)
    }

    /// Those whom a read that is sent from now on answers. None: nobody waits, and whoever reads this name stops.
    pub fn take(&self, name: &str) -> Option<LookCallers<T>> {
        let mut waiting = self.lock();
        let callers = std::mem::take(waiting.get_mut(name)?);
        if callers.is_empty() {
            waiting.remove(name);
            return None;
        }
        Some(LookCallers(callers))
    }
}

/// Those who wait for one read.
pub(super) struct LookCallers<T>(Vec<Sender<T>>);

impl<T: Clone> LookCallers<T> {
    pub fn answer(self, found: &T) {
        for caller in self.0 {
            // One that is gone needs no answer.
            let _ = caller.send(found.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a read answers nobody who asked after it was sent, and one read answers all who asked before.
    #[tokio::test]
    async fn a_read_answers_those_who_asked_before_it() {
        let looks = SharedLooks::default();
        let (first, is_first) = looks.join("a");
        assert!(is_first);
        let sent = looks.take("a").expect("one waits");
        let (late, others) = (looks.join("a"), looks.join("a"));
        assert!(!late.1 && !others.1 && looks.join("b").1);
        drop(others.0);
        sent.answer(&1);
        assert_eq!(first.await, Ok(1));
        looks.take("a").expect("two wait").answer(&2);
        assert_eq!(late.0.await, Ok(2));
        assert!(looks.take("a").is_none());
        assert!(looks.join("a").1, "the next one reads again");
    }
}
