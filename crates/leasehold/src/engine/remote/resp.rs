//! Reads RESP3: bytes become values, and no length is trusted.
//!
//! # Laws
//!
//! 1. A length is checked before anything is allocated for it.
//! 2. No bytes make this panic, and no nesting makes it recurse deeper than [`MAX_DEPTH`].
//! 3. A frame that comes in pieces is not read from its beginning at every piece.

/// Bytes of one frame: a page of a list with everything in it is far below.
const MAX_FRAME_BYTES: usize = 64 << 20;
/// Nested aggregates.
const MAX_DEPTH: usize = 8;
/// Elements of one aggregate.
const MAX_ELEMENTS: u64 = 1 << 20;
/// Bytes of a line: a number, or a simple text or error.
const MAX_LINE_BYTES: usize = 64 << 10;
/// Elements that memory is reserved for before they have come.
const PREALLOCATED_ELEMENTS: usize = 64;

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Int(i64),
    /// Simple text, a bulk, or a kind of number that nobody here asks for.
    Text(Vec<u8>),
    Error(String),
    List(Vec<Value>),
    Map(Vec<(Value, Value)>),
    /// Not an answer to anything.
    Push(Vec<Value>),
}

/// The bytes are not RESP.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("what came from the server is no RESP: {0}")]
pub(super) struct MalformedResp(&'static str);

/// The read buffer of one connection: bytes go in, values come out.
#[derive(Debug, Default)]
pub(super) struct RespReader {
    bytes: Vec<u8>,
    /// Where the frame that is being read begins.
    start: usize,
    /// Up to here it has been parsed.
    seen: usize,
    /// How many elements each open aggregate still wants.
    open: Vec<u64>,
}

impl RespReader {
    /// The buffer to read into.
    pub fn room(&mut self) -> &mut Vec<u8> {
        if self.start > 0 {
            self.bytes.drain(..self.start);
            self.seen -= self.start;
            self.start = 0;
        }
        self.bytes.reserve(16 << 10);
        &mut self.bytes
    }

    /// The first byte of the next reply, if it has come.
    pub fn peek(&self) -> Option<u8> {
        self.bytes.get(self.start).copied()
    }

    /// The next value, if it is there as a whole.
    pub fn next(&mut self) -> Result<Option<Value>, MalformedResp> {
        if !self.scan_frame()? {
            return Ok(None);
        }
        let frame = &self.bytes[self.start..self.seen];
        let (value, rest) = value(frame, 0)?;
        if !rest.is_empty() {
            return Err(MalformedResp("a frame ends where its parts do not"));
        }
        self.start = self.seen;
        Ok(Some(value))
    }

    /// Parses on until the frame is whole.
    fn scan_frame(&mut self) -> Result<bool, MalformedResp> {
        loop {
            let Some((head, after)) = head(&self.bytes[self.seen..])? else { return self.check_frame_length() };
            let elements = match head {
                RespHead::RespLine => 0,
                RespHead::Bulk(length) => {
                    let end = after + length + 2;
                    if self.bytes.len() - self.seen < end {
                        return self.check_frame_length();
                    }
                    self.seen += end;
                    if self.finish_element(0)? {
                        return Ok(true);
                    }
                    continue;
                }
                RespHead::Elements(count) => count,
            };
            self.seen += after;
            if self.finish_element(elements)? {
                return Ok(true);
            }
        }
    }

    /// Not whole yet: too much of it is an error.
    fn check_frame_length(&self) -> Result<bool, MalformedResp> {
        if self.bytes.len() - self.start > MAX_FRAME_BYTES {
            return Err(MalformedResp("a frame is too long"));
        }
        Ok(false)
    }

    /// Counts one element off, and opens those it has. Whether the frame is whole now.
    fn finish_element(&mut self, elements: u64) -> Result<bool, MalformedResp> {
        if elements > 0 {
            if self.open.len() == MAX_DEPTH {
                return Err(MalformedResp("too deep"));
            }
            self.open.push(elements);
            return Ok(false);
        }
        while let Some(wanted) = self.open.last_mut() {
            *wanted -= 1;
            if *wanted > 0 {
                return Ok(false);
            }
            self.open.pop();
        }
        Ok(true)
    }
}

/// What the first line of a value announces.
enum RespHead {
    RespLine,
    Bulk(usize),
    Elements(u64),
}

/// The first line of a value, and where it ends; none if the line is not whole.
fn head(bytes: &[u8]) -> Result<Option<(RespHead, usize)>, MalformedResp> {
    let Some((kind, text, after)) = line(bytes)? else { return Ok(None) };
    let head = match kind {
        b'$' | b'=' | b'!' => length(text)?.map_or(RespHead::RespLine, RespHead::Bulk),
        b'*' | b'~' | b'>' => RespHead::Elements(count(text)?),
        b'%' => RespHead::Elements(count(text)? * 2),
        _ => RespHead::RespLine,
    };
    Ok(Some((head, after)))
}

/// Kind and text of a line, and where the next begins.
type RespLine<'a> = (u8, &'a [u8], usize);

