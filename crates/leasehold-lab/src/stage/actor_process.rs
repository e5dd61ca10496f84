//! The process of an actor, as the lab sees it: orders go in, replies come out, and signals stop it.

use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use leasehold::clock::Clock;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout};

use super::lab_process::LabProcess;
use crate::order::{ActorOrder, ActorReply};

/// Longer than any order takes.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a process may take to end after it closed its pipes.
const END_TIMEOUT: Duration = Duration::from_secs(2);
const END_POLL_EVERY: Duration = Duration::from_millis(2);

/// A running actor. Killed when it is dropped, even while it is stopped.
pub struct ActorProcess {
    name: String,
    child: LabProcess,
    orders: ChildStdin,
    replies: Lines<BufReader<ChildStdout>>,
    clock: Arc<dyn Clock>,
}

impl ActorProcess {
    pub fn start(name: &str, mut command: Command, clock: Arc<dyn Clock>) -> anyhow::Result<Self> {
        let mut child = LabProcess::start(&mut command).with_context(|| format!("start the process of {name}"))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (stdin, stdout) = pipes.context("an actor was started without pipes")?;
        let orders = ChildStdin::from_std(stdin).context("set up a pipe")?;
        let replies = BufReader::new(ChildStdout::from_std(stdout).context("set up a pipe")?).lines();
        Ok(Self { name: name.to_owned(), child, orders, replies, clock })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sends an order, and waits until it is done.
    pub async fn ask(&mut self, order: ActorOrder) -> anyhow::Result<ActorReply> {
        self.send(&order).await?;
        self.reply().await
    }

    /// Sends an order without waiting. One that is stopped follows it when it goes on.
    pub async fn send(&mut self, order: &ActorOrder) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(order).context("write an order")?;
        line.push(b'\n');
        if self.orders.write_all(&line).await.is_err() {
            bail!("{}", self.death().await);
        }
        Ok(())
    }

    /// Waits for the reply to an order that was sent.
    pub async fn reply(&mut self) -> anyhow::Result<ActorReply> {
        let deadline = self.clock.now().plus(REPLY_TIMEOUT);
        let clock = self.clock.clone();
        let line = tokio::select! {
            biased;
            line = self.replies.next_line() => line.ok().flatten(),
            () = clock.sleep_until(deadline) => bail!("{} did not answer within {REPLY_TIMEOUT:?}", self.name),
        };
        let Some(line) = line else { bail!("{}", self.death().await) };
        serde_json::from_str(&line).context("understand a reply")
    }

    /// Stops the process, as a long pause of its machine would, and waits until it stands still.
    pub fn freeze(&self) -> anyhow::Result<()> {
        let pid = self.pid()?;
        kill_process(pid, Signal::STOP).with_context(|| format!("stop {}", self.name))?;
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(pid), stopped).with_context(|| format!("wait until {} is stopped", self.name)).map(drop)
    }

    /// Lets it go on.
    pub fn thaw(&self) -> anyhow::Result<()> {
        kill_process(self.pid()?, Signal::CONT).with_context(|| format!("let {} go on", self.name))
    }

    /// Ends it as `kill -9` does.
    pub fn kill(&mut self) {
        self.child.kill_and_wait();
    }

    fn pid(&self) -> anyhow::Result<Pid> {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("a process has a number")
    }

    /// How the process ended. Its pipes are closed a moment before it can be waited for.
    async fn death(&mut self) -> String {
        let mut status = None;
        let deadline = self.clock.now().plus(END_TIMEOUT);
        while status.is_none() && self.clock.now() < deadline {
            self.clock.sleep_until(self.clock.now().plus(END_POLL_EVERY)).await;
            status = self.child.try_wait().ok().flatten();
        }
        let how = match status.map(|status| (status.signal(), status.code())) {
            Some((Some(signal), _)) => format!(" by signal {signal}"),
            Some((None, Some(code))) => format!(" with code {code}"),
            _ => String::new(),
        };
        format!("the process of {} ended{how} before the lab did: run the lab again", self.name)
    }
}
