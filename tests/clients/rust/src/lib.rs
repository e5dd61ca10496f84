//! A real `leasehold serve` for each test: free ports, a directory of its own, gone when it is dropped.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// See the module.
pub struct Server {
    child: Child,
    home: PathBuf,
    port: u16,
}

impl Server {
    /// Starts it and waits until it says where it listens.
    pub fn start(name: &str) -> Self {
        let home = std::env::temp_dir().join(format!("leasehold-clients-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&home).expect("a directory");
        let child = spawn(&home, 0);
        let mut server = Self { child, home, port: 0 };
        server.port = server.listens();
        server
    }

    /// kill -9, and started again on the same directory and port.
    pub fn restart(&mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it is ours");
        self.child = spawn(&self.home, self.port);
        assert_eq!(self.listens(), self.port);
    }

    /// kill -9.
    pub fn kill(&mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it is ours");
    }

    /// Where it is.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    fn listens(&mut self) -> u16 {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let said = std::fs::read_to_string(self.home.join("log")).unwrap_or_default();
            let ended = self.child.try_wait().expect("it is ours");
            assert!(ended.is_none() && Instant::now() < end, "the server does not start: {said}");
            // The last line of the banner is the example with `acquire`.
            let line = said.lines().find_map(|line| line.strip_prefix("  resp  127.0.0.1:"));
            if let Some(port) = line.filter(|_| said.contains("acquire seat-16")) {
                return port.trim().parse().expect("a port");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn spawn(home: &std::path::Path, port: u16) -> Child {
    let binary = std::env::var("LEASEHOLD_BIN").expect("LEASEHOLD_BIN names the binary: run scripts/test-clients");
    let log = std::fs::File::create(home.join("log")).expect("a file");
    Command::new(binary)
        .args(["serve", "--http", "127.0.0.1:0", "--resp", &format!("127.0.0.1:{port}"), "--data"])
        .arg(home.join("data"))
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a file"))
        .stderr(log)
        .spawn()
        .expect("LEASEHOLD_BIN starts")
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.home);
    }
}
