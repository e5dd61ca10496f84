//! Schedules and decisions, without a clock.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use proptest::prelude::*;

use super::plan::{CronDecision, CronPolicy, LedgerView, decide};
use super::{CatchUp, ClockEffect, CronRun, CronSchedule, Overlap, RunState, Schedule, next_tick, rfc3339};
use crate::recipe::error::RecipeError;

const HOUR: Duration = Duration::from_secs(3600);

/// An instant from its text.
fn at(text: &str) -> SystemTime {
    let second = text.parse::<jiff::Timestamp>().unwrap().as_second();
    SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(second).unwrap())
}

fn ticks(fields: &str, zone: &str, after: &str, upto: &str) -> Vec<String> {
    let schedule = Schedule::parse(fields, zone).unwrap();
    schedule.ticks_between(at(after), at(upto), 100).into_iter().map(rfc3339).collect()
}

#[test]
fn five_fields_or_six_with_seconds_first() {
    let noon = ticks("0 12 * * 1-5", "UTC", "2026-11-20T12:00:00Z", "2026-11-24T00:00:00Z");
    assert_eq!(noon, ["2026-11-23T12:00:00Z"], "Friday noon is over, then comes Monday");
    let seconds = ticks("*/20 * * * * *", "UTC", "2026-11-20T12:00:00Z", "2026-11-20T12:01:00Z");
    assert_eq!(seconds, ["2026-11-20T12:00:20Z", "2026-11-20T12:00:40Z", "2026-11-20T12:01:00Z"]);
    let berlin = ticks("0 3 * * *", "Europe/Berlin", "2026-11-20T00:00:00Z", "2026-11-21T00:00:00Z");
    assert_eq!(berlin, ["2026-11-20T02:00:00Z"]);
}

/// Goal: what the ledger keeps is the same for the same schedule, and can be read again.
#[test]
fn the_text_of_a_schedule_is_read_again() {
    let schedule = Schedule::parse("  0   3 *  * mon ", "europe/berlin").unwrap();
    assert_eq!((schedule.spec(), schedule.zone()), ("0 3 * * MON Europe/Berlin", "Europe/Berlin"));
    assert_eq!(Schedule::from_spec(schedule.spec()).unwrap(), schedule);
    let six = Schedule::parse("30 0 3 * * *", "UTC").unwrap();
    assert_eq!(six.spec(), "30 0 3 * * * UTC");
    assert_eq!(next_tick(six.spec(), at("2026-11-20T03:00:29.999Z")).unwrap(), Some(at("2026-11-20T03:00:30Z")));
    assert_eq!(next_tick(six.spec(), at("2026-11-20T03:00:30Z")).unwrap(), Some(at("2026-11-21T03:00:30Z")));
    assert!(matches!(next_tick("gibberish", SystemTime::UNIX_EPOCH), Err(RecipeError::Invalid(_))));
    assert!(matches!(next_tick("", SystemTime::UNIX_EPOCH), Err(RecipeError::Invalid(_))));
}

#[test]
fn what_is_no_schedule_is_refused_with_a_sentence() {
    for (fields, zone, sentence) in [
        ("0 3 30 2 *", "UTC", "never comes"),
        ("0 0 31 4,6,9,11 *", "UTC", "never comes"),
        ("0 3 * *", "UTC", "this has 4"),
        ("0 0 3 * * * 2026", "UTC", "this has 7"),
        ("@daily", "UTC", "five fields"),
        ("@a b c d e", "UTC", "five fields"),
        ("61 3 * * *", "UTC", "61 3 * * *"),
        ("0 3 * * *", "Mars/Olympus", "no time zone"),
        ("0 3 * * *", "", "no time zone"),
        ("", "UTC", "this has 0"),
    ] {
        let said = Schedule::parse(fields, zone).unwrap_err().to_string();
        assert!(said.contains(sentence), "{fields} {zone}: {said}");
    }
    assert!(Schedule::parse("0 0 29 2 *", "UTC").is_ok(), "29 February comes");
    assert!(Schedule::parse("0 0 29 2 +1", "UTC").is_ok(), "on a Monday, too");
}

