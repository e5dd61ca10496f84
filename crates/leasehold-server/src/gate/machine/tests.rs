//! The machine under a seeded simulation: clients that are late, a disk that syncs when it likes, an upstream that keeps
//! a record, crashes. The record is judged, not the machine.

use std::collections::BTreeMap;

use super::*;

/// Bugs that a test plants.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct PlantedFaults {
    pub forwards_before_sync: bool,
    pub forgets_flying: bool,
    pub ignores_marks: bool,
}

impl GateMachine {
    pub(super) const fn forwards_before_sync(&self) -> bool {
        self.faults.forwards_before_sync
    }

    pub(super) const fn forgets_flying(&self) -> bool {
        self.faults.forgets_flying
    }

    pub(super) const fn ignores_marks(&self) -> bool {
        self.faults.ignores_marks
    }
}

const RESOURCES: [&str; 4] = ["a", "b", "c", "d"];
/// Leases that may still send requests: the newest, and those that are late.
const LEASES_IN_PLAY: usize = 6;

fn shown(number: u64, mark: Option<u64>) -> FenceToken {
    let text = mark.map_or_else(|| number.to_string(), |mark| format!("{number}:{mark:016x}"));
    text.parse().unwrap()
}

/// xorshift64*: the same seed, the same run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % sides
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.roll(from.len())])
    }
}

#[derive(Clone)]
struct SimLease {
    resources: Vec<Box<str>>,
    shown: FenceToken,
}

struct SimRequest {
    lease: SimLease,
    step: GateStep,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct SimCounts {
    forwarded: usize,
    stale: usize,
    other_lease: usize,
    busy: usize,
    cut: usize,
    crashes: usize,
}

struct Simulation {
    dice: Dice,
    on_stuck: OnStuck,
    faults: PlantedFaults,
    machine: GateMachine,
    leases: Vec<SimLease>,
    last_token: u64,
    requests: BTreeMap<RequestId, SimRequest>,
    /// Batches that the disk has not synced.
    writing: Vec<Vec<Raise>>,
    disk: BTreeMap<Box<str>, FenceToken>,
    /// What was ever shown for a resource.
    history: BTreeMap<Box<str>, Vec<FenceToken>>,
    /// The upstream's record: what was forwarded for a resource, in order.
    record: BTreeMap<Box<str>, Vec<FenceToken>>,
    counts: SimCounts,
}

impl Simulation {
    fn new(seed: u64, on_stuck: OnStuck, faults: PlantedFaults) -> Self {
        let mut machine = GateMachine::new(on_stuck);
        machine.faults = faults;
        let mut simulation = Self {
            dice: Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
            on_stuck,
            faults,
            machine,
            leases: Vec::new(),
            last_token: 0,
            requests: BTreeMap::new(),
            writing: Vec::new(),
            disk: BTreeMap::new(),
            history: BTreeMap::new(),
            record: BTreeMap::new(),
            counts: SimCounts::default(),
        };
        simulation.grant_lease();
        simulation
    }

    fn run(mut self, steps: usize) -> Result<SimCounts, String> {
        for _ in 0..steps {
            match self.dice.roll(100) {
                0..40 => self.send_request()?,
                40..48 => self.grant_lease(),
                48..60 => self.write_batch(),
                60..72 => self.sync_batch(),
                72..90 => self.answer_one(),
                90..95 => self.end_drain()?,
                95..97 => self.give_up(),
                97..99 => self.handle_effects()?,
                _ => self.crash(),
            }
            if self.dice.roll(3) > 0 {
                self.handle_effects()?;
            }
        }
        self.settle_everything()
    }

