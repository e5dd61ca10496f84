//! What the schedule of 1,000 machines costs the server, on this machine, now. Run by hand:
//! `cargo test --release -p leasehold --all-features --test cron_figures -- --ignored --nocapture`.
//!
//! Engine and ledger are one PostgreSQL, or a server of ours that runs already: `LEASEHOLD_CRON_URL=leasehold://HOST:PORT` and
//! `LEASEHOLD_CRON_PID`. The machines are runners in one process and share its connections: a connection that does nothing costs
//! no CPU. The CPU of the server's processes is counted, not that of the machines.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stdout)] // a real server lives in real time

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime};

use leasehold::Leasehold;
use leasehold::recipe::Store;
use leasehold::recipe::cron::{CronRunner, CronTurn, RunState, Schedule};
use leasehold_harness::postgres::Cluster;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const MACHINES: usize = 1000;
/// The figure that is promised, of one core.
const MOST: f64 = 0.05;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// What is measured.
enum Server {
    Postgres(Cluster),
    Running { url: String, pid: u32 },
}

impl Server {
    fn find() -> Self {
        match std::env::var("LEASEHOLD_CRON_URL") {
            Ok(url) => Self::Running { url, pid: std::env::var("LEASEHOLD_CRON_PID").unwrap().parse().unwrap() },
            Err(_) => Self::Postgres(Cluster::start_on_disk(&[])),
        }
    }

    fn url(&self) -> String {
        match self {
            Self::Postgres(cluster) => cluster.url("postgres"),
            Self::Running { url, .. } => url.clone(),
        }
    }

    fn cpu_time(&self) -> Duration {
        match self {
            Self::Postgres(cluster) => cluster.cpu_time(),
            Self::Running { pid, .. } => {
                let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
                // After the name, which may hold spaces: user and system time are the 12th and 13th field.
                let fields: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
                let ticks = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
                Duration::from_millis(ticks * 10)
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement of some minutes"]
async fn what_a_thousand_machines_cost() {
    let server = Server::find();
    let url = server.url();
    let (leasehold, store) = (Leasehold::open(&url).await.unwrap(), Store::open(&url).await.unwrap());
    let every_minute = Schedule::parse("* * * * *", "UTC").unwrap();
    let (stop, runs) = (CancellationToken::new(), Arc::new(AtomicU32::new(0)));
    let mut machines = JoinSet::new();
    for machine in 0..MACHINES {
        let mut runner =
            CronRunner::new(&leasehold, &store, "minutely", every_minute.clone()).machine(format!("machine-{machine}"));
        let (stop, runs) = (stop.clone(), runs.clone());
        machines.spawn(async move {
            let count = async move |_: Arc<CronTurn>| {
                runs.fetch_add(1, Ordering::SeqCst);
                Ok::<(), std::io::Error>(())
            };
            runner.run_until(&stop, count).await.unwrap();
        });
    }
    // The first looks of all of them are a start, and no schedule.
    tokio::time::sleep(Duration::from_secs(20)).await;
    let minutes = number("LEASEHOLD_CRON_MINUTES", 3);
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let to_half = Duration::from_secs(90) - Duration::from_secs(since_epoch.as_secs() % 60);
    tokio::time::sleep(to_half).await; // From the middle of a minute to the middle of another.
    let (began, before) = (Instant::now(), server.cpu_time());
    tokio::time::sleep(Duration::from_secs(60 * minutes)).await;
    let (cpu, elapsed) = (server.cpu_time() - before, began.elapsed());
    stop.cancel();
    machines.join_all().await;
    let share = cpu.as_secs_f64() / elapsed.as_secs_f64();
    let rows = store.cron_runs("minutely", 100).await.unwrap();
    let ok = rows.iter().filter(|run| run.state == RunState::Ok).count();
    println!(
        "{MACHINES} machines, {minutes} ticks: {cpu:?} CPU in {elapsed:?}: {:.2} % of a core; {ok} runs",
        share * 100.0
    );
    assert!(u32::try_from(ok).unwrap() == runs.load(Ordering::SeqCst) && ok >= usize::try_from(minutes).unwrap());
    assert!(share < MOST, "{share}");
}
