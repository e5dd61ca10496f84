//! The table of cases that every adapter of a fence passes: histories of writes to one resource, and what comes of each.
//!
//! An adapter that keeps its memory elsewhere, or checks in another language, must still give these answers.

use crate::Token;
use crate::fence::FenceRefusal;

/// An adapter, with one resource that nobody has written yet.
pub trait FenceSubject {
    /// Writes to the resource, showing this text; none: nothing is shown.
    fn write(&mut self, resource: &str, shown: Option<&str>) -> impl Future<Output = Result<(), FenceRefusal>>;
}

/// What must come of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Admitted,
    /// Presented and highest.
    Stale(u64, u64),
    OtherLease(u64),
    NoToken,
    Malformed,
    NotCovered,
}

use Expected::{Admitted, Malformed, NoToken, NotCovered, OtherLease, Stale};

/// A history of writes to one resource. In its texts, `@` stands for the name of the resource.
#[derive(Clone, Copy, Debug)]
pub struct FenceCase {
    /// What is tried.
    pub name: &'static str,
    steps: &'static [(Option<&'static str>, Expected)],
}

const A: &str = "41:aaaaaaaaaaaaaaaa";
const B: &str = "42:bbbbbbbbbbbbbbbb";
const OTHER_B: &str = "42:cccccccccccccccc";

const CASES: [FenceCase; 18] = [
    FenceCase { name: "the first token", steps: &[(Some(A), Admitted)] },
    FenceCase { name: "the same lease again", steps: &[(Some(A), Admitted), (Some(A), Admitted), (Some(A), Admitted)] },
    FenceCase { name: "a higher token", steps: &[(Some(A), Admitted), (Some(B), Admitted), (Some(B), Admitted)] },
    FenceCase {
        name: "a stale token, and the newest holder after it",
        steps: &[(Some(A), Admitted), (Some(B), Admitted), (Some(A), Stale(41, 42)), (Some(B), Admitted)],
    },
    FenceCase { name: "a stale token without a mark", steps: &[(Some(B), Admitted), (Some("41"), Stale(41, 42))] },
    FenceCase {
        name: "another lease with the same token",
        steps: &[(Some(B), Admitted), (Some(OTHER_B), OtherLease(42)), (Some(B), Admitted)],
    },
    FenceCase { name: "no mark where one is known", steps: &[(Some(B), Admitted), (Some("42"), OtherLease(42))] },
    FenceCase {
        name: "a mark where none is known",
        steps: &[(Some("42"), Admitted), (Some("42"), Admitted), (Some(B), Admitted), (Some(OTHER_B), OtherLease(42))],
    },
    FenceCase {
        name: "a mark is known after it was learned",
        steps: &[(Some("42"), Admitted), (Some(B), Admitted), (Some("42"), OtherLease(42))],
    },
    FenceCase { name: "nothing shown", steps: &[(None, NoToken), (Some(A), Admitted), (None, NoToken)] },
    FenceCase { name: "an empty text", steps: &[(Some(""), NoToken)] },
    FenceCase {
        name: "malformed texts",
        steps: &[
            (Some("0"), Malformed),
            (Some("042"), Malformed),
            (Some("-42"), Malformed),
            (Some("42:"), Malformed),
            (Some("42:BBBBBBBBBBBBBBBB"), Malformed),
            (Some("42:bbbbbbbbbbbbbbb"), Malformed),
            (Some("9223372036854775808"), Malformed),
            (Some("99999999999999999999"), Malformed),
            (Some("ada"), Malformed),
            (Some(A), Admitted),
        ],
    },
    FenceCase {
        name: "numbers are compared as numbers",
        steps: &[
            (Some("9"), Admitted),
            (Some("10"), Admitted),
            (Some("9"), Stale(9, 10)),
            (Some("9007199254740993"), Admitted),
            (Some("9007199254740992"), Stale(9_007_199_254_740_992, 9_007_199_254_740_993)),
            (Some("9223372036854775806:aaaaaaaaaaaaaaaa"), Admitted),
            (Some("9223372036854775807:bbbbbbbbbbbbbbbb"), Admitted),
            (Some("9223372036854775806:aaaaaaaaaaaaaaaa"), Stale(9_223_372_036_854_775_806, 9_223_372_036_854_775_807)),
        ],
    },
    FenceCase {
        name: "a scoped token",
        steps: &[
            (Some("41:aaaaaaaaaaaaaaaa\t@"), Admitted),
            (Some("41:aaaaaaaaaaaaaaaa\tsomething else\t@"), Admitted),
            (Some(A), Admitted),
            (Some("42:bbbbbbbbbbbbbbbb\t@"), Admitted),
            (Some("41:aaaaaaaaaaaaaaaa\t@"), Stale(41, 42)),
        ],
    },
    FenceCase {
        name: "a token for other resources",
        steps: &[
            (Some("1000:aaaaaaaaaaaaaaaa\tsomething else"), NotCovered),
            (Some("1000:aaaaaaaaaaaaaaaa\t@0"), NotCovered),
            (Some("1000:aaaaaaaaaaaaaaaa\tx@"), NotCovered),
            (Some("1000:aaaaaaaaaaaaaaaa\t"), NotCovered),
            (Some(B), Admitted),
        ],
    },
    FenceCase {
        name: "several leases: the first line that speaks counts",
        steps: &[
            (Some("99:aaaaaaaaaaaaaaaa\tsomething else\n42:bbbbbbbbbbbbbbbb\t@"), Admitted),
            (Some("41:aaaaaaaaaaaaaaaa\t@\n99:bbbbbbbbbbbbbbbb"), Stale(41, 42)),
            (Some("99:aaaaaaaaaaaaaaaa\tsomething else\n43:cccccccccccccccc"), Admitted),
            (Some("98:aaaaaaaaaaaaaaaa\tsomething else\n99:aaaaaaaaaaaaaaaa\tx"), NotCovered),
        ],
    },
    FenceCase {
        name: "a scoped token of another lease",
        steps: &[
            (Some("42:bbbbbbbbbbbbbbbb\t@"), Admitted),
            (Some("42:cccccccccccccccc\t@"), OtherLease(42)),
            (Some("42\t@"), OtherLease(42)),
            (Some("42:bbbbbbbbbbbbbbbb\t@"), Admitted),
        ],
    },
    FenceCase {
        name: "a refusal leaves no trace",
        steps: &[
            (Some(A), Admitted),
            (Some("40:dddddddddddddddd"), Stale(40, 41)),
            (Some("41:dddddddddddddddd"), OtherLease(41)),
            (None, NoToken),
            (Some("1e9"), Malformed),
            (Some(A), Admitted),
        ],
    },
];

