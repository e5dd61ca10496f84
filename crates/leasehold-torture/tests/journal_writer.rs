//! The journal writer under real threads: server threads that write their own batches, callers, and the writer thread.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

use leasehold::clock::SystemClock;
use leasehold::engine::embedded::journal::frame::FrameKind;
use leasehold::engine::embedded::storage::Storage;
use leasehold::engine::embedded::{CompletionQueue, Embedded, Notice, Options, Stopped, start};
use leasehold::engine::{Claim, Engine, LeaseId, Query, Want as EngineWant};
use leasehold_core::{Acquire, Command, LeaseKey, Reply, WaiterId, Want};
use leasehold_torture::disk::{Faults, SimDisk};
use leasehold_torture::rng::Rng;

/// How long anything may take before it counts as lost: machines pause.
const MAX_REPLY_WAIT: Duration = Duration::from_secs(30);

/// A server thread: its completion queue, and a condition variable that is notified when replies were added.
struct ServerThread {
    engine: Arc<Embedded>,
    completions: Arc<CompletionQueue>,
    wakeup: Arc<(Mutex<bool>, Condvar)>,
    next_tag: u64,
}

impl ServerThread {
    fn new(engine: &Arc<Embedded>) -> Self {
        let wakeup = Arc::new((Mutex::new(false), Condvar::new()));
        let notify = wakeup.clone();
        let completions = CompletionQueue::new(move || {
            *notify.0.lock().expect("nobody panics with the lock") = true;
            notify.1.notify_all();
        });
        Self { engine: engine.clone(), completions, wakeup, next_tag: 0 }
    }

    /// Submits these, writes or leaves it to the writer thread, and waits until each has one answer.
    fn ask(&mut self, commands: &[ServerCommand], write: bool) -> Vec<Result<Reply, Stopped>> {
        let first = self.next_tag;
        self.next_tag += commands.len() as u64;
        let mut answers: BTreeMap<u64, Result<Reply, Stopped>> = BTreeMap::new();
        let mut locked = self.engine.lock_for_batch();
        for (tag, job) in (first..).zip(commands) {
            let answer = match job {
                ServerCommand::Take { name, wait_ms } => {
                    let wants = [Want::exclusive(name)];
                    let claim = claim(&wants, *wait_ms, locked.secret());
                    locked.acquire(claim, &self.completions, tag).map(|(reply, _)| reply)
                }
                ServerCommand::End(lease) => locked.submit(Command::Release { lease: *lease }, &self.completions, tag),
            };
            match answer {
                Ok(Some(reply)) => drop(answers.insert(tag, Ok(reply))),
                Ok(None) => {}
                Err(stopped) => drop(answers.insert(tag, Err(stopped))),
            }
        }
        if write {
            locked.write();
        } else {
            drop(locked);
        }
        self.collect(&mut answers, first, commands.len());
        answers.into_values().collect()
    }

    fn collect(&self, answers: &mut BTreeMap<u64, Result<Reply, Stopped>>, first: u64, count: usize) {
        let mut taken = Vec::new();
        loop {
            self.completions.take(&mut taken);
            for (tag, answer) in taken.drain(..) {
                assert!(
                    (first..first + count as u64).contains(&tag),
                    "an answer to what was answered: {tag} {answer:?}"
                );
                assert!(answers.insert(tag, answer).is_none(), "{tag} is answered twice");
            }
            if answers.len() == count {
                return;
            }
            let woken = self.wakeup.0.lock().expect("nobody panics with the lock");
            let (mut woken, late) = self
                .wakeup
                .1
                .wait_timeout_while(woken, MAX_REPLY_WAIT, |woken| !*woken)
                .expect("nobody panics with the lock");
            assert!(!late.timed_out(), "{} of {count} answers came", answers.len());
            *woken = false;
        }
    }
}

enum ServerCommand {
    Take { name: String, wait_ms: u64 },
    End(LeaseKey),
}

