//! The ledger of scheduled runs, on a real PostgreSQL and in a file of SQLite.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stdout)] // real servers live in real time

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use leasehold::Token;
use leasehold::recipe::cron::{CronBegun, CronRecorded, CronRun, CronStart, MissedTicks, RunState};
use leasehold::recipe::{RecipeError, Store};
use leasehold_harness::postgres::Cluster;

const PERIOD: Duration = Duration::from_secs(60);

/// A store of each kind, with what keeps it.
async fn both() -> (Cluster, tempfile::TempDir, [Store; 2]) {
    let (cluster, dir) = (Cluster::start(&[]), tempfile::tempdir().unwrap());
    let postgres = Store::open(&cluster.url("postgres")).await.unwrap();
    let sqlite = Store::open(&format!("sqlite:{}", dir.path().join("recipes.db").display())).await.unwrap();
    (cluster, dir, [postgres, sqlite])
}

/// The n-th tick of a schedule that began a day ago.
fn tick(n: u32) -> SystemTime {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let midnight = SystemTime::UNIX_EPOCH + Duration::from_secs((now / 86_400 - 1) * 86_400);
    midnight + PERIOD * n
}

/// A machine that saw nothing before.
fn start(name: &str, at: u32, token: u64) -> CronStart {
    let (spec, machine) = ("* * * * * UTC".to_owned(), "m1".to_owned());
    let token = Token::new(token);
    CronStart { name: name.into(), tick: tick(at), token, machine, spec, seen: None, missed: Vec::new() }
}

/// A machine that saw this tick last.
fn start_after(seen: u32, name: &str, at: u32, token: u64) -> CronStart {
    CronStart { seen: Some(tick(seen)), ..start(name, at, token) }
}

fn first(token: i64) -> CronBegun {
    first_after(token, 0, 0, 0)
}

/// The first, and what was recorded about the ticks and runs before it.
fn first_after(token: i64, skipped: u32, missed: u32, lost: u32) -> CronBegun {
    CronBegun::First { token, recorded: CronRecorded { skipped, missed, lost } }
}

async fn states(store: &Store, name: &str) -> Vec<(SystemTime, u32, RunState)> {
    let mut runs = store.cron_runs(name, 1000).await.unwrap();
    runs.reverse();
    runs.iter().map(|run| (run.tick, run.ticks, run.state)).collect()
}

/// Goal: a tick is begun once, and ended by its own token only.
#[tokio::test]
async fn a_tick_is_begun_once() {
    let (_cluster, _dir, stores) = both().await;
    for store in &stores {
        assert_eq!(store.cron_schedule("report").await.unwrap(), None);
        assert_eq!(store.cron_begin(&start("report", 1, 5)).await.unwrap(), first(5));
        assert_eq!(store.cron_begin(&start("report", 1, 6)).await.unwrap(), CronBegun::Done);
        assert_eq!(store.cron_begin(&start("report", 0, 6)).await.unwrap(), CronBegun::Done);
        assert!(!store.cron_finish("report", tick(1), 6, 0, "").await.unwrap(), "not its token");
        assert!(!store.cron_finish("report", tick(2), 5, 0, "").await.unwrap(), "not its tick");
        let tail = format!("{}\0last words", "é".repeat(5000));
        assert!(store.cron_finish("report", tick(1), 5, 3, &tail).await.unwrap());
        assert!(!store.cron_finish("report", tick(1), 5, 0, "").await.unwrap(), "it has ended");
        let runs = store.cron_runs("report", 10).await.unwrap();
        let [CronRun { state: RunState::Failed, code: Some(3), tail: Some(tail), machine: Some(machine), .. }] =
            &runs[..]
        else {
            panic!("{runs:?}")
        };
        assert!(tail.ends_with(" last words") && tail.chars().count() == 4000 && machine == "m1");
        let schedule = store.cron_schedule("report").await.unwrap().unwrap();
        assert_eq!((schedule.last_tick, schedule.token, schedule.spec.as_str()), (tick(1), 5, "* * * * * UTC"));
        // Another name is another schedule.
        assert_eq!(store.cron_begin(&start("other", 1, 1)).await.unwrap(), first(1));
    }
}

