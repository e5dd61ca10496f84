//! `leasehold serve` over an embedded engine, on a free port and a directory of its own.

use std::fs::File;
use std::time::Duration;

use anyhow::{Context as _, bail};

use super::Stage;
use super::lab_process::LabProcess;

/// How long a start may take.
const START_TIMEOUT: Duration = Duration::from_secs(20);
const POLL_EVERY: Duration = Duration::from_millis(5);

/// A running server. Killed when it is dropped.
pub struct LeaseServer {
    process: LabProcess,
    port: u16,
}

impl LeaseServer {
    pub async fn start(stage: &Stage) -> anyhow::Result<Self> {
        let (process, port) = spawn_server(stage, 0).await?;
        Ok(Self { process, port })
    }

    /// The URL of the engine.
    pub fn url(&self) -> String {
        url_at(self.port)
    }

    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Ends it as `kill -9` does, and starts it again on the directory and the port that it had.
    pub async fn kill_and_restart(&mut self, stage: &Stage) -> anyhow::Result<()> {
        self.process.kill_and_wait();
        (self.process, _) = spawn_server(stage, self.port).await?;
        Ok(())
    }
}

/// The URL of a server on this port.
pub fn url_at(port: u16) -> String {
    format!("leasehold://127.0.0.1:{port}")
}

async fn spawn_server(stage: &Stage, port: u16) -> anyhow::Result<(LabProcess, u16)> {
    let (data, log) = (stage.path("server"), stage.path("server.log"));
    let listen = format!("127.0.0.1:{port}");
    let mut command =
        stage.own_process(&["serve", "--http", "127.0.0.1:0", "--resp", &listen, "--ledger", "none", "--data"]);
    command.arg(&data).stderr(File::create(&log).context("make the log of the server")?);
    let mut process = LabProcess::start(&mut command).context("start a server")?;
    let deadline = stage.clock().now().plus(START_TIMEOUT);
    loop {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        if let Some(port) = port_in(&text) {
            return Ok((process, port));
        }
        let ended = process.try_wait().context("ask about the server")?.is_some();
        if ended || stage.clock().now() > deadline {
            bail!("the server did not start: {}", text.lines().last().unwrap_or_default());
        }
        stage.wait(POLL_EVERY).await;
    }
}

/// The port of RESP in what a server prints when it listens.
fn port_in(log: &str) -> Option<u16> {
    let line = log.split_inclusive('\n').filter(|line| line.ends_with('\n')).find_map(|line| {
        let line = line.trim();
        line.strip_prefix("resp  ").map(str::trim)
    })?;
    line.split_whitespace().next()?.rsplit(':').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_read_once_its_line_is_whole() {
        let log = "leasehold 0.1.0\n  http  http://127.0.0.1:40001\n  resp  leasehold://127.0.0.1:40002\n";
        assert_eq!(port_in(log), Some(40002));
        assert_eq!(port_in(log.trim_end()), None);
    }
}
