//! Which request may go on to the upstream, and when: decisions only, no clock and no I/O.
//!
//! ```text
//!   enter ──▶ decide ──┬─ refused ─────────────────────────────────────────▶ Refuse
//!                      ├─ higher: remembered, not yet durable ─▶ AwaitSync ─┐
//!                      └─ the same lease again ─────────────────────────────┤
//!              older requests still without an answer? ── AwaitOlder ◀──────┤
//!                                                             └─ left ──────┴─▶ Forward
//! ```
//!
//! # Laws
//!
//! 1. After a request was forwarded, none with a lower token is forwarded for that resource, even after a restart.
//! 2. Requests of two tokens are never with the upstream at the same time for one resource. A request that was cut off
//!    counts as there until its caller says that it left.
//! 3. A request is forwarded only when its token is durable.
//! 4. A request is refused by the rule only if a higher token, or its token with another mark, was shown before it could
//!    be forwarded.
//! 5. A request on several resources is forwarded when all of them admit it, and holds none of them while it waits.
//!
//! # Not here
//!
//! The rule itself (`leasehold::fence::decide`), the disk (`memory`), time limits and signals (`fences`).

use std::collections::{HashMap, VecDeque};

use leasehold::fence::{FenceToken, FenceVerdict, decide};

/// One request, from its entry until it leaves.
pub type RequestId = u64;

/// What happens to a newer request when older ones stay without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum OnStuck {
    /// The newer request is refused, and the order is kept.
    Refuse,
    /// The connections of the older requests are closed, and the newer request goes on after `--settle`.
    Cut,
}

/// What a request does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GateStep {
    /// It goes to the upstream now.
    Forward,
    /// It never does. It has left.
    Refuse(GateRefusal),
    /// It waits until its token is durable.
    AwaitSync,
    /// It waits until older requests have left, for as long as the limit allows.
    AwaitOlder,
}

/// Why a request is not forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GateRefusal {
    /// The rule says no: [`FenceVerdict::Stale`] or [`FenceVerdict::OtherLease`].
    Rule {
        /// The first resource that refuses, by name.
        resource: Box<str>,
        /// What the rule says.
        verdict: FenceVerdict,
    },
    /// Older requests are still without an answer.
    Busy {
        /// The first resource that has some, by name.
        resource: Box<str>,
    },
    /// Too many requests are under way.
    Full,
    /// The memory failed: nothing is forwarded any more.
    Failed,
}

/// One token to be remembered: what the journal records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raise {
    /// Counts up. [`GateMachine::durable_up_to`] names it again.
    pub number: u64,
    /// The resource.
    pub resource: Box<str>,
    /// The token, and the mark of its lease.
    pub shown: FenceToken,
}

/// What a step asks of the caller, beside its answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct GateEffects {
    /// Waiting requests that should ask again: see [`GateMachine::poll_request`].
    pub wake: Vec<RequestId>,
    /// Forwarded requests whose connection is to be closed. They leave when it is.
    pub cut: Vec<RequestId>,
}

/// The fence of one resource.
#[derive(Debug)]
struct ResourceFence {
    name: Box<str>,
    kept: FenceToken,
    /// The raise that remembers what is kept; durable if the machine says so of this number.
    raise: u64,
    /// Forwarded requests with the token that is kept.
    flying: usize,
    /// Forwarded requests with lower tokens. No new one can come.
    older: usize,
    /// Requests that wait for anything here.
    waiting: Vec<RequestId>,
}

#[derive(Debug)]
struct GateRequest {
    /// Indexes of fences, in the order of their names.
    fences: Vec<usize>,
    shown: FenceToken,
    forwarded: bool,
    cut: bool,
}

/// All fences of a gate.
#[derive(Debug)]
pub struct GateMachine {
    on_stuck: OnStuck,
    /// Only grows: the memory of a fence is never given up.
    fences: Vec<ResourceFence>,
    by_name: HashMap<Box<str>, usize>,
    requests: HashMap<RequestId, GateRequest>,
    last_request: RequestId,
    last_raise: u64,
    durable: u64,
    /// Raises that nobody has taken to the journal yet.
    unwritten: Vec<Raise>,
    /// Raises that are not durable, with their fence.
    unsynced: VecDeque<(u64, usize)>,
    failed: bool,
    effects: GateEffects,
    #[cfg(test)]
    faults: tests::PlantedFaults,
}

