//! A server process that ends with the process that started it, however that ends: a shell waits for the end of a pipe.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// How long a server may take to start, or to do what a test waits for.
const START_DEADLINE: Duration = Duration::from_secs(30);
const POLL_EVERY: Duration = Duration::from_millis(10);
/// Below the ports that the system gives to connections: a server that is down keeps its port for its restart.
const LASTING_PORTS: std::ops::Range<u64> = 15_000..32_000;

/// What to run, and where its files are.
#[derive(Debug)]
pub(crate) struct ServerCommand<'a> {
    /// The program and its arguments.
    pub words: Vec<String>,
    /// Variables for it.
    pub variables: Vec<(&'static str, PathBuf)>,
    /// What it prints goes there. The file is begun anew.
    pub log: &'a Path,
    /// Removed if this process ends without a word.
    pub dir: &'a Path,
}

/// The shell that ends the server, and the server itself.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    shell: Child,
    pid: Pid,
}

impl ServerProcess {
    pub(crate) fn spawn(command: &ServerCommand) -> io::Result<Self> {
        // The pipe says "stop", or ends because we did: then nobody else tidies up.
        let script = "log=$1; dir=$2; shift 2; \"$@\" > \"$log\" 2>&1 < /dev/null & pid=$!; echo $pid; read word; \
                      kill -KILL $pid 2> /dev/null; wait $pid 2> /dev/null; test -n \"$word\" || rm -rf \"$dir\"";
        let mut shell = Command::new("/bin/sh")
            .args(["-c", script, "sh"])
            .args([command.log, command.dir])
            .args(&command.words)
            .envs(command.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // What the shell says of a process that was killed is of no use to anybody.
            .stderr(Stdio::null())
            // Ctrl-C is for whoever started us: this shell still has to tidy up.
            .process_group(0)
            .spawn()?;
        let mut line = String::new();
        if let Some(stdout) = shell.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let pid = line.trim().parse().ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("the shell that starts a server did not tell its process"))?;
        Ok(Self { shell, pid })
    }

    pub(crate) const fn pid(&self) -> Pid {
        self.pid
    }

    /// Whether it has not ended by itself. One that did is kept as a zombie, since its shell only reads.
    pub(crate) fn is_running(&self) -> bool {
        self.stat_fields().is_some_and(|fields| fields.first().is_some_and(|state| state != "Z"))
    }

    /// CPU that it has used so far.
    pub(crate) fn cpu_time(&self) -> Duration {
        let ticks = self
            .stat_fields()
            .and_then(|fields| Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?));
        Duration::from_millis(ticks.unwrap_or_default() * 10)
    }

    /// The fields after the name, which may hold spaces: the state is the first.
    fn stat_fields(&self) -> Option<Vec<String>> {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.pid.as_raw_nonzero())).ok()?;
        Some(text.rsplit(')').next()?.split_whitespace().map(str::to_owned).collect())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).expect("the server runs");
    }

    /// Ends the server as `kill -9` does.
    pub(crate) fn kill(mut self) {
        let _ = kill_process(self.pid, Signal::KILL);
        let _ = self.shell.stdin.take().map(|mut pipe| pipe.write_all(b"stop\n"));
        let _ = self.shell.wait();
    }
}

/// Whether a connection between these ports of the loopback interface was dialled by this process.
pub(crate) fn has_dialled(pid: Pid, from_port: u16, to_port: u16) -> bool {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    // The second and third field are its own side and the other side; the tenth names the socket.
    let loopback = |port: u16| format!("{:08X}:{port:04X}", u32::from_ne_bytes([127, 0, 0, 1]));
    let sides = [loopback(from_port), loopback(to_port)];
    let socket = table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (fields.get(1..3)? == sides).then(|| format!("socket:[{}]", fields.get(9).unwrap_or(&"")))
    });
    let Some(socket) = socket else { return false };
    let files = std::fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero()));
    let is_socket =
        |file: std::fs::DirEntry| std::fs::read_link(file.path()).is_ok_and(|to| to.as_os_str() == &*socket);
    files.into_iter().flatten().flatten().any(is_socket)
}

/// Waits until it is so; false if it never was.
pub(crate) fn wait_until(mut done: impl FnMut() -> bool) -> bool {
    for _ in 0..START_DEADLINE.as_millis() / POLL_EVERY.as_millis() {
        if done() {
            return true;
        }
        pause(POLL_EVERY);
    }
    false
}

/// Ports of the loopback interface that nobody has, and that no connection is given while their server is down.
pub(crate) fn lasting_ports(count: usize) -> io::Result<Vec<u16>> {
    let mut held: Vec<(u16, TcpListener)> = Vec::new();
    for _ in 0..1000 {
        if held.len() == count {
            return Ok(held.iter().map(|(port, _)| *port).collect());
        }
        let span = LASTING_PORTS.end - LASTING_PORTS.start;
        let port = u16::try_from(LASTING_PORTS.start + crate::random_number()? % span).map_err(io::Error::other)?;
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
            held.push((port, listener));
        }
    }
    Err(io::Error::other("there are no free ports"))
}

/// A new directory below this one.
pub(crate) fn make_dir(root: &Path, kind: &str) -> io::Result<PathBuf> {
    let dir = root.join(format!("leasehold-{kind}-{:016x}", crate::random_number()?));
    std::fs::create_dir(&dir)?;
    Ok(dir)
}

/// Whether there is such a program on the path.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Room for the files of several servers at once. A container may have 64 MiB of such memory.
const ROOM_IN_MEMORY: u64 = 2 << 30;

/// In memory where there is room: a process that is killed leaves its files there too.
pub fn root_of_tests() -> PathBuf {
    let memory = Path::new("/dev/shm");
    let room = rustix::fs::statvfs(memory).map_or(0, |place| place.f_bavail.saturating_mul(place.f_frsize));
    if room >= ROOM_IN_MEMORY { memory.to_owned() } else { std::env::temp_dir() }
}

/// A test cannot go on without its server.
pub(crate) fn or_fail<T>(done: io::Result<T>) -> T {
    done.unwrap_or_else(|error| panic!("{error}"))
}

pub(crate) fn pause(span: Duration) {
    #[expect(clippy::disallowed_methods, reason = "another process cannot be waited for under virtual time")]
    std::thread::sleep(span);
}
