//! What comes of a line: as the script expects it, and as it was seen.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use leasehold_core::Token;

use super::parse::{number, parse_duration};
use super::stretch::TimeStretch;
use crate::engine::{Grant, Renewal, Resource};
use crate::error::{Error, Refusal};

/// Every outcome, by the word for it, and the details that may follow.
const WORDS: &[(&str, &[&str])] = &[
    ("granted", &["token", "remaining", "renewable"]),
    ("waiting", &[]),
    ("held", &["by", "queue", "waiters", "on", "remaining"]),
    ("free", &[]),
    ("renewed", &["remaining", "renewable"]),
    ("released", &[]),
    ("already_released", &[]),
    ("revoked", &["count"]),
    ("cancelled", &[]),
    ("accepted", &[]),
    ("stale", &[]),
    ("not_held", &[]),
    ("invalid", &[]),
    ("mismatch", &[]),
    ("queue_full", &[]),
    ("quota", &[]),
];

/// What a script expects.
#[derive(Clone, Debug)]
pub(super) struct Expected {
    pub word: &'static str,
    details: Vec<Detail>,
}

#[derive(Clone, Debug)]
enum Detail {
    /// The token gets this name, and stands in this relation to another.
    Token(String, Option<(Relation, String)>),
    Remaining(Duration),
    Renewable(Duration),
    By(Vec<String>),
    Queue(usize),
    Waiters(Vec<String>),
    On(String),
    Count(usize),
}

#[derive(Clone, Copy, Debug)]
enum Relation {
    Above,
    Same,
}

impl Expected {
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace().peekable();
        let first = words.next().ok_or("the outcome is missing")?;
        let known = WORDS.iter().find(|(word, _)| *word == first);
        let (word, allowed) = known.ok_or_else(|| format!("there is no outcome {first}"))?;
        let mut details = Vec::new();
        while let Some(text) = words.next() {
            let (key, value) = text.split_once('=').unwrap_or(("count", text));
            if !allowed.contains(&key) {
                return Err(format!("{word} has no detail {text}"));
            }
            details.push(match key {
                "token" => {
                    let relation = match words.peek() {
                        Some(&">") => Some(Relation::Above),
                        Some(&"=") => Some(Relation::Same),
                        _ => None,
                    };
                    let other = |words: &mut dyn Iterator<Item = &str>| {
                        words.nth(1).map(str::to_owned).ok_or("a relation names another token")
                    };
                    let relation = relation.map(|r| other(&mut words).map(|other| (r, other))).transpose()?;
                    Detail::Token(value.into(), relation)
                }
                "remaining" => Detail::Remaining(parse_duration(value)?),
                "renewable" => Detail::Renewable(parse_duration(value)?),
                "by" => Detail::By(if value == "nobody" { Vec::new() } else { names(value) }),
                "queue" => Detail::Queue(number(value)?),
                "waiters" => Detail::Waiters(names(value)),
                "on" => Detail::On(value.into()),
                _ => Detail::Count(number(value)?),
            });
        }
        Ok(Self { word, details })
    }

    /// Compares; gives names to tokens.
    pub fn check(&self, seen: &ObservedOutcome, tokens: &mut NamedTokens, stretch: TimeStretch) -> Result<(), String> {
        if self.word != seen.word {
            return Err(format!("expected {}, got {seen}", self.word));
        }
        self.details.iter().try_for_each(|detail| detail.check(seen, tokens, stretch))
    }
}

fn names(text: &str) -> Vec<String> {
    text.split(',').map(Into::into).collect()
}

impl Detail {
    fn check(&self, seen: &ObservedOutcome, tokens: &mut NamedTokens, stretch: TimeStretch) -> Result<(), String> {
        let same = match self {
            Self::Token(name, relation) => return token(name, relation.as_ref(), seen, tokens, stretch),
            Self::Remaining(span) => seen.remaining.is_some_and(|seen| stretch.is_about(seen, *span)),
            Self::Renewable(span) => seen.renewable.is_some_and(|seen| stretch.is_about(seen, *span)),
            Self::By(holders) => seen.by == *holders,
            Self::Queue(count) => seen.queue == Some(*count),
            Self::Waiters(holders) => seen.waiters == *holders,
            Self::On(name) => seen.on.as_ref() == Some(name),
            Self::Count(count) => seen.count == Some(*count),
        };
        if same { Ok(()) } else { Err(format!("expected {self}, got {seen}")) }
    }
}

fn token(
    name: &str,
    relation: Option<&(Relation, String)>,
    seen: &ObservedOutcome,
    tokens: &mut NamedTokens,
    stretch: TimeStretch,
) -> Result<(), String> {
    let token = seen.token.ok_or("the grant has no token")?;
    let (known, _) = *tokens.entry(name.to_owned()).or_insert((token, seen.let_in_at));
    if known != token {
        return Err(format!("expected token {name}, which is {known}, got {token}"));
    }
    let Some((relation, other)) = relation else { return Ok(()) };
    let (than, than_at) = *tokens.get(other).ok_or_else(|| format!("no token is called {other} yet"))?;
    let (holds, sign) = match relation {
        Relation::Above if stretch.any_order_together && seen.let_in_at.is_some_and(|at| than_at == Some(at)) => {
            (token != than, '>')
        }
        Relation::Above => (token > than, '>'),
        Relation::Same => (token == than, '='),
    };
    if holds { Ok(()) } else { Err(format!("expected token {name} {sign} {other}, got {token} and {than}")) }
}

