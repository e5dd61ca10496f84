//! The simulator: book, journal and a disk that crashes, under clients that misbehave, all from one seed.
//!
//! The code under test is the engine's own: group commit, journal, recovery, snapshots. Only threads, clocks and the
//! disk are simulated. Each seed draws its own mix of operations and faults (swarm testing): a run that never
//! crashes finds other bugs than one that crashes all the time.

mod clients;
mod keys;
pub(crate) mod machine;
mod watch;

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold::clock::Clock;
use leasehold::fence::Register;
use leasehold_core::Time;

use crate::disk::{Faults, SimDisk};
use crate::history::{History, Observation, OpId};
use crate::model::ReferenceModel;
use crate::rng::Rng;
use machine::Machine;

/// How long a run is.
#[derive(Clone, Copy, Debug)]
pub struct RunSize {
    /// Commands, at least.
    pub commands: u64,
}

impl Default for RunSize {
    fn default() -> Self {
        Self { commands: 1_300 }
    }
}

/// The mix of one run: how often each thing is drawn.
#[derive(Clone, Debug)]
struct Swarm {
    acquire: u64,
    renew: u64,
    release: u64,
    relabel: u64,
    retry: u64,
    hostile: u64,
    revoke: u64,
    floor: u64,
    cancel: u64,
    write: u64,
    advance: u64,
    flush: u64,
    keep: u64,
    crash: u64,
    disk_error: u64,
    reopen: u64,
    names: u64,
    slow_tick: bool,
    set: u64,
    free: u64,
    extend: u64,
    read: u64,
    principals: u64,
    /// How many leases and how many waiters each principal may have.
    share: (usize, usize),
}

impl Swarm {
    fn draw(rng: &mut Rng) -> Self {
        let mut often = |usual: u64| match rng.below(4) {
            0 => usual / 4,
            3 => usual * 3,
            _ => usual,
        };
        Self {
            acquire: 40.max(often(40)),
            renew: often(12),
            release: often(20),
            relabel: 3.max(often(4)),
            retry: often(6),
            hostile: 6.max(often(8)),
            revoke: often(2),
            floor: 2.max(often(4)),
            cancel: often(4),
            write: often(6),
            advance: 25.max(often(25)),
            flush: 60.max(often(60)),
            keep: 10.max(often(12)),
            crash: 1.max(often(2)),
            disk_error: often(1),
            reopen: often(1),
            set: 12.max(often(16)),
            free: 8.max(often(10)),
            extend: 8.max(often(10)),
            read: 8.max(often(10)),
            names: 2 + rng.below(5),
            slow_tick: rng.one_in(4),
            principals: 1 + rng.below(4),
            share: if rng.one_in(2) { (2 + rng.below(4) as usize, 1 + rng.below(3) as usize) } else { (40, 24) },
        }
    }
}

/// The machine's clock, simulated.
#[derive(Debug, Default)]
pub(crate) struct PlayedClock {
    boottime: AtomicU64,
    boot: Mutex<[u8; 16]>,
}

impl Clock for PlayedClock {
    fn now(&self) -> Time {
        Time::from_nanos(self.boottime.load(Ordering::SeqCst))
    }

    fn boot(&self) -> [u8; 16] {
        *self.boot.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn sleep_until(&self, _: Time) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(std::future::pending())
    }

    fn on_step(&self, _: Box<dyn Fn() + Send + Sync>) {}
}

/// One run.
pub struct Sim {
    rng: Rng,
    swarm: Swarm,
    disk: SimDisk,
    clock: Arc<PlayedClock>,
    /// True time, which no engine ever sees.
    now: u64,
    machine: Option<Machine>,
    /// The batches that survive: sequence, facts, and the facts decoded.
    log: Vec<machine::SealedBatch>,
    model: ReferenceModel,
    /// Grants that clients know of.
    known: Vec<OpId>,
    registers: Vec<Register<u64>>,
    history: History,
    acked: u64,
    written: u64,
    /// What is durable, by the reference model, and how many facts that is.
    durable: ReferenceModel,
    durable_facts: usize,
    /// What a watcher of this run of the engine knows from its events: who holds what.
    told: watch::HeldByToken,
    /// The identity that the first engine was started with.
    identity: Option<String>,
    /// Stops at the first crash, and leaves the disk as the crash found it.
    frozen: bool,
}

/// What a run left behind.
#[derive(Debug)]
pub struct FinishedRun {
    /// The history, to be checked.
    pub history: History,
}

