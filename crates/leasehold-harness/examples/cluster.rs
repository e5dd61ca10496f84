//! Real servers to try things on by hand: started on free ports in directories of their own, and broken on command.
//!
//! ```text
//! cargo run -p leasehold-harness --example cluster -- etcd 3
//! cargo run -p leasehold-harness --example cluster -- zookeeper 1
//! ```
//!
//! It prints the URL for `leasehold --url`, and reads commands from its input until `quit` or the end of the input. The
//! servers end with this process, however that ends, and their directories are removed.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it talks to whoever runs it")]

use std::io::{BufRead as _, Write as _};
use std::process::ExitCode;

use leasehold_harness::etcd::{EtcdCluster, EtcdSettings};
use leasehold_harness::postgres;
use leasehold_harness::redis::{DURABLE, RedisServer};
use leasehold_harness::zookeeper::{ZookeeperEnsemble, ZookeeperSettings};

const USAGE: &str = "\
usage: cluster KIND [SERVERS]
  etcd 1|3|5         zookeeper 1|3|5         redis         postgres";

const HELP: &str = "\
commands; N is the number of a server, from 1:
  kill N      end it as kill -9 does; its files stay
  start N     start it on what it left
  freeze N    stop its process without ending it       thaw N    let it go on
  cut N       cut it off from its peers, while clients still reach it
  join N      connect it with its peers again
  leader      which server leads                       url       print the URL again
  help        this text                                quit      end, and remove everything";

/// The servers of one kind.
enum Servers {
    Etcd(EtcdCluster),
    Zookeeper(ZookeeperEnsemble),
    Redis(RedisServer),
    Postgres(postgres::Cluster),
}

/// What was done to a server. The harness panics where a test would be wrong; a person is told.
#[derive(Clone, Copy, Default)]
struct ServerState {
    killed: bool,
    frozen: bool,
    cut: bool,
}

/// See the module.
struct Cluster {
    servers: Servers,
    states: Vec<ServerState>,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (kind, count) = match parse_arguments(&words) {
        Ok(parsed) => parsed,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let mut cluster = match Cluster::start(kind, count) {
        Ok(cluster) => cluster,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    cluster.print_urls();
    eprintln!("`help` lists the commands");
    loop {
        eprint!("> ");
        let _ = std::io::stderr().flush();
        let mut line = String::new();
        match std::io::stdin().lock().read_line(&mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        if words == ["quit"] {
            break;
        }
        match cluster.run(&words) {
            Ok(answer) if answer.is_empty() => {}
            Ok(answer) => println!("{answer}"),
            Err(error) => eprintln!("{error}"),
        }
    }
    ExitCode::SUCCESS
}

/// The kind, and how many servers.
fn parse_arguments<'a>(words: &[&'a str]) -> Result<(&'a str, usize), String> {
    let (kind, count) = match words {
        [] => return Err("which servers?".into()),
        [kind] => (*kind, "1"),
        [kind, count] => (*kind, *count),
        _ => return Err("too many arguments".into()),
    };
    match (kind, count) {
        ("etcd" | "zookeeper", "1" | "3" | "5") | ("redis" | "postgres", "1") => {
            Ok((kind, count.parse().map_err(|_| "that is no number")?))
        }
        ("etcd" | "zookeeper", _) => Err(format!("{kind} runs as 1, 3 or 5 servers, not as {count}")),
        ("redis" | "postgres", _) => Err(format!("{kind} is one server here, not {count}")),
        _ => Err(format!("there is no kind {kind}")),
    }
}

impl Cluster {
    fn start(kind: &str, count: usize) -> std::io::Result<Self> {
        let root = leasehold_harness::root_of_tests();
        // Alone, a server has no peers to be cut off from.
        let partitions = count > 1;
        let servers = match kind {
            "etcd" => {
                let settings = EtcdSettings { proxied_peers: partitions, ..EtcdSettings::new(count) };
                Servers::Etcd(EtcdCluster::try_start_with(settings)?)
            }
            "zookeeper" => {
                let settings = ZookeeperSettings { partitions, ..ZookeeperSettings::new(count) };
                Servers::Zookeeper(ZookeeperEnsemble::try_start_with(settings)?)
            }
            "redis" => Servers::Redis(RedisServer::try_start(&root, DURABLE, None)?),
            _ => Servers::Postgres(postgres::Cluster::try_start(&root, &[])?),
        };
        Ok(Self { servers, states: vec![ServerState::default(); count] })
    }

    fn url(&self) -> String {
        match &self.servers {
            Servers::Etcd(cluster) => cluster.url(),
            Servers::Zookeeper(ensemble) => ensemble.url("/leasehold"),
            Servers::Redis(server) => server.url(),
            Servers::Postgres(cluster) => cluster.url("postgres"),
        }
    }

    fn print_urls(&self) {
        println!("{}", self.url());
        let addresses = match &self.servers {
            Servers::Etcd(cluster) => cluster.endpoints(),
            Servers::Zookeeper(ensemble) => ensemble.hosts(),
            Servers::Redis(_) => return,
            Servers::Postgres(_) => {
                eprintln!("make the schema first: leasehold migrate --engine {}", self.url());
                return;
            }
        };
        for (number, address) in addresses.iter().enumerate() {
            eprintln!("  server {}: {address}", number + 1);
        }
    }

