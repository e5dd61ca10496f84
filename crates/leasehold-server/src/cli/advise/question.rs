//! The questions, in order: the narrowest mechanism comes first.

use super::mechanism::{self, Mechanism};

/// One question.
pub struct Question {
    pub text: &'static str,
    /// The letter, what it says, and where it leads.
    answers: &'static [(char, &'static str, AfterAnswer)],
}

/// Where an answer leads.
#[derive(Clone, Copy)]
pub enum AfterAnswer {
    Ask(&'static Question),
    Take(&'static Mechanism),
}

impl Question {
    /// Where this answer leads; none if it is not one.
    pub fn next(&self, letter: char) -> Option<AfterAnswer> {
        self.answers.iter().find(|(known, ..)| *known == letter).map(|(.., next)| *next)
    }

    /// The answers there are.
    pub fn choices(&self) -> String {
        let choice = |(letter, says, _): &(char, &str, AfterAnswer)| format!("{letter}: {says}");
        format!("[{}]", self.answers.iter().map(choice).collect::<Vec<_>>().join(", "))
    }
}

pub const FIRST_QUESTION: &Question = &Question {
    text: "Is it harmless twice, if the second is told the answer of the first?",
    answers: &[('y', "yes", AfterAnswer::Take(&mechanism::ONCE)), ('n', "no", AfterAnswer::Ask(&ONE_ROW))],
};

const ONE_ROW: Question = Question {
    text: "Is the rule that only one such row may exist?",
    answers: &[('y', "yes", AfterAnswer::Take(&mechanism::UNIQUE)), ('n', "no", AfterAnswer::Ask(&ONE_DATABASE))],
};

const ONE_DATABASE: Question = Question {
    text: "Is all of it in one database, and done in less than a second?",
    answers: &[('y', "yes", AfterAnswer::Ask(&WRITERS_MEET)), ('n', "no", AfterAnswer::Ask(&WORK_TO_HAND_OUT))],
};

const WRITERS_MEET: Question = Question {
    text: "Do writers meet on a row?",
    answers: &[
        ('s', "seldom", AfterAnswer::Take(&mechanism::OPTIMISTIC)),
        ('o', "often, more than a quarter of them", AfterAnswer::Take(&mechanism::ROW)),
        ('x', "there is no row", AfterAnswer::Take(&mechanism::ADVISORY)),
    ],
};

const WORK_TO_HAND_OUT: Question = Question {
    text: "Is it work to hand out?",
    answers: &[
        ('a', "in any order", AfterAnswer::Take(&mechanism::QUEUE)),
        ('k', "in order for each thing", AfterAnswer::Take(&mechanism::QUEUE_BY_KEY)),
        ('c', "by the clock", AfterAnswer::Take(&mechanism::CRON)),
        ('n', "no", AfterAnswer::Ask(&ONLY_WASTE)),
    ],
};

const ONLY_WASTE: Question = Question {
    text: "If a second one is at work too, is that only waste?",
    answers: &[('y', "yes", AfterAnswer::Ask(&WHAT_WORK)), ('n', "no", AfterAnswer::Ask(&CAN_COMPARE))],
};

const WHAT_WORK: Question = Question {
    text: "What is it?",
    answers: &[
        ('c', "a value for a cache", AfterAnswer::Take(&mechanism::SINGLE_FLIGHT)),
        ('l', "one process of many that leads", AfterAnswer::Take(&mechanism::ELECTION)),
        ('j', "a job", AfterAnswer::Take(&mechanism::LEASE)),
    ],
};

const CAN_COMPARE: Question = Question {
    text: "Can the thing that is written to compare a number?",
    answers: &[('y', "yes", AfterAnswer::Take(&mechanism::FENCE)), ('n', "no", AfterAnswer::Take(&mechanism::GATE))],
};
