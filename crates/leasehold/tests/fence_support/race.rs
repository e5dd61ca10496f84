//! The judge of races at a fence: stale and current writers of several resources, whatever the adapter is.
//!
//! Every write leaves its id in the resource itself, in the order in which writes took effect. Every writer notes what it
//! shows before it shows it, and the answer after it came: one list for all, in the order of real time.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold::fence::{FenceError, FenceRefusal, FenceSetting};

use super::Dice;

/// How many answers a race has; `LEASEHOLD_FENCE_RACE` says otherwise.
pub fn race_size(default: u64) -> u64 {
    std::env::var("LEASEHOLD_FENCE_RACE").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// One write that is tried: which resource, under which token, and the id that it leaves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RaceWrite {
    pub resource: u64,
    pub token: u64,
    pub id: String,
}

impl RaceWrite {
    pub fn resource_name(&self) -> String {
        format!("seat/{}", self.resource)
    }

    /// What it shows. The mark belongs to the token: one lease, one mark.
    pub fn setting(&self) -> FenceSetting {
        let mark = self.token.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        format!("{}:{mark:016x}\t{}", self.token, self.resource_name()).parse().expect("a setting")
    }
}

/// What is noted, in the order of real time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RaceNote {
    Shown(RaceWrite),
    Admitted(String),
    /// The id, and the highest token in the refusal.
    Stale(String, u64),
    NoEffect(String),
    Unknown(String),
}

impl RaceNote {
    pub fn from_answer(id: &str, answer: &Result<(), FenceError>) -> Self {
        let id = id.to_owned();
        match answer {
            Ok(()) => Self::Admitted(id),
            Err(FenceError::Refused(FenceRefusal::Stale { highest, .. })) => Self::Stale(id, highest.get()),
            Err(FenceError::Unavailable { .. }) => Self::NoEffect(id),
            Err(FenceError::Indeterminate { .. }) => Self::Unknown(id),
            Err(other) => panic!("a race never gives {other:?}"),
        }
    }
}

impl fmt::Display for RaceNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shown(write) => write!(f, "shown {} {} {}", write.id, write.resource, write.token),
            Self::Admitted(id) => write!(f, "admitted {id}"),
            Self::Stale(id, highest) => write!(f, "stale {id} {highest}"),
            Self::NoEffect(id) => write!(f, "none {id}"),
            Self::Unknown(id) => write!(f, "unknown {id}"),
        }
    }
}

impl FromStr for RaceNote {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |text: &str| text.parse::<u64>().map_err(drop);
        Ok(match words[..] {
            ["shown", id, resource, token] => {
                Self::Shown(RaceWrite { id: id.into(), resource: number(resource)?, token: number(token)? })
            }
            ["admitted", id] => Self::Admitted(id.into()),
            ["stale", id, highest] => Self::Stale(id.into(), number(highest)?),
            ["none", id] => Self::NoEffect(id.into()),
            ["unknown", id] => Self::Unknown(id.into()),
            _ => return Err(()),
        })
    }
}

/// One writer's choice of what to show: a new lease, the newest of its own, or one that is long over.
pub struct RaceWriter {
    pub dice: Dice,
    name: String,
    writes: u64,
    own: HashMap<u64, Vec<u64>>,
}

impl RaceWriter {
    pub fn new(name: impl Into<String>, seed: u64) -> Self {
        Self { dice: Dice(seed | 1), name: name.into(), writes: 0, own: HashMap::new() }
    }

    /// `next_token` grants a lease on the resource.
    pub fn choose(&mut self, resource: u64, next_token: impl FnOnce() -> u64) -> RaceWrite {
        self.writes += 1;
        let own = self.own.entry(resource).or_default();
        let token = match (self.dice.below(10), own.last()) {
            (0..=3, _) | (_, None) => {
                own.push(next_token());
                own[own.len() - 1]
            }
            (4..=6, Some(newest)) => *newest,
            _ => own[self.dice.below(own.len() as u64) as usize],
        };
        RaceWrite { resource, token, id: format!("{}-{}", self.name, self.writes) }
    }
}

/// What writers of one process share.
#[derive(Default)]
pub struct RaceBoard {
    notes: Mutex<Vec<RaceNote>>,
    tokens: Mutex<HashMap<u64, u64>>,
    answers: AtomicU64,
}