/// Tokens by the names that a script gave them, and when who had waited for it was let in.
pub(super) type NamedTokens = HashMap<String, (Token, Option<Duration>)>;

/// What was seen, in the words of the script.
#[derive(Clone, Debug, Default)]
pub(super) struct ObservedOutcome {
    pub word: &'static str,
    /// When, by the script, a line tells that somebody who waited was let in.
    let_in_at: Option<Duration>,
    token: Option<Token>,
    remaining: Option<Duration>,
    renewable: Option<Duration>,
    on: Option<String>,
    by: Vec<String>,
    queue: Option<usize>,
    waiters: Vec<String>,
    count: Option<usize>,
    /// For people: the sentence of an Invalid, the cause of a failure.
    note: String,
}

impl ObservedOutcome {
    pub fn word(word: &'static str) -> Self {
        Self { word, ..Self::default() }
    }

    pub fn let_in_at(self, at: Option<Duration>) -> Self {
        Self { let_in_at: at, ..self }
    }

    pub fn counted(word: &'static str, count: usize) -> Self {
        Self { count: Some(count), ..Self::word(word) }
    }

    pub fn granted(grant: &Grant) -> Self {
        Self {
            token: grant.token,
            remaining: Some(grant.remaining),
            renewable: grant.renewable,
            ..Self::word("granted")
        }
    }

    pub fn renewed(renewal: Renewal) -> Self {
        Self { remaining: Some(renewal.remaining), renewable: renewal.renewable, ..Self::word("renewed") }
    }

    pub fn resource(found: Option<Resource>) -> Self {
        let Some(found) = found else { return Self::word("free") };
        Self {
            on: Some(found.name),
            remaining: found.holders.first().map(|holding| holding.remaining),
            by: found.holders.into_iter().map(|holding| holding.holder).collect(),
            queue: Some(found.queue_len),
            waiters: found.waiters.into_iter().map(|waiting| waiting.holder).collect(),
            ..Self::word("held")
        }
    }

    pub fn error(error: &Error) -> Self {
        let word = match error {
            Error::Refused(Refusal::Held { resource, holder, remaining, queue_len }) => {
                return Self {
                    on: Some(resource.clone()),
                    by: holder.iter().cloned().collect(),
                    remaining: *remaining,
                    queue: Some(*queue_len),
                    ..Self::word("held")
                };
            }
            Error::Refused(Refusal::Stale) => "stale",
            Error::Refused(Refusal::NotHeld) => "not_held",
            Error::Refused(Refusal::QueueFull { .. }) => "queue_full",
            Error::Refused(Refusal::Quota(_)) => "quota",
            Error::Refused(Refusal::Mismatch) => "mismatch",
            Error::Invalid(_) => "invalid",
            // No script can expect these.
            Error::Unavailable { .. } => "unavailable",
            Error::Indeterminate { .. } => "indeterminate",
            Error::Corrupt { .. } => "corrupt",
        };
        Self { note: error.to_string(), ..Self::word(word) }
    }
}

impl fmt::Display for ObservedOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word)?;
        if let Some(count) = self.count {
            write!(f, " {count}")?;
        }
        if let Some(token) = self.token {
            write!(f, " token={token}")?;
        }
        if let Some(name) = &self.on {
            write!(f, " on={name} {}", Detail::By(self.by.clone()))?;
        }
        if let Some(count) = self.queue {
            write!(f, " {}", Detail::Queue(count))?;
        }
        if !self.waiters.is_empty() {
            write!(f, " {}", Detail::Waiters(self.waiters.clone()))?;
        }
        if let Some(span) = self.remaining {
            write!(f, " {}", Detail::Remaining(span))?;
        }
        if let Some(span) = self.renewable {
            write!(f, " {}", Detail::Renewable(span))?;
        }
        if self.note.is_empty() { Ok(()) } else { write!(f, " ({})", self.note) }
    }
}

impl fmt::Display for Detail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token(name, _) => write!(f, "token={name}"),
            Self::Remaining(span) => write!(f, "remaining={span:?}"),
            Self::Renewable(span) => write!(f, "renewable={span:?}"),
            Self::By(holders) if holders.is_empty() => f.write_str("by=nobody"),
            Self::By(holders) => write!(f, "by={}", holders.join(",")),
            Self::Queue(count) => write!(f, "queue={count}"),
            Self::Waiters(holders) => write!(f, "waiters={}", holders.join(",")),
            Self::On(name) => write!(f, "on={name}"),
            Self::Count(count) => write!(f, "{count}"),
        }
    }
}
