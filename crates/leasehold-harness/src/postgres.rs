//! A PostgreSQL server for a test: in its own directory, on a free port, removed with the test.
//!
//! It stops with the process that started it, however that ends: a shell waits for the end of a pipe. Without PostgreSQL
//! on the machine the test fails.

use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio_postgres::{Client, NoTls};

use crate::process::{or_fail, root_of_tests};

/// How long anything here may take.
const START_DEADLINE: Duration = Duration::from_secs(60);
const POLL_EVERY: Duration = Duration::from_millis(20);

/// A running server. See the module.
#[derive(Debug)]
pub struct Cluster {
    dir: PathBuf,
    port: u16,
    settings: String,
    shell: Mutex<Option<Child>>,
    databases: AtomicU64,
}

impl Cluster {
    /// Makes a server with default settings, and these. Its files are in memory where there is room: a thousand files for each
    /// server, made and removed again and again, took half of the CPU of the tests on ext4.
    ///
    /// # Panics
    ///
    /// If there is no PostgreSQL, or it does not start.
    #[must_use]
    pub fn start(settings: &[&str]) -> Self {
        or_fail(Self::try_start(&root_of_tests(), settings))
    }

    /// The same with its files on a disk, for what is measured.
    ///
    /// # Panics
    ///
    /// If there is no PostgreSQL, or it does not start.
    #[must_use]
    pub fn start_on_disk(settings: &[&str]) -> Self {
        or_fail(Self::try_start(&std::env::temp_dir(), settings))
    }

    /// Makes a server with default settings, and these, in a new directory below this one.
    ///
    /// # Errors
    ///
    /// If there is no PostgreSQL, or it does not start.
    pub fn try_start(root: &Path, settings: &[&str]) -> io::Result<Self> {
        let dir = root.join(format!("leasehold-pg-{:016x}", crate::random_number()?));
        let settings = settings.iter().map(|setting| format!(" -c {setting}")).collect();
        let port = crate::try_free_port()?;
        // Made first: what initdb leaves behind when it fails is removed with it.
        let mut cluster = Self { dir, port, settings, shell: Mutex::default(), databases: AtomicU64::new(0) };
        let made = as_postgres(&try_program("initdb")?)
            .args(["-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync", "-D"])
            .arg(&cluster.dir)
            .current_dir("/")
            .output()?;
        if !made.status.success() {
            return Err(io::Error::other(format!("initdb: {}", String::from_utf8_lossy(&made.stderr))));
        }
        // Another test may take the port between the look and the start.
        let mut tries = 5;
        loop {
            match cluster.try_start_server() {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && tries > 0 => {
                    tries -= 1;
                    cluster.crash();
                    cluster.port = crate::try_free_port()?;
                }
                started => return started.map(|()| cluster),
            }
        }
    }

    /// Whether there is a PostgreSQL on this machine.
    #[must_use]
    pub fn is_installed() -> bool {
        try_program("postgres").is_ok() && try_program("initdb").is_ok()
    }

    /// Starts the server, after [`Cluster::crash`].
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn start_server(&self) {
        self.try_start_server().unwrap_or_else(|error| panic!("{error}"));
    }

