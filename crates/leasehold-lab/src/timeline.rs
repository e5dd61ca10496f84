//! What happened in a lab: who did what, who believed to hold when, which write was admitted or fenced.

use std::time::Duration;

use serde::Serialize;

/// A whole lab.
#[derive(Debug, Serialize)]
pub struct LabTimeline {
    pub lab: &'static str,
    pub title: &'static str,
    pub acts: Vec<LabAct>,
    /// One sentence about what was seen.
    pub sentence: String,
    /// What should have been seen, and was not.
    pub missing: Vec<String>,
}

/// One run of a schedule: the failure, or the cure.
#[derive(Debug, Serialize)]
pub struct LabAct {
    pub title: String,
    pub kind: ActKind,
    pub entries: Vec<TimelineEntry>,
    pub beliefs: Vec<BeliefSpan>,
    pub pauses: Vec<PauseSpan>,
    pub writes: Vec<WriteMark>,
    /// From the beginning of the act to its last entry.
    #[serde(rename = "lasted_ms", serialize_with = "as_millis")]
    pub lasted: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ActKind {
    Failure,
    Cure,
}

/// One line of the timeline. Times count from the beginning of the act.
#[derive(Clone, Debug, Serialize)]
pub struct TimelineEntry {
    #[serde(rename = "at_ms", serialize_with = "as_millis")]
    pub at: Duration,
    pub actor: String,
    pub does: String,
    pub believes: String,
    pub verdict: String,
    pub tone: EntryTone,
}

/// Whether the line shows something as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryTone {
    Plain,
    Good,
    Bad,
}

/// A span in which an actor believed to hold the resource.
#[derive(Clone, Debug, Serialize)]
pub struct BeliefSpan {
    pub actor: String,
    #[serde(rename = "from_ms", serialize_with = "as_millis")]
    pub from: Duration,
    #[serde(rename = "to_ms", serialize_with = "as_millis")]
    pub to: Duration,
    /// Until the act ended: it never learned otherwise.
    #[serde(skip)]
    pub open: bool,
}

/// A span in which the process of an actor was stopped, or cut off.
#[derive(Clone, Debug, Serialize)]
pub struct PauseSpan {
    pub actor: String,
    #[serde(rename = "from_ms", serialize_with = "as_millis")]
    pub from: Duration,
    #[serde(rename = "to_ms", serialize_with = "as_millis")]
    pub to: Duration,
    pub why: &'static str,
    #[serde(skip)]
    pub open: bool,
}

/// One write to the resource.
#[derive(Clone, Debug, Serialize)]
pub struct WriteMark {
    pub actor: String,
    #[serde(rename = "at_ms", serialize_with = "as_millis")]
    pub at: Duration,
    pub fate: WriteFate,
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WriteFate {
    /// As it should be.
    Admitted,
    /// It took effect, and should not have.
    WronglyAdmitted,
    /// The fence refused it.
    Fenced,
}

impl LabAct {
    pub fn new(title: impl Into<String>, kind: ActKind) -> Self {
        Self {
            title: title.into(),
            kind,
            entries: Vec::new(),
            beliefs: Vec::new(),
            pauses: Vec::new(),
            writes: Vec::new(),
            lasted: Duration::ZERO,
        }
    }

    /// The actors that have a row in the picture, in order of appearance.
    pub fn actors(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        let beliefs = self.beliefs.iter().map(|span| span.actor.as_str());
        let writes = self.writes.iter().map(|write| write.actor.as_str());
        for name in beliefs.chain(writes) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// Ends what is still open at this moment.
    pub fn close(&mut self, at: Duration) {
        self.lasted = self.lasted.max(at);
        self.beliefs.iter_mut().filter(|span| span.open).for_each(|span| span.to = at);
        self.pauses.iter_mut().filter(|span| span.open).for_each(|span| span.to = at);
    }
}

fn as_millis<S: serde::Serializer>(span: &Duration, to: S) -> Result<S::Ok, S::Error> {
    // To the microsecond: what happens in one millisecond still has an order.
    to.serialize_f64((span.as_secs_f64() * 1e6).round() / 1e3)
}
