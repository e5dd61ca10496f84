//! What happens, told to those who watch: writes of etcd become events of leases.
//!
//! # Laws
//!
//! 1. An event's number is its revision and its place in it, so every process numbers alike and any can go on.
//! 2. What cannot be told without a gap is a reset: compacted history, another cluster or prefix, a number to come.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use tonic::codec::Streaming;

use super::failure::{CLOSED, EtcdFailure, unavailable};
use super::keys::ContenderKey;
use super::members::CallKind;
use super::messages::{KeyEvent, RangeCall, StoredKey, WatchCreateCall, WatchReply};
use super::plan::stored_wants;
use super::queue_line::grant_token;
use super::shared::EtcdShared;
use super::values::{ContenderState, ContenderValue, EndedValue, StoredEnd};
use crate::clock::Clock as _;
use crate::engine::consensus::lease_id::PublicId;
use crate::engine::{Answer, Event, EventId, EventKind, Seen, Watching};
use crate::error::Error;

/// Numbers that one revision has.
const PER_REVISION: u64 = 4096;
const ATTEMPT: &str = "watch";
/// The reason of a lease whose key somebody deleted without an ending.
pub(super) const DELETED: &str = "its key was deleted in etcd";

/// One watch. See the module.
pub(super) struct EtcdWatcher {
    shared: Arc<EtcdShared>,
    run: u64,
    /// Everything up to here was told.
    told: u64,
    /// A reset is due before anything else.
    reset: bool,
    stream: Option<Streaming<WatchReply>>,
    /// Tells that another member is asked, since the stream was opened.
    moves: watch::Receiver<u64>,
    /// What came and was not told yet. It stays until all of it is read: a call may be dropped, or fail, while etcd is asked.
    unread: Option<WatchReply>,
    /// Which etcd leases of deleted keys in `unread` live on. Each is asked for once, however many keys it had.
    bucket_lives: HashMap<i64, bool>,
}

/// Names the cluster and the prefix.
pub(super) fn run_of(cluster_id: u64, prefix: &str) -> u64 {
    let digest = Sha256::new().chain_update(cluster_id.to_be_bytes()).chain_update(prefix).finalize();
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&digest[..8]);
    u64::from_be_bytes(bytes)
}

/// The last number that a revision can have.
fn last_number(revision: i64) -> u64 {
    u64::try_from(revision).unwrap_or(0).saturating_mul(PER_REVISION).saturating_add(PER_REVISION - 1)
}

impl EtcdWatcher {
    pub async fn open(shared: Arc<EtcdShared>, run: u64, since: Option<EventId>) -> Result<Self, Error> {
        let newest = shared.newest_revision().await;
        let newest = newest.map_err(|failure| failure.into_read_error(ATTEMPT.into()))?;
        let known = since.filter(|id| id.run == run && id.number <= last_number(newest));
        let told = known.map_or_else(|| last_number(newest), |id| id.number);
        let moves = shared.members.watch_moves();
        Ok(Self {
            shared,
            moves,
            run,
            told,
            reset: known.is_none(),
            stream: None,
            unread: None,
            bucket_lives: HashMap::new(),
        })
    }

    async fn next_seen(&mut self) -> Result<Seen, Error> {
        loop {
            self.shared.refuse_closed(ATTEMPT)?;
            if std::mem::take(&mut self.reset) {
                return Ok(Seen::Reset(EventId { run: self.run, number: self.told }));
            }
            if self.unread.is_none() {
                let closed = self.shared.closed.clone();
                let reply = tokio::select! {
                    () = closed.cancelled() => return Err(unavailable(ATTEMPT, CLOSED)),
                    reply = self.next_reply() => reply?,
                };
                self.unread = Some(reply);
            }
            match self.read_unread().await {
                Ok((events, told)) => {
                    self.told = told;
                    self.forget_unread();
                    if !events.is_empty() {
                        return Ok(Seen::Events(events));
                    }
                }
                Err(EtcdFailure::Compacted) => self.start_anew().await?,
                Err(failure) => return Err(failure.into_read_error(ATTEMPT.into())),
            }
        }
    }

