//! From text to lines. Whatever cannot be read is refused with the number of its line.

use std::time::Duration;

use leasehold_core::{Limits, Mode};

use super::outcome::Expected;

/// A line's number, and what is wrong with it.
pub(super) type Wrong = (usize, String);

/// One step of a script.
#[derive(Clone, Debug)]
pub(super) struct ScenarioLine {
    pub number: usize,
    /// Since the start of the script.
    pub at: Duration,
    /// Who, and over which connection.
    pub who: String,
    /// None: look at what this person waits for.
    pub act: Option<ScenarioAction>,
    pub expected: Expected,
}

impl ScenarioLine {
    /// Who, whatever the connection: `bob/2` is bob.
    pub fn person(&self) -> &str {
        self.who.split('/').next().unwrap_or(&self.who)
    }

    /// Every span after which something could be due because of this line.
    pub fn spans(&self) -> Vec<Duration> {
        match &self.act {
            Some(ScenarioAction::Acquire(asked)) => {
                let cap = asked.max_hold.unwrap_or_default();
                vec![asked.ttl, asked.wait, cap, asked.delay]
            }
            Some(ScenarioAction::Renew { ttl: Some(ttl), .. }) => vec![*ttl],
            _ => Vec::new(),
        }
    }
}

/// What somebody does.
#[derive(Clone, Debug)]
pub(super) enum ScenarioAction {
    Acquire(ScenarioClaim),
    Renew { name: String, ttl: Option<Duration>, token: Option<String> },
    Release { name: String, token: Option<String> },
    Revoke { name: String, reason: String },
    Write { name: String, token: String },
    Inspect { name: String },
    Cancel,
}

/// A claim.
#[derive(Clone, Debug)]
pub(super) struct ScenarioClaim {
    pub names: Vec<String>,
    pub mode: Mode,
    pub ttl: Duration,
    pub wait: Duration,
    pub max_hold: Option<Duration>,
    pub delay: Duration,
    pub request: Option<String>,
}

pub(super) fn script(text: &str) -> Result<(Limits, Vec<ScenarioLine>), Wrong> {
    let mut limits = Limits::default();
    let mut lines: Vec<ScenarioLine> = Vec::new();
    for (index, text) in text.lines().enumerate() {
        let number = index + 1;
        let text = text.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let wrong = |message: String| (number, message);
        if let Some(limit) = text.strip_prefix("with ") {
            with(&mut limits, limit.trim()).map_err(wrong)?;
            continue;
        }
        let line = step(number, text).map_err(wrong)?;
        if lines.last().is_some_and(|last| last.at > line.at) {
            return Err(wrong("time does not go back".into()));
        }
        lines.push(line);
    }
    if lines.is_empty() {
        return Err((0, "a scenario has at least one line that begins with at".into()));
    }
    Ok((limits, lines))
}

fn with(limits: &mut Limits, text: &str) -> Result<(), String> {
    match text.split_once('=') {
        Some(("waiters_per_resource", most)) => limits.waiters_per_resource = number(most)?,
        _ => return Err(format!("there is no limit to set like this: {text}")),
    }
    Ok(())
}

fn step(number: usize, text: &str) -> Result<ScenarioLine, String> {
    let (step, outcome) = text.split_once("->").ok_or("a line says what comes of it, after ->")?;
    let mut words = step.split_whitespace();
    if words.next() != Some("at") {
        return Err("a line begins with at".into());
    }
    let at = parse_duration(words.next().ok_or("a line says when")?)?;
    let who = words.next().ok_or("a line says who")?.to_owned();
    let act = words.next().map(|verb| act(verb, words.collect())).transpose()?;
    Ok(ScenarioLine { number, at, who, act, expected: Expected::parse(outcome)? })
}

fn act(verb: &str, words: Vec<&str>) -> Result<ScenarioAction, String> {
    let mut options = LineOptions { words };
    let act = match verb {
        "acquire" => ScenarioAction::Acquire(parse_claim(&mut options)?),
        "renew" => ScenarioAction::Renew {
            name: options.name()?,
            ttl: options.take_option("ttl").map(parse_duration).transpose()?,
            token: options.take_option("token").map(Into::into),
        },
        "release" => {
            ScenarioAction::Release { name: options.name()?, token: options.take_option("token").map(Into::into) }
        }
        "revoke" => ScenarioAction::Revoke {
            name: options.name()?,
            reason: options.take_option("reason").unwrap_or_default().into(),
        },
        "write" => ScenarioAction::Write {
            name: options.name()?,
            token: options.take_option("token").ok_or("a write shows a token=")?.into(),
        },
        "inspect" => ScenarioAction::Inspect { name: options.name()? },
        "cancel" => ScenarioAction::Cancel,
        _ => return Err(format!("nobody knows how to {verb}")),
    };
    options.done(verb)?;
    Ok(act)
}

fn parse_claim(options: &mut LineOptions<'_>) -> Result<ScenarioClaim, String> {
    let names = options.name()?.split(',').map(Into::into).collect();
    let mode = match (options.flag("shared"), options.take_option("permits")) {
        (false, None) => Mode::Exclusive,
        (true, None) => Mode::Shared,
        (false, Some(permits)) => {
            let (count, capacity) = permits.split_once('/').ok_or("permits are written as permits=1/3")?;
            Mode::Permits { count: number(count)?, capacity: number(capacity)? }
        }
        (true, Some(_)) => return Err("a claim is shared or has permits, not both".into()),
    };
    Ok(ScenarioClaim {
        names,
        mode,
        ttl: parse_duration(options.take_option("ttl").ok_or("an acquire has a ttl=")?)?,
        wait: options.take_option("wait").map(parse_duration).transpose()?.unwrap_or_default(),
        max_hold: options.take_option("max_hold").map(parse_duration).transpose()?,
        delay: options.take_option("delay").map(parse_duration).transpose()?.unwrap_or_default(),
        request: options.take_option("request").map(Into::into),
    })
}

/// The words after a verb: a name first, then options in any order.
struct LineOptions<'a> {
    words: Vec<&'a str>,
}

impl<'a> LineOptions<'a> {
    fn name(&mut self) -> Result<String, String> {
        match self.words.first() {
            Some(word) if !word.contains('=') => Ok(self.words.remove(0).to_owned()),
            _ => Err("the resource is missing".into()),
        }
    }

    fn take_option(&mut self, key: &str) -> Option<&'a str> {
        let value = |word: &&'a str| word.strip_prefix(key)?.strip_prefix('=');
        let at = self.words.iter().position(|word| value(word).is_some())?;
        value(&self.words.remove(at))
    }

    fn flag(&mut self, word: &str) -> bool {
        let at = self.words.iter().position(|other| *other == word);
        at.map(|at| self.words.remove(at)).is_some()
    }

    fn done(self, verb: &str) -> Result<(), String> {
        self.words.first().map_or(Ok(()), |word| Err(format!("{verb} has no option {word}")))
    }
}

/// `500ms`, `30s`, `5m`, `1h`.
pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (count, unit) = text.split_at(digits);
    let millis: u64 = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(format!("a span is written like 500ms, 30s, 5m or 1h, not {text}")),
    };
    let all = number::<u64>(count)?.checked_mul(millis).ok_or("that is too long")?;
    Ok(Duration::from_millis(all))
}

pub(super) fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("a number was expected, not {text}"))
}
