//! Records what happens in a lab, and prints each line as it comes.

use std::time::Duration;

use leasehold::Time;
use leasehold::clock::{Clock, SystemClock};

use crate::print;
use crate::timeline::{
    ActKind, BeliefSpan, EntryTone, LabAct, LabTimeline, PauseSpan, TimelineEntry, WriteFate, WriteMark,
};

/// The record of a lab.
pub struct Recorder {
    timeline: LabTimeline,
    act_began: Time,
    style: Option<print::PrintStyle>,
}

/// One line that is being put together.
pub struct LabLine {
    actor: String,
    does: String,
    believes: String,
    verdict: String,
    tone: EntryTone,
    at_ns: Option<u64>,
}

impl LabLine {
    pub fn new(actor: &str, does: impl Into<String>) -> Self {
        let (believes, verdict) = (String::new(), String::new());
        Self { actor: actor.into(), does: does.into(), believes, verdict, tone: EntryTone::Plain, at_ns: None }
    }

    pub fn believes(mut self, belief: impl Into<String>) -> Self {
        self.believes = belief.into();
        self
    }

    pub fn verdict(mut self, verdict: impl Into<String>) -> Self {
        self.verdict = verdict.into();
        self
    }

    /// The verdict is as it should be.
    pub fn good(mut self, verdict: impl Into<String>) -> Self {
        self.tone = EntryTone::Good;
        self.verdict(verdict)
    }

    /// The verdict is the failure.
    pub fn bad(mut self, verdict: impl Into<String>) -> Self {
        self.tone = EntryTone::Bad;
        self.verdict(verdict)
    }

    /// When it was done, by the clock of whoever did it. Without it: now.
    pub fn at(mut self, at_ns: u64) -> Self {
        self.at_ns = Some(at_ns);
        self
    }
}

impl Recorder {
    /// Prints each line in this style; nothing without one.
    pub fn new(lab: &'static str, title: &'static str, style: Option<print::PrintStyle>) -> Self {
        let timeline = LabTimeline { lab, title, acts: Vec::new(), sentence: String::new(), missing: Vec::new() };
        Self { timeline, act_began: Time::ZERO, style }
    }

    /// Begins an act: its times count from its first line, when everything that it needs has been started.
    pub fn begin_act(&mut self, kind: ActKind, title: impl Into<String>) -> anyhow::Result<()> {
        self.end_act();
        self.act_began = SystemClock.now();
        let act = LabAct::new(title, kind);
        if let Some(style) = &self.style {
            style.print_heading(self.timeline.acts.len() + 1, &act)?;
        }
        self.timeline.acts.push(act);
        Ok(())
    }

    /// Adds a line.
    pub fn add(&mut self, line: LabLine) -> anyhow::Result<()> {
        if self.act().entries.is_empty() {
            self.act_began = line.at_ns.map_or_else(|| SystemClock.now(), Time::from_nanos);
        }
        let at = self.moment(line.at_ns);
        let LabLine { actor, does, believes, verdict, tone, .. } = line;
        let entry = TimelineEntry { at, actor, does, believes, verdict, tone };
        if let Some(style) = &self.style {
            style.print_entry(&entry)?;
        }
        let act = self.act();
        act.lasted = act.lasted.max(at);
        act.entries.push(entry);
        Ok(())
    }

    /// From here on this actor believes to hold.
    pub fn begin_belief(&mut self, actor: &str, at_ns: u64) {
        let from = self.moment(Some(at_ns));
        self.act().beliefs.push(BeliefSpan { actor: actor.into(), from, to: from, open: true });
    }

    /// From here on it knows better, or is gone.
    pub fn end_belief(&mut self, actor: &str, at_ns: Option<u64>) {
        let at = self.moment(at_ns);
        for span in self.act().beliefs.iter_mut().filter(|span| span.open && span.actor == actor) {
            span.to = at;
            span.open = false;
        }
    }

    /// From here on this actor is stopped or cut off.
    pub fn begin_pause(&mut self, actor: &str, why: &'static str) {
        let from = self.moment(None);
        self.act().pauses.push(PauseSpan { actor: actor.into(), from, to: from, why, open: true });
    }

