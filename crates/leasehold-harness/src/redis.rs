//! A Redis server for a test: in its own directory, on a free port, removed with the test.
//!
//! Without Redis on the machine the test fails. The functions `try_…` return an error instead: `leasehold lab` uses
//! these.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use rustix::process::Signal;

use crate::frozen_clock::FrozenClock;
use crate::process::{ServerCommand, ServerProcess, make_dir, or_fail, root_of_tests, wait_until};

/// The settings under which a lease is durable and fenced.
pub const DURABLE: &[&str] = &["--appendonly yes", "--appendfsync always", "--aof-load-truncated no"];

/// A server. See the module.
#[derive(Debug)]
pub struct RedisServer {
    dir: PathBuf,
    port: u16,
    settings: Vec<String>,
    clock: Option<FrozenClock>,
    running: Mutex<Option<ServerProcess>>,
}

impl RedisServer {
    /// Starts a server in memory, with these settings (`"--maxmemory 1mb"`).
    ///
    /// # Panics
    ///
    /// If there is no Redis, or it does not start.
    #[must_use]
    pub fn start(settings: &[&str]) -> Self {
        or_fail(Self::try_start(&root_of_tests(), settings, None))
    }

    /// Starts a server with these settings in a new directory below this one, under this wall clock if there is one.
    ///
    /// # Errors
    ///
    /// If there is no Redis, or it does not start.
    pub fn try_start(root: &Path, settings: &[&str], clock: Option<FrozenClock>) -> io::Result<Self> {
        let dir = make_dir(root, "redis")?;
        let settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let mut server = Self { dir, port: crate::try_free_port()?, settings, clock, running: Mutex::default() };
        // Another test may take the port between the look and the start.
        for _ in 0..5 {
            server.try_spawn()?;
            if server.is_started() {
                return Ok(server);
            }
            server.kill();
            server.port = crate::try_free_port()?;
        }
        Err(server.failure("start (is redis-server installed? apt-get install redis-server)"))
    }

    /// Starts a server whose wall clock is the test's.
    ///
    /// # Panics
    ///
    /// If there is no Redis or no C compiler, or it does not start.
    #[must_use]
    pub fn start_frozen(settings: &[&str], clock: FrozenClock) -> Self {
        or_fail(Self::try_start(&root_of_tests(), settings, Some(clock)))
    }

    /// Starts a server that copies from another one.
    ///
    /// # Panics
    ///
    /// As [`RedisServer::start`], or if it does not follow.
    #[must_use]
    pub fn start_replica(master: &Self) -> Self {
        let replica = Self::start(&[&format!("--replicaof 127.0.0.1 {}", master.port)]);
        or_fail(replica.wait("follow its master", || replica.is_following()));
        replica
    }

    /// Waits until the server has copied everything from its master.
    ///
    /// # Errors
    ///
    /// If it does not.
    pub fn wait_until_following(&self) -> io::Result<()> {
        self.wait("follow its master", || self.is_following())
    }

    fn is_following(&self) -> bool {
        self.try_command(&["INFO", "replication"]).is_ok_and(|text| text.contains("master_link_status:up"))
    }

    /// Waits until the server answers; false if it ended instead.
    fn is_started(&self) -> bool {
        let ended = || {
            let log = std::fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            log.contains("Could not create server TCP listening socket") || log.contains("not found")
        };
        wait_until(|| self.answers() || ended()) && self.answers()
    }

    /// Whether it is our server that answers on the port.
    fn answers(&self) -> bool {
        let pid = self.running.lock().expect("nobody panics with it").as_ref().map(ServerProcess::pid);
        let ours = pid.map(|pid| format!("process_id:{}\r", pid.as_raw_nonzero()));
        ours.is_some_and(|ours| self.try_command(&["INFO", "server"]).is_ok_and(|text| text.contains(&ours)))
    }

    /// Starts the server on its port and directory, after [`RedisServer::kill`].
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn start_server(&self) {
        or_fail(self.try_start_server());
    }

    /// As [`RedisServer::start_server`].
    ///
    /// # Errors
    ///
    /// If it does not start.
    pub fn try_start_server(&self) -> io::Result<()> {
        self.try_spawn()?;
        self.wait("start", || self.answers())
    }

    /// Starts the server without waiting until it answers.
    ///
    /// # Panics
    ///
    /// If there is no Redis.
    pub fn spawn_server(&self) {
        or_fail(self.try_spawn());
    }

    fn try_spawn(&self) -> io::Result<()> {
        let (dir, port) = (self.dir.display().to_string(), self.port.to_string());
        let words = ["redis-server", "--port", &port, "--bind", "127.0.0.1", "--dir", &dir, "--save", ""];
        let words = words.into_iter().chain(["--appendonly", "no", "--daemonize", "no"]);
        let settings = self.settings.iter().flat_map(|setting| setting.split_whitespace());
        let clock =
            self.clock.iter().flat_map(|clock| [("LD_PRELOAD", clock.library()), ("FROZEN_CLOCK", clock.file())]);
        let command = ServerCommand {
            words: words.chain(settings).map(str::to_owned).collect(),
            variables: clock.collect(),
            log: &self.dir.join("log"),
            dir: &self.dir,
        };
        *self.running.lock().expect("nobody panics with it") = Some(ServerProcess::spawn(&command)?);
        Ok(())
    }

    /// Ends the server as `kill -9` does.
    pub fn kill(&self) {
        let running = self.running.lock().expect("nobody panics with it").take();
        if let Some(running) = running {
            running.kill();
        }
    }

    /// Ends the server and starts it again on what it left.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn kill_and_restart(&self) {
        self.kill();
        self.start_server();
    }

    /// Stops the process without ending it.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on after [`RedisServer::freeze`].
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        if let Some(running) = &*self.running.lock().expect("nobody panics with it") {
            running.signal(signal);
        }
    }

    /// Runs a command by redis-cli, and returns what it prints.
    ///
    /// # Panics
    ///
    /// If there is no redis-cli.
    pub fn command(&self, words: &[&str]) -> String {
        self.try_command(words)
            .expect("redis-cli is not installed, and these tests need it: apt-get install redis-server")
    }

    /// As [`RedisServer::command`].
    ///
    /// # Errors
    ///
    /// If there is no redis-cli.
    pub fn try_command(&self, words: &[&str]) -> io::Result<String> {
        let port = self.port.to_string();
        let mut cli = Command::new("redis-cli");
        if let Some(password) = self.settings.iter().find_map(|setting| setting.strip_prefix("--requirepass ")) {
            cli.env("REDISCLI_AUTH", password);
        }
        let ran = cli.args(["-p", &port]).args(words).output()?;
        Ok(String::from_utf8_lossy(&ran.stdout).into_owned())
    }

    /// Its port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Its address.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Where its files are.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn wait(&self, what: &str, done: impl Fn() -> bool) -> io::Result<()> {
        if wait_until(done) { Ok(()) } else { Err(self.failure(what)) }
    }

    fn failure(&self, what: &str) -> io::Error {
        let log = std::fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        io::Error::other(format!("Redis did not {what}: {log}"))
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
