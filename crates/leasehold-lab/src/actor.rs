//! The process of an actor: reads orders from stdin, one per line, and answers each on stdout.
//!
//! It is killed when the lab ends, however that ends, even while it is stopped: the kernel sees to it.

mod buy;
mod locks;

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use leasehold::clock::{Clock, SystemClock};
use leasehold::{Error, FencedLease, Lease, Leasehold};
use leasehold_support::exit;
use leasehold_support::output;
use redis::aio::MultiplexedConnection;
use rustix::process::{Signal, set_parent_process_death_signal};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::order::{AcquireOrder, ActorOrder, ActorOutcome, ActorReply};
use crate::seat::SeatWrite;

/// The name of the hidden command.
pub const ACTOR_COMMAND: &str = "lab-actor";

/// How often a worker leaves a sign of life.
const BEAT_EVERY: Duration = Duration::from_millis(10);

/// Not for people: a process of `leasehold lab`.
#[derive(Debug, Args)]
pub struct ActorArgs {
    #[command(subcommand)]
    part: ActorPart,
}

#[derive(Debug, Subcommand)]
enum ActorPart {
    /// Follow orders from stdin.
    Play,
    /// Write the time into a file, again and again.
    Beat { file: PathBuf },
    /// Become another command of this binary, which then ends with the lab.
    Become { arguments: Vec<OsString> },
}

impl ActorArgs {
    /// Plays the part until the lab ends.
    ///
    /// # Errors
    ///
    /// If there is no lab to play for.
    pub fn execute(self) -> anyhow::Result<u8> {
        set_parent_process_death_signal(Some(Signal::KILL)).context("end with the lab")?;
        match self.part {
            ActorPart::Become { arguments } => {
                let own = std::env::current_exe().context("find this program")?;
                Err(Command::new(own).args(arguments).exec()).context("become another command")
            }
            ActorPart::Beat { file } => run_alone(leave_signs_of_life(&file)),
            ActorPart::Play => run_alone(follow_orders()),
        }
    }
}

fn run_alone(work: impl Future<Output = anyhow::Result<u8>>) -> anyhow::Result<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the runtime")?;
    let done = runtime.block_on(work);
    // The thread that reads stdin never ends by itself.
    runtime.shutdown_background();
    done
}

async fn leave_signs_of_life(path: &Path) -> anyhow::Result<u8> {
    let clock = SystemClock::shared();
    let file = std::fs::File::create(path).context("open the file for signs of life")?;
    loop {
        let text = format!("{:020}", clock.now().as_nanos());
        file.write_all_at(text.as_bytes(), 0).context("leave a sign of life")?;
        clock.sleep_until(clock.now().plus(BEAT_EVERY)).await;
    }
}

async fn follow_orders() -> anyhow::Result<u8> {
    let mut actor = Actor::new();
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await.context("read an order")? {
        let order: ActorOrder = serde_json::from_str(&line).context("understand an order")?;
        let outcome = actor.follow(order).await;
        output::json(&ActorReply { at_ns: actor.clock.now().as_nanos(), outcome })?;
    }
    Ok(exit::DONE)
}

/// What an actor has at hand.
pub struct Actor {
    clock: Arc<dyn Clock>,
    engines: HashMap<String, Leasehold>,
    lease: Option<ActorLease>,
    redis: HashMap<u16, MultiplexedConnection>,
}

/// The guard that an actor keeps.
enum ActorLease {
    Plain(Lease),
    Fenced(FencedLease),
}

impl ActorLease {
    fn guard(&self) -> &Lease {
        match self {
            Self::Plain(lease) => lease,
            Self::Fenced(lease) => lease,
        }
    }
}

impl Actor {
    fn new() -> Self {
        Self { clock: SystemClock::shared(), engines: HashMap::new(), lease: None, redis: HashMap::new() }
    }

    async fn follow(&mut self, order: ActorOrder) -> ActorOutcome {
        let done = match order {
            ActorOrder::Acquire(order) => self.acquire(&order).await,
            ActorOrder::Check => Ok(self.check_guard()),
            ActorOrder::Release => self.release().await,
            ActorOrder::ReadSeat { store } => store.read_owner().await.map(|owner| ActorOutcome::Seat { owner }),
            ActorOrder::WriteSeat { store, owner, shown } => {
                store.write_owner(&owner, shown.as_deref()).await.map(|write| match write {
                    SeatWrite::Admitted => ActorOutcome::Admitted,
                    SeatWrite::Fenced { code, why } => ActorOutcome::Fenced { code, why },
                })
            }
            ActorOrder::Redis { port, words } => self.ask_redis(port, &words).await,
            ActorOrder::Majority { ports, name, value, ttl_ms } => {
                self.ask_majority(&ports, &name, &value, ttl_ms).await
            }
            ActorOrder::Buy(order) => self.buy(&order).await,
        };
        done.unwrap_or_else(|error| ActorOutcome::Failed { why: exit::sentence(&error) })
    }

    async fn engine(&mut self, url: &str) -> Result<Leasehold, Error> {
        if let Some(engine) = self.engines.get(url) {
            return Ok(engine.clone());
        }
        let engine = Leasehold::open(url).await?;
        self.engines.insert(url.to_owned(), engine.clone());
        Ok(engine)
    }

    async fn acquire(&mut self, order: &AcquireOrder) -> anyhow::Result<ActorOutcome> {
        let engine = self.engine(&order.url).await?;
        let ask = engine
            .acquire(&order.name)
            .ttl(Duration::from_millis(order.ttl_ms))
            .wait(Duration::from_millis(order.wait_ms));
        let granted = if order.fenced {
            ask.fenced().await.map(|lease| (Some(lease.token().get()), ActorLease::Fenced(lease)))
        } else {
            ask.await.map(|lease| (None, ActorLease::Plain(lease)))
        };
        match granted {
            Ok((token, lease)) => {
                let mark = lease.guard().lease_id().mark();
                self.lease = Some(lease);
                Ok(ActorOutcome::Granted { token, mark })
            }
            Err(error @ (Error::Refused(_) | Error::Invalid(_))) => {
                Ok(ActorOutcome::Refused { why: error.to_string() })
            }
            Err(error) => Err(error.into()),
        }
    }

    fn check_guard(&self) -> ActorOutcome {
        match &self.lease {
            Some(lease) if lease.guard().is_live() => {
                let remaining_ms = lease.guard().remaining().as_millis();
                ActorOutcome::Holds { remaining_ms: u64::try_from(remaining_ms).unwrap_or(u64::MAX) }
            }
            _ => ActorOutcome::Lost,
        }
    }

    async fn release(&mut self) -> anyhow::Result<ActorOutcome> {
        let ended = match self.lease.take() {
            Some(ActorLease::Plain(lease)) => lease.release().await,
            Some(ActorLease::Fenced(lease)) => lease.release().await,
            None => anyhow::bail!("there is no lease to release"),
        };
        match ended {
            Ok(ended) => Ok(ActorOutcome::Released { ended }),
            Err(Error::Refused(refusal)) => Ok(ActorOutcome::Refused { why: refusal.to_string() }),
            Err(error) => Err(error.into()),
        }
    }
}
