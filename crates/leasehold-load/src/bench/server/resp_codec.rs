//! A minimal RESP codec: encodes a few commands, decodes one reply. It does little work per reply.
//!
//! # Not here
//!
//! The codecs of the server and of the remote engine. This one reads what the bench expects and fails on everything
//! else.

use std::io::Write;

use anyhow::{Context, bail};

/// Longer than any reply that the bench expects.
const MAX_REPLY_BYTES: usize = 64 << 10;

/// One reply of the server.
#[derive(Debug, PartialEq, Eq)]
pub enum RespReply<'a> {
    /// `+OK`
    Simple(&'a str),
    /// `-HELD …`
    Error(&'a str),
    /// `:1`
    Integer(i64),
    /// `$5 …`. `None` is the null string.
    Bulk(Option<&'a str>),
    /// `*3 …`: the first element if it is text, else empty. In a grant it is the lease_id.
    Array(&'a str),
}

/// Decodes the first reply of the buffer. Returns it with its length, or `None` if it is incomplete.
///
/// # Errors
///
/// The bytes are not a RESP reply.
pub fn parse_reply(bytes: &[u8]) -> anyhow::Result<Option<(RespReply<'_>, usize)>> {
    let Some((kind, line, after)) = parse_line(bytes)? else { return Ok(None) };
    let number = || line.parse::<i64>().context("the server sent a length that is no number");
    match kind {
        b'+' => Ok(Some((RespReply::Simple(line), after))),
        b'-' => Ok(Some((RespReply::Error(line), after))),
        b':' => Ok(Some((RespReply::Integer(number()?), after))),
        b'$' => parse_bulk(bytes, number()?, after),
        b'*' => parse_array(bytes, number()?, after),
        _ => bail!("the server does not speak RESP"),
    }
}

fn parse_line(bytes: &[u8]) -> anyhow::Result<Option<(u8, &str, usize)>> {
    let Some(end) = bytes.iter().position(|byte| *byte == b'\r') else {
        if bytes.len() > MAX_REPLY_BYTES {
            bail!("the server does not speak RESP");
        }
        return Ok(None);
    };
    if bytes.len() < end + 2 {
        return Ok(None);
    }
    let (Some(kind), Some(text)) = (bytes.first(), bytes.get(1..end)) else { bail!("the server sent an empty line") };
    Ok(Some((*kind, str::from_utf8(text).context("the server sent a line that is not UTF-8")?, end + 2)))
}

fn parse_bulk(bytes: &[u8], length: i64, after: usize) -> anyhow::Result<Option<(RespReply<'_>, usize)>> {
    if length < 0 {
        return Ok(Some((RespReply::Bulk(None), after)));
    }
    let length =
        usize::try_from(length).ok().filter(|length| *length <= MAX_REPLY_BYTES).context("an answer is too long")?;
    let Some(text) = bytes.get(after..after + length).filter(|_| bytes.len() >= after + length + 2) else {
        return Ok(None);
    };
    let text = str::from_utf8(text).context("the server sent text that is not UTF-8")?;
    Ok(Some((RespReply::Bulk(Some(text)), after + length + 2)))
}

fn parse_array(bytes: &[u8], count: i64, mut after: usize) -> anyhow::Result<Option<(RespReply<'_>, usize)>> {
    let mut first = "";
    for number in 0..count {
        let Some((element, length)) = parse_reply(bytes.get(after..).unwrap_or_default())? else { return Ok(None) };
        after += length;
        if let (0, RespReply::Bulk(Some(text)) | RespReply::Simple(text)) = (number, element) {
            first = text;
        }
    }
    Ok(Some((RespReply::Array(first), after)))
}

/// Encodes a command. The buffer is cleared first.
pub fn encode_command(buffer: &mut Vec<u8>, arguments: &[&str]) {
    buffer.clear();
    // Writing to memory cannot fail.
    let _ = write!(buffer, "*{}\r\n", arguments.len());
    for argument in arguments {
        let _ = write!(buffer, "${}\r\n{argument}\r\n", argument.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_an_array_of_bulk_strings() {
        let mut buffer = b"old".to_vec();
        encode_command(&mut buffer, &["LEASE", "RELEASE", "é"]);
        assert_eq!(buffer, "*3\r\n$5\r\nLEASE\r\n$7\r\nRELEASE\r\n$2\r\né\r\n".as_bytes());
    }

    /// Goal: an answer is read when it is whole and not a byte before, and what follows it is left alone.
    #[test]
    fn answers_are_read_when_they_are_whole() {
        let table: [(&str, RespReply<'_>); 8] = [
            ("+OK\r\n", RespReply::Simple("OK")),
            ("-HELD holder=\"x\"\r\n", RespReply::Error("HELD holder=\"x\"")),
            (":-2\r\n", RespReply::Integer(-2)),
            ("$4\r\na\r\nb\r\n", RespReply::Bulk(Some("a\r\nb"))),
            ("$-1\r\n", RespReply::Bulk(None)),
            ("*3\r\n$4\r\n1-ab\r\n:7\r\n:30000\r\n", RespReply::Array("1-ab")),
            ("*2\r\n:1\r\n*1\r\n$1\r\nx\r\n", RespReply::Array("")),
            ("*0\r\n", RespReply::Array("")),
        ];
        for (text, expected) in table {
            let followed = format!("{text}+next\r\n");
            assert_eq!(parse_reply(followed.as_bytes()).unwrap(), Some((expected, text.len())), "{text:?}");
            for cut in 0..text.len() {
                assert_eq!(parse_reply(&text.as_bytes()[..cut]).unwrap(), None, "{text:?} cut at {cut}");
            }
        }
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        let endless = "x".repeat(MAX_REPLY_BYTES + 1);
        for text in ["HTTP/1.1 400\r\n", "\r\n", "$x\r\n", "$99999999\r\n", ":\r\n", &endless] {
            assert!(parse_reply(text.as_bytes()).is_err(), "{text:?}");
        }
    }
}
