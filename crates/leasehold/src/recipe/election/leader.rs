//! The leader: a term, what it publishes, and how it ends.

use std::fmt;
use std::ops::Deref;
use std::sync::{Mutex, PoisonError};

use crate::client::Leasehold;
use crate::error::{Error, Refusal};
use crate::lease::{FencedLease, Lost};
use crate::recipe::LeaseKind;

/// A term as leader. It renews itself; dropping it stops that, and the term lapses with its ttl.
///
/// It derefs to its lease: [`danger`](crate::Lease::danger), [`lost`](crate::Lease::lost),
/// [`cancellation`](crate::Lease::cancellation) and, where the engine promises fencing,
/// [`token`](FencedLease::token) are the lease's.
#[must_use = "a dropped leader is no longer renewed, and its term lapses"]
pub struct Leader<L = FencedLease> {
    leasehold: Leasehold,
    lease: L,
    value: Mutex<String>,
}

impl<L: LeaseKind> Leader<L> {
    pub(super) fn new(leasehold: Leasehold, lease: L) -> Self {
        let value = Mutex::new(lease.as_lease().holder().to_owned());
        Self { leasehold, lease, value }
    }

    /// Does the work of a term: `work` is dropped when the term is lost, before another can lead.
    ///
    /// The term goes on when the work is done: run more, or [`resign`](Leader::resign). At
    /// [`danger`](crate::Lease::danger) start nothing new. A dropped future stops at its next await, and a thread that
    /// it started does not stop at all: send the token along with every write.
    ///
    /// # Errors
    ///
    /// The term was lost: the work was cut off, or came to its end after that.
    ///
    /// # Examples
    ///
    /// ```
    /// # use leasehold::fence::Register;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let leasehold = leasehold::Leasehold::open(&format!("embedded:{}", dir.path().display())).await?;
    /// let plan = Register::new("nothing");
    /// let leader = leasehold.election("scheduler").campaign().await?;
    /// leader.run(async |term| plan.write(term, "at noon")).await??; // refused, if another leads by now
    /// # leader.resign().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run<T, F>(&self, work: F) -> Result<T, Lost>
    where
        F: AsyncFnOnce(&Self) -> T,
    {
        let lease = self.lease.as_lease();
        let value = tokio::select! {
            // The loss first: work that is woken after it must not take another step.
            biased;
            lost = lease.lost() => return Err(lost),
            value = work(self) => value,
        };
        // Work that did not await may have ended long after the term.
        lease.held().verdict().map_or(Ok(value), Err)
    }

    /// Publishes another value for the rest of the term.
    ///
    /// # Errors
    ///
    /// Refused with `Stale` or `NotHeld` when the term is over; [`Error::Invalid`] for a value that is too long, and
    /// from an engine that cannot change a label: resign, and campaign with the new value.
    pub async fn proclaim(&self, value: &str) -> Result<(), Error> {
        let lease = self.lease.as_lease();
        if !lease.is_live() {
            return Err(Refusal::Stale.into());
        }
        match self.leasehold.relabel(lease.lease_id(), value).await {
            Ok(()) => {
                value.clone_into(&mut self.value.lock().unwrap_or_else(PoisonError::into_inner));
                Ok(())
            }
            Err(Error::Invalid(why)) => Err(Error::Invalid(format!(
                "{why}; to publish another value where that cannot be changed, resign, and campaign with the new value"
            ))),
            Err(error) => Err(error),
        }
    }

    /// The value that was published last.
    #[must_use]
    pub fn value(&self) -> String {
        self.value.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the term at the engine: the next in line leads at once. `false`: it had been released before.
    ///
    /// # Errors
    ///
    /// As [`Lease::release`](crate::Lease::release).
    pub async fn resign(self) -> Result<bool, Error> {
        self.lease.end().await
    }

    /// The lease alone, for those who keep the term by other means.
    pub fn into_lease(self) -> L {
        self.lease
    }
}

impl<L> Deref for Leader<L> {
    type Target = L;

    fn deref(&self) -> &L {
        &self.lease
    }
}

impl<L: fmt::Debug> fmt::Debug for Leader<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leader").field("lease", &self.lease).finish_non_exhaustive()
    }
}
