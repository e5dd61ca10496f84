//! The acquires of this process that wait: messages and heartbeats find them here.
//!
//! ```text
//!   message of the server ──▶ WaitRegistry ──▶ WaitTicket of each call ──▶ acquire task
//!   heartbeat, every 3 s  ──▶ one beat for all of them ──▶ the same way
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::claim_text::record_key;
use super::connect::NodePush;
use super::decode::{ClaimReply, GrantedReply, NextLook, claim_replies};
use super::errors::CallError;
use super::node::{PUSH_SLOT, RedisNode, ScriptCall, spread};
use super::scripts::Script;

/// A waiter is believed to be alive for 10 s: three heartbeats.
const BEAT_EVERY: Duration = Duration::from_secs(3);
/// How often role and settings are read again.
const VERIFY_EVERY: Duration = Duration::from_secs(30);
/// The same, while they are too weak: it may be a matter of seconds. So often it is looked whether they are.
const VERIFY_WEAK_EVERY: Duration = Duration::from_secs(2);
/// Records in one beat: a script that walks thousands would hold up everybody else.
const RECORDS_PER_BEAT: usize = 500;

/// See the module.
#[derive(Default)]
pub(super) struct WaitRegistry {
    entries: Mutex<WaitEntries>,
    /// The connection for messages is gone.
    disconnected: Notify,
}

#[derive(Default)]
struct WaitEntries {
    by_handle: HashMap<String, WaitEntry>,
    last_id: u64,
}

/// All calls of this process that wait for one record: more than one when a request was repeated.
struct WaitEntry {
    fingerprint: String,
    calls: Vec<(u64, UnboundedSender<WaitSignal>)>,
}

/// What a waiting call is told.
#[derive(Clone, Debug)]
pub(super) enum WaitSignal {
    /// The server said so in a message.
    Granted(GrantedReply),
    /// When to look.
    Look(NextLook),
    /// What a heartbeat found.
    Beat(ClaimReply),
}

/// One waiting call. Dropping it ends the signals.
pub(super) struct WaitTicket {
    registry: Arc<WaitRegistry>,
    handle: String,
    id: u64,
    pub signals: UnboundedReceiver<WaitSignal>,
}

impl WaitRegistry {
    fn lock(&self) -> MutexGuard<'_, WaitEntries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Before the acquire is sent: its grant may be told before its reply is read.
    pub fn register(self: &Arc<Self>, handle: &str, fingerprint: &str) -> WaitTicket {
        let (to, signals) = unbounded_channel();
        let mut entries = self.lock();
        entries.last_id += 1;
        let id = entries.last_id;
        let entry = entries
            .by_handle
            .entry(handle.to_owned())
            .or_insert_with(|| WaitEntry { fingerprint: fingerprint.to_owned(), calls: Vec::new() });
        entry.calls.push((id, to));
        WaitTicket { registry: self.clone(), handle: handle.to_owned(), id, signals }
    }

    /// A push of the server.
    pub fn receive(&self, push: &NodePush) {
        match push {
            NodePush::Disconnected => self.disconnected.notify_one(),
            NodePush::Message(message) => {
                if let Some((handle, signal)) = parse_message(message) {
                    self.send_signal(handle, &signal);
                }
            }
        }
    }

    fn send_signal(&self, handle: &str, signal: &WaitSignal) {
        if let Some(entry) = self.lock().by_handle.get(handle) {
            for (_, to) in &entry.calls {
                // A call that is gone takes its entry away itself.
                let _ = to.send(signal.clone());
            }
        }
    }

    fn waiting(&self) -> Vec<(String, String)> {
        let entries = self.lock();
        entries.by_handle.iter().map(|(handle, entry)| (handle.clone(), entry.fingerprint.clone())).collect()
    }

    /// One beat for every waiting call.
    async fn beat_all(&self, node: &Arc<RedisNode>) -> Result<(), CallError> {
        for chunk in self.waiting().chunks(RECORDS_PER_BEAT) {
            let replies = beat(node, PUSH_SLOT, chunk).await?;
            for ((handle, _), reply) in chunk.iter().zip(replies) {
                self.send_signal(handle, &WaitSignal::Beat(reply));
            }
        }
        Ok(())
    }