fn claim<'a>(wants: &'a [Want<'a>], wait_ms: u64, secret: leasehold_core::Secret) -> Acquire<'a> {
    Acquire { wait_ms, ..Acquire::new(WaiterId(0), wants, 3_600_000, "teller", secret) }
}

/// What one thread was answered: leases it holds, every token it got, and whether the engine stopped.
#[derive(Default)]
struct ThreadLog {
    held: HashMap<String, LeaseKey>,
    /// An answer never came for these: they may be held or free.
    unsure: HashSet<String>,
    tokens: Vec<u64>,
    answered: u64,
    stopped: bool,
}

/// Takes and ends leases under names of its own until `rounds` are over or the engine has stopped.
fn run_server_thread(engine: &Arc<Embedded>, me: u64, rounds: u64) -> ThreadLog {
    let mut server = ServerThread::new(engine);
    let mut rng = Rng::new(me);
    let mut log = ThreadLog::default();
    for _ in 0..rounds {
        let mut jobs = Vec::new();
        let mut names: Vec<String> = Vec::new();
        for _ in 0..1 + rng.below(6) {
            let name = format!("t{me}/{}", rng.below(12));
            if names.contains(&name) || log.unsure.contains(&name) {
                continue;
            }
            jobs.push(match log.held.get(&name) {
                Some(lease) => ServerCommand::End(*lease),
                None => ServerCommand::Take { name: name.clone(), wait_ms: 0 },
            });
            names.push(name);
        }
        let answers = server.ask(&jobs, !rng.one_in(4));
        assert_eq!(answers.len(), names.len());
        for (name, answer) in names.into_iter().zip(answers) {
            match answer {
                Ok(Reply::Granted(granted)) => {
                    assert!(!log.stopped, "a grant after the engine had stopped");
                    assert!(log.tokens.last().is_none_or(|last| *last < granted.lease.token.get()), "tokens rise");
                    log.tokens.push(granted.lease.token.get());
                    log.held.insert(name, granted.lease);
                }
                Ok(Reply::Released(true)) => drop(log.held.remove(&name)),
                Ok(other) => panic!("{name} is mine alone, and the answer is {other:?}"),
                Err(Stopped::NoEffect(_)) => log.stopped = true,
                Err(Stopped::Unknown(_)) => {
                    log.stopped = true;
                    log.held.remove(&name);
                    log.unsure.insert(name);
                }
            }
            log.answered += 1;
        }
        if log.stopped {
            break;
        }
    }
    log
}

/// The same by the engine's own methods.
async fn call(engine: Arc<Embedded>, me: u64, rounds: u64) -> ThreadLog {
    let mut rng = Rng::new(me);
    let mut log = ThreadLog::default();
    let mut held: HashMap<String, (LeaseId, u64)> = HashMap::new();
    for _ in 0..rounds {
        let name = format!("c{me}/{}", rng.below(8));
        let result = match held.remove(&name) {
            Some((lease, token)) => match engine.release(&lease).await {
                Ok(first) => {
                    assert!(first, "{name} is mine alone");
                    Ok(())
                }
                Err(error) => {
                    if !matches!(error, leasehold::Error::Indeterminate { .. }) {
                        held.insert(name.clone(), (lease, token));
                    }
                    Err(error)
                }
            },
            None => engine.acquire(asked(&name)).await.map(|grant| {
                let token = grant.token.expect("fencing").get();
                log.tokens.push(token);
                held.insert(name.clone(), (grant.lease_id, token));
            }),
        };
        log.answered += 1;
        match result {
            Ok(()) => {}
            Err(leasehold::Error::Indeterminate { .. }) => {
                log.unsure.insert(name);
                break;
            }
            Err(leasehold::Error::Unavailable { .. }) => break,
            Err(other) => panic!("{name} is mine alone, and the answer is {other:?}"),
        }
    }
    for (name, (lease, _)) in held {
        log.held.insert(name, lease.expose().parse().expect("the text form of a lease id"));
    }
    log
}

fn asked(name: &str) -> Claim {
    Claim::new(vec![EngineWant::exclusive(name)], Duration::from_secs(3_600), "caller")
}

async fn found(engine: &Embedded) -> BTreeMap<String, u64> {
    let query = Query { prefix: String::new(), after: None, limit: usize::MAX };
    let all = engine.list(query).await.expect("a listing");
    all.into_iter().map(|r| (r.name, r.holders[0].token.expect("fencing").get())).collect()
}

/// All threads at once; their logs, added up.
async fn crowd(engine: &Arc<Embedded>, rounds: u64, seed: u64) -> ThreadLog {
    let tellers: Vec<_> = (0..3)
        .map(|me| {
            let engine = engine.clone();
            std::thread::spawn(move || run_server_thread(&engine, seed * 100 + me, rounds))
        })
        .collect();
    let callers: Vec<_> = (0..4).map(|me| tokio::spawn(call(engine.clone(), seed * 100 + 50 + me, rounds))).collect();
    let mut all = ThreadLog::default();
    let mut add = |log: ThreadLog| {
        all.held.extend(log.held);
        all.unsure.extend(log.unsure);
        all.tokens.extend(log.tokens);
        all.answered += log.answered;
    };
    for caller in callers {
        add(caller.await.expect("a caller does not panic"));
    }
    for server in tellers {
        let log = tokio::task::spawn_blocking(move || server.join()).await.expect("joined");
        add(log.expect("a teller does not panic"));
    }
    all
}

/// What was answered is there, and nothing else but what was never answered.
fn compare(log: &ThreadLog, found: &BTreeMap<String, u64>) {
    for (name, lease) in &log.held {
        assert_eq!(found.get(name), Some(&lease.token.get()), "{name} was granted");
    }
    for name in found.keys() {
        assert!(log.held.contains_key(name) || log.unsure.contains(name), "{name} was ended, or never granted");
    }
    let unique: HashSet<&u64> = log.tokens.iter().collect();
    assert_eq!(unique.len(), log.tokens.len(), "a token came twice");
}

/// Goal: server threads, callers and the writer thread at once lose nothing, answer nothing twice, and give no token
/// twice. Method: three server threads and four callers on a real disk; close, open, compare; again in the same
/// directory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everybody_at_once_on_a_real_disk() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let mut tokens: HashSet<u64> = HashSet::new();
    for life in 0..3 {
        let engine = Embedded::open(dir.path(), Options::default()).await.expect("opens");
        let before = found(&engine).await;
        let log = crowd(&engine, 150, life).await;
        assert!(log.answered > 1_000, "too little happened: {}", log.answered);
        assert!(log.tokens.iter().all(|token| tokens.insert(*token)), "a token came in two lives");
        engine.close().await.expect("closes");
        let again = Embedded::open(dir.path(), Options::default()).await.expect("opens again");
        let mut after = found(&again).await;
        after.retain(|name, _| !before.contains_key(name));
        compare(&log, &after);
        again.close().await.expect("closes");
    }
}

