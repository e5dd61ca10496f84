//! The clients' side of the simulator: honest, forgetful and hostile ones.

use std::time::Duration;

use leasehold_core::{
    Acquire, Command, Granted, LeaseKey, Mode, Refusal, Reply, RequestId, Secret, Token, WaiterId, Want,
};

use super::Sim;
use crate::history::{AcquireRequest, FencedWrite, Op, OpId, OpKind, OpOutcome};
use crate::model::ModelWaiter;

impl Sim {
    pub(super) fn invoke(&mut self, kind: OpKind) -> OpId {
        self.history.counts.commands += 1;
        self.history.ops.push(Op {
            client: self.rng.below(5),
            kind,
            invoke: self.now,
            ret: None,
            outcome: OpOutcome::Unknown,
            epoch: self.history.epochs.len(),
            untouched: true,
            full: true,
        });
        self.history.ops.len() - 1
    }

    pub(super) fn answer(&mut self, op: OpId, outcome: OpOutcome) {
        let now = self.now;
        let record = &mut self.history.ops[op];
        record.ret = Some(now);
        record.outcome = outcome;
    }

    pub(super) fn finish(&mut self, op: OpId, reply: Reply) {
        let outcome = match reply {
            Reply::Granted(Granted { lease, remaining, repeated, .. }) => {
                self.known.push(op);
                OpOutcome::Granted { token: lease.token, secret: lease.secret, remaining, repeated }
            }
            Reply::Renewed(renewed) => OpOutcome::Renewed { remaining: renewed.remaining },
            Reply::Relabelled => {
                self.history.counts.relabels += 1;
                OpOutcome::Relabelled
            }
            Reply::Released(first) => OpOutcome::Released(first),
            Reply::Revoked(count) => OpOutcome::Revoked(count),
            Reply::Floor(floor) => {
                self.history.counts.floors += 1;
                OpOutcome::Floor(floor)
            }
            Reply::Cancelled(waiting) => OpOutcome::Cancelled(waiting),
            Reply::Refused(Refusal::Held(_)) => {
                self.history.counts.conflicts += 1;
                OpOutcome::Held
            }
            Reply::Freed(count) => {
                self.history.counts.frees += count as u64;
                OpOutcome::Freed(count)
            }
            Reply::Extended(count) => {
                self.history.counts.extends += count as u64;
                OpOutcome::Extended(count)
            }
            Reply::Ticked(_) => {
                self.history.counts.reads += 1;
                OpOutcome::Read { durable: self.durable_facts }
            }
            Reply::Refused(Refusal::Quota(_)) => {
                self.history.counts.quotas += 1;
                OpOutcome::Quota
            }
            Reply::Refused(Refusal::Stale) => OpOutcome::Stale,
            Reply::Refused(Refusal::NotHeld) => OpOutcome::NotHeld,
            Reply::Refused(Refusal::Mismatch) => OpOutcome::Mismatch,
            _ => OpOutcome::Failed,
        };
        self.answer(op, outcome);
    }

    pub(super) fn draw_ask(&mut self) -> AcquireRequest {
        let names = self.swarm.names;
        let rng = &mut self.rng;
        let count = if rng.one_in(4) { 1 + rng.below(3) } else { 1 };
        let mut wants: Vec<(String, Mode)> = Vec::new();
        for _ in 0..count {
            let name = format!("r{}", rng.below(names));
            if wants.iter().any(|(other, _)| *other == name) {
                continue;
            }
            let mode = match rng.below(10) {
                0..5 => Mode::Exclusive,
                5..8 => Mode::Shared,
                _ => Mode::Permits { count: 1 + rng.below(3) as u32, capacity: 4 },
            };
            wants.push((name, mode));
        }
        let millis = |ms: u64| Duration::from_millis(ms);
        AcquireRequest {
            wants,
            ttl: millis(1 + rng.below(2_000)),
            wait: if rng.one_in(2) { millis(rng.below(3_000)) } else { Duration::ZERO },
            max_hold: rng.one_in(4).then(|| millis(1 + rng.below(4_000))),
            delay: if rng.one_in(5) { millis(rng.below(500)) } else { Duration::ZERO },
            request: rng.one_in(3).then(|| format!("q{}", rng.next())),
            principal: format!("p{}", rng.below(self.swarm.principals)),
            value: None,
        }
    }

    pub(super) fn acquire(&mut self) {
        let ask = self.draw_ask();
        self.ask_for(ask);
    }

