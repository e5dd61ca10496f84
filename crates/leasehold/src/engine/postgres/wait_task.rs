//! The wait task: checks waiting claims when they are due, gives them up when their patience is over, and says to the
//! server that this process lives. One per engine, from the first claim that waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
    state: tokio::sync::Mutex<ServiceState>,
    /// The listening connection is up.
    pub listening: AtomicBool,
}

#[derive(Default)]
struct ServiceState {
    started: bool,
    heartbeat_at: Option<Time>,
}

impl PostgresShared {
    /// Whether a claim that is sent now may wait: the server has heard of this process a moment ago. Messages are not
    /// needed: without them checks come more often.
    pub async fn can_wait(&self) -> bool {
        let now = self.clock().now();
        let state = self.service.state.lock().await;
        state.heartbeat_at.is_some_and(|at| now.since(at) < HEARTBEAT_FRESH)
    }

    /// Makes waiting possible: messages are listened to, and the server hears of this process.
    pub async fn start_waiting(self: &Arc<Self>) -> Result<(), SqlFailure> {
        let mut state = self.service.state.lock().await;
        if !state.started {
            if self.connector.can_listen() {
                let (ready, is_ready) = oneshot::channel();
                self.spawn_background(run_listener(self.clone(), Some(ready)));
                let lost = |_| Err(SqlFailure::Away(Cause::new("the engine was closed")));
                is_ready.await.unwrap_or_else(lost)?;
            }
            self.spawn_background(run_wait_task(self.clone()));
            state.started = true;
        }
        self.send_heartbeat().await?;
        state.heartbeat_at = Some(self.clock().now());
        Ok(())
    }

    /// How often waiting claims are checked now.
    fn check_every(&self) -> Duration {
        if self.service.listening.load(Ordering::SeqCst) { HEARTBEAT_EVERY } else { POLL_EVERY }
    }

    async fn refresh_heartbeat(&self) {
        if self.send_heartbeat().await.is_ok() {
            self.service.state.lock().await.heartbeat_at = Some(self.clock().now());
        }
    }

    pub(super) async fn send_heartbeat(&self) -> Result<(), SqlFailure> {
        let parameters = [(&self.process as _, Type::INT8), (&self.channel as _, Type::TEXT)];
        self.control.query(Sql::Heartbeat, &parameters).await.map(drop)
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
            .control
            .query(
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
    let mut next_heartbeat = clock.now().plus(spread(shared.check_every()));
    loop {
        // The listening connection may have been lost meanwhile.
        next_heartbeat = next_heartbeat.min(clock.now().plus(shared.check_every().mul_f64(1.2)));
        let idle = shared.waiting.is_empty();
        let moment = shared.waiting.next_moment().map_or(next_heartbeat, |moment| moment.min(next_heartbeat));
        tokio::select! {
            biased;
            () = shared.stopped.cancelled() => return,
            () = shared.waiting.changed.notified() => {}
            () = clock.sleep_until(moment), if !idle => {}
        }
        let now = clock.now();
        if now >= next_heartbeat && !shared.waiting.is_empty() {
            next_heartbeat = now.plus(spread(shared.check_every()));
            shared.refresh_heartbeat().await;
            // A message may have been lost on its way, whatever the reason.
            shared.waiting.make_all_due(now);
        }
        let checked = check_due(&shared).await;
        let left = leave_overdue(&shared).await;
        if checked.is_err() || left.is_err() {
            shared.backoff(3).await;
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
    let handles = shared.waiting.take_due(shared.clock().now(), MAX_CHECKED);
    if handles.is_empty() {
        return Ok(());
    }
    let rows = match shared.control.query(Sql::CheckWaiters, &[(&handles, Type::UUID_ARRAY)]).await {
        Ok(rows) => rows,
        Err(_) => {
            let now = shared.clock().now();
            handles.iter().for_each(|handle| shared.waiting.message_due(*handle, Some(now)));
            return Err(());
        }
    };
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
                shared.waiting.set_checked(handle, patience, due_in(now, number(4)));
            }
            _ => shared.waiting.answer(handle, &WaitAnswer::Forgotten),
        }
    }
    Ok(())
}

async fn leave_overdue(shared: &PostgresShared) -> Result<(), ()> {
    let overdue = shared.waiting.list_overdue(shared.clock().now());
    let mut failed = false;
    for claim in overdue {
        let _counted = shared.count_in_flight();
        let nobody = Bits([0; 16]);
        match shared.leave_queue(claim.handle, nobody, claim.fingerprint, &claim.first, None).await {
            Ok(verdict) => answer_overdue(shared, &claim, verdict),
            Err(failure) => {
                failed = true;
                if shared.clock().now() >= claim.patience.plus(RETRY_FOR) {
                    let unknown = SqlFailure::Unknown(failure.cause());
                    shared.waiting.answer(claim.handle, &WaitAnswer::Failed(unknown));
                }
            }
        }
    }
    if failed { Err(()) } else { Ok(()) }
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
            return shared.waiting.set_checked(claim.handle, patience, None);
        }
        _ => WaitAnswer::Held(verdict),
    };
    shared.waiting.answer(claim.handle, &answer);
}

/// The patience of a claim, in whole milliseconds.
pub(super) fn patience_ms(left: Duration) -> i64 {
    to_bigint(crate::engine::from_book::millis(left))
}
