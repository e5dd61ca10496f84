//! Random operations: an engine in real time against the book, answer by answer.
//!
//! The book is asked at the moment at which the engine is asked. Nothing is asked close to a moment at which something ends:
//! the trial waits until both have noticed. Ends are kept apart from each other for the same reason, and a trial ends early
//! where the machine was too slow to compare.
//!
//! # Laws
//!
//! 1. Every answer is the book's, in kind and in its numbers; spans are the book's within the slack.
//! 2. Whoever waits is answered when the book answers, and not before.
//! 3. A token is above all that were told before it was asked for.
//! 4. What is shown of a name is what the book shows.
//! 5. Nothing is left over at the end.

mod answers;
mod operations;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Book, Command, Effect, LeaseKey, Limits, Reply, Time, WaiterId};
use tokio::task::JoinHandle;

use super::draw::SeededRandom;
use crate::clock::{Clock as _, SystemClock, until};
use crate::engine::{Claim, Engine, Grant};
use crate::error::Error;

/// Nothing is asked when something ends within this span.
const GUARD: Duration = Duration::from_millis(400);
/// How long an engine has to notice that something ended.
const NOTICED_AFTER: Duration = Duration::from_millis(120);
/// Two ends are so far apart.
const SEPARATION: Duration = Duration::from_millis(800);
/// An answer that is due comes within this span, and so does what is shown.
const ANSWER_WITHIN: Duration = Duration::from_secs(8);
/// How often a view that differs is read again.
const READ_AGAIN_EVERY: Duration = Duration::from_millis(3);
/// A trial ends after so long, since engines forget endings.
const LONGEST_TRIAL: Duration = Duration::from_secs(45);

/// How one trial is run.
#[derive(Clone, Copy, Debug)]
pub struct DifferentialSettings {
    /// What is asked, and in which order.
    pub seed: u64,
    /// How many operations.
    pub operations: usize,
    /// How far spans may be off, beside a thousandth of them: engines allow for clocks of other rates.
    pub slack: Duration,
    /// Calls go to several engines in turn: a request that waits is not repeated, and no cap ends a lease, since through
    /// another process both are known less exactly.
    pub is_fleet: bool,
}

/// What happened in trials: an empty one proves nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DifferentialCounts {
    /// Operations asked.
    pub operations: usize,
    /// Claims granted.
    pub grants: usize,
    /// Of them, after a wait.
    pub granted_late: usize,
    /// Requests that were answered as before.
    pub repeats: usize,
    /// Claims refused because somebody has it.
    pub held: usize,
    /// Answers to owners that their lease has ended or is not known.
    pub stale: usize,
    /// Moments at which something ended by time.
    pub ends: usize,
    /// Trials that came to an end early: an answer took so long that something ended meanwhile.
    pub too_slow: usize,
}

impl DifferentialCounts {
    /// Adds another trial's.
    pub fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.grants += other.grants;
        self.granted_late += other.granted_late;
        self.repeats += other.repeats;
        self.held += other.held;
        self.stale += other.stale;
        self.ends += other.ends;
        self.too_slow += other.too_slow;
    }
}

/// Why a trial did not come to its end.
enum Divergence {
    /// An answer took so long that something ended meanwhile: there is nothing to compare.
    TooSlow,
    /// The two differ, with everything that was asked before.
    Differs(String),
}

type Compared = Result<(), Divergence>;

/// Asks an engine that nobody else uses, and the book, the same.
///
/// # Errors
///
/// If they differ: how, with everything that was asked before.
pub async fn compare_with_book(
    engine: Arc<dyn Engine>,
    settings: DifferentialSettings,
) -> Result<DifferentialCounts, String> {
    let mut book = Book::new(Limits::default(), settings.seed);
    book.set_ceiling(u64::MAX);
    let mut trial = BookTrial {
        engine,
        settings,
        clock: SystemClock,
        // Seeds that follow each other must not draw the same numbers one place on.
        random: SeededRandom(settings.seed << 32),
        book,
        calls: Vec::new(),
        ends: Vec::new(),
        quiet_until: Time::NEVER,
        counts: DifferentialCounts::default(),
        log: vec![format!("seed {}", settings.seed)],
    };
    match trial.play_to_the_end().await {
        Ok(()) => Ok(trial.counts),
        // What was compared before counts.
        Err(Divergence::TooSlow) => Ok(DifferentialCounts { too_slow: 1, ..trial.counts }),
        Err(Divergence::Differs(what)) => Err(what),
    }
}

enum FuzzCallState {
    Waiting(JoinHandle<Result<Grant, Error>>),
    Granted { key: LeaseKey, grant: Grant },
    Over,
}

/// One acquire, and what became of it.
struct FuzzCall {
    claim: Claim,
    waiter_id: WaiterId,
    state: FuzzCallState,
    /// It ends by time within the trial.
    is_short: bool,
    /// Its owner was told that it has ended.
    is_over: bool,
}

struct BookTrial {
    engine: Arc<dyn Engine>,
    settings: DifferentialSettings,
    clock: SystemClock,
    random: SeededRandom,
    book: Book,
    calls: Vec<FuzzCall>,
    /// Moments at which something may end.
    ends: Vec<Time>,
    /// Nothing ends before this moment.
    quiet_until: Time,
    counts: DifferentialCounts,
    log: Vec<String>,
}

impl BookTrial {
    async fn play_to_the_end(&mut self) -> Compared {
        self.play().await?;
        self.finish().await
    }

