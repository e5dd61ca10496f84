//! The deadlines of a supervised command: pure arithmetic on the end of the lease.
//!
//! ```text
//!   granted     renewal due        TERM             KILL   guard   valid_until
//!      ├────────────┼────────────────┼────────────────┼──────┼──────────┤
//!      0          ttl/3       end - max(grace, m)   end - m  end - m/2
//! ```
//!
//! # Laws
//!
//! 1. `ttl > grace + ttl/3`: a lease that is renewed in time never reaches its TERM.
//! 2. KILL comes a margin before the end, so the group is dead before the lease can be granted again. The guard process
//!    kills in the middle of that margin, if `run` did not.

use std::time::Duration;

use leasehold::Time;

use leasehold_support::duration::human;

/// The maximum margin: a signal and a wake-up need time on a busy machine.
const MAX_KILL_MARGIN: Duration = Duration::from_millis(250);

/// The deadlines, as durations before the end of the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunPlan {
    ttl: Duration,
    grace: Duration,
    margin: Duration,
}

impl RunPlan {
    /// A plan that leaves a command its grace.
    ///
    /// # Errors
    ///
    /// A sentence, when law 1 cannot be kept.
    pub fn new(ttl: Duration, grace: Duration, max_hold: Option<Duration>) -> Result<Self, String> {
        if ttl.is_zero() {
            return Err("--ttl is not zero: say e.g. --ttl 30s".into());
        }
        let least = grace.saturating_add(ttl / 3);
        if ttl <= least {
            return Err(format!(
                "--ttl {} must exceed --grace {} plus a third of the ttl: give at least --ttl {} or a shorter --grace",
                human(ttl),
                human(grace),
                human(grace.saturating_mul(3) / 2 + Duration::from_millis(1)),
            ));
        }
        if let Some(max_hold) = max_hold.filter(|max_hold| *max_hold <= grace) {
            return Err(format!(
                "--max-hold {} must exceed --grace {}, or the command would be stopped as soon as it starts",
                human(max_hold),
                human(grace),
            ));
        }
        Ok(Self { ttl, grace, margin: MAX_KILL_MARGIN.min(ttl / 10) })
    }

    /// How long the command may take after TERM.
    pub fn grace(&self) -> Duration {
        self.grace
    }

    /// When to send TERM to the group.
    pub fn term_at(&self, valid_until: Time) -> Time {
        before(valid_until, self.grace.max(self.margin))
    }

    /// When to kill the group.
    pub fn kill_at(&self, valid_until: Time) -> Time {
        before(valid_until, self.margin)
    }

    /// When the guard kills the group, because `run` did not.
    pub fn guard_at(&self, valid_until: Time) -> Time {
        before(valid_until, self.margin / 2)
    }

    /// How often to check whether a renewal moved the end, so that the guard knows long before the old end.
    pub fn check_interval(&self) -> Duration {
        self.ttl / 6
    }
}

fn before(at: Time, span: Duration) -> Time {
    let span = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    Time::from_nanos(at.as_nanos().saturating_sub(span))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn term_comes_a_grace_before_the_end_and_kill_a_margin() {
        let plan = RunPlan::new(ms(30_000), ms(5_000), None).unwrap();
        let end = Time::from_millis(100_000);
        assert_eq!(plan.term_at(end), Time::from_millis(95_000));
        assert_eq!(plan.kill_at(end), Time::from_millis(99_750));
        assert_eq!(plan.guard_at(end), Time::from_millis(99_875));
    }

    #[test]
    fn without_grace_term_and_kill_come_together() {
        let plan = RunPlan::new(ms(1_000), ms(0), None).unwrap();
        let end = Time::from_millis(10_000);
        assert_eq!(plan.term_at(end), Time::from_millis(9_900));
        assert_eq!(plan.kill_at(end), Time::from_millis(9_900));
    }

    #[test]
    fn a_ttl_that_leaves_no_time_for_the_grace_is_refused() {
        for (ttl, grace, fits) in [
            (30_000, 5_000, true),
            (7_500, 5_000, false),
            (7_501, 5_000, true),
            (1, 0, true),
            (0, 0, false),
            (5_000, u64::MAX, false),
        ] {
            assert_eq!(RunPlan::new(ms(ttl), ms(grace), None).is_ok(), fits, "ttl {ttl}, grace {grace}");
        }
        let sentence = RunPlan::new(ms(5_000), ms(5_000), None).unwrap_err();
        assert!(sentence.contains("--ttl 7s501ms"), "{sentence}");
    }

    #[test]
    fn a_cap_shorter_than_the_grace_is_refused() {
        assert!(RunPlan::new(ms(30_000), ms(5_000), Some(ms(5_000))).is_err());
        assert!(RunPlan::new(ms(30_000), ms(5_000), Some(ms(5_001))).is_ok());
    }

    /// Goal: law 1: a lease renewed every third of its ttl never reaches its TERM.
    #[test]
    fn a_lease_renewed_in_time_is_never_near_its_term() {
        for ttl in [100, 1_000, 7_501, 30_000, 86_400_000_u64] {
            let grace = if ttl > 7_500 { 5_000 } else { ttl / 2 };
            let plan = RunPlan::new(ms(ttl), ms(grace), None).unwrap();
            let end = Time::from_millis(ttl);
            assert!(plan.term_at(end) > Time::from_millis(ttl / 3), "ttl {ttl}");
            assert!(plan.kill_at(end) < end, "ttl {ttl}");
        }
    }
}
