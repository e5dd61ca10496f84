//! A watch over a connection of its own, taken up again where it was lost.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::answer::{self, Message, Said};
use super::connect::NoConnection;
use super::hub::{CLOSED, Hub, OUTAGE};
use super::link::{REPLY, Wire};
use super::reply::{Reader, Value};
use super::{command, unavailable};
use crate::engine::{Answer, Event, EventId, Seen, Watching};
use crate::error::{BoxError, Error};
use crate::renew::until;

/// An id of no run: who asks for what is after it is told where things stand.
const NOWHERE: EventId = EventId { run: 0, number: 0 };

/// See the module.
pub(super) struct Watcher {
    hub: Arc<Hub>,
    prefix: String,
    last: Option<EventId>,
    line: Option<Line>,
    /// Heard, and not told yet.
    heard: VecDeque<Seen>,
}

struct Line {
    wire: Wire,
    reader: Reader,
}

fn attempt() -> String {
    "watch".into()
}

impl Watcher {
    /// Begins to watch, with an answer of the server.
    pub async fn begin(hub: Arc<Hub>, prefix: String, since: Option<EventId>) -> Result<Self, Error> {
        if hub.closed.is_cancelled() {
            return Err(unavailable(attempt(), CLOSED.into()));
        }
        let mut watcher = Self { hub, prefix, last: since, line: None, heard: VecDeque::new() };
        watcher.line = Some(watcher.connect(since).await.map_err(|why| why.into_error(attempt()))?);
        watcher.sort().map_err(|odd| unavailable(attempt(), odd))?;
        Ok(watcher)
    }

    async fn connect(&self, since: Option<EventId>) -> Result<Line, NoConnection> {
        let (wire, reader) = self.hub.connector.connect(&self.hub.clock).await?;
        let mut line = Line { wire, reader };
        let at = self.hub.clock.now().plus(REPLY);
        let asked = until(&*self.hub.clock, at, line.ask(&self.prefix, since)).await;
        let lost = |error: io::Error| NoConnection::Away(self.hub.connector.away(error));
        let asked = asked.unwrap_or_else(|| Ok(Err(io::ErrorKind::TimedOut.into())));
        match asked.map_err(NoConnection::Never)?.map_err(lost)? {
            Value::Error(text) => Err(match answer::said(&text) {
                Said::No(error) => NoConnection::Never(error),
                Said::NoEffect(sentence) | Said::Unknown(sentence) => lost(io::Error::other(sentence)),
            }),
            _ => Ok(line),
        }
    }

    async fn told(&mut self) -> Result<Seen, Error> {
        loop {
            if let Some(seen) = self.heard.pop_front() {
                return Ok(seen);
            }
            let Some(line) = &mut self.line else {
                self.take_up().await?;
                continue;
            };
            let read = tokio::select! {
                biased;
                () = self.hub.closed.cancelled() => return Err(unavailable(attempt(), CLOSED.into())),
                read = line.hear() => read,
            };
            if read.is_err() {
                self.line = None;
                continue;
            }
            if let Err(odd) = self.sort() {
                self.line = None;
                return Err(unavailable(attempt(), odd));
            }
        }
    }

    /// Connects again, and goes on after what was told last; the server says if there is a gap.
    async fn take_up(&mut self) -> Result<(), Error> {
        let give_up = self.hub.clock.now().plus(OUTAGE);
        for round in 0.. {
            if self.hub.closed.is_cancelled() {
                return Err(unavailable(attempt(), CLOSED.into()));
            }
            match self.connect(Some(self.last.unwrap_or(NOWHERE))).await {
                Ok(line) => {
                    self.line = Some(line);
                    // What came together with the answer.
                    return self.sort().map_err(|odd| unavailable(attempt(), odd));
                }
                Err(NoConnection::Away(away)) if self.hub.clock.now() >= give_up => {
                    return Err(unavailable(attempt(), Box::new(away)));
                }
                Err(NoConnection::Away(_)) => self.hub.pause(round).await,
                Err(NoConnection::Never(error)) => return Err(error),
            }
        }
        unreachable!("the rounds end by time")
    }

    /// Sorts what is there into what is told.
    fn sort(&mut self) -> Result<(), BoxError> {
        let Some(line) = &mut self.line else { return Ok(()) };
        let mut events: Vec<Event> = Vec::new();
        let mut ended = false;
        while let Some(value) = line.reader.next()? {
            let parts = match value {
                Value::Push(parts) => parts,
                Value::Error(_) => {
                    ended = true; // the server ends the watch
                    break;
                }
                _ => continue,
            };
            match answer::message(parts)? {
                None => {}
                Some(Message::Event(event, before)) => {
                    // The server says what came before. If that is not what we were told, there is a gap.
                    if let (Some(before), Some(last)) = (before, self.last)
                        && before != last
                    {
                        tell(&mut self.heard, &mut events);
                        self.heard.push_back(Seen::Reset(before));
                    }
                    self.last = Some(event.id);
                    events.push(event);
                }
                Some(Message::Reset(id)) => {
                    tell(&mut self.heard, &mut events);
                    self.last = Some(id);
                    self.heard.push_back(Seen::Reset(id));
                }
            }
        }
        tell(&mut self.heard, &mut events);
        if ended {
            self.line = None;
        }
        Ok(())
    }
}

fn tell(heard: &mut VecDeque<Seen>, events: &mut Vec<Event>) {
    if !events.is_empty() {
        heard.push_back(Seen::Events(std::mem::take(events)));
    }
}

impl Line {
    /// Asks for news. The outer error is ours, the inner one the connection's.
    async fn ask(&mut self, prefix: &str, since: Option<EventId>) -> Result<io::Result<Value>, Error> {
        let bytes = command::watch(prefix, since)?;
        Ok(self.ask_for(&bytes).await)
    }

    async fn ask_for(&mut self, bytes: &[u8]) -> io::Result<Value> {
        self.wire.write_all(bytes).await?;
        self.wire.flush().await?;
        loop {
            // The answer is the first thing to come: news follow it.
            if let Some(value) = self.reader.next().map_err(io::Error::other)? {
                return Ok(value);
            }
            self.hear().await?;
        }
    }

    /// Reads what comes. Dropping it loses nothing: what was read is in the reader.
    async fn hear(&mut self) -> io::Result<()> {
        match self.wire.read_buf(self.reader.room()).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

impl Watching for Watcher {
    fn next(&mut self) -> Answer<'_, Seen> {
        Box::pin(self.told())
    }
}
