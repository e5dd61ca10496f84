//! The reference register: one value, one fence, one lock around both.

use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold_core::Token;

use super::refusal::{FenceError, FenceRefusal};
use super::rule::decide;
use super::token_text::FenceToken;
use crate::lease::FencedLease;

/// How a register is called in a refusal: it has no name of its own.
const RESOURCE_NAME: &str = "the resource";

/// A value that refuses writes of stale holders.
///
/// # Laws
///
/// Those of [`super::rule`], with the write and the check under one lock.
///
/// # Examples
///
/// A holder that paused too long comes back and is refused:
///
/// ```
/// use leasehold::Token;
/// use leasehold::fence::{FenceRefusal, Register};
///
/// let seat = Register::new("free");
/// let (ada, bob) = (Token::new(1).unwrap(), Token::new(2).unwrap());
///
/// seat.write_at(ada, "ada pays").unwrap();
/// // ada pauses, her lease lapses, bob is granted the seat
/// seat.write_at(bob, "sold to bob").unwrap();
///
/// let refused = seat.write_at(ada, "sold to ada").unwrap_err();
/// assert!(matches!(refused, FenceRefusal::Stale { presented, highest, .. } if (presented, highest) == (ada, bob)));
/// assert_eq!(seat.read(), (Some(bob), "sold to bob"));
/// ```
#[derive(Debug)]
pub struct Register<T> {
    /// What the fence remembers and the value, under one lock: the check is atomic with the write.
    fenced: Mutex<(Option<FenceToken>, T)>,
}

impl<T> Register<T> {
    /// A register nobody has written yet.
    pub const fn new(value: T) -> Self {
        Self { fenced: Mutex::new((None, value)) }
    }

    /// Writes under a lease.
    ///
    /// # Errors
    ///
    /// [`FenceError::Refused`] when a later holder has written: stop, the lease is gone. [`FenceError::Invalid`] for a lease
    /// that shares a resource with others.
    ///
    /// # Examples
    ///
    /// ```
    /// use leasehold::{Leasehold, fence::Register};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("embedded:{}", dir.path().display());
    /// let leasehold = Leasehold::open(&url).await?;
    /// let seat = Register::new("free");
    ///
    /// let lease = leasehold.acquire("seat-14").fenced().await?;
    /// seat.write(&lease, "sold")?;
    /// lease.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A lease for efficiency has no token, and opens no fenced write:
    ///
    /// ```compile_fail,E0308
    /// use leasehold::{Lease, fence::Register};
    ///
    /// fn sell(seat: &Register<&str>, lease: &Lease) {
    ///     let _ = seat.write(lease, "sold"); // expected `&FencedLease`, found `&Lease`
    /// }
    /// ```
    pub fn write(&self, lease: &FencedLease, value: T) -> Result<(), FenceError> {
        Ok(self.write_shown(FenceToken::from_lease(lease)?, value)?)
    }

    /// Writes under a bare token that came from elsewhere, for example with a request. Better is
    /// [`write_shown`](Register::write_shown), which knows the mark of the lease too.
    ///
    /// # Errors
    ///
    /// As [`write_shown`](Register::write_shown).
    pub fn write_at(&self, token: Token, value: T) -> Result<(), FenceRefusal> {
        self.write_shown(FenceToken::from(token), value)
    }

    /// Writes under a token and a mark that came from elsewhere.
    ///
    /// # Errors
    ///
    /// [`FenceRefusal::Stale`] when a higher token has been seen, [`FenceRefusal::OtherLease`] when this one belongs to
    /// another lease.
    pub fn write_shown(&self, shown: FenceToken, value: T) -> Result<(), FenceRefusal> {
        let mut fenced = self.lock();
        let remember = decide(fenced.0, shown).into_result(RESOURCE_NAME)?;
        let kept = if remember { Some(shown) } else { fenced.0 };
        let old = std::mem::replace(&mut *fenced, (kept, value));
        // Foreign code (the old value's drop) runs outside the lock.
        drop(fenced);
        drop(old);
        Ok(())
    }

    /// The newest token that wrote, if any did, and the value.
    pub fn read(&self) -> (Option<Token>, T)
    where
        T: Clone,
    {
        let fenced = self.lock();
        (fenced.0.map(|kept| kept.token), fenced.1.clone())
    }

    fn lock(&self) -> MutexGuard<'_, (Option<FenceToken>, T)> {
        // The pair is replaced in one move, so a panic elsewhere cannot leave it half written.
        self.fenced.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(number: u64) -> Token {
        Token::new(number).unwrap()
    }

    /// Goal: a stale write is refused and leaves no trace.
    /// Method: write at 7, then at 6; compare the whole register.
    #[test]
    fn a_stale_token_is_refused_and_leaves_no_trace() {
        let register = Register::new(0);
        register.write_at(token(7), 70).unwrap();
        let stale = FenceRefusal::Stale { resource: RESOURCE_NAME.into(), presented: token(6), highest: token(7) };
        assert_eq!(register.write_at(token(6), 60), Err(stale));
        assert_eq!(register.read(), (Some(token(7)), 70));
    }

    /// Goal: one lease may write as often as it likes.
    /// Method: the same token twice.
    #[test]
    fn the_same_lease_may_write_again() {
        let register = Register::new(0);
        register.write_at(token(7), 1).unwrap();
        register.write_at(token(7), 2).unwrap();
        assert_eq!(register.read(), (Some(token(7)), 2));
    }

    /// Goal: the newest holder is never refused, and accepted tokens never fall.
    /// Method: every order of four tokens, each order written in turn, against the rule said in one line.
    #[test]
    fn the_newest_holder_is_never_refused() {
        for order in 0..256_u64 {
            let register = Register::new(0);
            let mut newest = 0;
            for step in 0..4 {
                let shown = 1 + (order >> (2 * step)) % 4;
                let accepted = register.write_at(token(shown), shown).is_ok();
                assert_eq!(accepted, shown >= newest, "order {order:08b}, step {step}");
                newest = newest.max(shown);
                assert_eq!(register.read(), (Some(token(newest)), newest));
            }
        }
    }

    #[test]
    fn a_refusal_names_both_tokens() {
        let register = Register::new(0);
        register.write_at(token(4), 0).unwrap();
        let refused = register.write_at(token(3), 0).unwrap_err();
        assert_eq!(refused.to_string(), "token 3 is stale: the resource has seen token 4");
    }

    /// Goal: the register obeys the table of cases that every adapter runs.
    #[tokio::test]
    async fn the_register_passes_the_table_of_cases() {
        struct Subject(Register<u32>);
        impl crate::testkit::fence_cases::FenceSubject for Subject {
            async fn write(&mut self, resource: &str, shown: Option<&str>) -> Result<(), FenceRefusal> {
                let Some(text) = shown.filter(|text| !text.is_empty()) else {
                    return Err(FenceRefusal::NoToken { resource: resource.into() });
                };
                let setting: crate::fence::FenceSetting = text.parse()?;
                self.0.write_shown(setting.pick_for(resource)?, 1)
            }
        }
        for case in crate::testkit::fence_cases::all_cases() {
            case.run("seat/14", &mut Subject(Register::new(0))).await;
        }
    }
}