    fn grant_lease(&mut self) {
        // Now and then two engines give out the same token.
        if self.last_token == 0 || self.dice.roll(6) > 0 {
            self.last_token += 1 + self.dice.roll(3) as u64;
        }
        let mut resources: Vec<Box<str>> = RESOURCES.iter().map(|name| Box::from(*name)).collect();
        while resources.len() > 1 && self.dice.roll(3) > 0 {
            let at = self.dice.roll(resources.len());
            resources.remove(at);
        }
        let mark = (self.dice.roll(5) > 0).then(|| self.dice.roll(1000) as u64);
        self.leases.push(SimLease { resources, shown: shown(self.last_token, mark) });
        if self.leases.len() > LEASES_IN_PLAY {
            self.leases.remove(0);
        }
    }

    fn send_request(&mut self) -> Result<(), String> {
        let at = self.dice.roll(self.leases.len());
        let lease = self.leases[at].clone();
        for resource in &lease.resources {
            self.history.entry(resource.clone()).or_default().push(lease.shown);
        }
        let (id, step) = self.machine.enter(&lease.resources, lease.shown);
        self.requests.insert(id, SimRequest { lease, step: GateStep::AwaitSync });
        self.judge_step(id, step)
    }

    fn write_batch(&mut self) {
        let batch = self.machine.take_raises();
        if !batch.is_empty() {
            self.writing.push(batch);
        }
    }

    /// One batch at a time, in order, as the journal does.
    fn sync_batch(&mut self) {
        if self.writing.is_empty() {
            return;
        }
        let batch = self.writing.remove(0);
        let last = batch.last().map_or(0, |raise| raise.number);
        self.put_on_disk(batch);
        self.machine.durable_up_to(last);
    }

    fn put_on_disk(&mut self, batch: Vec<Raise>) {
        for raise in batch {
            self.disk.insert(raise.resource, raise.shown);
        }
    }

    fn with_step(&self, wanted: &GateStep) -> Vec<RequestId> {
        self.requests.iter().filter(|(_, request)| request.step == *wanted).map(|(id, _)| *id).collect()
    }

    fn answer_one(&mut self) {
        let flying = self.with_step(&GateStep::Forward);
        if let Some(id) = self.dice.pick(&flying) {
            self.requests.remove(&id);
            self.machine.leave(id);
        }
    }

    fn end_drain(&mut self) -> Result<(), String> {
        let waiting = self.with_step(&GateStep::AwaitOlder);
        let Some(id) = self.dice.pick(&waiting) else { return Ok(()) };
        let step = self.machine.drain_over(id);
        self.judge_step(id, step)
    }

    fn give_up(&mut self) {
        let mut waiting = self.with_step(&GateStep::AwaitOlder);
        waiting.extend(self.with_step(&GateStep::AwaitSync));
        if let Some(id) = self.dice.pick(&waiting) {
            self.requests.remove(&id);
            self.machine.leave(id);
        }
    }

    fn handle_effects(&mut self) -> Result<(), String> {
        let effects = self.machine.take_effects();
        self.counts.cut += effects.cut.len();
        for id in effects.cut {
            assert_eq!(self.on_stuck, OnStuck::Cut);
            // Its connection is closed and time has passed.
            self.requests.remove(&id);
            self.machine.leave(id);
        }
        for id in effects.wake {
            // It may have left since, or been woken twice.
            let waits = |request: &SimRequest| matches!(request.step, GateStep::AwaitSync | GateStep::AwaitOlder);
            if self.requests.get(&id).is_some_and(waits) {
                let step = self.machine.poll_request(id);
                self.judge_step(id, step)?;
            }
        }
        Ok(())
    }

    /// What was written may be on the disk or not; connections are gone, and with them the requests.
    fn crash(&mut self) {
        self.counts.crashes += 1;
        let kept = self.dice.roll(self.writing.len() + 1);
        for batch in self.writing.drain(..).take(kept).collect::<Vec<_>>() {
            self.put_on_disk(batch);
        }
        self.requests.clear();
        self.machine = GateMachine::new(self.on_stuck);
        self.machine.faults = self.faults;
        for (resource, kept) in &self.disk {
            self.machine.restore_fence(resource, *kept);
        }
    }

