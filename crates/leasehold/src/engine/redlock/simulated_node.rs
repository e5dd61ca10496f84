//! A node for the simulation: a server with a clock of its own, behind a network that delays and loses, which can be
//! stopped, killed, and started again with or without its memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::Time;

use super::node::{
    Ballot, ChangeId, LeaseKeys, LeaseRecord, Node, NodeAnswer, NodeError, NodeHeld, NodeHolding, NodeReply,
    NodeRequest, Occupant, PeekedLease, Standing,
};
use crate::clock::Clock;

/// What a simulated server does wrong, on purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeFlaws {
    /// An abandoned try can still be granted.
    pub no_ban: bool,
    /// A server that lost its memory votes at once.
    pub no_quarantine: bool,
    /// It votes once it is up for the ttl of the claim that is asked for: the usual rule, and too short where others have
    /// longer leases.
    pub quarantine_by_own_ttl: bool,
    /// A lease that another call has joined can be abandoned.
    pub no_join_mark: bool,
    /// A renewal that arrives late is carried out.
    pub no_change_numbers: bool,
}

/// A source of chance that gives the same numbers in every run.
pub(super) struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Below the bound.
    pub fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound.max(1)
    }

    /// True so many times of a thousand.
    pub fn chance(&mut self, of_thousand: u64) -> bool {
        self.below(1000) < of_thousand
    }
}

/// The server and the way to it. Every client has a [`SimulatedConnection`] to it.
pub(super) struct SimulatedServer {
    pub name: String,
    /// True time.
    pub clock: Arc<dyn Clock>,
    pub flaws: NodeFlaws,
    /// How much faster its clock is, in millionths.
    rate_ppm: i64,
    quarantine: Duration,
    durable: bool,
    state: Mutex<ServerState>,
}

struct ServerState {
    /// Its run: another one after a restart.
    run: u64,
    /// None while it is down.
    started: Option<Time>,
    frozen_until: Time,
    /// The longest way there or back, in milliseconds.
    slowness_ms: u64,
    /// Lost requests and replies, of a thousand.
    loss: u64,
    /// Requests that are carried out once more, later, of a thousand.
    repeats: u64,
    dice: Dice,
    keys: HashMap<String, SimulatedKey>,
    records: HashMap<String, SimulatedRecord>,
    bans: HashMap<String, u64>,
    joined: HashMap<String, u64>,
}

struct SimulatedKey {
    handle: String,
    gone_at: u64,
}

#[derive(Clone)]
struct SimulatedRecord {
    secret: String,
    fingerprint: String,
    keys: Vec<String>,
    static_part: String,
    ttl_ms: u64,
    released: bool,
    banned: bool,
    granted_at: u64,
    /// The last renewal.
    change: Option<ChangeId>,
}

impl SimulatedServer {
    pub fn new(
        name: &str,
        clock: Arc<dyn Clock>,
        seed: u64,
        rate_ppm: i64,
        durable: bool,
        quarantine: Duration,
        flaws: NodeFlaws,
    ) -> Arc<Self> {
        let state = ServerState {
            run: 1,
            started: Some(Time::ZERO),
            frozen_until: Time::ZERO,
            slowness_ms: 5,
            loss: 0,
            repeats: 0,
            dice: Dice::new(seed),
            keys: HashMap::new(),
            records: HashMap::new(),
            bans: HashMap::new(),
            joined: HashMap::new(),
        };
        let name = name.to_owned();
        Arc::new(Self { name, clock, flaws, rate_ppm, quarantine, durable, state: Mutex::new(state) })
    }

    /// Milliseconds on its own clock.
    fn local_now(&self) -> u64 {
        let nanos = i128::from(self.clock.now().as_nanos());
        let local = nanos + nanos * i128::from(self.rate_ppm) / 1_000_000;
        u64::try_from(local / 1_000_000).expect("time goes forward")
    }

    pub fn set_network(&self, slowness_ms: u64, loss: u64, repeats: u64) {
        let mut state = self.lock();
        (state.slowness_ms, state.loss, state.repeats) = (slowness_ms, loss, repeats);
    }

    /// Requests wait until then, and are carried out after it.
    pub fn freeze_until(&self, at: Time) {
        self.lock().frozen_until = at;
    }

    pub fn kill(&self) {
        self.lock().started = None;
    }

    pub fn start(&self) {
        let now = self.clock.now();
        let mut state = self.lock();
        if state.started.is_none() {
            state.started = Some(now);
            state.run += 1;
            if !self.durable {
                state.keys.clear();
                state.records.clear();
                state.bans.clear();
                state.joined.clear();
            }
        }
    }

