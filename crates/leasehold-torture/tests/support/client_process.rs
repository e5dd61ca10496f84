//! A client that is a process of its own, so that it can be stopped by a signal. It is the test binary once more, with the
//! one test that calls [`run_if_ordered`], and reports every operation.

use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::engine::{Claim, Engine, Want};
use leasehold::{Error, FencedLease, Lease, Leasehold};
use leasehold_core::Token;
use leasehold_harness::{Signal, end_with_parent, send_signal};
use leasehold_torture::history::{Op, OpId, OpKind, OpOutcome};
use leasehold_torture::rng::Rng;

use super::recorder::{NAMES, Recorder, asked, error_outcome, granted, number_of, sleep_millis};
use super::report::ReportReader;

/// The life of what a client process takes. It is stopped for longer.
pub const PROCESS_TTL: Duration = Duration::from_millis(600);
/// How long it waits. Longer than a waiter that says nothing is believed to be alive: that must be what ends its wait.
const PROCESS_PATIENCE: Duration = Duration::from_secs(20);
/// Operations of a process are numbered from this times its number.
const OPS_PER_PROCESS: OpId = 10_000_000;
/// How long a process may take to stop, to start or to end.
const SIGNAL_DEADLINE: Duration = Duration::from_secs(30);

/// Processes that were started here: each has its own report.
static STARTED: AtomicUsize = AtomicUsize::new(0);

const URL: &str = "LEASEHOLD_CLIENT_URL";
const NUMBER: &str = "LEASEHOLD_CLIENT_NUMBER";
const REPORT: &str = "LEASEHOLD_CLIENT_REPORT";
const USES: &str = "LEASEHOLD_CLIENT_USES";

/// How a client process works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessUses {
    /// The verbs of the engine, one after the other.
    Verbs,
    /// The guard of the library, which renews by itself and says until when it is held.
    Guard,
}

/// Runs the client if this process was started as one; false if it was not.
pub fn run_if_ordered() -> bool {
    let Ok(url) = std::env::var(URL) else { return false };
    end_with_parent().expect("a process that ends with its parent");
    let text = |name| std::env::var(name).expect("the order is whole");
    let number: u64 = text(NUMBER).parse().expect("a number");
    let report = File::options().append(true).open(text(REPORT)).expect("the report is there");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let leasehold = Leasehold::open(&url).await.expect("the engine opens");
        let tokens = leasehold.promises().fencing;
        let recorder = Recorder::reporting(tokens, report, first_op(number));
        let asked_to_stop = recorder.clone();
        // Who started it closes the pipe, or is gone.
        std::thread::spawn(move || {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            asked_to_stop.stop();
        });
        if text(USES) == "guard" {
            run_guard(&recorder, &leasehold, number).await;
        } else {
            run_verbs(&recorder, &**leasehold.engine(), number).await;
        }
        leasehold.close().await.expect("it closes");
    });
    true
}

fn first_op(number: u64) -> OpId {
    OpId::try_from(number).expect("few") * OPS_PER_PROCESS
}

/// Acquires, holds for a while, renews or not, releases.
async fn run_verbs(recorder: &Recorder, engine: &dyn Engine, client: u64) {
    let mut rng = Rng::new(104_729 * (client + 1));
    let mut requests = 0;
    while !recorder.is_stopped() {
        let wait = if rng.below(4) == 0 { Duration::ZERO } else { PROCESS_PATIENCE };
        let mut claim = Claim { wait, ..Claim::new(vec![Want::exclusive(*rng.pick(&NAMES))], PROCESS_TTL, "") };
        if rng.below(4) == 0 {
            requests += 1;
            claim.request = Some(format!("{client}-{requests}"));
        }
        let mut grant = recorder.acquire(engine, client, claim.clone()).await;
        if grant.is_none() && claim.request.is_some() {
            grant = recorder.acquire(engine, client, claim).await;
        }
        let Some(grant) = grant else {
            sleep_millis(rng.below(20)).await;
            continue;
        };
        sleep_millis(10 + rng.below(40)).await;
        if rng.below(2) == 0 {
            recorder.renew(engine, client, &grant).await;
            sleep_millis(10 + rng.below(40)).await;
        }
        while !recorder.release(engine, client, &grant).await {
            sleep_millis(20).await;
        }
        // Long enough to be seen between two calls.
        sleep_millis(10 + rng.below(10)).await;
    }
}

