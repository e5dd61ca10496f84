//! The runner of schedules in one process: what it begins, what it tells, and what it refuses.
//!
//! The wall clock of a runner is set by hand. The clock of the ledger is the machine's: so ticks are of the past.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // real stores live in real time

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use leasehold::Leasehold;
use leasehold::clock::SystemClock;
use leasehold::recipe::Store;
use leasehold::recipe::cron::{
    CatchUp, CronError, CronLook, CronNotice, CronRunner, CronTurn, RunState, Schedule, rfc3339,
};
use leasehold::testkit::{EngineCall, EngineFault, FlakyEngine};
use leasehold_harness::redlock::RedisNodes;
use tokio_util::sync::CancellationToken;

const MINUTE: Duration = Duration::from_secs(60);
/// Longer than anything here should take, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

struct Scene {
    _dir: tempfile::TempDir,
    flaky: Arc<FlakyEngine>,
    leasehold: Leasehold,
    store: Store,
    told: Arc<Mutex<Vec<String>>>,
    /// The wall clock of the runners.
    wall: Arc<Mutex<SystemTime>>,
    stop: CancellationToken,
}

impl Scene {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let inner = Leasehold::open(&format!("embedded:{}", dir.path().display())).await.unwrap();
        let flaky = Arc::new(FlakyEngine::new(inner.engine().clone()));
        let leasehold = Leasehold::with_engine(flaky.clone(), SystemClock::shared());
        let store = Store::open(&format!("sqlite:{}/recipes.db", dir.path().display())).await.unwrap();
        let (told, stop) = (Arc::default(), CancellationToken::new());
        // Yesterday, at the full hour.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let wall = Arc::new(Mutex::new(SystemTime::UNIX_EPOCH + Duration::from_secs((now / 86_400 - 1) * 86_400)));
        Self { _dir: dir, flaky, leasehold, store, told, wall, stop }
    }

    fn runner(&self, fields: &str) -> CronRunner {
        self.runner_on(&self.leasehold, fields)
    }

    fn runner_on(&self, leasehold: &Leasehold, fields: &str) -> CronRunner {
        let (told, wall) = (self.told.clone(), self.wall.clone());
        let schedule = Schedule::parse(fields, "UTC").unwrap();
        CronRunner::new(leasehold, &self.store, "report", schedule)
            .wall_clock(move || *wall.lock().unwrap())
            .on_notice(move |notice| told.lock().unwrap().push(word(notice)))
    }

    fn pass(&self, span: Duration) {
        *self.wall.lock().unwrap() += span;
    }

    async fn run(&self, runner: &mut CronRunner) -> CronTurn {
        match runner.run_now(&self.stop).await.unwrap() {
            CronLook::Turn(turn) => *turn,
            other => panic!("{other:?}"),
        }
    }

    /// Begins, finishes and releases one run.
    async fn run_whole(&self, runner: &mut CronRunner) -> String {
        let turn = self.run(runner).await;
        assert!(turn.finish(0, "").await.unwrap());
        let tick = rfc3339(turn.tick());
        drop(turn.into_lease());
        self.leasehold.revoke("cron/report", "the test releases it").await.unwrap();
        tick
    }

    fn told(&self) -> Vec<String> {
        std::mem::take(&mut *self.told.lock().unwrap())
    }

    async fn rows(&self) -> Vec<(u32, RunState)> {
        let mut runs = self.store.cron_runs("report", 100).await.unwrap();
        runs.reverse();
        runs.iter().map(|run| (run.ticks, run.state)).collect()
    }
}

fn word(notice: &CronNotice<'_>) -> String {
    match notice {
        CronNotice::Trouble(CronError::Lease(_)) => "engine away".into(),
        CronNotice::Trouble(CronError::Ledger(_)) => "store away".into(),
        CronNotice::NoTokens { engine } => format!("no tokens on {engine}"),
        CronNotice::ClockAhead { .. } => "clock ahead".into(),
        CronNotice::Lost(_) => "lost".into(),
        CronNotice::Missed(missed) => format!("missed {}", missed.count),
        CronNotice::Skipped(skipped) => format!("skipped {}", skipped.count),
        other => format!("{other:?}"),
    }
}

