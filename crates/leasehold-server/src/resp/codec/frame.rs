//! What a client sends: commands as arrays of bulk strings, or typed as a line.
//!
//! # Laws
//!
//! 1. No length that a client announces is believed before it is compared with the limits; nothing is allocated for it.
//! 2. Bytes that are no command end the connection with one sentence: there is no way back into step.

/// How much one command may be.
#[derive(Clone, Copy, Debug)]
pub struct CommandLimits {
    /// Arguments of one command.
    pub arguments: usize,
    /// Bytes of one argument.
    pub bulk: usize,
    /// Bytes of one command.
    pub command: usize,
}

impl CommandLimits {
    /// Enough to show a key: whoever has not may not make us keep more. (It fits what is read at once.)
    pub const UNAUTHENTICATED: Self = Self { arguments: 10, bulk: 4096, command: 48 << 10 };
}

impl Default for CommandLimits {
    fn default() -> Self {
        Self { arguments: 1024, bulk: 64 << 10, command: 1 << 20 }
    }
}

/// The arguments of one command, as they lie in the input.
#[derive(Clone, Copy)]
pub struct CommandArgs<'a> {
    input: &'a [u8],
    at: &'a [(u32, u32)],
}

impl<'a> CommandArgs<'a> {
    /// Arguments at these places.
    pub const fn new(input: &'a [u8], at: &'a [(u32, u32)]) -> Self {
        Self { input, at }
    }

    /// How many, the command's name included.
    pub const fn len(&self) -> usize {
        self.at.len()
    }

    /// One of them.
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        let (from, to) = *self.at.get(index)?;
        self.input.get(from as usize..to as usize)
    }

    /// Those from `index` on.
    pub fn from(&self, index: usize) -> Self {
        Self { input: self.input, at: self.at.get(index..).unwrap_or_default() }
    }

    /// One by one.
    pub fn iter(self) -> impl Iterator<Item = &'a [u8]> {
        (0..self.at.len()).filter_map(move |index| self.get(index))
    }
}

/// What the input begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParsedFrame {
    /// A command may follow; there is not enough of it yet.
    Incomplete,
    /// A command of this many bytes. Without arguments it is an empty line.
    Command(usize),
    /// No command, or one that is too big.
    Wrong(&'static str),
    /// Somebody speaks HTTP to us.
    Http,
}

/// Finds the first command of the input and the places of its arguments.
pub fn parse(input: &[u8], sizes: &CommandLimits, at: &mut Vec<(u32, u32)>) -> ParsedFrame {
    at.clear();
    match input.first() {
        None => ParsedFrame::Incomplete,
        Some(b'*') => array(input, sizes, at).unwrap_or_else(|stop| stop),
        Some(_) => line(input, sizes, at),
    }
}

fn array(input: &[u8], sizes: &CommandLimits, at: &mut Vec<(u32, u32)>) -> Result<ParsedFrame, ParsedFrame> {
    let (count, mut cursor) = number(input, 1)?;
    if count < 0 || count as u64 > sizes.arguments as u64 {
        return Err(ParsedFrame::Wrong("a command has too many arguments"));
    }
    for _ in 0..count {
        match input.get(cursor) {
            None => return Err(too_long(input, sizes)),
            Some(b'$') => {}
            Some(_) => return Err(ParsedFrame::Wrong("expected '$' before an argument")),
        }
        let (len, begin) = number(input, cursor + 1)?;
        if len < 0 || len as u64 > sizes.bulk as u64 {
            return Err(ParsedFrame::Wrong("an argument is too long"));
        }
        let end = begin + len as usize;
        if end > sizes.command {
            return Err(ParsedFrame::Wrong("a command is too long"));
        }
        match input.get(end..end + 2) {
            None => return Err(ParsedFrame::Incomplete),
            Some(b"\r\n") => {}
            Some(_) => return Err(ParsedFrame::Wrong("an argument does not end where it says")),
        }
        at.push((begin as u32, end as u32));
        cursor = end + 2;
    }
    Ok(ParsedFrame::Command(cursor))
}

/// A decimal number up to the end of its line, and where the next line begins.
fn number(input: &[u8], from: usize) -> Result<(i64, usize), ParsedFrame> {
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

fn too_long(input: &[u8], sizes: &CommandLimits) -> ParsedFrame {
    if input.len() > sizes.command { ParsedFrame::Wrong("a command is too long") } else { ParsedFrame::Incomplete }
}

/// A command typed by a person. Quotes are not understood: clients send arrays.
fn line(input: &[u8], sizes: &CommandLimits, at: &mut Vec<(u32, u32)>) -> ParsedFrame {
    let Some(end) = memchr::memchr(b'\n', &input[..input.len().min(sizes.bulk)]) else {
        return if input.len() >= sizes.bulk {
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
                at.push((from as u32, index as u32));
                begin = None;
            }
            _ => {}
        }
    }
    if at.len() > sizes.arguments {
        return ParsedFrame::Wrong("a command has too many arguments");
    }
    ParsedFrame::Command(end + 1)
}

/// A page in a browser must not be able to make one speak to us: its first line, or its Host header.
fn is_http(line: &[u8]) -> bool {
    let ends_so = line.windows(6).any(|part| part == b" HTTP/");
    let host = line.len() >= 5 && line[..5].eq_ignore_ascii_case(b"host:");
    ends_so || host || line.starts_with(b"POST ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(input: &[u8]) -> (ParsedFrame, Vec<Vec<u8>>) {
        let mut at = Vec::new();
        let parsed = parse(input, &CommandLimits::default(), &mut at);
        (parsed, CommandArgs::new(input, &at).iter().map(<[u8]>::to_vec).collect())
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
        /// Goal: whatever arguments are sent arrive, and every cut of them is incomplete, never wrong.
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
