//! An etcd cluster for a test: members on free ports in a directory of their own, removed with the test.
//!
//! Without etcd on the machine the test fails. The functions `try_…` return an error instead.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use rustix::process::{Pid, Signal};

use crate::process::{self, ServerCommand, ServerProcess};
use crate::proxy::Proxy;

const MISSING: &str = "etcd is not installed, and this needs it: apt-get install etcd-server etcd-client";
/// A member that is stopped does not answer.
const ANSWER_DEADLINE: Duration = Duration::from_millis(500);
/// Short, so that a test need not wait long for a new leader.
const HEARTBEAT: [&str; 4] = ["--heartbeat-interval", "50", "--election-timeout", "500"];

/// How a cluster is made.
#[derive(Clone, Debug)]
pub struct EtcdSettings {
    /// How many members.
    pub members: usize,
    /// Flags for each (`--quota-backend-bytes=4194304`).
    pub flags: Vec<String>,
    /// Certificates for clients: then addresses begin with `etcds://`.
    pub tls: Option<EtcdTls>,
    /// Below which directory. Without one in memory, where there is such a place.
    pub root: Option<PathBuf>,
    /// Members reach each other through proxies, so that one can be cut off: see [`EtcdCluster::cut_off`].
    pub proxied_peers: bool,
}

/// Files of certificates for the clients' port.
#[derive(Clone, Debug)]
pub struct EtcdTls {
    /// Who signed both.
    pub ca: PathBuf,
    /// The certificate of each member, and of etcdctl.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Whether a client must show a certificate.
    pub client_auth: bool,
}

impl EtcdSettings {
    /// So many members with etcd's own settings, and a short heartbeat.
    #[must_use]
    pub const fn new(members: usize) -> Self {
        Self { members, flags: Vec::new(), tls: None, root: None, proxied_peers: false }
    }
}

/// A running cluster. See the module.
#[derive(Debug)]
pub struct EtcdCluster {
    dir: PathBuf,
    settings: EtcdSettings,
    members: Vec<EtcdMember>,
}

#[derive(Debug)]
struct EtcdMember {
    client_port: u16,
    peer_port: u16,
    /// Where the others reach it, if not at its own port.
    peer_proxy: Option<Proxy>,
    /// Health and metrics, never under TLS.
    metrics_port: u16,
    state: Mutex<MemberState>,
}

#[derive(Debug, Default)]
struct MemberState {
    process: Option<ServerProcess>,
    frozen: bool,
    cut_off: bool,
}

impl MemberState {
    /// Whether it can take part in an election.
    const fn is_in_touch(&self) -> bool {
        !self.frozen && !self.cut_off
    }
}

impl EtcdCluster {
    /// Starts so many members.
    ///
    /// # Panics
    ///
    /// If there is no etcd, or it does not start.
    #[must_use]
    pub fn start(members: usize) -> Self {
        Self::start_with(EtcdSettings::new(members))
    }

    /// Starts a cluster with these settings.
    ///
    /// # Panics
    ///
    /// If there is no etcd, or it does not start.
    #[must_use]
    pub fn start_with(settings: EtcdSettings) -> Self {
        process::or_fail(Self::try_start_with(settings))
    }

    /// As [`EtcdCluster::start_with`].
    ///
    /// # Errors
    ///
    /// If there is no etcd, or it does not start.
    pub fn try_start_with(settings: EtcdSettings) -> io::Result<Self> {
        if !process::is_installed("etcd") || !process::is_installed("etcdctl") {
            return Err(io::Error::new(io::ErrorKind::NotFound, MISSING));
        }
        let root = settings.root.clone().unwrap_or_else(process::root_of_tests);
        let mut log = String::new();
        // Another test may take a port between the look and the start.
        for _ in 0..5 {
            let cluster = Self {
                dir: process::make_dir(&root, "etcd")?,
                settings: settings.clone(),
                members: members(&settings)?,
            };
            for number in 0..cluster.members.len() {
                cluster.spawn(number)?;
            }
            let all = || (0..cluster.members.len()).all(|number| cluster.is_ready(number));
            let ended = || (0..cluster.members.len()).any(|number| !cluster.is_running(number));
            process::wait_until(|| ended() || all());
            if all() {
                return Ok(cluster);
            }
            log = (0..cluster.members.len()).map(|number| cluster.read_log(number)).collect();
        }
        Err(io::Error::other(format!("etcd did not start: {log}")))
    }