/// Goal: a tick is begun once by many runners, a gap is told, and a run without an end is lost.
#[tokio::test]
async fn a_runner_begins_what_is_due() {
    let scene = Scene::new().await;
    let (mut ada, mut bob) = (scene.runner("* * * * *"), scene.runner("* * * * *"));
    let first = scene.run_whole(&mut ada).await;
    assert!(matches!(bob.run_now(&scene.stop).await.unwrap(), CronLook::Taken { .. }), "ada has run it");
    scene.pass(MINUTE);
    let at_work = scene.run(&mut bob).await;
    assert!(rfc3339(at_work.tick()) > first);
    assert!(at_work.lease().token().is_some() && at_work.lease().resources() == ["cron/report"]);
    assert!(matches!(ada.run_now(&scene.stop).await.unwrap(), CronLook::Taken { .. }), "bob is at work");
    assert_eq!(scene.told(), Vec::<String>::new());
    // Bob dies, and three minutes pass.
    drop(at_work);
    scene.leasehold.revoke("cron/report", "bob is dead").await.unwrap();
    scene.pass(3 * MINUTE);
    let next = scene.run(&mut ada).await;
    assert_eq!(scene.told(), ["lost", "skipped 2"]);
    assert!(next.lost().is_some() && next.skipped().is_some_and(|skipped| skipped.count == 2));
    assert_eq!(next.missed(), None);
    assert!(next.finish(3, "last words").await.unwrap() && !next.finish(0, "").await.unwrap());
    // Skipped, not missed: to the ledger, the first run ended today, and these ticks are of yesterday.
    let expected = [(1, RunState::Ok), (1, RunState::Lost), (2, RunState::Skipped), (1, RunState::Failed)];
    assert_eq!(scene.rows().await, expected);
}

/// Goal: a gap that a run ended in is cut at its end: what came before it is skipped, what came after it is missed.
/// Method: a schedule of every second. The run of four seconds ago ends now; the next is begun with a clock four seconds ahead,
/// which the ledger still takes.
#[tokio::test]
async fn a_gap_is_cut_where_the_run_ended() {
    let scene = Scene::new().await;
    let mut runner = scene.runner("* * * * * *").late(MINUTE);
    *scene.wall.lock().unwrap() = SystemTime::now() - Duration::from_secs(4);
    scene.run_whole(&mut runner).await;
    *scene.wall.lock().unwrap() = SystemTime::now() + Duration::from_secs(4);
    let next = scene.run(&mut runner).await;
    let mut rows = scene.store.cron_runs("report", 10).await.unwrap();
    rows.reverse();
    let states: Vec<RunState> = rows.iter().map(|row| row.state).collect();
    assert_eq!(states, [RunState::Ok, RunState::Skipped, RunState::Missed, RunState::Running]);
    let ended = rows[0].ended_at.unwrap();
    assert!(rows[1].upto < ended && ended <= rows[2].tick, "{rows:?}");
    assert_eq!(rows[2].tick, rows[1].upto + Duration::from_secs(1));
    assert_eq!(scene.told(), [format!("skipped {}", rows[1].ticks), format!("missed {}", rows[2].ticks)]);
    let ranges = [next.skipped(), next.missed()].map(|range| range.unwrap().count);
    assert_eq!(ranges, [rows[1].ticks, rows[2].ticks]);
}