/// Goal: the table of the guide. Method: Berlin, where the clock goes forward on 28 March 2027 at 01:00 UTC and back on
/// 31 October 2027 at 01:00 UTC.
#[test]
fn summer_time_in_berlin() {
    let (spring, autumn) =
        (("2027-03-28T00:00:00Z", "2027-03-28T03:00:00Z"), ("2027-10-30T23:00:00Z", "2027-10-31T02:30:00Z"));
    let berlin = |fields: &str, span: (&str, &str)| ticks(fields, "Europe/Berlin", span.0, span.1);
    assert_eq!(berlin("30 2 * * *", spring), ["2027-03-28T01:00:00Z"], "one fixed time runs at 03:00");
    assert!(berlin("15,45 2 * * *", spring).is_empty(), "a list does not run");
    assert!(berlin("*/20 2 * * *", spring).is_empty(), "steps do not run");
    assert_eq!(berlin("30 2 * * *", autumn), ["2027-10-31T00:30:00Z"], "one fixed time runs once");
    let twice = ["2027-10-31T00:00:00Z", "2027-10-31T01:00:00Z", "2027-10-31T02:00:00Z"];
    assert_eq!(berlin("0 2,3 * * *", autumn), twice, "a list runs 02:00 twice");

    let changes = |fields: &str, zone: &str| {
        let schedule = Schedule::parse(fields, zone).unwrap();
        let found = schedule.clock_changes(at("2027-01-01T00:00:00Z"), at("2028-01-01T00:00:00Z"));
        found.into_iter().map(|change| (change.effect, change.to_string())).collect::<Vec<_>>()
    };
    let moved = "the clock is put forward: 2027-03-28 02:30:00 will run at 2027-03-28 03:00:00";
    assert_eq!(changes("30 2 * * *", "Europe/Berlin"), [(ClockEffect::Moved, moved.to_owned())]);
    let [(ClockEffect::NotRun, not_run), (ClockEffect::Twice, twice)] = &changes("*/5 2 * * *", "Europe/Berlin")[..]
    else {
        panic!("a step in the hour that is skipped and repeated")
    };
    assert!(not_run.contains("2027-03-28 02:00:00") && not_run.ends_with("and 6 more will not run"), "{not_run}");
    assert!(twice.contains("2027-10-31 02:00:00") && twice.ends_with("and 6 more will run twice"), "{twice}");
    for (fields, zone) in [("30 2 * * *", "UTC"), ("*/5 * * * *", "Europe/Berlin"), ("0 12 * * *", "Europe/Berlin")] {
        assert_eq!(changes(fields, zone), [], "{fields} {zone}");
    }
    // There the clock changes by half an hour, and every hour on the hour is not the same any more.
    assert!(!changes("0 * * * *", "Australia/Lord_Howe").is_empty());
}

fn policy(catch_up: CatchUp, overlap: Overlap, late: Option<Duration>) -> CronPolicy {
    CronPolicy { catch_up, overlap, late, on_time: Duration::from_secs(30), least_run: Duration::ZERO }
}

/// Goal: each policy on one gap. Method: hourly; the ticks since 03:00 were not begun, and it is five minutes past 06:00.
#[test]
fn a_gap_under_each_policy() {
    let schedule = Schedule::parse("0 * * * *", "UTC").unwrap();
    let view = LedgerView { settled: at("2026-11-20T03:00:00Z"), worked: None };
    let now = at("2026-11-20T06:05:00Z");
    let run = |catch_up, late, view: &LedgerView, overlap| match decide(
        &schedule,
        &policy(catch_up, overlap, late),
        view,
        now,
    ) {
        CronDecision::Run { tick, missed, .. } => Some((rfc3339(tick), missed.map_or(0, |missed| missed.count))),
        CronDecision::Sleep { until } => {
            assert_eq!(until, Some(at("2026-11-20T07:00:00Z")));
            None
        }
    };
    let newest = Some(("2026-11-20T06:00:00Z".to_owned(), 2));
    assert_eq!(run(CatchUp::Last, None, &view, Overlap::Skip), newest);
    assert_eq!(run(CatchUp::Last, Some(Duration::from_secs(299)), &view, Overlap::Skip), None, "too late");
    assert_eq!(run(CatchUp::None, None, &view, Overlap::Skip), None, "later than on time");
    assert_eq!(run(CatchUp::All, None, &view, Overlap::Skip), Some(("2026-11-20T04:00:00Z".into(), 0)));
    // The run of 03:00 was at work until 06:01.
    let busy = LedgerView { worked: Some((at("2026-11-20T03:00:00Z"), at("2026-11-20T06:01:00Z"))), ..view };
    assert_eq!(run(CatchUp::Last, None, &busy, Overlap::Skip), None, "it came while one ran");
    assert_eq!(run(CatchUp::Last, Some(Duration::ZERO), &busy, Overlap::Wait), newest, "it has waited");
    let short = CronPolicy { least_run: 2 * HOUR, ..policy(CatchUp::Last, Overlap::Replace, None) };
    assert!(matches!(decide(&schedule, &short, &view, now), CronDecision::Sleep { .. }), "no time before the next");
}

