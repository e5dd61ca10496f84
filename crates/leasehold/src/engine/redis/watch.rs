//! A watch: the stream of events that the scripts write while somebody watches.
//!
//! Events are written by the script that grants or ends, so none is missed. Their numbers have no gap. A run of events
//! ends with the flag that says that somebody watches; every event names its run.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Time, Token};
use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value};

use super::claim_text::to_hex;
use super::connect::open_blocking_connection;
use super::decode::{ObserveReply, UnexpectedReply, array, observe_reply, text};
use super::errors::{CLOSED, CallError, unavailable};
use super::node::{PUSH_SLOT, REPLY_TIMEOUT, RETRY_FOR, RetryPolicy, ScriptCall, random_bits};
use super::scripts::{PREFIX, Script};
use super::shared::RedisShared;
use crate::engine::{Answer, Event, EventId, EventKind, Seen, Watching};
use crate::error::{BoxError, Error};

/// How long the server is asked to wait for the next event: a dead connection is noticed soon after.
const BLOCK_MS: u64 = 5000;
/// How often the flag is refreshed; it lasts ten minutes.
const OBSERVE_EVERY: Duration = Duration::from_secs(30);
/// How long a server may be unreachable before a watch fails.
const MAX_OUTAGE: Duration = Duration::from_secs(30);
const EVENTS_PER_READ: usize = 256;
const RECORDS_PER_SCAN: usize = 500;

type Reading = Pin<Box<dyn Future<Output = Option<Result<Value, RedisError>>> + Send>>;

/// See the module.
pub(super) struct RedisWatcher {
    shared: Arc<RedisShared>,
    last: EventId,
    /// When something ends by time, or the flag is to be refreshed.
    observe_at: Time,
    /// A connection of its own: reading blocks it.
    redis: Option<MultiplexedConnection>,
    reading: Option<Reading>,
    ready: VecDeque<Seen>,
}

fn attempt() -> String {
    "watch".into()
}

impl RedisWatcher {
    pub async fn begin(shared: Arc<RedisShared>, since: Option<EventId>) -> Result<Self, Error> {
        let seen = observe(&shared, &attempt).await?;
        let newest = EventId { run: seen.run, number: seen.last };
        let mut watcher =
            Self { observe_at: Time::ZERO, shared, last: newest, redis: None, reading: None, ready: VecDeque::new() };
        match since {
            Some(since) if follows(since, &seen) => watcher.last = since,
            _ => watcher.ready.push_back(Seen::Reset(newest)),
        }
        watcher.note_observed(&seen);
        Ok(watcher)
    }

    fn note_observed(&mut self, seen: &ObserveReply) {
        let now = self.shared.node.clock.now();
        let due =
            seen.next_due_ms.map_or(Time::NEVER, |ms| now.plus_millis(ms).plus(self.shared.node.options.timer_margin));
        self.observe_at = due.min(now.plus(OBSERVE_EVERY));
    }

    async fn next_seen(&mut self) -> Result<Seen, Error> {
        let clock = self.shared.node.clock.clone();
        let mut give_up: Option<Time> = None;
        for round in 0_u32.. {
            if self.shared.node.closed.is_cancelled() {
                return Err(unavailable(attempt(), CLOSED.into()));
            }
            if let Some(seen) = self.ready.pop_front() {
                return Ok(seen);
            }
            let failed: BoxError = match self.read_once(&*clock).await {
                Ok(()) => {
                    give_up = None;
                    continue;
                }
                Err(CallError::Decided(error)) => return Err(error),
                Err(CallError::Busy(why) | CallError::NoEffect(why) | CallError::Unknown(why)) => why,
            };
            (self.redis, self.reading) = (None, None);
            if clock.now() >= *give_up.get_or_insert(clock.now().plus(MAX_OUTAGE)) {
                return Err(unavailable(attempt(), failed));
            }
            tokio::select! {
                () = self.shared.node.closed.cancelled() => {}
                () = self.shared.node.backoff(round.min(6)) => {}
            }
        }
        unreachable!("the rounds end by time")
    }