    pub(super) fn ask_for(&mut self, ask: AcquireRequest) {
        let op = self.invoke(OpKind::Acquire(ask.clone()));
        let Some(machine) = &mut self.machine else { return };
        let wants: Vec<Want<'_>> = ask.wants.iter().map(|(name, mode)| Want { name, mode: *mode }).collect();
        let holder = format!("op{op}");
        let mut bits = [0; 16];
        bits[..8].copy_from_slice(&self.rng.next().to_le_bytes());
        bits[8..].copy_from_slice(&self.rng.next().to_le_bytes());
        let before = machine.group.book.counts().waiters;
        let now = machine.clock.now();
        let claim = Acquire {
            waiter_id: WaiterId(op as u64 + 1),
            wants: &wants,
            ttl_ms: ask.ttl.as_millis() as u64,
            wait_ms: ask.wait.as_millis() as u64,
            max_hold_ms: ask.max_hold.map(|cap| cap.as_millis() as u64),
            delay_ms: ask.delay.as_millis() as u64,
            holder: &holder,
            request: ask.request.as_deref().map(|id| RequestId { scope: "", id }),
            secret: Secret::new(bits),
            principal: &ask.principal,
            value: ask.value.as_deref().map(str::as_bytes),
        };
        let reply = machine.group.submit(Command::Acquire(claim), || op, now);
        let after = machine.group.book.counts().waiters;
        let is_waiting = machine.group.is_waiting(WaiterId(op as u64 + 1));
        self.follow();
        self.history.ops[op].full = is_waiting || self.is_full(&ask.principal);
        if is_waiting {
            self.history.counts.waits += 1;
            self.wait(op, &ask, now.as_nanos(), (before, after));
        }
        if let Some(reply) = reply {
            self.finish(op, reply);
        }
    }

    /// The model's queue: one place per request.
    fn wait(&mut self, op: OpId, ask: &AcquireRequest, now: u64, (before, after): (usize, usize)) {
        let until = now + ask.wait.as_nanos() as u64;
        let same = |other: &ModelWaiter| match &self.history.ops[other.op].kind {
            OpKind::Acquire(earlier) => ask.request.is_some() && earlier.request == ask.request,
            _ => false,
        };
        match self.model.waiters.iter().position(|waiter| waiter.until > now && same(waiter)) {
            Some(at) => {
                let waiter = &mut self.model.waiters[at];
                waiter.until = waiter.until.max(until);
                if after > before {
                    self.observe("one_place_per_request", format!("operation {op} stands in line twice"));
                }
            }
            None => self.model.waiters.push(ModelWaiter { op, wants: ask.wants.clone(), until }),
        }
    }

    /// A request that was sent before is sent again: the same body, or (which must be refused) another.
    pub(super) fn retry(&mut self) {
        let asked: Vec<AcquireRequest> = self
            .history
            .ops
            .iter()
            .rev()
            .take(60)
            .filter_map(|op| match &op.kind {
                OpKind::Acquire(ask) if ask.request.is_some() => Some(ask.clone()),
                _ => None,
            })
            .collect();
        if asked.is_empty() {
            return self.acquire();
        }
        self.history.counts.retries += 1;
        let mut ask = self.rng.pick(&asked).clone();
        if self.rng.one_in(5) {
            ask.ttl += Duration::from_millis(1);
        }
        self.ask_for(ask);
    }

    /// A lease that some client knows of: often a young one, sometimes one long ended.
    fn pick_known(&mut self) -> Option<(OpId, Token, Secret)> {
        if self.known.is_empty() {
            return None;
        }
        let young = self.known.len().min(if self.rng.one_in(4) { usize::MAX } else { 6 });
        let at = self.known.len() - 1 - self.rng.below(young as u64) as usize;
        let op = self.known[at];
        match self.history.ops[op].outcome {
            OpOutcome::Granted { token, secret, .. } => Some((op, token, secret)),
            _ => None,
        }
    }

    pub(super) fn renew(&mut self) {
        let Some((_, token, secret)) = self.pick_known() else { return };
        let ttl = self.rng.one_in(3).then(|| Duration::from_millis(1 + self.rng.below(2_000)));
        let op = self.invoke(OpKind::Renew { token, ttl });
        let ttl_ms = ttl.map(|ttl| ttl.as_millis() as u64);
        self.submit(op, Command::Renew { lease: LeaseKey { token, secret }, ttl_ms });
    }

