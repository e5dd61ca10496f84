//! The wait task: checks waiting claims when they are due, and gives them up when their patience is over. Beside it, on a
//! connection of its own, the heartbeat: it says to the server that this process lives. Both run from the first claim that
//! waits.
//!
//! # Laws
//!
//! 1. Nothing that claims wait for keeps the heartbeat from being sent.
//! 2. A claim whose patience is over is answered, even if the lock of its name is kept: then the outcome is unknown, and
//!    the claim is banned in the background.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::Time;
use leasehold_postgres::tokio_postgres::Row;
use leasehold_postgres::tokio_postgres::types::Type;
use tokio::sync::oneshot;

use super::batch::{Verdict, to_bigint};
use super::ids::{Bits, random_bytes};
use super::listener::run_listener;
use super::shared::{PostgresShared, RETRY_FOR};
use super::sql_error::{Cause, SqlFailure};
use super::statements::Sql;
use super::wait_registry::{OverdueClaim, WaitAnswer};
use crate::clock::Clock as _;

/// How often the server hears that this process lives, and all claims are checked. It believes us for 10 s.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(3);
/// The same while no messages come, for a moment or for ever: claims wait by checks alone.
const POLL_EVERY: Duration = Duration::from_secs(1);
/// A heartbeat this old is not relied on any more.
const HEARTBEAT_FRESH: Duration = Duration::from_secs(5);
/// Claims in one check.
const MAX_CHECKED: usize = 500;

/// Whether this process can wait: its tasks run, and the server has heard of it.
#[derive(Default)]
pub(super) struct WaitService {
    /// The tasks run.
    started: tokio::sync::Mutex<bool>,
    heartbeat_at: Mutex<Option<Time>>,
    /// The listening connection is up.
    pub listening: AtomicBool,
}

