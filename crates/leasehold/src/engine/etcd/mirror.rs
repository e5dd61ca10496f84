//! Queues that somebody in this process waits in, as etcd tells them: one read, and one watch from there on.
//!
//! # Laws
//!
//! 1. A claim is told that its turn has come only by a mirror that has seen its own key: what is older than its arrival
//!    says nothing. Contenders before it only vanish, so what was once true stays true.
//! 2. One release wakes exactly those whose turn it is.
//! 3. Whoever is in the way and certainly over is ended: the process that should do it may be dead.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::Time;
use tokio::sync::Notify;

use super::failure::EtcdFailure;
use super::messages::{KeyEvent, WatchCreateCall, WatchReply};
use super::plan::LeasePlan;
use super::queue_line::{LineBefore, QueueContender, QueueLine};
use super::shared::EtcdShared;
use super::values::ContenderState;
use crate::clock::Clock as _;
use crate::engine::Mode;

/// A queue is read anew after so long, as a safety net.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(10);
/// Contenders that are looked at for being over.
const MAX_DUTIES: usize = 64;
/// Between two tries to end a contender that is over.
const DUTY_PAUSE: Duration = Duration::from_millis(300);

/// What a claim in a queue is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TurnOutcome {
    /// Every queue admits it. `short`: no queue is long.
    Admitted { short: bool },
    /// Its key is gone.
    Lost,
    /// Another capacity is in use on this resource.
    OtherCapacity(String, u32),
    /// What is stored breaks a law.
    Failed(EtcdFailure),
}

/// One claim that waits.
pub(super) struct TurnTicket {
    state: Mutex<TicketState>,
    notify: Notify,
}

struct TicketState {
    /// Queues that have not admitted it yet.
    missing: usize,
    short: bool,
    outcome: Option<TurnOutcome>,
}

impl TurnTicket {
    fn lock(&self) -> MutexGuard<'_, TicketState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admit(&self, short: bool) -> bool {
        let mut state = self.lock();
        state.missing = state.missing.saturating_sub(1);
        state.short &= short;
        if state.missing > 0 || state.outcome.is_some() {
            return false;
        }
        state.outcome = Some(TurnOutcome::Admitted { short: state.short });
        drop(state);
        self.notify.notify_one();
        true
    }

    fn fail(&self, outcome: TurnOutcome) {
        self.lock().outcome.get_or_insert(outcome);
        self.notify.notify_one();
    }

    pub async fn wait(&self) -> TurnOutcome {
        loop {
            let outcome = self.lock().outcome.clone();
            match outcome {
                Some(outcome) => return outcome,
                None => self.notify.notified().await,
            }
        }
    }
}

struct MirrorWaiter {
    arrival: i64,
    key: Vec<u8>,
    mode: Mode,
    ticket: Arc<TurnTicket>,
    /// This queue has told it already.
    told: bool,
}

/// One queue.
pub(super) struct QueueMirror {
    name: String,
    state: Mutex<MirrorState>,
    /// A waiter came or went, or a key was removed.
    wake: Notify,
}

#[derive(Default)]
struct MirrorState {
    /// By arrival, then by key: a transaction of another client may make two keys at once.
    line: BTreeMap<(i64, Vec<u8>), QueueContender>,
    by_key: HashMap<Vec<u8>, i64>,
    /// What is known is the queue at this revision; 0 before the first read.
    revision: i64,
    waiters: Vec<MirrorWaiter>,
}

/// All queues that somebody in this process waits in.
#[derive(Default)]
pub(super) struct QueueMirrors {
    by_name: Mutex<HashMap<String, Arc<QueueMirror>>>,
    wakes: AtomicU64,
}

/// A claim in its queues, until it is dropped.
pub(super) struct EnlistedClaim {
    mirrors: Vec<Arc<QueueMirror>>,
    pub ticket: Arc<TurnTicket>,
}

impl Drop for EnlistedClaim {
    fn drop(&mut self) {
        for mirror in &self.mirrors {
            mirror.lock().waiters.retain(|waiter| !Arc::ptr_eq(&waiter.ticket, &self.ticket));
            mirror.wake.notify_one();
        }
    }
}

impl QueueMirrors {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<QueueMirror>>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A key that this process deleted: nobody waits for etcd to tell it.
    pub fn remove_key(&self, name: &str, key: &[u8]) {
        let mirror = self.lock().get(name).cloned();
        if let Some(mirror) = mirror {
            let mut state = mirror.lock();
            state.remove_key(key);
            state.judge(&mirror.name, &self.wakes);
        }
    }

