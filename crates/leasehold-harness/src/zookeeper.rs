//! A ZooKeeper ensemble for a test: servers on free ports in a directory of their own, removed with the test.
//!
//! Without ZooKeeper and Java on the machine the test fails. The functions `try_…` return an error instead.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use rustix::process::Signal;

use crate::process::{self, ServerCommand, ServerProcess};
use crate::proxy::Proxy;
use crate::zookeeper_snapshot;

const MISSING: &str =
    "ZooKeeper is not installed, and this needs it: apt-get install libzookeeper-java default-jre-headless";
/// Where Debian puts the classes.
const CLASSES: [&str; 2] = ["/usr/share/java/zookeeper.jar", "/usr/share/java/slf4j-nop.jar"];
/// A server that is stopped does not answer.
const ANSWER_DEADLINE: Duration = Duration::from_millis(500);

/// How an ensemble is made.
#[derive(Clone, Debug)]
pub struct ZookeeperSettings {
    /// How many servers.
    pub servers: usize,
    /// The unit of its times: a follower that is silent for ten is left behind.
    pub tick: Duration,
    /// Further lines of zoo.cfg; of two for one setting the later holds.
    pub lines: Vec<String>,
    /// Arguments for Java (`-Dzookeeper.extendedTypesEnabled=true`).
    pub java: Vec<String>,
    /// Whether servers reach each other through proxies, so that [`ZookeeperEnsemble::isolate`] can cut one off.
    pub partitions: bool,
    /// Below which directory. Without one in memory, where there is such a place.
    pub root: Option<PathBuf>,
}

impl ZookeeperSettings {
    /// So many servers, with short ticks.
    #[must_use]
    pub const fn new(servers: usize) -> Self {
        Self {
            servers,
            tick: Duration::from_millis(500),
            lines: Vec::new(),
            java: Vec::new(),
            partitions: false,
            root: None,
        }
    }
}

/// A running ensemble. See the module.
#[derive(Debug)]
pub struct ZookeeperEnsemble {
    dir: PathBuf,
    settings: ZookeeperSettings,
    servers: Vec<EnsembleServer>,
    /// Between servers, where they can be cut off.
    links: Vec<PeerLink>,
}

/// How one server reaches another.
#[derive(Debug)]
struct PeerLink {
    from: usize,
    to: usize,
    quorum: Proxy,
    election: Proxy,
}

#[derive(Debug)]
struct EnsembleServer {
    client_port: u16,
    quorum_port: u16,
    election_port: u16,
    state: Mutex<EnsembleServerState>,
}

#[derive(Debug, Default)]
struct EnsembleServerState {
    process: Option<ServerProcess>,
    frozen: bool,
}

impl ZookeeperEnsemble {
    /// Starts so many servers.
    ///
    /// # Panics
    ///
    /// If there is no ZooKeeper, or it does not start.
    #[must_use]
    pub fn start(servers: usize) -> Self {
        Self::start_with(ZookeeperSettings::new(servers))
    }

    /// Starts an ensemble with these settings.
    ///
    /// # Panics
    ///
    /// If there is no ZooKeeper, or it does not start.
    #[must_use]
    pub fn start_with(settings: ZookeeperSettings) -> Self {
        process::or_fail(Self::try_start_with(settings))
    }

    /// As [`ZookeeperEnsemble::start_with`].
    ///
    /// # Errors
    ///
    /// If there is no ZooKeeper, or it does not start.
    pub fn try_start_with(settings: ZookeeperSettings) -> io::Result<Self> {
        if !process::is_installed("java") || !CLASSES.iter().all(|file| Path::new(file).is_file()) {
            return Err(io::Error::new(io::ErrorKind::NotFound, MISSING));
        }
        let root = settings.root.clone().unwrap_or_else(process::root_of_tests);
        let mut log = String::new();
        // Another test may take a port between the look and the start.
        for _ in 0..5 {
            let servers = servers(&settings)?;
            let ensemble = Self {
                dir: process::make_dir(&root, "zookeeper")?,
                settings: settings.clone(),
                links: if settings.partitions { links(&servers)? } else { Vec::new() },
                servers,
            };
            for number in 0..ensemble.servers.len() {
                ensemble.write_settings(number)?;
                ensemble.spawn(number)?;
            }
            let all = || (0..ensemble.servers.len()).all(|number| ensemble.is_ready(number));
            let ended = || (0..ensemble.servers.len()).any(|number| !ensemble.is_running(number));
            process::wait_until(|| ended() || all());
            if all() {
                return Ok(ensemble);
            }
            log = (0..ensemble.servers.len()).map(|number| ensemble.read_log(number)).collect();
        }
        Err(io::Error::other(format!("ZooKeeper did not start: {log}")))
    }