impl GateMachine {
    /// Without any memory.
    pub fn new(on_stuck: OnStuck) -> Self {
        Self {
            on_stuck,
            fences: Vec::new(),
            by_name: HashMap::new(),
            requests: HashMap::new(),
            last_request: 0,
            last_raise: 0,
            durable: 0,
            unwritten: Vec::new(),
            unsynced: VecDeque::new(),
            failed: false,
            effects: GateEffects::default(),
            #[cfg(test)]
            faults: tests::PlantedFaults::default(),
        }
    }

    /// Remembers what the disk remembers. The highest of several for one resource counts.
    pub fn restore_fence(&mut self, resource: &str, shown: FenceToken) {
        let at = self.find_or_add(resource, shown, 0);
        let fence = &mut self.fences[at];
        if decide(Some(fence.kept), shown) == FenceVerdict::AdmitAndRemember {
            fence.kept = shown;
        }
    }

    /// A new request on these resources, which are sorted and differ.
    pub fn enter(&mut self, resources: &[Box<str>], shown: FenceToken) -> (RequestId, GateStep) {
        self.last_request += 1;
        let id = self.last_request;
        if self.failed {
            return (id, GateStep::Refuse(GateRefusal::Failed));
        }
        // All are asked before any is raised: what is refused leaves no trace.
        for resource in resources {
            let kept = self.by_name.get(resource).map(|at| self.fences[*at].kept);
            if let Some(refusal) = self.refusal_of(resource, decide(kept, shown)) {
                return (id, GateStep::Refuse(refusal));
            }
        }
        let fences = resources.iter().map(|resource| self.remember(resource, shown)).collect();
        self.requests.insert(id, GateRequest { fences, shown, forwarded: false, cut: false });
        let step = self.poll_request(id);
        if matches!(step, GateStep::AwaitSync | GateStep::AwaitOlder)
            && let Some(request) = self.requests.get(&id)
        {
            for at in &request.fences {
                self.fences[*at].waiting.push(id);
            }
        }
        (id, step)
    }

    /// What a waiting request does now. After [`GateStep::Refuse`] it has left.
    pub fn poll_request(&mut self, id: RequestId) -> GateStep {
        let Some(request) = self.requests.get(&id).filter(|_| !self.failed) else {
            self.remove_request(id);
            return GateStep::Refuse(GateRefusal::Failed);
        };
        let shown = request.shown;
        let mut step = GateStep::Forward;
        for at in &request.fences {
            let fence = &self.fences[*at];
            // A newer one may have come while it waited.
            if let Some(refusal) = self.refusal_of(&fence.name, decide(Some(fence.kept), shown)) {
                step = GateStep::Refuse(refusal);
                break;
            }
            if fence.raise > self.durable && !self.forwards_before_sync() {
                step = GateStep::AwaitSync;
            } else if fence.older > 0 && step == GateStep::Forward && !self.forgets_flying() {
                step = GateStep::AwaitOlder;
            }
        }
        match step {
            GateStep::Forward => self.mark_forwarded(id),
            GateStep::Refuse(_) => self.remove_request(id),
            GateStep::AwaitSync | GateStep::AwaitOlder => {}
        }
        step
    }

    /// A request has waited for older ones for as long as it may.
    pub fn drain_over(&mut self, id: RequestId) -> GateStep {
        let step = self.poll_request(id);
        if step != GateStep::AwaitOlder {
            return step;
        }
        let Some(request) = self.requests.get(&id) else { return step };
        let shown = request.shown;
        let busy: Vec<usize> = request.fences.iter().copied().filter(|at| self.fences[*at].older > 0).collect();
        if self.on_stuck == OnStuck::Refuse {
            let resource = busy.first().map_or_else(Box::default, |at| self.fences[*at].name.clone());
            self.remove_request(id);
            return GateStep::Refuse(GateRefusal::Busy { resource });
        }
        for (other, request) in &mut self.requests {
            let in_the_way = request.forwarded && request.shown.token < shown.token;
            if in_the_way && !request.cut && request.fences.iter().any(|at| busy.contains(at)) {
                request.cut = true;
                self.effects.cut.push(*other);
            }
        }
        GateStep::AwaitOlder
    }

    /// A request is gone: the upstream has answered it wholly, or its connection is closed, or it gave up waiting.
    pub fn leave(&mut self, id: RequestId) {
        self.remove_request(id);
    }

    /// Raises up to this number are durable.
    pub fn durable_up_to(&mut self, number: u64) {
        self.durable = self.durable.max(number);
        while let Some((_, at)) = self.unsynced.pop_front_if(|(raise, _)| *raise <= number) {
            self.effects.wake.extend_from_slice(&self.fences[at].waiting);
        }
    }

