//! A watch over a connection of its own. After a loss it reconnects, and continues after the last event.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::connect::NoConnection;
use super::connection::{BoxedStream, REPLY_TIMEOUT};
use super::connection_pool::{CLOSED, ConnectionPool, MAX_OUTAGE};
use super::decode::{self, ServerError, WatchMessage};
use super::resp::{RespReader, Value};
use super::{command, unavailable};
use crate::clock::until;
use crate::engine::{Answer, Event, EventId, Seen, Watching};
use crate::error::{BoxError, Error};

/// An id of no run: the server replies to it with a reset.
const NO_EVENT: EventId = EventId { run: 0, number: 0 };

/// See the module.
pub(super) struct RemoteWatcher {
    pool: Arc<ConnectionPool>,
    prefix: String,
    last: Option<EventId>,
    connection: Option<WatchConnection>,
    /// Decoded, and not handed out yet.
    decoded: VecDeque<Seen>,
}

struct WatchConnection {
    stream: BoxedStream,
    reader: RespReader,
}

fn attempt() -> String {
    "watch".into()
}

impl RemoteWatcher {
    /// Begins to watch; waits for the reply of the server.
    pub async fn begin(pool: Arc<ConnectionPool>, prefix: String, since: Option<EventId>) -> Result<Self, Error> {
        if pool.closed.is_cancelled() {
            return Err(unavailable(attempt(), CLOSED.into()));
        }
        let mut watcher = Self { pool, prefix, last: since, connection: None, decoded: VecDeque::new() };
        watcher.connection = Some(watcher.connect(since).await.map_err(|why| why.into_error(attempt()))?);
        watcher.decode_available().map_err(|odd| unavailable(attempt(), odd))?;
        Ok(watcher)
    }

    async fn connect(&self, since: Option<EventId>) -> Result<WatchConnection, NoConnection> {
        let (stream, reader) = self.pool.connector.connect(&self.pool.clock).await?;
        let mut connection = WatchConnection { stream, reader };
        let at = self.pool.clock.now().plus(REPLY_TIMEOUT);
        let asked = until(&*self.pool.clock, at, connection.send_watch(&self.prefix, since)).await;
        let lost = |error: io::Error| NoConnection::Away(self.pool.connector.away(error));
        let asked = asked.unwrap_or_else(|| Ok(Err(io::ErrorKind::TimedOut.into())));
        match asked.map_err(NoConnection::Never)?.map_err(lost)? {
            Value::Error(text) => Err(match decode::parse_error(&text) {
                ServerError::Decided(error) => NoConnection::Never(error),
                ServerError::NoEffect(sentence) | ServerError::Unknown(sentence) => lost(io::Error::other(sentence)),
            }),
            _ => Ok(connection),
        }
    }

    async fn next_seen(&mut self) -> Result<Seen, Error> {
        loop {
            if let Some(seen) = self.decoded.pop_front() {
                return Ok(seen);
            }
            let Some(connection) = &mut self.connection else {
                self.reconnect().await?;
                continue;
            };
            let read = tokio::select! {
                biased;
                () = self.pool.closed.cancelled() => return Err(unavailable(attempt(), CLOSED.into())),
                read = connection.read_more() => read,
            };
            if read.is_err() {
                self.connection = None;
                continue;
            }
            if let Err(odd) = self.decode_available() {
                self.connection = None;
                return Err(unavailable(attempt(), odd));
            }
        }
    }

    /// Connects again, and continues after the last event; the server says if there is a gap.
    async fn reconnect(&mut self) -> Result<(), Error> {
        let give_up = self.pool.clock.now().plus(MAX_OUTAGE);
        for round in 0.. {
            if self.pool.closed.is_cancelled() {
                return Err(unavailable(attempt(), CLOSED.into()));
            }
            match self.connect(Some(self.last.unwrap_or(NO_EVENT))).await {
                Ok(connection) => {
                    self.connection = Some(connection);
                    // Events that came together with the reply.
                    return self.decode_available().map_err(|odd| unavailable(attempt(), odd));
                }
                Err(NoConnection::Away(away)) if self.pool.clock.now() >= give_up => {
                    return Err(unavailable(attempt(), Box::new(away)));
                }
                Err(NoConnection::Away(_)) => self.pool.backoff(round).await,
                Err(NoConnection::Never(error)) => return Err(error),
            }
        }
        unreachable!("the rounds end by time")
    }

    /// Decodes the messages in the read buffer.
    fn decode_available(&mut self) -> Result<(), BoxError> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        let mut events: Vec<Event> = Vec::new();
        let mut ended = false;
        while let Some(value) = connection.reader.next()? {
            let parts = match value {
                Value::Push(parts) => parts,
                Value::Error(_) => {
                    ended = true; // the server ends the watch
                    break;
                }
                _ => continue,
            };
            match decode::message(parts)? {
                None => {}
                Some(WatchMessage::Event(event, before)) => {
                    // The server names the event before. If that is not the last one that came, there is a gap.
                    if let (Some(before), Some(last)) = (before, self.last)
                        && before != last
                    {
                        flush_events(&mut self.decoded, &mut events);
                        self.decoded.push_back(Seen::Reset(before));
                    }
                    self.last = Some(event.id);
                    events.push(event);
                }
                Some(WatchMessage::Reset(id)) => {
                    flush_events(&mut self.decoded, &mut events);
                    self.last = Some(id);
                    self.decoded.push_back(Seen::Reset(id));
                }
            }
        }
        flush_events(&mut self.decoded, &mut events);
        if ended {
            self.connection = None;
        }
        Ok(())
    }
}

fn flush_events(decoded: &mut VecDeque<Seen>, events: &mut Vec<Event>) {
    if !events.is_empty() {
        decoded.push_back(Seen::Events(std::mem::take(events)));
    }
}

impl WatchConnection {
    /// Asks for events. The outer error is an invalid request, the inner one the connection's.
    async fn send_watch(&mut self, prefix: &str, since: Option<EventId>) -> Result<io::Result<Value>, Error> {
        let bytes = command::watch(prefix, since)?;
        Ok(self.request(&bytes).await)
    }

    async fn request(&mut self, bytes: &[u8]) -> io::Result<Value> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await?;
        loop {
            // The reply comes first, and events follow it.
            if let Some(value) = self.reader.next().map_err(io::Error::other)? {
                return Ok(value);
            }
            self.read_more().await?;
        }
    }

    /// Reads more bytes. Cancel safe: what was read is in the reader.
    async fn read_more(&mut self) -> io::Result<()> {
        match self.stream.read_buf(self.reader.room()).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

impl Watching for RemoteWatcher {
    fn next(&mut self) -> Answer<'_, Seen> {
        Box::pin(self.next_seen())
    }
}
