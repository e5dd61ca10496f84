//! One acquire, from its first request to its answer, even if its caller or the connection goes away.
//!
//! ```text
//!   create + list ─ has its turn ─▶ granted                       (token: zxid of the create)
//!        │ ├─ no patience ─▶ removed, held
//!        │ └─ waits ─▶ swap for a waiting node ─▶ turn ─▶ swap for a holder's node ─▶ granted (zxid of the swap)
//!        │                    ├─ patience is over, caller gone, closed ─▶ removed
//!        │                    └─ the session is over ─▶ the place is lost
//!        └─ reply lost ─▶ the session answers again, or is over ─▶ sync, list: there, or never
//! ```
//!
//! # Laws
//!
//! 1. Nothing is answered on a guess: a lost reply is found again by the id in the node's name, or is Indeterminate.
//! 2. A grant that nobody will see is ended. With a request id it stays for its ttl: a retry may come for it.
//! 3. Whatever was left because the ensemble did not answer is removed as soon as it does.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::oneshot;
use zookeeper_client::Client;

use crate::clock::{Time, until};
use crate::engine::acquire_future::{AcquireFuture, EndsUnseen};
use crate::engine::{Claim, Grant, Mode, Token};
use crate::error::{Error, Refusal};

use super::failure::{CLOSED, ENGINE, PLACE_LOST, copy_error, failed_write, indeterminate, no_effect, unavailable};
use super::lease_table::{LeaseNodes, MindedLease};
use super::node_name::{NodeStep, QueueNode, blind_client, has_turn, other_capacity, position};
use super::node_set::NodeChange;
use super::numbering::is_usable;
use super::place::{ClaimIds, PlaceResult, PlaceWriter, QueuePlace};
use super::record::NodeState;
use super::requests::{AcquireCaller, JoinResult, KnownRequest, callers_gone};
use super::shared::{CONNECT_WAIT, ZookeeperShared};
use super::wait_queue::{QueueNews, QueuePlaces};

/// How long the outcome of a lost reply is looked for, beyond the caller's patience.
const RESOLVE_FOR: Duration = Duration::from_secs(4);
/// How long what was left behind is looked for when nobody waits for it.
const CLEAN_UP_FOR: Duration = Duration::from_secs(120);
/// How often an acquire begins anew, when its request was forgotten or its nodes never came to be.
const MAX_ROUNDS: usize = 16;

type AcquireResult = Result<Grant, Error>;

/// See the module.
pub(super) struct ZookeeperAcquireTask {
    shared: Arc<ZookeeperShared>,
    claim: Claim,
    ids: ClaimIds,
    incoming: UnboundedReceiver<AcquireCaller>,
    callers: Vec<AcquireCaller>,
    patience: Time,
}

/// How a part of an acquire ended.
enum AcquireStep {
    /// With this answer; none when nobody waits for one.
    Done(Option<AcquireResult>),
    /// It begins anew.
    Again,
}