    /// Runs one command. The error is a sentence.
    fn run(&mut self, words: &[&str]) -> Result<String, String> {
        match words {
            [] => Ok(String::new()),
            ["help"] => Ok(HELP.into()),
            ["url"] => Ok(self.url()),
            ["leader"] => self.leader(),
            [command @ ("kill" | "start" | "freeze" | "thaw" | "cut" | "join"), number] => {
                self.change(command, self.parse_server(number)?)
            }
            [command @ ("kill" | "start" | "freeze" | "thaw" | "cut" | "join")] => {
                Err(format!("{command} which server? It has a number from 1 to {}", self.states.len()))
            }
            [command, ..] => Err(format!("there is no command {command} of this form: `help` lists them")),
        }
    }

    /// The index of a server.
    fn parse_server(&self, number: &str) -> Result<usize, String> {
        let most = self.states.len();
        let parsed = number.parse().ok().filter(|number| (1..=most).contains(number));
        parsed.map(|number: usize| number - 1).ok_or_else(|| format!("there is no server {number}: 1 to {most}"))
    }

    fn change(&mut self, command: &str, at: usize) -> Result<String, String> {
        let state = self.states[at];
        let server = at + 1;
        match (command, state) {
            ("kill" | "freeze" | "thaw", ServerState { killed: true, .. }) => {
                return Err(format!("server {server} does not run: start {server}"));
            }
            ("start", ServerState { killed: false, .. }) => return Err(format!("server {server} runs")),
            ("freeze", ServerState { frozen: true, .. }) => return Err(format!("server {server} is frozen already")),
            ("thaw", ServerState { frozen: false, .. }) => return Err(format!("server {server} is not frozen")),
            ("cut", ServerState { cut: true, .. }) => return Err(format!("server {server} is cut off already")),
            ("join", ServerState { cut: false, .. }) => return Err(format!("server {server} is not cut off")),
            ("cut" | "join", _) if self.states.len() == 1 => return Err("one server alone has no peers".into()),
            ("freeze" | "thaw", _) if matches!(self.servers, Servers::Postgres(_)) => {
                return Err("PostgreSQL is many processes: kill it instead".into());
            }
            _ => {}
        }
        match command {
            "kill" => self.kill(at),
            "start" => self.start_again(at),
            "freeze" | "thaw" => self.freeze(at, command == "freeze"),
            _ => self.cut(at, command == "cut"),
        }
        let state = &mut self.states[at];
        match command {
            "kill" => (state.killed, state.frozen) = (true, false),
            "start" => state.killed = false,
            "freeze" | "thaw" => state.frozen = command == "freeze",
            _ => state.cut = command == "cut",
        }
        Ok(format!("{command} {server}: done"))
    }

    fn kill(&self, at: usize) {
        match &self.servers {
            Servers::Etcd(cluster) => cluster.kill(at),
            Servers::Zookeeper(ensemble) => ensemble.kill(at),
            Servers::Redis(server) => server.kill(),
            Servers::Postgres(cluster) => cluster.kill(),
        }
    }

    fn start_again(&self, at: usize) {
        match &self.servers {
            Servers::Etcd(cluster) => cluster.restart(at),
            Servers::Zookeeper(ensemble) => ensemble.restart(at),
            Servers::Redis(server) => server.kill_and_restart(),
            Servers::Postgres(cluster) => cluster.start_server(),
        }
    }

    fn freeze(&self, at: usize, on: bool) {
        match (&self.servers, on) {
            (Servers::Etcd(cluster), true) => cluster.freeze(at),
            (Servers::Etcd(cluster), false) => cluster.thaw(at),
            (Servers::Zookeeper(ensemble), true) => ensemble.freeze(at),
            (Servers::Zookeeper(ensemble), false) => ensemble.thaw(at),
            (Servers::Redis(server), true) => server.freeze(),
            (Servers::Redis(server), false) => server.thaw(),
            (Servers::Postgres(_), _) => {}
        }
    }

    fn cut(&self, at: usize, on: bool) {
        match (&self.servers, on) {
            (Servers::Etcd(cluster), true) => cluster.cut_off(at),
            (Servers::Etcd(cluster), false) => cluster.reconnect(at),
            (Servers::Zookeeper(ensemble), on) => ensemble.isolate(at, on),
            (Servers::Redis(_) | Servers::Postgres(_), _) => {}
        }
    }

    /// The harness waits for a leader, and panics if none comes: without a majority it is not asked.
    fn leader(&self) -> Result<String, String> {
        let in_touch = self.states.iter().filter(|state| !(state.killed || state.frozen || state.cut)).count();
        if in_touch * 2 <= self.states.len() {
            return Err("no majority of the servers runs: nobody leads".into());
        }
        let leader = match &self.servers {
            Servers::Etcd(cluster) => cluster.leader(),
            Servers::Zookeeper(ensemble) => ensemble.leader(),
            Servers::Redis(_) | Servers::Postgres(_) => 0,
        };
        Ok(format!("server {} leads", leader + 1))
    }
}