/// Goal: with the policy `skip`, a tick that came during a run is not begun even if the run ends while the lease is asked for.
/// Method: ada reads that bob is at work, and her claim hangs on its way to the engine. Bob finishes and releases.
#[tokio::test]
async fn a_run_that_ends_while_its_lease_is_asked_for_was_in_the_way() {
    let scene = Scene::new().await;
    let runner = || scene.runner("* * * * * *").late(MINUTE).wall_clock(SystemTime::now);
    let (mut ada, mut bob) = (runner(), runner());
    let at_work = scene.run(&mut bob).await;
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let before = scene.flaky.calls(EngineCall::Acquire);
    scene.flaky.spoil(EngineCall::Acquire, EngineFault::HangBefore, 1);
    let end = async {
        while scene.flaky.calls(EngineCall::Acquire) == before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(at_work.finish(0, "").await.unwrap());
        assert!(leasehold::recipe::LeaseKind::end(at_work.into_lease()).await.unwrap());
        scene.flaky.resume();
    };
    let (looked, ()) = tokio::join!(ada.run_now(&scene.stop), end);
    assert!(matches!(looked.unwrap(), CronLook::Taken { .. }), "it came while bob was at work");
    assert_eq!(scene.rows().await, [(1, RunState::Ok)]);
    assert!(scene.leasehold.inspect("cron/report").await.unwrap().is_none_or(|seen| seen.holders.is_empty()));
}

/// Goal: a machine whose clock is ahead begins nothing, and says so.
#[tokio::test]
async fn a_clock_that_is_ahead_is_told() {
    let scene = Scene::new().await;
    *scene.wall.lock().unwrap() = SystemTime::now() + 10 * MINUTE;
    let mut runner = scene.runner("* * * * *").late(MINUTE);
    assert!(matches!(runner.run_now(&scene.stop).await.unwrap(), CronLook::Taken { .. }));
    assert_eq!(scene.told(), ["clock ahead"]);
    assert_eq!(scene.rows().await, []);
    assert!(scene.leasehold.inspect("cron/report").await.unwrap().is_none_or(|seen| seen.holders.is_empty()));
}

/// Goal: an engine that is away is told and asked again; what it granted without an answer is not run.
#[tokio::test]
async fn an_engine_that_is_away_ends_nothing() {
    let scene = Scene::new().await;
    let mut runner = scene.runner("* * * * *").ttl(Duration::from_secs(1));
    scene.flaky.spoil(EngineCall::Acquire, EngineFault::Unavailable, 1);
    assert!(matches!(runner.run_now(&scene.stop).await, Err(CronError::Lease(leasehold::Error::Unavailable { .. }))));
    scene.run_whole(&mut runner).await;
    // The same for one that waits for ticks, on the clock of the machine.
    let wall = SystemTime::now;
    let mut runner =
        scene.runner("* * * * * *").late(PATIENCE).ttl(Duration::from_secs(1)).wall_clock(wall).change(true);
    scene.flaky.spoil(EngineCall::Acquire, EngineFault::Unavailable, 1);
    scene.flaky.spoil(EngineCall::Acquire, EngineFault::Indeterminate, 1);
    let turn = tokio::time::timeout(PATIENCE, runner.next_run(&scene.stop)).await.unwrap().unwrap().unwrap();
    let told = scene.told();
    assert!(told.iter().filter(|told| *told == "engine away").count() >= 2, "{told:?}");
    assert!(turn.finish(0, "").await.unwrap());
}

/// Goal: another schedule under the name is refused, and replaced on request; the ticks of the new one count from then on.
#[tokio::test]
async fn another_schedule_is_refused_unless_it_replaces() {
    let scene = Scene::new().await;
    scene.run_whole(&mut scene.runner("*/10 * * * *")).await;
    scene.pass(60 * MINUTE);
    let mut other = scene.runner("* * * * *");
    let refused = other.run_now(&scene.stop).await.unwrap_err();
    assert!(
        matches!(&refused, CronError::Ledger(error) if error.to_string().contains("*/10 * * * * UTC")),
        "{refused:?}"
    );
    let mut other = scene.runner("* * * * *").change(true);
    scene.run_whole(&mut other).await;
    assert_eq!(scene.rows().await, [(1, RunState::Ok), (1, RunState::Ok)], "nothing of the new one was missed before");
    assert!(scene.runner("*/10 * * * *").run_now(&scene.stop).await.is_err(), "the old one ends");
}

