//! Single arguments: numbers, text and names.

use leasehold::engine::Token;

use super::CommandError;
use crate::resp::codec::frame::CommandArgs;

/// An error names at most this much of a word that the client sent.
const MAX_SHOWN_CHARS: usize = 32;

/// UTF-8 text. `what` names the argument in the error.
pub fn parse_text<'a>(bytes: &'a [u8], what: &str) -> Result<&'a str, CommandError> {
    std::str::from_utf8(bytes).map_err(|_| format!("{what} is UTF-8 text").into())
}

/// A whole number. `what` names the argument in the error.
pub fn parse_number(bytes: &[u8], what: &str) -> Result<u64, CommandError> {
    if bytes.is_empty() || bytes.len() > 20 || !bytes.iter().all(u8::is_ascii_digit) {
        return Err(format!("{what} is a whole number").into());
    }
    let parsed = std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| format!("{what} is too large").into())
}

/// A whole number of 32 bits.
pub fn parse_small_number(bytes: &[u8], what: &str) -> Result<u32, CommandError> {
    u32::try_from(parse_number(bytes, what)?).map_err(|_| format!("{what} is too large").into())
}

/// A fencing token.
pub fn parse_token(bytes: &[u8]) -> Result<Token, CommandError> {
    let number = parse_number(bytes, "a token")?;
    Token::new(number).ok_or_else(|| format!("a token is from 1 to {}", Token::MAX).into())
}

/// The one argument of a command, as bytes.
pub fn single_argument<'a>(args: CommandArgs<'a>, usage: &str) -> Result<&'a [u8], CommandError> {
    args.get(0).filter(|_| args.len() == 1).ok_or_else(|| CommandError::usage(usage))
}

/// The one argument of a command: a resource name.
pub fn parse_single_name<'a>(args: CommandArgs<'a>, usage: &str) -> Result<&'a str, CommandError> {
    parse_text(single_argument(args, usage)?, "a name")
}

/// All arguments of a command: one or more resource names.
pub fn parse_names<'a>(args: CommandArgs<'a>, usage: &str) -> Result<Vec<&'a str>, CommandError> {
    if args.len() == 0 {
        return Err(CommandError::usage(usage));
    }
    args.iter().map(|name| parse_text(name, "a name")).collect()
}

/// The start of a word that the client sent, without control characters, to be shown in an error.
pub fn printable_start(word: &[u8]) -> String {
    String::from_utf8_lossy(word).chars().filter(|letter| !letter.is_control()).take(MAX_SHOWN_CHARS).collect()
}
