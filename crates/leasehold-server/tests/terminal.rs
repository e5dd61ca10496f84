//! `leasehold run` at a terminal: the command can read it, Ctrl-C reaches it, Ctrl-Z does not stop it.

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use common::{PATIENCE, Site};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// A session at a pseudo-terminal.
struct Session {
    keys: File,
    screen: mpsc::Receiver<Vec<u8>>,
    seen: String,
    shell: std::process::Child,
}

impl Session {
    /// Starts a shell that runs one line, with the terminal as its own: `setsid --ctty` gives it one.
    fn start(site: &Site, line: &str) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
        grantpt(&master).expect("it is ours");
        unlockpt(&master).expect("it opens");
        let name = ptsname(&master, Vec::new()).expect("it has a name").into_string().expect("in plain letters");
        let open = || {
            let tty = File::options().read(true).write(true).open(&name).expect("the terminal opens");
            Stdio::from(OwnedFd::from(tty))
        };
        let shell = Command::new("setsid")
            .args(["--ctty", "--wait", "sh", "-c", line])
            .env("LEASEHOLD_URL", site.url())
            .env("LEASEHOLD", env!("CARGO_BIN_EXE_leasehold"))
            .current_dir(site.path("."))
            .stdin(open())
            .stdout(open())
            .stderr(open())
            .spawn()
            .expect("setsid is part of every Linux");
        let mut reader = File::from(master.try_clone().expect("a second handle"));
        let (tell, screen) = mpsc::channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 1024];
            // Ends when the last holder of the terminal is gone.
            while let Ok(n @ 1..) = reader.read(&mut bytes) {
                if tell.send(bytes[..n].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self { keys: File::from(master), screen, seen: String::new(), shell }
    }

    #[track_caller]
    fn wait_for(&mut self, text: &str) {
        while !self.seen.contains(text) {
            match self.screen.recv_timeout(PATIENCE) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(error) => panic!("waited for {text:?} ({error}), seen {:?}", self.seen),
            }
        }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("somebody reads");
    }

    #[track_caller]
    fn end(mut self) -> String {
        while let Ok(bytes) = self.screen.recv_timeout(Duration::from_millis(100)) {
            self.seen.push_str(&String::from_utf8_lossy(&bytes));
        }
        common::wait_until("the session ends", || self.shell.try_wait().expect("it is ours").is_some());
        self.seen
    }
}

/// Goal: the command can ask a question, and afterwards the terminal is the shell's again.
#[test]
fn the_command_reads_the_terminal_and_gives_it_back() {
    let site = Site::new();
    let mut session = Session::start(
        &site,
        "$LEASEHOLD run job -- sh -c 'echo your name?; read name; echo hello $name'; echo more?; read more; echo got $more",
    );
    session.wait_for("your name?");
    session.press("ada\n");
    session.wait_for("hello ada");
    session.wait_for("more?");
    session.press("yes\n");
    session.wait_for("got yes");
    session.end();
}

#[test]
fn ctrl_c_reaches_the_command() {
    let site = Site::new();
    let mut session = Session::start(
        &site,
        "$LEASEHOLD run job -- sh -c 'trap \"exit 44\" INT; echo ready; while :; do sleep 0.01; done'; echo code $?",
    );
    session.wait_for("ready");
    session.press("\x03");
    session.wait_for("code 44");
    session.end();
    assert!(!site.is_held("job"));
}

/// Method: the shell waits in its own `read`, so that the whole command is stopped at once.
#[test]
fn ctrl_z_does_not_suspend_a_command_that_holds_a_lease() {
    let site = Site::new();
    let mut session = Session::start(
        &site,
        "$LEASEHOLD run job -- sh -c 'trap \"exit 45\" CONT; echo ready; read x; exit 46'; echo code $?",
    );
    session.wait_for("ready");
    session.press("\x1a");
    session.wait_for("not suspended");
    session.wait_for("code 45");
    session.end();
}
