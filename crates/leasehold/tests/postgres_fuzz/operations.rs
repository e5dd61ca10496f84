//! Operations, drawn at random, and what is known of the claims that were asked for.

use leasehold_core::fact::fingerprint;
use leasehold_core::{LeaseKey, Mode, WaiterId, Want};

use super::GROUPS;
use super::trial::Trial;

pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }

    pub(super) fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    pub(super) fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len() as u64) as usize]
    }
}

/// What is known of one handle.
#[derive(Clone)]
pub(super) struct Known {
    pub(super) handle: u128,
    pub(super) secret: u128,
    pub(super) group: usize,
    pub(super) asked: Asked,
    /// Waiters of the book, each with the process through which it waits.
    pub(super) waiters: Vec<(WaiterId, i64)>,
    pub(super) key: Option<LeaseKey>,
    /// When it must be checked, and when its patience ends, in microseconds.
    pub(super) due: Option<u64>,
    pub(super) patience: u64,
    /// What a message said of its grant: remaining and renewable.
    pub(super) message: Option<(i64, i64, Option<i64>)>,
}

#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) wants: Vec<(String, Mode)>,
    pub(super) ttl_ms: u64,
    pub(super) wait_ms: u64,
    pub(super) max_hold_ms: Option<u64>,
    pub(super) delay_ms: u64,
    pub(super) holder: String,
    pub(super) request: Option<String>,
}

impl Asked {
    pub(super) fn core_wants(&self) -> Vec<Want<'_>> {
        self.wants.iter().map(|(name, mode)| Want { name, mode: *mode }).collect()
    }

    pub(super) fn fingerprint(&self) -> Option<i64> {
        self.request.as_ref()?;
        Some(fingerprint(&self.core_wants(), self.ttl_ms, self.max_hold_ms, self.delay_ms).cast_signed())
    }
}

pub(super) enum Operation {
    Acquire { at: usize, asked: Asked, process: i64, waiter: WaiterId },
    Release { at: usize, wrong: bool },
    Renew { at: usize, ttl_ms: Option<u64> },
}

impl Trial {
    fn draw_claim(&mut self, group: usize) -> (usize, Asked) {
        let unit = self.unit_ms;
        let mut names: Vec<&str> = GROUPS[group].to_vec();
        let count = if self.dice.one_in(3) { 2 + self.dice.below(2) } else { 1 };
        while names.len() as u64 > count {
            let gone = self.dice.below(names.len() as u64) as usize;
            names.remove(gone);
        }
        if self.dice.one_in(2) {
            names.reverse();
        }
        let wants = names
            .iter()
            .map(|name| {
                let mode = match self.dice.below(5) {
                    0 | 1 => Mode::Exclusive,
                    2 => Mode::Shared,
                    _ => {
                        Mode::Permits { count: 1 + self.dice.below(2) as u32, capacity: 2 + self.dice.below(2) as u32 }
                    }
                };
                ((*name).to_owned(), mode)
            })
            .collect();
        let who = ["ada", "bob", "cy", "dan"][self.dice.below(4) as usize].to_owned();
        let asked = Asked {
            wants,
            ttl_ms: unit * (1 + self.dice.below(12)),
            wait_ms: if self.dice.one_in(2) { unit * self.dice.below(15) } else { 0 },
            max_hold_ms: self.dice.one_in(4).then(|| unit * (1 + self.dice.below(20))),
            delay_ms: if self.dice.one_in(4) { unit * self.dice.below(6) } else { 0 },
            holder: who,
            request: self.dice.one_in(3).then(|| format!("r{group}{}", self.dice.below(12))),
        };
        // The same request again, mostly with the same body.
        if let Some(request) = &asked.request
            && let Some(at) = self.known.iter().position(|known| known.asked.request.as_ref() == Some(request))
        {
            let asked = if self.dice.one_in(8) {
                asked
            } else {
                Asked { wait_ms: asked.wait_ms, ..self.known[at].asked.clone() }
            };
            return (at, asked);
        }
        self.handles += 1;
        let handle = (u128::from(self.dice.below(u64::MAX)) << 64) | self.handles;
        let secret = !handle;
        self.known.push(Known {
            handle,
            secret,
            group,
            asked: asked.clone(),
            waiters: vec![],
            key: None,
            due: None,
            patience: 0,
            message: None,
        });
        (self.known.len() - 1, asked)
    }

    pub(super) fn draw_operation(&mut self, group: usize) -> Operation {
        let leases: Vec<usize> = (0..self.known.len())
            .filter(|at| self.known[*at].group == group && self.known[*at].key.is_some())
            .collect();
        let kind = self.dice.below(10);
        if leases.is_empty() || kind < 5 {
            let (at, asked) = self.draw_claim(group);
            self.waiter_ids += 1;
            return Operation::Acquire {
                at,
                asked,
                process: 1 + self.dice.below(2) as i64,
                waiter: WaiterId(self.waiter_ids),
            };
        }
        // Mostly the newest: the old ones are over.
        let at = if self.dice.one_in(4) {
            *self.dice.pick(&leases)
        } else {
            leases[leases.len() - 1 - self.dice.below(leases.len().min(3) as u64) as usize]
        };
        if kind < 8 {
            Operation::Release { at, wrong: self.dice.one_in(20) }
        } else {
            let ttl_ms = self.dice.one_in(2).then(|| self.unit_ms * (1 + self.dice.below(12)));
            Operation::Renew { at, ttl_ms }
        }
    }
}