/// Holds a guard for a few of its renewals, and writes down until when it says that it is held. An end that moved is a
/// renewal; its moment is when the guard said so.
async fn run_guard(recorder: &Recorder, leasehold: &Leasehold, client: u64) {
    let mut rng = Rng::new(1_299_709 * (client + 1));
    while !recorder.is_stopped() {
        let name = *rng.pick(&NAMES);
        let claim = Claim { wait: PROCESS_PATIENCE, ..Claim::new(vec![Want::exclusive(name)], PROCESS_TTL, "") };
        let id = recorder.invoke(client, OpKind::Acquire(asked(&claim)));
        let invoke = recorder.nanos();
        let ask = leasehold.acquire(name).ttl(PROCESS_TTL).wait(PROCESS_PATIENCE).holder(recorder.label(id));
        let guard = match Guard::take(ask, leasehold.promises().fencing).await {
            Ok(guard) => guard,
            Err(error) => {
                recorder.answer(id, error_outcome(&error));
                sleep_millis(rng.below(20)).await;
                continue;
            }
        };
        let (token, lease) = (guard.number(), guard.lease());
        let mut until = believed_until(recorder, lease);
        recorder.answer(id, granted(token, Duration::from_nanos(until.saturating_sub(invoke)), false));
        // Renewals that it asks for by itself, and that it may not come to tell of.
        let by_itself = recorder.invoke(client, OpKind::Renew { token, ttl: None });
        recorder.answer(by_itself, OpOutcome::Unknown);
        for _ in 0..100 + rng.below(300) {
            if !lease.is_live() {
                break;
            }
            let now = believed_until(recorder, lease);
            if now > until + 1_000_000 {
                let id = recorder.invoke(client, OpKind::Renew { token, ttl: None });
                until = believed_until(recorder, lease);
                let asked = recorder.nanos();
                recorder
                    .answer(id, OpOutcome::Renewed { remaining: Duration::from_nanos(until.saturating_sub(asked)) });
            }
            sleep_millis(1).await;
        }
        let id = recorder.invoke(client, OpKind::Release { token });
        match guard.release().await {
            Ok(now) => recorder.answer(id, OpOutcome::Released(now)),
            Err(error) => recorder.answer(id, error_outcome(&error)),
        }
        sleep_millis(10 + rng.below(10)).await;
    }
}

/// A lease that renews itself, with a token where there are any.
enum Guard {
    Plain(Lease),
    Fenced(FencedLease),
}

impl Guard {
    async fn take(ask: leasehold::Acquire, fenced: bool) -> Result<Self, Error> {
        if fenced { ask.fenced().await.map(Self::Fenced) } else { ask.await.map(Self::Plain) }
    }

    fn lease(&self) -> &Lease {
        match self {
            Self::Plain(lease) => lease,
            Self::Fenced(lease) => lease,
        }
    }

    fn number(&self) -> Token {
        match self {
            Self::Plain(lease) => number_of(lease.lease_id()),
            Self::Fenced(lease) => lease.token(),
        }
    }

    async fn release(self) -> Result<bool, Error> {
        match self {
            Self::Plain(lease) => lease.release().await,
            Self::Fenced(lease) => lease.release().await,
        }
    }
}

/// Until when a guard says that it is held. The clock is read first: time that passes in between is taken off.
fn believed_until(recorder: &Recorder, lease: &Lease) -> u64 {
    let now = recorder.nanos();
    now + u64::try_from(lease.remaining().as_nanos()).expect("a short life")
}