/// Goal: a machine with a lower token is told to stop, and a run under a lower token is lost: reported, not repeated.
#[tokio::test]
async fn a_dead_run_is_lost_and_a_late_machine_is_stale() {
    let (_cluster, _dir, stores) = both().await;
    for store in &stores {
        assert_eq!(store.cron_begin(&start("report", 1, 5)).await.unwrap(), first(5));
        assert_eq!(store.cron_begin(&start_after(1, "report", 2, 8)).await.unwrap(), first_after(8, 0, 0, 1));
        assert_eq!(store.cron_begin(&start_after(2, "report", 3, 7)).await.unwrap(), CronBegun::Stale);
        // Seen before tick 2 was begun, or before any was: nothing is begun, and no tick is passed over.
        assert_eq!(store.cron_begin(&start_after(1, "report", 4, 9)).await.unwrap(), CronBegun::Again);
        assert_eq!(store.cron_begin(&start("report", 4, 9)).await.unwrap(), CronBegun::Again);
        assert!(!store.cron_finish("report", tick(1), 5, 0, "").await.unwrap(), "it was lost");
        assert!(store.cron_finish("report", tick(2), 8, 0, "").await.unwrap());
        let expected = [(tick(1), 1, RunState::Lost), (tick(2), 1, RunState::Ok)];
        assert_eq!(states(store, "report").await, expected);
    }
}

/// Goal: the history of a schedule does not grow for ever: its newest 10,000 rows are kept, of any state, and a run that is at
/// work. Other schedules keep theirs.
/// Method: 10,150 old runs, and one that is at work under a higher token than that of the next; each begin removes 100 at most.
#[tokio::test]
async fn the_oldest_rows_of_a_long_history_go() {
    let (cluster, dir, stores) = both().await;
    let old = "SELECT n, date, date, 1, state, date, date FROM";
    let postgres = format!(
        "INSERT INTO leasehold.run (name, tick, upto, token, state, started_at, ended_at) {old} unnest(ARRAY['report', 'other']) n,
            LATERAL (SELECT i, to_timestamp(i) AS date, CASE WHEN i = 1 THEN 'running' ELSE 'missed' END AS state
                FROM generate_series(1, 10150) i) x; UPDATE leasehold.run SET token = 99 WHERE state = 'running'"
    );
    cluster.execute("postgres", &postgres).await;
    let sqlite = format!(
        "WITH RECURSIVE x (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM x WHERE i < 10150)
        INSERT INTO leasehold_run (name, tick, upto, token, state, started_at, ended_at) {old}
            (SELECT 'report' AS n UNION ALL SELECT 'other'),
            (SELECT i * 1000 AS date, iif(i = 1, 'running', 'missed') AS state FROM x);
        UPDATE leasehold_run SET token = 99 WHERE state = 'running'"
    );
    rusqlite::Connection::open(dir.path().join("recipes.db")).unwrap().execute_batch(&sqlite).unwrap();
    for store in &stores {
        assert_eq!(store.cron_begin(&start("report", 1, 5)).await.unwrap(), first(5));
        let rows = async |name| store.cron_runs(name, 20_000).await.unwrap();
        assert_eq!(rows("report").await.len(), 10_051, "a begin does not remove them all at once");
        assert!(store.cron_finish("report", tick(1), 5, 0, "").await.unwrap());
        assert_eq!(store.cron_begin(&start_after(1, "report", 2, 6)).await.unwrap(), first(6));
        let left = rows("report").await;
        assert_eq!(left.len(), 10_001, "the newest, and the one at work");
        let oldest: Vec<RunState> = left[9_999..].iter().map(|run| run.state).collect();
        assert_eq!(oldest, [RunState::Missed, RunState::Running]);
        assert_eq!((left[0].tick, left[1].tick), (tick(2), tick(1)));
        assert_eq!(rows("other").await.len(), 10_150);
    }
}

/// Goal: a schedule that was given up is forgotten with its runs, and may begin anew. Others stay.
#[tokio::test]
async fn a_schedule_that_was_given_up_is_removed() {
    let (_cluster, _dir, stores) = both().await;
    for store in &stores {
        for name in ["report", "other"] {
            assert_eq!(store.cron_begin(&start(name, 1, 5)).await.unwrap(), first(5));
        }
        assert!(store.cron_remove("report").await.unwrap());
        assert_eq!(store.cron_schedule("report").await.unwrap(), None);
        assert_eq!(states(store, "report").await, []);
        assert!(!store.cron_remove("report").await.unwrap(), "there is none");
        assert_eq!(states(store, "other").await.len(), 1);
        assert_eq!(store.cron_begin(&start("report", 1, 1)).await.unwrap(), first(1));
    }
}

