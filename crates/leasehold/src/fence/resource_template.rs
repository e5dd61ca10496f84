//! The name of the resource that a row is: a template with places for key columns, or one fixed name.
//!
//! `seat/{}` is one fence per row, `billing` one for the whole table. The text is the same as the name that is leased.
//! `{}` is all key columns, joined by `/`; `{column}` is one of them; `{{` and `}}` are braces. Where there are several
//! key columns, `%` and `/` in a value become `%25` and `%2F`, so that two rows never have one name where a `/` stands
//! between the places. Where none does, `{a}{b}` for example, rows share a name.

use super::refusal::FenceError;

/// A piece of the name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TemplatePiece {
    /// Text as it stands.
    Text(String),
    /// The value of a key column, by its place in the list of keys.
    Key(usize),
}

/// A parsed template. See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceTemplate {
    text: String,
    keys: Vec<String>,
    pieces: Vec<TemplatePiece>,
}

impl ResourceTemplate {
    /// Reads a template over these key columns.
    ///
    /// # Errors
    ///
    /// [`FenceError::Invalid`]: a place that names no key, a key without a place, or a text that cannot be a resource.
    pub fn parse(text: &str, keys: &[String]) -> Result<Self, FenceError> {
        let invalid = |sentence: String| Err(FenceError::Invalid(sentence));
        if text.is_empty() || text.len() > 512 || text.chars().any(char::is_control) {
            return invalid("a resource has 1 to 512 bytes without control characters".into());
        }
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            push_text(&mut pieces, &rest[..at]);
            let tail = &rest[at..];
            if tail.starts_with("{{") || tail.starts_with("}}") {
                push_text(&mut pieces, &tail[..1]);
                rest = &tail[2..];
                continue;
            }
            let Some((name, after)) = tail.strip_prefix('{').and_then(|tail| tail.split_once('}')) else {
                return invalid(format!("the resource {text} has a brace without its other: write {{{{ for a brace"));
            };
            if name.is_empty() {
                push_all_keys(&mut pieces, keys.len());
            } else if let Some(at) = keys.iter().position(|key| key == name) {
                pieces.push(TemplatePiece::Key(at));
            } else {
                return invalid(format!("the resource {text} names the column {name}, which is not in --key"));
            }
            rest = after;
        }
        push_text(&mut pieces, rest);
        let template = Self { text: text.to_owned(), keys: keys.to_vec(), pieces };
        if template.is_fixed() {
            return Ok(Self { keys: Vec::new(), ..template });
        }
        for (at, key) in keys.iter().enumerate() {
            if !template.pieces.contains(&TemplatePiece::Key(at)) {
                return invalid(format!("the key column {key} is not in the resource {text}: two rows would be one"));
            }
        }
        if keys.is_empty() {
            return invalid(format!("the resource {text} has a place for keys: name the columns by --key"));
        }
        Ok(template)
    }

    /// One fixed name for the whole table.
    #[must_use]
    pub fn is_fixed(&self) -> bool {
        self.pieces.iter().all(|piece| matches!(piece, TemplatePiece::Text(_)))
    }

    /// The template as it was written.
    #[must_use]
    pub fn as_text(&self) -> &str {
        &self.text
    }

    /// The key columns; none for a fixed name.
    #[must_use]
    pub fn key_columns(&self) -> &[String] {
        &self.keys
    }

    /// Whether two rows with different keys always have different names. Then a row can remember its own fence.
    #[cfg(feature = "postgres")]
    pub(crate) fn is_one_to_one(&self) -> bool {
        let mut keys_since_slash = 0;
        self.keys.len() < 2
            || self.pieces.iter().all(|piece| {
                match piece {
                    TemplatePiece::Text(text) if text.contains('/') => keys_since_slash = 0,
                    TemplatePiece::Text(_) => {}
                    TemplatePiece::Key(_) => keys_since_slash += 1,
                }
                keys_since_slash < 2
            })
    }

    pub(crate) fn pieces(&self) -> &[TemplatePiece] {
        &self.pieces
    }

    /// The text before the first key.
    pub(crate) fn fixed_prefix(&self) -> &str {
        match self.pieces.first() {
            Some(TemplatePiece::Text(text)) => text,
            _ => "",
        }
    }

    /// Whether a row of one table and a row of another could be the same resource, where fixed names and names made of
    /// keys are remembered apart. It may say yes where none are.
    #[cfg(feature = "postgres")]
    pub(crate) fn may_name_the_same(&self, other: &Self) -> bool {
        match (self.is_fixed(), other.is_fixed()) {
            (true, true) => self.fixed_name() == other.fixed_name(),
            (false, false) => self.prefixes_meet(other),
            _ => false,
        }
    }

    /// Whether one name could begin as the other does.
    pub(crate) fn prefixes_meet(&self, other: &Self) -> bool {
        let (one, two) = (self.fixed_prefix(), other.fixed_prefix());
        match (self.is_fixed(), other.is_fixed()) {
            (true, true) => one == two,
            (true, false) => one.starts_with(two),
            (false, true) => two.starts_with(one),
            (false, false) => one.starts_with(two) || two.starts_with(one),
        }
    }

    /// The fixed name; for a template with keys, its texts without them.
    pub(crate) fn fixed_name(&self) -> String {
        let text = |piece: &TemplatePiece| match piece {
            TemplatePiece::Text(text) => text.clone(),
            TemplatePiece::Key(_) => String::new(),
        };
        self.pieces.iter().map(text).collect()
    }
}