/// Why waiting ended.
enum WaitEnd {
    Turn,
    Lost,
    /// Somebody came who does not see our nodes.
    Blind(&'static str),
    PatienceOver,
    CallersGone,
    Closed,
}

/// Answers an acquire: its own, or that of another call with the same request id.
pub(super) async fn acquire(shared: &Arc<ZookeeperShared>, claim: Claim) -> AcquireResult {
    let attempt = attempt_text(&claim);
    let (to, from) = oneshot::channel();
    let patience = shared.now().plus(claim.wait);
    let caller = AcquireCaller { to, patience };
    let (callers, incoming) = unbounded_channel();
    let ids = ClaimIds::new(&claim);
    let anonymous = claim.request.is_none();
    let future = AcquireFuture::new(from, ENGINE, attempt, anonymous.then(|| shared.clone()));
    let request = ids.request.clone();
    let task = ZookeeperAcquireTask { shared: shared.clone(), claim, ids, incoming, callers: Vec::new(), patience };
    match request {
        None => {
            // The receiver is in the task.
            let _ = callers.send(caller);
            drop(callers);
            shared.tasks.spawn_on(task.run(), &shared.runtime);
        }
        Some((digest, fingerprint)) => {
            let joined = shared.requests.join(&digest, fingerprint, || shared.now(), caller, &callers).await;
            match joined {
                JoinResult::First => drop(shared.tasks.spawn_on(task.run(), &shared.runtime)),
                JoinResult::Joined => drop(task),
                JoinResult::Refused(error) => return Err(error),
            }
        }
    }
    future.await
}

fn attempt_text(claim: &Claim) -> String {
    match &claim.wants[..] {
        [want] => format!("acquire {}", want.name),
        wants => format!("acquire {} and {} more", wants[0].name, wants.len() - 1),
    }
}

impl EndsUnseen for Arc<ZookeeperShared> {
    fn end_unseen(&self, grant: Grant) {
        let shared = self.clone();
        self.tasks.spawn_on(async move { shared.release_unseen(&grant.lease_id).await }, &self.runtime);
    }
}

impl ZookeeperAcquireTask {
    async fn run(mut self) {
        let answer = self.run_rounds().await;
        if let Some((digest, _)) = &self.ids.request {
            self.shared.requests.finish(digest);
        }
        // Those who joined in the last moment.
        self.incoming.close();
        self.take_callers();
        let Some(answer) = answer else { return };
        let (mut seen, callers) = (false, std::mem::take(&mut self.callers));
        for caller in callers {
            let copy = match &answer {
                Ok(grant) => Ok(grant.clone()),
                Err(error) => Err(copy_error(error)),
            };
            seen |= caller.to.send(copy).is_ok();
        }
        if let Ok(grant) = answer
            && !seen
            && self.ids.request.is_none()
        {
            self.shared.release_unseen(&grant.lease_id).await;
        }
    }

    fn take_callers(&mut self) {
        while let Ok(caller) = self.incoming.try_recv() {
            self.patience = self.patience.max(caller.patience);
            self.callers.push(caller);
        }
    }

    fn writer(&self) -> PlaceWriter<'_> {
        PlaceWriter { shared: &self.shared, claim: &self.claim, ids: &self.ids }
    }

    fn attempt(&self) -> String {
        attempt_text(&self.claim)
    }

    fn waits(&self) -> bool {
        !self.claim.wait.is_zero() || self.patience > self.shared.now()
    }

    fn everybody_is_gone(&mut self) -> bool {
        self.take_callers();
        self.callers.iter().all(|caller| caller.to.is_closed())
    }

    async fn run_rounds(&mut self) -> Option<AcquireResult> {
        for _ in 0..MAX_ROUNDS {
            self.take_callers();
            if self.everybody_is_gone() {
                return None;
            }
            let by = self.patience.max(self.shared.now().plus(CONNECT_WAIT));
            let slot = self.shared.slot(&self.claim.wants[0].name);
            let client = tokio::select! {
                client = self.shared.pool.connected_by(slot, by) => client,
                () = self.shared.closed.cancelled() => Err(CLOSED.into()),
            };
            let client = match client {
                Ok(client) => client,
                Err(source) => return Some(Err(unavailable(self.attempt(), source))),
            };
            match self.one_round(&client).await {
                AcquireStep::Done(answer) => return answer,
                AcquireStep::Again => {
                    self.ids = ClaimIds { request: self.ids.request.take(), ..ClaimIds::new(&self.claim) }
                }
            }
        }
        Some(Err(unavailable(self.attempt(), "the ensemble keeps changing its mind: come again".into())))
    }

