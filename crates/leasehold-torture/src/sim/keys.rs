//! Clients that use leases as Redis keys, and principals with a share: what they ask, and what the model says of it.

use leasehold_core::{Command, Keys, Mode, Push};

use super::Sim;
use crate::history::{AcquireRequest, KeyRequest, OpId, OpKind, Recorded};

impl Sim {
    /// A claim with a value: exclusive, and does not wait.
    pub(super) fn set(&mut self) {
        let ask = self.draw_ask();
        let wants = ask.wants.into_iter().map(|(name, _)| (name, Mode::Exclusive)).collect();
        let value = Some(format!("v{:x}", self.rng.next()));
        self.ask_for(AcquireRequest { wants, value, wait: std::time::Duration::ZERO, ..ask });
    }

    /// Names and a value: mostly of one lease, sometimes of several or of none; the right value, a wrong one, or none.
    fn draw_keys(&mut self) -> KeyRequest {
        let known: Vec<(Vec<String>, String)> = self
            .model
            .leases
            .values()
            .filter_map(|lease| {
                let names = lease.wants.iter().map(|(name, _)| name.clone()).collect();
                Some((names, lease.value.clone()?))
            })
            .collect();
        let any = format!("r{}", self.rng.below(self.swarm.names));
        if known.is_empty() || self.rng.one_in(6) {
            let value = (!self.rng.one_in(3)).then(|| "nobody's".to_owned());
            return KeyRequest { names: vec![any], value };
        }
        let (mut names, value) = self.rng.pick(&known).clone();
        if self.rng.one_in(2) {
            let at = self.rng.below(names.len() as u64) as usize;
            names = vec![names.swap_remove(at)];
        }
        if self.rng.one_in(5) && !names.contains(&any) {
            names.push(any);
        }
        let value = match self.rng.below(8) {
            0..5 => Some(value),
            5 => None,
            _ => {
                self.history.counts.key_thieves += 1;
                Some(match self.rng.below(4) {
                    0 => String::new(),
                    1 => value[..value.len() - 1].to_owned(),
                    2 => format!("{value}0"),
                    _ => self.rng.pick(&known).1.clone() + "x",
                })
            }
        };
        KeyRequest { names, value }
    }

    pub(super) fn free(&mut self) {
        let keys = self.draw_keys();
        let Some(now) = self.book_now() else { return };
        let expect = self.model.would_free(&keys, now);
        let op = self.invoke(OpKind::Free { keys: keys.clone(), expect });
        let names: Vec<&str> = keys.names.iter().map(String::as_str).collect();
        let asked = Keys { names: &names, value: keys.value.as_deref().map(str::as_bytes) };
        self.submit_keys(op, Command::Free(asked), &keys, expect, now);
    }

    pub(super) fn extend(&mut self) {
        let keys = self.draw_keys();
        let Some(now) = self.book_now() else { return };
        let ms = 1 + self.rng.below(3_000);
        let push = if self.rng.one_in(3) { Push::Add(ms) } else { Push::Set(ms) };
        let expect = self.model.would_extend(&keys, push, now);
        let op = self.invoke(OpKind::Extend { keys: keys.clone(), push, expect });
        let names: Vec<&str> = keys.names.iter().map(String::as_str).collect();
        let asked = Keys { names: &names, value: keys.value.as_deref().map(str::as_bytes) };
        self.submit_keys(op, Command::Extend { keys: asked, push }, &keys, expect, now);
    }

    /// What must change nothing changes nothing: the whole book is compared, unless something due is in the way.
    fn submit_keys(&mut self, op: OpId, command: Command<'_>, keys: &KeyRequest, expect: Option<usize>, now: u64) {
        let still = expect.unwrap_or(0) == 0 && !self.model.is_due(&keys.names, now);
        let digest = |sim: &Self| sim.machine.as_ref().map(|machine| machine.group.book.digest());
        let before = if still { digest(self) } else { None };
        self.submit(op, command);
        if before.is_some() {
            self.history.ops[op].untouched = before == digest(self);
        }
    }

    pub(super) fn book_now(&self) -> Option<u64> {
        self.machine.as_ref().map(|machine| machine.clock.now().as_nanos())
    }

    /// No principal ever has more leases, or more waiting claims, than its share.
    pub(super) fn count_share(&mut self, fact: &Recorded) {
        let Recorded::Granted { principal, token, .. } = fact else { return };
        let (most, _) = self.swarm.share;
        let has = self.model.leases_of(principal);
        self.history.counts.keys += u64::from(self.model.leases.get(token).is_some_and(|l| l.value.is_some()));
        if has > most {
            self.observe("principal_quota", format!("{principal} has {has} leases of {most} with token {token}"));
        }
    }

    /// Whether a refusal for want of room is true at this moment.
    pub(super) fn is_full(&mut self, principal: &str) -> bool {
        let (leases, waiters) = self.swarm.share;
        let Some(now) = self.book_now() else { return true };
        let waits = |op: OpId| matches!(&self.history.ops[op].kind, OpKind::Acquire(ask) if ask.principal == principal);
        let in_line = self.model.waiters.iter().filter(|waiter| waiter.until > now && waits(waiter.op)).count();
        if in_line > waiters {
            self.observe("principal_quota", format!("{principal} has {in_line} places in line of {waiters}"));
        }
        // The book may still count some whose wait is over: the number of all waiters is the bound.
        let line = self.machine.as_ref().map_or(0, |machine| machine.group.book.counts().waiters);
        let all = super::machine::limits().leases;
        self.model.leases.len() >= all || self.model.leases_of(principal) >= leases || line >= waiters
    }

    /// Waiters that were refused when their turn came, because their principal has its share, block nobody.
    pub(super) fn forget_the_refused(&mut self, new: &[Recorded]) {
        let Some(machine) = &self.machine else { return };
        let granted = |op: OpId| {
            let label = format!("op{op}");
            new.iter().any(|fact| matches!(fact, Recorded::Granted { holder, .. } if *holder == label))
        };
        let waiter_id = |op: OpId| leasehold_core::WaiterId(op as u64 + 1);
        let waits = |op: OpId| {
            machine.group.is_waiting(waiter_id(op))
                || self.joined(op).any(|waiter_id| machine.group.is_waiting(waiter_id))
        };
        let gone: Vec<OpId> =
            self.model.waiters.iter().map(|waiter| waiter.op).filter(|op| !waits(*op) && !granted(*op)).collect();
        self.model.waiters.retain(|waiter| !gone.contains(&waiter.op));
    }
}