    /// How many claims were woken because it was their turn.
    pub fn wakes(&self) -> u64 {
        self.wakes.load(Ordering::Relaxed)
    }
}

impl EtcdShared {
    /// Waits in all queues of a claim that has its place there since `arrival`.
    pub fn enlist(self: &Arc<Self>, plan: &LeasePlan, arrival: i64) -> EnlistedClaim {
        let state = TicketState { missing: plan.wants.len(), short: true, outcome: None };
        let ticket = Arc::new(TurnTicket { state: Mutex::new(state), notify: Notify::new() });
        let mut mirrors = Vec::with_capacity(plan.wants.len());
        for want in plan.wants.iter() {
            let mut by_name = self.mirrors.lock();
            let known = by_name.get(&want.name).cloned();
            let mirror = known.unwrap_or_else(|| {
                let mirror = QueueMirror { name: want.name.clone(), state: Mutex::default(), wake: Notify::new() };
                let mirror = Arc::new(mirror);
                by_name.insert(want.name.clone(), mirror.clone());
                let (shared, followed) = (self.clone(), mirror.clone());
                self.spawn_background(async move { shared.follow_queue(&followed).await });
                mirror
            });
            let mut state = mirror.lock();
            let (ticket, key) = (ticket.clone(), want.key.clone());
            state.waiters.push(MirrorWaiter { arrival, key, mode: want.mode, ticket, told: false });
            state.judge(&want.name, &self.mirrors.wakes);
            drop(state);
            drop(by_name);
            mirror.wake.notify_one();
            mirrors.push(mirror);
        }
        EnlistedClaim { mirrors, ticket }
    }

    /// Reads a queue and watches it, as long as somebody waits in it.
    async fn follow_queue(self: &Arc<Self>, mirror: &Arc<QueueMirror>) {
        let mut round = 0;
        while !self.drop_if_unused(mirror) {
            match self.follow_once(mirror, &mut round).await {
                Ok(()) => {}
                Err(failure @ EtcdFailure::Corrupt { .. }) | Err(failure @ EtcdFailure::Never(_)) => {
                    mirror.fail_all(&failure);
                    self.backoff(round).await;
                }
                Err(_) => {
                    self.backoff(round).await;
                    round += 1;
                }
            }
        }
    }

    /// The last waiter is gone: the next one makes a new mirror.
    fn drop_if_unused(&self, mirror: &Arc<QueueMirror>) -> bool {
        let mut by_name = self.mirrors.lock();
        if !mirror.lock().waiters.is_empty() {
            return false;
        }
        by_name.remove(&mirror.name);
        true
    }

    /// One read, and the watch after it, until the watch ends or it is time to read again.
    async fn follow_once(self: &Arc<Self>, mirror: &Arc<QueueMirror>, round: &mut u32) -> Result<(), EtcdFailure> {
        let mut moves = self.members.watch_moves();
        moves.borrow_and_update();
        let line = self.read_line(&mirror.name, None).await?;
        let start_revision = line.revision + 1;
        mirror.replace(line, &self.mirrors.wakes);
        let (key, range_end) = self.layout.queue(&mirror.name);
        let create = WatchCreateCall { key, range_end, start_revision, prev_kv: false };
        let mut events = self.members.open_watch(create).await?;
        *round = 0;
        let read_again = self.clock.now().plus(READ_AGAIN_AFTER);
        let mut duty = self.next_duty(mirror).await;
        loop {
            let due = duty.unwrap_or(read_again).min(read_again);
            tokio::select! {
                reply = events.message() => {
                    if !self.apply_reply(mirror, reply)? {
                        return Ok(());
                    }
                    duty = self.next_duty(mirror).await;
                }
                _ = moves.changed() => return Ok(()),
                () = mirror.wake.notified() => {
                    if mirror.lock().waiters.is_empty() {
                        return Ok(());
                    }
                    duty = self.next_duty(mirror).await;
                }
                () = self.clock.sleep_until(due) => {
                    if due == read_again {
                        return Ok(());
                    }
                    duty = self.do_duties(mirror).await;
                }
            }
        }
    }

