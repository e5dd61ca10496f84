//! `LEASE WATCH`: what happens, pushed to a connection.

use std::sync::Arc;

use leasehold::engine::EventId;
use tokio::sync::Semaphore;

use super::codec::reply::{Protocol, Reply};
use super::event_loop::inbox::Outlet;
use crate::http::shape::Happened;
use crate::service::watch::Told;
use crate::service::{Caller, Denial, Service};

/// Letters of one watch that its pump has not taken yet. A pump may be kept by the disk, and many may resume a long way
/// back at that moment: what they are to be told stays where it is kept once, and is not copied for each of them.
const AHEAD: usize = 4;

/// Tells a connection what happens until it goes away, and answers its command first.
pub async fn tell(
    service: Arc<Service>,
    caller: Caller,
    prefix: String,
    since: Option<EventId>,
    protocol: Protocol,
    outlet: Outlet,
    number: u32,
) {
    let mut out = Vec::new();
    let mut watcher = match service.watch(&caller, prefix, since).await {
        Ok(watcher) => watcher,
        Err(denial) => {
            Reply::new(&mut out, protocol).denial(&denial);
            return outlet.post(Some(number), out, false);
        }
    };
    Reply::new(&mut out, protocol).simple("OK");
    outlet.post(Some(number), out, false);
    let places = Arc::new(Semaphore::new(AHEAD));
    loop {
        // Nobody closes it.
        let place = places.clone().acquire_owned().await.ok();
        match watcher.next().await {
            Ok(told) => {
                let mut out = Vec::new();
                for one in &told {
                    push(one, protocol, &mut out);
                }
                outlet.send(None, out, false, place);
            }
            Err(denial) => return outlet.post(None, goodbye(&denial, protocol), true),
        }
    }
}

fn goodbye(denial: &Denial, protocol: Protocol) -> Vec<u8> {
    let mut out = Vec::new();
    Reply::new(&mut out, protocol).denial(denial);
    out
}

fn push(told: &Told, protocol: Protocol, out: &mut Vec<u8>) {
    match protocol {
        Protocol::Resp3 => push3(told, &mut Reply::new(out, protocol)),
        // As a message on a channel: the only thing that clients of version 2 expect unasked.
        Protocol::Resp2 => {
            let mut reply = Reply::new(out, protocol);
            reply.array(3);
            reply.text("message");
            reply.text("lease");
            reply.text(&json(told));
        }
    }
}

fn push3(told: &Told, reply: &mut Reply<'_>) {
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
    use crate::resp::event_loop::inbox::Mailbox;
    use crate::resp::event_loop::waker::Bell;
    use crate::service::audit::Audit;
    use crate::service::keys::KeyRing;
    use crate::service::{Opened, Peer};

    const NAMES: usize = 4000;

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
        futures_util::future::join_all((0..NAMES).map(|number| engine.acquire(claim(number)))).await;
        let service = Service::new(Opened::Embedded(engine), KeyRing::open(), Audit, SystemClock::shared());
        let peer = Peer(([127, 0, 0, 1], 1).into());
        let caller = service.enter(None, peer).unwrap();
        let (mailbox, bell) = (Arc::new(Mailbox::default()), Arc::new(Bell::new().unwrap()));
        let outlet = Outlet { mailbox: mailbox.clone(), bell, slot: 0, id: 1 };
        let work = tokio::spawn(tell(service, caller, String::new(), Some(begin), Protocol::Resp3, outlet, 7));
        let moment = || tokio::time::sleep_until(tokio::time::Instant::now() + Duration::from_millis(300));
        moment().await;
        let letters = mailbox.take();
        assert_eq!(letters.len(), 1 + AHEAD, "the answer, and what may be ahead");
        let mut heard = letters.into_iter().flat_map(|letter| letter.bytes).collect::<Vec<u8>>();
        while heard.windows(7).filter(|part| *part == b"granted").count() < NAMES {
            let before = heard.len();
            moment().await;
            heard.extend(mailbox.take().into_iter().flat_map(|letter| letter.bytes));
            assert!(heard.len() > before, "it goes on when letters are taken");
        }
        work.abort();
    }
}
