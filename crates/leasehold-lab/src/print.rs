//! The timeline on a terminal: fixed columns, colour only where there is a terminal that shows it.

use std::io::IsTerminal as _;
use std::time::Duration;

use leasehold_support::output;

use crate::timeline::{ActKind, EntryTone, LabAct, LabTimeline, TimelineEntry};

const ACTOR_COLUMNS: usize = 9;
const DOES_COLUMNS: usize = 46;
const BELIEVES_COLUMNS: usize = 22;

/// How lines are printed.
#[derive(Clone, Copy, Debug)]
pub struct PrintStyle {
    coloured: bool,
}

impl PrintStyle {
    /// For this process' stdout: colour on a terminal, unless `NO_COLOR` is set.
    pub fn for_stdout() -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { coloured: std::io::stdout().is_terminal() && !refused }
    }

    /// The name of the lab, and what it is about.
    pub fn print_title(self, lab: &str, title: &str) -> anyhow::Result<()> {
        output::line(self.paint("1", &format!("leasehold lab {lab}: {title}")))
    }

    /// The heading of an act, and of its columns.
    pub fn print_heading(self, number: usize, act: &LabAct) -> anyhow::Result<()> {
        let kind = match act.kind {
            ActKind::Failure => "The failure",
            ActKind::Cure => "The cure",
        };
        output::line("")?;
        output::line(self.paint("1", &format!("{number}. {kind}: {}", act.title)))?;
        output::line(columns("TIME", "ACTOR", "DOES", "BELIEVES", "VERDICT"))
    }

    /// One line of the timeline.
    pub fn print_entry(self, entry: &TimelineEntry) -> anyhow::Result<()> {
        let verdict = match entry.tone {
            EntryTone::Plain => entry.verdict.clone(),
            EntryTone::Good => self.paint("32", &entry.verdict),
            EntryTone::Bad => self.paint("1;31", &entry.verdict),
        };
        output::line(columns(&seconds(entry.at), &entry.actor, &entry.does, &entry.believes, &verdict))
    }

    /// What was seen, in one sentence.
    pub fn print_end(self, timeline: &LabTimeline) -> anyhow::Result<()> {
        output::line("")?;
        output::line(self.paint("1", &timeline.sentence))
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.coloured && !text.is_empty() { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

/// Seconds with three digits: `2.004`.
pub fn seconds(span: Duration) -> String {
    format!("{:.3}", span.as_secs_f64())
}

fn columns(time: &str, actor: &str, does: &str, believes: &str, verdict: &str) -> String {
    let line = format!("{time:>7}  {actor:ACTOR_COLUMNS$} {does:DOES_COLUMNS$} {believes:BELIEVES_COLUMNS$} {verdict}");
    line.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_terminal_there_is_no_colour_code() {
        let plain = PrintStyle { coloured: false };
        assert_eq!(plain.paint("32", "granted"), "granted");
        let coloured = PrintStyle { coloured: true };
        assert_eq!(coloured.paint("32", "granted"), "\u{1b}[32mgranted\u{1b}[0m");
    }

    #[test]
    fn columns_have_no_trailing_spaces() {
        assert_eq!(columns("0.001", "ada", "waits", "", ""), "  0.001  ada       waits");
    }
}
