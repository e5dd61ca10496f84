//! `LEASE WATCH`: what happens, pushed to a connection.

use std::sync::Arc;

use leasehold::engine::EventId;
use tokio::sync::Semaphore;

use super::codec::reply::{ReplyWriter, RespVersion};
use super::event_loop::inbox::ConnectionHandle;
use crate::http::shape::Happened;
use crate::service::watch::Told;
use crate::service::{Caller, Denial, Service};

/// Letters of one watch that its pump has not taken yet. A pump may be kept by the disk, and many may resume a long way
/// back at that moment: what they are to be told stays where it is kept once, and is not copied for each of them.
const MAX_UNREAD_MESSAGES_PER_WATCH: usize = 4;

/// Tells a connection what happens until it goes away, and answers its command first.
pub async fn tell(
    service: Arc<Service>,
    caller: Caller,
    prefix: String,
    since: Option<EventId>,
    version: RespVersion,
    handle: ConnectionHandle,
    number: u32,
) {
    let mut out = Vec::new();
    let mut watcher = match service.watch(&caller, prefix, since).await {
        Ok(watcher) => watcher,
        Err(denial) => {
            ReplyWriter::new(&mut out, version).denial(&denial);
            return handle.post(Some(number), out, false);
        }
    };
    ReplyWriter::new(&mut out, version).simple("OK");
    handle.post(Some(number), out, false);
    let permits = Arc::new(Semaphore::new(MAX_UNREAD_MESSAGES_PER_WATCH));
    loop {
        // Nobody closes it.
        let permit = permits.clone().acquire_owned().await.ok();
        match watcher.next().await {
            Ok(told) => {
                let mut out = Vec::new();
                for one in &told {
                    push(one, version, &mut out);
                }
                handle.send(None, out, false, permit);
            }
            Err(denial) => return handle.post(None, goodbye(&denial, version), true),
        }
    }
}

fn goodbye(denial: &Denial, version: RespVersion) -> Vec<u8> {
    let mut out = Vec::new();
    ReplyWriter::new(&mut out, version).denial(denial);
    out
}

fn push(told: &Told, version: RespVersion, out: &mut Vec<u8>) {
    match version {
        RespVersion::Resp3 => push3(told, &mut ReplyWriter::new(out, version)),
        // As a message on a channel: the only thing that clients of version 2 expect unasked.
        RespVersion::Resp2 => {
            let mut reply = ReplyWriter::new(out, version);
            reply.array(3);
            reply.text("message");
            reply.text("lease");
            reply.text(&json(told));
        }
    }
}

fn push3(told: &Told, reply: &mut ReplyWriter<'_>) {
    match told {
        Told::Reset(id) => {
            reply.push(3);
            reply.text("lease");
            reply.text("reset");
            reply.text(&id.to_string());
        }
        Told::Event(event, prev) => {
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

/// The same in JSON, as HTTP tells it.
fn json(told: &Told) -> String {
    match told {
        Told::Reset(id) => serde_json::json!({"kind": "reset", "id": id.to_string()}).to_string(),
        Told::Event(event, prev) => Happened::new(event.clone(), *prev).to_json(),
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
    use crate::service::{Opened, Peer};

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

    /// Goal: a watch that has much to tell does not heap it up for a pump that takes nothing, and tells all of it, in
    /// order, to one that does.
    #[tokio::test(flavor = "multi_thread")]
    async fn news_wait_for_a_pump_that_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let engine = Embedded::open(dir.path(), Options::default()).await.unwrap();
        let Seen::Reset(begin) = engine.watch(None).await.unwrap().next().await.unwrap() else {
            panic!("a watch begins with where things stand")
        };
        futures_util::future::join_all((0..EVENTS).map(|number| engine.acquire(claim(number)))).await;
        let service = Service::new(Opened::Embedded(engine), KeyRing::open(), Audit, SystemClock::shared());
        let peer = Peer(([127, 0, 0, 1], 1).into());
        let caller = service.enter(None, peer).unwrap();
        let (inbox, waker) = (Arc::new(Inbox::default()), Arc::new(Waker::new().unwrap()));
        let handle = ConnectionHandle { inbox: inbox.clone(), waker, slot: 0, id: 1 };
        let work = tokio::spawn(tell(service, caller, String::new(), Some(begin), RespVersion::Resp3, handle, 7));
        let moment = || tokio::time::sleep_until(tokio::time::Instant::now() + Duration::from_millis(300));
        moment().await;
        let messages = inbox.take();
        assert_eq!(messages.len(), 1 + MAX_UNREAD_MESSAGES_PER_WATCH, "the answer, and what may be ahead");
        let mut heard = messages.into_iter().flat_map(|message| message.bytes).collect::<Vec<u8>>();
        while heard.windows(7).filter(|part| *part == b"granted").count() < EVENTS {
            let before = heard.len();
            moment().await;
            heard.extend(inbox.take().into_iter().flat_map(|message| message.bytes));
            assert!(heard.len() > before, "it goes on when messages are taken");
        }
        work.abort();
    }
}