    async fn one_round(&mut self, client: &Client) -> AcquireStep {
        let (attempt, patience) = (self.attempt(), self.patience);
        let replaced = tokio::select! {
            biased;
            replaced = self.shared.replace_used_up(client, &attempt, &self.claim.wants, patience) => replaced,
            () = callers_gone(&mut self.callers) => return AcquireStep::Done(None),
        };
        match replaced {
            Ok(None) => {}
            Ok(Some(error)) => return AcquireStep::Done(Some(Err(error))),
            Err(error) => return AcquireStep::Done(Some(Err(no_effect(attempt, error)))),
        }
        if !self.waits()
            && self.ids.request.is_none()
            && self.claim.wants.iter().any(|want| self.shared.was_held(&want.name))
        {
            match self.look_first(client).await {
                Ok(Some(error)) => return AcquireStep::Done(Some(Err(error))),
                Ok(None) => {}
                Err(error) => return AcquireStep::Done(Some(Err(no_effect(self.attempt(), error)))),
            }
        }
        let sent = self.shared.now();
        match self.writer().place(client).await {
            PlaceResult::Placed(place, queues) => self.decide(place, queues).await,
            PlaceResult::RequestExists => {
                let Some((digest, fingerprint)) = &self.ids.request else { return AcquireStep::Again };
                match self.shared.known_request(client, digest, *fingerprint).await {
                    KnownRequest::Answer(answer) => AcquireStep::Done(Some(answer)),
                    KnownRequest::Nothing => AcquireStep::Again,
                }
            }
            PlaceResult::Unknown => match self.find_again(client, sent).await {
                Ok(Some((place, _))) if self.shared.now() >= place.sent.plus(self.claim.ttl) => {
                    // Found again too late: what was granted is over.
                    self.remove_place(place).await;
                    AcquireStep::Again
                }
                Ok(Some((place, queues))) => self.decide(place, queues).await,
                Ok(None) => AcquireStep::Again,
                Err(error) => AcquireStep::Done(Some(Err(error))),
            },
            PlaceResult::Gone => AcquireStep::Done(Some(Err(unavailable(self.attempt(), PLACE_LOST.into())))),
            PlaceResult::Failed(error) => AcquireStep::Done(Some(Err(no_effect(self.attempt(), error)))),
        }
    }

    /// What became of a request whose reply was lost: a place, or nothing for good.
    async fn find_again(
        &self,
        client: &Client,
        sent: Time,
    ) -> Result<Option<(QueuePlace, Vec<Vec<QueueNode>>)>, Error> {
        let by = self.patience.max(self.shared.now()).plus(RESOLVE_FOR);
        loop {
            let found = match self.writer().find_again(client, sent, by).await {
                None => {
                    self.clean_up_later(client.clone(), sent);
                    let source = "the connection was lost, and the ensemble does not answer yet".into();
                    return Err(indeterminate(self.attempt(), source));
                }
                Some(found) => found,
            };
            match found {
                None => return Ok(None),
                Some(PlaceResult::Placed(place, queues)) => {
                    let another = place.client.session_id() != client.session_id();
                    let ends_with_session = !self.shared.is_minded() || place.step == NodeStep::Waiting;
                    if another && ends_with_session {
                        // Its session is over: the node only has not been removed yet.
                        self.remove_place(place).await;
                        return Err(unavailable(self.attempt(), PLACE_LOST.into()));
                    }
                    return Ok(Some((place, queues)));
                }
                Some(PlaceResult::Failed(_) | PlaceResult::Gone) => {
                    return Err(unavailable(self.attempt(), PLACE_LOST.into()));
                }
                Some(PlaceResult::Unknown | PlaceResult::RequestExists) => {}
            }
        }
    }

    /// Whether somebody is in the way, without writing anything. The answer, if there is one.
    async fn look_first(&self, client: &Client) -> Result<Option<Error>, zookeeper_client::Error> {
        for want in &self.claim.wants {
            let queue = self.shared.fresh_queue(client, &want.name).await?;
            if let Some(error) = self.refuse_queue(&queue, &queue, want.mode) {
                return Ok(Some(error));
            }
            if !crate::engine::admission::is_admitted(queue.iter().map(|node| node.mode), want.mode) {
                return self.shared.held_by(client, &want.name, &queue, None).await.map(Some);
            }
        }
        Ok(None)
    }

    /// What makes a queue impossible for this claim.
    fn refuse_queue(&self, everybody: &[QueueNode], before: &[QueueNode], mode: Mode) -> Option<Error> {
        if let Some(sentence) = blind_client(everybody, self.shared.options.layout) {
            return Some(Error::Invalid(sentence.into()));
        }
        let other = other_capacity(before, mode)?;
        Some(Error::Invalid(format!("the capacity is {other} while it is in use")))
    }

