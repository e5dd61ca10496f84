//! The caller's end of an acquire that runs in a task of its own.
//!
//! # Laws
//!
//! 1. Dropping the future gives the acquire up: its task learns of it.
//! 2. A grant that came after the last poll, and that nobody will see, is ended, unless a retry may come for it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use super::Grant;
use crate::error::Error;

/// Ends leases of which nobody knows.
pub(crate) trait EndsUnseen: Send + Unpin {
    /// Begins to end it, and returns at once.
    fn end_unseen(&self, grant: Grant);
}

/// See the module.
pub(crate) struct AcquireFuture<E: EndsUnseen> {
    from: oneshot::Receiver<Result<Grant, Error>>,
    engine: &'static str,
    /// What was tried, for errors.
    attempt: String,
    /// None: a grant that nobody sees stays, because a retry may come for it.
    ends: Option<E>,
}

impl<E: EndsUnseen> AcquireFuture<E> {
    pub const fn new(
        from: oneshot::Receiver<Result<Grant, Error>>,
        engine: &'static str,
        attempt: String,
        ends: Option<E>,
    ) -> Self {
        Self { from, engine, attempt, ends }
    }
}

impl<E: EndsUnseen> Future for AcquireFuture<E> {
    type Output = Result<Grant, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.from).poll(context).map(|answer| {
            // The task always sends a result, unless its runtime was shut down.
            answer.unwrap_or_else(|_| {
                let source = "the runtime that the engine was opened on is gone".into();
                Err(Error::Indeterminate { engine: self.engine, attempt: self.attempt.clone(), source })
            })
        })
    }
}

impl<E: EndsUnseen> Drop for AcquireFuture<E> {
    fn drop(&mut self) {
        self.from.close();
        if let Ok(Ok(grant)) = self.from.try_recv()
            && let Some(ends) = &self.ends
        {
            ends.end_unseen(grant);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use super::*;
    use crate::engine::LeaseId;

    #[derive(Clone, Default)]
    struct Ended(Arc<Mutex<Vec<LeaseId>>>);

    impl EndsUnseen for Ended {
        fn end_unseen(&self, grant: Grant) {
            self.0.lock().expect("nobody panics with it").push(grant.lease_id);
        }
    }

    fn grant() -> Grant {
        Grant { lease_id: LeaseId::new("l1"), token: None, remaining: Duration::from_secs(1), renewable: None }
    }

    /// Goal: a grant that came after the last poll is ended, once; one that was seen, or that a retry may come for, is not.
    #[tokio::test]
    async fn a_grant_that_nobody_sees_is_ended() {
        for (has_request, polled, ended) in [(false, false, 1), (false, true, 0), (true, false, 0), (true, true, 0)] {
            let (seen, (to, from)) = (Ended::default(), oneshot::channel());
            let ends = (!has_request).then(|| seen.clone());
            let future = AcquireFuture::new(from, "test", "acquire a".into(), ends);
            to.send(Ok(grant())).expect("it is awaited");
            if polled {
                future.await.expect("granted");
            } else {
                drop(future);
            }
            assert_eq!(seen.0.lock().expect("nobody panics with it").len(), ended, "{has_request} {polled}");
        }
    }

    /// Goal: a caller that goes away is noticed, and a task that is gone leaves the outcome unknown.
    #[tokio::test]
    async fn both_ends_notice_that_the_other_is_gone() {
        let (to, from) = oneshot::channel();
        drop(AcquireFuture::new(from, "test", "acquire a".into(), Some(Ended::default())));
        assert!(to.is_closed());
        let (to, from) = oneshot::channel();
        drop(to);
        let answer = AcquireFuture::<Ended>::new(from, "test", "acquire a".into(), None).await;
        assert!(matches!(answer, Err(Error::Indeterminate { engine: "test", .. })), "{answer:?}");
    }
}
