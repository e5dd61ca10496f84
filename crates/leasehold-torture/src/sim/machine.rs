//! The engine's side of the simulator: batches, crashes, recovery, and what a white box shows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold::engine::embedded::commit::group::{Batch, GroupCommit};
use leasehold::engine::embedded::journal::frame::FrameKind;
use leasehold::engine::embedded::journal::recover::recover;
use leasehold::engine::embedded::journal::snapshot::SnapshotWriter;
use leasehold::engine::embedded::journal::{Journal, JournalSizes, segment_pool};
use leasehold::engine::embedded::storage::Storage;
use leasehold::engine::embedded::{BookClock, Notice, Options, Started, start};
use leasehold_core::wire::WireReader;
use leasehold_core::{Book, Fact, Limits};

use super::Sim;
use crate::disk::Faults;
use crate::history::{Epoch, OpId, OpOutcome, Recorded, Recovery};
use crate::model::ReferenceModel;
use crate::rng::Rng;

/// A running engine.
pub(super) struct Machine {
    pub group: GroupCommit<OpId>,
    pub journal: Journal,
    pub clock: BookClock,
    in_flight: Option<Batch<OpId>>,
    snapshot: Option<SnapshotWriter>,
    snapshot_at: u64,
    /// How much of the tape the model has followed.
    followed: usize,
    epochs: Rng,
}

impl Machine {
    /// Whether anything is on its way to the disk.
    pub fn has_work(&self) -> bool {
        self.in_flight.is_some() || self.group.has_work()
    }
}

/// A frame of the timeline that survives.
#[derive(Clone, Debug)]
pub(crate) struct SealedBatch {
    pub sequence: u64,
    pub facts: Vec<u8>,
    pub recorded: Vec<Recorded>,
}

/// Small on purpose: rotation, reuse, snapshots and new ceilings must happen often.
pub(crate) const SIZES: JournalSizes = JournalSizes { segment: 8 << 10, snapshot_after: 6 << 10, tokens: 16 };

pub(crate) fn limits() -> Limits {
    Limits { endings: 64, waiters: 24, waiters_per_resource: 8, leases: 40, ..Limits::default() }
}

fn decode(facts: &[u8]) -> Vec<Recorded> {
    let mut reader = WireReader::new(facts);
    let mut out = Vec::new();
    while reader.left() > 0 {
        match Fact::decode(&mut reader) {
            Ok(fact) => out.push(Recorded::from_fact(&fact)),
            Err(_) => break,
        }
    }
    out
}

impl Sim {
    /// White-box checks after every step: the facts are legal, the queue is right, and nothing is forgotten.
    pub(super) fn look(&mut self) {
        self.follow();
        let Some(machine) = &self.machine else { return };
        let now = machine.clock.now().as_nanos();
        if machine.group.book.tokens_left() > 0
            && machine.group.book.next_expiry().is_none_or(|next| next.as_nanos() > now)
            && let Some(op) = self.model.forgotten(now)
        {
            self.observe("no_lost_wake_up", format!("operation {op} could be granted and waits"));
        }
    }

    /// Applies to the model what the book has recorded since the last call.
    pub(super) fn follow(&mut self) {
        let Some(machine) = &mut self.machine else { return };
        let now = machine.clock.now().as_nanos();
        let new = decode(&machine.group.book.tape()[machine.followed..]);
        machine.followed = machine.group.book.tape().len();
        self.forget_the_refused(&new);
        for fact in new {
            if let Recorded::Granted { holder, wants, token, .. } = &fact {
                self.history.counts.grants += 1;
                let op: Option<OpId> = holder.strip_prefix("op").and_then(|digits| digits.parse().ok());
                let op = op.unwrap_or(OpId::MAX);
                if let Some(earlier) = self.model.conflicting_before(wants, op, now) {
                    let what = format!("operation {op} was granted before operation {earlier}, which waits");
                    self.history.observations.push(crate::history::Observation { invariant: "fifo", what });
                }
                self.check_claimed(op, *token, &wants.clone());
                self.model.waiters.retain(|waiter| waiter.op != op);
            }
            if matches!(fact, Recorded::Ended { how: leasehold_core::End::Lapsed, .. }) {
                self.history.counts.lapses += 1;
            }
            if matches!(fact, Recorded::Freed { .. }) {
                self.history.counts.partial += 1;
            }
            if let Recorded::Renewed { token, .. } = &fact
                && self.model.leases.get(token).is_some_and(|lease| lease.expires_at <= now)
            {
                self.observe("no_resurrection", format!("lease {token} was renewed at or after its end"));
            }
            if let Err((invariant, what)) = self.model.follow(&fact) {
                self.observe(invariant, what);
            }
            self.count_share(&fact);
        }
    }

