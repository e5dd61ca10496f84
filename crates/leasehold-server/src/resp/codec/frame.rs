//! Finds commands in the input: arrays of bulk strings, or lines that a person types.
//!
//! # Laws
//!
//! 1. A length that a client announces is compared with the limits before it is used. Nothing is allocated for it.
//! 2. Bytes that are no command end the connection with one sentence: the start of the next command is unknown.

/// How large one command may be.
#[derive(Clone, Copy, Debug)]
pub struct CommandLimits {
    /// Arguments of one command, its name included.
    pub arguments: usize,
    /// Bytes of one argument.
    pub bulk: usize,
    /// Bytes of one command.
    pub command: usize,
}

impl CommandLimits {
    /// For a client that has not shown a key: enough to show one, and less than is read at once.
    pub const UNAUTHENTICATED: Self = Self { arguments: 10, bulk: 4096, command: 48 << 10 };
}

impl Default for CommandLimits {
    fn default() -> Self {
        Self { arguments: 1024, bulk: 64 << 10, command: 1 << 20 }
    }
}

/// The arguments of one command. They lie in the input of the connection.
#[derive(Clone, Copy)]
pub struct CommandArgs<'a> {
    input: &'a [u8],
    /// Where each argument begins and ends.
    spans: &'a [(u32, u32)],
}

impl<'a> CommandArgs<'a> {
    pub const fn new(input: &'a [u8], spans: &'a [(u32, u32)]) -> Self {
        Self { input, spans }
    }

    pub const fn len(&self) -> usize {
        self.spans.len()
    }

    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        let (from, to) = *self.spans.get(index)?;
        self.input.get(from as usize..to as usize)
    }

    /// The arguments from `index` on.
    pub fn from(&self, index: usize) -> Self {
        Self { input: self.input, spans: self.spans.get(index..).unwrap_or_default() }
    }

    pub fn iter(self) -> impl Iterator<Item = &'a [u8]> {
        (0..self.spans.len()).filter_map(move |index| self.get(index))
    }
}

/// What stands at the start of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParsedFrame {
    /// Part of a command, or nothing.
    Incomplete,
    /// A command of this many bytes. An empty line is a command without arguments.
    Command(usize),
    /// No command, or one that is too large. The sentence says which.
    Wrong(&'static str),
    /// A request of HTTP.
    Http,
}

/// Finds the first command of the input, and fills `spans` with the places of its arguments.
pub fn parse(input: &[u8], limits: &CommandLimits, spans: &mut Vec<(u32, u32)>) -> ParsedFrame {
    spans.clear();
    match input.first() {
        None => ParsedFrame::Incomplete,
        Some(b'*') => parse_array(input, limits, spans).unwrap_or_else(|stop| stop),
        Some(_) => parse_line(input, limits, spans),
    }
}

fn parse_array(input: &[u8], limits: &CommandLimits, spans: &mut Vec<(u32, u32)>) -> Result<ParsedFrame, ParsedFrame> {
    let (count, mut cursor) = parse_length(input, 1)?;
    if count < 0 || count as u64 > limits.arguments as u64 {
        return Err(ParsedFrame::Wrong("a command has too many arguments"));
    }
    for _ in 0..count {
        match input.get(cursor) {
            None => return Err(incomplete_or_too_long(input, limits)),
            Some(b'$') => {}
            Some(_) => return Err(ParsedFrame::Wrong("expected '$' before an argument")),
        }
        let (len, begin) = parse_length(input, cursor + 1)?;
        if len < 0 || len as u64 > limits.bulk as u64 {
            return Err(ParsedFrame::Wrong("an argument is too long"));
        }
        let end = begin + len as usize;
        if end > limits.command {
            return Err(ParsedFrame::Wrong("a command is too long"));
        }
        match input.get(end..end + 2) {
            None => return Err(ParsedFrame::Incomplete),
            Some(b"\r\n") => {}
            Some(_) => return Err(ParsedFrame::Wrong("an argument does not end where it says")),
        }
        spans.push((begin as u32, end as u32));
        cursor = end + 2;
    }
    Ok(ParsedFrame::Command(cursor))
}

/// A decimal number up to the end of its line, and where the next line begins.
fn parse_length(input: &[u8], from: usize) -> Result<(i64, usize), ParsedFrame> {
    let mut value: i64 = 0;
    let mut cursor = from;
    let negative = input.get(from) == Some(&b'-');
    if negative {
        cursor += 1;
    }
    let first = cursor;
    loop {
        match input.get(cursor) {
            None => return Err(ParsedFrame::Incomplete),
            Some(digit @ b'0'..=b'9') if cursor - first < 10 => {
                value = value * 10 + i64::from(digit - b'0');
                cursor += 1;
            }
            Some(b'\r') if cursor > first => break,
            Some(_) => return Err(ParsedFrame::Wrong("a length is no number")),
        }
    }
    match input.get(cursor + 1) {
        None => Err(ParsedFrame::Incomplete),
        Some(b'\n') => Ok((if negative { -value } else { value }, cursor + 2)),
        Some(_) => Err(ParsedFrame::Wrong("a length is no number")),
    }
}