    /// `false`: the watch is over.
    fn apply_reply(
        &self,
        mirror: &QueueMirror,
        reply: Result<Option<WatchReply>, tonic::Status>,
    ) -> Result<bool, EtcdFailure> {
        let Ok(Some(reply)) = reply else { return Ok(false) };
        if reply.canceled {
            return Ok(false);
        }
        let mut state = mirror.lock();
        for event in &reply.events {
            state.apply(self, &mirror.name, event)?;
        }
        state.judge(&mirror.name, &self.mirrors.wakes);
        Ok(true)
    }

    /// When the first contender in the way is certainly over that this process does not end anyway.
    async fn next_duty(self: &Arc<Self>, mirror: &QueueMirror) -> Option<Time> {
        let mut first: Option<Time> = None;
        for contender in mirror.duties() {
            let own = contender.value().and_then(|(public, _)| self.own.over_at(public, contender.written));
            if own.is_none()
                && let Ok(Some(over_at)) = self.over_at(&contender).await
            {
                first = Some(first.map_or(over_at, |earlier| earlier.min(over_at)));
            }
        }
        first
    }

    /// Ends those who are over. Returns when to look again.
    async fn do_duties(self: &Arc<Self>, mirror: &QueueMirror) -> Option<Time> {
        for contender in mirror.duties() {
            let own = contender.value().and_then(|(public, _)| self.own.over_at(public, contender.written));
            if own.is_none() {
                // The watch tells what became of it. Failed: it is tried again after a pause.
                let _ = self.lapse_if_over(&mirror.name, &contender).await;
            }
        }
        // What is over and still there is tried again after a pause.
        let next = self.next_duty(mirror).await?;
        Some(next.max(self.clock.now().plus(DUTY_PAUSE)))
    }
}

impl QueueMirror {
    fn lock(&self) -> MutexGuard<'_, MirrorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn replace(&self, line: QueueLine, wakes: &AtomicU64) {
        let mut state = self.lock();
        // A member that lags behind may be read after another one: what is known already stays.
        if line.revision >= state.revision {
            state.revision = line.revision;
            state.by_key.clear();
            state.line.clear();
            line.contenders.into_iter().for_each(|one| state.insert(one));
        }
        state.judge(&self.name, wakes);
    }

    fn fail_all(&self, failure: &EtcdFailure) {
        for waiter in &self.lock().waiters {
            waiter.ticket.fail(TurnOutcome::Failed(failure.clone()));
        }
    }

    /// Leases before the last waiter of this process that may have to be ended.
    fn duties(&self) -> Vec<QueueContender> {
        let state = self.lock();
        let Some(last) = state.waiters.iter().map(|waiter| waiter.arrival).max() else { return Vec::new() };
        let before = state.line.range(..(last, Vec::new())).map(|(_, contender)| contender);
        let held = |one: &&QueueContender| matches!(one.state(), Some(ContenderState::Held | ContenderState::Closed));
        before.filter(held).take(MAX_DUTIES).cloned().collect()
    }
}

impl MirrorState {
    fn apply(&mut self, shared: &EtcdShared, name: &str, event: &KeyEvent) -> Result<(), EtcdFailure> {
        let Some(kv) = &event.kv else { return Ok(()) };
        self.revision = self.revision.max(kv.mod_revision);
        if event.kind == 1 {
            self.remove_key(&kv.key);
            return Ok(());
        }
        if let Some(contender) = QueueContender::parse(&shared.layout, name, kv)? {
            self.insert(contender);
        }
        Ok(())
    }

    fn insert(&mut self, contender: QueueContender) {
        // A key that was deleted and made again has another arrival.
        self.remove_key(&contender.key);
        self.by_key.insert(contender.key.clone(), contender.arrival);
        self.line.insert((contender.arrival, contender.key.clone()), contender);
    }

    fn remove_key(&mut self, key: &[u8]) {
        if let Some(arrival) = self.by_key.remove(key) {
            self.line.remove(&(arrival, key.to_vec()));
        }
    }

