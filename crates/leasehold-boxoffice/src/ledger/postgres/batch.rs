//! Batches: requests that wait together share one transaction.
//!
//! # Laws
//!
//! 1. Nothing is answered before the transaction that holds it is committed: refusals too, since what they rest on may
//!    be in the same batch.
//! 2. A request that others are in the way of (a deadlock, a lock that takes too long, a law it would break) takes
//!    nobody down with it: each of its batch is tried again, alone.
//! 3. One batch at a time is on its way to COMMIT, and the next begins when it has been sent: those who come meanwhile
//!    share one transaction instead of making many small ones, and the disk is never waited for idly. One that is held
//!    up, by a lock that somebody keeps or a server that does not answer, gives its turn away.
//! 4. What is tried again is tried a bounded number of times. A COMMIT whose answer is lost is not tried again.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::job::{Fate, Job};
use super::session::Sessions;
use super::shelf::Hints;
use super::trouble::Trouble;
use super::{lock, store};

/// The most requests in one transaction: bounds how long the first of them waits.
const BATCH: usize = 128;
/// How long a batch may take to get a connection, lock and load before the next one begins.
const HELD_UP: Duration = Duration::from_millis(20);
/// How often a request is tried alone.
pub(super) const TRIES: usize = 10;

/// Requests that nobody has taken yet.
pub(super) type Queue = Arc<Mutex<mpsc::UnboundedReceiver<Box<dyn Job>>>>;

/// Who has it may take requests: law 3.
pub(super) type Turn = OwnedMutexGuard<mpsc::UnboundedReceiver<Box<dyn Job>>>;

/// Takes what waits, again and again, until nobody can ask any more.
pub(super) async fn work(sessions: Arc<Sessions>, queue: Queue) {
    let mut later = JoinSet::new();
    loop {
        let mut jobs = Vec::new();
        let mut turn = queue.clone().lock_owned().await;
        if turn.recv_many(&mut jobs, BATCH).await == 0 {
            break;
        }
        for (job, hints) in together(&sessions, jobs, turn).await {
            later.spawn(alone(sessions.clone(), job, hints));
        }
        while later.try_join_next().is_some() {}
    }
    later.join_all().await;
}

/// One transaction for all of them. Answers those that are to be tried alone, with their hints.
async fn together(sessions: &Sessions, mut jobs: Vec<Box<dyn Job>>, turn: Turn) -> Vec<(Box<dyn Job>, Hints)> {
    let (fate, aside) = round(sessions, &mut jobs, &Hints::default(), Some(turn)).await;
    let again = match &fate {
        // One of many may be the cause.
        Fate::Undone(trouble) => trouble.is_answer() || matches!(trouble, Trouble::Broken { .. }),
        _ => false,
    };
    let mut aside = aside.into_iter().peekable();
    let mut later = Vec::new();
    for (at, job) in jobs.into_iter().enumerate() {
        let hints = aside.next_if(|(which, _)| *which == at).map(|(_, hints)| hints);
        match hints {
            Some(hints) => later.push((job, hints)),
            None if again => later.push((job, Hints::default())),
            None => job.answer(&fate),
        }
    }
    later
}

/// One request, again and again while others are in the way.
pub(super) async fn alone(sessions: Arc<Sessions>, job: Box<dyn Job>, mut hints: Hints) {
    let mut jobs = vec![job];
    let mut last = Fate::Undone(Trouble::Crowded(TRIES));
    for _ in 0..TRIES {
        let (fate, aside) = round(&sessions, &mut jobs, &hints, None).await;
        if let Some((_, more)) = aside.into_iter().next() {
            hints.extend(more);
            continue;
        }
        last = fate;
        match &last {
            Fate::Undone(trouble) if trouble.may_succeed_again() => {}
            _ => break,
        }
    }
    for job in jobs {
        job.answer(&last);
    }
}

/// Locks, loads, decides, stores, commits. Says what became of it, and who was set aside with which hints.
async fn round(
    sessions: &Sessions,
    jobs: &mut [Box<dyn Job>],
    hints: &Hints,
    mut turn: Option<Turn>,
) -> (Fate, Vec<(usize, Hints)>) {
    let loaded = {
        let load = async {
            let mut session = sessions.session().await.map_err(|trouble| (trouble, None))?;
            match lock::load(&mut session, jobs, hints).await {
                Ok(shelf) => Ok((session, shelf)),
                Err(trouble) => Err((trouble, Some(session))),
            }
        };
        let mut load = pin!(load);
        match timeout(HELD_UP, &mut load).await {
            Ok(loaded) => loaded,
            Err(_) => {
                turn = None;
                load.await
            }
        }
    };
    let (mut session, mut shelf) = match loaded {
        Ok(loaded) => loaded,
        Err((trouble, session)) => {
            drop(turn);
            if let Some(mut session) = session {
                session.roll_back(Some(&trouble)).await;
            }
            return (Fate::Undone(trouble), vec![]);
        }
    };
    let mut aside = Vec::new();
    for (at, job) in jobs.iter_mut().enumerate() {
        match shelf.serve(&mut **job) {
            Ok(hints) if hints.is_empty() => {}
            Ok(hints) => aside.push((at, hints)),
            Err(trouble) => {
                drop(turn);
                session.roll_back(Some(&trouble)).await;
                return (Fate::Undone(trouble), vec![]);
            }
        }
    }
    if !shelf.changes.any {
        drop(turn);
        // Refusals and stored answers rest on what was committed before.
        session.roll_back(None).await;
        return (Fate::Durable, aside);
    }
    (store::commit(&mut session, shelf.changes, shelf.now, turn).await, aside)
}
