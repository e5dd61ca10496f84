//! Watches: events of the server, in the order in which they were committed.
//!
//! While anybody watches, batches write their events under one row lock, so that numbers are contiguous and visible in
//! order. Each watcher reads the table by itself. One task per engine keeps the watch alive, wakes the watchers, and has
//! the server log lapses: nothing runs in the server.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use leasehold_core::Time;
use leasehold_postgres::tokio_postgres::types::Type;
use leasehold_postgres::tokio_postgres::{Error as SqlError, Row};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;

use super::connection::{ConnectionRoute, EngineConnection};
use super::ids::{Bits, random_bytes};
use super::shared::{PostgresShared, ResendPolicy};
use super::sql_error::SqlFailure;
use super::statements::Sql;
use super::view::micros;
use super::{read_token, unavailable};
use crate::clock::Clock as _;
use crate::engine::{Answer, Event, EventId, EventKind, Seen, Watching};
use crate::error::Error;

/// Events in one read.
const EVENTS_PER_READ: i32 = 500;
/// Read at least so often, message or not.
const READ_EVERY: Duration = Duration::from_secs(5);
/// How often the watch is prolonged. It lasts for ten minutes.
const PROLONG_EVERY: Duration = Duration::from_secs(60);
/// Leases in one read of all live ones, and in one call that ends them.
const LEASES_PER_CALL: i32 = 500;

/// Keeps the watch of this process alive as long as a watcher has it.
#[derive(Debug)]
pub(super) struct WatchKeeper {
    /// Counts reasons to read.
    wakes: watch::Sender<u64>,
}

/// One watch.
pub(super) struct PostgresWatcher {
    shared: Arc<PostgresShared>,
    _keeper: Arc<WatchKeeper>,
    wakes: watch::Receiver<u64>,
    /// The last event that was told.
    last: EventId,
    /// A gap that is still to be told.
    reset: bool,
    with_tokens: bool,
}

/// What the server has: which run, its newest event, and the first that is kept.
struct WatchSpan {
    run: u64,
    last: u64,
    first: u64,
}

impl PostgresShared {
    async fn begin_watch(&self) -> Result<WatchSpan, Error> {
        let attempt = || "watch".to_owned();
        let run = i64::from_le_bytes(random_bytes());
        let parameters = [(&run as _, Type::INT8)];
        let rows = self
            .query_with_retry(&attempt, &self.control, Sql::BeginWatch, &parameters, ResendPolicy::Idempotent)
            .await?;
        let read = |row: &Row| -> Result<WatchSpan, SqlError> {
            let number = |at: usize| row.try_get::<_, i64>(at).map(i64::cast_unsigned);
            Ok(WatchSpan { run: number(0)?, last: number(1)?, first: number(2)? })
        };
        let span = rows.first().and_then(|row| read(row).ok());
        span.ok_or_else(|| unavailable(attempt(), super::sql_error::Cause::new("the server does not say what it has")))
    }
}

impl PostgresWatcher {
    pub async fn begin(
        shared: &Arc<PostgresShared>,
        keeper: &Mutex<Weak<WatchKeeper>>,
        since: Option<EventId>,
        with_tokens: bool,
    ) -> Result<Self, Error> {
        let span = shared.begin_watch().await?;
        let keeper = {
            let mut kept = keeper.lock().unwrap_or_else(PoisonError::into_inner);
            kept.upgrade().unwrap_or_else(|| {
                let fresh = Arc::new(WatchKeeper { wakes: watch::Sender::new(0) });
                *kept = Arc::downgrade(&fresh);
                shared.spawn_background(run_keeper(shared.clone(), Arc::downgrade(&fresh)));
                fresh
            })
        };
        let newest = EventId { run: span.run, number: span.last };
        let known = |id: &EventId| id.run == span.run && id.number <= span.last && id.number + 1 >= span.first;
        let (last, reset) = match since.filter(known) {
            Some(id) => (id, false),
            None => (newest, true),
        };
        let wakes = keeper.wakes.subscribe();
        Ok(Self { shared: shared.clone(), _keeper: keeper, wakes, last, reset, with_tokens })
    }

    async fn next_seen(&mut self) -> Result<Seen, Error> {
        let attempt = || "watch".to_owned();
        loop {
            self.shared.refuse_closed(&attempt)?;
            if std::mem::take(&mut self.reset) {
                return Ok(Seen::Reset(self.last));
            }
            // Before the read: what is committed after it wakes us.
            self.wakes.mark_unchanged();
            let after = self.last.number.cast_signed();
            let parameters = [(&after as _, Type::INT8), (&EVENTS_PER_READ as _, Type::INT4)];
            let reader = &self.shared.reader;
            let rows = self
                .shared
                .query_with_retry(&attempt, reader, Sql::ReadEvents, &parameters, ResendPolicy::ReadOnly)
                .await?;
            let seen = read_events(&rows, self.last, self.with_tokens).map_err(|error| {
                unavailable(attempt(), super::sql_error::Cause::new(format!("an event cannot be read: {error}")))
            })?;
            if let Some(seen) = seen {
                match &seen {
                    Seen::Reset(id) => self.last = *id,
                    Seen::Events(events) => self.last = events.last().map_or(self.last, |event| event.id),
                }
                return Ok(seen);
            }
            let clock = self.shared.real_clock;
            tokio::select! {
                changed = self.wakes.changed() => drop(changed),
                () = clock.sleep_until(clock.now().plus(READ_EVERY)) => {}
                () = self.shared.closed.cancelled() => {}
            }
        }
    }
}