/// Goal: on an engine without tokens each tick is still begun once, and that is told once.
#[tokio::test]
async fn an_engine_without_tokens_is_told_once() {
    let scene = Scene::new().await;
    let nodes = RedisNodes::start(3, &[]);
    let redlock = Leasehold::open(&nodes.url("?quarantine=6s")).await.unwrap();
    let mut runner = scene.runner_on(&redlock, "* * * * *").ttl(Duration::from_secs(5));
    // Nodes that have just started do not vote yet.
    let end = Instant::now() + PATIENCE;
    while let Err(error) = redlock.acquire("other").ttl(Duration::from_secs(1)).grant().await {
        assert!(Instant::now() < end, "{error}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    for _ in 0..3 {
        let turn = scene.run(&mut runner).await;
        assert!(turn.lease().token().is_none());
        assert!(turn.finish(0, "").await.unwrap());
        assert!(leasehold::recipe::LeaseKind::end(turn.into_lease()).await.unwrap());
        assert!(matches!(runner.run_now(&scene.stop).await.unwrap(), CronLook::Taken { .. }));
        scene.pass(MINUTE);
    }
    assert_eq!(scene.told(), ["no tokens on redlock"]);
    assert_eq!(scene.rows().await, [(1, RunState::Ok); 3]);
}

/// Goal: a Rust program runs schedules: work that fails is failed, work that loses its lease is cut off, and a stop ends it.
#[tokio::test]
async fn work_is_done_until_the_stop() {
    let scene = Scene::new().await;
    let mut runner = scene
        .runner("* * * * * *")
        .wall_clock(SystemTime::now)
        .catch_up(CatchUp::All)
        .late(PATIENCE)
        .ttl(Duration::from_secs(2))
        .jitter(Duration::ZERO);
    let count = Mutex::new(0);
    let work = async |_: Arc<CronTurn>| {
        let number = {
            let mut count = count.lock().unwrap();
            *count += 1;
            *count
        };
        match number {
            1 => Err("it rained"),
            2 => {
                scene.leasehold.revoke("cron/report", "test").await.unwrap();
                std::future::pending().await
            }
            3 => Ok(()),
            _ => {
                scene.stop.cancel();
                Ok(())
            }
        }
    };
    tokio::time::timeout(PATIENCE, runner.run_until(&scene.stop, work)).await.unwrap().unwrap();
    let rows: Vec<RunState> = scene.rows().await.into_iter().map(|(_, state)| state).collect();
    let runs: Vec<RunState> =
        rows.into_iter().filter(|state| !matches!(state, RunState::Skipped | RunState::Missed)).collect();
    assert_eq!(runs, [RunState::Failed, RunState::Failed, RunState::Ok, RunState::Ok]);
    let first = scene.store.cron_runs("report", 100).await.unwrap().pop().unwrap();
    assert_eq!(first.tail.as_deref(), Some("it rained"));
    assert!(runner.next_run(&scene.stop).await.unwrap().is_none(), "it was stopped");
}

/// Goal: without a ledger the lease of a tick decides, and stays.
#[tokio::test]
async fn a_lease_for_each_tick() {
    let scene = Scene::new().await;
    let wall = scene.wall.clone();
    let runner = || {
        let (wall, schedule) = (wall.clone(), Schedule::parse("* * * * *", "UTC").unwrap());
        CronRunner::at_most_once(&scene.leasehold, "report", schedule).wall_clock(move || *wall.lock().unwrap())
    };
    let (mut ada, mut bob) = (runner(), runner());
    let turn = scene.run(&mut ada).await;
    assert!(turn.keeps_lease() && turn.finish(0, "").await.unwrap());
    let resource = format!("cron/report@{}", rfc3339(turn.tick()));
    assert_eq!(turn.lease().resources(), std::slice::from_ref(&resource));
    drop(turn);
    assert!(!scene.leasehold.inspect(&resource).await.unwrap().unwrap().holders.is_empty(), "it stays");
    assert!(matches!(bob.run_now(&scene.stop).await.unwrap(), CronLook::Taken { .. }));
    assert!(matches!(ada.run_now(&scene.stop).await.unwrap(), CronLook::Taken { .. }));
    scene.pass(MINUTE);
    let _turn = scene.run(&mut bob).await;
    assert!(matches!(ada.run_now(&scene.stop).await.unwrap(), CronLook::Taken { .. }));
    assert_eq!(scene.rows().await, []);
}