fn with_notices() -> (Options, mpsc::Receiver<Notice>) {
    let (to, notices) = mpsc::channel();
    let to = Mutex::new(to);
    let notice = move |notice| drop(to.lock().expect("nobody panics with it").send(notice));
    (Options { notices: Arc::new(notice), ..Options::default() }, notices)
}

fn failed(notices: &mpsc::Receiver<Notice>) -> bool {
    std::iter::from_fn(|| notices.recv_timeout(MAX_REPLY_WAIT).ok()).any(|notice| matches!(notice, Notice::Failed(_)))
}

/// Goal: a disk that fails under a server thread's own write stops the engine: that batch is unknown, later commands
/// and waiting claims have no effect, the operator gets a notice, and nothing is written afterwards.
#[tokio::test]
async fn a_disk_that_fails_under_a_server_thread_stops_the_engine() {
    for fail_sync in [true, false] {
        let disk = SimDisk::default();
        let storage: Arc<dyn Storage> = Arc::new(disk.clone());
        let (options, notices) = with_notices();
        let engine = Embedded::open_on(storage, options).await.expect("opens");
        let mut server = ServerThread::new(&engine);
        let take = |name: &str, wait_ms| ServerCommand::Take { name: name.into(), wait_ms };
        let answers = server.ask(&[take("before", 0)], true);
        assert!(matches!(answers[..], [Ok(Reply::Granted(_))]), "{answers:?}");
        let mut watch = engine.watch(None).await.expect("a watch");
        assert!(matches!(watch.next().await, Ok(leasehold::engine::Seen::Reset(_))));
        let waiter = engine.clone();
        let patient = Claim { wait: Duration::from_secs(600), ..asked("before") };
        let waiter = tokio::spawn(async move { waiter.acquire(patient).await });
        while engine.counts().await.expect("counts").waiters == 0 {
            tokio::task::yield_now().await;
        }
        disk.set_faults(Faults { fail_sync, fail_write: !fail_sync, crash_in: None });
        let answers = server.ask(&[take("lost", 0), take("before", 0)], true);
        assert!(matches!(answers[..], [Err(Stopped::Unknown(_)), Err(Stopped::Unknown(_))]), "{answers:?}");
        let written = disk.operations();
        let answers = server.ask(&[take("later", 0)], true);
        assert!(matches!(answers[..], [Err(Stopped::NoEffect(_))]), "{answers:?}");
        assert!(matches!(engine.acquire(asked("later")).await, Err(leasehold::Error::Unavailable { .. })));
        let line = waiter.await.expect("the waiter does not panic");
        assert!(matches!(line, Err(leasehold::Error::Unavailable { .. })), "{line:?}");
        assert!(failed(&notices), "the operator is not told");
        assert!(watch.next().await.is_err(), "news of what may never have been");
        engine.close().await.expect("closes");
        assert_eq!(disk.operations(), written, "something was done to the disk after it had failed");
        let storage: Arc<dyn Storage> = Arc::new(disk.after_crash(0, &[]));
        let again = Embedded::open_on(storage, Options::default()).await.expect("opens after the failure");
        assert!(found(&again).await.contains_key("before"));
    }
}