    /// Forgets everything while it runs, as FLUSHALL does.
    pub fn flush(&self) {
        let mut state = self.lock();
        state.keys.clear();
        state.records.clear();
    }

    fn runs_on(&self, run: u64) -> bool {
        let state = self.lock();
        state.started.is_some() && state.run == run
    }

    /// Whether a lease of ours is on it at this moment.
    pub fn is_locked(&self, key: &str) -> bool {
        let now = self.local_now();
        self.lock().keys.get(key).is_some_and(|held| now < held.gone_at)
    }

    fn standing(&self, keys_live_ms: u64) -> Standing {
        let Some(started) = self.lock().started else { return Standing::Votes };
        // The simulation begins with nothing to forget.
        if self.durable || self.flaws.no_quarantine || started == Time::ZERO {
            return Standing::Votes;
        }
        let own = Duration::from_millis(keys_live_ms);
        let quarantine = if self.flaws.quarantine_by_own_ttl { own } else { self.quarantine };
        if own > quarantine {
            return Standing::NotDurable;
        }
        match quarantine.checked_sub(self.clock.now().since(started)) {
            Some(left) if !left.is_zero() => Standing::Quarantined { left },
            _ => Standing::Votes,
        }
    }

    fn lock(&self) -> MutexGuard<'_, ServerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run_request(&self, request: &NodeRequest) -> NodeReply {
        let reply = self.carry_out(request);
        if std::env::var_os("LEASEHOLD_SIM_TRACE").is_some() {
            println!("{:?} {} {request:?} -> {reply:?}", self.clock.now(), self.name);
        }
        reply
    }

    fn carry_out(&self, request: &NodeRequest) -> NodeReply {
        let now = self.local_now();
        let mut state = self.lock();
        state.keys.retain(|_, key| now < key.gone_at);
        match request {
            NodeRequest::Acquire(claim) => NodeReply::Ballot(state.acquire(&claim.text, now, self.flaws)),
            NodeRequest::Abandon { lease, ban_ms } => {
                state.abandon(lease, now.saturating_add(*ban_ms), self.flaws, now);
                NodeReply::Done
            }
            NodeRequest::Renew { lease, ttl_ms, change } => state.renew(lease, *ttl_ms, change, now, self.flaws),
            NodeRequest::Release { lease, ban_ms } => state.release(lease, *ban_ms),
            NodeRequest::Peek { handle } => NodeReply::Peeked(state.peek(handle)),
            NodeRequest::Join(lease) => state.join(lease, now),
            NodeRequest::ReadRecord(lease) => match state.live(lease) {
                Ok(record) => NodeReply::Record(LeaseRecord {
                    static_part: record.static_part.clone(),
                    age_ms: now.saturating_sub(record.granted_at),
                }),
                Err(reply) => reply,
            },
            NodeRequest::Repair { lease, record, life_ms, change } => {
                state.repair(lease, record, *life_ms, change, now);
                NodeReply::Done
            }
            NodeRequest::Look { key } => NodeReply::Looked(state.look(key, now)),
            NodeRequest::List | NodeRequest::Revoke { .. } => unreachable!("the simulation asks for none"),
        }
    }
}

impl ServerState {
    fn acquire(&mut self, text: &crate::engine::redis::claim_text::ClaimText, now: u64, flaws: NodeFlaws) -> Ballot {
        if !flaws.no_ban && self.bans.get(&text.secret).is_some_and(|until| now < *until) {
            return Ballot::Banned;
        }
        if let Some(earlier) = self.records.get(&text.handle) {
            return match earlier {
                earlier if earlier.banned => Ballot::Banned,
                earlier if earlier.fingerprint != text.fingerprint => Ballot::Mismatch,
                earlier if earlier.secret == text.secret && self.is_live(&text.handle) => Ballot::Granted,
                _ => Ballot::SameRequest,
            };
        }
        for key in &text.keys {
            if let Some(held) = self.keys.get(key) {
                return Ballot::Held(NodeHeld {
                    key: key.clone(),
                    who: Occupant::Lease(held.handle.clone()),
                    holder: Some("somebody".into()),
                    left_ms: Some(held.gone_at - now),
                    queue_len: 0,
                });
            }
        }
        let record = SimulatedRecord {
            secret: text.secret.clone(),
            fingerprint: text.fingerprint.clone(),
            keys: text.keys.clone(),
            static_part: text.static_part.clone(),
            ttl_ms: text.life_ms,
            released: false,
            banned: false,
            granted_at: now,
            change: None,
        };
        for key in &text.keys {
            // The script rounds the moment up, and the key is there until its end.
            let gone_at = now + 1 + text.life_ms;
            self.keys.insert(key.clone(), SimulatedKey { handle: text.handle.clone(), gone_at });
        }
        self.records.insert(text.handle.clone(), record);
        Ballot::Granted
    }