/// Goal: a tick that nobody began is overdue once it is too late to begin it; a run that ended settles what came before.
#[test]
fn a_tick_that_nobody_begins_is_overdue() {
    let hourly = CronSchedule {
        name: "report".into(),
        spec: "0 * * * * UTC".into(),
        last_tick: at("2026-11-20T03:00:00Z"),
        token: 1,
    };
    let run = |state, ended: Option<&str>| CronRun {
        tick: hourly.last_tick,
        upto: hourly.last_tick,
        ticks: 1,
        token: 1,
        state,
        machine: None,
        started_at: hourly.last_tick,
        ended_at: ended.map(at),
        code: None,
        tail: None,
    };
    let overdue = |last: Option<&CronRun>, now| hourly.overdue(last, at(now)).unwrap().map(|age| age.as_secs());
    assert_eq!(overdue(None, "2026-11-20T03:59:59Z"), None, "it has not come");
    assert_eq!(overdue(None, "2026-11-20T04:30:00Z"), None, "it may still be begun");
    assert_eq!(overdue(None, "2026-11-20T04:30:01Z"), Some(1801));
    let running = run(RunState::Running, None);
    assert_eq!(overdue(Some(&running), "2026-11-20T04:30:01Z"), Some(1801), "its machine may be dead");
    let long = run(RunState::Ok, Some("2026-11-20T05:10:00Z"));
    assert_eq!(overdue(Some(&long), "2026-11-20T06:30:00Z"), None, "04:00 and 05:00 came while it ran");
    assert_eq!(overdue(Some(&long), "2026-11-20T06:30:01Z"), Some(1801));
    let short = run(RunState::Failed, Some("2026-11-20T03:00:05Z"));
    assert_eq!(overdue(Some(&short), "2026-11-20T09:00:00Z"), Some(5 * 3600));
    let daily = CronSchedule { spec: "0 3 * * * UTC".into(), ..hourly.clone() };
    let late = |now| daily.overdue(None, at(now)).unwrap().is_some();
    assert!(!late("2026-11-21T04:00:00Z") && late("2026-11-21T04:00:01Z"), "an hour at most");
    let unknown = CronSchedule { spec: "gibberish".into(), ..hourly.clone() };
    assert!(matches!(unknown.overdue(None, at("2026-11-20T09:00:00Z")), Err(RecipeError::Invalid(_))));
}

/// Goal: `all` runs the newest hundred and no more.
#[test]
fn all_is_at_most_a_hundred() {
    let schedule = Schedule::parse("* * * * *", "UTC").unwrap();
    let all = policy(CatchUp::All, Overlap::Skip, None);
    let mut view = LedgerView { settled: at("2026-11-20T00:00:00Z"), worked: None };
    let now = at("2026-11-20T10:00:30Z");
    let (mut runs, mut missed_ticks) = (0, 0);
    while let CronDecision::Run { tick, missed, .. } = decide(&schedule, &all, &view, now) {
        runs += 1;
        missed_ticks += missed.map_or(0, |missed| missed.count);
        view.settled = tick;
    }
    assert_eq!((runs, missed_ticks), (100, 500));
}

fn any_field(values: std::ops::Range<u32>) -> impl Strategy<Value = String> {
    let one = values.clone().prop_map(|value| value.to_string());
    let list = proptest::collection::btree_set(values, 1..4)
        .prop_map(|set| set.iter().map(ToString::to_string).collect::<Vec<_>>().join(","));
    prop_oneof![3 => Just("*".to_owned()), 2 => one, 2 => list, 2 => (2..20u32).prop_map(|step| format!("*/{step}"))]
}

fn any_schedule() -> impl Strategy<Value = Schedule> {
    let zones = prop_oneof![
        Just("UTC"),
        Just("Europe/Berlin"),
        Just("America/New_York"),
        Just("Australia/Lord_Howe"),
        Just("Pacific/Chatham"),
        Just("Asia/Kathmandu"),
    ];
    let days = prop_oneof![4 => Just("*".to_owned()), 1 => Just("1-5".to_owned()), 1 => Just("0".to_owned())];
    (any_field(0..60), any_field(0..24), days, zones).prop_map(|(minute, hour, weekday, zone)| {
        Schedule::parse(&format!("{minute} {hour} * * {weekday}"), zone).unwrap()
    })
}