    fn write_settings(&self, number: usize) -> io::Result<()> {
        let place = self.place(number);
        std::fs::create_dir_all(place.join("data"))?;
        let tick = self.settings.tick.as_millis();
        let mut text = format!(
            "tickTime={tick}\ninitLimit=20\nsyncLimit=10\ndataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\n\
             admin.enableServer=false\n4lw.commands.whitelist=*\nmaxClientCnxns=0\nminSessionTimeout=500\n\
             maxSessionTimeout=40000\n",
            place.join("data").display(),
            self.servers[number].client_port
        );
        if self.servers.len() > 1 {
            for (other, server) in self.servers.iter().enumerate() {
                let link = self.links.iter().find(|link| (link.from, link.to) == (number, other));
                let (quorum, election) = link.map_or((server.quorum_port, server.election_port), |link| {
                    (link.quorum.port(), link.election.port())
                });
                text += &format!("server.{}=127.0.0.1:{quorum}:{election}\n", other + 1);
            }
            std::fs::write(place.join("data/myid"), format!("{}\n", number + 1))?;
        }
        for line in &self.settings.lines {
            text += &format!("{line}\n");
        }
        std::fs::write(place.join("zoo.cfg"), text)
    }

    fn spawn(&self, number: usize) -> io::Result<()> {
        let place = self.place(number);
        // A short start is worth more to a test than a heap for gigabytes.
        let mut words: Vec<String> = ["java", "-Xmx256m", "-XX:+UseSerialGC"].map(str::to_owned).to_vec();
        words.extend(self.settings.java.iter().cloned());
        words.extend(["-cp".to_owned(), format!("{}:{}", place.display(), CLASSES.join(":"))]);
        words.push("org.apache.zookeeper.server.quorum.QuorumPeerMain".to_owned());
        words.push(place.join("zoo.cfg").display().to_string());
        let log = place.join("log");
        let command = ServerCommand { words, variables: Vec::new(), log: &log, dir: &self.dir };
        let process = Some(ServerProcess::spawn(&command)?);
        *self.state(number) = EnsembleServerState { process, frozen: false };
        Ok(())
    }

    fn place(&self, number: usize) -> PathBuf {
        self.dir.join(format!("s{number}"))
    }