/// The first line, if it is whole.
fn line(bytes: &[u8]) -> Result<Option<RespLine<'_>>, MalformedResp> {
    let Some(kind) = bytes.first() else { return Ok(None) };
    if !b"+-:$*%~>_#,(!=".contains(kind) {
        return Err(MalformedResp("an unknown kind of value"));
    }
    let Some(end) = bytes.iter().take(MAX_LINE_BYTES).position(|byte| *byte == b'\n') else {
        return if bytes.len() >= MAX_LINE_BYTES { Err(MalformedResp("a line is too long")) } else { Ok(None) };
    };
    let text = bytes[1..end].strip_suffix(b"\r").ok_or(MalformedResp("a line ends with CR LF"))?;
    Ok(Some((*kind, text, end + 1)))
}

/// The length of a bulk; none for the null of RESP2.
fn length(text: &[u8]) -> Result<Option<usize>, MalformedResp> {
    match number(text)? {
        -1 => Ok(None),
        length => usize::try_from(length)
            .ok()
            .filter(|length| *length <= MAX_FRAME_BYTES)
            .map(Some)
            .ok_or(MalformedResp("a length is out of bounds")),
    }
}

/// How many elements; zero also for the null of RESP2.
fn count(text: &[u8]) -> Result<u64, MalformedResp> {
    match number(text)? {
        -1 => Ok(0),
        count => u64::try_from(count)
            .ok()
            .filter(|count| *count <= MAX_ELEMENTS)
            .ok_or(MalformedResp("a number of elements is out of bounds")),
    }
}

fn number(text: &[u8]) -> Result<i64, MalformedResp> {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(MalformedResp("a number is none"))
}

/// The value at the beginning of these bytes, and what follows it.
fn value(bytes: &[u8], depth: usize) -> Result<(Value, &[u8]), MalformedResp> {
    const SHORT: MalformedResp = MalformedResp("a frame ends too early");
    if depth > MAX_DEPTH {
        return Err(MalformedResp("too deep"));
    }
    let (kind, text, after) = line(bytes)?.ok_or(SHORT)?;
    let mut rest = bytes.get(after..).ok_or(SHORT)?;
    let value = match kind {
        b':' => Value::Int(number(text)?),
        b'-' => Value::Error(lossy(text)),
        b'_' => Value::Null,
        b'#' => Value::Bool(text == b"t"),
        b'$' | b'=' | b'!' => {
            let Some(length) = length(text)? else { return Ok((Value::Null, rest)) };
            let (bulk, end) = rest.split_at_checked(length).ok_or(SHORT)?;
            rest = end.strip_prefix(b"\r\n").ok_or(MalformedResp("a bulk ends with CR LF"))?;
            if kind == b'!' { Value::Error(lossy(bulk)) } else { Value::Text(bulk.to_vec()) }
        }
        b'*' if text == b"-1" => Value::Null,
        b'*' | b'~' | b'>' | b'%' => {
            let count = count(text)? * if kind == b'%' { 2 } else { 1 };
            let mut elements = Vec::with_capacity(usize::try_from(count).unwrap_or(0).min(PREALLOCATED_ELEMENTS));
            for _ in 0..count {
                let (element, after) = self::value(rest, depth + 1)?;
                elements.push(element);
                rest = after;
            }
            match kind {
                b'>' => Value::Push(elements),
                b'%' => Value::Map(pairs(elements)),
                _ => Value::List(elements),
            }
        }
        _ => Value::Text(text.to_vec()),
    };
    Ok((value, rest))
}