fn any_policy() -> impl Strategy<Value = CronPolicy> {
    let catch_up = prop_oneof![Just(CatchUp::Last), Just(CatchUp::None), Just(CatchUp::All)];
    let overlap = prop_oneof![Just(Overlap::Skip), Just(Overlap::Wait), Just(Overlap::Replace)];
    let late = proptest::option::of((1..7200u64).prop_map(Duration::from_secs));
    (catch_up, overlap, late).prop_map(|(catch_up, overlap, late)| policy(catch_up, overlap, late))
}

/// A moment in 2027, often close to a change of the clock in Berlin.
fn any_moment() -> impl Strategy<Value = SystemTime> {
    let year = (0..365 * 86_400_u64).prop_map(|seconds| at("2027-01-01T00:00:00Z") + Duration::from_secs(seconds));
    let near = |text: &'static str| {
        (0..86_400_u64).prop_map(move |seconds| at(text) - Duration::from_secs(43_200) + Duration::from_secs(seconds))
    };
    prop_oneof![year, near("2027-03-28T01:00:00Z"), near("2027-10-31T01:00:00Z"), near("2027-04-03T15:00:00Z")]
}

/// One step of a fleet: how long nobody looks, how long a run takes, whether its machine dies.
type Step = (u64, u64, bool);

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Goal: laws 1 and 2 of schedules: ticks rise, and both ways have the same ticks.
    #[test]
    fn both_ways_have_the_same_ticks(schedule in any_schedule(), moment in any_moment()) {
        let forward = schedule.ticks_between(moment, moment + 48 * HOUR, 200);
        prop_assert!(forward.is_sorted_by(|a, b| a < b));
        for pair in forward.windows(2).take(20) {
            prop_assert_eq!(schedule.last_before(pair[1]), Some(pair[0]));
            prop_assert_eq!(schedule.last_at(pair[1]), Some(pair[1]));
            let between = pair[0] + pair[1].duration_since(pair[0]).unwrap() / 2;
            prop_assert_eq!(schedule.last_at(between), Some(pair[0]));
            prop_assert_eq!(schedule.next_after(between), Some(pair[1]));
        }
    }

    /// Goal: whatever the policy, the gaps, the length of runs and the deaths: every tick from the first to the last is one run,
    /// or in one range of missed ticks.
    /// Method: a ledger that is a map, filled by the decisions; the ticks are counted apart.
    #[test]
    fn every_tick_is_run_or_missed_once(
        schedule in any_schedule(),
        policy in any_policy(),
        start in any_moment(),
        steps in proptest::collection::vec((0..5 * 3600_u64, 0..2 * 3600_u64, proptest::bool::weighted(0.2)), 1..25),
    ) {
        let mut ledger: BTreeMap<SystemTime, u32> = BTreeMap::new();
        let (mut now, mut view) = (start, LedgerView { settled: start, worked: None });
        for (gap, takes, dies) in steps as Vec<Step> {
            now += Duration::from_secs(gap);
            match decide(&schedule, &policy, &view, now) {
                CronDecision::Sleep { until } => prop_assert!(until.is_none_or(|until| until > now)),
                CronDecision::Run { tick, missed, next } => {
                    prop_assert!(tick > view.settled && tick <= now && next.is_none_or(|next| next > now));
                    let skipped = policy.overlap == Overlap::Skip
                        && view.worked.is_some_and(|(started, ended)| started <= tick && tick < ended);
                    prop_assert!(!skipped, "it came while one ran");
                    if policy.catch_up != CatchUp::All && policy.overlap == Overlap::Skip {
                        prop_assert!(now.duration_since(tick).unwrap() < policy.late_at(&schedule, tick), "too late");
                    }
                    if let Some(missed) = missed {
                        prop_assert!(view.settled < missed.from && missed.from <= missed.upto && missed.upto < tick);
                        for tick in schedule.ticks_between(missed.from - Duration::from_secs(1), missed.upto, usize::MAX) {
                            *ledger.entry(tick).or_default() += 1;
                        }
                        let counted = schedule.ticks_between(view.settled, missed.upto, usize::MAX).len();
                        prop_assert_eq!(missed.count as usize, counted);
                    }
                    *ledger.entry(tick).or_default() += 1;
                    let ended = now + Duration::from_secs(takes);
                    view = LedgerView { settled: tick, worked: (!dies).then_some((now, ended)) };
                    now = ended;
                }
            }
        }
        let last = ledger.last_key_value().map_or(start, |(tick, _)| *tick);
        let all = schedule.ticks_between(start, last, usize::MAX);
        prop_assert_eq!(ledger.keys().copied().collect::<Vec<_>>(), all);
        prop_assert!(ledger.values().all(|times| *times == 1), "{:?}", ledger);
    }
}
