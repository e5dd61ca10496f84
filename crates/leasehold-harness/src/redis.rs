//! A Redis server for a test: in its own directory, on a free port, removed with the test.
//!
//! It ends with the process that started it, however that ends: a shell waits for the end of a pipe. Without Redis on
//! the machine the test fails.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::frozen_clock::FrozenClock;

/// How long anything here may take.
const START_DEADLINE: Duration = Duration::from_secs(20);
const POLL_EVERY: Duration = Duration::from_millis(10);

/// The settings under which a lease is durable and fenced.
pub const DURABLE: &[&str] = &["--appendonly yes", "--appendfsync always", "--aof-load-truncated no"];

/// A server. See the module.
#[derive(Debug)]
pub struct RedisServer {
    dir: PathBuf,
    port: u16,
    settings: Vec<String>,
    clock: Option<FrozenClock>,
    running: Mutex<Option<RunningServer>>,
}

/// The shell that ends the server, and the server itself.
#[derive(Debug)]
struct RunningServer {
    shell: Child,
    pid: Pid,
}

impl RedisServer {
    /// Starts a server in memory, with these settings (`"--maxmemory 1mb"`).
    ///
    /// # Panics
    ///
    /// If there is no Redis, or it does not start.
    #[must_use]
    pub fn start(settings: &[&str]) -> Self {
        Self::start_with(settings, None)
    }

    /// Starts a server whose wall clock is the test's.
    ///
    /// # Panics
    ///
    /// If there is no Redis or no C compiler, or it does not start.
    #[must_use]
    pub fn start_frozen(settings: &[&str], clock: FrozenClock) -> Self {
        Self::start_with(settings, Some(clock))
    }

    /// Starts a server that copies from another one.
    ///
    /// # Panics
    ///
    /// As [`RedisServer::start`], or if it does not follow.
    #[must_use]
    pub fn start_replica(master: &Self) -> Self {
        let replica = Self::start(&[&format!("--replicaof 127.0.0.1 {}", master.port)]);
        replica
            .wait("follow its master", || replica.command(&["INFO", "replication"]).contains("master_link_status:up"));
        replica
    }

    fn start_with(settings: &[&str], clock: Option<FrozenClock>) -> Self {
        // In memory where there is such a place: a process that is killed leaves its files there too.
        let memory = Path::new("/dev/shm");
        let root = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let dir = root.join(format!("leasehold-redis-{:016x}", crate::random_number()));
        std::fs::create_dir_all(&dir).expect("a directory can be made");
        let settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let mut server = Self { dir, port: crate::free_port(), settings, clock, running: Mutex::default() };
        // Another test may take the port between the look and the start.
        for _ in 0..5 {
            server.spawn_server();
            if server.is_started() {
                return server;
            }
            server.kill();
            server.port = crate::free_port();
        }
        let log = std::fs::read_to_string(server.dir.join("log")).unwrap_or_default();
        panic!("Redis did not start (is redis-server installed? apt-get install redis-server): {log}");
    }

    /// Waits until the server answers; false if it ended instead.
    fn is_started(&self) -> bool {
        for _ in 0..START_DEADLINE.as_millis() / POLL_EVERY.as_millis() {
            if self.answers() {
                return true;
            }
            let log = std::fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            if log.contains("Could not create server TCP listening socket") || log.contains("not found") {
                return false;
            }
            pause(POLL_EVERY);
        }
        false
    }

    /// Whether it is our server that answers on the port.
    fn answers(&self) -> bool {
        let pid = self.running.lock().expect("nobody panics with it").as_ref().map(|running| running.pid);
        let ours = pid.map(|pid| format!("process_id:{}\r", pid.as_raw_nonzero()));
        ours.is_some_and(|ours| self.command(&["INFO", "server"]).contains(&ours))
    }

    /// Starts the server on its port and directory, after [`RedisServer::kill`].
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn start_server(&self) {
        self.spawn_server();
        self.wait("start", || self.answers());
    }

    /// Starts the server without waiting until it answers.
    ///
    /// # Panics
    ///
    /// If there is no Redis.
    pub fn spawn_server(&self) {
        let (dir, port) = (self.dir.display(), self.port);
        let settings = self.settings.join(" ");
        // The pipe says "stop", or ends because we did: then nobody else tidies up.
        let script = format!(
            "redis-server --port {port} --bind 127.0.0.1 --dir {dir} --save '' --appendonly no --daemonize no {settings} \
             > {dir}/log 2>&1 < /dev/null & pid=$!; echo $pid; read word; kill -KILL $pid 2> /dev/null; wait $pid 2> /dev/null; \
             test -n \"$word\" || rm -rf {dir}"
        );
        let mut shell = Command::new("/bin/sh");
        if let Some(clock) = &self.clock {
            shell.env("LD_PRELOAD", clock.library()).env("FROZEN_CLOCK", clock.file());
        }
        let mut shell = shell
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell can be run");
        let mut line = String::new();
        let stdout = shell.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut line).expect("the shell says the pid");
        let pid = line.trim().parse().ok().and_then(Pid::from_raw).expect("a pid");
        *self.running.lock().expect("nobody panics with it") = Some(RunningServer { shell, pid });
    }

    /// Ends the server as `kill -9` does.
    pub fn kill(&self) {
        let Some(mut running) = self.running.lock().expect("nobody panics with it").take() else { return };
        let _ = kill_process(running.pid, Signal::KILL);
        let _ = running.shell.stdin.take().map(|mut pipe| pipe.write_all(b"stop\n"));
        let _ = running.shell.wait();
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
            kill_process(running.pid, signal).expect("the server runs");
        }
    }

    /// Runs a command by redis-cli, and returns what it prints.
    ///
    /// # Panics
    ///
    /// If there is no redis-cli.
    pub fn command(&self, words: &[&str]) -> String {
        let port = self.port.to_string();
        let mut cli = Command::new("redis-cli");
        if let Some(password) = self.settings.iter().find_map(|setting| setting.strip_prefix("--requirepass ")) {
            cli.env("REDISCLI_AUTH", password);
        }
        let ran = cli.args(["-p", &port]).args(words).output();
        let ran = ran.expect("redis-cli is not installed, and these tests need it: apt-get install redis-server");
        String::from_utf8_lossy(&ran.stdout).into_owned()
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

    fn wait(&self, what: &str, done: impl Fn() -> bool) {
        for _ in 0..START_DEADLINE.as_millis() / POLL_EVERY.as_millis() {
            if done() {
                return;
            }
            pause(POLL_EVERY);
        }
        let log = std::fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        panic!("Redis did not {what}: {log}");
    }
}

fn pause(span: Duration) {
    #[expect(clippy::disallowed_methods, reason = "another process cannot be waited for under virtual time")]
    std::thread::sleep(span);
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
