//! The reference register: one value, one fence, one lock around both.

use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold_core::Token;

use crate::lease::FencedLease;

/// A value that refuses writes of stale holders.
///
/// # Laws
///
/// 1. The tokens of accepted writes never fall.
/// 2. A token below the newest seen is refused, and leaves no trace.
/// 3. The newest holder is never refused, however often it writes.
///
/// # Examples
///
/// A holder that paused too long comes back and is refused:
///
/// ```
/// use leasehold::Token;
/// use leasehold::fence::{Register, Stale};
///
/// let seat = Register::new("free");
/// let (ada, bob) = (Token::new(1).unwrap(), Token::new(2).unwrap());
///
/// seat.write_at(ada, "ada pays").unwrap();
/// // ada pauses, her lease lapses, bob is granted the seat
/// seat.write_at(bob, "sold to bob").unwrap();
///
/// assert_eq!(seat.write_at(ada, "sold to ada"), Err(Stale { shown: ada, newest: bob }));
/// assert_eq!(seat.read(), (Some(bob), "sold to bob"));
/// ```
#[derive(Debug)]
pub struct Register<T> {
    /// The newest token and the value, under one lock: the check is atomic with the write.
    fenced: Mutex<(Option<Token>, T)>,
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
    /// [`Stale`] when a later holder has written: stop, the lease is gone.
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
    pub fn write(&self, lease: &FencedLease, value: T) -> Result<(), Stale> {
        self.write_at(lease.token(), value)
    }

    /// Writes under a token that came from elsewhere, for example with a request.
    ///
    /// # Errors
    ///
    /// [`Stale`] when a higher token has been seen.
    pub fn write_at(&self, token: Token, value: T) -> Result<(), Stale> {
        let mut fenced = self.lock();
        // An equal token passes: tokens never come twice, so it is the same lease writing again.
        if let Some(newest) = fenced.0.filter(|newest| token < *newest) {
            return Err(Stale { shown: token, newest });
        }
        let old = std::mem::replace(&mut *fenced, (Some(token), value));
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
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, (Option<Token>, T)> {
        // The pair is replaced in one move, so a panic elsewhere cannot leave it half written.
        self.fenced.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The write was refused: a later holder has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("token {shown} is stale: the resource has seen token {newest}")]
pub struct Stale {
    /// The token that was shown.
    pub shown: Token,
    /// The newest one the resource has seen.
    pub newest: Token,
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
        assert_eq!(register.write_at(token(6), 60), Err(Stale { shown: token(6), newest: token(7) }));
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
        let stale = Stale { shown: token(3), newest: token(4) };
        assert_eq!(stale.to_string(), "token 3 is stale: the resource has seen token 4");
    }
}
