//! Writes replies, in either version of the protocol.

use std::time::Duration;

use itoa::Buffer;
use leasehold::{Error, Refusal, Token};

use crate::service::Denial;

/// The version of RESP that a connection uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RespVersion {
    /// Until the client asks for another.
    Resp2,
    /// After `HELLO 3`.
    Resp3,
}

/// How long a lease still lives.
#[derive(Clone, Copy, Debug)]
pub struct LeaseLife {
    /// Until it lapses.
    pub remaining: Duration,
    /// With `FULL`: how far it can be renewed, if it has a maximum. Without `FULL` the reply has one element less.
    pub renewable: Option<Option<Duration>>,
}

impl LeaseLife {
    pub fn new(remaining: Duration, renewable: Option<Duration>, full: bool) -> Self {
        Self { remaining, renewable: full.then_some(renewable) }
    }
}

/// Whole milliseconds, rounded down: no client believes that its lease lives longer than it does.
pub fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

/// Writes replies to a buffer.
pub struct ReplyWriter<'a> {
    out: &'a mut Vec<u8>,
    version: RespVersion,
}

impl<'a> ReplyWriter<'a> {
    pub const fn new(out: &'a mut Vec<u8>, version: RespVersion) -> Self {
        Self { out, version }
    }

    fn header(&mut self, marker: u8, number: usize) {
        self.out.push(marker);
        self.out.extend_from_slice(Buffer::new().format(number).as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    /// A simple string, such as `+OK`.
    pub fn simple(&mut self, word: &str) {
        self.out.push(b'+');
        self.out.extend_from_slice(word.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    /// A whole number.
    pub fn integer(&mut self, number: i64) {
        self.out.push(b':');
        self.out.extend_from_slice(Buffer::new().format(number).as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    /// A number that could be too large for RESP. Tokens count from one, and never are.
    pub fn unsigned(&mut self, number: u64) {
        self.integer(i64::try_from(number).unwrap_or(i64::MAX));
    }

    /// A bulk string.
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.header(b'$', bytes.len());
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// A bulk string of text.
    pub fn text(&mut self, text: &str) {
        self.bulk(text.as_bytes());
    }

    /// Text for people. Version 3 marks it as such.
    pub fn verbatim(&mut self, text: &str) {
        match self.version {
            RespVersion::Resp2 => self.text(text),
            RespVersion::Resp3 => {
                self.header(b'=', text.len() + 4);
                self.out.extend_from_slice(b"txt:");
                self.out.extend_from_slice(text.as_bytes());
                self.out.extend_from_slice(b"\r\n");
            }
        }
    }

    /// The null of the version.
    pub fn nil(&mut self) {
        self.out.extend_from_slice(match self.version {
            RespVersion::Resp2 => b"$-1\r\n",
            RespVersion::Resp3 => b"_\r\n",
        });
    }

    /// A boolean. Version 2 has none, and uses 1 and 0.
    pub fn boolean(&mut self, yes: bool) {
        match (self.version, yes) {
            (RespVersion::Resp2, _) => self.integer(yes.into()),
            (RespVersion::Resp3, true) => self.out.extend_from_slice(b"#t\r\n"),
            (RespVersion::Resp3, false) => self.out.extend_from_slice(b"#f\r\n"),
        }
    }

    /// The head of an array: so many values follow.
    pub fn array(&mut self, len: usize) {
        self.header(b'*', len);
    }

    /// The head of a map: so many names and values follow.
    pub fn map(&mut self, len: usize) {
        match self.version {
            RespVersion::Resp2 => self.header(b'*', len * 2),
            RespVersion::Resp3 => self.header(b'%', len),
        }
    }

    /// The head of a push: so many values follow that no command asked for.
    pub fn push(&mut self, len: usize) {
        match self.version {
            RespVersion::Resp2 => self.header(b'*', len),
            RespVersion::Resp3 => self.header(b'>', len),
        }
    }

    /// A lease: its id, its token (null from an engine that has none), and its life.
    pub fn granted(&mut self, lease_id: &str, token: Option<Token>, life: LeaseLife) {
        self.array(if life.renewable.is_some() { 4 } else { 3 });
        self.text(lease_id);
        match token {
            Some(token) => self.unsigned(token.get()),
            None => self.nil(),
        }
        self.write_life(life);
    }

    /// How long a lease lives now: a number, or with `FULL` two.
    pub fn renewed(&mut self, life: LeaseLife) {
        if life.renewable.is_some() {
            self.array(2);
        }
        self.write_life(life);
    }

    fn write_life(&mut self, life: LeaseLife) {
        self.integer(millis(life.remaining));
        match life.renewable {
            Some(Some(renewable)) => self.integer(millis(renewable)),
            Some(None) => self.nil(),
            None => {}
        }
    }

    /// An error: one word, then a sentence. Line breaks become spaces, since clients choose parts of it.
    pub fn error(&mut self, word: &str, sentence: &str) {
        self.out.push(b'-');
        self.out.extend_from_slice(word.as_bytes());
        self.out.push(b' ');
        self.out.extend(sentence.bytes().map(|byte| if byte == b'\r' || byte == b'\n' { b' ' } else { byte }));
        self.out.extend_from_slice(b"\r\n");
    }

    /// The error for a command that cannot run as it is written.
    pub fn invalid(&mut self, sentence: &str) {
        self.error("INVALID", sentence);
    }

    /// The error for a denial of the service.
    pub fn denial(&mut self, denial: &Denial) {
        let word = denial.code().word;
        match denial {
            Denial::Engine(Error::Refused(Refusal::Held { resource, holder, remaining, queue_len })) => {
                let mut text = String::new();
                if let Some(holder) = holder {
                    text.push_str(&format!("holder=\"{}\" ", escaped(holder)));
                }
                if let Some(remaining) = remaining {
                    text.push_str(&format!("remaining_ms={} ", remaining.as_millis()));
                }
                text.push_str(&format!("queue={queue_len} resource=\"{}\"", escaped(resource)));
                self.error(word, &text);
            }
            Denial::Engine(Error::Refused(Refusal::QueueFull { resource })) => {
                self.error(word, &format!("resource=\"{}\"", escaped(resource)));
            }
            other => self.error(word, &other.sentence()),
        }
    }
}

/// Text that a client chose, so that it can stand between quotes on one line.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '"' | '\\' => {
                out.push('\\');
                out.push(letter);
            }
            letter if letter.is_control() => {
                let mut bytes = [0; 4];
                for byte in letter.encode_utf8(&mut bytes).bytes() {
                    out.push_str(&format!("\\x{byte:02x}"));
                }
            }
            letter => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(version: RespVersion, write: impl Fn(&mut ReplyWriter<'_>)) -> String {
        let mut out = Vec::new();
        write(&mut ReplyWriter::new(&mut out, version));
        String::from_utf8(out).unwrap()
    }

    /// Goal: each version is spoken as it is written down, byte for byte.
    #[test]
    fn both_versions_are_spoken() {
        type Case = (fn(&mut ReplyWriter<'_>), &'static str, &'static str);
        let table: [Case; 8] = [
            (|reply| reply.nil(), "$-1\r\n", "_\r\n"),
            (|reply| reply.boolean(true), ":1\r\n", "#t\r\n"),
            (|reply| reply.map(2), "*4\r\n", "%2\r\n"),
            (|reply| reply.push(3), "*3\r\n", ">3\r\n"),
            (|reply| reply.verbatim("ab"), "$2\r\nab\r\n", "=6\r\ntxt:ab\r\n"),
            (|reply| reply.text("é"), "$2\r\né\r\n", "$2\r\né\r\n"),
            (|reply| reply.integer(-2), ":-2\r\n", ":-2\r\n"),
            (|reply| reply.error("INVALID", "a\r\nb"), "-INVALID a  b\r\n", "-INVALID a  b\r\n"),
        ];
        for (write, two, three) in table {
            assert_eq!(written(RespVersion::Resp2, write), two);
            assert_eq!(written(RespVersion::Resp3, write), three);
        }
    }

    #[test]
    fn a_holder_cannot_leave_its_quotes() {
        assert_eq!(escaped("a\"b\\c\r\n"), "a\\\"b\\\\c\\x0d\\x0a");
    }
}