    fn try_start_server(&self) -> io::Result<()> {
        let (dir, port, settings) = (self.dir.display(), self.port, &self.settings);
        let server = try_program("postgres")?;
        // The pipe says "stop", or ends because we did: then nobody else tidies up.
        let script = format!(
            "{server} -D {dir} -p {port} -k {dir} -c listen_addresses=127.0.0.1{settings} > {dir}/log 2>&1 < /dev/null &
             pid=$!; read word; kill -QUIT $pid; wait $pid; test -n \"$word\" || rm -rf {dir}",
            server = server.display()
        );
        let mut shell = as_postgres(Path::new("/bin/sh"));
        // Ctrl-C is for whoever started us: this shell still has to tidy up.
        shell.args(["-c", &script]).current_dir("/").stdin(Stdio::piped()).process_group(0);
        *self.shell.lock().expect("nobody panics with it") = Some(shell.spawn()?);
        let ready = || {
            let status = std::fs::read_to_string(self.dir.join("postmaster.pid")).unwrap_or_default();
            status.lines().nth(7).is_some_and(|line| matches!(line.trim(), "ready" | "standby"))
        };
        let port_is_taken = || self.log().contains("could not create any TCP/IP sockets");
        self.try_wait("start", || ready() || port_is_taken())?;
        if ready() {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::AddrInUse, format!("the port of PostgreSQL is taken: {}", self.log())))
    }

    /// Ends the server at once, as `pg_ctl -m immediate` does: nothing is written any more, and it must recover.
    pub fn crash(&self) {
        let Some(mut shell) = self.shell.lock().expect("nobody panics with it").take() else { return };
        let _ = shell.stdin.take().map(|mut pipe| pipe.write_all(b"stop\n"));
        let _ = shell.wait();
    }

    fn wait(&self, what: &str, done: impl Fn() -> bool) {
        self.try_wait(what, done).unwrap_or_else(|error| panic!("{error}"));
    }

    fn try_wait(&self, what: &str, done: impl Fn() -> bool) -> io::Result<()> {
        for _ in 0..START_DEADLINE.as_millis() / POLL_EVERY.as_millis() {
            if done() {
                return Ok(());
            }
            #[expect(clippy::disallowed_methods, reason = "another process cannot be waited for under virtual time")]
            std::thread::sleep(POLL_EVERY);
        }
        Err(io::Error::other(format!("PostgreSQL did not {what}: {}", self.log())))
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// Kills the postmaster, as a crash of the machine would: no process of the server cleans up. Those that are left end
    /// by themselves when they notice.
    ///
    /// # Panics
    ///
    /// If it cannot be killed.
    pub fn kill(&self) {
        let status = std::fs::read_to_string(self.dir.join("postmaster.pid")).expect("it runs");
        let pid = status.lines().next().and_then(|line| line.parse().ok()).expect("the first line is its process");
        crate::send_signal(pid, crate::Signal::KILL);
        self.crash();
        // Backends may still hold the shared memory; the next postmaster refuses to start beside them.
        self.wait("end", || !self.has_processes());
        let _ = std::fs::remove_file(self.dir.join("postmaster.pid"));
    }

    /// Whether any process still works in the server's directory.
    fn has_processes(&self) -> bool {
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let place = |process: std::fs::DirEntry| std::fs::read_link(process.path().join("cwd")).ok();
        processes.filter_map(place).any(|cwd| cwd == self.dir)
    }

    /// CPU that the server's processes have used so far. What ended meanwhile is not counted.
    #[must_use]
    pub fn cpu_time(&self) -> Duration {
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let ours = processes
            .filter(|process| std::fs::read_link(process.path().join("cwd")).is_ok_and(|place| place == self.dir));
        let ticks = ours.filter_map(|process| {
            let text = std::fs::read_to_string(process.path().join("stat")).ok()?;
            // After the name, which may hold spaces: user and system time are the 12th and 13th field.
            let fields: Vec<&str> = text.rsplit(')').next()?.split_whitespace().collect();
            Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
        });
        Duration::from_millis(ticks.sum::<u64>() * 10)
    }

    /// Makes a standby of this server, which streams from it under this name.
    ///
    /// # Panics
    ///
    /// If it cannot be made.
    #[must_use]
    pub fn start_standby(&self, name: &str) -> Self {
        let dir = self.dir.with_file_name(format!("leasehold-pg-{:016x}", or_fail(crate::random_number())));
        let source = format!("host=127.0.0.1 port={} user=postgres application_name={name}", self.port);
        let made = as_postgres(&program("pg_basebackup"))
            .args(["-R", "-X", "stream", "-c", "fast", "--no-sync", "-d", &source, "-D"])
            .arg(&dir)
            .current_dir("/")
            .output()
            .expect("pg_basebackup can be run");
        assert!(made.status.success(), "pg_basebackup: {}", String::from_utf8_lossy(&made.stderr));
        let standby = Self {
            dir,
            port: crate::free_port(),
            settings: self.settings.clone(),
            shell: Mutex::default(),
            databases: AtomicU64::new(0),
        };
        standby.start_server();
        standby
    }

    /// The port on the loopback interface.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The address of a database through another port, as a role.
    #[must_use]
    pub fn url_through(&self, port: u16, role: &str, database: &str) -> String {
        format!("postgres://{role}@127.0.0.1:{port}/{database}")
    }

    /// Ends the connections of a database whose application name begins so. Says how many.
    ///
    /// # Panics
    ///
    /// If the server cannot be asked.
    pub async fn terminate_backends(&self, database: &str, application: &str) -> i64 {
        let client = self.client("postgres").await;
        let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                   WHERE datname = $1 AND application_name LIKE $2 || '%' AND pid <> pg_backend_pid()";
        client.query_one(sql, &[&database, &application]).await.expect("the server answers").get(0)
    }

    /// The address of a database.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// What the server has logged since it was started.
    #[must_use]
    pub fn read_log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// Puts a file into the server's directory that the server alone may read.
    ///
    /// # Panics
    ///
    /// If it cannot be written.
    pub fn put_file(&self, name: &str, text: &str) {
        let path = self.dir.join(name);
        std::fs::write(&path, text).expect("a file can be written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("it is ours");
        let owner = std::fs::metadata(&self.dir).expect("the directory is there").uid();
        std::os::unix::fs::chown(&path, Some(owner), None).expect("it may be given to the server");
    }

    /// A connection to a database, for what a test does behind our back.
    ///
    /// # Panics
    ///
    /// If there is none to be had.
    pub async fn client(&self, database: &str) -> Client {
        let (client, connection) = tokio_postgres::connect(&self.url(database), NoTls).await.expect("a connection");
        tokio::spawn(async move { drop(connection.await) });
        client
    }

    /// Runs SQL in a database.
    ///
    /// # Panics
    ///
    /// If it fails.
    pub async fn execute(&self, database: &str, sql: &str) {
        self.client(database).await.batch_execute(sql).await.expect("the SQL runs");
    }

    /// Makes an empty database, and says its name.
    ///
    /// # Panics
    ///
    /// If it cannot be made.
    pub async fn database(&self) -> String {
        let name = format!("t{}", self.databases.fetch_add(1, Ordering::SeqCst));
        let client = self.client("postgres").await;
        client.batch_execute(&format!("CREATE DATABASE {name}")).await.expect("a database can be made");
        name
    }

    /// Changes a setting of the server, for all sessions.
    ///
    /// # Panics
    ///
    /// If it cannot be changed.
    pub async fn change_setting(&self, setting: &str) {
        let client = self.client("postgres").await;
        client.batch_execute(&format!("ALTER SYSTEM SET {setting}")).await.expect("a setting can be changed");
        client.batch_execute("SELECT pg_reload_conf()").await.expect("settings can be read again");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.crash();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A program of the newest PostgreSQL there is.
fn program(name: &str) -> PathBuf {
    try_program(name).unwrap_or_else(|error| panic!("{error}"))
}

fn try_program(name: &str) -> io::Result<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = versions.map(|version| version.path().join("bin").join(name)).collect();
    found.sort();
    // Only Debian and its children keep the versions apart in that place.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let elsewhere = std::env::split_paths(&path).filter(|folder| folder.is_absolute());
    found.splice(0..0, elsewhere.map(|folder| folder.join(name)));
    found.retain(|path| path.is_file());
    let missing = "PostgreSQL is not installed, and this needs it: apt-get install postgresql-15";
    found.pop().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, missing))
}

/// The server refuses to run as root, and so it is run by its own user.
pub(crate) fn as_postgres(program: &Path) -> Command {
    let root = std::fs::metadata("/proc/self").is_ok_and(|me| me.uid() == 0);
    if !root {
        return Command::new(program);
    }
    let mut command = Command::new("runuser");
    command.args(["-u", "postgres", "--"]).arg(program);
    command
}