    async fn play(&mut self) -> Compared {
        let end = self.clock.now().plus(LONGEST_TRIAL);
        for _ in 0..self.settings.operations {
            if self.clock.now() > end {
                break;
            }
            self.settle().await?;
            self.play_one().await?;
            self.counts.operations += 1;
            if self.random.one_in(2) {
                self.settle().await?;
                self.compare_views().await?;
            }
        }
        self.settle().await
    }

    /// A span that ends apart from all others, as long as this one or longer. `then`: something else ends so much later.
    fn reserve(&mut self, mut span: Duration, then: Duration) -> Duration {
        let now = self.clock.now();
        self.ends.retain(|end| end.plus(SEPARATION) > now);
        let is_apart = |ends: &[Time], at: Time| {
            ends.iter().all(|end| end.since(at) >= SEPARATION || at.since(*end) >= SEPARATION)
        };
        while !is_apart(&self.ends, now.plus(span)) || !is_apart(&self.ends, now.plus(span + then)) {
            span += SEPARATION / 4;
        }
        self.ends.extend([now.plus(span), now.plus(span + then)]);
        span
    }

    fn note(&mut self, line: impl fmt::Display) {
        self.log.push(format!("{:>12} {line}", self.clock.now().as_nanos() / 1_000));
    }

    fn differs(&self, what: impl fmt::Display) -> Divergence {
        Divergence::Differs(format!("{what}\n{}", self.log.join("\n")))
    }

    fn apply(&mut self, command: Command<'_>, now: Time) -> (Reply, Vec<Effect>) {
        let outcome = self.book.apply(command, now);
        drop(self.book.take_tape(Vec::new()));
        (outcome.reply, outcome.effects)
    }

    /// Waits until nothing is about to end, and both have noticed what has.
    async fn settle(&mut self) -> Compared {
        loop {
            let now = self.clock.now();
            let Some(at) = self.book.next_expiry() else {
                self.quiet_until = Time::NEVER;
                return Ok(());
            };
            if at > now.plus(GUARD) {
                self.quiet_until = at;
                return Ok(());
            }
            let mut effects = Vec::new();
            // The book notices it when it is due: what it then grants, the engine grants a moment later.
            loop {
                let (reply, more) = self.apply(Command::Tick { budget: 64 }, at);
                effects.extend(more);
                if reply == Reply::Ticked(false) {
                    break;
                }
            }
            self.note("something ends");
            self.counts.ends += 1;
            self.clock.sleep_until(at.plus(NOTICED_AFTER)).await;
            self.quiet_until = self.book.next_expiry().unwrap_or(Time::NEVER);
            self.finish_waiting(effects).await?;
            self.compare_views().await?;
        }
    }

    /// Says whether what was just asked can be compared.
    fn is_quick(&self) -> Compared {
        if self.clock.now() >= self.quiet_until { Err(Divergence::TooSlow) } else { Ok(()) }
    }

    async fn in_time<T>(&self, answer: impl Future<Output = T> + Send) -> Result<T, Divergence> {
        let answer = until(&self.clock, self.clock.now().plus(ANSWER_WITHIN), answer).await;
        answer.ok_or_else(|| self.differs("no answer"))
    }

    /// Those whom the book has answered are answered by the engine, and nobody else.
    async fn finish_waiting(&mut self, effects: Vec<Effect>) -> Compared {
        for effect in effects {
            let found = self.calls.iter().position(|call| call.waiter_id == effect.waiter_id);
            let at = found.ok_or_else(|| self.differs("the book answers nobody"))?;
            let state = std::mem::replace(&mut self.calls[at].state, FuzzCallState::Over);
            let FuzzCallState::Waiting(task) = state else {
                return Err(self.differs("the book answers a call again"));
            };
            let label = self.calls[at].claim.holder.clone();
            self.note(format_args!("{label}: {:?}", effect.reply));
            let answer = self.in_time(task).await?.map_err(|panic| self.differs(panic))?;
            self.compare_acquired(at, &effect.reply, answer, None)?;
            self.counts.granted_late += usize::from(matches!(effect.reply, Reply::Granted(_)));
        }
        let early = self
            .calls
            .iter()
            .position(|call| matches!(&call.state, FuzzCallState::Waiting(task) if task.is_finished()));
        if let Some(at) = early {
            self.is_quick()?;
            let state = std::mem::replace(&mut self.calls[at].state, FuzzCallState::Over);
            let FuzzCallState::Waiting(task) = state else { return Ok(()) };
            let label = self.calls[at].claim.holder.clone();
            return Err(self.differs(format_args!("{label} waits in the book, and was answered: {:?}", task.await)));
        }
        Ok(())
    }

    /// Ends everything, and sees that nothing is left.
    async fn finish(&mut self) -> Compared {
        for at in 0..self.calls.len() {
            self.settle().await?;
            self.cancel(at).await?;
        }
        for at in 0..self.calls.len() {
            self.settle().await?;
            self.release(at, false).await?;
        }
        while self.book.next_expiry().is_some_and(|at| at < self.clock.now().plus(ANSWER_WITHIN)) {
            let next = self.book.next_expiry().unwrap_or(Time::ZERO);
            self.clock.sleep_until(next).await;
            self.settle().await?;
        }
        self.compare_views().await?;
        let left = self.read_list().await?;
        if left.is_empty() { Ok(()) } else { Err(self.differs(format_args!("left over: {left:?}"))) }
    }
}