    async fn decide(&mut self, place: QueuePlace, queues: Vec<Vec<QueueNode>>) -> AcquireStep {
        if place.nodes.iter().any(|node| !is_usable(node.number)) {
            for node in place.nodes.iter().filter(|node| !is_usable(node.number)) {
                self.shared.used_up.insert(&self.claim.wants[node.want].name);
            }
            self.remove_place(place).await;
            return AcquireStep::Again;
        }
        let (mut blocked, mut full) = (None, None);
        for (at, (want, queue)) in self.claim.wants.iter().zip(&queues).enumerate() {
            let Some(mine) = position(queue, &self.ids.key) else {
                self.remove_place(place).await;
                return AcquireStep::Done(Some(Err(unavailable(self.attempt(), PLACE_LOST.into()))));
            };
            if let Some(error) = self.refuse_queue(queue, &queue[..mine], want.mode) {
                self.remove_place(place).await;
                return AcquireStep::Done(Some(Err(error)));
            }
            if !has_turn(queue, mine) {
                blocked.get_or_insert(at);
                let waiting = (0..mine).filter(|other| !has_turn(queue, *other)).count();
                if waiting >= self.shared.options.limits.waiters_per_resource {
                    full.get_or_insert(at);
                }
            }
        }
        if let (Some(at), true) = (full, self.waits()) {
            let resource = self.claim.wants[at].name.clone();
            self.remove_place(place).await;
            return AcquireStep::Done(Some(Err(Refusal::QueueFull { resource }.into())));
        }
        match blocked {
            None if place.grants() => AcquireStep::Done(Some(self.grant(place))),
            // Its turn came later: a write of now is the grant, and its token is above all that were before it.
            None if place.step == NodeStep::First => match self.change_step(place, NodeStep::Holder).await {
                Ok(place) => AcquireStep::Done(Some(self.grant(place))),
                Err(step) => step,
            },
            None => self.wait(place).await,
            Some(at) if !self.waits() => {
                let name = self.claim.wants[at].name.clone();
                self.shared.note_held(&name);
                let mine = position(&queues[at], &self.ids.key).unwrap_or(0);
                let client = place.client.clone();
                let number = queues[at].get(mine).map(|node| node.number);
                let held = self.shared.held_by(&client, &name, &queues[at][..mine], number);
                let (held, ()) = tokio::join!(held, self.remove_place(place));
                let held = held.unwrap_or_else(|error| no_effect(self.attempt(), error));
                AcquireStep::Done(Some(Err(held)))
            }
            Some(_) => self.wait(place).await,
        }
    }

    /// The nodes are those of a holder: this is a grant.
    fn grant(&self, place: QueuePlace) -> AcquireResult {
        let token = match self.shared.token(place.zxid) {
            Ok(token) => token,
            Err(error) => {
                self.clean_up_later(place.client.clone(), place.sent);
                return Err(error);
            }
        };
        let writer = self.writer();
        let mut record = writer.record(NodeState::Held, place.sent);
        record.token = Some(token.get());
        let end = Time::from_nanos(record.until);
        let nodes = LeaseNodes {
            paths: writer.node_paths(&place),
            version: place.version,
            session: (!self.shared.is_minded()).then(|| place.client.session_id().0),
            end,
            span: end.since(place.sent),
            cap: record.cap.map(Time::from_nanos),
            record,
            over: false,
        };
        let (cap, end_at, first) = (nodes.cap, nodes.end_at(), self.claim.wants[0].name.clone());
        let lease = MindedLease::new(self.ids.public, first, self.ids.letter, token, nodes);
        self.shared.table.insert(lease, end_at);
        if place.step == NodeStep::First {
            self.note_granted(&place.client, token);
        }
        let now = self.shared.now();
        Ok(Grant {
            lease_id: self.ids.lease(&self.claim, token).to_lease_id(),
            token: Some(token),
            remaining: end.since(now),
            renewable: cap.map(|cap| cap.since(now)),
        })
    }

