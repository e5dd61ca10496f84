//! A real `leasehold serve` for a test: its own directory, its own ports, gone when the test is.

#![allow(dead_code, reason = "each test file uses its own part of this")]
#![allow(clippy::disallowed_methods, reason = "real processes run in real time")]

use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Longer than a start should take, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Server {
    child: Child,
    dir: TempDir,
    resp: SocketAddr,
    http: SocketAddr,
}

impl Server {
    /// A fresh server, listening.
    pub fn start() -> Self {
        // In memory where there is such a place: these tests are not about the disk.
        let fresh = || tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a fresh directory");
        // Another process may take a port between looking and listening: then others are looked for.
        for _ in 0..10 {
            let (resp, http) = (free_port(), free_port());
            let dir = fresh();
            let child = spawn(&dir, resp, http);
            let mut server = Self { child, dir, resp, http };
            if server.listens() {
                return server;
            }
        }
        panic!("no server would start")
    }

    fn listens(&mut self) -> bool {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if self.child.try_wait().expect("it is ours").is_some() {
                return false;
            }
            if TcpStream::connect(self.resp).is_ok() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the server did not listen in {PATIENCE:?}")
    }

    pub fn at(&self) -> SocketAddr {
        self.resp
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn url(&self) -> String {
        format!("leasehold://{}", self.resp)
    }

    /// Ends it without a word, as a power switch does.
    pub fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
    }

    /// Starts it again over the same directory, on the same ports.
    pub fn start_again(&mut self) {
        self.child = spawn(&self.dir, self.resp, self.http);
        assert!(self.listens(), "the server starts again");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(dir: &TempDir, resp: SocketAddr, http: SocketAddr) -> Child {
    Command::new(env!("CARGO_BIN_EXE_leasehold"))
        .env_remove("LEASEHOLD_URL")
        .arg("serve")
        .args(["--data", &dir.path().join("data").display().to_string()])
        .args(["--resp", &resp.to_string(), "--http", &http.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary starts")
}

/// A port where nobody listens at the moment.
pub fn free_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], leasehold_harness::free_port()))
}
