//! JSON bodies, read field by field. Every error names the field, and none shows a value: it may be a secret.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use axum::body::Body;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::StatusCode;
use hyper::body::Body as _;
use hyper::header::{self, HeaderMap, HeaderValue};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio::time::timeout;

use super::HttpConfig;
use super::problem::Problem;

/// Reads a JSON body, within the limits of size and time.
///
/// # Errors
///
/// The content type is wrong, or the body is too big, too slow, or broke off.
pub async fn read_json_body(config: &HttpConfig, headers: &HeaderMap, body: Body) -> Result<Vec<u8>, Problem> {
    read_body(config, headers, body, config.body_bytes, &["application/json"]).await
}

/// As [`read_json_body`], for other content types and sizes.
///
/// # Errors
///
/// As [`read_json_body`].
pub async fn read_body(
    config: &HttpConfig,
    headers: &HeaderMap,
    body: Body,
    max_bytes: usize,
    kinds: &[&str],
) -> Result<Vec<u8>, Problem> {
    if !kinds.iter().any(|kind| is_content_type(headers, kind)) {
        let detail = format!("the body needs the header Content-Type: {}", kinds.join(" or "));
        return Err(Problem::invalid_with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail).close_connection());
    }
    // By its Content-Length first: a body that is too big is not read at all.
    if body.size_hint().lower() > max_bytes as u64 {
        return Err(body_too_big(max_bytes));
    }
    match timeout(config.body, Limited::new(body, max_bytes).collect()).await {
        Ok(Ok(whole)) => Ok(whole.to_bytes().into()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(body_too_big(max_bytes)),
        Ok(Err(_)) => Err(Problem::invalid("the body broke off").close_connection()),
        Err(_) => {
            let detail = format!("the body was not whole within {} ms", config.body.as_millis());
            Err(Problem::invalid_with_status(StatusCode::REQUEST_TIMEOUT, detail).close_connection())
        }
    }
}

/// Whether the Content-Type header says this.
pub fn is_content_type(headers: &HeaderMap, kind: &str) -> bool {
    let text = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    text.split(';').next().is_some_and(|found| found.trim().eq_ignore_ascii_case(kind))
}

fn body_too_big(max_bytes: usize) -> Problem {
    Problem::invalid_with_status(StatusCode::PAYLOAD_TOO_LARGE, format!("a body is at most {max_bytes} bytes"))
        .close_connection()
}

impl Problem {
    /// Closes the connection after the response: the rest of the body is not read.
    fn close_connection(self) -> Self {
        self.with_header(header::CONNECTION, HeaderValue::from_static("close"))
    }
}

/// The fields of an object that were not read yet.
#[derive(Debug)]
pub struct Fields {
    /// What the object is, for sentences: "the body", "a resource".
    what: &'static str,
    unread: Vec<(String, Value)>,
    known: Vec<&'static str>,
}

impl Fields {
    /// Parses a body.
    ///
    /// # Errors
    ///
    /// It is not a JSON object.
    pub fn parse(body: &[u8]) -> Result<Self, Problem> {
        let UniqueKeyJson(value) = serde_json::from_slice(body).map_err(|error| {
            // The message of serde may show a value; the position is enough.
            let how = match error.classify() {
                serde_json::error::Category::Eof => "ends too early",
                serde_json::error::Category::Data => "has a field twice in one object",
                _ => "is not JSON",
            };
            Problem::invalid(format!("the body {how} (line {}, column {})", error.line(), error.column()))
        })?;
        match value {
            Value::Object(object) => Ok(Self::from_object("the body", object)),
            other => Err(Problem::invalid(format!("the body is one JSON object, got {}", json_kind(&other)))),
        }
    }