    /// Takes the next batch part of the way to the disk: sealed first, durable later.
    pub(super) fn flush_step(&mut self) {
        self.follow();
        let Some(machine) = &mut self.machine else { return };
        if machine.in_flight.is_none() {
            let batch = machine.group.seal();
            machine.followed = 0;
            if machine.journal.wants_snapshot() && machine.snapshot.is_none() && !batch.facts.is_empty() {
                machine.group.book.begin_snapshot();
                machine.snapshot_at = u64::MAX;
            }
            machine.in_flight = Some(batch);
            // Often at once, sometimes after other operations.
            if self.rng.one_in(3) {
                return;
            }
        }
        self.commit();
    }

    fn commit(&mut self) {
        let Some(machine) = &mut self.machine else { return };
        let Some(batch) = machine.in_flight.take() else { return };
        let wanted = machine.group.tokens_wanted(machine.journal.reserve_mark());
        let mut result = wanted.map_or(Ok(()), |above| machine.journal.reserve_tokens(above));
        let mut durable = Vec::new();
        if result.is_ok() && (wanted.is_some() || !batch.facts.is_empty()) {
            let sequence = machine.journal.position().sequence + 1;
            self.written = sequence;
            let recorded = decode(&batch.facts);
            durable.clone_from(&recorded);
            self.log.push(SealedBatch { sequence, facts: batch.facts.clone(), recorded });
            let time = machine.clock.now();
            result = machine.journal.commit(FrameKind::Facts, &batch.facts, time).map(|_| ());
        }
        if result.is_err() {
            self.fail(batch);
            return;
        }
        self.acked = machine.journal.position().sequence;
        machine.group.settle(batch.facts, machine.journal.token_ceiling());
        if machine.snapshot_at == u64::MAX {
            let point = machine.journal.position();
            machine.journal.snapshot_begun();
            machine.snapshot_at = point.sequence;
            let storage: Arc<dyn Storage> = Arc::new(self.disk.clone());
            match SnapshotWriter::begin(storage, point) {
                Ok(writer) => machine.snapshot = Some(writer),
                Err(_) => machine.group.book.abandon_snapshot(),
            }
        }
        self.publish(&durable, &batch.news);
        for (op, reply) in batch.replies {
            self.finish(op, reply);
        }
    }

    /// The disk failed: callers that wait for it learn that the outcome is unknown, and the process ends.
    fn fail(&mut self, batch: Batch<OpId>) {
        let crashed = self.disk.has_crashed();
        if !crashed {
            self.history.counts.disk_errors += 1;
            if let Some(epoch) = self.history.epochs.last_mut() {
                epoch.failed_at = Some(self.now);
            }
        }
        // Unknown is what an operation without a return already is.
        drop(batch);
        self.machine = None;
        self.model.waiters.clear();
        if self.frozen {
            return;
        }
        if crashed || self.rng.one_in(2) {
            self.lose_power();
        } else {
            self.disk = self.disk.after_kill();
        }
    }