    /// Tells those who repeat the request elsewhere that the node which was made is a grant. They cannot see it in the queue
    /// once that has changed. Nobody waits for it: until then they are told to come again.
    fn note_granted(&self, client: &Client, token: Token) {
        let Some((path, data)) = self.writer().request_data(NodeState::Held, Some(token)) else { return };
        let client = client.clone();
        self.shared.runtime.spawn(async move { client.set_data(&path, &data, None).await.map(drop) });
    }

    async fn wait(&mut self, mut place: QueuePlace) -> AcquireStep {
        if place.step == NodeStep::First {
            place = match self.change_step(place, NodeStep::Waiting).await {
                Ok(place) => place,
                Err(step) => return step,
            };
        }
        let (ended, places) = self.wait_for_turn(&place).await;
        match ended {
            WaitEnd::Turn => {
                let changed = self.change_step(place, NodeStep::Holder).await;
                // Now those behind may look.
                drop(places);
                match changed {
                    Ok(place) => AcquireStep::Done(Some(self.grant(place))),
                    Err(step) => step,
                }
            }
            WaitEnd::Lost => {
                self.remove_place(place).await;
                AcquireStep::Done(Some(Err(unavailable(self.attempt(), PLACE_LOST.into()))))
            }
            WaitEnd::Blind(sentence) => {
                self.remove_place(place).await;
                AcquireStep::Done(Some(Err(Error::Invalid(sentence.into()))))
            }
            WaitEnd::Closed => {
                self.remove_place(place).await;
                AcquireStep::Done(Some(Err(unavailable(self.attempt(), CLOSED.into()))))
            }
            WaitEnd::CallersGone => {
                self.remove_place(place).await;
                AcquireStep::Done(None)
            }
            WaitEnd::PatienceOver => AcquireStep::Done(Some(Err(self.give_up(place).await))),
        }
    }

    /// Moves the nodes a step on, and finds out what happened if the reply is lost.
    async fn change_step(&mut self, mut place: QueuePlace, step: NodeStep) -> Result<QueuePlace, AcquireStep> {
        loop {
            let changed = match step {
                NodeStep::Holder => self.writer().become_holder(&mut place).await,
                _ => self.writer().become_waiting(&mut place).await,
            };
            let error = match changed {
                Ok(NodeChange::Done(Some(_))) => return Ok(place),
                Ok(NodeChange::Done(None)) if step == NodeStep::Waiting => return Ok(place),
                Ok(NodeChange::Done(None)) => None,
                Ok(NodeChange::Gone | NodeChange::Changed) => {
                    self.remove_place(place).await;
                    return Err(AcquireStep::Done(Some(Err(unavailable(self.attempt(), PLACE_LOST.into())))));
                }
                Err(error) => Some(error),
            };
            if let Some(error) = error
                && !super::failure::is_lost(&error)
            {
                let attempt = self.attempt();
                self.remove_place(place).await;
                return Err(AcquireStep::Done(Some(Err(failed_write(attempt, error)))));
            }
            let (client, sent, version) = (place.client.clone(), place.sent, place.version);
            match self.find_again(&client, sent).await {
                Ok(Some((found, _))) => {
                    let session_done = !self.shared.is_minded() && found.version > version;
                    place = QueuePlace { sent, ..found };
                    if place.step == step || session_done {
                        return Ok(place);
                    }
                }
                Ok(None) => return Err(AcquireStep::Done(Some(Err(unavailable(self.attempt(), PLACE_LOST.into()))))),
                Err(error) => return Err(AcquireStep::Done(Some(Err(error)))),
            }
        }
    }