    /// Keeps the waiters of this process alive. Ends when the engine is closed.
    pub async fn run_heartbeat(self: Arc<Self>, node: Arc<RedisNode>) {
        loop {
            let next = node.clock.now().plus(spread(BEAT_EVERY, 0.8, 1.2));
            tokio::select! {
                () = node.closed.cancelled() => return,
                () = node.clock.sleep_until(next) => {}
            }
            // Without a connection the next heartbeat tries again, and so does the supervisor.
            let _ = self.beat_all(&node).await;
        }
    }

    /// Keeps the connection for messages, and reads role and settings again. Ends when the engine is closed.
    pub async fn run_supervisor(self: Arc<Self>, node: Arc<RedisNode>) {
        let mut failures: u32 = 0;
        let mut verify_at = node.clock.now().plus(VERIFY_EVERY);
        loop {
            let retry = async {
                if failures > 0 {
                    node.backoff(failures.min(6)).await;
                } else {
                    loop {
                        node.clock.sleep_until(node.clock.now().plus(VERIFY_WEAK_EVERY)).await;
                        if node.weakness().is_some() || node.clock.now() >= verify_at {
                            return;
                        }
                    }
                }
            };
            tokio::select! {
                () = node.closed.cancelled() => return,
                () = self.disconnected.notified(), if failures == 0 => {}
                () = retry => {}
            }
            verify_at = node.clock.now().plus(VERIFY_EVERY);
            let verified = node.verify_again().await.map(drop);
            // Messages may have been missed.
            let beaten = if verified.is_ok() { self.beat_all(&node).await } else { verified };
            if beaten.is_ok() {
                // The other connections were probably lost with this one.
                let _ = tokio::join!(node.connection(1), node.connection(2), node.connection(3));
            }
            failures = if beaten.is_ok() { 0 } else { failures.saturating_add(1) };
        }
    }
}

impl WaitTicket {
    /// Whether no other call of this process waits for the same record.
    pub fn is_last(&self) -> bool {
        self.registry.lock().by_handle.get(&self.handle).is_none_or(|entry| entry.calls.len() <= 1)
    }
}

impl Drop for WaitTicket {
    fn drop(&mut self) {
        let mut entries = self.registry.lock();
        if let Some(entry) = entries.by_handle.get_mut(&self.handle) {
            entry.calls.retain(|(id, _)| *id != self.id);
            if entry.calls.is_empty() {
                entries.by_handle.remove(&self.handle);
            }
        }
    }
}

/// One beat for these records: handle and fingerprint of each.
pub(super) async fn beat(
    node: &Arc<RedisNode>,
    slot: usize,
    records: &[(String, String)],
) -> Result<Vec<ClaimReply>, CallError> {
    let (keys, args) = records.iter().map(|(handle, print)| (record_key(handle), print.clone())).unzip();
    let value = node.run_script(&ScriptCall { script: Script::Beat, slot, keys, args }).await?;
    let replies = claim_replies(&value).map_err(|odd| CallError::Unknown(Box::new(odd)))?;
    if replies.len() != records.len() {
        return Err(CallError::Unknown("a beat was answered in part".into()));
    }
    Ok(replies)
}

/// `G handle token left cap`, or `L handle ms`.
fn parse_message(message: &str) -> Option<(&str, WaitSignal)> {
    let mut words = message.split(' ');
    let (kind, handle) = (words.next()?, words.next()?);
    let signal = match kind {
        "G" => WaitSignal::Granted(GrantedReply {
            token: words.next()?.parse().ok()?,
            remaining_ms: Some(words.next()?.parse().ok()?),
            cap_left_ms: words.next()?.parse().ok(), // -1 stands for none
            secret: None,
            fresh: true,
        }),
        "L" => WaitSignal::Look(NextLook::from_number(words.next()?.parse().ok()?)),
        _ => return None,
    };
    Some((handle, signal))
}