    /// One step of what the maintenance thread does: snapshots and segments.
    pub(super) fn keep_step(&mut self) {
        let Some(machine) = &mut self.machine else { return };
        let storage: Arc<dyn Storage> = Arc::new(self.disk.clone());
        let segments = machine.journal.segments();
        let mut result = Ok(());
        if let Some(mut writer) = machine.snapshot.take() {
            let mut block = Vec::new();
            let done = machine.group.book.step_snapshot(3, &mut block);
            result = writer.block(&block);
            if result.is_ok() && done {
                let sequence = machine.snapshot_at;
                result = writer.finish().and_then(|size| {
                    machine.journal.snapshot_done(size);
                    segment_pool::retire_segments(storage.as_ref(), &segments, sequence)
                });
                self.history.counts.snapshots += u64::from(result.is_ok());
                machine.snapshot_at = 0;
            } else if result.is_ok() {
                machine.snapshot = Some(writer);
            } else {
                machine.group.book.abandon_snapshot();
            }
        } else if self.rng.one_in(4) && machine.in_flight.is_none() {
            // As an idle engine does.
            if machine.journal.prove().is_err() {
                let batch = machine.group.seal();
                self.fail(batch);
            }
            return;
        } else if machine.journal.wants_spare() {
            result = segment_pool::prepare_spare(storage.as_ref(), &segments, SIZES.segment, machine.epochs.next());
        }
        if result.is_err() && self.disk.has_crashed() {
            self.crash();
        }
    }

    pub(super) fn arm_crash(&mut self) {
        let crash_in = Some(self.rng.below(40));
        self.disk.set_faults(Faults { crash_in, ..Faults::default() });
    }

    pub(super) fn arm_disk_error(&mut self) {
        let fail_sync = self.rng.one_in(2);
        self.disk.set_faults(Faults { fail_sync, fail_write: !fail_sync, crash_in: None });
    }

    /// Kill or power failure at this very moment.
    fn crash(&mut self) {
        self.machine = None;
        self.model.waiters.clear();
        if self.frozen {
            return;
        }
        if self.disk.has_crashed() || self.rng.one_in(2) {
            self.lose_power();
        } else {
            self.history.counts.crashes += 1;
            self.disk = self.disk.after_kill();
        }
    }

    fn lose_power(&mut self) {
        self.history.counts.crashes += 1;
        let choices = self.disk.choices();
        let dir = self.rng.below(choices.dir as u64 + 1) as usize;
        let kept: Vec<usize> = choices
            .writes
            .iter()
            .map(|length| match self.rng.below(3) {
                0 => 0,
                1 => *length,
                _ => self.rng.below(*length as u64 + 1) as usize,
            })
            .collect();
        self.disk = self.disk.after_crash(dir, &kept);
        if self.rng.one_in(2) {
            self.reboot();
        }
    }

    fn reboot(&mut self) {
        self.history.counts.boots += 1;
        let down = self.rng.below(5_000) * 1_000_000;
        self.now += down;
        let boottime = self.rng.below(3_000) * 1_000_000;
        if self.rng.one_in(5) {
            // A machine put back to an earlier moment: the same boot, a lower clock.
            self.clock.boottime.fetch_min(boottime, Ordering::SeqCst);
        } else {
            self.clock.boottime.store(boottime, Ordering::SeqCst);
            let id = u128::from(self.rng.next()) << 64 | u128::from(self.rng.next());
            *self.clock.boot.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = id.to_le_bytes();
        }
    }

    /// Closes in good order and opens again.
    pub(super) fn reopen(&mut self) {
        while self.machine.as_ref().is_some_and(Machine::has_work) {
            self.flush_step();
        }
        let Some(mut machine) = self.machine.take() else { return };
        let (in_line, _) = machine.group.give_up();
        for op in in_line {
            self.answer(op, OpOutcome::Failed);
        }
        self.model.waiters.clear();
        let time = machine.clock.now();
        let sequence = machine.journal.position().sequence + 1;
        self.written = sequence;
        self.log.push(SealedBatch { sequence, facts: Vec::new(), recorded: Vec::new() });
        if machine.journal.close(machine.group.book.last_token(), time).is_ok() {
            self.acked = sequence;
        } else {
            drop(machine);
            self.crash();
        }
    }

