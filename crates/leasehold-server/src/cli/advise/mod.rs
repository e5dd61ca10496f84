//! `leasehold advise`: five questions, the narrowest mechanism, lines to copy.
//!
//! [`question`] has the questions and where each answer leads; [`mechanism`] has what is said in the end.

mod mechanism;
mod question;

use std::io::{BufRead, IsTerminal};

use clap::Args;
use serde::Serialize;

use self::mechanism::{CopyLine, Mechanism};
use self::question::{AfterAnswer, FIRST_QUESTION};
use leasehold_support::exit::Failure;
use leasehold_support::{exit, output};

const EXAMPLE: &str = "\
Example:
  leasehold advise                       asks, at the keyboard
  leasehold advise --answers nnys        answers in order, for scripts and for the record
  leasehold advise --answers nnnnny --json";

/// Asks five questions and names the narrowest mechanism, with its limits and lines to copy.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct AdviseArgs {
    /// The answers in order, one letter each, instead of being asked.
    #[arg(long, value_name = "LETTERS")]
    answers: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct AdviceJson<'a> {
    answers: &'a str,
    mechanism: &'a str,
    why: &'a str,
    limits: &'a [&'a str],
    lines: Vec<&'a CopyLine>,
}

impl AdviseArgs {
    /// Asks, and prints what to take. `binary` says which commands there are: others are not advised.
    pub fn execute(self, binary: &clap::Command) -> anyhow::Result<u8> {
        let (answers, mechanism) = match &self.answers {
            Some(letters) => follow(letters)?,
            None => ask()?,
        };
        let lines = mechanism.lines_for(|command| binary.find_subcommand(command).is_some());
        if self.json {
            let Mechanism { name, why, limits, .. } = mechanism;
            output::json(&AdviceJson { answers: &answers, mechanism: name, why, limits, lines })?;
        } else {
            print_advice(&answers, mechanism, &lines)?;
        }
        Ok(exit::DONE)
    }
}

/// Where these letters lead. Too few, too many or wrong ones are bad usage.
fn follow(letters: &str) -> anyhow::Result<(String, &'static Mechanism)> {
    let mut question = FIRST_QUESTION;
    for (place, letter) in letters.char_indices() {
        let Some(next) = question.next(letter) else {
            return Err(Failure::usage(format!(
                "answer {} of --answers is {letter:?}, and the question was: {} Answer {}",
                letters[..place].chars().count() + 1,
                question.text,
                question.choices()
            )));
        };
        match next {
            AfterAnswer::Ask(further) => question = further,
            AfterAnswer::Take(mechanism) if place + letter.len_utf8() == letters.len() => {
                return Ok((letters.to_owned(), mechanism));
            }
            AfterAnswer::Take(mechanism) => {
                return Err(Failure::usage(format!(
                    "--answers {letters} has more letters than questions: {} leads to {}",
                    &letters[..place + letter.len_utf8()],
                    mechanism.name
                )));
            }
        }
    }
    Err(Failure::usage(format!("--answers ends before this question: {} Answer {}", question.text, question.choices())))
}

/// Asks on stderr and reads from stdin: at a terminal until an answer is understood, in a pipe one line for each.
fn ask() -> anyhow::Result<(String, &'static Mechanism)> {
    let patient = std::io::stdin().is_terminal();
    let mut lines = std::io::stdin().lock().lines();
    let mut question = FIRST_QUESTION;
    let mut answers = String::new();
    loop {
        output::say(format!("{} {}", question.text, question.choices()));
        let line = lines.next().transpose()?.ok_or_else(|| {
            Failure::usage("the answers ended before the questions: answer on stdin, or give --answers")
        })?;
        let letter = line.trim().chars().next().map(|letter| letter.to_ascii_lowercase());
        match letter.and_then(|letter| question.next(letter).map(|next| (letter, next))) {
            Some((letter, next)) => {
                answers.push(letter);
                match next {
                    AfterAnswer::Ask(further) => question = further,
                    AfterAnswer::Take(mechanism) => return Ok((answers, mechanism)),
                }
            }
            None if patient => output::say(format!("answer {}", question.choices())),
            None => {
                let line = output::plain(line.trim());
                return Err(Failure::usage(format!(
                    "{line:?} does not answer: {} Answer {}",
                    question.text,
                    question.choices()
                )));
            }
        }
    }
}

fn print_advice(answers: &str, mechanism: &Mechanism, lines: &[&CopyLine]) -> anyhow::Result<()> {
    output::line(format!("Take: {} (answers {answers})", mechanism.name))?;
    output::line(format!("Why: {}", mechanism.why))?;
    for limit in mechanism.limits {
        output::line(format!("Limit: {limit}"))?;
    }
    let mut kind = None;
    for line in lines {
        if kind != Some(line.kind) {
            output::line("")?;
            output::line(format!("{}:", line.kind.heading()))?;
            kind = Some(line.kind);
        }
        for text in line.text.lines() {
            output::line(format!("  {text}"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_answers_are_bad_usage_and_say_the_question() {
        for (letters, part) in [
            ("", "ends before this question: Is it harmless twice"),
            ("nn", "ends before this question: Is all of it in one database"),
            ("x", "answer 1 of --answers is 'x'"),
            ("nné", "answer 3 of --answers is 'é'"),
            ("yy", "y leads to once"),
        ] {
            let error = follow(letters).expect_err(letters);
            assert_eq!(exit::code(&error), 2, "{letters}");
            assert!(exit::sentence(&error).contains(part), "{letters}: {}", exit::sentence(&error));
        }
    }
}