    fn spawn(&self, number: usize) -> io::Result<()> {
        let member = &self.members[number];
        let place = self.dir.join(format!("m{number}"));
        let scheme = if self.settings.tls.is_some() { "https" } else { "http" };
        let client = format!("{scheme}://127.0.0.1:{}", member.client_port);
        let peer = |port: u16| format!("http://127.0.0.1:{port}");
        // The same on all members: their ids are made of it.
        let advertised = |member: &EtcdMember| peer(member.peer_proxy.as_ref().map_or(member.peer_port, Proxy::port));
        let named = |(number, member): (usize, &EtcdMember)| format!("m{number}={}", advertised(member));
        let peers: Vec<String> = self.members.iter().enumerate().map(named).collect();
        let mut words: Vec<String> = ["etcd", "--name"].map(str::to_owned).to_vec();
        words.extend([format!("m{number}"), "--data-dir".to_owned(), place.display().to_string()]);
        words.extend(["--listen-client-urls".to_owned(), client.clone(), "--advertise-client-urls".to_owned(), client]);
        words.extend(["--listen-peer-urls".to_owned(), peer(member.peer_port)]);
        words.extend(["--initial-advertise-peer-urls".to_owned(), advertised(member)]);
        words.extend(["--initial-cluster".to_owned(), peers.join(",")]);
        words.extend(["--listen-metrics-urls".to_owned(), format!("http://127.0.0.1:{}", member.metrics_port)]);
        words.extend(HEARTBEAT.map(str::to_owned));
        if let Some(tls) = &self.settings.tls {
            let files = [("--cert-file", &tls.cert), ("--key-file", &tls.key), ("--trusted-ca-file", &tls.ca)];
            words.extend(files.map(|(flag, file)| format!("{flag}={}", file.display())));
            words.extend(tls.client_auth.then(|| "--client-cert-auth".to_owned()));
        }
        words.extend(self.settings.flags.iter().cloned());
        let log = self.log_file(number);
        let command = ServerCommand { words, variables: Vec::new(), log: &log, dir: &self.dir };
        let process = Some(ServerProcess::spawn(&command)?);
        let mut state = self.state(number);
        (state.process, state.frozen) = (process, false);
        drop(state);
        self.apply_cuts();
        Ok(())
    }