    /// Starts the engine on what the disk holds, and compares what it finds with what it must find.
    pub(super) fn recover(&mut self) {
        let down = self.rng.below(400) * 1_000_000;
        self.pass(down);
        let mut book = Book::new(limits(), 1);
        let found = match recover(&self.disk, &mut book, |_, _| {}) {
            Ok(found) => found,
            Err(damage) => {
                self.observe("nothing_lost", format!("recovery refuses an honest crash: {damage}"));
                self.history.counts.commands = u64::MAX / 2;
                self.history.counts.crashes += 2;
                return;
            }
        };
        let sequence = found.position.sequence;
        self.history.counts.cuts += u64::from(found.cut.is_some());
        let mut expected = Book::new(limits(), 2);
        let replayed = self
            .log
            .iter()
            .filter(|sealed| sealed.sequence <= sequence)
            .try_for_each(|sealed| expected.replay(&sealed.facts, |_| {}));
        if let Err(law) = replayed {
            self.observe("replay", format!("the record breaks a law in replay: {law}"));
        }
        let recovery = Recovery {
            acked: self.acked,
            written: self.written,
            found: sequence,
            expected: expected.digest(),
            digest: book.digest(),
        };
        self.history.epochs.push(Epoch { ceiling_found: found.ceiling, failed_at: None, recovery: Some(recovery) });
        if let Err(why) = crate::invariant::nothing_lost::check(&self.history) {
            self.observe("nothing_lost", why);
        }
        self.log.retain(|sealed| sealed.sequence <= sequence);
        // What was found counts as answered only when the start has made it durable.
        self.written = sequence + 1;
        self.model = ReferenceModel::default();
        for fact in self.log.iter().flat_map(|sealed| &sealed.recorded) {
            // Broken laws in these were reported when they happened.
            let _ = self.model.follow(fact);
        }
        self.take_up(sequence);
    }

    fn take_up(&mut self, sequence: u64) {
        if !self.frozen && self.rng.one_in(4) {
            // A crash inside recovery.
            let crash_in = Some(self.rng.below(12));
            self.disk.set_faults(Faults { crash_in, ..Faults::default() });
        }
        let storage: Arc<dyn Storage> = Arc::new(self.disk.clone());
        let mut epochs = Rng::new(self.rng.next());
        let drawn = Arc::new(AtomicU64::new(epochs.next()));
        let source = drawn.clone();
        let options = Options {
            clock: self.clock.clone(),
            limits: Limits {
                leases_per_principal: self.swarm.share.0,
                waiters_per_principal: self.swarm.share.1,
                ..limits()
            },
            notices: Arc::new(|_: Notice| {}),
            news_bytes: 0,
            sizes: SIZES,
        };
        let random = Box::new(move || source.fetch_add(0x9e37_79b9, Ordering::Relaxed));
        match start::<OpId>(&storage, &options, random, |_, _| {}) {
            Ok(Started { mut group, clock, journal, identity }) => {
                group.book.keep_news();
                self.check_identity(identity);
                if !self.frozen {
                    self.disk.set_faults(Faults::default());
                }
                let mut facts = Vec::new();
                let mut shadow = Book::new(limits(), 3);
                let seen = recover(&self.disk, &mut shadow, |at, fact| {
                    if at > sequence {
                        fact.encode(&mut facts);
                    }
                });
                if seen.is_err() || shadow.digest() != group.book.digest() {
                    self.observe("replay", "what was taken up is not what the disk says".into());
                }
                let recorded = decode(&facts);
                for fact in &recorded {
                    let _ = self.model.follow(fact);
                }
                self.log.push(SealedBatch { sequence: sequence + 1, facts, recorded });
                self.acked = sequence + 1;
                self.begin_watch();
                self.machine = Some(Machine {
                    group,
                    journal,
                    clock,
                    in_flight: None,
                    snapshot: None,
                    snapshot_at: 0,
                    followed: 0,
                    epochs,
                });
            }
            Err(_) if self.disk.has_crashed() => {
                // The frame that records the start may be there or not; either way it changes no lease.
                self.log.retain(|sealed| sealed.sequence <= sequence);
                self.unfinished_start(sequence);
                if !self.frozen {
                    self.lose_power();
                }
            }
            Err(damage) => self.observe("nothing_lost", format!("cannot start after an honest crash: {damage}")),
        }
    }

