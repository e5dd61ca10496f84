//! `LEASE WATCH`: a task that pushes events to a connection.

use std::sync::Arc;

use leasehold::engine::EventId;
use tokio::sync::Semaphore;

use super::codec::frame::CommandArgs;
use super::codec::reply::{ReplyWriter, RespVersion};
use super::command::CommandError;
use super::command::args::parse_text;
use super::event_loop::inbox::ConnectionHandle;
use crate::api::leases::EventJson;
use crate::service::watch::WatchUpdate;
use crate::service::{Caller, Denial, Service};

/// Messages of one watch that its event loop has not received yet. Then the task waits: the event loop may be kept by
/// the disk while many watches resume from far back. Their events stay in the engine's log and are not copied for each
/// watch.
const MAX_UNREAD_MESSAGES_PER_WATCH: usize = 4;

/// `LEASE WATCH [PREFIX p] [SINCE id]`.
#[derive(Debug, PartialEq, Eq)]
pub struct WatchCommand<'a> {
    pub prefix: &'a str,
    pub since: Option<EventId>,
}

impl<'a> WatchCommand<'a> {
    pub fn parse(args: CommandArgs<'a>) -> Result<Self, CommandError> {
        let usage = || CommandError::usage("LEASE WATCH [PREFIX p] [SINCE id]");
        let (mut prefix, mut since) = ("", None);
        for at in (0..args.len()).step_by(2) {
            let value = parse_text(args.get(at + 1).ok_or_else(usage)?, "an argument")?;
            match args.get(at).unwrap_or_default().to_ascii_uppercase().as_slice() {
                b"PREFIX" => prefix = value,
                b"SINCE" => since = Some(value),
                _ => return Err(usage()),
            }
        }
        let since = since.map(str::parse).transpose().map_err(|_| "SINCE takes the id of an event")?;
        Ok(Self { prefix, since })
    }
}

/// One watch of one connection.
pub struct WatchTask {
    pub service: Arc<Service>,
    pub caller: Caller,
    pub prefix: String,
    pub since: Option<EventId>,
    pub version: RespVersion,
    pub handle: ConnectionHandle,
    /// The number of the command, for its reply.
    pub number: u32,
}

impl WatchTask {
    /// Replies to the command, then pushes events until the task is aborted or the watch ends.
    pub async fn run(self) {
        let Self { service, caller, prefix, since, version, handle, number } = self;
        let mut watcher = match service.watch(&caller, prefix, since).await {
            Ok(watcher) => watcher,
            Err(denial) => return handle.send_reply(number, denial_bytes(&denial, version)),
        };
        let mut out = Vec::new();
        ReplyWriter::new(&mut out, version).simple("OK");
        handle.send_reply(number, out);
        let permits = Arc::new(Semaphore::new(MAX_UNREAD_MESSAGES_PER_WATCH));
        loop {
            // Fails only if the semaphore is closed, and nothing closes it.
            let permit = permits.clone().acquire_owned().await.ok();
            match watcher.next().await {
                Ok(events) => {
                    let mut out = Vec::new();
                    for event in &events {
                        write_push(event, version, &mut out);
                    }
                    handle.send_push(out, permit);
                }
                Err(denial) => return handle.send_last(denial_bytes(&denial, version)),
            }
        }
    }
}

fn denial_bytes(denial: &Denial, version: RespVersion) -> Vec<u8> {
    let mut out = Vec::new();
    ReplyWriter::new(&mut out, version).denial(denial);
    out
}

fn write_push(event: &WatchUpdate, version: RespVersion, out: &mut Vec<u8>) {
    match version {
        RespVersion::Resp3 => write_push3(event, &mut ReplyWriter::new(out, version)),
        // A message on a channel: clients of version 2 expect no other push.
        RespVersion::Resp2 => {
            let mut reply = ReplyWriter::new(out, version);
            reply.array(3);
            reply.text("message");
            reply.text("lease");
            reply.text(&event_json(event));
        }
    }
}