/// Every case.
#[must_use]
pub fn all_cases() -> &'static [FenceCase] {
    &CASES
}

impl FenceCase {
    /// Plays the history to an adapter.
    ///
    /// # Panics
    ///
    /// If an answer is not as the table has it.
    pub async fn run(&self, resource: &str, subject: &mut impl FenceSubject) {
        for (at, (shown, expected)) in self.steps.iter().enumerate() {
            let shown = shown.map(|text| text.replace('@', resource));
            let answer = subject.write(resource, shown.as_deref()).await;
            let at = format!("{}: write {} showing {shown:?}", self.name, at + 1);
            assert_eq!(observed(&answer), *expected, "{at}: {answer:?}");
        }
    }
}

fn observed(answer: &Result<(), FenceRefusal>) -> Expected {
    match answer {
        Ok(()) => Admitted,
        Err(FenceRefusal::Stale { presented, highest, .. }) => Stale(presented.get(), highest.get()),
        Err(FenceRefusal::OtherLease { presented, .. }) => OtherLease(Token::get(*presented)),
        Err(FenceRefusal::NoToken { .. }) => NoToken,
        Err(FenceRefusal::Malformed) => Malformed,
        Err(FenceRefusal::NotCovered { .. }) => NotCovered,
        Err(other) => panic!("a write never gives {other:?}"),
    }
}