    fn state(&self, number: usize) -> std::sync::MutexGuard<'_, EnsembleServerState> {
        self.servers[number].state.lock().expect("nobody panics with it")
    }

    fn is_running(&self, number: usize) -> bool {
        self.state(number).process.as_ref().is_some_and(ServerProcess::is_running)
    }

    /// Whether it is our server that listens, and whether it serves clients.
    fn is_ready(&self, number: usize) -> bool {
        let ours = format!("dataDir={}", self.place(number).join("data").display());
        self.try_four_letter_word(number, "conf").is_ok_and(|text| text.contains(&ours))
            && self.try_four_letter_word(number, "srvr").is_ok_and(|text| text.contains("Mode: "))
    }

    /// Ends a server as `kill -9` does. Its files stay.
    pub fn kill(&self, number: usize) {
        let process = std::mem::take(&mut *self.state(number)).process;
        if let Some(process) = process {
            process.kill();
        }
    }

    /// Starts a server on what it left, after [`ZookeeperEnsemble::kill`]. Waits until it serves, if a majority runs.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn restart(&self, number: usize) {
        self.kill(number);
        process::or_fail(self.spawn(number));
        let running = (0..self.servers.len()).filter(|number| self.is_running(*number) && !self.state(*number).frozen);
        if running.count() * 2 > self.servers.len() {
            assert!(
                process::wait_until(|| self.is_ready(number)),
                "ZooKeeper did not start: {}",
                self.read_log(number)
            );
        }
    }

    /// Sets the number that the next sequential child of a node gets, as if so many had been made. The server is killed and
    /// started again, twice.
    ///
    /// # Panics
    ///
    /// If there is no such node, or the server does not start.
    pub fn set_child_counter(&self, number: usize, path: &str, next: i32) {
        // A server that starts writes down what it has.
        self.restart(number);
        self.kill(number);
        process::or_fail(zookeeper_snapshot::set_child_counter(&self.place(number).join("data"), path, next));
        self.restart(number);
    }

    /// Stops a server's process without ending it.
    ///
    /// # Panics
    ///
    /// If it does not run.
    pub fn freeze(&self, number: usize) {
        let mut state = self.state(number);
        state.process.as_ref().expect("the server runs").signal(Signal::STOP);
        state.frozen = true;
    }

    /// Lets it go on after [`ZookeeperEnsemble::freeze`].
    ///
    /// # Panics
    ///
    /// If it does not run.
    pub fn thaw(&self, number: usize) {
        let mut state = self.state(number);
        state.process.as_ref().expect("the server runs").signal(Signal::CONT);
        state.frozen = false;
    }

    /// Cuts a server off from its peers, or joins it again. Clients still reach it. Nothing of what it sends arrives, and
    /// nobody is told.
    ///
    /// # Panics
    ///
    /// If the ensemble was started without [`ZookeeperSettings::partitions`].
    pub fn isolate(&self, number: usize, on: bool) {
        assert!(!self.links.is_empty(), "the servers of this ensemble reach each other directly");
        for link in self.links.iter().filter(|link| link.from == number || link.to == number) {
            for proxy in [&link.quorum, &link.election] {
                proxy.black_hole(on);
                if !on {
                    // What was kept meanwhile is lost, as with a real partition that outlives its connections.
                    proxy.cut_all();
                }
            }
        }
    }

    /// Whether a server serves clients, as far as it knows itself: it leads, or follows a leader.
    #[must_use]
    pub fn serves(&self, number: usize) -> bool {
        self.four_letter_word(number, "srvr").contains("Mode: ")
    }

    /// Which server leads, or is alone. Waits until one of those that run does.
    ///
    /// # Panics
    ///
    /// If none does.
    #[must_use]
    pub fn leader(&self) -> usize {
        let mut found = None;
        let leads = |number: &usize| {
            let text = if self.state(*number).frozen { String::new() } else { self.four_letter_word(*number, "srvr") };
            text.contains("Mode: leader") || text.contains("Mode: standalone")
        };
        process::wait_until(|| {
            found = (0..self.servers.len()).find(leads);
            found.is_some()
        });
        found.expect("a majority of the servers runs")
    }

    /// What a server answers to one of the words of four letters (`mntr`, `srvr`, `cons`); nothing if it is down.
    #[must_use]
    pub fn four_letter_word(&self, number: usize, word: &str) -> String {
        self.try_four_letter_word(number, word).unwrap_or_default()
    }

    fn try_four_letter_word(&self, number: usize, word: &str) -> io::Result<String> {
        let address = SocketAddr::from(([127, 0, 0, 1], self.servers[number].client_port));
        let mut stream = TcpStream::connect_timeout(&address, ANSWER_DEADLINE)?;
        stream.set_read_timeout(Some(ANSWER_DEADLINE))?;
        stream.write_all(word.as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    }

    /// Where clients reach each server.
    #[must_use]
    pub fn hosts(&self) -> Vec<String> {
        self.client_ports().iter().map(|port| format!("127.0.0.1:{port}")).collect()
    }

    /// The port of each server for clients.
    #[must_use]
    pub fn client_ports(&self) -> Vec<u16> {
        self.servers.iter().map(|server| server.client_port).collect()
    }

    /// The address of a chroot (`/locks`, or nothing) on all of them, without options.
    #[must_use]
    pub fn url(&self, chroot: &str) -> String {
        format!("zk://{}/{}", self.hosts().join(","), chroot.trim_start_matches('/'))
    }

    /// CPU that the servers have used so far. What ended meanwhile is not counted.
    #[must_use]
    pub fn cpu_time(&self) -> Duration {
        let used = |number| self.state(number).process.as_ref().map(ServerProcess::cpu_time);
        (0..self.servers.len()).filter_map(used).sum()
    }

    /// What a server has printed since it was started.
    #[must_use]
    pub fn read_log(&self, number: usize) -> String {
        std::fs::read_to_string(self.place(number).join("log")).unwrap_or_default()
    }
}

impl Drop for ZookeeperEnsemble {
    fn drop(&mut self) {
        for number in 0..self.servers.len() {
            self.kill(number);
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn servers(settings: &ZookeeperSettings) -> io::Result<Vec<EnsembleServer>> {
    let ports = process::lasting_ports(settings.servers * 3)?;
    let server = |ports: &[u16]| EnsembleServer {
        client_port: ports[0],
        quorum_port: ports[1],
        election_port: ports[2],
        state: Mutex::default(),
    };
    Ok(ports.chunks(3).map(server).collect())
}

/// A proxy for each direction between two servers.
fn links(servers: &[EnsembleServer]) -> io::Result<Vec<PeerLink>> {
    let mut links = Vec::new();
    for from in 0..servers.len() {
        for to in (0..servers.len()).filter(|to| *to != from) {
            let quorum = Proxy::try_start(servers[to].quorum_port)?;
            let election = Proxy::try_start(servers[to].election_port)?;
            links.push(PeerLink { from, to, quorum, election });
        }
    }
    // Who calls for an election tells its own port, and is called back there. The answer takes the proxy too.
    for link in &links {
        let back = links.iter().find(|other| (other.from, other.to) == (link.to, link.from));
        if let Some(back) = back {
            let told = format!("127.0.0.1:{}", servers[link.from].election_port);
            link.election
                .rewrite_requests(told.into_bytes(), format!("127.0.0.1:{}", back.election.port()).into_bytes());
        }
    }
    Ok(links)
}