/// Goal: whoever happens to write when the disk fails, nobody panics, everybody is answered once, and what was answered
/// is there afterwards. Method: the crowd, a failure after a while, a power cut that loses what was not synced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_fails_under_a_crowd_loses_nothing_answered() {
    let mut failures = 0;
    for round in 0..40 {
        let disk = SimDisk::default();
        let storage: Arc<dyn Storage> = Arc::new(disk.clone());
        let engine = Embedded::open_on(storage, Options::default()).await.expect("opens");
        let armed = Arc::new(AtomicBool::new(false));
        let (arm, breaking) = (armed.clone(), disk.clone());
        let saboteur = std::thread::spawn(move || {
            // After so much work, not after so much time: it must be in the middle of it.
            let from = breaking.operations();
            while breaking.operations() < from + 20 + round * 7 {
                std::thread::yield_now();
                if arm.load(Ordering::SeqCst) {
                    return;
                }
            }
            breaking.set_faults(Faults { fail_sync: round % 2 == 0, fail_write: round % 2 == 1, crash_in: None });
        });
        let log = crowd(&engine, 400, round).await;
        armed.store(true, Ordering::SeqCst);
        saboteur.join().expect("the saboteur does not panic");
        failures += u64::from(!log.unsure.is_empty());
        engine.close().await.expect("closes");
        let lost = disk.after_crash(disk.choices().dir, &vec![0; disk.choices().writes.len()]);
        let storage: Arc<dyn Storage> = Arc::new(lost);
        let again = Embedded::open_on(storage, Options::default()).await.expect("opens after the failure");
        compare(&log, &found(&again).await);
    }
    assert!(failures >= 20, "the disk failed in the middle of it in {failures} rounds only");
}

/// Goal: an idle engine whose last batch was written by a server thread still writes its proof within 50 ms.
/// Method: one batch after a rest; two more operations (a write and a sync) reach the disk by themselves. Machines
/// pause, so the best of some rounds counts; none may take longer than the writer thread's longest sleep.
#[tokio::test]
async fn an_idle_engine_proves_what_a_server_thread_wrote() {
    let disk = SimDisk::default();
    let storage: Arc<dyn Storage> = Arc::new(disk.clone());
    let engine = Embedded::open_on(storage, Options::default()).await.expect("opens");
    let clock = SystemClock::shared();
    let mut server = ServerThread::new(&engine);
    let mut best = Duration::MAX;
    for round in 0..8 {
        clock.sleep_until(clock.now().plus(Duration::from_millis(120))).await;
        let answers = server.ask(&[ServerCommand::Take { name: format!("n{round}"), wait_ms: 0 }], true);
        assert!(matches!(answers[..], [Ok(Reply::Granted(_))]), "{answers:?}");
        let (written, began) = (disk.operations(), clock.now());
        while disk.operations() < written + 2 {
            assert!(clock.now().since(began) < MAX_REPLY_WAIT, "no proof came");
            clock.sleep_until(clock.now().plus(Duration::from_millis(1))).await;
        }
        best = best.min(clock.now().since(began));
    }
    assert!(best <= Duration::from_millis(50), "the proof came after {best:?}");
}

/// Goal: after a failed sync the journal touches the disk no more, whatever is asked of it: frame, ceiling or proof.
#[test]
fn a_failed_journal_is_left_alone() {
    let disk = SimDisk::default();
    let storage: Arc<dyn Storage> = Arc::new(disk.clone());
    let random = Box::new(|| 7);
    let started = start::<u64>(&storage, &Options::default(), random, |_, _| {}).expect("starts");
    let (mut journal, now) = (started.journal, started.clock.now());
    disk.set_faults(Faults { fail_sync: true, ..Faults::default() });
    assert!(journal.commit(FrameKind::Facts, &[], now).is_err());
    let done = disk.operations();
    assert!(journal.prove().is_err() && journal.reserve_tokens(0).is_err() && journal.close(1, now).is_err());
    assert_eq!(disk.operations(), done, "something was done to a disk that had failed");
}