impl Watching for PostgresWatcher {
    fn next(&mut self) -> Answer<'_, Seen> {
        Box::pin(self.next_seen())
    }
}

/// What the rows tell after an event; none if nothing happened.
fn read_events(rows: &[Row], last: EventId, with_tokens: bool) -> Result<Option<Seen>, SqlError> {
    let Some(first) = rows.first() else { return Ok(None) };
    let run = first.try_get::<_, i64>(0)?.cast_unsigned();
    let newest = first.try_get::<_, i64>(1)?.cast_unsigned();
    let next: Option<i64> = first.try_get(2)?;
    let gap = match next {
        Some(next) => next.cast_unsigned() != last.number + 1,
        None => newest != last.number,
    };
    if run != last.run || gap {
        return Ok(Some(Seen::Reset(EventId { run, number: newest })));
    }
    if next.is_none() {
        return Ok(None);
    }
    let events: Result<Vec<Event>, SqlError> = rows.iter().map(|row| read_event(row, run, with_tokens)).collect();
    Ok(Some(Seen::Events(events?)))
}

fn read_event(row: &Row, run: u64, with_tokens: bool) -> Result<Event, SqlError> {
    let number: i64 = row.try_get(2)?;
    let kind: i8 = row.try_get(3)?;
    let token: Option<i64> = row.try_get(4)?;
    Ok(Event {
        id: EventId { run, number: number.cast_unsigned() },
        kind: match kind.cast_unsigned() {
            b'G' => EventKind::Granted,
            b'R' => EventKind::Released,
            b'V' => EventKind::Revoked,
            b'B' => EventKind::Relabelled,
            _ => EventKind::Lapsed,
        },
        token: token.and_then(read_token).filter(|_| with_tokens),
        holder: row.try_get(5)?,
        resources: row.try_get(6)?,
        reason: row.try_get(7)?,
        ago: micros(row.try_get(8)?),
    })
}

/// Keeps the watch alive until the last watcher is gone.
async fn run_keeper(shared: Arc<PostgresShared>, keeper: Weak<WatchKeeper>) {
    let mut round = 0;
    while !shared.stopped.is_cancelled() && keeper.strong_count() > 0 {
        let done = keep_watch(&shared, &keeper, &mut round).await;
        if done.is_ok() {
            return;
        }
        tokio::select! {
            () = shared.stopped.cancelled() => return,
            () = shared.backoff(round) => round += 1,
        }
    }
}

/// Ends of live leases, in order.
#[derive(Default)]
struct LeaseEnds {
    order: BTreeSet<(Time, Bits)>,
    ends: HashMap<Bits, Time>,
}

impl LeaseEnds {
    fn set(&mut self, handle: Bits, end: Time) {
        self.remove(handle);
        self.order.insert((end, handle));
        self.ends.insert(handle, end);
    }

    fn remove(&mut self, handle: Bits) {
        if let Some(end) = self.ends.remove(&handle) {
            self.order.remove(&(end, handle));
        }
    }

    fn take_due(&mut self, now: Time) -> Vec<Bits> {
        let due = self.order.iter().take_while(|(end, _)| *end <= now).take(LEASES_PER_CALL as usize);
        let due: Vec<Bits> = due.map(|(_, handle)| *handle).collect();
        due.iter().for_each(|handle| self.remove(*handle));
        due
    }
}

struct KeeperRound<'a> {
    shared: &'a PostgresShared,
    connection: Option<EngineConnection>,
    messages: Option<UnboundedReceiver<leasehold_postgres::tokio_postgres::Notification>>,
    ends: LeaseEnds,
    run: u64,
    last: u64,
}

