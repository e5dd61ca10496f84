//! A look ahead: what clients ask in one round is parsed before the first of it is decided.
//!
//! A name among a million stands where no cache has it, and looking up one after the other waits for memory each time.
//! Told of several names at once, the book has them all on their way together.

use leasehold::engine::embedded::{Embedded, LockedEngine};

use super::{Place, TURN};
use crate::resp::codec::frame::{Parsed, Sizes, parse};

/// Commands that are parsed ahead in one round; what comes after them is parsed when it is their turn.
const ROUND: usize = 4096;
/// Names that the book is told of at once.
const NAMES: usize = 16;

/// The commands of one round, as they lie in the inputs of those that are ready.
#[derive(Default)]
pub(super) struct Ahead {
    commands: Vec<Command>,
    arguments: Vec<(u32, u32)>,
    /// How many commands are whose, in the order of the ready.
    each: Vec<usize>,
}

struct Command {
    bytes: usize,
    /// Where its arguments begin among all.
    from: usize,
    arguments: usize,
}

impl Ahead {
    /// Parses what is there, and tells the book of the names. The locked is opened if there are several.
    pub fn look<'e>(
        &mut self,
        ready: &[u32],
        places: &[Place],
        sizes: &Sizes,
        engine: &'e Embedded,
    ) -> Option<LockedEngine<'e>> {
        self.commands.clear();
        self.arguments.clear();
        self.each.clear();
        let mut locked = None;
        let mut names = [""; NAMES];
        let mut many = 0;
        let mut at = Vec::new();
        for slot in ready {
            let before = self.commands.len();
            let Some(connection) = &places[*slot as usize].connection else {
                self.each.push(0);
                continue;
            };
            let mut input = connection.input.as_slice();
            while self.commands.len() < ROUND && self.commands.len() - before < TURN {
                let Parsed::Command(bytes) = parse(input, connection.sizes(sizes), &mut at) else { break };
                self.commands.push(Command { bytes, from: self.arguments.len(), arguments: at.len() });
                self.arguments.extend_from_slice(&at);
                if let Some(name) = name(input, &at) {
                    names[many] = name;
                    many += 1;
                    if many == NAMES {
                        locked.get_or_insert_with(|| engine.lock_for_batch()).prefetch(&names);
                        many = 0;
                    }
                }
                input = &input[bytes..];
            }
            self.each.push(self.commands.len() - before);
        }
        if many > 1 {
            locked.get_or_insert_with(|| engine.lock_for_batch()).prefetch(&names[..many]);
        }
        locked
    }

    /// What was parsed, client by client.
    pub fn each(&self) -> impl Iterator<Item = Coming<'_>> {
        let mut commands = self.commands.as_slice();
        self.each.iter().map(move |many| {
            let (his, rest) = commands.split_at(*many);
            commands = rest;
            Coming { commands: his, arguments: &self.arguments }
        })
    }
}

/// Nearly every command that is decided at once has a name as its first argument; of others a cache line is fetched in
/// vain.
fn name<'a>(input: &'a [u8], at: &[(u32, u32)]) -> Option<&'a str> {
    let (from, to) = *at.get(1)?;
    std::str::from_utf8(input.get(from as usize..to as usize)?).ok()
}

/// What one client's input begins with, as far as it was parsed.
#[derive(Default)]
pub(super) struct Coming<'a> {
    commands: &'a [Command],
    arguments: &'a [(u32, u32)],
}

impl<'a> Coming<'a> {
    /// The next command: its length, and where its arguments lie in it.
    pub fn next(&mut self) -> Option<(usize, &'a [(u32, u32)])> {
        let (next, rest) = self.commands.split_first()?;
        self.commands = rest;
        Some((next.bytes, &self.arguments[next.from..next.from + next.arguments]))
    }
}
