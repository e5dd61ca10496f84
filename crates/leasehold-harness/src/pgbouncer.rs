//! A PgBouncer in transaction mode for a test: in front of a PostgreSQL, on a free port, removed with the test.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use crate::postgres::as_postgres;

const START_DEADLINE: Duration = Duration::from_secs(20);
const POLL_EVERY: Duration = Duration::from_millis(20);

/// A running pooler. See the module.
#[derive(Debug)]
pub struct Pooler {
    dir: PathBuf,
    port: u16,
    process: Child,
}

impl Pooler {
    /// A pooler in transaction mode before this port of the loopback interface, with few connections to the server.
    ///
    /// # Panics
    ///
    /// If there is no PgBouncer, or it does not start.
    #[must_use]
    pub fn start(server_port: u16) -> Self {
        let mut random = [0; 8];
        getrandom::fill(&mut random).expect("the operating system has random bytes");
        let dir = std::env::temp_dir().join(format!("leasehold-pgbouncer-{:016x}", u64::from_be_bytes(random)));
        std::fs::create_dir_all(&dir).expect("a directory can be made");
        let port = crate::free_port();
        let users = dir.join("users");
        std::fs::write(&users, "\"postgres\" \"\"\n").expect("a file can be written");
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={server_port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nauth_type = trust\nauth_file = {}\npool_mode = transaction\n\
             default_pool_size = 3\nunix_socket_dir =\nserver_reset_query =\nlogfile = /dev/null\n",
            users.display()
        );
        let file = dir.join("settings.ini");
        std::fs::write(&file, settings).expect("a file can be written");
        // It refuses to run as root, as the server does.
        let process = as_postgres(Path::new("pgbouncer"))
            .arg("-q")
            .arg(&file)
            .current_dir("/")
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("PgBouncer is not installed, and this test needs it: apt-get install pgbouncer");
        let pooler = Self { dir, port, process };
        for _ in 0..START_DEADLINE.as_millis() / POLL_EVERY.as_millis() {
            if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return pooler;
            }
            #[expect(clippy::disallowed_methods, reason = "another process cannot be waited for under virtual time")]
            std::thread::sleep(POLL_EVERY);
        }
        panic!("PgBouncer did not start: is it installed? apt-get install pgbouncer");
    }

    /// Where it listens.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        // runuser passes TERM on to the pooler; KILL would leave it behind.
        crate::send_signal(self.process.id(), crate::Signal::TERM);
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