    pub(super) fn release(&mut self) {
        let Some((_, token, secret)) = self.pick_known() else { return };
        let op = self.invoke(OpKind::Release { token });
        self.submit(op, Command::Release { lease: LeaseKey { token, secret } });
    }

    pub(super) fn relabel(&mut self) {
        let Some((_, token, secret)) = self.pick_known() else { return };
        let op = self.invoke(OpKind::Relabel { token });
        let holder = format!("label {op}");
        self.submit(op, Command::Relabel { lease: LeaseKey { token, secret }, holder: &holder });
        self.compare_label(token);
    }

    /// The book shows the label that the facts add up to.
    fn compare_label(&mut self, token: Token) {
        let Some(machine) = &self.machine else { return };
        let Some(lease) = self.model.leases.get(&token.get()).filter(|lease| !lease.closing) else { return };
        let Some((name, _)) = lease.wants.first() else { return };
        let seen = machine.group.book.inspect(name, machine.clock.now());
        let shown = seen.and_then(|view| view.holders.into_iter().find(|holding| holding.token == token));
        if shown.is_some_and(|holding| holding.holder != lease.holder) {
            self.observe("replay", format!("lease {token} shows another label than its facts say"));
        }
    }

    /// A guessed secret, or the secret of another lease.
    pub(super) fn hostile(&mut self) {
        let Some((_, token, secret)) = self.pick_known() else { return };
        let other = self.pick_known().filter(|(_, other, _)| *other != token).map(|(_, _, secret)| secret);
        let guessed = other.unwrap_or_else(|| {
            let mut bits = *secret.expose();
            bits[self.rng.below(16) as usize] ^= 1 << self.rng.below(8);
            Secret::new(bits)
        });
        self.history.counts.hostile += 1;
        let op = self.invoke(OpKind::Hostile { token });
        let lease = LeaseKey { token, secret: guessed };
        let verb = self.rng.below(3);
        let Some(machine) = &self.machine else { return };
        let before = machine.group.book.digest();
        let command = match verb {
            0 => Command::Renew { lease, ttl_ms: None },
            1 => Command::Relabel { lease, holder: "thief" },
            _ => Command::Release { lease },
        };
        self.submit(op, command);
        if let Some(machine) = &self.machine {
            self.history.ops[op].untouched = before == machine.group.book.digest();
        }
    }

    pub(super) fn revoke(&mut self) {
        let name = format!("r{}", self.rng.below(self.swarm.names));
        let op = self.invoke(OpKind::Revoke { name: name.clone() });
        self.submit(op, Command::Revoke { name: &name, reason: "drill" });
    }

    /// Asks for the floor, or raises it: below what is reserved, beyond it, or not at all because it is lower already.
    pub(super) fn floor(&mut self) {
        let Some(machine) = &self.machine else { return };
        let last = machine.group.book.last_token();
        let raise = match self.rng.below(4) {
            0 => None,
            1 => Token::new(1 + self.rng.below(last + 1)),
            _ => Token::new(last + 1 + self.rng.below(1_000)),
        };
        let op = self.invoke(OpKind::Floor { raise });
        self.submit(op, Command::Floor { raise });
    }

    pub(super) fn submit(&mut self, op: OpId, command: Command<'_>) {
        let Some(machine) = &mut self.machine else { return };
        let now = machine.clock.now();
        let reply = machine.group.submit(command, || op, now);
        self.follow();
        if let Some(reply) = reply {
            self.finish(op, reply);
        }
    }

    pub(super) fn cancel(&mut self) {
        if self.model.waiters.is_empty() {
            return;
        }
        let waiter = self.rng.below(self.model.waiters.len() as u64) as usize;
        let waiting = self.model.waiters[waiter].op;
        let op = self.invoke(OpKind::Cancel { op: waiting });
        let Some(machine) = &mut self.machine else { return };
        let now = machine.clock.now();
        let was_waiting = machine.group.cancel(WaiterId(waiting as u64 + 1), now);
        if was_waiting {
            self.answer(waiting, OpOutcome::Failed);
            // Another caller may have joined the same request, and still waits.
            let joined = self.machine.as_ref().is_some_and(|m| self.joined(waiting).any(|op| m.group.is_waiting(op)));
            if !joined {
                self.model.waiters.remove(waiter);
            }
        }
        self.follow();
        self.answer(op, OpOutcome::Cancelled(was_waiting));
    }

