//! Authorisation: whether a caller may do this, to these resources, now.

use leasehold::Error;

use super::pass::{Caller, Pass};
use super::{Denial, Service, Verb};

/// The prefixes of the box office's own leases: seats and areas, and its background tasks.
const RESERVED_NAME_PREFIXES: [&str; 2] = ["box/", "boxoffice-"];

impl Service {
    /// Checks roles, prefixes, reserved names and the rate of this caller, and counts the result. A caller without
    /// prefixes need only pass those names for which [`Self::is_reserved`] holds.
    ///
    /// # Errors
    ///
    /// Why the caller may not.
    pub fn authorize(&self, caller: &Caller, verb: Verb, names: &[&str]) -> Result<Pass, Denial> {
        let denied = self.keys.check_access(&caller.principal, verb, names);
        let denied = denied.or_else(|| self.check_reserved_names(verb, names)).or_else(|| self.check_rate(caller));
        if let Some(denial) = denied {
            self.metrics.record_denial();
            return Err(denial);
        }
        self.metrics.record_call(verb);
        Ok(Pass::new(verb))
    }

    /// Whether the box office takes leases with this name: see [`Self::authorize`].
    pub fn is_reserved(name: &str) -> bool {
        RESERVED_NAME_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    }

    /// The box office calls the engine without a pass. A lease of anybody else under its names would block a seat or a
    /// background task.
    fn check_reserved_names(&self, verb: Verb, names: &[&str]) -> Option<Denial> {
        let reserved = verb.takes_by_name() && names.iter().any(|name| Self::is_reserved(name));
        let [seats, tasks] = RESERVED_NAME_PREFIXES;
        (reserved && self.boxoffice.get().is_some()).then(|| {
            Denial::Forbidden(format!("names that begin with {seats} or {tasks} are taken by the box office alone"))
        })
    }

    fn check_rate(&self, caller: &Caller) -> Option<Denial> {
        let free = caller.principal.rate.as_ref().is_none_or(|rate| rate.try_take(self.clock.now()));
        (!free).then(|| Denial::Slow("too many requests for this key: slow down".into()))
    }

    /// Counts lease ids that are not known: a caller who sends many of them is guessing.
    ///
    /// # Errors
    ///
    /// [`Denial::Slow`] after too many.
    pub fn check_guessing<T>(&self, caller: &Caller, answer: &Result<T, Error>) -> Result<(), Denial> {
        let unknown = matches!(answer, Err(Error::Refused(leasehold::Refusal::NotHeld)));
        if unknown && !self.may_guess(caller) {
            return Err(Denial::Slow("too many lease ids that are not known: slow down".into()));
        }
        Ok(())
    }

    /// Whether this caller may send one more lease id that is not known.
    pub fn may_guess(&self, caller: &Caller) -> bool {
        caller.principal.guesses.try_take(self.clock.now())
    }
}