    async fn wait_for_turn(&mut self, place: &QueuePlace) -> (WaitEnd, QueuePlaces) {
        let (to, mut news) = unbounded_channel();
        let mut places: Vec<(String, i32)> = Vec::new();
        for node in &place.nodes {
            let name = &self.claim.wants[node.want].name;
            // With two layouts the first of the two nodes has the lower number.
            if !places.iter().any(|(known, _)| known == name) {
                places.push((name.clone(), node.number));
            }
        }
        let mut missing = places.len();
        let entered = QueuePlaces::enter(&self.shared, &places, &self.ids.key, &to);
        let shared = self.shared.clone();
        let (clock, closed) = (&*shared.options.clock, &shared.closed);
        let mut states = place.client.state_watcher();
        let mut open = true;
        let ended = loop {
            self.take_callers();
            if place.client.state().is_terminated() {
                break WaitEnd::Lost;
            }
            tokio::select! {
                biased;
                () = closed.cancelled() => break WaitEnd::Closed,
                () = callers_gone(&mut self.callers) => break WaitEnd::CallersGone,
                told = news.recv() => match told {
                    Some(QueueNews::Turn) => {
                        missing -= 1;
                        if missing == 0 {
                            break WaitEnd::Turn;
                        }
                    }
                    Some(QueueNews::Blind(sentence)) => break WaitEnd::Blind(sentence),
                    Some(QueueNews::Lost) | None => break WaitEnd::Lost,
                },
                caller = self.incoming.recv(), if open => match caller {
                    Some(caller) => {
                        self.patience = self.patience.max(caller.patience);
                        self.callers.push(caller);
                    }
                    None => open = false,
                },
                _ = states.changed() => {}
                () = clock.sleep_until(self.patience) => break WaitEnd::PatienceOver,
            }
        };
        (ended, entered)
    }

    /// Leaves the queue, and says who is in the way.
    async fn give_up(&self, place: QueuePlace) -> Error {
        let client = place.client.clone();
        let mut held = None;
        for want in &self.claim.wants {
            let Ok(queue) = self.shared.fresh_queue(&client, &want.name).await else { break };
            let Some(at) = position(&queue, &self.ids.key) else { continue };
            if !has_turn(&queue, at) {
                held = self.shared.held_by(&client, &want.name, &queue[..at], Some(queue[at].number)).await.ok();
                break;
            }
        }
        self.remove_place(place).await;
        held.unwrap_or_else(|| {
            let resource = self.claim.wants[0].name.clone();
            Refusal::Held { resource, holder: None, remaining: None, queue_len: 0 }.into()
        })
    }

    /// Removes the nodes, now or as soon as the ensemble answers.
    async fn remove_place(&self, place: QueuePlace) {
        if self.writer().remove(&place).await.is_err() {
            self.clean_up_later(place.client, place.sent);
        }
    }

    /// Finds and removes what this acquire has left.
    fn clean_up_later(&self, client: Client, sent: Time) {
        let (shared, claim) = (self.shared.clone(), self.claim.clone());
        let ids = ClaimIds {
            secret: leasehold_core::Secret::new(*self.ids.secret.expose()),
            public: self.ids.public,
            key: self.ids.key.clone(),
            letter: self.ids.letter,
            request: self.ids.request.clone(),
        };
        let work = async move {
            let writer = PlaceWriter { shared: &shared, claim: &claim, ids: &ids };
            let by = shared.now().plus(CLEAN_UP_FOR);
            while shared.now() < by && !shared.closed.is_cancelled() {
                match writer.find_again(&client, sent, by).await {
                    Some(None) | None => return,
                    // A retry may have come for it already, and it is left to that: see `known_request`.
                    Some(Some(PlaceResult::Placed(place, queues)))
                        if ids.request.is_some() && place.is_granted(&queues, &ids.key) =>
                    {
                        return;
                    }
                    Some(Some(PlaceResult::Placed(place, _))) if writer.remove(&place).await.is_ok() => return,
                    Some(Some(_)) => {}
                }
            }
        };
        self.shared.runtime.spawn(work);
    }
}

/// The answer of an acquire, a little beyond its patience at most.
pub(super) async fn acquire_in_time(shared: &Arc<ZookeeperShared>, claim: Claim, beyond: Duration) -> AcquireResult {
    let (attempt, by) = (attempt_text(&claim), shared.now().plus(claim.wait).plus(beyond));
    match until(&*shared.options.clock, by, acquire(shared, claim)).await {
        Some(answer) => answer,
        None => Err(indeterminate(attempt, "the ensemble did not answer in time".into())),
    }
}
