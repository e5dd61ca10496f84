//! Request ids: a retried acquire has one effect, in this process and in the store.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use zookeeper_client::{self as zk, Client};

use crate::clock::Time;
use crate::engine::consensus::lease_id::NamedLease;
use crate::engine::{Grant, Renewal, Token};
use crate::error::{Error, Refusal};

use super::failure::{indeterminate, no_effect, unavailable};
use super::node_name::{NodeStep, contenders, has_turn, position};
use super::node_set::delete_rest;
use super::owner::OwnerWrite;
use super::record::{NodeState, RequestRecord, token_number};
use super::shared::{FoundNode, LeasePaths, ZookeeperShared};

/// How long a request id is remembered after its lease has ended.
pub(super) const KEEP_REQUESTS: Duration = Duration::from_secs(60);
/// How long a request that is about to be refused elsewhere is waited for.
const SETTLE_FOR: Duration = Duration::from_millis(500);
const SETTLE_EVERY: Duration = Duration::from_millis(20);

/// Somebody who waits for the answer of an acquire.
pub(super) struct AcquireCaller {
    pub to: oneshot::Sender<Result<Grant, Error>>,
    pub patience: Time,
}

/// Ends when nobody waits for the answer any more.
pub(super) async fn callers_gone(callers: &mut [AcquireCaller]) {
    std::future::poll_fn(|context| {
        let mut all = true;
        for caller in callers.iter_mut() {
            all &= caller.to.poll_closed(context).is_ready();
        }
        if all { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

/// An acquire with a request id that is under way in this process.
#[derive(Clone)]
struct JoinPoint {
    fingerprint: u64,
    callers: UnboundedSender<AcquireCaller>,
    patience: Time,
    done: CancellationToken,
}

/// What to do with a call.
pub(super) enum JoinResult {
    /// It is the first of its request: run it, and finish it.
    First,
    /// Another call is under way, and answers this one.
    Joined,
    Refused(Error),
}

/// See the module.
#[derive(Default)]
pub(super) struct RequestRegistry {
    under_way: Mutex<HashMap<String, JoinPoint>>,
}

impl RequestRegistry {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, JoinPoint>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the call that is under way, or becomes it.
    pub async fn join(
        &self,
        digest: &str,
        fingerprint: u64,
        now: impl Fn() -> Time,
        mut caller: AcquireCaller,
        mine: &UnboundedSender<AcquireCaller>,
    ) -> JoinResult {
        loop {
            let done = {
                let mut all = self.lock();
                match all.get_mut(digest) {
                    None => {
                        let done = CancellationToken::new();
                        let (callers, patience) = (mine.clone(), caller.patience);
                        let point = JoinPoint { fingerprint, callers, patience, done };
                        all.insert(digest.to_owned(), point);
                        // The receiver is ours: it is there.
                        let _ = mine.send(caller);
                        return JoinResult::First;
                    }
                    // One whose patience is over is as good as refused, and a refusal is not remembered.
                    Some(other) if other.fingerprint != fingerprint && now() < other.patience => {
                        return JoinResult::Refused(Refusal::Mismatch.into());
                    }
                    Some(other) if other.fingerprint == fingerprint => {
                        other.patience = other.patience.max(caller.patience);
                        match other.callers.send(caller) {
                            Ok(()) => return JoinResult::Joined,
                            Err(back) => caller = back.0,
                        }
                        other.done.clone()
                    }
                    Some(other) => other.done.clone(),
                }
            };
            done.cancelled().await;
        }
    }

    /// The call is done: the next one of its request is a first one again.
    pub fn finish(&self, digest: &str) {
        if let Some(point) = self.lock().remove(digest) {
            point.done.cancel();
        }
    }
}

/// Names a request in the store.
pub(super) fn request_digest(principal: &str, request: &str) -> String {
    let digest = Sha256::new().chain_update(principal).chain_update([0]).chain_update(request).finalize();
    digest[..16].iter().fold(String::with_capacity(32), |text, byte| text + &format!("{byte:02x}"))
}

/// What the store knows of a request that was there before.
pub(super) enum KnownRequest {
    /// This is the answer.
    Answer(Result<Grant, Error>),
    /// Nothing any more: try again.
    Nothing,
}

impl ZookeeperShared {
    /// What became of a request whose node exists.
    pub async fn known_request(&self, client: &Client, digest: &str, fingerprint: u64) -> KnownRequest {
        let by = self.now().plus(SETTLE_FOR);
        loop {
            match self.read_request(client, digest, fingerprint).await {
                Ok(Some(answer)) => return KnownRequest::Answer(answer),
                Ok(None) => return KnownRequest::Nothing,
                // It still waits, or is about to be refused, at another process.
                Err(last) if self.now() >= by => return KnownRequest::Answer(Err(last)),
                Err(_) => self.options.clock.sleep_until(self.now().plus(SETTLE_EVERY)).await,
            }
        }
    }

    /// The answer, or nothing. The error: what to answer if nothing changes.
    async fn read_request(
        &self,
        client: &Client,
        digest: &str,
        fingerprint: u64,
    ) -> Result<Option<Result<Grant, Error>>, Error> {
        let (path, attempt) = (self.paths.request(digest), "acquire by a request id");
        let failed = |error| no_effect(attempt, error);
        let (data, stat) = match client.get_data(&path).await {
            Err(zk::Error::NoNode) => return Ok(None),
            Err(error) => return Ok(Some(Err(failed(error)))),
            Ok(read) => read,
        };
        let corrupt =
            || Error::Corrupt { engine: super::failure::ENGINE, law: "a request parses".into(), at: path.clone() };
        let record = RequestRecord::parse(&data);
        let written = record.as_ref().and_then(|record| record.token);
        let token = written.or_else(|| token_number(stat.mzxid, self.options.token_base)).and_then(Token::new);
        let lease = record.as_ref().zip(token).and_then(|(record, token)| record.lease(token));
        let (Some(record), Some(lease)) = (record, lease) else { return Ok(Some(Err(corrupt()))) };
        let found = match self.find_first(client, &lease.first, Self::public_id(&lease)).await {
            Err(error) => return Ok(Some(Err(failed(error)))),
            Ok(found) => found,
        };
        let waits = match &found {
            Some(found) => !self.is_granted(client, found, &record, &lease.first).await.unwrap_or(false),
            None => record.state == NodeState::Waiting,
        };
        if waits && found.is_none() {
            // Its place went with its session: nothing of it is left but this.
            return match client.delete(&path, Some(stat.version)).await {
                Ok(()) | Err(zk::Error::NoNode | zk::Error::BadVersion) => Ok(None),
                Err(error) => Ok(Some(Err(indeterminate(attempt, error.to_string().into())))),
            };
        }
        if found.is_none() && client.check_stat(&path).await.map_err(failed)?.is_none_or(|now| now.mzxid != stat.mzxid)
        {
            // It went with its nodes after it was read: it was refused, and granted nothing.
            return Err(unavailable(attempt, "its first try is being refused at another server: come again".into()));
        }
        if record.fingerprint != fingerprint {
            let mismatch = Refusal::Mismatch.into();
            return if waits { Err(mismatch) } else { Ok(Some(Err(mismatch))) };
        }
        if waits {
            return Err(unavailable(attempt, "its first try still waits at another server: ask that one".into()));
        }
        let Renewal { remaining, renewable } = self.time_left(client, attempt, &lease, found).await?;
        Ok(Some(Ok(Grant { lease_id: lease.to_lease_id(), token: Some(lease.token), remaining, renewable })))
    }

    /// What is left of a lease that was found or has ended. Where only a renewal can tell that, it is renewed: whoever repeats
    /// its request is its owner.
    async fn time_left(
        &self,
        client: &Client,
        attempt: &str,
        lease: &NamedLease,
        found: Option<FoundNode>,
    ) -> Result<Renewal, Error> {
        const OVER: Renewal = Renewal { remaining: Duration::ZERO, renewable: None };
        let failed = |error| no_effect(attempt, error);
        let Some(found) = found else { return Ok(OVER) };
        let LeasePaths { paths, is_whole } = self.find_paths(client, &found, &lease.first).await.map_err(failed)?;
        if !is_whole {
            delete_rest(client, &paths).await.map_err(failed)?;
            return Ok(OVER);
        }
        let is_closed = found.record.state == NodeState::Closed;
        let known = self.known_time_left(lease, &found);
        if found.record.server == self.server && self.table.get(&Self::public_id(lease)).is_none() {
            // Granted by this process, whose reply was lost: nobody minds it yet.
            self.mind(found, lease, paths);
        }
        if is_closed {
            return Ok(OVER);
        }
        if let Some(known) = known {
            return Ok(known);
        }
        match self.write_lease(attempt, &lease.to_lease_id(), &OwnerWrite::Renew(None)).await {
            Err(Error::Refused(_)) => Ok(OVER),
            renewed => renewed,
        }
    }

    async fn is_granted(
        &self,
        client: &Client,
        found: &FoundNode,
        request: &RequestRecord,
        first: &str,
    ) -> Result<bool, zk::Error> {
        if found.record.waits(found.node.step) {
            return Ok(false);
        }
        let is_held = request.state == NodeState::Held || found.record.state == NodeState::Held;
        if is_held || found.node.step == Some(NodeStep::Holder) {
            return Ok(true);
        }
        // As `QueuePlace::grants` decides. Otherwise it is for the process that made the node to say.
        let names = if found.record.names.is_empty() { vec![first.to_owned()] } else { found.record.names.clone() };
        for name in names {
            let (children, parent) = client.get_children(&self.paths.directory(&name)).await?;
            let queue = contenders(&children);
            let at = found.node.key.as_ref().and_then(|key| position(&queue, key));
            if parent.pzxid != found.stat.czxid || !at.is_some_and(|at| has_turn(&queue, at)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What is left of a live lease, if this machine can tell. The record of another boot does not say: the ttl counts from a
    /// write that this machine did not see.
    fn known_time_left(&self, lease: &NamedLease, found: &FoundNode) -> Option<Renewal> {
        let (now, clock) = (self.now(), &*self.options.clock);
        let minded = self.table.get(&Self::public_id(lease)).filter(|_| found.record.server == self.server);
        let end = minded.and_then(|minded| minded.end()).or_else(|| found.record.known_end(clock))?;
        let cap = found.record.known_cap(clock);
        if found.record.max_hold.is_some() && cap.is_none() {
            return None;
        }
        Some(Renewal { remaining: end.since(now), renewable: cap.map(|cap| cap.since(now)) })
    }
}
