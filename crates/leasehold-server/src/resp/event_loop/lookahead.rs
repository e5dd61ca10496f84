//! Parses all commands of a round before the first of them is decided, and prefetches their names.
//!
//! A name among a million is in no cache, and each lookup alone waits for memory. Given several names at once, the book
//! loads them together.

use leasehold::engine::embedded::{Embedded, LockedEngine};

use super::ConnectionSlot;
use super::dispatch::MAX_COMMANDS_PER_TURN;
use crate::resp::codec::frame::{CommandArgs, CommandLimits, ParsedFrame, parse};
use crate::resp::command::table;

/// Commands that are parsed ahead in one round. The rest are parsed when they run.
const MAX_COMMANDS_PARSED_AHEAD: usize = 4096;
/// Names that are prefetched at once.
const PREFETCH_NAMES: usize = 16;

/// The parsed commands of one round. They lie in the inputs of the ready connections.
#[derive(Default)]
pub(super) struct Lookahead {
    commands: Vec<CommandSpan>,
    /// The arguments of all commands: where each lies in its command.
    argument_spans: Vec<(u32, u32)>,
    /// How many commands each connection has, in the order of the ready list.
    counts: Vec<usize>,
}

struct CommandSpan {
    /// The length of the command.
    bytes: usize,
    /// Its arguments in [`Lookahead::argument_spans`].
    first_argument: usize,
    arguments: usize,
}

impl Lookahead {
    /// Parses the inputs, and prefetches the names in them. Locks the engine if there are several.
    pub fn parse_ahead<'e>(
        &mut self,
        ready: &[u32],
        slots: &[ConnectionSlot],
        limits: &CommandLimits,
        engine: &'e Embedded,
    ) -> Option<LockedEngine<'e>> {
        self.commands.clear();
        self.argument_spans.clear();
        self.counts.clear();
        let mut locked = None;
        let mut names = [""; PREFETCH_NAMES];
        let mut name_count = 0;
        let mut spans = Vec::new();
        for slot in ready {
            let before = self.commands.len();
            let Some(connection) = &slots[*slot as usize].connection else {
                self.counts.push(0);
                continue;
            };
            let limits = connection.command_limits(limits);
            let mut input = connection.input.as_slice();
            while self.commands.len() < MAX_COMMANDS_PARSED_AHEAD
                && self.commands.len() - before < MAX_COMMANDS_PER_TURN
            {
                let ParsedFrame::Command(bytes) = parse(input, limits, &mut spans) else { break };
                let (first_argument, arguments) = (self.argument_spans.len(), spans.len());
                self.commands.push(CommandSpan { bytes, first_argument, arguments });
                self.argument_spans.extend_from_slice(&spans);
                if let Some(name) = name_to_prefetch(input, &spans) {
                    names[name_count] = name;
                    name_count += 1;
                    if name_count == PREFETCH_NAMES {
                        locked.get_or_insert_with(|| engine.lock_for_batch()).prefetch(&names);
                        name_count = 0;
                    }
                }
                input = &input[bytes..];
            }
            self.counts.push(self.commands.len() - before);
        }
        if name_count > 1 {
            locked.get_or_insert_with(|| engine.lock_for_batch()).prefetch(&names[..name_count]);
        }
        locked
    }

    /// The parsed commands of each connection, in the order of the ready list.
    pub fn by_connection(&self) -> impl Iterator<Item = ParsedAhead<'_>> {
        let mut rest = self.commands.as_slice();
        self.counts.iter().map(move |count| {
            let (commands, others) = rest.split_at(*count);
            rest = others;
            ParsedAhead { commands, argument_spans: &self.argument_spans }
        })
    }
}

/// The resource that the command looks up first. A wrong guess costs one cache line.
fn name_to_prefetch<'i>(input: &'i [u8], spans: &[(u32, u32)]) -> Option<&'i str> {
    let index = table::first_name_index(CommandArgs::new(input, spans))?;
    let (from, to) = *spans.get(index)?;
    std::str::from_utf8(input.get(from as usize..to as usize)?).ok()
}

/// The commands at the start of one connection's input.
#[derive(Default)]
pub(super) struct ParsedAhead<'a> {
    commands: &'a [CommandSpan],
    argument_spans: &'a [(u32, u32)],
}

impl<'a> ParsedAhead<'a> {
    /// The next command: its length, and where its arguments lie in it.
    pub fn next(&mut self) -> Option<(usize, &'a [(u32, u32)])> {
        let (next, rest) = self.commands.split_first()?;
        self.commands = rest;
        Some((next.bytes, &self.argument_spans[next.first_argument..next.first_argument + next.arguments]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what is prefetched is the resource's name, in the encoding that clients send.
    #[test]
    fn the_name_of_the_resource_is_prefetched() {
        for (words, name) in [
            (&["SET", "a", "v", "NX", "PX", "30000"][..], Some("a")),
            (&["LEASE", "ACQUIRE", "30000", "WAIT", "5", "RESOURCES", "a", "b"], Some("a")),
            (&["LEASE", "RELEASE", "1-00000000000000000000000000000000"], None),
            (&["PING"], None),
        ] {
            let input = crate::resp::tests::client::command(words);
            let mut spans = Vec::new();
            let parsed = parse(&input, &CommandLimits::default(), &mut spans);
            assert_eq!(parsed, ParsedFrame::Command(input.len()));
            assert_eq!(name_to_prefetch(&input, &spans), name, "{words:?}");
        }
        assert_eq!(name_to_prefetch(b"\xff", &[(0, 0), (0, 1)]), None, "no name is other than UTF-8");
    }
}
