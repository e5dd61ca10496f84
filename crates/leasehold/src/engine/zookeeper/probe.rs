//! Why there is no session: what each server does with a connection. A server that is down is told from one that is slow, or
//! whose ensemble has no majority.

use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::clock::until;

use super::options::{ZookeeperEngineOptions, show_host};

/// How long a server may take to accept a connection.
const PROBE_FOR: Duration = Duration::from_millis(500);

/// What all servers did with a connection.
#[derive(Debug)]
pub(super) struct ServerProbe {
    servers: Vec<(String, ConnectOutcome)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectOutcome {
    Refused,
    /// The name is unknown, or there is no way to the host.
    Unreachable,
    Silent,
    Accepted,
}

impl ServerProbe {
    /// Connects to all servers at once.
    pub async fn run(options: &ZookeeperEngineOptions) -> Self {
        let mut probes = JoinSet::new();
        for (at, host) in options.hosts.iter().cloned().enumerate() {
            let clock = options.clock.clone();
            probes.spawn(async move {
                let connect = TcpStream::connect((host.0.as_str(), host.1));
                let outcome = match until(&*clock, clock.now().plus(PROBE_FOR), connect).await {
                    Some(Ok(_)) => ConnectOutcome::Accepted,
                    Some(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                        ConnectOutcome::Refused
                    }
                    Some(Err(_)) => ConnectOutcome::Unreachable,
                    None => ConnectOutcome::Silent,
                };
                (at, show_host(&host), outcome)
            });
        }
        let mut outcomes = probes.join_all().await;
        outcomes.sort_by_key(|(at, ..)| *at);
        Self { servers: outcomes.into_iter().map(|(_, server, outcome)| (server, outcome)).collect() }
    }

    /// Nobody is there: to wait is of no use.
    pub fn is_hopeless(&self) -> bool {
        self.servers.iter().all(|(_, outcome)| matches!(outcome, ConnectOutcome::Refused | ConnectOutcome::Unreachable))
    }

    /// What is wrong with each server.
    pub fn sentence(&self) -> String {
        let reason = |(server, outcome): &(String, ConnectOutcome)| match outcome {
            ConnectOutcome::Refused => format!("{server} refuses the connection"),
            ConnectOutcome::Unreachable => format!("{server} cannot be reached"),
            ConnectOutcome::Silent => format!("{server} is silent"),
            ConnectOutcome::Accepted => {
                format!("{server} takes connections and opens no session (is it overloaded, or without a majority?)")
            }
        };
        let reasons: Vec<String> = self.servers.iter().map(reason).collect();
        format!("no server of the ensemble answers: {}", reasons.join(", "))
    }
}