fn write_push3(event: &WatchUpdate, reply: &mut ReplyWriter<'_>) {
    match event {
        WatchUpdate::Reset(id) => {
            reply.push(3);
            reply.text("lease");
            reply.text("reset");
            reply.text(&id.to_string());
        }
        WatchUpdate::Event(event, prev) => {
            reply.push(9);
            reply.text("lease");
            reply.text(event.kind.word());
            reply.text(&event.id.to_string());
            reply.text(&prev.to_string());
            match event.token {
                Some(token) => reply.unsigned(token.get()),
                None => reply.nil(),
            }
            reply.text(&event.holder);
            reply.text(&event.reason);
            reply.integer(i64::try_from(event.ago.as_millis()).unwrap_or(i64::MAX));
            reply.array(event.resources.len());
            for name in &event.resources {
                reply.text(name);
            }
        }
    }
}

/// The event in JSON, in the form that HTTP uses.
fn event_json(event: &WatchUpdate) -> String {
    match event {
        WatchUpdate::Reset(id) => serde_json::json!({"kind": "reset", "id": id.to_string()}).to_string(),
        WatchUpdate::Event(event, prev) => EventJson::new(event.clone(), *prev).to_json(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold::clock::SystemClock;
    use leasehold::engine::embedded::{Embedded, Options};
    use leasehold::engine::{Claim, Engine, Mode, Seen, Want};

    use super::*;
    use crate::resp::event_loop::inbox::Inbox;
    use crate::resp::event_loop::waker::Waker;
    use crate::service::audit::Audit;
    use crate::service::keys::KeyRing;
    use crate::service::{PeerAddress, ServedEngine};

    const EVENTS: usize = 4000;

    fn claim(number: usize) -> Claim {
        Claim {
            wants: vec![Want { name: number.to_string(), mode: Mode::Exclusive }],
            ttl: Duration::from_secs(60),
            wait: Duration::ZERO,
            max_hold: None,
            delay: Duration::ZERO,
            holder: "ada".into(),
            request: None,
            principal: String::new(),
        }
    }

    /// Goal: a watch with many events sends few messages to an event loop that receives none, and all of them, in
    /// order, to one that does.
    #[tokio::test(flavor = "multi_thread")]
    async fn events_wait_for_an_event_loop_that_is_busy() {
        let dir = tempfile::tempdir().unwrap();
        let engine = Embedded::open(dir.path(), Options::default()).await.unwrap();
        let Seen::Reset(begin) = engine.watch(None).await.unwrap().next().await.unwrap() else {
            panic!("a watch begins with where things stand")
        };
        futures_util::future::join_all((0..EVENTS).map(|number| engine.acquire(claim(number)))).await;
        let service = Service::new(ServedEngine::Embedded(engine), KeyRing::open(), Audit, SystemClock::shared());
        let peer = PeerAddress(([127, 0, 0, 1], 1).into());
        let caller = service.authenticate(None, peer).unwrap();
        let (inbox, waker) = (Arc::new(Inbox::default()), Arc::new(Waker::new().unwrap()));
        let handle = ConnectionHandle { inbox: inbox.clone(), waker, slot: 0, connection_id: 1 };
        let work = tokio::spawn(
            WatchTask {
                service,
                caller,
                prefix: String::new(),
                since: Some(begin),
                version: RespVersion::Resp3,
                handle,
                number: 7,
            }
            .run(),
        );
        let moment = || tokio::time::sleep_until(tokio::time::Instant::now() + Duration::from_millis(300));
        moment().await;
        let messages = inbox.take_all();
        assert_eq!(messages.len(), 1 + MAX_UNREAD_MESSAGES_PER_WATCH, "the reply, and as many as may be unread");
        let mut heard = messages.into_iter().flat_map(|message| message.bytes).collect::<Vec<u8>>();
        while heard.windows(7).filter(|part| *part == b"granted").count() < EVENTS {
            let before = heard.len();
            moment().await;
            heard.extend(inbox.take_all().into_iter().flat_map(|message| message.bytes));
            assert!(heard.len() > before, "it goes on when messages are received");
        }
        work.abort();
    }
}
