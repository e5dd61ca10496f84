//! The timeline on a terminal: fixed columns, colour only where there is a terminal that shows it. Where the columns do
//! not fit, each entry has lines of its own.

use std::io::IsTerminal as _;
use std::time::Duration;

use leasehold_support::output;

use crate::timeline::{ActKind, EntryTone, LabAct, LabTimeline, TimelineEntry};

const ACTOR_COLUMNS: usize = 9;
const DOES_COLUMNS: usize = 46;
const BELIEVES_COLUMNS: usize = 22;
/// The columns, and room for most verdicts.
const WIDE_COLUMNS: usize = 120;
/// Narrower than this nothing is readable.
const MIN_COLUMNS: usize = 24;
/// Under the name of the actor.
const INDENT: &str = "         ";

/// How lines are printed.
#[derive(Clone, Copy, Debug)]
pub struct PrintStyle {
    coloured: bool,
    /// The width of a terminal that is too narrow for the columns.
    narrow: Option<usize>,
}

impl PrintStyle {
    /// For this process' stdout: colour on a terminal, unless `NO_COLOR` is set.
    pub fn for_stdout() -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let is_terminal = std::io::stdout().is_terminal();
        let size = rustix::termios::tcgetwinsize(rustix::stdio::stdout()).ok().filter(|_| is_terminal);
        // A terminal that does not say its size has 0 columns.
        let columns = size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0);
        let narrow = columns.filter(|columns| *columns < WIDE_COLUMNS).map(|columns| columns.max(MIN_COLUMNS));
        Self { coloured: is_terminal && !refused, narrow }
    }

    /// The name of the lab, and what it is about.
    pub fn print_title(self, lab: &str, title: &str) -> anyhow::Result<()> {
        self.print_text("1", &format!("leasehold lab {lab}: {title}"))
    }

    /// The heading of an act, and of its columns.
    pub fn print_heading(self, number: usize, act: &LabAct) -> anyhow::Result<()> {
        let kind = match act.kind {
            ActKind::Failure => "The failure",
            ActKind::Cure => "The cure",
        };
        output::line("")?;
        self.print_text("1", &format!("{number}. {kind}: {}", act.title))?;
        match self.narrow {
            Some(_) => Ok(()),
            None => output::line(columns("TIME", "ACTOR", "DOES", "BELIEVES", "VERDICT")),
        }
    }

    /// One line of the timeline.
    pub fn print_entry(self, entry: &TimelineEntry) -> anyhow::Result<()> {
        let colour = match entry.tone {
            EntryTone::Plain => "",
            EntryTone::Good => "32",
            EntryTone::Bad => "1;31",
        };
        if let Some(width) = self.narrow {
            return narrow_lines(entry, width).into_iter().try_for_each(|(is_verdict, line)| {
                output::line(self.paint(if is_verdict { colour } else { "" }, &line))
            });
        }
        let verdict = self.paint(colour, &entry.verdict);
        output::line(columns(&seconds(entry.at), &entry.actor, &entry.does, &entry.believes, &verdict))
    }

    /// What was seen, in one sentence.
    pub fn print_end(self, timeline: &LabTimeline) -> anyhow::Result<()> {
        output::line("")?;
        self.print_text("1", &timeline.sentence)
    }

    fn print_text(self, code: &str, text: &str) -> anyhow::Result<()> {
        let lines = self.narrow.map_or_else(|| vec![text.to_owned()], |width| wrap_text(text, width));
        lines.iter().try_for_each(|line| output::line(self.paint(code, line)))
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.coloured && !text.is_empty() && !code.is_empty() {
            format!("\u{1b}[{code}m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
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

/// An entry on a narrow terminal: what the actor does, then what it believes, then the verdict. True for lines of the
/// verdict.
fn narrow_lines(entry: &TimelineEntry, width: usize) -> Vec<(bool, String)> {
    let room = width.saturating_sub(INDENT.len()).max(1);
    let mut lines = Vec::new();
    for (at, line) in wrap_text(&format!("{}: {}", entry.actor, entry.does), room).iter().enumerate() {
        let start = if at == 0 { format!("{:>7}  ", seconds(entry.at)) } else { INDENT.to_owned() };
        lines.push((false, format!("{start}{line}")));
    }
    let believes = (!entry.believes.is_empty()).then(|| format!("believes: {}", entry.believes));
    let rest = [(false, believes.unwrap_or_default()), (true, entry.verdict.clone())];
    for (is_verdict, text) in rest {
        lines.extend(wrap_text(&text, room).into_iter().map(|line| (is_verdict, format!("{INDENT}{line}"))));
    }
    lines
}

/// Breaks a text between its words. A word that is too long stays whole.
fn wrap_text(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: on a small terminal no line is cut or wrapped by the terminal, and nothing is lost.
    #[test]
    fn a_narrow_terminal_gets_lines_that_fit() {
        let entry = TimelineEntry {
            at: Duration::from_millis(2530),
            actor: "ada".into(),
            does: "is stopped before it writes (SIGSTOP)".into(),
            believes: "holds seat/14".into(),
            verdict: "fenced, LH001: token 3 is stale: seat/14 has seen token 4".into(),
            tone: EntryTone::Good,
        };
        for width in [36, 60, 80, 119] {
            let lines = narrow_lines(&entry, width);
            assert!(lines.iter().all(|(_, line)| line.chars().count() <= width), "{width}: {lines:#?}");
            let all: Vec<&str> = lines.iter().flat_map(|(_, line)| line.split_whitespace()).collect();
            let expected =
                format!("2.530 {}: {} believes: {} {}", entry.actor, entry.does, entry.believes, entry.verdict);
            assert_eq!(all.join(" "), expected);
        }
        assert_eq!(narrow_lines(&entry, 80)[0].1, "  2.530  ada: is stopped before it writes (SIGSTOP)");
    }

    #[test]
    fn without_a_terminal_there_is_no_colour_code() {
        let plain = PrintStyle { coloured: false, narrow: None };
        assert_eq!(plain.paint("32", "granted"), "granted");
        let coloured = PrintStyle { coloured: true, narrow: None };
        assert_eq!(coloured.paint("32", "granted"), "\u{1b}[32mgranted\u{1b}[0m");
    }

    #[test]
    fn columns_have_no_trailing_spaces() {
        assert_eq!(columns("0.001", "ada", "waits", "", ""), "  0.001  ada       waits");
    }
}
