//! What tests of engines share: who believes to hold what, checked at every grant.

use std::collections::HashMap;
use std::sync::Mutex;

use leasehold::engine::{Mode, Token};

/// What holders believe, in the order in which they learn it. A holder counts until just before it asks for the release.
#[derive(Default)]
pub struct Witness {
    names: Mutex<HashMap<String, Believed>>,
    violations: Mutex<Vec<String>>,
}

#[derive(Default)]
struct Believed {
    exclusive: u32,
    shared: u32,
    permits: u32,
    newest: Option<Token>,
}

impl Witness {
    /// A grant was answered. Call it before anything else is done with it.
    pub fn granted(&self, name: &str, mode: Mode, token: Option<Token>) {
        let mut names = self.names.lock().unwrap();
        let held = names.entry(name.to_owned()).or_default();
        let alone = held.exclusive == 0
            && match mode {
                Mode::Exclusive => held.shared == 0 && held.permits == 0,
                Mode::Shared => held.permits == 0,
                Mode::Permits { count, capacity } => held.shared == 0 && held.permits + count <= capacity,
            };
        if !alone {
            self.flag(format!("{name}: {mode:?} beside {} {} {}", held.exclusive, held.shared, held.permits));
        }
        // Answers to holders that do not exclude each other may come in any order.
        if mode == Mode::Exclusive {
            if token <= held.newest {
                self.flag(format!("{name}: token {token:?} after {:?}", held.newest));
            }
            held.newest = token;
        }
        held.newest = held.newest.max(token);
        match mode {
            Mode::Exclusive => held.exclusive += 1,
            Mode::Shared => held.shared += 1,
            Mode::Permits { count, .. } => held.permits += count,
        }
    }

    /// The holder is about to release it.
    pub fn releasing(&self, name: &str, mode: Mode) {
        let mut names = self.names.lock().unwrap();
        let held = names.entry(name.to_owned()).or_default();
        match mode {
            Mode::Exclusive => held.exclusive -= 1,
            Mode::Shared => held.shared -= 1,
            Mode::Permits { count, .. } => held.permits -= count,
        }
    }

    pub fn flag(&self, violation: String) {
        self.violations.lock().unwrap().push(violation);
    }

    /// What was seen that must not be.
    pub fn violations(&self) -> Vec<String> {
        self.violations.lock().unwrap().clone()
    }
}

/// A seeded generator.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}