    pub fn end_pause(&mut self, actor: &str) {
        let at = self.moment(None);
        for span in self.act().pauses.iter_mut().filter(|span| span.open && span.actor == actor) {
            span.to = at;
            span.open = false;
        }
    }

    /// A write, and what became of it.
    pub fn mark_write(&mut self, actor: &str, at_ns: u64, fate: WriteFate) {
        let at = self.moment(Some(at_ns));
        let act = self.act();
        act.lasted = act.lasted.max(at);
        act.writes.push(WriteMark { actor: actor.into(), at, fate });
    }

    /// What the lab asserts. If it is not so, the lab did not show what it is for.
    pub fn expect(&mut self, shown: bool, what: &str) {
        if !shown {
            let act = self.timeline.acts.last().map_or("", |act| act.title.as_str());
            let missing = format!("{act}: {what}");
            self.timeline.missing.push(missing);
        }
    }

    /// The whole record. The sentence is told only if everything that it says was seen.
    pub fn finish(mut self, sentence: String) -> LabTimeline {
        self.end_act();
        self.timeline.sentence = match self.timeline.missing.as_slice() {
            [] => sentence,
            missing => format!("the lab did not show what it is for: {}", missing.join("; ")),
        };
        self.timeline
    }

    fn end_act(&mut self) {
        let now = self.moment(None);
        if let Some(act) = self.timeline.acts.last_mut() {
            act.close(now);
        }
    }

    fn moment(&self, at_ns: Option<u64>) -> Duration {
        at_ns.map_or_else(|| SystemClock.now(), Time::from_nanos).since(self.act_began)
    }

    fn act(&mut self) -> &mut LabAct {
        if self.timeline.acts.is_empty() {
            self.timeline.acts.push(LabAct::new("", ActKind::Failure));
        }
        let last = self.timeline.acts.len() - 1;
        &mut self.timeline.acts[last]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Recorder {
        let mut record = Recorder::new("pause", "a test", None);
        record.begin_act(ActKind::Failure, "the failure").expect("nothing is printed");
        record
    }

    /// Goal: what was not seen is never said.
    #[test]
    fn the_sentence_is_told_only_if_everything_was_seen() {
        let mut record = record();
        record.expect(true, "bob is granted");
        assert_eq!(record.finish("Seen: all.".into()).sentence, "Seen: all.");

        let mut record = self::record();
        record.expect(true, "bob is granted");
        record.expect(false, "ada is refused");
        let timeline = record.finish("Seen: all.".into());
        assert_eq!(timeline.missing, ["the failure: ada is refused"]);
        assert_eq!(timeline.sentence, "the lab did not show what it is for: the failure: ada is refused");
    }

    /// Goal: the start of servers is no part of the picture.
    #[test]
    fn times_count_from_the_first_line() {
        let mut record = record();
        let first = record.act_began.as_nanos() + 5_000_000;
        record.add(LabLine::new("ada", "begins").at(first)).expect("nothing is printed");
        record.add(LabLine::new("bob", "follows").at(first + 1_000_000)).expect("nothing is printed");
        let timeline = record.finish(String::new());
        let at: Vec<Duration> = timeline.acts[0].entries.iter().map(|entry| entry.at).collect();
        assert_eq!(at, [Duration::ZERO, Duration::from_millis(1)]);
    }

    /// Goal: a belief that nobody ended lasts until its act does, and one that was ended does not grow again.
    #[test]
    fn beliefs_end_with_their_act() {
        let mut record = record();
        let began = record.act_began.as_nanos();
        record.begin_belief("ada", began);
        record.end_belief("ada", Some(began + 1_000));
        record.begin_belief("bob", began);
        let timeline = record.finish(String::new());
        let [ada, bob] = timeline.acts[0].beliefs.as_slice() else { panic!("two spans: {timeline:?}") };
        assert_eq!(ada.to, Duration::from_nanos(1_000));
        assert_eq!(bob.to, timeline.acts[0].lasted);
        assert_eq!(timeline.acts[0].actors(), ["ada", "bob"]);
    }
}