fn push_text(pieces: &mut Vec<TemplatePiece>, text: &str) {
    match pieces.last_mut() {
        _ if text.is_empty() => {}
        Some(TemplatePiece::Text(before)) => before.push_str(text),
        _ => pieces.push(TemplatePiece::Text(text.to_owned())),
    }
}

fn push_all_keys(pieces: &mut Vec<TemplatePiece>, count: usize) {
    if count == 0 {
        // No key yet: the caller says so. The place must still be seen.
        pieces.push(TemplatePiece::Key(0));
    }
    for at in 0..count {
        if at > 0 {
            push_text(pieces, "/");
        }
        pieces.push(TemplatePiece::Key(at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, keys: &[&str]) -> Result<ResourceTemplate, FenceError> {
        let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        ResourceTemplate::parse(text, &keys)
    }

    fn text(text: &str) -> TemplatePiece {
        TemplatePiece::Text(text.into())
    }

    #[test]
    fn templates_are_read() {
        assert_eq!(parse("seat/{}", &["id"]).unwrap().pieces(), [text("seat/"), TemplatePiece::Key(0)]);
        let both = [text("e/"), TemplatePiece::Key(0), text("/"), TemplatePiece::Key(1)];
        assert_eq!(parse("e/{}", &["a", "b"]).unwrap().pieces(), both);
        assert_eq!(parse("e/{a}/{b}", &["a", "b"]).unwrap().pieces(), both);
        assert_eq!(parse("{{{a}}}", &["a"]).unwrap().pieces(), [text("{"), TemplatePiece::Key(0), text("}")]);
        let fixed = parse("bill{{ing", &["a"]).unwrap();
        assert!(fixed.is_fixed() && fixed.key_columns().is_empty());
        assert_eq!(fixed.fixed_name(), "bill{ing");
    }

    /// Goal: (1, 23) and (12, 3) are never one name where a row remembers its own fence.
    #[cfg(feature = "postgres")]
    #[test]
    fn names_that_rows_could_share_are_known() {
        for (template, one_to_one) in [
            ("x/{a}{b}", false),
            ("x/{a}-{b}", false),
            ("{a}/x{b}y{b}", false),
            ("x/{a}/{b}", true),
            ("x/{}", true),
            ("{a}x/y{b}z", true),
        ] {
            assert_eq!(parse(template, &["a", "b"]).unwrap().is_one_to_one(), one_to_one, "{template}");
        }
        assert!(parse("x{a}{a}", &["a"]).unwrap().is_one_to_one());
    }

    #[test]
    fn what_is_no_template_gets_a_sentence() {
        for (template, keys, part) in [
            ("", &[][..], "1 to 512"),
            ("a\tb", &[], "control"),
            ("seat/{}", &[], "--key"),
            ("seat/{x}", &["id"], "not in --key"),
            ("seat/{a}", &["a", "b"], "key column b"),
            ("seat/{", &["a"], "brace"),
            ("seat/}", &["a"], "brace"),
        ] {
            let error = parse(template, keys).expect_err(template).to_string();
            assert!(error.contains(part), "{template}: {error}");
        }
    }
}