    fn is_live(&self, handle: &str) -> bool {
        self.records.get(handle).is_some_and(|record| {
            !record.released
                && record.keys.iter().all(|key| self.keys.get(key).is_some_and(|held| held.handle == handle))
        })
    }

    fn live(&self, lease: &LeaseKeys) -> Result<&SimulatedRecord, NodeReply> {
        match self.records.get(&lease.handle) {
            Some(record) if record.secret == lease.secret && !record.banned => {
                if self.is_live(&lease.handle) {
                    Ok(record)
                } else {
                    Err(NodeReply::Stale)
                }
            }
            _ => Err(NodeReply::NotHeld),
        }
    }

    fn vacate(&mut self, handle: &str) {
        self.keys.retain(|_, held| held.handle != handle);
    }

    fn abandon(&mut self, lease: &LeaseKeys, banned_until: u64, flaws: NodeFlaws, now: u64) {
        if !flaws.no_join_mark && self.joined.get(&lease.secret).is_some_and(|until| now < *until) {
            return;
        }
        self.bans.insert(lease.secret.clone(), banned_until);
        if self.records.get(&lease.handle).is_some_and(|record| record.secret == lease.secret && !record.released) {
            self.vacate(&lease.handle);
            self.records.remove(&lease.handle);
        }
    }

    fn renew(
        &mut self,
        lease: &LeaseKeys,
        ttl_ms: Option<u64>,
        change: &ChangeId,
        now: u64,
        flaws: NodeFlaws,
    ) -> NodeReply {
        let (ttl, keys, last) = match self.live(lease) {
            Ok(record) => (ttl_ms.unwrap_or(record.ttl_ms), record.keys.clone(), record.change.clone()),
            Err(reply) => return reply,
        };
        let is_late = last.is_some_and(|last| last.process == change.process && change.number < last.number);
        if is_late && !flaws.no_change_numbers {
            let left = keys.iter().filter_map(|key| self.keys.get(key)).map(|held| held.gone_at).min().unwrap_or(now);
            return NodeReply::Lives { left_ms: (left - now).saturating_sub(1), cap_left_ms: None };
        }
        for key in keys {
            self.keys.insert(key, SimulatedKey { handle: lease.handle.clone(), gone_at: now + 1 + ttl });
        }
        if let Some(record) = self.records.get_mut(&lease.handle) {
            record.ttl_ms = ttl;
            record.change = Some(change.clone());
        }
        NodeReply::Lives { left_ms: ttl, cap_left_ms: None }
    }

    fn release(&mut self, lease: &LeaseKeys, ban_ms: Option<u64>) -> NodeReply {
        let Some(record) = self.records.get_mut(&lease.handle) else {
            if ban_ms.is_some() {
                let banned = SimulatedRecord {
                    secret: String::new(),
                    fingerprint: String::new(),
                    keys: Vec::new(),
                    static_part: String::new(),
                    ttl_ms: 0,
                    released: true,
                    banned: true,
                    granted_at: 0,
                    change: None,
                };
                self.records.insert(lease.handle.clone(), banned);
            }
            return NodeReply::NotHeld;
        };
        if record.secret != lease.secret {
            return NodeReply::NotHeld;
        }
        if record.released {
            return NodeReply::Released(false);
        }
        if !self.is_live(&lease.handle) {
            return NodeReply::Stale;
        }
        self.vacate(&lease.handle);
        self.records.get_mut(&lease.handle).expect("it is there").released = true;
        NodeReply::Released(true)
    }

    fn peek(&self, handle: &str) -> Option<PeekedLease> {
        let record = self.records.get(handle).filter(|record| !record.banned)?;
        let live = self.is_live(handle);
        Some(PeekedLease { secret: record.secret.clone(), fingerprint: record.fingerprint.clone(), live })
    }

    fn join(&mut self, lease: &LeaseKeys, now: u64) -> NodeReply {
        let keys = match self.live(lease) {
            Ok(record) => record.keys.clone(),
            Err(reply) => return reply,
        };
        let gone_at = keys.iter().filter_map(|key| self.keys.get(key)).map(|held| held.gone_at).min().unwrap_or(now);
        self.joined.insert(lease.secret.clone(), gone_at + 600_000);
        NodeReply::Lives { left_ms: (gone_at - now).saturating_sub(1), cap_left_ms: None }
    }

