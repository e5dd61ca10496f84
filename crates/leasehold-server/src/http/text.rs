//! Paths and queries, decoded strictly: one name has one meaning.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use super::problem::Problem;

/// Decodes `%41` and its like.
///
/// # Errors
///
/// Half an escape, or bytes that are not UTF-8.
pub fn percent_decode(text: &str) -> Result<String, Problem> {
    let mut rest = text.as_bytes();
    while let Some(at) = rest.iter().position(|byte| *byte == b'%') {
        if !matches!(rest.get(at + 1..at + 3), Some(hex) if hex.iter().all(u8::is_ascii_hexdigit)) {
            return Err(Problem::invalid("a percent sign in a path or query is written %25"));
        }
        rest = &rest[at + 3..];
    }
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Cow::into_owned).map_err(|_| Problem::invalid("text in a path or query is percent-encoded UTF-8"))
}

/// The parameters of a query, each at most once and none but those that are `known`, in that order.
///
/// # Errors
///
/// What is wrong with it. It never shows a value.
pub fn parse_query<const N: usize>(query: Option<&str>, known: [&str; N]) -> Result<[Option<String>; N], Problem> {
    let mut found = [const { None }; N];
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let name = percent_decode(name)?;
        let Some(at) = known.iter().position(|known| *known == name) else {
            let known = if N == 0 { "none".to_owned() } else { known.join(", ") };
            return Err(Problem::invalid(format!("a parameter in the query is not known here; known: {known}")));
        };
        if found[at].replace(percent_decode(&value.replace('+', " "))?).is_some() {
            return Err(Problem::invalid(format!("{} comes twice in the query", known[at])));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what is encoded comes back whole, and what is half encoded is refused rather than guessed at.
    #[test]
    fn names_are_decoded_strictly() {
        for (text, name) in [("a%2Fb", "a/b"), ("a/b", "a/b"), ("%C3%A9", "é"), ("a+b", "a+b"), ("%2525", "%25")] {
            assert_eq!(percent_decode(text).unwrap(), name);
        }
        for text in ["%", "%4", "%zz", "a%2", "%C3", "%FF", "%+1"] {
            assert_eq!(percent_decode(text).unwrap_err().code(), "invalid", "{text}");
        }
    }

    /// Goal: a query says each thing once, and nothing that would be silently ignored.
    #[test]
    fn a_query_is_read_whole_or_refused() {
        let read = |text| parse_query(Some(text), ["prefix", "limit"]);
        assert_eq!(read("limit=5&prefix=a%2Fb+c").unwrap(), [Some("a/b c".into()), Some("5".into())]);
        assert_eq!(read("").unwrap(), [None, None]);
        assert_eq!(read("prefix").unwrap(), [Some(String::new()), None]);
        assert!(read("prefix=a&prefix=b").is_err());
        let refused = read("key=hunter2").unwrap_err();
        assert!(!refused.detail().contains("hunter2"), "{}", refused.detail());
    }
}