    /// The memory failed: every request that waits is refused, and every one that comes.
    pub fn fail(&mut self) {
        self.failed = true;
        let waiting = self.requests.iter().filter(|(_, request)| !request.forwarded).map(|(id, _)| *id);
        self.effects.wake.extend(waiting);
    }

    /// Whether the memory failed.
    pub const fn has_failed(&self) -> bool {
        self.failed
    }

    /// Raises that the journal must write, in order.
    pub fn take_raises(&mut self) -> Vec<Raise> {
        std::mem::take(&mut self.unwritten)
    }

    /// Whether the journal has something to write.
    pub const fn has_raises(&self) -> bool {
        !self.unwritten.is_empty()
    }

    /// What the steps since the last call ask of the caller.
    pub fn take_effects(&mut self) -> GateEffects {
        std::mem::take(&mut self.effects)
    }

    /// Whether there is an effect to take.
    pub const fn has_effects(&self) -> bool {
        !self.effects.wake.is_empty() || !self.effects.cut.is_empty()
    }

    /// Requests that were forwarded and have not left.
    pub fn flying_count(&self) -> usize {
        self.requests.values().filter(|request| request.forwarded).count()
    }

    /// How many resources are remembered.
    pub const fn fence_count(&self) -> usize {
        self.fences.len()
    }

    /// Some of what is remembered, from an index on. Fences are never removed, so all indexes together are all fences.
    pub fn fences_from(&self, start: usize, count: usize) -> impl Iterator<Item = (&str, FenceToken)> {
        self.fences.iter().skip(start).take(count).map(|fence| (&*fence.name, fence.kept))
    }

    fn remember(&mut self, resource: &str, shown: FenceToken) -> usize {
        let number = self.last_raise + 1;
        let before = self.fences.len();
        let at = self.find_or_add(resource, shown, number);
        let fence = &mut self.fences[at];
        let is_new = at == before;
        if !is_new {
            if decide(Some(fence.kept), shown) != FenceVerdict::AdmitAndRemember {
                return at;
            }
            if shown.token > fence.kept.token {
                fence.older += std::mem::take(&mut fence.flying);
            }
            fence.kept = shown;
            fence.raise = number;
            // Requests that wait here have become stale.
            self.effects.wake.extend_from_slice(&fence.waiting);
        }
        self.last_raise = number;
        self.unwritten.push(Raise { number, resource: resource.into(), shown });
        self.unsynced.push_back((number, at));
        at
    }

    fn find_or_add(&mut self, resource: &str, kept: FenceToken, raise: u64) -> usize {
        if let Some(at) = self.by_name.get(resource) {
            return *at;
        }
        let at = self.fences.len();
        let name: Box<str> = resource.into();
        self.fences.push(ResourceFence { name: name.clone(), kept, raise, flying: 0, older: 0, waiting: Vec::new() });
        self.by_name.insert(name, at);
        at
    }

    fn mark_forwarded(&mut self, id: RequestId) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        request.forwarded = true;
        for at in &request.fences {
            let fence = &mut self.fences[*at];
            fence.flying += 1;
            fence.waiting.retain(|waiting| *waiting != id);
        }
    }

    fn remove_request(&mut self, id: RequestId) {
        let Some(request) = self.requests.remove(&id) else { return };
        for at in request.fences {
            let fence = &mut self.fences[at];
            if !request.forwarded {
                fence.waiting.retain(|waiting| *waiting != id);
                continue;
            }
            if request.shown.token == fence.kept.token {
                fence.flying = fence.flying.saturating_sub(1);
                continue;
            }
            fence.older = fence.older.saturating_sub(1);
            if fence.older == 0 {
                self.effects.wake.extend_from_slice(&fence.waiting);
            }
        }
    }

    fn refusal_of(&self, resource: &str, verdict: FenceVerdict) -> Option<GateRefusal> {
        match verdict {
            FenceVerdict::Admit | FenceVerdict::AdmitAndRemember => None,
            FenceVerdict::OtherLease { .. } if self.ignores_marks() => None,
            FenceVerdict::Stale { .. } | FenceVerdict::OtherLease { .. } => {
                Some(GateRefusal::Rule { resource: resource.into(), verdict })
            }
        }
    }
}

/// Bugs that tests plant, to see that they are found.
#[cfg(not(test))]
impl GateMachine {
    const fn forwards_before_sync(&self) -> bool {
        false
    }

    const fn forgets_flying(&self) -> bool {
        false
    }

    const fn ignores_marks(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests;