    /// Waits for events or for the time to observe, whichever comes first.
    async fn read_once(&mut self, clock: &dyn crate::clock::Clock) -> Result<(), CallError> {
        let Some(redis) = &self.redis else {
            self.redis = Some(open_blocking_connection(&self.shared.node).await?);
            // While nobody read, another run may have begun.
            return self.observe_again().await;
        };
        let reading = self.reading.get_or_insert_with(|| start_reading(&self.shared, redis.clone(), self.last));
        let value = tokio::select! {
            biased;
            () = self.shared.node.closed.cancelled() => return Ok(()),
            read = reading => {
                self.reading = None;
                match read {
                    None => return Err(CallError::NoEffect("the server does not answer".into())),
                    Some(Err(error)) => {
                        let away = super::errors::read_connect_error(&error, &self.shared.node.options.at());
                        return Err(away);
                    }
                    Some(Ok(value)) => value,
                }
            }
            () = clock.sleep_until(self.observe_at) => return self.observe_again().await,
        };
        self.take_events(&value).map_err(|odd| CallError::NoEffect(Box::new(odd)))
    }

    async fn observe_again(&mut self) -> Result<(), CallError> {
        let value = self.shared.node.run_script(&observe_call()).await?;
        let seen = observe_reply(&value).map_err(|odd| CallError::NoEffect(Box::new(odd)))?;
        if !seen.complete {
            adopt_leases(&self.shared, seen.run).await?;
        }
        self.note_observed(&seen);
        if !follows(self.last, &seen) {
            self.last = EventId { run: seen.run, number: seen.last };
            self.ready.push_back(Seen::Reset(self.last));
            // What is being read is from after the old event: begin anew.
            (self.redis, self.reading) = (None, None);
        }
        Ok(())
    }

    fn take_events(&mut self, value: &Value) -> Result<(), UnexpectedReply> {
        let mut events = Vec::new();
        for (number, fields) in read_entries(value)? {
            let (run, at_ms, event) = read_event(&fields, self.last.run, number, self.shared.fencing)?;
            // Another run, or numbers that were trimmed: the next observe finds the gap.
            if run != self.last.run || number != self.last.number + 1 {
                self.observe_at = Time::ZERO;
                break;
            }
            self.last.number = number;
            events.extend(event.map(|event| self.with_names(event, at_ms)));
        }
        if !events.is_empty() {
            self.ready.push_back(Seen::Events(events));
        }
        Ok(())
    }

    /// The names of the keys, and how long ago it was.
    fn with_names(&self, mut event: Event, at_ms: u64) -> Event {
        event.ago = Duration::from_millis(self.shared.node.server_millis().saturating_sub(at_ms));
        event.resources = event.resources.iter().map(|key| self.shared.name_of(key)).collect();
        event
    }
}

fn start_reading(shared: &RedisShared, mut redis: MultiplexedConnection, last: EventId) -> Reading {
    let clock = shared.node.clock.clone();
    Box::pin(async move {
        let mut read = redis::cmd("XREAD");
        read.arg("BLOCK").arg(BLOCK_MS).arg("COUNT").arg(EVENTS_PER_READ);
        read.arg("STREAMS").arg(format!("{PREFIX}ev")).arg(format!("0-{}", last.number));
        let end = clock.now().plus_millis(BLOCK_MS).plus(REPLY_TIMEOUT);
        crate::clock::until(&*clock, end, read.query_async::<Value>(&mut redis)).await
    })
}

impl Watching for RedisWatcher {
    fn next(&mut self) -> Answer<'_, Seen> {
        Box::pin(self.next_seen())
    }
}

/// Whether a watch can go on after this event.
fn follows(since: EventId, seen: &ObserveReply) -> bool {
    since.run == seen.run && since.number <= seen.last && since.number.saturating_add(1) >= seen.first
}

fn observe_call() -> ScriptCall {
    let run = to_hex(&random_bits::<8>());
    ScriptCall { script: Script::Observe, slot: PUSH_SLOT, keys: Vec::new(), args: vec![run] }
}

/// Takes names that a list found free out of the index. What ends in silence is found only so: a closing delay, and a
/// stranger's key. If it fails, the next list does it.
pub(super) async fn forget_names(shared: &Arc<RedisShared>, keys: Vec<String>) {
    if !keys.is_empty() {
        let _ = shared.node.run_script(&ScriptCall { keys, ..observe_call() }).await;
    }
}

/// Switches events and index on, and waits until the index has everything.
pub(super) async fn observe(
    shared: &Arc<RedisShared>,
    attempt: crate::engine::AttemptText<'_>,
) -> Result<ObserveReply, Error> {
    let give_up = shared.node.clock.now().plus(RETRY_FOR);
    for round in 0.. {
        let value = shared.node.call(attempt, &observe_call(), RetryPolicy::ReadOnly).await?;
        let seen = observe_reply(&value).map_err(|odd| unavailable(attempt(), Box::new(odd)))?;
        if seen.complete {
            return Ok(seen);
        }
        let source = match adopt_leases(shared, seen.run).await {
            // What it showed stays true: the numbers are those of before.
            Ok(()) => return Ok(seen),
            Err(CallError::Decided(error)) => return Err(error),
            Err(CallError::Busy(why) | CallError::NoEffect(why) | CallError::Unknown(why)) => why,
        };
        if shared.node.clock.now() >= give_up {
            return Err(unavailable(attempt(), source));
        }
        shared.node.backoff(round).await;
    }
    unreachable!("the rounds end by time")
}

