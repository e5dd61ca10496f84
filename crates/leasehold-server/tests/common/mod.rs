//! What the tests of the command line share: the real binary on a fresh directory, and patience that ends.

#![allow(dead_code, reason = "each test file uses its own part of this")]

pub mod authority;
pub mod fight;
pub mod figures;
pub mod server;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longer than anything here should take, also on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A fresh directory with an engine's directory in it.
pub struct Site {
    dir: tempfile::TempDir,
}

/// What a command answered.
#[derive(Debug)]
pub struct Answer {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Answer {
    pub fn of(output: &Output) -> Self {
        Self {
            // A process that died by a signal has no code of its own.
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// The answer, if it has this code.
    #[track_caller]
    pub fn with_code(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }

    /// The one JSON object on stdout.
    #[track_caller]
    pub fn json(&self) -> Value {
        assert_eq!(self.out.lines().count(), 1, "{self:?}");
        serde_json::from_str(&self.out).expect("stdout is JSON")
    }

    /// Whether stderr is one sentence of ours.
    #[track_caller]
    pub fn says_one_sentence(&self) {
        assert_eq!(self.err.lines().count(), 1, "{self:?}");
        assert!(self.err.starts_with("leasehold: "), "{self:?}");
        assert_eq!(self.out, "", "{self:?}");
    }
}

impl Site {
    pub fn new() -> Self {
        // Beside the build, so that it is on a real file system also where /tmp is in memory.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a fresh directory");
        Self { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn url(&self) -> String {
        format!("embedded:{}", self.path("data").display())
    }

    /// The binary, asked about this directory and started in it.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = binary();
        command.env("LEASEHOLD_URL", self.url()).current_dir(self.dir.path()).args(arguments);
        command
    }

    /// Runs a command to its end.
    #[track_caller]
    pub fn ask(&self, arguments: &[&str]) -> Answer {
        Answer::of(&self.command(arguments).output().expect("the binary starts"))
    }

    /// Runs a command to its end, with something on its stdin.
    #[track_caller]
    pub fn ask_with(&self, arguments: &[&str], stdin: &str) -> Answer {
        let mut child = self.start(self.command(arguments).stdin(Stdio::piped()));
        child.stdin.take().expect("a pipe").write_all(stdin.as_bytes()).expect("the binary reads");
        Answer::of(&child.wait_with_output().expect("the binary ends"))
    }

    /// Starts a command that goes on beside the test.
    pub fn start(&self, command: &mut Command) -> Child {
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts")
    }

    /// Acquires a lease and returns what `--json` says.
    #[track_caller]
    pub fn acquire(&self, arguments: &[&str]) -> Value {
        self.ask(&[&["acquire", "--json"], arguments].concat()).with_code(0).json()
    }

    /// Whether somebody holds the resource.
    #[track_caller]
    pub fn is_held(&self, name: &str) -> bool {
        let seen = self.ask(&["inspect", "--json", name]).with_code(0).json();
        !seen["holders"].as_array().expect("a list of holders").is_empty()
    }

    /// Waits for a file to be written and reads the number in it.
    #[track_caller]
    pub fn number_in(&self, file: &str) -> i32 {
        let path = self.path(file);
        let mut number = None;
        wait_until(&format!("{file} is written"), || {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            // Only a whole line: the writer may be in the middle of it.
            number = text.strip_suffix('\n').and_then(|text| text.parse().ok());
            number.is_some()
        });
        number.expect("waited for")
    }
}

pub fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command.env_remove("LEASEHOLD_URL").stdin(Stdio::null());
    command
}

/// The text of a field.
#[track_caller]
pub fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_else(|| panic!("{field} is text in {value}"))
}

/// The moment it is, for measuring and for patience.
#[allow(clippy::disallowed_methods, reason = "real processes run in real time")]
pub fn now() -> Instant {
    Instant::now()
}

/// Lets real time pass.
#[allow(clippy::disallowed_methods, reason = "real processes run in real time")]
pub fn pause(time: Duration) {
    thread::sleep(time);
}

/// Waits for a condition, and fails with its name if it never comes.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = now() + PATIENCE;
    while !condition() {
        assert!(now() < end, "waited in vain until {what}");
        pause(Duration::from_millis(5));
    }
}

/// Waits for a child to end and returns its answer.
#[track_caller]
pub fn end_of(mut child: Child) -> Answer {
    wait_until("the process ends", || child.try_wait().expect("it is ours").is_some());
    Answer::of(&child.wait_with_output().expect("it has ended"))
}

/// Whether a process runs: one that is dead but not yet reaped does not.
pub fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// Sends a signal to one process.
#[track_caller]
pub fn signal(pid: impl TryInto<i32>, signal: rustix::process::Signal) {
    let pid = pid.try_into().ok().and_then(rustix::process::Pid::from_raw).expect("a pid");
    rustix::process::kill_process(pid, signal).expect("it can be signalled");
}
