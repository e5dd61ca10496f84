//! The processes and the directory of one run, and the record of what happens.
//!
//! Everything that is started here ends when its value is dropped: a process is killed and waited for, then the directory
//! goes. So a run that is interrupted leaves nothing.

mod actor_process;
mod lab_process;
mod lease_server;
mod recorder;
mod run_dir;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use leasehold::clock::{Clock, SystemClock};
use leasehold_harness::frozen_clock::FrozenClock;
use leasehold_harness::postgres::Cluster;
use leasehold_harness::proxy::Proxy;
use leasehold_harness::redis::RedisServer;
use leasehold_support::exit::{self, Failure};

pub use actor_process::ActorProcess;
pub use lab_process::LabProcess;
pub use lease_server::{LeaseServer, url_at};
pub use recorder::{LabLine, Recorder};

use self::run_dir::RunDir;
use crate::actor::ACTOR_COMMAND;
use crate::seat::{SeatStore, postgres};
use crate::timeline::LabTimeline;

/// A run. See the module.
pub struct Stage {
    pub record: Recorder,
    clock: Arc<dyn Clock>,
    own_program: PathBuf,
    /// Where the seats are, if not in SQLite.
    cluster: Option<Cluster>,
    /// Dropped last: what is in it is used by everything else.
    dir: RunDir,
}

impl Stage {
    /// A new directory, and nothing in it.
    pub fn new(record: Recorder) -> anyhow::Result<Self> {
        let dir = RunDir::create(&std::env::temp_dir()).context("make a directory for the lab")?;
        let own_program = std::env::current_exe().context("find this program")?;
        Ok(Self { record, clock: SystemClock::shared(), own_program, cluster: None, dir })
    }

    /// The record, once everything has ended.
    pub fn finish(self, sentence: String) -> LabTimeline {
        self.record.finish(sentence)
    }

    /// A path in the directory of the run.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Lets time pass.
    pub async fn wait(&self, span: Duration) {
        self.clock.sleep_until(self.clock.now().plus(span)).await;
    }

    /// Starts a PostgreSQL: from now on the seats are there.
    pub async fn start_postgres(&mut self) -> anyhow::Result<()> {
        let root = self.path("postgres");
        std::fs::create_dir(&root).context("make a directory for PostgreSQL")?;
        // PostgreSQL does not run as root, and its own user must get to its directory.
        let open_up = |path: &Path, mode: u32| std::fs::set_permissions(path, Permissions::from_mode(mode));
        open_up(self.dir.path(), 0o711).context("open the directory of the lab to PostgreSQL")?;
        open_up(&root, 0o1777).context("open the directory of the lab to PostgreSQL")?;
        self.cluster = Some(blocking("start PostgreSQL", move || Cluster::try_start(&root, &[])).await?);
        Ok(())
    }

    /// A place for a table of seats.
    pub async fn seat_store(&self, name: &str) -> anyhow::Result<SeatStore> {
        let Some(cluster) = &self.cluster else {
            return Ok(SeatStore::Sqlite(self.path(&format!("{name}.db"))));
        };
        postgres::create_database(&cluster.url("postgres"), name).await?;
        Ok(SeatStore::Postgres(cluster.url(name)))
    }

    /// Starts the process of an actor.
    pub fn start_actor(&self, name: &str) -> anyhow::Result<ActorProcess> {
        let mut command = self.own_command(&[ACTOR_COMMAND, "play"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        ActorProcess::start(name, command, self.clock.clone())
    }

    /// Starts a Leasehold server over an embedded engine.
    pub async fn start_server(&self) -> anyhow::Result<LeaseServer> {
        LeaseServer::start(self).await
    }

    /// Starts a Redis with these settings.
    pub async fn start_redis(&self, settings: &[&str]) -> anyhow::Result<RedisServer> {
        self.start_redis_under(settings, None).await
    }

    /// Starts a Redis whose wall clock is the lab's.
    pub async fn start_redis_under(
        &self,
        settings: &[&str],
        clock: Option<FrozenClock>,
    ) -> anyhow::Result<RedisServer> {
        let root = self.dir.path().to_owned();
        let settings: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
        blocking("start a Redis", move || {
            let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
            RedisServer::try_start(&root, &settings, clock)
        })
        .await
    }

    /// A wall clock for a Redis. None where there is no C compiler to make it with.
    pub async fn frozen_clock(&self, wall_ms: u64) -> anyhow::Result<Option<FrozenClock>> {
        if !is_installed("cc") {
            return Ok(None);
        }
        let root = self.dir.path().to_owned();
        let micros = wall_ms.saturating_mul(1_000);
        blocking("make a clock", move || FrozenClock::try_new(&root, micros)).await.map(Some)
    }

    /// A proxy in front of a port, which cuts on order.
    pub fn start_proxy(&self, port: u16) -> anyhow::Result<Proxy> {
        Proxy::try_start(port).context("start a proxy")
    }

    /// This binary with another command, without the settings of whoever runs the lab. It ends with the lab.
    pub fn own_process(&self, arguments: &[&str]) -> Command {
        self.own_command(&[&[ACTOR_COMMAND, "become", "--"], arguments].concat())
    }

    pub fn own_program(&self) -> &Path {
        &self.own_program
    }

    fn own_command(&self, arguments: &[&str]) -> Command {
        use std::os::unix::process::CommandExt as _;
        let mut command = Command::new(&self.own_program);
        let ours = std::env::vars_os().map(|(name, _)| name);
        ours.filter(|name| name.to_string_lossy().starts_with("LEASEHOLD_")).for_each(|name| {
            command.env_remove(name);
        });
        // Ctrl-C is for the lab alone: it ends the others in order.
        command.current_dir(self.dir.path());
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        command
    }
}

/// Runs something that waits for another process, beside the signals that may interrupt the lab.
pub async fn blocking<T: Send + 'static>(
    what: &'static str,
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let (send, receive) = tokio::sync::oneshot::channel();
    let thread = std::thread::spawn(move || drop(send.send(work())));
    let _joined = JoinOnDrop(Some(thread));
    receive.await.context("wait for a thread")?.context(what)
}

/// A lab that is interrupted waits for its thread: what the thread has started would otherwise be left behind.
struct JoinOnDrop(Option<std::thread::JoinHandle<()>>);

impl Drop for JoinOnDrop {
    fn drop(&mut self) {
        let _ = self.0.take().map(std::thread::JoinHandle::join);
    }
}

/// Fails with the name of the program that is missing, and with what installs it.
pub fn require_program(program: &str, package: &str) -> anyhow::Result<()> {
    if is_installed(program) {
        return Ok(());
    }
    Err(missing_program(program, package))
}

/// Fails where there is no PostgreSQL.
pub fn require_postgres() -> anyhow::Result<()> {
    if !Cluster::is_installed() {
        return Err(missing_program("PostgreSQL", "postgresql"));
    }
    // It does not run as root: its own user starts it.
    if rustix::process::geteuid().is_root() { require_program("runuser", "util-linux") } else { Ok(()) }
}

fn missing_program(program: &str, package: &str) -> anyhow::Error {
    let sentence = format!("this lab needs {program}, which is not installed here: apt-get install {package}");
    Failure::coded(exit::UNAVAILABLE, sentence)
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}
