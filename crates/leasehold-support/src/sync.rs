//! Locks.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, and ignores that a thread panicked while it held it. Only for data that is valid after every single
/// statement.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
