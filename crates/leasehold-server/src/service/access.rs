//! Authorisation: whether a caller may do this, to these resources, now.

use leasehold::Error;

use super::pass::{Caller, Pass};
use super::{Denial, Service, Verb};

/// What the names of the box office's own leases begin with: seats and areas, and what it does by itself.
const RESERVED_NAME_PREFIXES: [&str; 2] = ["box/", "boxoffice-"];

impl Service {
    /// The one gate: may this caller do this, to these resources, now? Who may touch every name need only show those
    /// that [`Self::is_reserved`].
    ///
    /// # Errors
    ///
    /// Why not.
    pub fn authorize(&self, caller: &Caller, verb: Verb, names: &[&str]) -> Result<Pass, Denial> {
        let denied = self.keys.check(&caller.principal, verb, names);
        let denied = denied.or_else(|| self.check_reserved_names(verb, names)).or_else(|| self.check_rate(caller));
        if let Some(denial) = denied {
            self.metrics.record_denial();
            return Err(denial);
        }
        self.metrics.record_call(verb);
        Ok(Pass::new(verb))
    }

    /// Whether a lease of this name could be one of the box office's: see [`Self::authorize`].
    pub fn is_reserved(name: &str) -> bool {
        RESERVED_NAME_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    }

    /// The box office takes its leases without asking here. From anybody else they would be seats that nobody can buy,
    /// or a sweeper that never sweeps.
    fn check_reserved_names(&self, verb: Verb, names: &[&str]) -> Option<Denial> {
        let reserved = verb.takes_by_name() && names.iter().any(|name| Self::is_reserved(name));
        let [seats, chores] = RESERVED_NAME_PREFIXES;
        (reserved && self.boxoffice.get().is_some()).then(|| {
            Denial::Forbidden(format!("names that begin with {seats} or {chores} are taken by the box office alone"))
        })
    }

    fn check_rate(&self, caller: &Caller) -> Option<Denial> {
        let free = caller.principal.rate.as_ref().is_none_or(|rate| rate.try_take(self.clock.now()));
        (!free).then(|| Denial::Slow("too many requests for this key: slow down".into()))
    }

    /// Whoever shows lease ids that we do not know, again and again, is guessing.
    ///
    /// # Errors
    ///
    /// [`Denial::Slow`] when that has become too much.
    pub fn check_guessing<T>(&self, caller: &Caller, answer: &Result<T, Error>) -> Result<(), Denial> {
        let unknown = matches!(answer, Err(Error::Refused(leasehold::Refusal::NotHeld)));
        if unknown && !self.may_guess(caller) {
            return Err(Denial::Slow("too many lease ids that are not known: slow down".into()));
        }
        Ok(())
    }

    /// Whether this caller may show one more lease id that is not known.
    pub fn may_guess(&self, caller: &Caller) -> bool {
        caller.principal.guesses.try_take(self.clock.now())
    }
}