    fn repair(&mut self, lease: &LeaseKeys, record: &LeaseRecord, life_ms: u64, change: &ChangeId, now: u64) {
        // The simulation has one name: it is the last line of the static part, after its mode.
        let key =
            record.static_part.lines().last().and_then(|line| line.split_once(' ')).expect("a record").1.to_owned();
        let known = self.records.contains_key(&lease.handle) || self.bans.contains_key(&lease.secret);
        if known || self.keys.contains_key(&key) {
            return;
        }
        self.keys.insert(key.clone(), SimulatedKey { handle: lease.handle.clone(), gone_at: now + 1 + life_ms });
        let repaired = SimulatedRecord {
            secret: lease.secret.clone(),
            fingerprint: "-".into(),
            keys: vec![key],
            static_part: record.static_part.clone(),
            ttl_ms: life_ms,
            released: false,
            banned: false,
            granted_at: now.saturating_sub(record.age_ms),
            change: Some(change.clone()),
        };
        self.records.insert(lease.handle.clone(), repaired);
    }

    fn look(&self, key: &str, now: u64) -> Option<NodeHolding> {
        let held = self.keys.get(key)?;
        let who = Occupant::Lease(held.handle.clone());
        Some(NodeHolding { who, live: true, holder: "somebody".into(), since_ms: 0, left_ms: held.gone_at - now })
    }
}

/// A client's connection to a server: requests arrive in any order, late, or not at all.
pub(super) struct SimulatedConnection(pub Arc<SimulatedServer>);

/// How long a reply is waited for.
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);

impl Node for SimulatedConnection {
    fn ask(&self, request: NodeRequest) -> NodeAnswer {
        let server = self.0.clone();
        let (there, back, lost_there, lost_back, run, repeat) = {
            let mut state = server.lock();
            let repeats = state.repeats;
            let repeat =
                if state.dice.chance(repeats) { Some(Duration::from_millis(state.dice.below(3000))) } else { None };
            let (slowness, loss) = (state.slowness_ms, state.loss);
            let there = Duration::from_millis(1 + state.dice.below(slowness));
            let back = Duration::from_millis(1 + state.dice.below(slowness));
            (there, back, state.dice.chance(loss), state.dice.chance(loss), state.started.map(|_| state.run), repeat)
        };
        Box::pin(async move {
            let (clock, sent) = (server.clock.clone(), server.clock.now());
            let Some(run) = run else { return Err(NodeError::NoEffect("it is down".into())) };
            let unknown = || NodeError::Unknown("there is no answer".into());
            if let NodeRequest::Acquire(claim) = &request
                && server.standing(claim.keys_live_ms) != Standing::Votes
            {
                return Err(NodeError::NoEffect("it does not vote".into()));
            }
            let (to, from) = tokio::sync::oneshot::channel();
            let arriving = server.clone();
            tokio::spawn(async move {
                let clock = arriving.clock.clone();
                clock.sleep_until(sent.plus(there)).await;
                // What is sent to a process that is stopped lies in its buffers until it goes on.
                loop {
                    let frozen = arriving.lock().frozen_until;
                    if frozen <= clock.now() {
                        break;
                    }
                    clock.sleep_until(frozen).await;
                }
                // The connection ended with the run of the server.
                if !lost_there && arriving.runs_on(run) {
                    let reply = arriving.run_request(&request);
                    if let Some(later) = repeat {
                        let again = arriving.clone();
                        tokio::spawn(async move {
                            again.clock.sleep_until(again.clock.now().plus(later)).await;
                            if again.runs_on(run) {
                                again.run_request(&request);
                            }
                        });
                    }
                    clock.sleep_until(clock.now().plus(back)).await;
                    if !lost_back {
                        let _ = to.send(reply);
                    }
                }
            });
            match crate::clock::until(&*clock, sent.plus(REPLY_TIMEOUT), from).await {
                Some(Ok(reply)) => Ok(reply),
                // The connection was lost, or nothing came: nobody knows.
                Some(Err(_)) | None => Err(unknown()),
            }
        })
    }

    fn standing(&self, keys_live_ms: u64) -> Standing {
        self.0.standing(keys_live_ms)
    }

    fn is_suspect(&self) -> bool {
        false
    }

    fn is_reachable(&self) -> bool {
        self.0.lock().started.is_some()
    }

    fn address(&self) -> &str {
        &self.0.name
    }
}