fn incomplete_or_too_long(input: &[u8], limits: &CommandLimits) -> ParsedFrame {
    if input.len() > limits.command { ParsedFrame::Wrong("a command is too long") } else { ParsedFrame::Incomplete }
}

/// A command that a person typed. Quotes have no meaning: clients send arrays.
fn parse_line(input: &[u8], limits: &CommandLimits, spans: &mut Vec<(u32, u32)>) -> ParsedFrame {
    let Some(end) = memchr::memchr(b'\n', &input[..input.len().min(limits.bulk)]) else {
        return if input.len() >= limits.bulk {
            ParsedFrame::Wrong("a line is too long")
        } else {
            ParsedFrame::Incomplete
        };
    };
    let text = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
    if is_http(text) {
        return ParsedFrame::Http;
    }
    let mut begin = None;
    for (index, byte) in text.iter().chain([&b' ']).enumerate() {
        match (byte.is_ascii_whitespace(), begin) {
            (false, None) => begin = Some(index),
            (true, Some(from)) => {
                spans.push((from as u32, index as u32));
                begin = None;
            }
            _ => {}
        }
    }
    if spans.len() > limits.arguments {
        return ParsedFrame::Wrong("a command has too many arguments");
    }
    ParsedFrame::Command(end + 1)
}

/// Whether this is the first line or the Host header of an HTTP request. A web page must not be able to make a browser
/// send commands.
fn is_http(line: &[u8]) -> bool {
    let is_request_line = line.windows(6).any(|part| part == b" HTTP/");
    let is_host_header = line.len() >= 5 && line[..5].eq_ignore_ascii_case(b"host:");
    is_request_line || is_host_header || line.starts_with(b"POST ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(input: &[u8]) -> (ParsedFrame, Vec<Vec<u8>>) {
        let mut spans = Vec::new();
        let parsed = parse(input, &CommandLimits::default(), &mut spans);
        (parsed, CommandArgs::new(input, &spans).iter().map(<[u8]>::to_vec).collect())
    }

    fn written(args: &[Vec<u8>]) -> Vec<u8> {
        let mut out = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args {
            out.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
            out.extend_from_slice(arg);
            out.extend_from_slice(b"\r\n");
        }
        out
    }

    proptest! {
        /// Goal: whatever arguments are sent arrive, and every part of them is incomplete, never wrong.
        #[test]
        fn what_is_sent_arrives(args in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..6)) {
            let bytes = written(&args);
            prop_assert_eq!(read(&bytes), (ParsedFrame::Command(bytes.len()), args));
            for cut in 0..bytes.len() {
                prop_assert_eq!(read(&bytes[..cut]).0, ParsedFrame::Incomplete);
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic_nor_claim_more_than_is_there(bytes: Vec<u8>) {
            if let ParsedFrame::Command(len) = read(&bytes).0 {
                prop_assert!(len <= bytes.len());
            }
        }
    }

    /// Goal: a length is compared before anything is done with it.
    #[test]
    fn what_is_announced_too_big_is_refused_at_once() {
        for bytes in [
            &b"*1025\r\n"[..],
            b"*-1\r\n",
            b"*99999999999\r\n",
            b"*1\r\n$65537\r\n",
            b"*1\r\n$-1\r\n",
            b"*1\r\n:5\r\n",
            b"*x\r\n",
            b"*1\r\n$1\r\nab\r\n",
        ] {
            assert!(matches!(read(bytes).0, ParsedFrame::Wrong(_)), "{:?}", String::from_utf8_lossy(bytes));
        }
        assert!(matches!(read(&vec![b'a'; 70_000]).0, ParsedFrame::Wrong(_)));
        assert_eq!(read(b"*1024\r\n").0, ParsedFrame::Incomplete);
    }

    #[test]
    fn a_line_is_a_command_and_http_is_none() {
        assert_eq!(read(b"ping  hello \r\nx"), (ParsedFrame::Command(14), vec![b"ping".to_vec(), b"hello".to_vec()]));
        assert_eq!(read(b"\r\n").0, ParsedFrame::Command(2));
        for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"POST /v1/leases HTTP/1.1\r\n", b"Host: localhost\r\n", b"POST x\n"]
        {
            assert_eq!(read(bytes).0, ParsedFrame::Http, "{:?}", String::from_utf8_lossy(bytes));
        }
        assert_eq!(read(b"GET /a\r\n").1.len(), 2);
    }
}