/// Ok: nobody watches any more, or the engine stops.
async fn keep_watch(
    shared: &Arc<PostgresShared>,
    keeper: &Weak<WatchKeeper>,
    round: &mut u32,
) -> Result<(), SqlFailure> {
    let mut state = KeeperRound::start(shared).await?;
    *round = 0;
    let clock = shared.clock().clone();
    let mut prolong_at = clock.now().plus(PROLONG_EVERY);
    loop {
        let Some(wakes) = keeper.upgrade() else { return Ok(()) };
        wakes.wakes.send_modify(|count| *count += 1);
        drop(wakes);
        state.read_new_events().await?;
        state.expire_due().await?;
        let next = state.ends.order.first().map_or(prolong_at, |(end, _)| (*end).min(prolong_at));
        let regular = shared.real_clock.sleep_until(shared.real_clock.now().plus(READ_EVERY));
        let listening = state.messages.is_some();
        let message = async {
            match &mut state.messages {
                Some(messages) => messages.recv().await.is_some(),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shared.stopped.cancelled() => return Ok(()),
            heard = message, if listening => if !heard {
                return Err(SqlFailure::Away(super::sql_error::Cause::new("the connection was lost")));
            },
            () = clock.sleep_until(next) => {}
            () = regular => {}
        }
        if clock.now() >= prolong_at {
            prolong_at = clock.now().plus(PROLONG_EVERY);
            let span = shared
                .begin_watch()
                .await
                .map_err(|error| SqlFailure::Away(super::sql_error::Cause::new(error.to_string())))?;
            if span.run != state.run {
                return Err(SqlFailure::Away(super::sql_error::Cause::new("a new run")));
            }
        }
    }
}

impl<'a> KeeperRound<'a> {
    async fn start(shared: &'a Arc<PostgresShared>) -> Result<Self, SqlFailure> {
        let (connection, messages) = if shared.connector.can_listen() {
            let (to, messages) = unbounded_channel();
            let connection = shared.connector.open(ConnectionRoute::Messages, Some(to)).await?;
            connection.execute(&format!("LISTEN \"{}\"", shared.options().schema.events_channel())).await?;
            (Some(connection), Some(messages))
        } else {
            (None, None)
        };
        let span = shared.begin_watch().await;
        let span = span.map_err(|error| SqlFailure::Away(super::sql_error::Cause::new(error.to_string())))?;
        let mut state =
            Self { shared, connection, messages, ends: LeaseEnds::default(), run: span.run, last: span.last };
        state.read_live_leases().await?;
        Ok(state)
    }

    async fn read_live_leases(&mut self) -> Result<(), SqlFailure> {
        let mut after = Bits([0; 16]);
        loop {
            let parameters = [(&after as _, Type::UUID), (&LEASES_PER_CALL as _, Type::INT4)];
            let rows = self.shared.control.query(Sql::Live, &parameters).await?;
            let now = self.shared.clock().now();
            for row in &rows {
                let read = || Ok((row.try_get::<_, Bits>(0)?, row.try_get::<_, i64>(1)?));
                let (handle, ends_in) = read().map_err(|error: SqlError| SqlFailure::from_statement(&error))?;
                self.ends.set(handle, now.plus(micros(ends_in)));
                after = handle;
            }
            if rows.len() < LEASES_PER_CALL as usize {
                return Ok(());
            }
        }
    }

    /// Learns of new leases, and of those that ended.
    async fn read_new_events(&mut self) -> Result<(), SqlFailure> {
        if let Some(connection) = &self.connection
            && connection.is_closed()
        {
            return Err(SqlFailure::Away(super::sql_error::Cause::new("the connection was lost")));
        }
        loop {
            let after = self.last.cast_signed();
            let parameters = [(&after as _, Type::INT8), (&EVENTS_PER_READ as _, Type::INT4)];
            let rows = self.shared.control.query(Sql::ReadEvents, &parameters).await?;
            let now = self.shared.clock().now();
            let mut found = 0;
            for row in &rows {
                let read = || -> Result<_, SqlError> {
                    let number: Option<i64> = row.try_get(2)?;
                    let kind: Option<i8> = row.try_get(3)?;
                    let handle: Option<Bits> = row.try_get(9)?;
                    Ok((row.try_get::<_, i64>(0)?, number, kind, handle, row.try_get::<_, Option<i64>>(10)?))
                };
                let (run, number, kind, handle, ends_in) =
                    read().map_err(|error| SqlFailure::from_statement(&error))?;
                if run.cast_unsigned() != self.run {
                    return Err(SqlFailure::Away(super::sql_error::Cause::new("a new run")));
                }
                let (Some(number), Some(kind), Some(handle)) = (number, kind, handle) else { continue };
                found += 1;
                self.last = number.cast_unsigned();
                match kind.cast_unsigned() {
                    b'G' | b'B' => self.ends.set(handle, now.plus(micros(ends_in.unwrap_or(0)))),
                    _ => self.ends.remove(handle),
                }
            }
            if found < EVENTS_PER_READ {
                return Ok(());
            }
        }
    }

    /// Has the server log what lapsed.
    async fn expire_due(&mut self) -> Result<(), SqlFailure> {
        loop {
            let now = self.shared.clock().now();
            let due = self.ends.take_due(now);
            if due.is_empty() {
                return Ok(());
            }
            let rows = self.shared.control.query(Sql::Expire, &[(&due, Type::UUID_ARRAY)]).await?;
            let now = self.shared.clock().now();
            for row in &rows {
                let read = || Ok((row.try_get::<_, Bits>(0)?, row.try_get::<_, i64>(1)?));
                let (handle, ends_in) = read().map_err(|error: SqlError| SqlFailure::from_statement(&error))?;
                self.ends.set(handle, now.plus(micros(ends_in)));
            }
        }
    }
}