    fn judge_step(&mut self, id: RequestId, step: GateStep) -> Result<(), String> {
        match &step {
            GateStep::Forward => self.judge_forward(id)?,
            GateStep::Refuse(refusal) => {
                self.judge_refusal(id, refusal)?;
                self.requests.remove(&id);
                return Ok(());
            }
            GateStep::AwaitSync | GateStep::AwaitOlder => {}
        }
        if let Some(request) = self.requests.get_mut(&id) {
            request.step = step;
        }
        Ok(())
    }

    fn judge_forward(&mut self, id: RequestId) -> Result<(), String> {
        self.counts.forwarded += 1;
        let lease = self.requests[&id].lease.clone();
        for resource in &lease.resources {
            let record = self.record.entry(resource.clone()).or_default();
            if let Some(newer) = record.iter().find(|before| before.token > lease.shown.token) {
                return Err(format!("older after newer: {} after {newer} on {resource}", lease.shown));
            }
            let other = |before: &&FenceToken| {
                before.token == lease.shown.token && before.mark.is_some() && before.mark != lease.shown.mark
            };
            if let Some(before) = record.iter().find(other) {
                return Err(format!("two leases: {} after {before} on {resource}", lease.shown));
            }
            record.push(lease.shown);
            let durable = self.disk.get(resource).is_some_and(|kept| kept.token >= lease.shown.token);
            if !durable {
                return Err(format!("not durable: {} on {resource}", lease.shown));
            }
            let beside = self.requests.iter().find(|(_, other)| {
                other.step == GateStep::Forward
                    && other.lease.shown.token != lease.shown.token
                    && other.lease.resources.contains(resource)
            });
            if let Some((_, other)) = beside {
                return Err(format!("overlap: {} beside {} on {resource}", lease.shown, other.lease.shown));
            }
        }
        Ok(())
    }

    fn judge_refusal(&mut self, id: RequestId, refusal: &GateRefusal) -> Result<(), String> {
        let lease = &self.requests[&id].lease;
        match refusal {
            GateRefusal::Rule { resource, verdict } => {
                let history = &self.history[resource];
                let cause = match verdict {
                    FenceVerdict::Stale { .. } => {
                        self.counts.stale += 1;
                        history.iter().any(|other| other.token > lease.shown.token)
                    }
                    _ => {
                        self.counts.other_lease += 1;
                        history.iter().any(|other| {
                            other.token == lease.shown.token && other.mark != lease.shown.mark && other.mark.is_some()
                        })
                    }
                };
                if !cause {
                    return Err(format!("current refused: {} on {resource}, {verdict:?}", lease.shown));
                }
            }
            GateRefusal::Busy { resource } => {
                self.counts.busy += 1;
                let older = self.requests.values().any(|other| {
                    other.step == GateStep::Forward
                        && other.lease.shown.token < lease.shown.token
                        && other.lease.resources.contains(resource)
                });
                if !older || self.on_stuck == OnStuck::Cut {
                    return Err(format!("busy without an older request on {resource}"));
                }
            }
            GateRefusal::Full | GateRefusal::Failed => return Err("nothing failed".into()),
        }
        Ok(())
    }