    /// Dropping it loses nothing: a stream that was not opened is opened again.
    async fn next_reply(&mut self) -> Result<WatchReply, Error> {
        let mut round = 0;
        loop {
            let Some(stream) = &mut self.stream else {
                let (key, range_end) = self.shared.layout.all();
                // Of a revision that was told in part, the rest is told; of one that was told to its end, nothing.
                let start_revision = i64::try_from((self.told + 1) / PER_REVISION).unwrap_or(i64::MAX);
                self.moves.borrow_and_update();
                let create = WatchCreateCall { key, range_end, start_revision, prev_kv: true };
                match self.shared.members.open_watch(create).await {
                    Ok(stream) => self.stream = Some(stream),
                    Err(EtcdFailure::Never(sentence)) => return Err(Error::Invalid(sentence)),
                    Err(_) => {
                        self.shared.backoff(round).await;
                        round += 1;
                    }
                }
                continue;
            };
            tokio::select! {
                reply = stream.message() => match reply {
                    Ok(Some(reply)) => return Ok(reply),
                    _ => self.stream = None,
                },
                _ = self.moves.changed() => self.stream = None,
            }
        }
    }

    async fn start_anew(&mut self) -> Result<(), Error> {
        let newest = self.shared.newest_revision().await;
        self.told = last_number(newest.map_err(|failure| failure.into_read_error(ATTEMPT.into()))?);
        (self.reset, self.stream) = (true, None);
        self.forget_unread();
        Ok(())
    }

    fn forget_unread(&mut self) {
        self.unread = None;
        self.bucket_lives.clear();
    }

    /// The events of what came, and up to where they tell. Dropping it loses nothing but a little work.
    async fn read_unread(&mut self) -> Result<(Vec<Event>, u64), EtcdFailure> {
        let (mut events, mut told) = (Vec::new(), self.told);
        let Some(reply) = &self.unread else { return Ok((events, told)) };
        if reply.canceled {
            self.stream = None;
            return if reply.compact_revision > 0 { Err(EtcdFailure::Compacted) } else { Ok((events, told)) };
        }
        for of_one in reply.events.chunk_by(|a, b| revision_of(a) == revision_of(b)) {
            let revision = u64::try_from(revision_of(&of_one[0])).unwrap_or(0);
            let facts = read_revision(&self.shared, of_one, &mut self.bucket_lives).await?;
            for (at, fact) in facts.into_iter().enumerate() {
                let index = u64::try_from(at).unwrap_or(u64::MAX).min(PER_REVISION - 2);
                let number = revision.saturating_mul(PER_REVISION).saturating_add(index);
                if number > told {
                    let id = EventId { run: self.run, number };
                    events.push(Event { id, ..fact });
                    told = number;
                }
            }
        }
        Ok((events, told))
    }
}

impl Watching for EtcdWatcher {
    fn next(&mut self) -> Answer<'_, Seen> {
        Box::pin(self.next_seen())
    }
}

impl EtcdShared {
    pub async fn newest_revision(&self) -> Result<i64, EtcdFailure> {
        let call = RangeCall { count_only: true, ..RangeCall::one(self.layout.raw("\u{1}")) };
        let reply = self.members.call(call, CallKind::Read).await?;
        Ok(reply.header.map_or(0, |header| header.revision))
    }
}

fn revision_of(event: &KeyEvent) -> i64 {
    event.kv.as_ref().map_or(0, |kv| kv.mod_revision)
}

/// What the writes of one revision mean. The ids are filled in later.
async fn read_revision(
    shared: &EtcdShared,
    writes: &[KeyEvent],
    bucket_lives: &mut HashMap<i64, bool>,
) -> Result<Vec<Event>, EtcdFailure> {
    let mut events = Vec::new();
    for write in writes {
        let Some(kv) = &write.kv else { continue };
        if let Some(public) = shared.layout.parse_ended(&kv.key) {
            if write.kind == 0 && kv.create_revision == kv.mod_revision {
                events.extend(read_ending(shared, public, kv, writes)?);
            }
            continue;
        }
        let Some((name, ContenderKey::Ours(_, public))) = shared.layout.parse_any(kv) else { continue };
        match write.kind {
            0 => events.extend(read_put(shared, &name, kv, write.prev_kv.as_ref())?),
            _ => {
                let ended = writes.iter().filter_map(|other| other.kv.as_ref());
                let has_ending = ended.filter_map(|other| shared.layout.parse_ended(&other.key)).any(|id| id == public);
                if !has_ending {
                    events.extend(read_deleted(shared, &name, write.prev_kv.as_ref(), bucket_lives).await?);
                }
            }
        }
    }
    Ok(events)
}

