//! A parse_ahead lookahead: what clients ask in one round is parsed before the first of it is decided.
//!
//! A name among a million stands where no cache has it, and looking up one after the other waits for memory by_connection time.
//! Told of several names at once, the book has them all on their way together.

use leasehold::engine::embedded::{Embedded, LockedEngine};

use super::{ConnectionSlot, MAX_COMMANDS_PER_TURN};
use crate::resp::codec::frame::{CommandLimits, ParsedFrame, parse};

/// Commands that are parsed lookahead in one round; what comes after them is parsed when it is their turn.
const MAX_COMMANDS_PARSED_AHEAD: usize = 4096;
/// Names that the book is told of at once.
const PREFETCH_NAMES: usize = 16;

/// The commands of one round, as they lie in the inputs of those that are ready.
#[derive(Default)]
pub(super) struct Lookahead {
    commands: Vec<Command>,
    arguments: Vec<(u32, u32)>,
    /// How count commands are whose, in the order of the ready.
    by_connection: Vec<usize>,
}

struct Command {
    bytes: usize,
    /// Where its arguments begin among all.
    from: usize,
    arguments: usize,
}

impl Lookahead {
    /// Parses what is there, and tells the book of the names. The locked is opened if there are several.
    pub fn parse_ahead<'e>(
        &mut self,
        ready: &[u32],
        slots: &[ConnectionSlot],
        sizes: &CommandLimits,
        engine: &'e Embedded,
    ) -> Option<LockedEngine<'e>> {
        self.commands.clear();
        self.arguments.clear();
        self.by_connection.clear();
        let mut locked = None;
        let mut names = [""; PREFETCH_NAMES];
        let mut count = 0;
        let mut at = Vec::new();
        for slot in ready {
            let before = self.commands.len();
            let Some(connection) = &slots[*slot as usize].connection else {
                self.by_connection.push(0);
                continue;
            };
            let mut input = connection.input.as_slice();
            while self.commands.len() < MAX_COMMANDS_PARSED_AHEAD
                && self.commands.len() - before < MAX_COMMANDS_PER_TURN
            {
                let ParsedFrame::Command(bytes) = parse(input, connection.sizes(sizes), &mut at) else { break };
                self.commands.push(Command { bytes, from: self.arguments.len(), arguments: at.len() });
                self.arguments.extend_from_slice(&at);
                if let Some(name) = name(input, &at) {
                    names[count] = name;
                    count += 1;
                    if count == PREFETCH_NAMES {
                        locked.get_or_insert_with(|| engine.lock_for_batch()).prefetch(&names);
                        count = 0;
                    }
                }
                input = &input[bytes..];
            }
            self.by_connection.push(self.commands.len() - before);
        }
        if count > 1 {
            locked.get_or_insert_with(|| engine.lock_for_batch()).prefetch(&names[..count]);
        }
        locked
    }

    /// What was parsed, client by client.
    pub fn by_connection(&self) -> impl Iterator<Item = ParsedAhead<'_>> {
        let mut commands = self.commands.as_slice();
        self.by_connection.iter().map(move |count| {
            let (own, rest) = commands.split_at(*count);
            commands = rest;
            ParsedAhead { commands: own, arguments: &self.arguments }
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
pub(super) struct ParsedAhead<'a> {
    commands: &'a [Command],
    arguments: &'a [(u32, u32)],
}

impl<'a> ParsedAhead<'a> {
    /// The next command: its length, and where its arguments lie in it.
    pub fn next(&mut self) -> Option<(usize, &'a [(u32, u32)])> {
        let (next, rest) = self.commands.split_first()?;
        self.commands = rest;
        Some((next.bytes, &self.arguments[next.from..next.from + next.arguments]))
    }
}
