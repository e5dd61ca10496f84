//! `LEASE WATCH`: what happens, pushed to a connection.

use std::sync::Arc;

use leasehold::engine::{Event, EventId};

use super::mail::{Bell, Letter, Mailbox};
use super::reply::{Protocol, Reply};
use crate::service::watch::Told;
use crate::service::{Caller, Denial, Service};

/// Where pushes go.
#[derive(Clone)]
pub struct Outlet {
    pub mailbox: Arc<Mailbox>,
    pub bell: Arc<Bell>,
    pub slot: u32,
    pub id: u64,
}

impl Outlet {
    /// Sends bytes to the connection.
    pub fn post(&self, number: Option<u32>, bytes: Vec<u8>, last: bool) {
        let letter = Letter { slot: self.slot, id: self.id, number, bytes, last };
        self.mailbox.post(letter, &self.bell);
    }
}

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
    loop {
        match watcher.next().await {
            Ok(told) => {
                let mut out = Vec::new();
                for one in &told {
                    push(one, protocol, &mut out);
                }
                outlet.post(None, out, false);
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
            reply.text(&json(told).to_string());
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
pub fn json(told: &Told) -> serde_json::Value {
    match told {
        Told::Reset(id) => serde_json::json!({"kind": "reset", "id": id.to_string()}),
        Told::Event(event, prev) => event_json(event, *prev),
    }
}

fn event_json(event: &Event, prev: EventId) -> serde_json::Value {
    let mut value = serde_json::json!({
        "id": event.id.to_string(),
        "prev": prev.to_string(),
        "kind": event.kind.word(),
        "token": event.token.map(|token| token.to_string()),
        "resources": event.resources,
        "holder": event.holder,
        "ago_ms": u64::try_from(event.ago.as_millis()).unwrap_or(u64::MAX),
    });
    if !event.reason.is_empty() {
        value["reason"] = event.reason.clone().into();
    }
    value
}