    /// As [`Fields::parse`], but for one field, of which the text is kept as it was written: numbers keep their digits.
    ///
    /// # Errors
    ///
    /// As [`Fields::parse`].
    pub fn parse_with_raw(body: &[u8], raw: &str) -> Result<(Self, Option<String>), Problem> {
        // First the whole, for its checks: every object in it, too, has each key once.
        let mut fields = Self::parse(body)?;
        let found = fields.unread.iter().position(|(name, _)| name == raw);
        let Some(at) = found else { return Ok((fields, None)) };
        fields.unread.swap_remove(at);
        let texts: Result<BTreeMap<String, Box<RawValue>>, _> = serde_json::from_slice(body);
        let text = texts.ok().and_then(|mut texts| texts.remove(raw));
        let text = text.ok_or_else(|| Problem::invalid("the body is one JSON object"))?;
        Ok((fields, Some(Box::<str>::from(text).into())))
    }

    /// The fields of a nested object.
    pub fn from_object(what: &'static str, object: Map<String, Value>) -> Self {
        Self { what, unread: object.into_iter().collect(), known: Vec::new() }
    }

    /// Takes a field; `null` is the same as none.
    pub fn take_value(&mut self, name: &'static str) -> Option<Value> {
        self.known.push(name);
        let at = self.unread.iter().position(|(field, _)| field == name)?;
        Some(self.unread.swap_remove(at).1).filter(|value| !value.is_null())
    }

    /// Takes a text.
    ///
    /// # Errors
    ///
    /// It is something else.
    pub fn take_text(&mut self, name: &'static str) -> Result<Option<String>, Problem> {
        match self.take_value(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(Problem::invalid(format!("{name} is a text, got {}", json_kind(&other)))),
        }
    }

    /// Takes a number.
    ///
    /// # Errors
    ///
    /// It is something else, negative, broken, or more than fits.
    pub fn take_number(&mut self, name: &'static str, of: &str) -> Result<Option<u64>, Problem> {
        let Some(value) = self.take_value(name) else { return Ok(None) };
        let number = value.as_u64();
        number
            .map(Some)
            .ok_or_else(|| Problem::invalid(format!("{name} is a whole number{of}, got {}", json_kind(&value))))
    }

    /// Takes a number that may be negative, within the bounds of its type.
    ///
    /// # Errors
    ///
    /// It is something else, or does not fit.
    pub fn take_signed<T: TryFrom<i64>>(&mut self, name: &'static str) -> Result<Option<T>, Problem> {
        let Some(value) = self.take_value(name) else { return Ok(None) };
        match value.as_i64().map(T::try_from) {
            Some(Ok(number)) => Ok(Some(number)),
            Some(Err(_)) => Err(Problem::invalid(format!("{name} is too big"))),
            None => Err(Problem::invalid(format!("{name} is a whole number, got {}", json_kind(&value)))),
        }
    }

    /// Takes a number that comes as decimal text, as tokens and ids do.
    ///
    /// # Errors
    ///
    /// It is something else.
    pub fn take_decimal(&mut self, name: &'static str) -> Result<Option<i64>, Problem> {
        self.take_text(name)?.map(|text| parse_decimal(name, &text)).transpose()
    }

    /// Takes a list of numbers that come as decimal text.
    ///
    /// # Errors
    ///
    /// It is something else.
    pub fn take_decimals(&mut self, name: &'static str) -> Result<Option<Vec<i64>>, Problem> {
        let texts = self.take_texts(name)?;
        texts.map(|texts| texts.iter().map(|text| parse_decimal(name, text)).collect()).transpose()
    }

    /// Takes a list of small numbers.
    ///
    /// # Errors
    ///
    /// It is something else.
    pub fn take_levels(&mut self, name: &'static str) -> Result<Option<Vec<i16>>, Problem> {
        let items = match self.take_value(name) {
            None => return Ok(None),
            Some(Value::Array(items)) => items,
            Some(other) => return Err(Problem::invalid(format!("{name} is a list, got {}", json_kind(&other)))),
        };
        let level = |item: Value| item.as_i64().and_then(|number| i16::try_from(number).ok());
        let levels: Option<Vec<i16>> = items.into_iter().map(level).collect();
        levels.map(Some).ok_or_else(|| Problem::invalid(format!("{name} is a list of small whole numbers")))
    }