impl RaceBoard {
    /// Grants the next lease on a resource. Tokens cross 2^53: there numbers that are no integers go wrong.
    pub fn next_token(&self, resource: u64) -> u64 {
        let mut tokens = self.tokens.lock().unwrap();
        let token = tokens.entry(resource).or_insert((1 << 53) - 20);
        *token += 1;
        *token
    }

    pub fn note(&self, note: RaceNote) {
        if !matches!(note, RaceNote::Shown(_)) {
            self.answers.fetch_add(1, Ordering::Relaxed);
        }
        self.notes.lock().unwrap().push(note);
    }

    pub fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    /// A resource near the front: histories stay short, whatever the size of the race.
    pub fn pick_resource(&self, dice: &mut Dice) -> u64 {
        self.answers() / 1500 + dice.below(3)
    }

    pub fn notes(&self) -> Vec<RaceNote> {
        self.notes.lock().unwrap().clone()
    }
}

/// What a race came to. The first three must be zero, but where a fault is planted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RaceVerdict {
    /// Writes that took effect after one with a higher token.
    pub stale_admitted: u64,
    /// Refusals with a token that nobody had shown, or that is not higher.
    pub current_refused: u64,
    /// Acknowledged and not there, or there and refused, or there twice.
    pub lost_or_uninvited: u64,
    pub admitted: u64,
    pub refused: u64,
    pub no_effect: u64,
    pub unknown: u64,
}

impl RaceVerdict {
    pub fn answers(&self) -> u64 {
        self.admitted + self.refused + self.no_effect + self.unknown
    }

    /// Nothing that must not be.
    pub fn assert_clean(&self, least_answers: u64) {
        assert_eq!((self.stale_admitted, self.current_refused, self.lost_or_uninvited), (0, 0, 0), "{self:?}");
        assert!(self.answers() >= least_answers, "a race of nothing: {self:?}");
        assert!(self.admitted * 10 > self.answers() && self.refused * 20 > self.answers(), "one-sided: {self:?}");
    }
}

/// Judges by the notes, and by the ids in each resource in their order.
pub fn judge(notes: &[RaceNote], histories: &BTreeMap<u64, Vec<String>>) -> RaceVerdict {
    let mut verdict = RaceVerdict::default();
    let mut writes: HashMap<&str, &RaceWrite> = HashMap::new();
    let mut highest_shown: HashMap<u64, u64> = HashMap::new();
    let mut must_be = HashSet::new();
    let mut may_not_be = HashSet::new();
    for note in notes {
        match note {
            RaceNote::Shown(write) => {
                writes.insert(&write.id, write);
                let highest = highest_shown.entry(write.resource).or_default();
                *highest = write.token.max(*highest);
            }
            RaceNote::Admitted(id) => {
                verdict.admitted += 1;
                must_be.insert(id.as_str());
            }
            RaceNote::Stale(id, highest) => {
                verdict.refused += 1;
                may_not_be.insert(id.as_str());
                let write = writes[id.as_str()];
                if *highest <= write.token || *highest > highest_shown[&write.resource] {
                    verdict.current_refused += 1;
                }
            }
            RaceNote::NoEffect(id) => {
                verdict.no_effect += 1;
                may_not_be.insert(id.as_str());
            }
            RaceNote::Unknown(_) => verdict.unknown += 1,
        }
    }
    let mut seen = HashSet::new();
    for (resource, history) in histories {
        let mut newest = 0;
        for id in history {
            let write = writes[id.as_str()];
            assert_eq!(write.resource, *resource, "{id} is in the history of another resource");
            verdict.stale_admitted += u64::from(write.token < newest);
            newest = newest.max(write.token);
            let wrong = may_not_be.contains(id.as_str()) || !seen.insert(id.as_str());
            verdict.lost_or_uninvited += u64::from(wrong);
        }
    }
    verdict.lost_or_uninvited += must_be.iter().filter(|id| !seen.contains(**id)).count() as u64;
    verdict
}

/// What a text of the table of cases shows.
pub fn parse_shown(resource: &str, shown: Option<&str>) -> Result<FenceSetting, FenceRefusal> {
    match shown {
        None | Some("") => Err(FenceRefusal::NoToken { resource: resource.to_owned() }),
        Some(text) => text.parse(),
    }
}

/// The refusal of an answer that is one; anything else is no answer of a fence.
pub fn refusal_only(answer: Result<(), FenceError>) -> Result<(), FenceRefusal> {
    answer.map_err(|error| match error {
        FenceError::Refused(refusal) => refusal,
        other => panic!("no refusal: {other:?}"),
    })
}