/// Runs one seed.
#[must_use]
pub fn run(seed: u64, size: RunSize) -> FinishedRun {
    let mut rng = Rng::new(seed);
    let swarm = Swarm::draw(&mut rng);
    let mut sim = Sim::new(rng, swarm);
    // The commands count, and some crashes with them: a quiet seed goes on until it had both.
    while sim.history.counts.commands < size.commands || sim.history.counts.crashes < 2 {
        sim.step();
        if !sim.history.observations.is_empty() {
            break;
        }
    }
    sim.heal();
    sim.compare_told();
    sim.history.facts = sim.log.iter().flat_map(|sealed| sealed.recorded.clone()).collect();
    FinishedRun { history: sim.history }
}

/// A run that was stopped by a crash, or went to its end: the disk as it was at that moment.
pub(crate) struct StoppedRun {
    pub disk: SimDisk,
    pub log: Vec<machine::SealedBatch>,
    pub acked: u64,
    pub crashed: bool,
}

/// Runs a short history without faults but one: the machine stops at the disk operation `crash_at`.
pub(crate) fn run_until(seed: u64, commands: u64, crash_at: Option<u64>) -> StoppedRun {
    let mut rng = Rng::new(seed);
    let mut swarm = Swarm::draw(&mut rng);
    (swarm.crash, swarm.disk_error, swarm.reopen, swarm.keep) = (0, 0, 1, 40);
    let mut sim = Sim::new(rng, swarm);
    sim.frozen = true;
    sim.disk.set_faults(Faults { crash_in: crash_at, ..Faults::default() });
    while sim.history.counts.commands < commands && !sim.disk.has_crashed() {
        sim.step();
    }
    while !sim.disk.has_crashed() && sim.machine.as_ref().is_some_and(|machine| machine.has_work()) {
        sim.flush_step();
    }
    if let Some(machine) = sim.machine.as_mut().filter(|_| crash_at.is_none() && seed.is_multiple_of(2)) {
        // Idle for a while: the last frame is proven too.
        let _ = machine.journal.prove();
    }
    StoppedRun { crashed: sim.disk.has_crashed(), disk: sim.disk, log: sim.log, acked: sim.acked }
}

impl Sim {
    fn new(rng: Rng, swarm: Swarm) -> Self {
        let clock = Arc::new(PlayedClock::default());
        clock.boottime.store(1_000_000_000, Ordering::SeqCst);
        let registers = (0..swarm.names).map(|_| Register::new(0)).collect();
        Sim {
            rng,
            swarm,
            disk: SimDisk::default(),
            clock,
            now: 1_000_000_000,
            machine: None,
            log: Vec::new(),
            model: ReferenceModel::default(),
            known: Vec::new(),
            registers,
            history: History::default(),
            acked: 0,
            written: 0,
            durable: ReferenceModel::default(),
            durable_facts: 0,
            told: watch::HeldByToken::default(),
            identity: None,
            frozen: false,
        }
    }
}

impl Sim {
    fn observe(&mut self, invariant: &'static str, what: String) {
        self.history.observations.push(Observation { invariant, what });
    }

    fn step(&mut self) {
        if self.machine.is_none() {
            self.recover();
            return;
        }
        let s = self.swarm.clone();
        type Step = fn(&mut Sim);
        let menu: [(u64, Step); 20] = [
            (s.set, Self::set),
            (s.free, Self::free),
            (s.extend, Self::extend),
            (s.read, Self::read),
            (s.acquire, Self::acquire),
            (s.renew, Self::renew),
            (s.release, Self::release),
            (s.relabel, Self::relabel),
            (s.retry, Self::retry),
            (s.hostile, Self::hostile),
            (s.revoke, Self::revoke),
            (s.floor, Self::floor),
            (s.cancel, Self::cancel),
            (s.write, Self::guarded_write),
            (s.advance, Self::advance),
            (s.flush, Self::flush_step),
            (s.keep, Self::keep_step),
            (s.crash, Self::arm_crash),
            (s.disk_error, Self::arm_disk_error),
            (s.reopen, Self::reopen),
        ];
        let mut at = self.rng.below(menu.iter().map(|(weight, _)| weight).sum());
        for (weight, what) in menu {
            if at < weight {
                what(self);
                break;
            }
            at -= weight;
        }
        self.look();
    }

    fn pass(&mut self, nanos: u64) {
        self.now += nanos;
        self.clock.boottime.fetch_add(nanos, Ordering::SeqCst);
    }
}