    fn state(&self, number: usize) -> std::sync::MutexGuard<'_, MemberState> {
        self.members[number].state.lock().expect("nobody panics with it")
    }

    fn is_running(&self, number: usize) -> bool {
        self.state(number).process.as_ref().is_some_and(ServerProcess::is_running)
    }

    /// Whether it is our member that listens, and whether it knows a leader.
    fn is_ready(&self, number: usize) -> bool {
        self.read_log(number).contains("ready to serve client requests")
            && self.metric(number, "etcd_server_has_leader") > 0.0
    }

    /// One number of a member's metrics; 0 if it does not answer.
    #[must_use]
    pub fn metric(&self, number: usize, name: &str) -> f64 {
        self.read_metric(number, name).unwrap_or_default()
    }

    fn read_metric(&self, number: usize, name: &str) -> Option<f64> {
        let text = http_get(self.members[number].metrics_port, "/metrics").ok()?;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        value.trim().parse().ok()
    }

    /// Ends a member as `kill -9` does. Its files stay.
    pub fn kill(&self, number: usize) {
        let process = self.state(number).process.take();
        if let Some(process) = process {
            process.kill();
        }
    }

    /// Starts a member on what it left, after [`EtcdCluster::kill`]. Waits until it knows a leader, if a majority runs.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn restart(&self, number: usize) {
        self.kill(number);
        process::or_fail(self.spawn(number));
        let in_touch = |number: &usize| self.is_running(*number) && self.state(*number).is_in_touch();
        let running = (0..self.members.len()).filter(in_touch);
        if self.state(number).is_in_touch() && running.count() * 2 > self.members.len() {
            assert!(process::wait_until(|| self.is_ready(number)), "etcd did not start: {}", self.read_log(number));
        }
    }

    /// Stops a member's process without ending it.
    ///
    /// # Panics
    ///
    /// If it does not run.
    pub fn freeze(&self, number: usize) {
        let mut state = self.state(number);
        state.process.as_ref().expect("the member runs").signal(Signal::STOP);
        state.frozen = true;
    }

    /// Lets it go on after [`EtcdCluster::freeze`].
    ///
    /// # Panics
    ///
    /// If it does not run.
    pub fn thaw(&self, number: usize) {
        let mut state = self.state(number);
        state.process.as_ref().expect("the member runs").signal(Signal::CONT);
        state.frozen = false;
    }

    /// Cuts a member off from the others, while clients still reach it. What is on its way between them arrives when it is
    /// reconnected, as after a cable was pulled.
    ///
    /// # Panics
    ///
    /// Without [`EtcdSettings::proxied_peers`].
    pub fn cut_off(&self, number: usize) {
        assert!(self.members[number].peer_proxy.is_some(), "a member can be cut off if proxied_peers is set");
        self.state(number).cut_off = true;
        self.apply_cuts();
    }

    /// Connects it with the others again after [`EtcdCluster::cut_off`].
    pub fn reconnect(&self, number: usize) {
        self.state(number).cut_off = false;
        self.apply_cuts();
    }

    /// The proxy of a member carries what others dial, and not what the member dials itself: that goes through the others'
    /// proxies, which hold back the connections of its process.
    fn apply_cuts(&self) {
        let states = || (0..self.members.len()).map(|number| self.state(number));
        let cut: Vec<Pid> =
            states().filter(|state| state.cut_off).filter_map(|state| Some(state.process.as_ref()?.pid())).collect();
        for (number, member) in self.members.iter().enumerate() {
            let Some(proxy) = &member.peer_proxy else { continue };
            proxy.black_hole(self.state(number).cut_off);
            let (cut, to) = (cut.clone(), proxy.port());
            let dialled_by_cut = move |from| cut.iter().any(|pid| process::has_dialled(*pid, from, to));
            proxy.hold_clients(Some(Box::new(dialled_by_cut)));
        }
    }

    /// Whether a member says that it knows no leader. One that is cut off does after an election timeout.
    #[must_use]
    pub fn misses_leader(&self, number: usize) -> bool {
        self.read_metric(number, "etcd_server_has_leader").is_some_and(|leaders| leaders < 1.0)
    }

    /// Which member leads. Waits until one of those that run and are not cut off does.
    ///
    /// # Panics
    ///
    /// If none does.
    #[must_use]
    pub fn leader(&self) -> usize {
        let mut found = None;
        let leads =
            |number: &usize| self.state(*number).is_in_touch() && self.metric(*number, "etcd_server_is_leader") > 0.0;
        process::wait_until(|| {
            found = (0..self.members.len()).find(leads);
            found.is_some()
        });
        found.expect("a majority of the members runs")
    }

    /// Runs etcdctl against all members, and returns what it prints.
    ///
    /// # Panics
    ///
    /// If it fails.
    pub fn etcdctl(&self, words: &[&str]) -> String {
        let ran = self.etcdctl_command(words).output().expect(MISSING);
        let error = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "etcdctl {}: {error}", words.join(" "));
        String::from_utf8_lossy(&ran.stdout).into_owned()
    }

    /// An etcdctl that is not started yet, for a test that wants to kill it or to see it fail.
    #[must_use]
    pub fn etcdctl_command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").arg("--endpoints").arg(self.endpoints().join(","));
        if let Some(tls) = &self.settings.tls {
            command.arg("--cacert").arg(&tls.ca).arg("--cert").arg(&tls.cert).arg("--key").arg(&tls.key);
        }
        command.args(words);
        command
    }

    /// Where clients reach each member.
    #[must_use]
    pub fn endpoints(&self) -> Vec<String> {
        self.client_ports().iter().map(|port| format!("127.0.0.1:{port}")).collect()
    }

    /// The port of each member for clients.
    #[must_use]
    pub fn client_ports(&self) -> Vec<u16> {
        self.members.iter().map(|member| member.client_port).collect()
    }

    /// The address of all of them, without options.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.settings.tls.is_some() { "etcds" } else { "etcd" };
        format!("{scheme}://{}", self.endpoints().join(","))
    }

    /// CPU that the members have used so far. What ended meanwhile is not counted.
    #[must_use]
    pub fn cpu_time(&self) -> Duration {
        let used = |number| self.state(number).process.as_ref().map(ServerProcess::cpu_time);
        (0..self.members.len()).filter_map(used).sum()
    }

    /// Where the files are.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What a member has logged since it was started.
    #[must_use]
    pub fn read_log(&self, number: usize) -> String {
        std::fs::read_to_string(self.log_file(number)).unwrap_or_default()
    }

    fn log_file(&self, number: usize) -> PathBuf {
        self.dir.join(format!("m{number}.log"))
    }
}

impl Drop for EtcdCluster {
    fn drop(&mut self) {
        for number in 0..self.members.len() {
            self.kill(number);
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn members(settings: &EtcdSettings) -> io::Result<Vec<EtcdMember>> {
    let ports = process::lasting_ports(settings.members * 3)?;
    let member = |ports: &[u16]| {
        let peer_proxy = settings.proxied_peers.then(|| Proxy::try_start(ports[1])).transpose()?;
        let [client_port, peer_port, metrics_port] = [ports[0], ports[1], ports[2]];
        Ok(EtcdMember { client_port, peer_port, peer_proxy, metrics_port, state: Mutex::default() })
    };
    ports.chunks(3).map(member).collect()
}

fn http_get(port: u16, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], port)), ANSWER_DEADLINE)?;
    stream.set_read_timeout(Some(ANSWER_DEADLINE))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}
