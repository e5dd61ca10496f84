//! Arguments of a command that a test writes as a line.

use crate::resp::codec::frame::CommandArgs;

/// A line cut into words. Words stand between spaces; a space inside a word is written `~`.
pub struct Words {
    input: Vec<u8>,
    at: Vec<(u32, u32)>,
}

impl Words {
    pub fn new(line: &str) -> Self {
        let (mut input, mut at) = (Vec::new(), Vec::new());
        for word in line.split(' ').filter(|word| !word.is_empty()) {
            let from = input.len() as u32;
            input.extend_from_slice(word.replace('~', " ").as_bytes());
            at.push((from, input.len() as u32));
        }
        Self { input, at }
    }

    pub fn args(&self) -> CommandArgs<'_> {
        CommandArgs::new(&self.input, &self.at)
    }
}