    /// Takes a boolean.
    ///
    /// # Errors
    ///
    /// It is something else.
    pub fn take_flag(&mut self, name: &'static str) -> Result<Option<bool>, Problem> {
        match self.take_value(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(other) => Err(Problem::invalid(format!("{name} is true or false, got {}", json_kind(&other)))),
        }
    }

    /// Takes a list of texts.
    ///
    /// # Errors
    ///
    /// It is something else.
    pub fn take_texts(&mut self, name: &'static str) -> Result<Option<Vec<String>>, Problem> {
        let items = match self.take_value(name) {
            None => return Ok(None),
            Some(Value::Array(items)) => items,
            Some(other) => {
                return Err(Problem::invalid(format!("{name} is a list of texts, got {}", json_kind(&other))));
            }
        };
        let text = |item| match item {
            Value::String(text) => Ok(text),
            other => Err(Problem::invalid(format!("{name} is a list of texts, got {} in it", json_kind(&other)))),
        };
        items.into_iter().map(text).collect::<Result<_, _>>().map(Some)
    }

    /// Takes the reason of an operation for the audit log: short, and not empty.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn take_reason(&mut self) -> Result<String, Problem> {
        let reason = self.take_text("reason")?.ok_or_else(|| missing_field("reason"))?;
        match reason.trim() {
            "" => Err(missing_field("reason")),
            _ if reason.len() > 512 => Err(Problem::invalid("reason is at most 512 bytes")),
            _ => Ok(reason),
        }
    }

    /// Takes a span of time.
    ///
    /// # Errors
    ///
    /// As for numbers.
    pub fn take_millis(&mut self, name: &'static str) -> Result<Option<Duration>, Problem> {
        Ok(self.take_number(name, " of milliseconds")?.map(Duration::from_millis))
    }

    /// Refuses unread fields: a misspelt option must not be ignored silently.
    ///
    /// # Errors
    ///
    /// There is such a field.
    pub fn deny_unknown(self) -> Result<(), Problem> {
        let Some((unknown, _)) = self.unread.first() else { return Ok(()) };
        let unknown: String = unknown.chars().take(64).collect();
        let known = self.known.join(", ");
        Err(Problem::invalid(format!("{} has no field {unknown:?}; it has {known}", self.what)))
    }
}

fn parse_decimal(name: &str, text: &str) -> Result<i64, Problem> {
    let digits = !text.is_empty() && text.len() <= 19 && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = if digits { text.parse().ok() } else { None };
    number.ok_or_else(|| Problem::invalid(format!("{name} is decimal text, as in \"42\"")))
}

/// The kind of a value, without showing it.
fn json_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(number) if number.as_i64().is_some_and(i64::is_negative) => "a negative number",
        Value::Number(number) if number.is_f64() => "a number with a fraction, or one too big",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Says that a field is missing.
pub fn missing_field(name: &str) -> Problem {
    Problem::invalid(format!("{name} is missing"))
}

/// JSON in which no object has a key twice, at any depth: two readers must not see different values in one body.
struct UniqueKeyJson(Value);

impl<'de> Deserialize<'de> for UniqueKeyJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueKeyVisitor).map(Self)
    }
}

struct UniqueKeyVisitor;

impl<'de> Visitor<'de> for UniqueKeyVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Value, E> {
        Ok(truth.into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(UniqueKeyJson(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some((name, UniqueKeyJson(value))) = fields.next_entry::<String, UniqueKeyJson>()? {
            if object.insert(name, value).is_some() {
                return Err(serde::de::Error::custom("a field comes twice"));
            }
        }
        Ok(object.into())
    }
}