/// Goal: ticks that nobody began are skipped where a run was in the way, missed otherwise.
#[tokio::test]
async fn ticks_in_between_are_missed_or_skipped() {
    let (_cluster, _dir, stores) = both().await;
    for store in &stores {
        let missed = |from, upto, count| vec![MissedTicks { from: tick(from), upto: tick(upto), count }];
        assert_eq!(store.cron_begin(&start("report", 1, 5)).await.unwrap(), first(5));
        // It ends now, which is long after the ticks 2 to 4.
        assert!(store.cron_finish("report", tick(1), 5, 0, "").await.unwrap());
        let late = CronStart { missed: missed(2, 4, 3), ..start_after(1, "report", 5, 6) };
        assert_eq!(store.cron_begin(&late).await.unwrap(), first_after(6, 3, 0, 0));
        assert_eq!(store.cron_begin(&late).await.unwrap(), CronBegun::Done, "and the range is not recorded twice");
        let after = CronStart { missed: missed(6, 6, 1), ..start("dead", 7, 7) };
        assert_eq!(store.cron_begin(&after).await.unwrap(), first_after(7, 0, 1, 0));
        let expected = [(tick(1), 1, RunState::Ok), (tick(2), 3, RunState::Skipped), (tick(5), 1, RunState::Running)];
        assert_eq!(states(store, "report").await, expected);
        assert_eq!(states(store, "dead").await, [(tick(6), 1, RunState::Missed), (tick(7), 1, RunState::Running)]);
    }
}

/// Goal: of a gap that a run ended in, the ticks up to its end are skipped and those after it are missed: two rows. A range
/// that was not cut there is missed: a tick that nobody was in the way of is never told as skipped.
/// Method: ticks of seconds around now, because the ledger's clock says when the run ended.
#[tokio::test]
async fn a_gap_that_a_run_ended_in_is_two_rows() {
    let (_cluster, _dir, stores) = both().await;
    for store in &stores {
        for (name, cut) in [("cut", true), ("whole", false)] {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
            let second = |n: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(now - 600 + n);
            let [ran, before, still_before, after, last, next] = [0, 1, 300, 602, 603, 604].map(second);
            let first_run = CronStart { tick: ran, ..start(name, 0, 5) };
            assert_eq!(store.cron_begin(&first_run).await.unwrap(), first(5));
            assert!(store.cron_finish(name, ran, 5, 0, "").await.unwrap());
            let missed = if cut {
                let skipped = MissedTicks { from: before, upto: still_before, count: 300 };
                vec![skipped, MissedTicks { from: after, upto: last, count: 2 }]
            } else {
                vec![MissedTicks { from: before, upto: last, count: 302 }]
            };
            let begun = store.cron_begin(&CronStart { tick: next, missed, seen: Some(ran), ..start(name, 0, 6) }).await;
            let rows = states(store, name).await;
            if cut {
                assert_eq!(begun.unwrap(), first_after(6, 300, 2, 0));
                assert_eq!(rows[1..3], [(before, 300, RunState::Skipped), (after, 2, RunState::Missed)]);
            } else {
                assert_eq!(begun.unwrap(), first_after(6, 0, 302, 0));
                assert_eq!(rows[1..2], [(before, 302, RunState::Missed)]);
            }
        }
    }
}

/// Goal: a machine whose clock is ahead begins nothing; an engine without tokens gets one of the store.
#[tokio::test]
async fn early_ticks_wait_and_a_store_gives_tokens() {
    let (_cluster, _dir, stores) = both().await;
    for store in &stores {
        let soon =
            |seconds| CronStart { tick: SystemTime::now() + Duration::from_secs(seconds), ..start("report", 0, 9) };
        assert_eq!(store.cron_begin(&soon(60)).await.unwrap(), CronBegun::Early);
        assert!(states(store, "report").await.is_empty());
        assert_eq!(store.cron_begin(&soon(3)).await.unwrap(), first(9));
        let mut last = 0;
        for at in 1..4 {
            let seen = (at > 1).then(|| tick(at - 1));
            let begun = store.cron_begin(&CronStart { token: None, seen, ..start("without", at, 1) }).await.unwrap();
            let CronBegun::First { token, .. } = begun else { panic!("{begun:?}") };
            assert!(token > last);
            assert!(store.cron_finish("without", tick(at), token, 0, "").await.unwrap());
            last = token;
        }
        let one = |at, count| MissedTicks { from: tick(at), upto: tick(at), count };
        for bad in [
            CronStart { name: "x".repeat(129), ..start("x", 1, 1) },
            CronStart { spec: String::new(), ..start("x", 1, 1) },
            CronStart { missed: vec![one(1, 1)], ..start("x", 1, 1) },
            CronStart { missed: vec![one(0, 0)], ..start("x", 1, 1) },
            CronStart { missed: vec![one(3, 1), one(2, 1)], ..start("x", 5, 1) },
            CronStart { missed: vec![one(2, 1), one(2, 1)], ..start("x", 5, 1) },
            CronStart { missed: vec![one(1, 1), one(2, 1), one(3, 1)], ..start("x", 5, 1) },
        ] {
            assert!(matches!(store.cron_begin(&bad).await, Err(RecipeError::Invalid(_))), "{bad:?}");
        }
    }
}

