//! The arithmetic of majorities: how many must agree, for how long a grant may be believed, and when a vote is decided.
//! Nothing here asks a node or a clock.
//!
//! # Laws
//!
//! 1. Two majorities have a node in common.
//! 2. A validity is shorter than the life on every node that granted, as long as clocks differ by less than the drift.
//! 3. No time makes it panic or wrap: what does not fit is no validity.

use std::time::Duration;

use crate::engine::from_book::millis;

/// The shortest and the longest time that a node has for its vote.
const SHORTEST_NODE_LIMIT: Duration = Duration::from_millis(10);
const LONGEST_NODE_LIMIT: Duration = Duration::from_secs(1);

/// How votes are counted. It is data, so that tests can try rules that are wrong.
#[derive(Clone, Copy, Debug)]
pub(super) struct VoteRules {
    /// How many nodes there are, whether or not they can be asked.
    pub nodes: usize,
    /// How many must agree.
    pub quorum: usize,
    /// What is taken off a life of so many milliseconds, because clocks differ.
    pub drift_ms: fn(u64) -> u64,
}

impl VoteRules {
    pub const fn new(nodes: usize) -> Self {
        Self { nodes, quorum: nodes / 2 + 1, drift_ms }
    }

    /// So many refusals leave no majority.
    pub const fn blocking(&self) -> usize {
        self.nodes.saturating_sub(self.quorum) + 1
    }

    /// How long a grant for this life may be believed, when this much time has passed since before it was first sent.
    /// None if nothing is left.
    pub fn validity(&self, life_ms: u64, elapsed: Duration) -> Option<Duration> {
        let left = life_ms.checked_sub(millis(elapsed))?.checked_sub((self.drift_ms)(life_ms))?;
        (left > 0).then(|| Duration::from_millis(left))
    }

    /// A vote of which nothing is known yet, but for the nodes that are not asked.
    pub const fn begin(self, asked: usize) -> Tally {
        Tally { rules: self, yes: 0, no: 0, open: asked }
    }

    /// The end that a majority has in common: the quorum-th largest. None if fewer have one.
    pub fn common_end(&self, mut ends: Vec<u64>) -> Option<u64> {
        ends.sort_unstable_by(|a, b| b.cmp(a));
        ends.get(self.quorum.saturating_sub(1)).copied()
    }
}

/// What clocks may differ by over a life: one percent, and two milliseconds for their grain.
pub(super) const fn drift_ms(life_ms: u64) -> u64 {
    life_ms.div_ceil(100).saturating_add(2)
}

/// How long a node has for its vote. A slow node is not waited for: the time it takes is taken off the validity.
pub(super) fn node_limit(life_ms: u64) -> Duration {
    Duration::from_millis(life_ms / 20).clamp(SHORTEST_NODE_LIMIT, LONGEST_NODE_LIMIT)
}

/// A vote that is being counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tally {
    rules: VoteRules,
    yes: usize,
    no: usize,
    /// Asked, and not answered yet.
    open: usize,
}

/// What the votes so far come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Another vote can change it.
    Open,
    /// A majority agrees.
    Won,
    /// A majority answered, and there cannot be a majority that agrees.
    Refused,
    /// Too few answered.
    Unanswered,
}

/// One node's part in a vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vote {
    Yes,
    No,
    /// It did not answer, or its answer means nothing.
    Missing,
}

impl Tally {
    pub fn count(&mut self, vote: Vote) {
        self.open = self.open.saturating_sub(1);
        match vote {
            Vote::Yes => self.yes += 1,
            Vote::No => self.no += 1,
            Vote::Missing => {}
        }
    }

    /// What it comes to if nobody answers any more.
    pub fn closed(mut self) -> Decision {
        self.open = 0;
        self.decision()
    }

    /// How many said yes or no.
    pub const fn answered(&self) -> usize {
        self.yes + self.no
    }

    /// So many said no that the others are no majority.
    pub const fn is_blocked(&self) -> bool {
        self.no >= self.rules.blocking()
    }