    /// Everything is synced and answered: then nobody waits.
    fn settle_everything(mut self) -> Result<SimCounts, String> {
        for _ in 0..200 {
            self.write_batch();
            while !self.writing.is_empty() {
                self.sync_batch();
            }
            self.handle_effects()?;
            while !self.with_step(&GateStep::Forward).is_empty() {
                self.answer_one();
            }
            self.handle_effects()?;
        }
        match self.requests.values().next() {
            Some(request) => Err(format!("stuck: {} waits for nothing", request.lease.shown)),
            None => Ok(self.counts),
        }
    }
}

fn run_seeds(faults: PlantedFaults, on_stuck: OnStuck) -> Result<SimCounts, String> {
    let mut all = SimCounts::default();
    for seed in 1..=300 {
        let counts =
            Simulation::new(seed, on_stuck, faults).run(400).map_err(|found| format!("seed {seed}: {found}"))?;
        all.forwarded += counts.forwarded;
        all.stale += counts.stale;
        all.other_lease += counts.other_lease;
        all.busy += counts.busy;
        all.cut += counts.cut;
        all.crashes += counts.crashes;
    }
    Ok(all)
}

/// Goal: the laws of the module hold whatever the order of requests, syncs, answers and crashes.
/// Method: 300 seeds of 400 steps with each setting; every kind of end is seen often.
#[test]
fn the_upstream_sees_rising_tokens_one_at_a_time() {
    for on_stuck in [OnStuck::Refuse, OnStuck::Cut] {
        let counts = run_seeds(PlantedFaults::default(), on_stuck).unwrap();
        println!("{on_stuck:?}: {counts:?}");
        let stuck = if on_stuck == OnStuck::Cut { counts.cut } else { counts.busy };
        for (what, count) in [
            ("forwarded", counts.forwarded),
            ("stale", counts.stale),
            ("other lease", counts.other_lease),
            ("stuck", stuck),
            ("crashes", counts.crashes),
        ] {
            assert!(count > 100, "{what} was hardly tried: {counts:?}");
        }
    }
}

/// Goal: the simulation sees each planted bug.
#[test]
fn planted_bugs_are_seen() {
    let none = PlantedFaults::default();
    for (faults, found) in [
        (PlantedFaults { forwards_before_sync: true, ..none }, "not durable"),
        (PlantedFaults { forgets_flying: true, ..none }, "overlap"),
        (PlantedFaults { ignores_marks: true, ..none }, "two leases"),
    ] {
        let seen = run_seeds(faults, OnStuck::Refuse).expect_err("a planted bug");
        assert!(seen.contains(found), "{faults:?}: {seen}");
    }
}

/// Goal: a refused request on several resources leaves no trace on the others.
#[test]
fn what_is_refused_raises_nothing() {
    let mut machine = GateMachine::new(OnStuck::Refuse);
    machine.restore_fence("b", shown(9, None));
    let (_, step) = machine.enter(&["a".into(), "b".into()], shown(8, None));
    assert!(matches!(step, GateStep::Refuse(GateRefusal::Rule { ref resource, .. }) if &**resource == "b"));
    assert_eq!(machine.take_raises(), []);
    let (_, step) = machine.enter(&["a".into()], shown(1, None));
    assert_eq!(step, GateStep::AwaitSync);
}

/// Goal: a request that waits for older ones is told to ask again when a newer one makes it stale.
#[test]
fn a_waiting_request_learns_that_it_became_stale() {
    let mut machine = GateMachine::new(OnStuck::Refuse);
    machine.restore_fence("a", shown(1, None));
    assert_eq!(machine.enter(&["a".into()], shown(1, None)).1, GateStep::Forward);
    let (second, _) = machine.enter(&["a".into()], shown(2, None));
    machine.durable_up_to(1);
    assert_eq!(machine.take_effects().wake, [second]);
    assert_eq!(machine.poll_request(second), GateStep::AwaitOlder);
    let (third, step) = machine.enter(&["a".into()], shown(3, None));
    assert_eq!(step, GateStep::AwaitSync);
    assert_eq!(machine.take_effects().wake, [second]);
    let stale = machine.poll_request(second);
    assert!(matches!(stale, GateStep::Refuse(GateRefusal::Rule { verdict: FenceVerdict::Stale { .. }, .. })));
    machine.fail();
    assert_eq!(machine.take_effects().wake, [third]);
    assert_eq!(machine.poll_request(third), GateStep::Refuse(GateRefusal::Failed));
    assert_eq!(machine.enter(&["b".into()], shown(4, None)).1, GateStep::Refuse(GateRefusal::Failed));
}