/// A first key that was put: granted, or another label.
fn read_put(
    shared: &EtcdShared,
    name: &str,
    kv: &StoredKey,
    before: Option<&StoredKey>,
) -> Result<Option<Event>, EtcdFailure> {
    let value = ContenderValue::parse(&kv.value, &kv.key)?;
    if value.first.is_some() || value.state != ContenderState::Held {
        return Ok(None);
    }
    let is_new = kv.create_revision == kv.mod_revision;
    let kind = match before {
        _ if is_new => EventKind::Granted,
        // History before it is gone.
        None => return Err(EtcdFailure::Compacted),
        Some(before) => {
            let before = ContenderValue::parse(&before.value, &before.key)?;
            match before.state {
                ContenderState::Waiting => EventKind::Granted,
                ContenderState::Held if before.holder != value.holder => EventKind::Relabelled,
                _ => return Ok(None),
            }
        }
    };
    let at = if kind == EventKind::Granted { value.at } else { shared.wall_millis() };
    event(shared, kind, name, &value, kv.mod_revision, "", at).map(Some)
}

/// An ending, with the first key as it was before.
fn read_ending(
    shared: &EtcdShared,
    public: PublicId,
    kv: &StoredKey,
    writes: &[KeyEvent],
) -> Result<Option<Event>, EtcdFailure> {
    let ending = EndedValue::parse(&kv.value, &kv.key)?;
    let kind = match ending.end {
        StoredEnd::Released => EventKind::Released,
        StoredEnd::Lapsed => EventKind::Lapsed,
        StoredEnd::Revoked => EventKind::Revoked,
        StoredEnd::Cancelled => return Ok(None),
    };
    for write in writes {
        let Some(key) = &write.kv else { continue };
        let Some((name, ContenderKey::Ours(_, of))) = shared.layout.parse_any(key) else { continue };
        if of != public {
            continue;
        }
        let Some(before) = &write.prev_kv else { return Err(EtcdFailure::Compacted) };
        let value = ContenderValue::parse(&before.value, &before.key)?;
        if value.first.is_none() {
            return event(shared, kind, &name, &value, before.mod_revision, &ending.reason, ending.at).map(Some);
        }
    }
    Ok(None)
}

/// A first key that is gone without an ending: its bucket ended, or somebody deleted it.
async fn read_deleted(
    shared: &EtcdShared,
    name: &str,
    before: Option<&StoredKey>,
    bucket_lives: &mut HashMap<i64, bool>,
) -> Result<Option<Event>, EtcdFailure> {
    let Some(before) = before else { return Err(EtcdFailure::Compacted) };
    let value = ContenderValue::parse(&before.value, &before.key)?;
    if value.first.is_some() || value.state != ContenderState::Held {
        return Ok(None);
    }
    let lives = match bucket_lives.get(&before.lease) {
        Some(lives) => *lives,
        None => {
            let upper = || shared.lease_clocks.get(before.lease).map(|bounds| bounds.upper);
            let lives = shared.probe(before.lease).await? && upper().is_some_and(|upper| upper > shared.clock.now());
            bucket_lives.insert(before.lease, lives);
            lives
        }
    };
    let (kind, reason) = if lives { (EventKind::Revoked, DELETED) } else { (EventKind::Lapsed, "") };
    event(shared, kind, name, &value, before.mod_revision, reason, shared.wall_millis()).map(Some)
}

fn event(
    shared: &EtcdShared,
    kind: EventKind,
    name: &str,
    value: &ContenderValue,
    written: i64,
    reason: &str,
    at: i64,
) -> Result<Event, EtcdFailure> {
    let elapsed = u64::try_from(shared.wall_millis().saturating_sub(at)).unwrap_or(0);
    Ok(Event {
        id: EventId { run: 0, number: 0 },
        kind,
        token: Some(grant_token(shared, value, written)?),
        holder: value.holder.clone(),
        resources: stored_wants(name, value).into_iter().map(|(name, _)| name).collect(),
        reason: reason.to_owned(),
        ago: Duration::from_millis(elapsed),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every process has the same run for one cluster and prefix, and another one elsewhere.
    #[test]
    fn a_run_names_cluster_and_prefix() {
        assert_eq!(run_of(7, "p/"), run_of(7, "p/"));
        assert_ne!(run_of(7, "p/"), run_of(8, "p/"));
        assert_ne!(run_of(7, "p/"), run_of(7, ""));
    }

    #[test]
    fn numbers_rise_with_revisions() {
        assert_eq!(last_number(3) + 1, 4 * PER_REVISION);
        assert!(last_number(i64::MAX) > last_number(i64::MAX >> 13));
    }
}