    /// Once an engine was started, every later run has its identity.
    fn check_identity(&mut self, identity: String) {
        let first = self.identity.get_or_insert_with(|| identity.clone()).clone();
        if identity != first {
            self.observe("nothing_lost", format!("the identity was {first}, and is {identity} after a restart"));
        }
    }

    /// A start that crashed may have left its first frame behind: take it from the disk as it is.
    fn unfinished_start(&mut self, sequence: u64) {
        let disk = self.disk.after_kill();
        let mut facts = Vec::new();
        let mut shadow = Book::new(limits(), 4);
        let seen = recover(&disk, &mut shadow, |at, fact| {
            if at > sequence {
                fact.encode(&mut facts);
            }
        });
        if seen.is_ok_and(|found| found.position.sequence > sequence) {
            let recorded = decode(&facts);
            self.log.push(SealedBatch { sequence: sequence + 1, facts, recorded });
        }
    }

    /// After the last fault: every resource can be acquired again, and nothing is left over.
    pub(super) fn heal(&mut self) {
        if !self.history.observations.is_empty() {
            return;
        }
        for _ in 0..200 {
            self.disk.set_faults(Faults::default());
            if self.disk.has_crashed() {
                self.crash();
            }
            if self.machine.is_some() {
                break;
            }
            self.recover();
        }
        while self.machine.as_ref().is_some_and(Machine::has_work) {
            self.flush_step();
        }
        if !self.history.observations.is_empty() {
            return;
        }
        self.compare_snapshot();
        self.probe();
    }

    /// The state, its replay, and a snapshot of it put back are the same.
    fn compare_snapshot(&mut self) {
        let Some(machine) = &mut self.machine else { return };
        let mut replayed = Book::new(limits(), 5);
        for sealed in &self.log {
            let _ = replayed.replay(&sealed.facts, |_| {});
        }
        let book = &mut machine.group.book;
        let mut bytes = Vec::new();
        book.begin_snapshot();
        while !book.step_snapshot(2, &mut bytes) {}
        machine.snapshot = None;
        let mut restored = Book::new(limits(), 6);
        let result = restored.restore(&bytes);
        let digests = (book.digest(), replayed.digest(), restored.digest());
        if result.is_err() || digests.0 != digests.1 || digests.0 != digests.2 {
            self.observe("replay", format!("live, replayed and restored differ: {digests:x?} {result:?}"));
        }
    }

    fn probe(&mut self) {
        let Some(machine) = &mut self.machine else { return };
        // Past every ttl, delay and wait that a client can ask for in this run.
        let horizon = 120_000_000_000;
        self.now += horizon;
        self.clock.boottime.fetch_add(horizon, Ordering::SeqCst);
        let now = machine.clock.now();
        for _ in 0..10_000 {
            machine.group.tick(64, now);
            if machine.group.book.next_expiry().is_none_or(|next| next > now) {
                break;
            }
        }
        let counts = machine.group.book.counts();
        if counts.leases + counts.closing + counts.waiters > 0 {
            self.observe("liveness", format!("left over after every deadline: {counts:?}"));
        }
        while self.machine.as_ref().is_some_and(Machine::has_work) {
            self.flush_step();
        }
        self.follow();
        self.probe_names();
    }
}