fn pairs(elements: Vec<Value>) -> Vec<(Value, Value)> {
    let mut elements = elements.into_iter();
    let mut pairs = Vec::with_capacity(elements.len() / 2);
    while let (Some(key), Some(value)) = (elements.next(), elements.next()) {
        pairs.push((key, value));
    }
    pairs
}

fn lossy(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(pieces: &[&[u8]]) -> Result<Vec<Value>, MalformedResp> {
        let mut reader = RespReader::default();
        let mut values = Vec::new();
        for piece in pieces {
            reader.room().extend_from_slice(piece);
            while let Some(value) = reader.next()? {
                values.push(value);
            }
        }
        Ok(values)
    }

    fn text(text: &str) -> Value {
        Value::Text(text.into())
    }

    #[test]
    fn every_kind_of_value_is_read() {
        let bytes = b"+OK\r\n-HELD x=1\r\n:-7\r\n$3\r\na\nb\r\n$-1\r\n*-1\r\n_\r\n#t\r\n,1.5\r\n*2\r\n:1\r\n$0\r\n\r\n\
            %1\r\n+a\r\n*0\r\n>1\r\n+m\r\n!5\r\nERR x\r\n~1\r\n(12\r\n%0\r\n";
        let expected = [
            text("OK"),
            Value::Error("HELD x=1".into()),
            Value::Int(-7),
            text("a\nb"),
            Value::Null,
            Value::Null,
            Value::Null,
            Value::Bool(true),
            text("1.5"),
            Value::List(vec![Value::Int(1), text("")]),
            Value::Map(vec![(text("a"), Value::List(vec![]))]),
            Value::Push(vec![text("m")]),
            Value::Error("ERR x".into()),
            Value::List(vec![text("12")]),
            Value::Map(vec![]),
        ];
        assert_eq!(read(&[bytes]).unwrap(), expected);
        let bytewise: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(read(&bytewise).unwrap(), expected, "in pieces of one byte");
    }

    /// Goal: a server that lies about sizes costs nothing.
    #[test]
    fn lengths_are_not_believed() {
        for bytes in [
            "$99999999999\r\n",
            "$-2\r\n",
            "*1048577\r\n",
            "%9223372036854775807\r\n",
            "*99999999999999999999\r\n",
            "$x\r\n",
            "+a\n",
            "HTTP/1.1 400\r\n",
        ] {
            assert!(read(&[bytes.as_bytes()]).is_err(), "{bytes}");
        }
        assert!(read(&["*1\r\n".repeat(20).as_bytes()]).is_err(), "too deep");
        assert!(read(&[&[b'+'; MAX_LINE_BYTES]]).is_err(), "a line without an end");
        assert_eq!(read(&[b"*1048576\r\n"]).unwrap(), [], "announced, and never sent");
        assert!(read(&[b"$1\r\nabc\r\n"]).is_err(), "a bulk that is longer than it says");
    }

    proptest! {
        /// Goal: no bytes make it panic, and pieces make no difference.
        #[test]
        fn any_bytes_are_survived(
            bytes in prop::collection::vec(prop_oneof![
                3 => prop::sample::select(&b"+-:$*%~>_#,(!=\r\n0123456789"[..]), 1 => any::<u8>()], 0..200),
            cut in 0_usize..200,
        ) {
            let cut = cut.min(bytes.len());
            let whole = read(&[&bytes]);
            let pieces = read(&[&bytes[..cut], &bytes[cut..]]);
            prop_assert_eq!(whole.is_err(), pieces.is_err());
            if let (Ok(whole), Ok(pieces)) = (whole, pieces) {
                // As text: not every number is equal to itself.
                prop_assert_eq!(format!("{whole:?}"), format!("{pieces:?}"));
            }
        }

        /// Goal: a good frame with one byte changed is a value, an error, or not whole; never a panic.
        #[test]
        fn a_changed_byte_is_survived(at in 0_usize..60, byte: u8) {
            let mut bytes = b"*3\r\n$8\r\n1-abcdef\r\n:42\r\n:30000\r\n%1\r\n+name\r\n*1\r\n#t\r\n-HELD holder=\"a\"\r\n".to_vec();
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = read(&[&bytes]);
        }
    }
}