    /// Tells those whose turn it is.
    fn judge(&mut self, name: &str, wakes: &AtomicU64) {
        if self.revision == 0 || self.waiters.iter().all(|waiter| waiter.told) {
            return;
        }
        let short = self.line.len() <= SHORT_LINE;
        let mut waiting: HashMap<i64, &mut MirrorWaiter> = HashMap::new();
        let revision = self.revision;
        for waiter in self.waiters.iter_mut().filter(|waiter| !waiter.told && waiter.arrival <= revision) {
            match self.by_key.get(&waiter.key) == Some(&waiter.arrival) {
                true => drop(waiting.insert(waiter.arrival, waiter)),
                false => {
                    waiter.told = true;
                    waiter.ticket.fail(TurnOutcome::Lost);
                }
            }
        }
        let mut before = LineBefore::default();
        for ((arrival, _), contender) in &self.line {
            if waiting.is_empty() {
                break;
            }
            if let Some(waiter) = waiting.remove(arrival) {
                if before.admits(waiter.mode) {
                    waiter.told = true;
                    let woken = waiter.ticket.admit(short);
                    wakes.fetch_add(u64::from(woken), Ordering::Relaxed);
                } else if let Some(capacity) = before.other_capacity(waiter.mode) {
                    waiter.told = true;
                    waiter.ticket.fail(TurnOutcome::OtherCapacity(name.to_owned(), capacity));
                }
            }
            before.add(contender.mode);
        }
    }
}

/// A queue up to this long is compared once more by etcd itself.
const SHORT_LINE: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::consensus::lease_id::PublicId;
    use crate::engine::etcd::queue_line::ContenderKind;

    fn contender(arrival: i64, mode: Mode) -> QueueContender {
        let kind = ContenderKind::Foreign(format!("{:?}", PublicId([0; 16])));
        QueueContender { key: arrival.to_be_bytes().to_vec(), mode, arrival, written: arrival, lease: 1, kind }
    }

    fn state(line: &[(i64, Mode)], revision: i64, waiters: &[i64]) -> MirrorState {
        let mut state = MirrorState { revision, ..MirrorState::default() };
        for (arrival, mode) in line {
            state.insert(contender(*arrival, *mode));
        }
        for arrival in waiters {
            let inner = TicketState { missing: 1, short: true, outcome: None };
            let ticket = Arc::new(TurnTicket { state: Mutex::new(inner), notify: Notify::new() });
            let key = arrival.to_be_bytes().to_vec();
            let mode = state.line.get(&(*arrival, key.clone())).map_or(Mode::Exclusive, |one| one.mode);
            state.waiters.push(MirrorWaiter { arrival: *arrival, key, mode, ticket, told: false });
        }
        state
    }

    fn outcomes(state: &MirrorState) -> Vec<Option<TurnOutcome>> {
        state.waiters.iter().map(|waiter| waiter.ticket.lock().outcome.clone()).collect()
    }

    const ADMITTED: Option<TurnOutcome> = Some(TurnOutcome::Admitted { short: true });

    /// Goal: exactly those are woken whose turn it is, and each once.
    #[test]
    fn one_release_wakes_one() {
        let wakes = AtomicU64::new(0);
        let x = Mode::Exclusive;
        let mut state = state(&[(3, x), (5, x), (7, x)], 7, &[5, 7]);
        state.judge("seat", &wakes);
        assert_eq!((outcomes(&state), wakes.load(Ordering::Relaxed)), (vec![None, None], 0));
        state.remove_key(&3_i64.to_be_bytes());
        state.judge("seat", &wakes);
        state.judge("seat", &wakes);
        assert_eq!((outcomes(&state), wakes.load(Ordering::Relaxed)), (vec![ADMITTED, None], 1));
    }

    /// Goal: a mirror that has not seen a claim's own key says nothing of it; one that has and does not find it says so.
    #[test]
    fn only_what_is_as_new_as_the_claim_counts() {
        let wakes = AtomicU64::new(0);
        let mut state = state(&[], 4, &[5]);
        state.judge("seat", &wakes);
        assert_eq!(outcomes(&state), [None], "an empty queue, but an older one");
        state.revision = 5;
        state.judge("seat", &wakes);
        assert_eq!(outcomes(&state), [Some(TurnOutcome::Lost)]);
    }

    #[test]
    fn another_capacity_before_it_is_told() {
        let permits = |count, capacity| Mode::Permits { count, capacity };
        let wakes = AtomicU64::new(0);
        let mut state = state(&[(3, permits(1, 2)), (4, permits(1, 3)), (5, permits(1, 2))], 9, &[4, 5]);
        state.judge("pool", &wakes);
        assert_eq!(outcomes(&state), [Some(TurnOutcome::OtherCapacity("pool".into(), 2)), None]);
    }
}