    /// Waiter ids of other operations under the same request id.
    pub(super) fn joined(&self, waiting: OpId) -> impl Iterator<Item = WaiterId> + '_ {
        let request = match &self.history.ops[waiting].kind {
            OpKind::Acquire(ask) => ask.request.clone(),
            _ => None,
        };
        self.history.ops.iter().enumerate().filter_map(move |(op, record)| match &record.kind {
            OpKind::Acquire(ask) if request.is_some() && ask.request == request && op != waiting => {
                Some(WaiterId(op as u64 + 1))
            }
            _ => None,
        })
    }

    /// A holder, live or long stale, writes to the resource and shows its token.
    pub(super) fn guarded_write(&mut self) {
        let Some((op, token, _)) = self.pick_known() else { return };
        let OpKind::Acquire(ask) = &self.history.ops[op].kind else { return };
        let Some((name, _)) = ask.wants.iter().find(|(_, mode)| *mode == Mode::Exclusive) else { return };
        let name = name.clone();
        let Some(at) = name.strip_prefix('r').and_then(|digits| digits.parse::<usize>().ok()) else { return };
        let newest = self.newest_exclusive(&name);
        let accepted = self.registers[at].write_at(token, self.now).is_ok();
        self.history.guarded.push(FencedWrite { name, token: token.get(), accepted, newest });
    }

    /// The newest exclusive token on this resource that any client knows of.
    fn newest_exclusive(&self, name: &str) -> u64 {
        let covers = |ask: &AcquireRequest| ask.wants.iter().any(|(n, mode)| n == name && *mode == Mode::Exclusive);
        let told = self.history.ops.iter().filter_map(|op| match (&op.kind, op.outcome) {
            (OpKind::Acquire(ask), OpOutcome::Granted { token, .. }) if covers(ask) => Some(token.get()),
            _ => None,
        });
        told.max().unwrap_or(0)
    }

    pub(super) fn advance(&mut self) {
        let nanos = match self.rng.below(8) {
            0 => self.rng.below(2_000) * 1_000_000,
            1 => 0,
            _ => self.rng.below(120_000_000),
        };
        self.pass(nanos);
        if self.swarm.slow_tick && self.rng.one_in(2) {
            return;
        }
        let Some(machine) = &mut self.machine else { return };
        let now = machine.clock.now();
        let budget = if self.rng.one_in(3) { 1 + self.rng.below(4) as u32 } else { 10_000 };
        machine.group.tick(budget, now);
        // As the wheel does: deadlines are checked every millisecond.
        let nanos = now.as_nanos() / 1_000_000 * 1_000_000;
        let late = machine.group.book.next_expiry().is_some_and(|next| next <= now);
        if budget == 10_000 && late {
            self.observe("not_late", "something due is left after a full tick".into());
        }
        self.follow();
        self.model.waiters.retain(|waiter| waiter.until > nanos);
    }

    /// Every grant covers just what was asked, and the book shows it on every one of these resources.
    pub(super) fn check_claimed(&mut self, op: OpId, token: u64, wants: &[(String, Mode)]) {
        if let Some(OpKind::Acquire(ask)) = self.history.ops.get(op).map(|op| &op.kind)
            && ask.wants != wants
        {
            self.observe(
                "all_or_nothing",
                format!("operation {op} asked for {:?}, token {token} covers {wants:?}", ask.wants),
            );
        }
    }

    /// The end of every run: each resource can be acquired, once, by a new client; then all counters go back to zero.
    pub(super) fn probe_names(&mut self) {
        for at in 0..self.swarm.names {
            let ask = AcquireRequest {
                wants: vec![(format!("r{at}"), Mode::Exclusive)],
                ttl: Duration::from_secs(1),
                wait: Duration::ZERO,
                max_hold: None,
                delay: Duration::ZERO,
                request: None,
                principal: "p0".into(),
                value: None,
            };
            self.ask_for(ask);
            let op = self.history.ops.len() - 1;
            while self.machine.as_ref().is_some_and(|m| !m.group.is_settled() || m.group.has_work()) {
                self.flush_step();
            }
            let OpOutcome::Granted { token, secret, .. } = self.history.ops[op].outcome else {
                let outcome = self.history.ops[op].outcome;
                self.observe("liveness", format!("r{at} cannot be had after every deadline: {outcome:?}"));
                return;
            };
            let op = self.invoke(OpKind::Release { token });
            self.submit(op, Command::Release { lease: LeaseKey { token, secret } });
        }
    }
}