/// xorshift64*: the same numbers for the same seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound
    }
}

/// A machine of the fleet: it looks at the ledger, waits a random while (another may begin meanwhile), and begins the newest
/// tick there is. It may die in between, and come back with an old token.
async fn run_fleet(store: &Store, name: &str, dice: &mut Dice, tokens: bool) -> BTreeMap<u32, u32> {
    let mut begun: BTreeMap<u32, u32> = BTreeMap::new();
    let mut looked: Vec<(u32, Option<u32>, u64)> = Vec::new();
    let (mut now, mut next_token) = (1, 1);
    let number = |at: SystemTime| u32::try_from(at.duration_since(tick(0)).unwrap().as_secs() / 60).unwrap();
    for _ in 0..80 {
        match dice.below(5) {
            0 => now += 1 + u32::try_from(dice.below(3)).unwrap(),
            1 | 2 => {
                let last = store.cron_schedule(name).await.unwrap().map(|schedule| number(schedule.last_tick));
                looked.push((now, last, next_token));
                next_token += 1;
            }
            _ if looked.is_empty() => {}
            _ => {
                // Not always the newest look: a machine that was paused begins with what it knew.
                let at = dice.below(looked.len() as u64) as usize;
                let (this, last, token) = looked.swap_remove(at);
                let missed = last.filter(|last| last + 1 < this).map(|last| MissedTicks {
                    from: tick(last + 1),
                    upto: tick(this - 1),
                    count: this - 1 - last,
                });
                let missed = missed.into_iter().collect();
                let token = if tokens { Token::new(token) } else { None };
                let order = CronStart { missed, token, seen: last.map(tick), ..start(name, this, 1) };
                match store.cron_begin(&order).await.unwrap() {
                    CronBegun::First { token, .. } => {
                        *begun.entry(this).or_default() += 1;
                        // Some machines die here.
                        if dice.below(3) > 0 {
                            let _ = store.cron_finish(name, tick(this), token, 0, "").await.unwrap();
                        }
                    }
                    CronBegun::Done | CronBegun::Stale | CronBegun::Again => {}
                    CronBegun::Early => panic!("it was yesterday"),
                }
            }
        }
    }
    begun
}

/// Goal: whatever machines do and whenever they die, every tick from the first to the last is in the ledger exactly once, and
/// none ran twice. Method: every other run is on an engine without tokens.
#[tokio::test]
async fn every_tick_is_in_the_ledger_once() {
    let (_cluster, _dir, stores) = both().await;
    let runs = std::env::var("LEASEHOLD_CRON_RUNS").ok().and_then(|text| text.parse().ok()).unwrap_or(15_u64);
    for store in &stores {
        let mut states_seen: BTreeMap<&str, usize> = BTreeMap::new();
        for seed in 1..=runs {
            let name = format!("fleet-{seed}");
            let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let begun = run_fleet(store, &name, &mut dice, seed % 2 == 0).await;
            assert!(begun.values().all(|times| *times == 1), "{begun:?}");
            let rows = states(store, &name).await;
            let mut next = rows.first().map(|(at, ..)| *at).unwrap_or_else(|| tick(0));
            for (at, ticks, state) in &rows {
                assert_eq!(*at, next, "seed {seed}: a tick is missing or comes twice: {rows:?}");
                next = *at + PERIOD * *ticks;
                *states_seen.entry(state.as_str()).or_default() += 1;
            }
            let run =
                rows.iter().filter(|(_, _, state)| !matches!(state, RunState::Missed | RunState::Skipped)).count();
            assert_eq!(run, begun.len());
        }
        println!("{} runs: {states_seen:?}", runs);
        assert!(states_seen.contains_key("ok") && states_seen.contains_key("lost"));
    }
}