impl WaitService {
    fn heartbeat_at(&self) -> MutexGuard<'_, Option<Time>> {
        self.heartbeat_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PostgresShared {
    /// Whether a claim that is sent now may wait: the server has heard of this process a moment ago. Messages are not
    /// needed: without them checks come more often.
    pub fn can_wait(&self) -> bool {
        let now = self.clock().now();
        self.service.heartbeat_at().is_some_and(|at| now.since(at) < HEARTBEAT_FRESH)
    }

    /// Makes waiting possible: messages are listened to, and the server hears of this process.
    pub async fn start_waiting(self: &Arc<Self>) -> Result<(), SqlFailure> {
        let mut started = self.service.started.lock().await;
        if *started && self.can_wait() {
            return Ok(());
        }
        if !*started {
            if self.connector.can_listen() {
                let (ready, is_ready) = oneshot::channel();
                self.spawn_background(run_listener(self.clone(), Some(ready)));
                let lost = |_| Err(SqlFailure::Away(Cause::new("the engine was closed")));
                is_ready.await.unwrap_or_else(lost)?;
            }
            self.spawn_background(run_wait_task(self.clone()));
            self.spawn_background(run_heartbeat(self.clone()));
            *started = true;
        }
        self.send_heartbeat().await
    }

    /// How often waiting claims are checked now.
    fn check_every(&self) -> Duration {
        if self.service.listening.load(Ordering::SeqCst) { HEARTBEAT_EVERY } else { POLL_EVERY }
    }

    pub(super) async fn send_heartbeat(&self) -> Result<(), SqlFailure> {
        let parameters = [(&self.process as _, Type::INT8), (&self.channel as _, Type::TEXT)];
        // It is as old as its question.
        let asked = self.clock().now();
        match self.pulse.query(Sql::Heartbeat, &parameters).await {
            // No more connections are to be had.
            Err(SqlFailure::Away(_)) => self.control.query(Sql::Heartbeat, &parameters).await?,
            answer => answer?,
        };
        *self.service.heartbeat_at() = Some(asked);
        Ok(())
    }

    /// Gives a waiting claim up, once. `cancel`: its caller went away; else its patience is over.
    pub async fn leave_queue(
        &self,
        handle: Bits,
        secret: Bits,
        fingerprint: Option<i64>,
        first: &str,
        cancel: Option<i64>,
    ) -> Result<Verdict, SqlFailure> {
        let rows = self
            .leaver
            .query_name(
                first,
                Sql::Leave,
                &[
                    (&handle, Type::UUID),
                    (&secret, Type::UUID),
                    (&fingerprint, Type::INT8),
                    (&self.process, Type::INT8),
                    (&cancel.is_some(), Type::BOOL),
                    (&cancel.unwrap_or(0), Type::INT8),
                    (&first, Type::TEXT),
                ],
            )
            .await?;
        let odd = || SqlFailure::Unknown(Cause::new("the server gave no verdict on a claim that was given up"));
        rows.first().and_then(read_leave).ok_or_else(odd)
    }
}

fn read_leave(row: &Row) -> Option<Verdict> {
    let word: i8 = row.try_get(0).ok()?;
    Some(Verdict {
        word: word.cast_unsigned(),
        token: row.try_get(1).ok()?,
        remaining: row.try_get(2).ok()?,
        renewable: row.try_get(3).ok()?,
        proof: None,
        name: row.try_get(4).ok()?,
        holder: row.try_get(5).ok()?,
        queue: row.try_get(6).ok()?,
    })
}

async fn run_wait_task(shared: Arc<PostgresShared>) {
    let clock = shared.clock().clone();
    loop {
        let moment = shared.waiting.next_moment();
        tokio::select! {
            biased;
            () = shared.stopped.cancelled() => return,
            () = shared.waiting.changed.notified() => {}
            () = clock.sleep_until(moment.unwrap_or_else(|| clock.now())), if moment.is_some() => {}
        }
        // First the check: what ends at the moment at which patience does is granted.
        let checked = check_due(&shared).await;
        leave_overdue(&shared);
        if checked.is_err() {
            shared.backoff(3).await;
        }
    }
}

async fn run_heartbeat(shared: Arc<PostgresShared>) {
    let clock = shared.clock().clone();
    let mut next = clock.now().plus(spread(shared.check_every()));
    loop {
        // The listening connection may have been lost meanwhile.
        next = next.min(clock.now().plus(shared.check_every().mul_f64(1.2)));
        tokio::select! {
            biased;
            () = shared.stopped.cancelled() => return,
            () = shared.waiting.pulse_changed.notified() => {}
            () = clock.sleep_until(next), if !shared.waiting.is_empty() => {}
        }
        let now = clock.now();
        if now >= next && !shared.waiting.is_empty() {
            next = now.plus(spread(shared.check_every()));
            // Without it the server believes the last one for a while; the next one comes soon.
            drop(shared.send_heartbeat().await);
            // A message may have been lost on its way, whatever the reason.
            shared.waiting.make_all_due(now);
        }
    }
}

/// Not in step with other processes.
fn spread(span: Duration) -> Duration {
    let random = f64::from(u32::from_le_bytes(random_bytes())) / f64::from(u32::MAX);
    span.mul_f64(0.8 + 0.4 * random)
}

/// The moment that is so many microseconds away; none for "a message will come".
fn due_in(now: Time, micros: Option<i64>) -> Option<Time> {
    micros.and_then(|micros| u64::try_from(micros).ok()).map(|micros| now.plus(Duration::from_micros(micros)))
}

impl PostgresShared {
    /// The server said that a claim waits: with so much patience, to be checked in so many microseconds.
    pub fn note_waiting(&self, handle: Bits, verdict: &Verdict) {
        let now = self.clock().now();
        let patience = now.plus(Duration::from_micros(u64::try_from(verdict.remaining.unwrap_or(0)).unwrap_or(0)));
        self.waiting.set_waiting(handle, patience, due_in(now, verdict.renewable), now);
    }
}

async fn check_due(shared: &PostgresShared) -> Result<(), ()> {
    let _counted = shared.count_in_flight();
    let due = shared.waiting.take_due(shared.clock().now(), MAX_CHECKED);
    let handles: Vec<Bits> = due.iter().map(|(handle, _)| *handle).collect();
    if handles.is_empty() {
        return Ok(());
    }
    match check_claims(shared, &handles).await {
        Ok(()) => return Ok(()),
        Err(failure) if failure.is_kept_lock() => {}
        Err(_) => {
            check_later(shared, &handles, Duration::ZERO);
            return Err(());
        }
    }
    // Somebody keeps the lock of one name: the others are checked without it.
    let mut by_name: HashMap<String, Vec<Bits>> = HashMap::new();
    for (handle, first) in due {
        by_name.entry(first).or_default().push(handle);
    }
    for handles in by_name.values() {
        if check_claims(shared, handles).await.is_err() {
            check_later(shared, handles, POLL_EVERY);
        }
    }
    Ok(())
}

fn check_later(shared: &PostgresShared, handles: &[Bits], pause: Duration) {
    let at = shared.clock().now().plus(pause);
    handles.iter().for_each(|handle| shared.waiting.message_due(*handle, Some(at)));
}

async fn check_claims(shared: &PostgresShared, handles: &[Bits]) -> Result<(), SqlFailure> {
    let rows = shared.checker.query(Sql::CheckWaiters, &[(&handles, Type::UUID_ARRAY)]).await?;
    let now = shared.clock().now();
    for row in &rows {
        let (Ok(handle), Ok(word)) = (row.try_get::<_, Bits>(0), row.try_get::<_, i8>(1)) else { continue };
        let number = |at: usize| row.try_get::<_, Option<i64>>(at).ok().flatten();
        match word.cast_unsigned() {
            b'G' => {
                let (token, remaining) = (number(2).unwrap_or(0), number(3).unwrap_or(0));
                let answer = WaitAnswer::Granted { token, remaining, renewable: number(4) };
                shared.waiting.answer(handle, &answer);
            }
            b'W' => {
                let patience = due_in(now, number(3).map(|micros| micros.max(0))).unwrap_or(now);
                shared.waiting.set_checked(handle, patience, due_in(now, number(4)), now);
            }
            _ => shared.waiting.answer(handle, &WaitAnswer::Forgotten),
        }
    }
    Ok(())
}

/// Claims leave beside each other, as far as there are connections: those of one name in the order of their patience.
fn leave_overdue(shared: &Arc<PostgresShared>) {
    let mut by_name: HashMap<String, Vec<OverdueClaim>> = HashMap::new();
    for claim in shared.waiting.take_overdue(shared.clock().now()) {
        by_name.entry(claim.first.clone()).or_default().push(claim);
    }
    for claims in by_name.into_values() {
        let (counted, shared) = (shared.count_task_in_flight(), shared.clone());
        shared.clone().spawn_task(async move {
            for claim in claims {
                leave_one(&shared, &claim).await;
            }
            drop(counted);
        });
    }
}

async fn leave_one(shared: &PostgresShared, claim: &OverdueClaim) {
    let give_up = shared.real_clock.now().plus(RETRY_FOR);
    let nobody = Bits([0; 16]);
    loop {
        let left = shared.leave_queue(claim.handle, nobody, claim.fingerprint, &claim.first, None).await;
        let failure = match left {
            Ok(verdict) => return answer_overdue(shared, claim, verdict),
            Err(failure) => failure,
        };
        // It has waited for the lock beyond its patience.
        let over = failure.is_kept_lock() || shared.real_clock.now() >= give_up || shared.stopped.is_cancelled();
        if over {
            let unknown = SqlFailure::Unknown(failure.cause());
            return shared.waiting.answer(claim.handle, &WaitAnswer::Failed(unknown));
        }
        shared.backoff(3).await;
    }
}

fn answer_overdue(shared: &PostgresShared, claim: &OverdueClaim, verdict: Verdict) {
    let answer = match verdict.word {
        b'G' => WaitAnswer::Granted {
            token: verdict.token.unwrap_or(0),
            remaining: verdict.remaining.unwrap_or(0),
            renewable: verdict.renewable,
        },
        // A joined claim has more patience.
        b'O' => {
            let now = shared.clock().now();
            let patience = due_in(now, verdict.remaining).unwrap_or(now);
            shared.waiting.set_patience(claim.handle, patience);
            return;
        }
        _ => WaitAnswer::Held(verdict),
    };
    shared.waiting.answer(claim.handle, &answer);
}

/// The patience of a claim, in whole milliseconds.
pub(super) fn patience_ms(left: Duration) -> i64 {
    to_bigint(crate::engine::from_book::millis(left))
}