/// Puts what was there before the watch into its index. Others may do the same meanwhile: it has the effect of once.
async fn adopt_leases(shared: &Arc<RedisShared>, run: u64) -> Result<(), CallError> {
    let mut cursor = String::from("0");
    loop {
        let connection = shared.node.connection(PUSH_SLOT).await?;
        let mut scan = redis::cmd("SCAN");
        scan.arg(&cursor).arg("MATCH").arg(format!("{PREFIX}l:*")).arg("COUNT").arg(RECORDS_PER_SCAN);
        let scanned = super::node::send_command(&*shared.node.clock, &mut connection.redis.clone(), &scan).await;
        let value = match scanned {
            None => return Err(CallError::NoEffect("the server does not answer".into())),
            Some(Err(error)) => return Err(super::errors::read_connect_error(&error, &shared.node.options.at())),
            Some(Ok(value)) => value,
        };
        let odd = |odd: UnexpectedReply| CallError::NoEffect(Box::new(odd));
        let parts = array(&value).map_err(odd)?;
        let [next, found] = parts else { return Err(odd(UnexpectedReply)) };
        cursor = text(next).map_err(odd)?;
        let keys = array(found).and_then(|found| found.iter().map(text).collect::<Result<Vec<_>, _>>()).map_err(odd)?;
        let last = cursor == "0";
        let args = vec![format!("{run:016x}"), if last { "1" } else { "0" }.to_owned()];
        let call = ScriptCall { script: Script::Adopt, slot: PUSH_SLOT, keys, args };
        shared.node.run_script(&call).await?;
        if last {
            return Ok(());
        }
    }
}

/// Number and fields of each entry. XREAD answers with a map in RESP3, and with nothing when nothing came.
fn read_entries(value: &Value) -> Result<Vec<(u64, String)>, UnexpectedReply> {
    let entries = match value {
        Value::Nil => return Ok(Vec::new()),
        Value::Map(streams) => streams.first().map(|(_, entries)| entries).ok_or(UnexpectedReply)?,
        _ => return Err(UnexpectedReply),
    };
    let read = |entry: &Value| {
        let [id, fields] = array(entry)? else { return Err(UnexpectedReply) };
        let number = text(id)?.strip_prefix("0-").and_then(|number| number.parse().ok()).ok_or(UnexpectedReply)?;
        let [_, body] = array(fields)? else { return Err(UnexpectedReply) };
        Ok((number, text(body)?))
    };
    array(entries)?.iter().map(read).collect()
}

/// `<run> <kind> <token> <ms>`, the holder, the reason, the keys: one line each. No event where a run begins.
fn read_event(body: &str, run: u64, number: u64, fencing: bool) -> Result<(u64, u64, Option<Event>), UnexpectedReply> {
    let mut lines = body.split('\n');
    let mut head = lines.next().ok_or(UnexpectedReply)?.split(' ');
    let mut word = || head.next().ok_or(UnexpectedReply);
    let its_run = u64::from_str_radix(word()?, 16).map_err(|_| UnexpectedReply)?;
    let kind = match word()? {
        "g" => EventKind::Granted,
        "r" => EventKind::Released,
        "l" => EventKind::Lapsed,
        "v" => EventKind::Revoked,
        "b" => EventKind::Relabelled,
        "0" => return Ok((its_run, 0, None)),
        _ => return Err(UnexpectedReply),
    };
    let token = word()?.parse().map_err(|_| UnexpectedReply)?;
    let at_ms = word()?.parse().map_err(|_| UnexpectedReply)?;
    let mut line = || lines.next().map(str::to_owned).ok_or(UnexpectedReply);
    let (holder, reason) = (line()?, line()?);
    let resources = lines.filter(|key| !key.is_empty()).map(str::to_owned).collect();
    let event = Event {
        id: EventId { run, number },
        kind,
        token: if fencing { Token::new(token) } else { None },
        holder,
        resources,
        reason,
        ago: Duration::ZERO,
    };
    Ok((its_run, at_ms, Some(event)))
}