    pub const fn decision(&self) -> Decision {
        let (quorum, blocking, answered) = (self.rules.quorum, self.rules.blocking(), self.answered());
        if self.yes >= quorum {
            return Decision::Won;
        }
        if self.is_blocked() || (self.yes + self.open < quorum && answered >= quorum) {
            return Decision::Refused;
        }
        if answered + self.open < quorum && self.no + self.open < blocking {
            return Decision::Unanswered;
        }
        Decision::Open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Goal: law 3. Method: the ends of every range, in every combination.
    #[test]
    fn no_time_makes_it_panic_or_wrap() {
        let rules = VoteRules::new(5);
        let lives = [0, 1, 2, 3, 4, 5, 99, 100, 101, 30_000, u64::from(u32::MAX), u64::MAX - 1, u64::MAX];
        let spans =
            [Duration::ZERO, Duration::from_nanos(1), MS, MS * 30_000, Duration::from_millis(u64::MAX), Duration::MAX];
        for life in lives {
            for span in spans {
                if let Some(validity) = rules.validity(life, span) {
                    assert!(validity <= Duration::from_millis(life) && !validity.is_zero());
                    assert!(validity.saturating_add(span) <= Duration::from_millis(life), "{life} {span:?}");
                }
            }
            assert!(node_limit(life) >= SHORTEST_NODE_LIMIT && node_limit(life) <= LONGEST_NODE_LIMIT);
        }
    }

    #[test]
    fn a_validity_is_what_is_left_of_the_life() {
        let rules = VoteRules::new(5);
        assert_eq!(rules.validity(30_000, MS * 100), Some(MS * (30_000 - 100 - 302)));
        assert_eq!(
            rules.validity(30_000, Duration::from_micros(100_001)),
            Some(MS * (30_000 - 101 - 302)),
            "rounded up"
        );
        assert_eq!(rules.validity(3, Duration::ZERO), None, "all of it is drift");
        assert_eq!(rules.validity(4, Duration::ZERO), Some(MS));
        assert_eq!(rules.validity(4, Duration::from_nanos(1)), None);
        assert_eq!(rules.validity(1000, MS * 1000), None);
        assert_eq!((drift_ms(1), drift_ms(100), drift_ms(101)), (3, 3, 4));
        assert_eq!([1, 1000, 40_000].map(node_limit), [MS * 10, MS * 50, MS * 1000]);
    }

    /// Goal: law 1. Method: every size up to a dozen.
    #[test]
    fn two_majorities_have_a_node_in_common() {
        for nodes in 1..=12 {
            assert!(VoteRules::new(nodes).quorum * 2 > nodes);
        }
        assert_eq!([1, 2, 3, 4, 5].map(|nodes| VoteRules::new(nodes).quorum), [1, 2, 2, 3, 3]);
    }

    #[test]
    fn the_common_end_is_the_one_that_a_majority_reaches() {
        let rules = VoteRules::new(5);
        assert_eq!(rules.common_end(vec![1, 9, 5, 7]), Some(5));
        assert_eq!(rules.common_end(vec![1, 9]), None);
    }

    /// Goal: a vote is decided as soon as no other vote can change it, and not before; and it is always decided once
    /// everybody answered. Method: every order of votes of up to seven nodes, some of them not asked.
    #[test]
    fn a_vote_is_decided_as_early_as_it_can_be() {
        for nodes in 1..=7_usize {
            for asked in 0..=nodes {
                for code in 0..3_usize.pow(u32::try_from(asked).expect("few")) {
                    let votes: Vec<Vote> = (0..asked)
                        .map(|at| {
                            [Vote::Yes, Vote::No, Vote::Missing]
                                [code / 3_usize.pow(u32::try_from(at).expect("few")) % 3]
                        })
                        .collect();
                    check_votes(nodes, &votes);
                }
            }
        }
    }

    fn check_votes(nodes: usize, votes: &[Vote]) {
        let rules = VoteRules::new(nodes);
        let mut tally = rules.begin(votes.len());
        let mut decided = tally.decision();
        for vote in votes {
            tally.count(*vote);
            let now = tally.decision();
            // Once it is won or refused it stays so, whoever answers later.
            if matches!(decided, Decision::Won | Decision::Refused | Decision::Unanswered) {
                assert_eq!(now, decided, "{votes:?} of {nodes}");
            }
            decided = now;
        }
        let (yes, no) =
            (votes.iter().filter(|v| **v == Vote::Yes).count(), votes.iter().filter(|v| **v == Vote::No).count());
        let expected = if yes >= rules.quorum {
            Decision::Won
        } else if no > nodes - rules.quorum || yes + no >= rules.quorum {
            Decision::Refused
        } else {
            Decision::Unanswered
        };
        assert_eq!(decided, expected, "{votes:?} of {nodes}");
        assert_eq!(tally.closed(), expected);
    }
}