/// A client process, as its test sees it.
pub struct ClientProcess {
    child: Child,
    report: ReportReader,
    path: PathBuf,
    pub number: u64,
}

impl ClientProcess {
    /// Starts one. `entry` is the test that calls [`run_if_ordered`]; no other process has this number.
    pub fn start(entry: &str, number: u64, url: &str, uses: ProcessUses) -> Self {
        let name = format!("client-{}-{}", std::process::id(), STARTED.fetch_add(1, Ordering::SeqCst));
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        File::create_new(&path).expect("a report of its own");
        let child = Command::new(std::env::current_exe().expect("the path of this test"))
            .args([entry, "--exact", "--nocapture"])
            .env(URL, url)
            .env(NUMBER, number.to_string())
            .env(REPORT, &path)
            .env(USES, if uses == ProcessUses::Guard { "guard" } else { "verbs" })
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("the test binary starts once more");
        Self { child, report: ReportReader::open(&path), path, number }
    }

    pub fn ops(&mut self) -> &[Op] {
        self.report.ops()
    }

    pub fn outstanding(&mut self) -> Option<(OpId, &Op)> {
        self.report.outstanding()
    }

    /// The label of one of its operations.
    pub fn label(&self, id: OpId) -> String {
        format!("op{}", first_op(self.number) + id)
    }

    /// SIGSTOP; returns when the process stands still.
    pub async fn stop(&self) {
        send_signal(self.child.id(), Signal::STOP);
        self.wait_for_state(|state| state == 'T').await;
    }

    /// SIGCONT; returns when the process runs again.
    pub async fn resume(&self) {
        send_signal(self.child.id(), Signal::CONT);
        self.wait_for_state(|state| state != 'T').await;
    }

    async fn wait_for_state(&self, wanted: impl Fn(char) -> bool) {
        let status = format!("/proc/{}/stat", self.child.id());
        for _ in 0..SIGNAL_DEADLINE.as_millis() {
            let text = std::fs::read_to_string(&status).expect("the process is there");
            // Behind the name, which may hold anything but is in brackets.
            let state = text.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).expect("its state");
            assert!(state != 'Z', "the client process ended by itself");
            if wanted(state) {
                return;
            }
            sleep_millis(1).await;
        }
        panic!("the client process does not take the signal");
    }

    /// Lets it come to its end, and returns all that it did.
    pub async fn finish(mut self) -> Vec<Op> {
        drop(self.child.stdin.take());
        for _ in 0..SIGNAL_DEADLINE.as_millis() / 10 {
            if let Some(status) = self.child.try_wait().expect("it can be waited for") {
                assert!(status.success(), "the client process failed: {status}");
                let empty = ReportReader::open(&self.path);
                return std::mem::replace(&mut self.report, empty).into_ops();
            }
            sleep_millis(10).await;
        }
        panic!("the client process does not come to its end");
    }
}

impl Drop for ClientProcess {
    fn drop(&mut self) {
        // Even one that is stopped.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The operations of several processes as one list. Labels name an operation by its process; `index_of` says where it is.
#[derive(Default)]
pub struct MergedOps {
    pub ops: Vec<Op>,
    /// Number of a process, and where its operations begin.
    begins: Vec<(u64, OpId)>,
}

impl MergedOps {
    /// Adds the operations of a process; the process of the test itself is number 0.
    pub fn add(&mut self, process: u64, ops: Vec<Op>) {
        self.begins.push((process, self.ops.len()));
        self.ops.extend(ops);
    }

    /// The label as it would be if all were done by one process.
    pub fn relabel(&self, label: &str) -> String {
        let number = label.strip_prefix("op").and_then(|digits| digits.parse::<OpId>().ok());
        let place = number.and_then(|number| {
            let process = u64::try_from(number / OPS_PER_PROCESS).ok()?;
            let (_, begin) = self.begins.iter().find(|(known, _)| *known == process)?;
            Some(begin + number % OPS_PER_PROCESS)
        });
        place.map_or_else(|| label.to_owned(), |place| format!("op{place}"))
    }
}
